//! A pod that never starts, because of an affinity to pods that do not exist: plans every minute, and one node.

use super::{
    TenantInput,
    testing::{GPU, Objects, at, gpu_pool, later_snapshot, snapshot, tenant, waiting_pod},
};
use crate::{demand::Workload, idle::IdleTracker};
use berth_api::{HostNodePool, Sharing, labels, names::TenantId};
use berth_planner::{ActionKind, Plan, UnusedNodes, plan};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const BEGIN: i64 = 100_000;
/// The minute in which a pod of another tenant is created.
const OTHER: i64 = 60;
const MINUTES: i64 = 2 * OTHER;
const STUCK: &str = "vision";
const LATE: &str = "speech";

/// A pod; that of [`STUCK`] has a required affinity to pods that do not exist.
fn pod(tenant: &str, created: i64) -> Arc<Workload> {
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}});
    waiting_pod(tenant, &format!("p-{created}"), created, |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"][GPU] = "8".into();
        if tenant == STUCK {
            pod["spec"]["affinity"] =
                json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
    })
}

/// The node: free, or assigned to a tenant since then.
fn node(assigned: Option<&(String, i64)>) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": "n1", "labels": {"product": "H100"}},
        "status": {
            "allocatable": {GPU: "8", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    if let Some((tenant, since)) = assigned {
        node["metadata"] = json!({
            "name": "n1",
            "labels": {
                "product": "H100", labels::POOL: "h100", labels::NODE_GROUP: "burst", labels::NODE_STATE: "Assigned",
                labels::TENANT: TenantId::new(tenant, tenant).slug(),
            },
            "annotations": {
                labels::OWNER_UID: tenant, labels::NODE_STATE: "Assigned", labels::ASSIGNED_SINCE: at(*since).to_string(),
            },
        });
    }
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Which tenant gets the node in which minute, until the other one has it, and whether there is a pause for [`STUCK`] then.
/// `created`: when its pod was created that waits at a time.
fn simulate(created: impl Fn(i64) -> i64) -> (Vec<(String, i64)>, bool) {
    let pool = Arc::new(gpu_pool());
    let (idle, mut unused, mut assigned) = (IdleTracker::default(), BTreeMap::new(), None);
    let mut all = Vec::new();
    for minute in 0..MINUTES {
        let now = BEGIN + 60 * minute;
        let mut workloads = vec![pod(STUCK, created(now))];
        if minute >= OTHER {
            workloads.push(pod(LATE, BEGIN + 60 * OTHER));
        }
        let stuck = TenantInput {
            unused,
            ..tenant(STUCK)
        };
        let objects = Objects {
            now,
            pools: vec![Arc::clone(&pool)],
            nodes: vec![node(assigned.as_ref())],
            tenants: vec![stuck, tenant(LATE)],
            workloads,
            ..Objects::default()
        };
        let Plan {
            actions, unused_nodes, ..
        } = plan(&later_snapshot(objects, &idle));
        unused = unused_nodes.get(STUCK).cloned().unwrap_or_default();
        match actions.first().map(|action| &action.kind) {
            Some(ActionKind::Reserve { tenant, .. }) => {
                assigned = Some((tenant.clone(), now));
                all.push((tenant.clone(), minute));
                if tenant == LATE {
                    let until = unused.get("h100").and_then(UnusedNodes::paused_until);
                    return (all, until.is_some_and(|until| now < until));
                }
            }
            Some(ActionKind::Release { .. }) => assigned = None,
            _ => {}
        }
    }
    (all, false)
}

#[test]
fn a_pod_that_never_starts_keeps_its_node_until_somebody_lacks_it() {
    let expected = [(STUCK.to_owned(), 0), (LATE.to_owned(), OTHER + 1)];
    assert_eq!(simulate(|_| BEGIN), (expected.to_vec(), true), "the same pod");
    assert_eq!(
        simulate(|now| now),
        (expected.to_vec(), true),
        "created again each minute"
    );
}

#[test]
fn a_pool_whose_nodes_are_divided_for_their_tenants_says_so() {
    let divides = |change: fn(&mut HostNodePool)| {
        let mut pool = gpu_pool();
        change(&mut pool);
        let objects = Objects {
            pools: vec![Arc::new(pool)],
            ..Objects::default()
        };
        snapshot(objects).pools[0].divides_nodes
    };
    assert!(!divides(|_| ()));
    assert!(divides(|pool| {
        pool.spec.sharing = Sharing::Mig;
        pool.spec.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    }));
    assert!(!divides(|pool| {
        pool.spec.sharing = Sharing::Mig;
        pool.spec.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
        pool.spec.gpus_per_assigned_node = Some(56);
    }));
}
