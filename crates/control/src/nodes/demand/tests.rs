use super::{affinity::NodeRules, *};
use berth_planner::{Amounts, Demand, Domain};
use std::collections::BTreeMap;

fn gpus(count: u64) -> Amounts {
    [("nvidia.com/gpu".to_owned(), count)].into()
}

fn pod(name: &str, count: u64) -> Workload {
    Workload {
        name: name.into(),
        amounts: gpus(count),
        ..Workload::default()
    }
}

fn selecting(mut pod: Workload, key: &str, value: &str) -> Workload {
    pod.rules.selector.insert(key.into(), value.into());
    pod
}

fn member(name: &str, size: u32, place: Place) -> Workload {
    Workload {
        gang: Some(Gang {
            name: "train".into(),
            size,
            one_domain: true,
        }),
        place,
        ..pod(name, 8)
    }
}

/// Demand of a tenant with a private group `fix` of pool `h100` and the dynamic groups `burst` (h100) and `small` (l40s),
/// and what its one node of `fix` holds.
fn demand_with(pods: &[Workload], used: u64) -> Needs {
    let h100: BTreeMap<String, String> = [("product".to_owned(), "H100".to_owned())].into();
    let l40s: BTreeMap<String, String> = [("product".to_owned(), "L40S".to_owned())].into();
    let node = |name, labels, count| HostNode {
        name,
        labels: Some(labels),
        capacity: gpus(count),
    };
    let pools = BTreeMap::from([
        ("h100", (vec![node("h1", &h100, 8), node("h2", &h100, 8)], true)),
        ("l40s", (vec![node("l1", &l40s, 4)], true)),
    ]);
    let group = |name, pool, is_dynamic| GroupOf { name, pool, is_dynamic };
    let own = node("h1", &h100, 8);
    let tenant = Tenant {
        groups: vec![
            group("fix", "h100", false),
            group("burst", "h100", true),
            group("small", "l40s", true),
        ],
        workloads: pods.iter().collect(),
        own: vec![("fix", &own, gpus(used))],
    };
    translate(&tenant, &pools)
}

fn demand(pods: &[Workload]) -> BTreeMap<String, Vec<Demand>> {
    demand_with(pods, 8).demand
}

fn groups(pods: &[Workload]) -> Vec<String> {
    demand(pods).into_keys().collect()
}

#[test]
fn the_first_group_whose_pool_could_serve_it() {
    assert_eq!(groups(&[pod("a", 8)]), ["burst"]);
    assert_eq!(groups(&[selecting(pod("a", 4), "product", "L40S")]), ["small"]);
    assert_eq!(groups(&[selecting(pod("a", 4), "berth.dev/pool", "l40s")]), ["small"]);
    assert_eq!(
        groups(&[selecting(pod("a", 4), "berth.dev/node-group", "small")]),
        ["small"]
    );
}

#[test]
fn what_no_node_can_help_is_no_demand() {
    assert!(groups(&[pod("too large", 16)]).is_empty());
    assert!(groups(&[selecting(pod("a", 1), "product", "B200")]).is_empty());
    assert!(groups(&[selecting(pod("a", 8), "berth.dev/node-group", "small")]).is_empty());
    assert!(groups(&[selecting(pod("a", 8), "berth.dev/node-group", "fix")]).is_empty());
    let held = Workload {
        place: Place::Held,
        ..pod("a", 1)
    };
    assert!(groups(&[held]).is_empty());
}

#[test]
fn a_pod_without_devices_gets_no_gpu_node_unless_it_asks_for_the_group() {
    let plain = Workload {
        name: "web".into(),
        ..Workload::default()
    };
    assert!(groups(std::slice::from_ref(&plain)).is_empty());
    assert_eq!(
        groups(&[selecting(plain.clone(), "berth.dev/node-group", "burst")]),
        ["burst"]
    );
    assert!(uses(&plain, false) && !uses(&plain, true));
}

#[test]
fn room_on_nodes_of_other_groups_comes_first() {
    let needs = demand_with(&[pod("a", 2), pod("b", 2), pod("c", 2)], 4);
    let names: Vec<&str> = needs.demand["burst"].iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["c"], "two of them fit into the four GPUs that are left");
    assert_eq!(
        demand_with(&[selecting(pod("a", 2), "berth.dev/node-group", "burst")], 4)
            .demand
            .len(),
        1
    );
}

#[test]
fn pods_that_are_alike_are_told_as_one() {
    let demand = demand(&[pod("a", 8), pod("b", 8), pod("c", 4)]);
    let counts: Vec<u32> = demand["burst"].iter().map(|one| one.pods[0].count).collect();
    assert_eq!(counts, [2, 1]);
}

#[test]
fn a_gang_is_one_demand_with_the_pods_that_are_to_come() {
    let demand = demand(&[member("a", 4, Place::Waiting), member("b", 4, Place::Waiting)]);
    let gang = &demand["burst"][0];
    assert!(gang.gang && gang.one_domain == Domain::Required);
    assert_eq!((gang.pods[0].count, gang.name.as_str()), (4, "train"));
}

#[test]
fn what_is_missing_of_a_gang_that_has_started_is_not_awaited() {
    let done = demand(&[member("a", 4, Place::Done), member("b", 4, Place::Waiting)]);
    assert_eq!(done["burst"][0].pods[0].count, 1);
    let running = demand(&[member("a", 4, Place::On("h1".into())), member("b", 4, Place::Waiting)]);
    assert_eq!(running["burst"][0].pods[0].count, 1);
}

#[test]
fn pods_beyond_a_gangs_size_come_one_by_one() {
    let pods = ["a", "b", "c"].map(|name| member(name, 2, Place::Waiting));
    let demand = demand(&pods);
    let kinds: Vec<(bool, u32)> = demand["burst"]
        .iter()
        .map(|one| (one.gang, one.pods[0].count))
        .collect();
    assert_eq!(kinds, [(false, 1), (true, 2)]);
}

#[test]
fn required_affinity_becomes_a_label_of_the_nodes_that_satisfy_it() {
    let terms =
        serde_json::json!([{"matchExpressions": [{"key": "product", "operator": "In", "values": ["H100", "B200"]}]}]);
    let mut picky = pod("a", 8);
    picky.rules = NodeRules {
        selector: BTreeMap::new(),
        terms: serde_json::from_value(terms).unwrap(),
    };
    let needs = demand_with(&[picky], 8);
    let selector = &needs.demand["burst"][0].selector;
    let key = "product in (H100, B200)";
    assert_eq!(selector.get(key).map(String::as_str), Some("true"));
    let of = |product: &str| BTreeMap::from([("product".to_owned(), product.to_owned())]);
    let satisfies = |product: &str| {
        let labels = of(product);
        let node = HostNode {
            name: "n",
            labels: Some(&labels),
            capacity: gpus(8),
        };
        needs.satisfies(key, "h100", &node)
    };
    assert!(satisfies("B200") && !satisfies("L40S"));
}

#[test]
fn pods_that_stay_apart_each_need_a_node() {
    let apart = ["a", "b"].map(|name| Workload {
        alone: Some("app=a".into()),
        ..pod(name, 1)
    });
    let needs = demand_with(&apart, 0);
    assert_eq!(needs.alone, ["own node: app=a"]);
    assert_eq!(needs.demand["burst"][0].pods[0].each["own node: app=a"], 1);
}
