//! The executor against a scripted API server, which keeps objects in memory and fails chosen calls.

mod api;
mod draining;
mod evicted;
mod gpu_clients;
mod in_use;
mod jobs;
mod markers;
mod nvidia_labels;
mod risks;

use super::*;
use crate::testing::merge;
use api::{Api, Failing, client_of};
use berth_node_lifecycle::assignment::AssignmentState::{Assigned, Cordoned, Draining, Scrubbing};
use berth_planner::{ActionKind, ActionReason};
use berth_runtime::locks::lock;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Mutex};

const NODES: &str = "/api/v1/nodes";
const TENANT: &str = "uid-1";
const SLUG: &str = "vision-abc";
const NOW: i64 = 1_000;

/// An API server with these nodes, and a client for it.
struct Fixture {
    api: Arc<Mutex<Api>>,
    client: Client,
    pools: BTreeMap<String, HostNodePoolSpec>,
    devices: Devices,
    rejected: RejectedNodes,
    metrics: Metrics,
    /// Nodes by path, as a view has them that lags behind.
    lagging: BTreeMap<String, Value>,
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
        let client = client_of(&api);
        Self {
            api,
            client,
            pools: BTreeMap::new(),
            devices: Devices::default(),
            rejected: RejectedNodes::default(),
            metrics: Metrics::new(&mut Registry::default()),
            lagging: BTreeMap::new(),
        }
    }

    fn api(&self) -> std::sync::MutexGuard<'_, Api> {
        lock(&self.api)
    }

    /// The machine that the kubelet of a node reports.
    fn set_machine(&self, node: &str, machine: &str) {
        merge(
            self.api().objects.get_mut(&format!("{NODES}/{node}")).unwrap(),
            &of_machine(machine),
        );
    }

    /// Assigns a node to the tenant.
    fn assign(&self, name: &str) {
        self.put_in_state(name, Assigned);
    }

    /// Puts a node of the tenant into a state, from now on.
    fn put_in_state(&self, name: &str, state: AssignmentState) {
        let mut api = self.api();
        let object = api.objects.get_mut(&format!("{NODES}/{name}")).unwrap();
        let node: Node = serde_json::from_value(object.clone()).unwrap();
        let now = Timestamp::from_second(NOW).unwrap();
        let assignment = Assignment {
            slug: SLUG.into(),
            ..Assignment::reserved(TENANT, "train", "h100", 1, now, "").with_state(state, now, "")
        };
        merge(object, &assignment.to_patch(&node, &[]));
    }

    /// Executes actions on the nodes as they are now. Returns the number of calls as well.
    async fn execute(&self, actions: &[Action], failing: Failing) -> (Result<Option<Duration>, ReconcileError>, usize) {
        self.execute_at(NOW, actions, failing).await
    }

    async fn execute_at(
        &self,
        now: i64,
        actions: &[Action],
        failing: Failing,
    ) -> (Result<Option<Duration>, ReconcileError>, usize) {
        let nodes = {
            let mut api = self.api();
            (api.calls, api.failing, api.now) = (0, failing, now);
            let nodes = api.objects.iter().filter(|(path, _)| path.starts_with(NODES));
            nodes
                .map(|(path, node)| self.lagging.get(path).unwrap_or(node))
                .map(|node| serde_json::from_value::<Node>(node.clone()).unwrap())
                .map(|node| (node.name_any(), Arc::new(node)))
                .collect()
        };
        let mut pass = Pass {
            client: self.client.clone(),
            recorder: &EventRecorder::new(self.client.clone()),
            metrics: &self.metrics,
            rejected_nodes: &self.rejected,
            job_settings: &NodeJobs::default(),
            devices: &self.devices,
            images: ImageRules::default(),
            now: Timestamp::from_second(now).unwrap(),
            nodes,
            tenants: [(TENANT.to_owned(), Some(SLUG.to_owned()))].into(),
            pools: PoolSelectors::new([("h100".to_owned(), [("pool".to_owned(), "h100".to_owned())].into())]),
            pool_specs: self.pools.clone(),
            listed_tenants: OnceCell::new(),
        };
        let outcome = execute(&mut pass, actions).await;
        let (kept, serving) = (pass.list_kept(actions), self.api().nodes_in(Assigned));
        let released = actions
            .iter()
            .filter(|action| matches!(action.kind, ActionKind::Release { .. }));
        for Action { node, .. } in released.filter(|action| serving.contains(&action.node)) {
            assert!(kept.contains(node), "{node} is not released");
        }
        (outcome, self.api().calls)
    }
}

/// What the Node of a machine has in it.
fn of_machine(machine: &str) -> Value {
    let info = json!({
        "machineID": machine, "systemUUID": "s", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "operatingSystem": "", "osImage": "",
    });
    json!({"status": {"nodeInfo": info}})
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
    let fixture = || {
        let fixture = Fixture::new(&ALL);
        for name in ALL {
            fixture.set_machine(name, name);
        }
        fixture
    };
    let (_, calls) = fixture().execute(&actions, Failing::Nothing).await;
    for call in 1..=calls {
        let fixture = fixture();
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

/// All nodes are planned again with each try.
#[tokio::test]
async fn what_fails_on_a_node_is_not_tried_again_each_second() {
    let fixture = Fixture::new(&["a"]);
    fixture.put_in_state("a", Draining);
    let (outcome, calls) = fixture.execute(&[], Failing::Everything).await;
    assert!(calls > 0);
    assert_eq!(outcome.unwrap(), Some(RETRY_PAUSE));
}

/// The Jobs of a recycling succeed.
async fn finish_recycling(fixture: &Fixture) {
    for _ in 0..4 {
        fixture.execute(&[], Failing::Nothing).await.0.unwrap();
        for (path, job) in &mut fixture.api().objects {
            if path.contains("/jobs/") {
                job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
            }
        }
    }
}

#[tokio::test]
async fn a_node_that_was_scrubbed_without_its_pool_is_scrubbed_again_before_a_tenant_gets_it() {
    let pool = || ("h100".to_owned(), HostNodePoolSpec::default());
    for pools in [BTreeMap::from([pool()]), BTreeMap::new()] {
        let is_pool_gone = pools.is_empty();
        let mut fixture = Fixture {
            pools,
            ..Fixture::new(&["a1", "a2"])
        };
        let reservations = ["a1", "a2"].map(|node| reserve(node, "a"));
        fixture.execute(&reservations, Failing::Nothing).await.0.unwrap();
        fixture.put_in_state("a1", Draining);
        finish_recycling(&fixture).await;
        assert_eq!(state_of(&fixture, "a1"), None, "pool is gone: {is_pool_gone}");
        fixture.pools = BTreeMap::from([pool()]);
        let again = [reserve("a1", "a")];
        fixture.execute(&again, Failing::Nothing).await.0.unwrap();
        let expected = if is_pool_gone { Scrubbing } else { Assigned };
        assert_eq!(state_of(&fixture, "a1"), Some(expected));
    }
}

/// The state of a node, if it has an assignment.
fn state_of(fixture: &Fixture, node: &str) -> Option<AssignmentState> {
    let node = fixture.api().objects[&format!("{NODES}/{node}")].clone();
    Assignment::read(&serde_json::from_value(node).unwrap()).map(|assignment| assignment.state)
}

#[tokio::test]
async fn a_pool_that_was_deleted_has_no_metric() {
    let labels = NodeStateLabels {
        pool: "h100".into(),
        state: "Free",
    };
    let mut fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a1"])
    };
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    let nodes = &fixture.metrics.nodes.family;
    assert_eq!(nodes.get(&labels).map(|gauge| gauge.get()), Some(1));
    fixture.pools.clear();
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert!(fixture.metrics.nodes.family.get(&labels).is_none());
}
