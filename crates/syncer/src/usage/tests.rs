use super::{places::TIME_TO_READ, *};
use crate::engine::test_engine::{engine_of, tenant};
use axum::body::{Body as AnswerBody, Bytes, to_bytes};
use berth_api::SyncPolicy;
use berth_runtime::locks::lock;
use berth_sync_rules::model::resource::Side;
use futures::StreamExt;
use http::Request;
use kube::client::Body;
use std::{convert::Infallible, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// How the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// With what it measures.
    Measures,
    /// With this code.
    Refuses(u16),
    /// With more than is read, without an end.
    Floods,
}

/// The API of a tenant whose host is in memory.
struct World {
    usage: Arc<Usage>,
    /// Paths that the host was asked for.
    asked: Arc<Mutex<Vec<String>>>,
    host: Arc<Mutex<Host>>,
}

impl World {
    /// A tenant with so many pods in the namespace `team`, one in `other`, and so many nodes.
    fn new(pods: usize, nodes: usize) -> Self {
        Self::with_labels(pods, nodes, &json!({"app": "a"}))
    }

    /// The same; all have these labels.
    fn with_labels(pods: usize, nodes: usize, labels: &Value) -> Self {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.bytes = 64 << 20;
        let engine = engine_of(tenant);
        let pods: Vec<Name> = { (0..pods).map(|number| Name::new("team", &format!("p{number:05}"))) }
            .chain([Name::new("other", "p")])
            .collect();
        for name in &pods {
            for side in [Side::Tenant, Side::Host] {
                let pod = json!({"spec": {"containers": [{"name": "c"}]}, "metadata": {"labels": labels}});
                put(&engine, side, KindId::Pod, name, pod);
            }
        }
        for number in 0..nodes {
            let name = Name::new("", &format!("n{number}"));
            let node = json!({"metadata": {"labels": labels}});
            put(&engine, Side::Tenant, KindId::Node, &name, node);
            let published = json!({"spec": {"nodeName": "n"}});
            put(&engine, Side::Host, KindId::Node, &name, published);
        }
        let (asked, host) = (Arc::default(), Arc::new(Mutex::new(Host::Measures)));
        let client = client(&pods, &asked, &host);
        let usage = Arc::new(Usage::new(engine, client));
        Self { usage, asked, host }
    }

    /// The answer to a request, whose path may have a query.
    async fn get(&self, path: &str) -> Result<Response, Failure> {
        let uri: Uri = format!("/apis/metrics.k8s.io/v1beta1/{path}").parse().unwrap();
        let query = Query::try_from_uri(&uri).unwrap();
        let state = State(Arc::clone(&self.usage));
        answer(state, Method::GET, uri, query, HeaderMap::new()).await
    }

    /// Asks for long answers that nobody reads until there is no room for one more.
    async fn fill(&self) -> (Vec<AnswerBody>, Failure) {
        let mut unread = Vec::new();
        loop {
            match self.get("pods").await {
                Ok(response) => unread.push(response.into_body()),
                Err(refused) => return (unread, refused),
            }
            assert!(unread.len() < 100, "there is room without an end");
        }
    }

    /// The names in an answer.
    async fn names(&self, path: &str) -> Vec<String> {
        let body = self.get(path).await.unwrap().into_body();
        let list: Value = serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap();
        let items = json::items(&list, &["items"]).iter();
        let names = items.filter_map(|item| json::text(item, &["metadata", "name"]));
        names.map(ToOwned::to_owned).collect()
    }

    fn asked(&self) -> usize {
        lock(&self.asked).len()
    }

    fn set(&self, host: Host) {
        *lock(&self.host) = host;
    }
}

fn put(engine: &Engine, side: Side, id: KindId, name: &Name, mut object: Value) {
    let own_name = match side {
        Side::Tenant => name.name.to_string(),
        Side::Host => host_name_of(name),
    };
    for (field, value) in [("name", &*own_name), ("namespace", &*name.namespace), ("uid", "u")] {
        object["metadata"][field] = value.into();
    }
    engine
        .cache()
        .stores
        .of(side, id)
        .watched(name.clone(), Stored::from(object));
}

fn host_name_of(name: &Name) -> String {
    format!("{}-{}-on-host", name.namespace, name.name)
}

/// A client of a host that measures these pods and all nodes.
fn client(pods: &[Name], asked: &Arc<Mutex<Vec<String>>>, host: &Arc<Mutex<Host>>) -> Client {
    let usage = json!({"cpu": "100m", "memory": "8Mi"});
    let items = pods.iter().map(|name| {
        json!({"metadata": {"name": host_name_of(name), "labels": {"a": "b"}}, "timestamp": "2026-11-30T10:00:00Z", "window": "15s",
            "containers": [{"name": "c", "usage": usage}, {"name": "of-the-platform", "usage": usage}]})
    });
    let list = json!({"items": items.collect::<Vec<_>>()}).to_string();
    let node = json!({"timestamp": "2026-11-30T10:00:00Z", "window": "15s", "usage": usage}).to_string();
    let (asked, host) = (Arc::clone(asked), Arc::clone(host));
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let text = if path.ends_with("/pods") {
            list.clone()
        } else {
            node.clone()
        };
        lock(&asked).push(path);
        let how = *lock(&host);
        async move {
            // A moment in which others ask as well.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (code, body) = match how {
                Host::Measures => (200, Body::from(text.into_bytes())),
                Host::Refuses(code) => (code, Body::from(json!({"code": code}).to_string().into_bytes())),
                Host::Floods => (200, Body::from(vec![b' '; 20 << 20])),
            };
            let mut response = http::Response::new(body);
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn lists_have_the_pods_of_a_namespace() {
    let world = World::new(2, 0);
    assert_eq!(world.names("pods").await, ["p", "p00000", "p00001"]);
    assert_eq!(world.names("namespaces/team/pods").await, ["p00000", "p00001"]);
    assert_eq!(world.names("namespaces/other/pods").await, ["p"]);
    for none in ["tea", "team-a", "a,b=c", "A"] {
        assert!(
            world.names(&format!("namespaces/{none}/pods")).await.is_empty(),
            "{none}"
        );
    }
    let body = world.get("namespaces/team/pods/p00001").await.unwrap().into_body();
    let pod: Value = serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap();
    let expected = json!({
        "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "timestamp": "2026-11-30T10:00:00Z", "window": "15s",
        "metadata": {"name": "p00001", "namespace": "team", "labels": {"app": "a"}, "creationTimestamp": "2026-11-30T10:00:00Z"},
        "containers": [{"name": "c", "usage": {"cpu": "100m", "memory": "8Mi"}}],
    });
    assert_eq!(pod, expected);
    for other in [
        "namespaces//pods",
        "namespaces/team//pods",
        "namespaces/team/pods//p00001",
        "/pods",
    ] {
        assert_eq!(world.get(other).await.unwrap_err(), Failure::NoPath, "{other}");
    }
    let none = world.get("namespaces/team/pods/none").await.unwrap_err();
    assert_eq!(none, Failure::NotFound("pods", "team/none".into()));
}

#[tokio::test(start_paused = true)]
async fn the_host_is_asked_once_for_all_who_ask() {
    let world = World::new(10, 0);
    for _ in 0..10 {
        let all = ["pods", "namespaces/team/pods", "namespaces/team/pods/p00001"].repeat(30);
        let answers = futures::future::join_all(all.into_iter().map(|path| world.get(path))).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    assert_eq!(world.asked(), 1);
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(1) {
        world.get("pods").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!((10..15).contains(&world.asked()), "{}", world.asked());
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_does_not_let_the_host_be_asked_once_more() {
    let world = World::new(1, 1);
    for path in ["pods", "nodes"] {
        for _ in 0..50 {
            let begun = tokio::time::timeout(Duration::from_millis(1), world.get(path)).await;
            assert!(begun.is_err(), "{path}: the host takes longer");
        }
        world.get(path).await.unwrap();
    }
    assert_eq!(world.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_node_is_asked_about_seldom() {
    let world = World::new(0, 20);
    assert_eq!(world.names("nodes").await.len(), 20);
    for _ in 0..100 {
        let nodes = ["nodes", "nodes/n1", "nodes/n2"];
        let answers = futures::future::join_all(nodes.map(|path| world.get(path))).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    assert_eq!(world.asked(), 20);
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.get("nodes/n1").await.unwrap();
    assert_eq!(world.asked(), 21, "for the others nobody has asked");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_answer_is_asked_seldom() {
    for (code, failure) in [(503, Failure::Unavailable), (404, Failure::NotServed)] {
        for path in ["pods", "nodes"] {
            let world = World::new(1, 1);
            world.set(Host::Refuses(code));
            for _ in 0..20 {
                let answers = futures::future::join_all((0..20).map(|_| world.get(path))).await;
                for answer in answers {
                    assert_eq!(answer.unwrap_err(), failure, "{path}");
                }
            }
            assert_eq!(world.asked(), 1, "{path} {code}");
            world.set(Host::Measures);
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert!(!world.names(path).await.is_empty(), "{path} {code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_an_end_is_not_read() {
    let world = World::new(1, 1);
    world.set(Host::Floods);
    for path in ["pods", "nodes", "nodes/n0"] {
        assert_eq!(world.get(path).await.unwrap_err(), Failure::TooLong, "{path}");
    }
}

/// Labels with which 300 pods have a long answer.
fn large_labels() -> Value {
    json!({"large": "a".repeat(10 << 10)})
}

async fn read(body: AnswerBody) -> Vec<Value> {
    let list: Value = serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap();
    json::items(&list, &["items"]).to_vec()
}

#[tokio::test(start_paused = true)]
async fn long_answers_that_nobody_reads_have_little_room_and_short_ones_wait_for_none() {
    let world = World::with_labels(300, 0, &large_labels());
    let (mut unread, refused) = world.fill().await;
    assert_eq!(refused, Failure::Busy);
    assert!((15..25).contains(&unread.len()), "{}", unread.len());
    let response = refused.into_response();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[RETRY_AFTER], "2");
    // Few pods, in a small or in a large namespace, as autoscalers ask for them.
    assert_eq!(world.names("namespaces/other/pods").await, ["p"]);
    let selected = world.names("namespaces/team/pods?fieldSelector=metadata.name%3Dp00001");
    assert_eq!(selected.await, ["p00001"]);
    world.get("namespaces/team/pods/p00001").await.unwrap();
    // One is read to its end, and the client of the next one goes away.
    assert_eq!(read(unread.pop().unwrap()).await.len(), 301);
    drop(world.get("pods").await.unwrap());
    let next = world.get("pods").await.unwrap();
    assert_eq!(next.headers()[axum::http::header::CONTENT_TYPE], "application/json");
    assert_eq!(read(next.into_body()).await.len(), 301);
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_keeps_no_room_for_ever() {
    let world = World::with_labels(300, 0, &large_labels());
    let (mut unread, refused) = world.fill().await;
    assert_eq!(refused, Failure::Busy);
    tokio::time::sleep(TIME_TO_READ + Duration::from_secs(1)).await;
    assert_eq!(read(world.get("pods").await.unwrap().into_body()).await.len(), 301);
    // What is left must not look like the end of the answer.
    let late = to_bytes(unread.pop().unwrap(), usize::MAX).await;
    assert!(late.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_not_read_keeps_no_other_part_in_memory() {
    let world = World::with_labels(300, 0, &large_labels());
    let mut parts = world.get("pods").await.unwrap().into_body().into_data_stream();
    let first: Bytes = parts.next().await.unwrap().unwrap();
    assert!(first.is_unique() && first.len() <= 64 << 10, "{}", first.len());
}

#[tokio::test(start_paused = true)]
async fn answers_about_many_objects_are_made_one_at_a_time() {
    let world = World::new(200, 0);
    let turn = world.usage.places.turn_for(101).await.unwrap();
    let start = Instant::now();
    assert_eq!(world.get("pods").await.unwrap_err(), Failure::Busy);
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!(world.names("namespaces/other/pods").await, ["p"]);
    drop(turn);
    assert_eq!(world.names("pods").await.len(), 201);
}

#[test]
fn answers_without_an_end_are_not_made() {
    let mut items = Items::default();
    // Counted as a list of large objects is.
    let large = Value::Array(vec![Value::Null; 1 << 20]);
    items.push(large.clone()).unwrap();
    assert_eq!(items.push(large).unwrap_err(), Failure::TooLong);
    let long = Value::from("a".repeat(65 << 20));
    assert_eq!(Places::default().send(long, None).unwrap_err(), Failure::TooLong);
}

/// The tenant's API server gives them no time limit.
#[tokio::test(start_paused = true)]
async fn whatever_an_api_server_takes_for_a_watch_is_not_answered() {
    let world = World::new(1, 1);
    for watch in ["1", "true", "True", "yes", "", "t"] {
        for path in ["pods", "namespaces/team/pods", "nodes"] {
            let refused = world.get(&format!("{path}?watch={watch}")).await.unwrap_err();
            assert_eq!(refused, Failure::Method, "{path} {watch:?}");
        }
    }
    for list in ["0", "false", "False"] {
        assert_eq!(world.names(&format!("pods?watch={list}")).await.len(), 2, "{list}");
    }
}
