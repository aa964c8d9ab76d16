//! A tenant whose pods all differ must not take the planner away from others.

use super::testing::{GPU, Objects, gpu_pool, snapshot, tenant, waiting_pod};
use crate::demand::Workload;
use berth_planner::{ActionKind, Fleet, plan};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// A pod that waits, created so many seconds after the first, with these further fields of its spec.
fn pod(tenant: &str, number: usize, more: &Value) -> Arc<Workload> {
    let created = i64::try_from(number / 100).unwrap();
    waiting_pod(tenant, &format!("p-{number}"), created, |pod| {
        pod["metadata"]["labels"]["app"] = number.to_string().into();
        for (field, value) in more.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
    })
}

/// The fleet with so many nodes, and one pod of another tenant that was created after all of these.
fn fleet(nodes: usize, mut workloads: Vec<Arc<Workload>>) -> Fleet {
    workloads.push(pod("speech", 10_000_000, &json!({})));
    let node = |number: usize| {
        let node = json!({
            "metadata": {"name": format!("n{number}"), "labels": {"product": "H100", "rack": number.to_string()}},
            "status": {
                "allocatable": {GPU: "8", "cpu": "64", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    };
    snapshot(Objects {
        now: 200_000,
        pools: vec![Arc::new(gpu_pool())],
        nodes: (0..nodes).map(node).collect(),
        tenants: vec![tenant("vision"), tenant("speech")],
        workloads,
        ..Objects::default()
    })
}

/// Checks that the planner has little to keep of a tenant, and that both tenants get nodes.
fn check(fleet: &Fleet) {
    let names = |of: &dyn Fn(&berth_planner::Demand) -> Vec<String>| {
        let groups = fleet.tenants.iter().flat_map(|tenant| &tenant.node_groups);
        let names: BTreeSet<String> = groups.flat_map(|group| &group.demand).flat_map(of).collect();
        names.len()
    };
    let resources = names(&|demand| {
        let sets = demand.pod_sets.iter();
        sets.flat_map(|set| set.requests.keys().cloned()).collect()
    });
    let labels = names(&|demand| demand.selector.keys().cloned().collect());
    assert!(resources + labels <= 520, "{resources} resources and {labels} labels");
    let on_nodes = fleet.nodes.iter().map(|node| node.capacity.len() + node.labels.len());
    assert!(on_nodes.max().unwrap() <= 520);
    let parts = { fleet.tenants.iter() }
        .flat_map(|tenant| &tenant.node_groups)
        .flat_map(|group| &group.demand)
        .map(|demand| demand.pod_sets.len());
    assert!(parts.max().unwrap() <= 100);
    let actions = plan(fleet).actions;
    let served: BTreeSet<&str> = { actions.iter() }
        .filter_map(|action| match &action.kind {
            ActionKind::Reserve { tenant, .. } => Some(tenant.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(served, ["speech", "vision"].into());
}

/// As many pods as one tenant may have have `BERTH_CROWD=15000`.
fn crowd() -> usize {
    let set = std::env::var("BERTH_CROWD").ok();
    set.map_or(1_200, |number| number.parse().unwrap())
}

fn pods(spec: impl Fn(usize) -> Value) -> Vec<Arc<Workload>> {
    (0..crowd())
        .map(|number| pod("vision", number, &spec(number)))
        .collect()
}

#[test]
fn anti_affinities() {
    let selector = |number: usize| json!({"matchLabels": {"app": number.to_string()}});
    let term = |number| json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector(number)});
    let pods = pods(
        |number| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term(number)]}}}),
    );
    check(&fleet(20, pods));
}

#[test]
fn spread_constraints() {
    let pods = pods(|number| {
        json!({"topologySpreadConstraints": [{
            "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "minDomains": 2,
            "labelSelector": {"matchLabels": {"app": number.to_string()}},
        }]})
    });
    check(&fleet(20, pods));
}

#[test]
fn node_affinities() {
    let pods = pods(|number| {
        let expression = json!({"key": "rack", "operator": "NotIn", "values": [number.to_string()]});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}],
        }}}})
    });
    check(&fleet(20, pods));
}

#[test]
fn sizes_in_one_gang() {
    let mut pods = pods(
        |number| json!({"containers": [{"name": "c", "resources": {"requests": {GPU: "1", "cpu": format!("{number}m")}}}]}),
    );
    pods.truncate(30);
    let size = |number: usize| u32::try_from(number).unwrap();
    let mut pods: Vec<Arc<Workload>> = pods;
    for number in 0..crowd().min(10_000) {
        let mut member = Workload::clone(&pods[number % 30]);
        member.name = format!("g-{number}");
        member.amounts.insert("millicpu".into(), u64::from(size(number)) + 1);
        member.gang = Some(crate::demand::Gang {
            name: "gang".into(),
            size: size(crowd().min(10_000)),
            one_domain: false,
        });
        pods.push(Arc::new(member));
    }
    check(&fleet(20, pods));
}
