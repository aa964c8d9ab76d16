use super::{
    claims::tests::{read_claim, read_class},
    *,
};
use crate::demand::{self, SchedulingState};
use serde_json::{Value, json};

const NAMESPACE: &str = "berth-w";

/// Two nodes with 8 whole devices, of which one on the first node is tainted; one node with 4 small devices; and a network
/// device that all nodes reach.
fn devices() -> Devices {
    let slices = Slices::default();
    let slice = |driver: &str, pool: &str, generation: u32, devices: Vec<Value>| {
        let node = if pool == "all" { Value::Null } else { pool.into() };
        let spec = json!({
            "driver": driver, "nodeName": node, "pool": {"name": pool, "generation": generation}, "devices": devices,
        });
        Some(Slice::read(&spec.to_string()).unwrap())
    };
    let gpu = |index: u32, memory: &str| json!({"name": format!("gpu-{index}"), "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": memory}}});
    let mut whole: Vec<Value> = (0..8).map(|index| gpu(index, "80Gi")).collect();
    slices.put("b", slice("gpu.example.com", "b", 1, whole.clone()));
    whole[0]["taints"] = json!([{"key": "ill", "effect": "NoSchedule"}]);
    slices.put("a", slice("gpu.example.com", "a", 2, whole.clone()));
    slices.put("a-old", slice("gpu.example.com", "a", 1, whole));
    let small = (0..4).map(|index| gpu(index, "24Gi")).collect();
    slices.put("c", slice("gpu.example.com", "c", 1, small));
    slices.put(
        "net",
        slice("net.example.com", "all", 1, vec![json!({"name": "net-0"})]),
    );
    let devices = Devices::new(Arc::new(slices));
    for (name, expression) in [
        ("gpu", "device.driver == 'gpu.example.com'"),
        ("net", "device.driver == 'net.example.com'"),
        ("odd", "device.driver == 'gpu.example.com' && future(device)"),
    ] {
        let mut class = read_class(&json!({"selectors": [{"cel": {"expression": expression}}]}));
        class.extended_resource = (name == "gpu").then(|| "example.com/gpu".to_owned());
        assert!(devices.put_class(name, Some(class)));
    }
    devices
}

fn put_claim(devices: &Devices, name: &str, requests: &Value, status: &Value) {
    let claim = read_claim(&json!({"devices": {"requests": requests}}), status);
    devices.put_claim(&format!("{NAMESPACE}/{name}"), Some(claim));
}

fn exactly(class: &str, count: u64) -> Value {
    json!([{"name": "r", "exactly": {"deviceClassName": class, "count": count}}])
}

fn pod(name: &str, claim: &str, scheduling: SchedulingState) -> Arc<Workload> {
    let claim = demand::Claim {
        namespace: NAMESPACE.into(),
        name: claim.into(),
        is_template: false,
        generated: None,
    };
    Arc::new(Workload {
        name: name.into(),
        claims: vec![claim],
        scheduling,
        ..Workload::default()
    })
}

fn on(node: &str) -> Value {
    let named = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": named}, "devices": {"results": [{"request": "r"}]}}})
}

fn amounts(devices: &Devices, pods: &[Arc<Workload>]) -> Vec<(SchedulingState, Amounts)> {
    let resolved = devices.resolve(pods);
    let each = resolved.workloads.iter();
    each.map(|pod| (pod.scheduling.clone(), pod.amounts.clone())).collect()
}

fn of(all: &[(&str, u64)]) -> Amounts {
    all.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

#[test]
fn nodes_have_what_their_newest_slices_and_the_classes_say() {
    let devices = devices();
    let resolved = devices.resolve(&[]);
    let gpus = |count| of(&[("dra:gpu", count), ("dra:odd", count), ("example.com/gpu", count)]);
    for (node, expected) in [("a", gpus(7)), ("b", gpus(8)), ("c", gpus(4)), ("other", of(&[]))] {
        assert_eq!(devices.of_node(node, &resolved), expected, "{node}");
    }
}

#[test]
fn changed_slices_and_classes_are_counted_anew() {
    let devices = devices();
    devices.of_node("c", &devices.resolve(&[]));
    devices.slices.put("c", None);
    devices.slices_changed(&BTreeSet::from(["c".to_owned()]));
    assert_eq!(devices.of_node("c", &devices.resolve(&[])), of(&[]));
    devices.put_class("odd", None);
    devices.put_class("gpu", Some(read_class(&json!({}))));
    assert_eq!(devices.of_node("b", &devices.resolve(&[])), of(&[("dra:gpu", 8)]));
}

#[test]
fn a_claim_is_an_amount() {
    let devices = devices();
    put_claim(&devices, "x", &exactly("gpu", 2), &Value::Null);
    let found = amounts(&devices, &[pod("p", "x", SchedulingState::Pending)]);
    assert_eq!(found, [(SchedulingState::Pending, of(&[("dra:gpu", 2)]))]);
    // The claim does not exist yet.
    let found = amounts(&devices, &[pod("p", "unknown", SchedulingState::Pending)]);
    assert_eq!(found, [(SchedulingState::Gated, of(&[]))]);
}

#[test]
fn selectors_of_a_claim_are_counted_beside_the_class() {
    let devices = devices();
    let big = "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))";
    let requests = json!([{"name": "r", "exactly": {
        "deviceClassName": "gpu", "selectors": [{"cel": {"expression": big}}],
    }}]);
    put_claim(&devices, "x", &requests, &Value::Null);
    let pods = [pod("p", "x", SchedulingState::Pending)];
    let narrow = format!("dra:gpu where {big}");
    let resolved = devices.resolve(&pods);
    assert_eq!(resolved.workloads[0].amounts, of(&[("dra:gpu", 1), (&narrow, 1)]));
    assert_eq!(devices.of_node("b", &resolved)[&narrow], 8);
    assert!(!devices.of_node("c", &resolved).contains_key(&narrow));
}

#[test]
fn all_devices_and_the_first_available_alternative_are_counted() {
    let devices = devices();
    let all = json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]);
    put_claim(&devices, "all", &all, &Value::Null);
    let either = |first: u64| {
        json!([{"name": "r", "firstAvailable": [
            {"name": "many", "deviceClassName": "gpu", "count": first}, {"name": "one", "deviceClassName": "odd"},
        ]}])
    };
    put_claim(&devices, "many", &either(8), &Value::Null);
    put_claim(&devices, "one", &either(16), &Value::Null);
    let pods = ["all", "many", "one"].map(|claim| pod(claim, claim, SchedulingState::Pending));
    let found: Vec<Amounts> = amounts(&devices, &pods)
        .into_iter()
        .map(|(_, amounts)| amounts)
        .collect();
    assert_eq!(
        found,
        [of(&[("dra:gpu", 4)]), of(&[("dra:gpu", 8)]), of(&[("dra:odd", 1)])]
    );
    // The allocated alternative counts, even if it is not the first.
    let status = json!({"allocation": {"devices": {"results": [{"request": "r/one"}]}}});
    put_claim(&devices, "many", &either(8), &status);
    let found = amounts(&devices, &[pod("p", "many", SchedulingState::Bound("b".into()))]);
    assert_eq!(found[0].1, of(&[("dra:odd", 1)]));
}

#[test]
fn a_claim_of_several_pods_counts_once() {
    let devices = devices();
    put_claim(&devices, "x", &exactly("gpu", 4), &Value::Null);
    let waiting = ["p", "q"].map(|name| pod(name, "x", SchedulingState::Pending));
    let expected = [
        (SchedulingState::Pending, of(&[("dra:gpu", 4)])),
        (SchedulingState::Gated, of(&[])),
    ];
    assert_eq!(amounts(&devices, &waiting), expected);
    // Once the claim has its devices, no other node helps, and its devices count once on their node.
    put_claim(&devices, "x", &exactly("gpu", 4), &on("b"));
    let there = || SchedulingState::Bound("b".into());
    let pods = [
        pod("p", "x", SchedulingState::Pending),
        pod("q", "x", there()),
        pod("r", "x", there()),
    ];
    let expected = [
        (SchedulingState::Gated, of(&[])),
        (there(), of(&[("dra:gpu", 4)])),
        (there(), of(&[])),
    ];
    assert_eq!(amounts(&devices, &pods), expected);
}

#[test]
fn pods_of_a_gang_that_share_a_claim_are_all_pending() {
    let devices = devices();
    put_claim(&devices, "x", &exactly("gpu", 4), &Value::Null);
    let waiting = ["p", "q"].map(|name| {
        let mut pod = Arc::unwrap_or_clone(pod(name, "x", SchedulingState::Pending));
        pod.gang = Some(demand::Gang {
            name: "g".into(),
            size: 2,
            one_domain: false,
        });
        Arc::new(pod)
    });
    let expected = [
        (SchedulingState::Pending, of(&[("dra:gpu", 4)])),
        (SchedulingState::Pending, of(&[])),
    ];
    assert_eq!(amounts(&devices, &waiting), expected);
}

#[test]
fn a_claim_of_all_devices_counts_the_allocated_ones() {
    let devices = devices();
    let all = json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]);
    let mut status = on("b");
    status["allocation"]["devices"] = json!({"results": vec![json!({"request": "r"}); 8]});
    put_claim(&devices, "x", &all, &status);
    let there = SchedulingState::Bound("b".into());
    let expected = [(there.clone(), of(&[("dra:gpu", 8)]))];
    assert_eq!(
        amounts(&devices, &[pod("p", "x", there)]),
        expected,
        "although another node has four"
    );
}

#[test]
fn long_selectors_of_claims_are_ignored() {
    let devices = devices();
    let selectors = json!([{"cel": {"expression": format!("device.driver != '{}'", "x".repeat(600))}}]);
    let request = json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1, "selectors": selectors}}]);
    put_claim(&devices, "x", &request, &Value::Null);
    let expected = [(SchedulingState::Pending, of(&[("dra:gpu", 1)]))];
    assert_eq!(amounts(&devices, &[pod("p", "x", SchedulingState::Pending)]), expected);
}

#[test]
fn a_template_makes_a_claim_for_each_pod() {
    let devices = devices();
    let template = read_claim(&json!({"devices": {"requests": exactly("gpu", 1)}}), &Value::Null);
    devices.put_template(&format!("{NAMESPACE}/t"), Some(template));
    let of_template = |name: &str, generated: Option<&str>| {
        let mut pod = Arc::unwrap_or_clone(pod(name, "t", SchedulingState::Pending));
        pod.claims[0].is_template = true;
        pod.claims[0].generated = generated.map(Into::into);
        Arc::new(pod)
    };
    put_claim(&devices, "r-1", &exactly("gpu", 1), &on("b"));
    let pods = [
        of_template("p", None),
        of_template("q", Some("q-1")),
        of_template("r", Some("r-1")),
    ];
    let one = of(&[("dra:gpu", 1)]);
    let expected = [
        (SchedulingState::Pending, one.clone()),
        (SchedulingState::Pending, one),
        (SchedulingState::Gated, of(&[])),
    ];
    assert_eq!(amounts(&devices, &pods), expected);
}

#[test]
fn devices_that_several_nodes_reach_need_no_node() {
    let devices = devices();
    put_claim(&devices, "x", &exactly("net", 1), &Value::Null);
    let found = amounts(&devices, &[pod("p", "x", SchedulingState::Pending)]);
    assert_eq!(found, [(SchedulingState::Pending, of(&[]))]);
}

#[test]
fn a_class_can_be_requested_as_an_extended_resource() {
    let devices = devices();
    let implicit = "deviceclass.resource.kubernetes.io/gpu";
    let plain = Workload {
        amounts: of(&[(implicit, 1)]),
        ..Workload::default()
    };
    let pods = [Arc::new(plain)];
    let resolved = devices.resolve(&pods);
    assert_eq!(devices.of_node("c", &resolved)[implicit], 4);
}

#[test]
fn claims_of_tenants_that_have_devices_of_a_node_are_found() {
    let devices = Devices::default();
    let id = names::TenantId::new("vision", "6f2c");
    let claim = |status: &Value| Some(read_claim(&Value::Null, status));
    for (name, status) in [
        (format!("{}/held", id.workload_namespace()), on("a")),
        (format!("{}/elsewhere", id.workload_namespace()), on("b")),
        (format!("{}/free", id.workload_namespace()), json!({})),
        // The platform's, whose pods stay.
        ("monitoring/dcgm".to_owned(), on("a")),
    ] {
        devices.put_claim(&name, claim(&status));
    }
    let held = format!("{}/held", id.workload_namespace());
    assert_eq!(devices.find_claims_of_tenants("a"), std::slice::from_ref(&held));
    devices.put_claim(&held, claim(&json!({})));
    assert!(devices.find_claims_of_tenants("a").is_empty());
}

/// Pods of these tenants, each with a claim that has a selector of its own.
fn pods_with_selectors(devices: &Devices, tenants: usize) -> Vec<Arc<Workload>> {
    let pods = (0..tenants).map(|number| {
        let name = format!("p{number:03}");
        let selector = json!([{"cel": {"expression": format!("device.driver != 'x{number}'")}}]);
        let request = json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": selector}}]);
        put_claim(devices, &name, &request, &Value::Null);
        let mut pod = Arc::unwrap_or_clone(pod(&name, &name, SchedulingState::Pending));
        pod.tenant.clone_from(&name);
        Arc::new(pod)
    });
    pods.collect()
}

#[test]
fn selectors_of_every_tenant_are_evaluated_in_one_of_a_few_passes() {
    let devices = devices();
    let pods = pods_with_selectors(&devices, 2 * MAX_CLAIM_SELECTORS + 1);
    let mut evaluated = BTreeSet::new();
    for _ in 0..3 {
        let resolved = devices.resolve(&pods);
        let of_pass: BTreeSet<&String> = { pods.iter() }
            .map(|pod| &pod.tenant)
            .filter(|tenant| !resolved.is_without_turn(tenant))
            .collect();
        assert_eq!(of_pass.len(), MAX_CLAIM_SELECTORS);
        for pod in &resolved.workloads {
            let is_narrow = pod.amounts.keys().any(|amount| amount.contains(" where "));
            assert_eq!(is_narrow, of_pass.contains(&pod.tenant), "{}", pod.tenant);
        }
        evaluated.extend(of_pass.into_iter().cloned());
    }
    assert_eq!(evaluated.len(), pods.len());
}

#[test]
fn each_tenant_has_its_turn_where_there_are_few() {
    let devices = devices();
    let pods = pods_with_selectors(&devices, MAX_CLAIM_SELECTORS);
    for _ in 0..3 {
        let resolved = devices.resolve(&pods);
        assert!(pods.iter().all(|pod| !resolved.is_without_turn(&pod.tenant)));
    }
}
