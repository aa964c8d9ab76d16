use super::*;
use crate::store::fake_server::{list, watch_server};
use berth_runtime::extension_answers::{limited, max_silence};
use berth_sync_rules::{
    model::{
        KindId,
        resource::{POD, SECRET},
    },
    registry::kind,
};
use serde_json::json;
use std::sync::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn object(json: &Value) -> Object<false> {
    serde_json::from_str(&json.to_string()).unwrap()
}

/// Those of a kind of the tenant's, for which nobody waits.
const OF_TENANT: Hooks<'static> = Hooks {
    side: Side::Tenant,
    keeps_last: false,
    differs_in_status: None,
    is_stray: &|_: &Name, _: &Stored| false,
    changed: &|_, _| {},
    availability: &|_| {},
    bounds: None,
};

/// Name of a host object that the syncer has not made.
const STRAY: &str = "stray";

/// What a watch with these events calls `changed` with.
async fn changes(
    spec: WatchSpec,
    store: &Store,
    side: Side,
    keeps_last: bool,
    events: Vec<Event<Object<false>>>,
) -> Vec<(Name, bool)> {
    let changes = Mutex::new(Vec::new());
    let hooks = Hooks {
        side,
        keeps_last,
        differs_in_status: Some(match side {
            Side::Host => Stored::is_for_the_same,
            Side::Tenant => Stored::requests_the_same,
        }),
        is_stray: &|_: &Name, object: &Stored| &*object.name == STRAY,
        changed: &|name, only_status| changes.lock().unwrap().push((name, only_status)),
        availability: &|_| {},
        bounds: None,
    };
    let events = futures::stream::iter(events.into_iter().map(Ok));
    follow(events, spec, store, hooks).await;
    changes.into_inner().unwrap()
}

fn host_object(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "uid": "h", "resourceVersion": version, "annotations": {
        labels::ORIGIN_NAMESPACE: "team", labels::ORIGIN_NAME: "train", labels::ORIGIN_UID: "t"}}})
}

#[tokio::test]
async fn the_last_state_is_kept_only_where_it_is_used() {
    let name = Name::new("team", "train");
    for (resource, keeps_last) in [(POD, true), (SECRET, false)] {
        let store = Store::default();
        let events = vec![
            Event::Apply(object(&host_object("train-x", "7"))),
            Event::Delete(object(&host_object("train-x", "9"))),
        ];
        let spec = WatchSpec::synced(resource);
        let seen = changes(spec, &store, Side::Host, keeps_last, events).await;
        assert_eq!(seen, [(name.clone(), false), (name.clone(), false)]);
        let (known, last) = store.get_or_take_tombstone(&name);
        assert!(known.is_none());
        assert_eq!(last.is_some(), keeps_last);
    }
}

#[tokio::test]
async fn a_stray_takes_no_place_in_the_store_and_leaves_none() {
    let (store, name) = (Store::default(), Name::new("team", "train"));
    let events = vec![
        Event::Init,
        Event::InitApply(object(&host_object("train-x", "7"))),
        Event::InitApply(object(&host_object(STRAY, "8"))),
        Event::InitDone,
        Event::Apply(object(&host_object(STRAY, "9"))),
        Event::Delete(object(&host_object(STRAY, "11"))),
    ];
    let seen = changes(WatchSpec::synced(POD), &store, Side::Host, true, events).await;
    assert_eq!(seen, [(name.clone(), false)]);
    let (known, last) = store.get_or_take_tombstone(&name);
    assert!(known.is_some_and(|known| &*known.name == "train-x") && last.is_none());
}

#[tokio::test]
async fn a_binding_changes_only_the_status_of_a_tenants_pod() {
    let pod = |version: &str, node: Option<&str>, image: &str| {
        object(&json!({
            "metadata": {"name": "train", "namespace": "team", "uid": "t", "resourceVersion": version},
            "spec": {"containers": [{"image": image}], "nodeName": node},
            "status": {"conditions": [{"type": "PodScheduled", "status": node}]},
        }))
    };
    let (store, name) = (Store::default(), Name::new("team", "train"));
    let events = vec![
        Event::Apply(pod("5", None, "a:1")),
        Event::Apply(pod("7", Some("gpu-1"), "a:1")),
        Event::Apply(pod("9", Some("gpu-1"), "a:2")),
        Event::Delete(pod("11", Some("gpu-1"), "a:2")),
    ];
    let seen = changes(WatchSpec::own(POD), &store, Side::Tenant, false, events).await;
    let only_status: Vec<bool> = seen.iter().map(|(_, only_status)| *only_status).collect();
    assert_eq!(only_status, [false, true, false, false]);
    assert!(seen.iter().all(|(changed, _)| *changed == name) && !store.contains(&name));
}

#[tokio::test]
async fn a_list_that_ends_late_makes_the_kind_available() {
    let (store, before) = (Store::default(), Mutex::new(Vec::new()));
    let hooks = Hooks {
        availability: &|why| before.lock().unwrap().push(why),
        ..OF_TENANT
    };
    store.stop_waiting_for_list();
    let pod = json!({"metadata": {"name": "train", "namespace": "team", "uid": "t", "resourceVersion": "5"}});
    let part = [Event::Init, Event::InitApply(object(&pod))].map(Ok);
    follow(futures::stream::iter(part), WatchSpec::own(POD), &store, hooks).await;
    assert_eq!(
        store.unavailable(),
        Some(Unavailable::NotListed),
        "a part of a list is no list"
    );
    let whole = [Event::Init, Event::InitApply(object(&pod)), Event::InitDone].map(Ok);
    follow(futures::stream::iter(whole), WatchSpec::own(POD), &store, hooks).await;
    assert!(store.is_listed() && store.unavailable().is_none());
    assert_eq!(*before.lock().unwrap(), [Some(Unavailable::NotListed)]);
}

fn pod(number: u32) -> Value {
    json!({"metadata": {"name": number.to_string(), "namespace": "team", "uid": "t", "resourceVersion": "5"}})
}

/// A server that cannot stream lists, and whose list has no end: a page has one object, or none.
async fn endless_pages(has_objects: bool) -> Client {
    berth_runtime::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            let is_watch = String::from_utf8_lossy(&request[..length]).contains("watch=true");
            number += 1;
            let items: Vec<Value> = has_objects.then(|| pod(number)).into_iter().collect();
            let (status, body) = if is_watch {
                (
                    "400 Bad Request",
                    json!({"kind": "Status", "status": "Failure", "code": 400}),
                )
            } else {
                let metadata = json!({"continue": number.to_string(), "resourceVersion": "5"});
                let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": items});
                ("200 OK", list)
            };
            let head = "Content-Type: application/json\r\nConnection: close";
            let answer = format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    berth_runtime::client::from_config_of_tenant(config).unwrap()
}

#[tokio::test]
async fn pages_without_end_make_the_kind_unlisted() {
    let (store, before) = (Store::default(), Mutex::new(Vec::new()));
    let kept = || store.len() as u64;
    let bounds = Bounds {
        bytes: pod(0).to_string().len() as u64 + 20,
        kept: &kept,
    };
    let hooks = Hooks {
        availability: &|why| before.lock().unwrap().push(why),
        bounds: Some(bounds),
        ..OF_TENANT
    };
    let known = async || {
        while store.unavailable().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let client = endless_pages(true).await;
    let watching = run(client, WatchSpec::own(POD), "", &store, hooks);
    tokio::select! {
        () = watching => panic!("the watch ended"),
        () = known() => {}
        () = tokio::time::sleep(Duration::from_mins(1)) => panic!("the list has no end"),
    }
    assert_eq!(store.unavailable(), Some(Unavailable::TooMuch));
    assert!(store.is_empty() && !store.is_listed(), "nothing is kept of it");
    assert_eq!(*before.lock().unwrap(), [None]);

    let client = endless_pages(false).await;
    let empty = Store::default();
    let watching = run(client, WatchSpec::own(POD), "", &empty, hooks);
    let ended = tokio::time::timeout(Duration::from_millis(500), watching).await;
    assert!(ended.is_err() && !empty.is_listed(), "others can go on meanwhile");
}

/// A server whose watches are one line without an end.
async fn endless_line() -> Client {
    berth_runtime::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                .await;
            // The client hangs up.
            while stream.write_all(&[b' '; 1 << 14]).await.is_ok() {}
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    berth_runtime::client::from_config_of_tenant(config).unwrap()
}

#[tokio::test]
async fn a_line_without_end_makes_a_kind_unlisted() {
    let (store, kept) = (Store::default(), || 0);
    let bounds = Bounds {
        bytes: u64::MAX,
        kept: &kept,
    };
    let hooks = Hooks {
        bounds: Some(bounds),
        ..OF_TENANT
    };
    let pods = Api::all_with(endless_line().await, &WatchSpec::own(POD).resource);
    let events = watcher::watcher(pods, Config::default().streaming_lists());
    let following = follow::<false>(events, WatchSpec::own(POD), &store, hooks);
    let ended = tokio::time::timeout(Duration::from_mins(1), following).await;
    assert!(
        ended.is_ok_and(|ended| ended == Ended::TooMuch),
        "it is not tried again at once"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_silent_watch_has_left_out_is_listed() {
    let client = limited(watch_server(vec![list(&[pod(1)]), list(&[pod(2)])]));
    let (store, changed) = (Store::default(), Mutex::new(Vec::new()));
    let hooks = Hooks {
        changed: &|name, _| changed.lock().unwrap().push(name),
        ..OF_TENANT
    };
    let [first, second] = ["1", "2"].map(|name| Name::new("team", name));
    let start = tokio::time::Instant::now();
    let is_listed_again = async {
        while store.is_empty() || store.contains(&first) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = run(client, WatchSpec::own(POD), "", &store, hooks) => panic!("the watch ended"),
        () = is_listed_again => {}
    }
    let waited = start.elapsed();
    assert!((max_silence()..max_silence() * 2).contains(&waited), "{waited:?}");
    assert_eq!(store.names(), std::slice::from_ref(&second));
    assert_eq!(*changed.lock().unwrap(), [first.clone(), second, first]);
}

#[tokio::test]
async fn objects_without_end_after_the_list_make_a_kind_unlisted() {
    let (store, changed) = (Store::default(), Mutex::new(Vec::new()));
    let kept = || store.len() as u64;
    let bounds = Bounds {
        bytes: pod(0).to_string().len() as u64 + 20,
        kept: &kept,
    };
    let hooks = Hooks {
        changed: &|name, _| changed.lock().unwrap().push(name),
        bounds: Some(bounds),
        ..OF_TENANT
    };
    let listed = futures::stream::iter([Ok(Event::Init), Ok(Event::InitDone)]);
    let endless = futures::stream::iter(0..).map(|number| Ok(Event::Apply(object(&pod(number)))));
    let ended = follow(listed.chain(endless), WatchSpec::own(POD), &store, hooks).await;
    assert!(ended == Ended::TooMuch && store.is_listed() && !store.is_empty());
    let names = store.names();
    changed.lock().unwrap().clear();
    forget_all(WatchSpec::own(POD), &store, hooks);
    assert_eq!(store.unavailable(), Some(Unavailable::TooMuch));
    assert!(store.is_empty());
    assert_eq!(
        *changed.lock().unwrap(),
        names,
        "what depends on them is looked at again"
    );
}

#[tokio::test]
async fn an_object_that_is_nested_too_deep_stays_as_it_was_and_counts() {
    let (store, name, spec) = (Store::default(), Name::new("team", "a"), WatchSpec::own(POD));
    let nested = |version: &str, depth: usize| {
        let parameters = (0..depth).fold(json!({}), |inner, _| json!({"a": inner}));
        let metadata = json!({"name": "a", "namespace": "team", "uid": "t", "resourceVersion": version});
        object(&json!({"metadata": metadata, "spec": {"parameters": parameters}}))
    };
    let follow = async |events: Vec<Event<Object<false>>>| {
        let seen = changes(spec, &store, Side::Tenant, false, events).await;
        let version = store.get(&name).map(|stored| stored.version);
        (seen.len(), version, store.unreadable())
    };
    let deeper = vec![Event::Apply(nested("5", 1)), Event::Apply(nested("7", 200))];
    assert_eq!(follow(deeper).await, (1, Some(5), 1));
    assert_eq!(follow(vec![Event::Apply(nested("9", 1))]).await, (1, Some(9), 0));
    let gone = vec![Event::Apply(nested("11", 200)), Event::Delete(nested("13", 200))];
    assert_eq!(follow(gone).await, (1, None, 0));
}

#[test]
fn bytes_are_those_of_the_whole_object() {
    let text = json!({"metadata": {"name": "a", "annotations": {labels::BYTES: "5000"}, "managedFields": [{}]}, "data": {"x": "y"}}).to_string();
    let spec = WatchSpec::own(SECRET).trimmed(|object| *object = json!({"metadata": object["metadata"]}));
    let whole: Object<false> = serde_json::from_str(&text).unwrap();
    let metadata: Object<true> = serde_json::from_str(&text).unwrap();
    let bytes = keep(spec, &whole, Parts::All, u64::MAX).map(|(_, stored)| stored.bytes as usize);
    assert_eq!(bytes, Some(text.len()));
    let bytes = keep(spec, &metadata, Parts::All, u64::MAX).map(|(_, stored)| stored.bytes as usize);
    assert_eq!(bytes, Some(text.len() + 5000), "its content is not in the text");
}

#[test]
fn names_of_tenants_objects_need_only_their_metadata() {
    let settings = crate::engine::test_engine::tenant(berth_api::SyncPolicy::default());
    let cache = berth_sync_rules::registry::new_cache(settings);
    let metadata = object(&json!({"metadata": {"name": "a", "namespace": "b"}}));
    let tenants: Vec<(KindId, WatchSpec)> = cache
        .kinds
        .iter()
        .filter_map(|id| Some((*id, cache.kind(*id).tenant?)))
        .collect();
    assert!(!tenants.is_empty());
    for (id, spec) in tenants {
        let name = (spec.name)(&metadata.parse(Parts::Metadata));
        assert_eq!(name, Some(Name::new("b", "a")), "{}", id.label());
        let kept = keep(spec, &metadata, Parts::All, u64::MAX).map(|(name, _)| name);
        assert_eq!(kept, Some(Name::new("b", "a")), "{}", id.label());
    }
}

#[tokio::test]
async fn of_a_claim_with_too_much_structure_its_volume_is_kept() {
    let labels: serde_json::Map<String, Value> = (0..100_000).map(|label| (format!("a{label}"), "".into())).collect();
    let metadata = json!({"name": "data", "namespace": "team", "uid": "t", "resourceVersion": "5", "labels": labels});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1"});
    let claim = object(&json!({"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}));
    let store = Store::default();
    let watched = berth_sync_rules::kinds::storage::claim::KIND.tenant.unwrap();
    changes(watched, &store, Side::Tenant, false, vec![Event::Apply(claim)]).await;
    let stored = store.get(&Name::new("team", "data")).unwrap();
    let kept = stored.object();
    assert!(stored.is_cut && kept.get("status").is_none());
    assert_eq!(kept["spec"], json!({"volumeName": "pv-1"}));
}

#[tokio::test]
async fn a_status_does_not_take_a_pod_off_the_host_that_was_small_enough() {
    let maps = |number: usize| vec![json!({"type": "a"}); number];
    for (of_spec, of_status, is_cut) in [(15_000, 5_000, false), (20_000, 0, true), (15_000, 15_000, true)] {
        let metadata = json!({"name": "train", "namespace": "team", "uid": "t", "resourceVersion": "5"});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main", "env": maps(of_spec)}]},
            "status": {"conditions": maps(of_status)}});
        let store = Store::default();
        let events = vec![Event::Apply(object(&pod))];
        changes(WatchSpec::own(POD), &store, Side::Tenant, false, events).await;
        let stored = store.get(&Name::new("team", "train")).unwrap();
        assert_eq!(stored.is_cut, is_cut, "{of_spec} {of_status}");
    }
}

#[tokio::test]
async fn of_a_tenants_object_with_too_much_structure_the_metadata_is_kept() {
    let pod = |version: &str, variables: usize| {
        let variables = vec![json!({"name": "a"}); variables];
        let metadata = json!({"name": "train", "namespace": "team", "uid": "t", "resourceVersion": version});
        object(&json!({"metadata": metadata, "spec": {"containers": [{"name": "main", "env": variables}]}}))
    };
    let name = Name::new("team", "train");
    for (side, is_cut) in [(Side::Tenant, true), (Side::Host, false)] {
        let store = Store::default();
        let events = vec![Event::Apply(pod("5", 20_000)), Event::Apply(pod("7", 5_000))];
        for (event, is_cut) in events.into_iter().zip([is_cut, false]) {
            changes(WatchSpec::own(POD), &store, side, false, vec![event]).await;
            let stored = store.get(&name).unwrap();
            assert_eq!(stored.is_cut, is_cut, "{side:?}");
            assert_eq!(stored.object().get("spec").is_none(), is_cut, "{side:?}");
            assert_eq!((&*stored.uid, &*stored.name), ("t", "train"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_an_extension_no_larger_tree_is_kept_than_of_other_kinds() {
    let kept = || 0;
    let bounds = Bounds {
        bytes: u64::MAX,
        kept: &kept,
    };
    let hooks = Hooks {
        bounds: Some(bounds),
        ..OF_TENANT
    };
    let name = Name::new("team", "web");
    for id in [KindId::HttpRoute, KindId::ReferenceGrant, KindId::VolumeSnapshot] {
        for (maps, is_cut) in [(5_000, false), (20_000, true)] {
            let metadata = json!({"name": "web", "namespace": "team", "uid": "t", "resourceVersion": "5"});
            let spec = json!({"to": vec![json!({"name": "a"}); maps]});
            let events = [Ok(Event::Apply(object(&json!({"metadata": metadata, "spec": spec}))))];
            let store = Store::default();
            let ended = follow(futures::stream::iter(events), kind(id).tenant.unwrap(), &store, hooks).await;
            assert_eq!(ended, Ended::Stream, "the kind is still followed");
            let stored = store.get(&name).unwrap();
            assert_eq!(stored.is_cut, is_cut, "{}: {maps}", id.label());
            assert_eq!(
                stored.object()["spec"].get("to").is_none(),
                is_cut,
                "{}: {maps}",
                id.label()
            );
        }
    }
}

#[tokio::test]
async fn what_is_left_out_of_objects_packs_no_others() {
    let pod = |name: &str, variables: usize| {
        let variables = vec![json!({"name": "a"}); variables];
        let metadata = json!({"name": name, "namespace": "team", "uid": name, "resourceVersion": "5"});
        object(&json!({"metadata": metadata, "spec": {"containers": [{"name": "main", "env": variables}]}}))
    };
    let whole = WatchSpec::own(POD);
    for (side, spec) in [
        (Side::Tenant, whole),
        (Side::Host, whole.with_spec_fields(&["nodeName"])),
    ] {
        let store = Store::default();
        let mut events = vec![Event::Apply(pod("train", 1))];
        // 18 MiB each, of 64 MiB.
        events.extend(["a", "b", "c", "d"].map(|name| Event::Apply(pod(name, 20_000))));
        changes(spec, &store, side, false, events).await;
        let known = |name: &str| store.get(&Name::new("team", name)).unwrap();
        assert_eq!(known("d").is_cut, side == Side::Tenant);
        assert!(known("train").fresh_object().is_some(), "{side:?}");
    }
}
