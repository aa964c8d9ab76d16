use super::*;
use crate::{
    engine::{
        Engine,
        api::Api,
        test_engine::{engine_reaching, sync_of_kind, tenant},
    },
    metrics::Metrics,
};
use berth_api::SyncPolicy;
use berth_runtime::answers::LimitAnswers;
use berth_sync_rules::{
    model::{
        KindId,
        references::Target,
        resource::{Name, Side},
    },
    registry,
};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use http::{Method, Request, Response};
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use serde_json::json;
use std::{
    convert::Infallible,
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// A Secret with so many short keys, each of which takes 190 bytes as a tree, and so many managed fields, each of which would take 900.
fn secret(keys: usize, managed_fields: usize) -> String {
    let list = |number: usize, entry: &dyn Fn(usize) -> String| (0..number).map(entry).collect::<Vec<_>>().join(",");
    let data = list(keys, &|key| format!(r#""a{key}":"""#));
    let fields = list(managed_fields, &|field| format!(r#""f:a{field}":{{}}"#));
    format!(
        r#"{{"metadata":{{"name":"s","namespace":"team","uid":"tenant-uid","managedFields":[{{"fieldsV1":{{{fields}}}}}]}},"data":{{{data}}}}}"#
    )
}

/// An answer that comes in parts, and how many of them were read.
fn answer(text: &str) -> (impl AsyncBufRead + use<>, Arc<AtomicUsize>) {
    let parts: Vec<Vec<u8>> = text.as_bytes().chunks(1 << 14).map(<[u8]>::to_vec).collect();
    let number = Arc::new(AtomicUsize::new(0));
    let read = Arc::clone(&number);
    let parts = stream::iter(parts).map(move |part| {
        read.fetch_add(1, Ordering::Relaxed);
        Ok::<_, io::Error>(part)
    });
    (parts.into_async_read(), number)
}

/// The room that what was read has; none if it needs none.
fn room_of(read: kube::Result<Read>) -> Option<Room> {
    match read.unwrap() {
        Read::Whole(_, room) => room,
        Read::TooLarge => panic!("it is not read"),
    }
}

#[tokio::test]
async fn two_large_contents_are_read_at_a_time_and_small_ones_do_not_wait() {
    let (room, large) = (ContentRoom::default(), secret(80_000, 0));
    let first = room_of(room.read(answer(&large).0).await);
    let second = room_of(room.read(answer(&large).0).await);
    assert!(first.is_some() && second.is_some());
    let (third, parts) = answer(&large);
    let mut third = Box::pin(room.read(third));
    assert!(third.as_mut().now_or_never().is_none());
    let read = parts.load(Ordering::Relaxed) << 14;
    assert!(read < 100_000, "it is not read on: {read}");
    assert!(room_of(room.read(answer(&secret(1000, 0)).0).await).is_none());
    drop(first);
    assert!(room_of(third.await).is_some());
}

#[tokio::test]
async fn a_content_takes_no_more_room_than_it_needs() {
    let (room, content) = (ContentRoom::default(), secret(20_000, 0));
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.push(room_of(room.read(answer(&content).0).await).unwrap());
    }
    let mut next = Box::pin(room.read(answer(&content).0));
    assert!(next.as_mut().now_or_never().is_none(), "it could be the largest");
}

#[tokio::test]
async fn a_content_with_too_much_structure_is_not_parsed_and_managed_fields_are_no_part_of_it() {
    let room = ContentRoom::default();
    let all = room.permits.available_permits();
    let read = room.read(answer(&secret(100_000, 0)).0).await.unwrap();
    assert!(matches!(read, Read::TooLarge));
    let read = room.read(answer(&secret(10_000, 20_000)).0).await.unwrap();
    let Read::Whole(object, kept) = read else {
        panic!("{read:?}")
    };
    assert_eq!(object["data"].as_object().map(serde_json::Map::len), Some(10_000));
    assert_eq!(object["metadata"].get("managedFields"), None);
    drop(kept);
    assert_eq!(room.permits.available_permits(), all);
}

#[tokio::test]
async fn an_answer_beyond_the_limits_of_the_client_is_too_large() {
    let text = secret(10, 100_000);
    let service = tower::service_fn(move |_: Request<Body>| {
        let answer = Response::new(Body::from(text.clone().into_bytes()));
        async move { Ok::<_, Infallible>(answer) }
    });
    let client = ClientBuilder::new(service, "default").with_layer(&LimitAnswers).build();
    let request = Request::get("/api/v1/namespaces/team/secrets/s")
        .body(Vec::new())
        .unwrap();
    let answer = client.request_stream(request).await.unwrap();
    let read = ContentRoom::default().read(answer).await.unwrap();
    assert!(matches!(read, Read::TooLarge));
}

#[tokio::test]
async fn what_has_too_much_structure_is_read_again_when_it_has_changed() {
    let (text, gets) = (Arc::new(Mutex::new(secret(100_000, 0))), Arc::new(AtomicUsize::new(0)));
    let (answered, counted) = (Arc::clone(&text), Arc::clone(&gets));
    let service = tower::service_fn(move |request: Request<Body>| {
        if request.method() == Method::GET {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        let answer = Response::new(Body::from(lock(&answered).clone().into_bytes()));
        async move { Ok::<_, Infallible>(answer) }
    });
    let engine = engine_reaching(tenant(SyncPolicy::default()), Client::new(service, "default"));
    let (id, name) = (KindId::Secret, Name::new("team", "s"));
    let sync = sync_of_kind(&engine, id, &name);
    let keys = async |version: &str| {
        let metadata = json!({"name": "s", "namespace": "team", "uid": "tenant-uid", "resourceVersion": version});
        let stored = Stored::from(json!({ "metadata": metadata }));
        let object = stored.object();
        let content = sync.content(&stored, &object).await.unwrap();
        let keys = content.map(|content| content["data"].as_object().map(serde_json::Map::len));
        keys.map_err(|outcome| outcome.result)
    };
    for (version, expected) in [("7", 1), ("7", 1), ("8", 2)] {
        assert_eq!(keys(version).await, Err(DENIED));
        assert_eq!(gets.load(Ordering::Relaxed), expected, "{version}");
    }
    assert!(engine.contents.is_too_large(&id.key(name.clone()), 8));
    *lock(&text) = secret(10, 0);
    assert_eq!(keys("9").await, Ok(Some(10)));
    assert!(
        !engine.contents.is_too_large(&id.key(name.clone()), 8),
        "it is forgotten"
    );
}

#[tokio::test(start_paused = true)]
async fn a_content_that_is_on_the_host_leaves_its_room_although_the_tenant_takes_no_event() {
    // A key that stays in the tenant, about which there is an Event.
    let text = secret(20_000, 0).replace(r#""data":{"#, r#""data":{"VISIBLE_DEVICES":"","#);
    let of_tenant = tower::service_fn(move |request: Request<Body>| {
        let text = text.clone();
        async move {
            if request.method() != Method::GET {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes())))
        }
    });
    let host = tower::service_fn(|request: Request<Body>| async move {
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut object: Value = serde_json::from_slice(&body).unwrap();
        object["metadata"]["resourceVersion"] = "9".into();
        Ok::<_, Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
    });
    let metrics = Metrics::default();
    let engine = Engine::new(
        registry::new_cache(tenant(SyncPolicy::default())),
        Api::new(Client::new(of_tenant, "default"), Side::Tenant, metrics.clone()),
        Api::new(Client::new(host, "default"), Side::Host, metrics.clone()),
        metrics,
    );
    let (id, name) = (KindId::Secret, Name::new("team", "s"));
    let metadata = json!({"name": "s", "namespace": "team", "uid": "tenant-uid", "resourceVersion": "7"});
    let stored = Stored::from(json!({ "metadata": metadata }));
    engine.cache.stores.tenant(id).watched(name.clone(), stored);
    let (user, target) = (
        KindId::Pod.key(Name::new("team", "p")),
        Target {
            kind: id,
            name: name.clone(),
        },
    );
    engine.cache.references().set(&user, [target].into());
    let all = engine.contents.permits.available_permits();
    let key = id.key(name.clone());
    let mut reconcile = Box::pin(engine.reconcile(&key, Instant::now(), true));
    let reconciled = tokio::time::timeout(Duration::from_secs(5), reconcile.as_mut()).await;
    assert!(reconciled.is_err(), "the Event is not answered");
    assert!(engine.cache.stores.host(id).contains(&name));
    assert_eq!(engine.contents.permits.available_permits(), all);
}
