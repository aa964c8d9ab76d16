use super::{node_rules::NodeRules, *};
use berth_planner::{Amounts, Demand, Topology, Unplanned};
use serde_json::json;
use std::collections::BTreeMap;

/// When the tenant left nodes of pool `h100` unused.
const LEFT_UNUSED: i64 = 50;

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

fn member(name: &str, size: u32, scheduling: SchedulingState) -> Workload {
    Workload {
        gang: Some(Gang {
            name: "train".into(),
            size,
            one_domain: true,
        }),
        scheduling,
        ..pod(name, 8)
    }
}

fn of_pool(nodes: Vec<HostNode<'_>>) -> PoolNodes<'_> {
    PoolNodes {
        nodes,
        devices: PoolDevices::Any,
        topology: Some("rack"),
        is_fifo: false,
    }
}

/// Demand of a tenant with a private group `fix` of pool `h100` and the dynamic groups `burst` (h100) and `small` (l40s),
/// and the number of GPUs used on its one node of `fix`.
fn demand_with(pods: &[Workload], used: u64) -> TenantDemand {
    let h100: BTreeMap<String, String> = [("product".to_owned(), "H100".to_owned())].into();
    let l40s: BTreeMap<String, String> = [("product".to_owned(), "L40S".to_owned())].into();
    let node = |name, labels, count| HostNode {
        name,
        labels: Some(labels),
        capacity: gpus(count),
        is_expected: false,
    };
    let pools = BTreeMap::from([
        ("h100", of_pool(vec![node("h1", &h100, 8), node("h2", &h100, 8)])),
        ("l40s", of_pool(vec![node("l1", &l40s, 4)])),
    ]);
    let group = |name, pool, is_dynamic| NodeGroupDemand {
        name,
        pool,
        is_dynamic,
        left: 4,
    };
    let own = node("h1", &h100, 8);
    let tenant = Tenant {
        groups: vec![
            group("fix", "h100", false),
            group("burst", "h100", true),
            group("small", "l40s", true),
        ],
        workloads: pods.iter().collect(),
        own: vec![("fix", &own, gpus(used))],
        coming: Vec::new(),
        share: Share::of_one(1),
        now: 100,
        left_unused: BTreeMap::from([("h100", LEFT_UNUSED)]),
    };
    translate_demand(&tenant, &pools)
}

fn demand(pods: &[Workload]) -> BTreeMap<String, Vec<Demand>> {
    demand_with(pods, 8).demand
}

fn groups(pods: &[Workload]) -> Vec<String> {
    demand(pods).into_keys().collect()
}

#[test]
fn demand_goes_to_the_first_group_whose_pool_could_serve_it() {
    assert_eq!(groups(&[pod("a", 8)]), ["burst"]);
    assert_eq!(groups(&[selecting(pod("a", 4), "product", "L40S")]), ["small"]);
    assert_eq!(groups(&[selecting(pod("a", 4), "berth.dev/pool", "l40s")]), ["small"]);
    assert_eq!(
        groups(&[selecting(pod("a", 4), "berth.dev/node-group", "small")]),
        ["small"]
    );
}

#[test]
fn pods_that_no_node_can_serve_are_no_demand() {
    assert!(groups(&[pod("too large", 16)]).is_empty());
    assert!(groups(&[selecting(pod("a", 1), "product", "B200")]).is_empty());
    assert!(groups(&[selecting(pod("a", 8), "berth.dev/node-group", "small")]).is_empty());
    assert!(groups(&[selecting(pod("a", 8), "berth.dev/node-group", "fix")]).is_empty());
    let held = Workload {
        scheduling: SchedulingState::Gated,
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
    assert!(needs_node_of(&plain, PoolDevices::None) && !needs_node_of(&plain, PoolDevices::Any));
}

#[test]
fn only_gpus_bring_a_node_of_a_pool_that_counts_gpus() {
    let gpus = PoolDevices::Gpus("nvidia.com/gpu");
    let needs = |resource: &str, devices| {
        let pod = Workload {
            amounts: [(resource.to_owned(), 1)].into(),
            ..Workload::default()
        };
        needs_node_of(&pod, devices)
    };
    for resource in [
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
        "dra:gpu.nvidia.com",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
    ] {
        assert!(needs(resource, gpus), "{resource}");
    }
    assert!(!needs("rdma/hca", gpus) && needs("rdma/hca", PoolDevices::Any));
    assert!(!needs("millicpu", gpus) && !needs("millicpu", PoolDevices::Any));
    // A claim that requests nothing is no amount.
    let claim = Claim {
        namespace: "berth-w".into(),
        name: "none".into(),
        is_template: false,
        generated: None,
    };
    let pod = Workload {
        claims: vec![claim],
        ..Workload::default()
    };
    assert!(!needs_node_of(&pod, gpus) && !needs_node_of(&pod, PoolDevices::Any));
    let chooses = selecting(pod, "berth.dev/pool", "h100");
    assert!(needs_node_of(&chooses, gpus) && !uses_node_of(&chooses, gpus));
}

#[test]
fn capacity_on_nodes_of_other_groups_is_used_first() {
    let needs = demand_with(&[pod("a", 2), pod("b", 2), pod("c", 2)], 4);
    let names: Vec<&str> = needs.demand["burst"].iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["c"], "two of them fit into the four GPUs that are free");
    assert_eq!(
        demand_with(&[selecting(pod("a", 2), "berth.dev/node-group", "burst")], 4)
            .demand
            .len(),
        1
    );
}

#[test]
fn pods_that_are_alike_become_one_demand() {
    let demand = demand(&[pod("a", 8), pod("b", 8), pod("c", 4)]);
    let counts: Vec<u32> = demand["burst"].iter().map(|one| one.pod_sets[0].count).collect();
    assert_eq!(counts, [2, 1]);
}

#[test]
fn a_gang_is_one_demand_with_the_pods_that_are_to_come() {
    let demand = demand(&[
        member("a", 4, SchedulingState::Pending),
        member("b", 4, SchedulingState::Pending),
    ]);
    let gang = &demand["burst"][0];
    assert!(gang.gang && gang.topology == Topology::SingleDomain);
    assert_eq!((gang.pod_sets[0].count, gang.name.as_str()), (4, "train"));
}

#[test]
fn one_pod_does_not_bring_the_nodes_of_a_whole_gang() {
    let of = |pods: u32, size| {
        let pods = (0..pods).map(|number| member(&format!("p{number}"), size, SchedulingState::Pending));
        demand_with(&pods.collect::<Vec<_>>(), 8)
    };
    for (pods, size) in [(1, 64), (31, 64), (1, 3)] {
        let count = of(pods, size).demand["burst"][0].pod_sets[0].count;
        assert_eq!(count, pods, "those that exist, of {size}");
    }
    for (pods, size) in [(32, 64), (2, 3), (1, 2)] {
        assert_eq!(of(pods, size).demand["burst"][0].pod_sets[0].count, size);
    }
    let mut young = member("a", 64, SchedulingState::Pending);
    young.since = 41;
    let being_created = demand_with(&[young], 8);
    assert!(being_created.demand.is_empty(), "more may come at any moment");
    assert_eq!(being_created.again_at, Some(101));
}

#[test]
fn pods_that_had_their_chance_do_not_keep_later_ones_that_are_alike() {
    let pods = [10, LEFT_UNUSED, LEFT_UNUSED + 1, 90].map(|since| Workload {
        since,
        ..pod(&format!("p{since}"), 8)
    });
    let counts: Vec<u32> = demand(&pods)["burst"].iter().map(|one| one.pod_sets[0].count).collect();
    assert_eq!(counts, [2, 2]);
}

#[test]
fn missing_pods_of_a_started_gang_are_not_awaited() {
    let done = demand(&[
        member("a", 4, SchedulingState::Finished),
        member("b", 4, SchedulingState::Pending),
    ]);
    assert_eq!(done["burst"][0].pod_sets[0].count, 1);
    let running = demand(&[
        member("a", 4, SchedulingState::Bound("h1".into())),
        member("b", 4, SchedulingState::Pending),
    ]);
    assert_eq!(running["burst"][0].pod_sets[0].count, 1);
}

#[test]
fn pods_beyond_the_size_of_a_gang_are_served_one_by_one() {
    let pods = ["a", "b", "c"].map(|name| member(name, 2, SchedulingState::Pending));
    let demand = demand(&pods);
    let kinds: Vec<(bool, u32)> = demand["burst"]
        .iter()
        .map(|one| (one.gang, one.pod_sets[0].count))
        .collect();
    assert_eq!(kinds, [(false, 1), (true, 2)]);
}

#[test]
fn required_affinity_becomes_a_label_of_the_nodes_that_satisfy_it() {
    let terms =
        serde_json::json!([{"matchExpressions": [{"key": "product", "operator": "In", "values": ["H100", "B200"]}]}]);
    let mut picky = pod("a", 8);
    picky.rules = NodeRules {
        terms: serde_json::from_value(terms).unwrap(),
        ..NodeRules::default()
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
            is_expected: false,
        };
        needs.satisfies(key, "h100", &node)
    };
    assert!(satisfies("B200") && !satisfies("L40S"));
}

#[test]
fn pods_that_stay_apart_each_need_a_node() {
    let apart = ["a", "b"].map(|name| Workload {
        anti_affinity: Some("app=a".into()),
        ..pod(name, 1)
    });
    let needs = demand_with(&apart, 0);
    assert_eq!(needs.limits["anti-affinity: app=a"], 1);
    assert_eq!(needs.demand["burst"][0].pod_sets[0].requests["anti-affinity: app=a"], 1);
}

/// A tenant with two dynamic groups of pools whose nodes have 8 GPUs, of which the first may get `left` more nodes and has
/// one more on its way.
fn overflow(pods: &[Workload], left: u32) -> Vec<(String, Vec<String>)> {
    let labels = BTreeMap::new();
    let node = |name| HostNode {
        name,
        labels: Some(&labels),
        capacity: gpus(8),
        is_expected: false,
    };
    let pools = BTreeMap::from([("h100", of_pool(vec![node("h1")])), ("h200", of_pool(vec![node("b1")]))]);
    let group = |name, pool, left| NodeGroupDemand {
        name,
        pool,
        is_dynamic: true,
        left,
    };
    let coming = node("h1");
    let tenant = Tenant {
        groups: vec![group("first", "h100", left), group("second", "h200", 1)],
        workloads: pods.iter().collect(),
        own: Vec::new(),
        coming: vec![("first", &coming)],
        share: Share::of_one(1),
        now: 100,
        left_unused: BTreeMap::from([("h100", LEFT_UNUSED)]),
    };
    let names = |demand: Vec<Demand>| {
        let pods = |one: Demand| (0..one.pod_sets.iter().map(|pods| pods.count).sum()).map(move |_| one.name.clone());
        demand.into_iter().flat_map(pods).collect()
    };
    let demand = translate_demand(&tenant, &pools).demand;
    demand
        .into_iter()
        .map(|(group, demand)| (group, names(demand)))
        .collect()
}

fn groups_of(all: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    all.iter()
        .map(|(group, names)| ((*group).to_owned(), owned(names)))
        .collect()
}

#[test]
fn demand_beyond_a_full_group_goes_to_the_next() {
    let pods = ["a", "b"].map(|name| pod(name, 8));
    assert_eq!(overflow(&pods, 1), groups_of(&[("first", &["a", "a"])]));
    assert_eq!(overflow(&pods, 0), groups_of(&[("first", &["a"]), ("second", &["b"])]));
    // If all groups are full, demand waits for the first group; pods that are alike share one name.
    let pods = ["a", "b", "c"].map(|name| pod(name, 8));
    assert_eq!(
        overflow(&pods, 0),
        groups_of(&[("first", &["a", "a"]), ("second", &["b"])])
    );
}

#[test]
fn pods_that_select_a_group_or_pool_stay_there() {
    let pods = [pod("a", 8), selecting(pod("b", 8), "berth.dev/pool", "h100")];
    assert_eq!(overflow(&pods, 0), groups_of(&[("first", &["a", "a"])]));
}

#[test]
fn pods_of_higher_priority_stay_in_the_first_group() {
    let mut later = pod("b", 8);
    (later.since, later.priority) = (10, 5);
    let found = overflow(&[pod("a", 8), later], 0);
    assert_eq!(found, groups_of(&[("first", &["b"]), ("second", &["a"])]));
}

#[test]
fn a_gang_goes_to_the_next_group_as_a_whole() {
    let gang = |place| [member("a", 2, SchedulingState::Pending), member("b", 2, place)];
    // Each group may get only one of the two nodes that it needs.
    assert_eq!(
        overflow(&gang(SchedulingState::Pending), 0),
        groups_of(&[("first", &["train", "train"])])
    );
    assert_eq!(
        overflow(&gang(SchedulingState::Pending), 1),
        groups_of(&[("first", &["train", "train"])])
    );
    let mut small = member("a", 1, SchedulingState::Pending);
    small.gang = None;
    assert_eq!(
        overflow(&[pod("x", 8), small], 0),
        groups_of(&[("first", &["a"]), ("second", &["x"])])
    );
}

fn spread(name: &str, max_skew: u64, min_nodes: u64) -> Workload {
    let spread = Spread {
        key: "app=a".into(),
        max_skew,
        min_nodes,
    };
    Workload {
        spread: Some(spread),
        ..pod(name, 1)
    }
}

#[test]
fn pods_are_spread_over_their_minimum_number_of_nodes() {
    let key = "topology spread: app=a";
    for (pods, skew, nodes, expected) in [
        (6, 1, 3, Some(2)),
        (2, 1, 3, Some(1)),
        (2, 2, 3, Some(2)),
        (6, 1, 1, None),
    ] {
        let pods: Vec<Workload> = (0..pods)
            .map(|index| spread(&format!("p{index}"), skew, nodes))
            .collect();
        let needs = demand_with(&pods, 0);
        assert_eq!(needs.limits.get(key).copied(), expected, "{skew} {nodes}");
        if expected.is_some() {
            assert_eq!(needs.demand["burst"][0].pod_sets[0].requests[key], 1);
        }
    }
}

#[test]
fn a_full_node_with_the_fewest_pods_limits_the_others() {
    let needs = demand_with(&[spread("p", 1, 1)], 8);
    assert_eq!(needs.limits["topology spread: app=a"], 1);
}

fn companion(name: &str, topology: &str, scheduling: SchedulingState) -> Workload {
    let together = PodAffinity {
        key: "app=a".into(),
        topology: topology.into(),
    };
    Workload {
        affinity: Some(together),
        scheduling,
        ..pod(name, 3)
    }
}

#[test]
fn pods_that_must_be_on_one_node_request_one_node() {
    let waiting = ["a", "b", "c"].map(|name| companion(name, "kubernetes.io/hostname", SchedulingState::Pending));
    let demand = demand(&waiting);
    let pods = &demand["burst"][0].pod_sets;
    assert_eq!(
        (pods[0].count, pods[0].requests["nvidia.com/gpu"]),
        (1, 6),
        "a third does not fit there"
    );
    let there = companion("z", "kubernetes.io/hostname", SchedulingState::Bound("h1".into()));
    assert!(groups(&[there, waiting[0].clone()]).is_empty(), "no other node helps");
}

#[test]
fn pods_that_must_be_in_one_domain_are_one_demand() {
    let waiting = |topology| ["a", "b", "c"].map(|name| companion(name, topology, SchedulingState::Pending));
    let in_rack = demand(&waiting("rack"));
    let one = &in_rack["burst"][0];
    assert_eq!(
        (one.topology, one.gang, one.pod_sets[0].count),
        (Topology::SingleDomain, false, 3)
    );
    let in_zone = demand(&waiting("zone"));
    assert_eq!(
        in_zone["burst"][0].topology,
        Topology::Any,
        "domains by a label that is not the topology key of the pool"
    );
    // Where others run already: in their domain, by the label of the affinity (here the product).
    let there = companion("z", "product", SchedulingState::Bound("h1".into()));
    let found = demand(&[there, companion("a", "product", SchedulingState::Pending)]);
    assert_eq!(found["burst"][0].selector["product"], "H100");
}

#[test]
fn pods_without_planned_nodes_are_named_with_the_reason() {
    let unplanned = |pods: &[Workload]| demand_with(pods, 8).unplanned;
    let of = |group: &str, why: &[Unplanned]| BTreeMap::from([(group.to_owned(), why.iter().copied().collect())]);
    assert!(unplanned(&[pod("a", 8)]).is_empty());
    // No node could run it: it is no demand, and nothing of it is left out.
    assert!(unplanned(&[pod("a", 16)]).is_empty());

    let mut named = json!({"metadata": {"name": "a"}, "spec": {"containers": []}});
    named["spec"]["nodeSelector"] = json!({"zone": "z".repeat(9_000), "berth.dev/pool": "l40s"});
    let mut large = pod("a", 1);
    large.rules = NodeRules::of_pod(&serde_json::from_value(named).unwrap(), "");
    assert_eq!(unplanned(&[large]), of("burst", &[Unplanned::LargeRules]));

    let constrained = |name: &str, count: usize| {
        let mut pod = pod(name, 1);
        for number in 0..count {
            pod.amounts.insert(format!("anti/{name}-{number}"), 0);
        }
        pod
    };
    assert_eq!(
        unplanned(&[constrained("a", 1_000)]),
        of("burst", &[Unplanned::ManyConstraints])
    );
    let pods = [constrained("a", 900), constrained("b", 900)];
    assert_eq!(unplanned(&pods), of("burst", &[Unplanned::Later]));
    assert_eq!(unplanned(&pods[1..]), BTreeMap::new());
}
