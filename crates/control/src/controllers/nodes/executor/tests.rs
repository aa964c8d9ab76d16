//! The executor against a scripted API server, which keeps objects in memory and fails chosen calls.

use super::*;
use berth_node_lifecycle::assignment::AssignmentState::{Assigned, Cordoned};
use berth_planner::{ActionKind, ActionReason};
use http::{Method, Request, Response, StatusCode};
use kube::{client::Body, runtime::events::Reporter};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};
use tower::service_fn;

const NODES: &str = "/api/v1/nodes";
const TENANT: &str = "uid-1";
const SLUG: &str = "vision-abc";
const NOW: i64 = 1_000;

/// Objects by path, and which calls fail.
#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    /// Calls so far, Events not counted.
    calls: usize,
    failing: Failing,
}

#[derive(Clone, Copy, Default)]
enum Failing {
    #[default]
    Nothing,
    /// The call of this number.
    Call(usize),
    Everything,
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn status(code: StatusCode) -> (StatusCode, Value) {
    let status =
        json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "scripted", "reason": ""});
    (code, status)
}

impl Api {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        if path.ends_with("/events") {
            return (StatusCode::CREATED, body.clone());
        }
        self.calls += 1;
        let fails = match self.failing {
            Failing::Nothing => false,
            Failing::Call(number) => number == self.calls,
            Failing::Everything => true,
        };
        if fails {
            return status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let is_collection = ["/nodes", "/pods", "/configmaps", "/jobs"]
            .iter()
            .any(|kind| path.ends_with(kind));
        match *method {
            Method::GET if is_collection => {
                let prefix = format!("{path}/");
                let items = self.objects.iter().filter(|(key, _)| key.starts_with(&prefix));
                let items: Vec<&Value> = items.map(|(_, object)| object).collect();
                (StatusCode::OK, json!({"metadata": {}, "items": items}))
            }
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let key = format!("{path}/{name}");
                if self.objects.contains_key(&key) {
                    return status(StatusCode::CONFLICT);
                }
                self.objects.insert(key, body.clone());
                (StatusCode::CREATED, body.clone())
            }
            _ => {
                let Some(object) = self.objects.get_mut(path) else {
                    return status(StatusCode::NOT_FOUND);
                };
                match *method {
                    Method::PATCH => {
                        let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                        merge(object, body);
                        object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
                    }
                    Method::DELETE => return (StatusCode::OK, self.objects.remove(path).unwrap()),
                    _ => {}
                }
                (StatusCode::OK, object.clone())
            }
        }
    }

    /// Nodes by name in a state.
    fn nodes_in(&self, state: AssignmentState) -> BTreeSet<String> {
        let nodes = self.objects.iter().filter(|(path, _)| path.starts_with(NODES));
        nodes
            .map(|(_, node)| serde_json::from_value::<Node>(node.clone()).unwrap())
            .filter(|node| Assignment::read(node).is_some_and(|assignment| assignment.state == state))
            .map(|node| node.name_any())
            .collect()
    }
}

/// An API server with these nodes, and a client for it.
struct Fixture {
    api: Arc<Mutex<Api>>,
    client: Client,
}

impl Fixture {
    fn new(nodes: &[&str]) -> Self {
        let node = |name: &&str| {
            let node = json!({
                "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1", "labels": {"pool": "h100"}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            (format!("{NODES}/{name}"), node)
        };
        let api = Arc::new(Mutex::new(Api {
            objects: nodes.iter().map(node).collect(),
            ..Api::default()
        }));
        let answering = Arc::clone(&api);
        let service = service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&answering);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) =
                    api.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .answer(&head.method, head.uri.path(), &body);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(answer).unwrap())
            }
        });
        let client = Client::new(service, "default");
        Self { api, client }
    }

    fn api(&self) -> std::sync::MutexGuard<'_, Api> {
        self.api.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a node to the tenant.
    fn assign(&self, name: &str) {
        let mut api = self.api();
        let object = api.objects.get_mut(&format!("{NODES}/{name}")).unwrap();
        let node: Node = serde_json::from_value(object.clone()).unwrap();
        let now = Timestamp::from_second(NOW).unwrap();
        let assignment = Assignment {
            slug: SLUG.into(),
            ..Assignment::reserved(TENANT, "train", "h100", 1, now, "").with_state(Assigned, now, "")
        };
        merge(object, &assignment.to_patch(&node, &[]));
    }

    /// Executes actions on the nodes as they are now. Returns the number of calls as well.
    async fn execute(&self, actions: &[Action], failing: Failing) -> (Result<Option<Duration>, ReconcileError>, usize) {
        let nodes = {
            let mut api = self.api();
            (api.calls, api.failing) = (0, failing);
            let nodes = api.objects.iter().filter(|(path, _)| path.starts_with(NODES));
            nodes
                .map(|(_, node)| serde_json::from_value::<Node>(node.clone()).unwrap())
                .map(|node| (node.name_any(), Arc::new(node)))
                .collect()
        };
        let reporter = Reporter {
            controller: "test".into(),
            instance: None,
        };
        let mut pass = Pass {
            client: self.client.clone(),
            recorder: &Recorder::new(self.client.clone(), reporter),
            metrics: &Metrics::new(&mut Registry::default()),
            rejected_nodes: &RejectedNodes::default(),
            job_settings: &NodeJobs::default(),
            now: Timestamp::from_second(NOW).unwrap(),
            nodes,
            tenants: [(TENANT.to_owned(), Some(SLUG.to_owned()))].into(),
            pools: PoolSelectors::new([("h100".to_owned(), [("pool".to_owned(), "h100".to_owned())].into())]),
            pool_specs: BTreeMap::new(),
            listed_tenants: OnceCell::new(),
        };
        let outcome = execute(&mut pass, actions).await;
        (outcome, self.api().calls)
    }
}

fn release(node: &str) -> Action {
    Action {
        node: node.into(),
        kind: ActionKind::Release { drain_at: NOW + 600 },
        reason: ActionReason::TenantDeleted,
    }
}

fn reserve(node: &str, group: &str) -> Action {
    let kind = ActionKind::Reserve {
        tenant: TENANT.into(),
        node_group: group.into(),
        required_nodes: 2,
    };
    Action {
        node: node.into(),
        kind,
        reason: ActionReason::RequiredNodesChanged { required_nodes: 2 },
    }
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn other_nodes_are_released_whichever_call_fails() {
    const ALL: [&str; 3] = ["a", "b", "c"];
    let actions = ALL.map(release);
    let fixture = || {
        let fixture = Fixture::new(&ALL);
        for name in &ALL {
            fixture.assign(name);
        }
        fixture
    };
    let (_, calls) = fixture().execute(&actions, Failing::Nothing).await;
    assert!(calls >= ALL.len(), "{calls}");
    for call in 1..=calls {
        let fixture = fixture();
        let (outcome, _) = fixture.execute(&actions, Failing::Call(call)).await;
        let again = outcome.unwrap();
        let cordoned = fixture.api().nodes_in(Cordoned);
        assert!(cordoned.len() >= ALL.len() - 1, "call {call}: {cordoned:?}");
        if cordoned.len() < ALL.len() {
            assert!(again.is_some_and(|again| again <= RETRY_PAUSE), "call {call}");
        }
        let _ = fixture.execute(&actions, Failing::Nothing).await;
        assert_eq!(fixture.api().nodes_in(Cordoned), names(&ALL), "call {call}");
    }
}

#[tokio::test]
async fn other_groups_get_their_nodes_whichever_call_fails() {
    const ALL: [&str; 4] = ["a1", "a2", "b1", "b2"];
    let actions = ALL.map(|node| reserve(node, &node[..1]));
    let (_, calls) = Fixture::new(&ALL).execute(&actions, Failing::Nothing).await;
    for call in 1..=calls {
        let fixture = Fixture::new(&ALL);
        let (outcome, _) = fixture.execute(&actions, Failing::Call(call)).await;
        assert!(outcome.is_ok(), "call {call}");
        let is_complete = |group: &str, assigned: &BTreeSet<String>| {
            let of_group = assigned.iter().filter(|node| node.starts_with(group));
            of_group.count() == 2
        };
        let assigned = fixture.api().nodes_in(Assigned);
        assert!(
            is_complete("a", &assigned) || is_complete("b", &assigned),
            "call {call}: {assigned:?}"
        );
        let _ = fixture.execute(&actions, Failing::Nothing).await;
        assert_eq!(fixture.api().nodes_in(Assigned), names(&ALL), "call {call}");
    }
}

#[tokio::test]
async fn an_api_server_that_fails_each_time_ends_the_pass() {
    let all: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let fixture = Fixture::new(&all);
    for name in &all {
        fixture.assign(name);
    }
    let actions: Vec<Action> = all.iter().map(|name| release(name)).collect();
    let (outcome, calls) = fixture.execute(&actions, Failing::Everything).await;
    assert!(outcome.is_err());
    assert!(calls < all.len(), "{calls}");
}
