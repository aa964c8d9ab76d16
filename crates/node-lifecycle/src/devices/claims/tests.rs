use super::*;
use serde_json::{Value, json};

/// Reads a claim with this `spec` and `status`; null: none.
pub(in crate::devices) fn read_claim(spec: &Value, status: &Value) -> DeviceClaim {
    let spec: Option<ClaimSpec> = serde_json::from_value(spec.clone()).unwrap();
    let status: Option<ClaimStatus> = serde_json::from_value(status.clone()).unwrap();
    DeviceClaim::read(spec.as_ref(), status.as_ref())
}

/// Reads a class with this `spec`.
pub(in crate::devices) fn read_class(spec: &Value) -> DeviceClass {
    DeviceClass::read(serde_json::from_value(spec.clone()).unwrap())
}

#[test]
fn requests_of_claims_are_read() {
    let claim = read_claim(
        &json!({"devices": {"requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu"}},
            {"name": "some", "exactly": {"deviceClassName": "gpu", "count": 4, "allocationMode": "ExactCount",
                "selectors": [{"cel": {"expression": "big"}}]}},
            {"name": "all", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
            {"name": "watch", "exactly": {"deviceClassName": "gpu", "adminAccess": true}},
            {"name": "either", "firstAvailable": [
                {"name": "a", "deviceClassName": "gpu", "count": 2}, {"name": "b", "deviceClassName": "mig"},
            ]},
        ]}}),
        &Value::Null,
    );
    let read: Vec<Vec<(&str, Option<u64>)>> = claim
        .requests
        .iter()
        .map(|request| {
            let asks = request.0.iter();
            asks.map(|ask| (ask.kind.class.as_str(), ask.count)).collect()
        })
        .collect();
    let expected: [&[_]; 4] = [
        &[("gpu", Some(1))],
        &[("gpu", Some(4))],
        &[("nic", None)],
        &[("gpu", Some(2)), ("mig", Some(1))],
    ];
    assert_eq!(read, expected);
    assert_eq!(claim.requests[1].0[0].kind.selectors[..], ["big"]);
    assert_eq!(claim.allocation, None);
}

#[test]
fn allocations_of_claims_are_read() {
    let named =
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]});
    let read = |selector: &Value| {
        let devices = json!({"results": [{"request": "either/b", "driver": "d", "pool": "p", "device": "x"}]});
        let status = json!({"allocation": {"devices": devices, "nodeSelector": selector}});
        let requests = json!([{"name": "either", "firstAvailable": [
            {"name": "a", "deviceClassName": "gpu"}, {"name": "b", "deviceClassName": "gpu"},
        ]}]);
        read_claim(&json!({"devices": {"requests": requests}}), &status)
    };
    let node = |selector: &Value| read(selector).allocation.unwrap().node;
    assert_eq!(node(&named).as_deref(), Some("n1"));
    assert_eq!(node(&Value::Null), None);
    let held: Vec<u64> = read(&named).requests[0].0.iter().map(|ask| ask.held).collect();
    assert_eq!(held, [0, 1]);
}

#[test]
fn an_allocation_is_on_the_node_of_its_selector_and_of_its_pools() {
    let named =
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]});
    let is_on_node = |pool: &str, selector: &Value| {
        let devices = json!({"results": [{"request": "r", "driver": "d", "pool": pool, "device": "x"}]});
        let status = json!({"allocation": {"devices": devices, "nodeSelector": selector}});
        read_claim(&Value::Null, &status).allocation.unwrap().is_on_node("n1")
    };
    assert!(is_on_node("any", &named));
    assert!(is_on_node("n1", &Value::Null) && is_on_node("n1/imex", &Value::Null));
    assert!(!is_on_node("n10", &Value::Null) && !is_on_node("network", &Value::Null));
}

/// The memory of what is kept of a claim, without what allocators add.
fn sum_bytes(claim: &DeviceClaim) -> usize {
    let asks = claim.requests.iter().flat_map(|request| &request.0);
    let of_asks = asks.map(|ask| {
        let selectors = ask.kind.selectors.iter();
        let selectors: usize = selectors.map(|text| size_of::<String>() + text.len()).sum();
        size_of::<DeviceRequest>() + ask.kind.class.len() + selectors
    });
    let pools = claim.allocation.iter().flat_map(|allocation| &allocation.pools);
    let of_pools: usize = pools.map(|pool| size_of::<String>() + pool.len()).sum();
    of_asks.sum::<usize>() + claim.requests.len() * size_of::<RequestAlternatives>() + of_pools
}

#[test]
fn little_is_kept_of_the_largest_claim() {
    for (selectors, expression) in [(28, "true".to_owned()), (1, "x".repeat(500)), (32, String::new())] {
        let selectors = vec![json!({"cel": {"expression": expression}}); selectors];
        let alternatives: Vec<Value> = (0..8)
            .map(|number| json!({"name": format!("a{number}"), "deviceClassName": "gpu.example.com", "selectors": selectors}))
            .collect();
        let requests: Vec<Value> = (0..32)
            .map(|number| json!({"name": format!("r{number}"), "firstAvailable": alternatives}))
            .collect();
        let spec =
            json!({"devices": {"requests": requests, "config": [{"opaque": {"parameters": {"a": vec![0; 1000]}}}]}});
        let results = vec![json!({"request": "r0/a0", "driver": "d", "pool": "p", "device": "x"}); 1000];
        let claim = read_claim(&spec, &json!({"allocation": {"devices": {"results": results}}}));
        assert_eq!(claim.requests.len(), 8, "64 alternatives");
        assert_eq!(claim.requests[0].0[0].held, 32);
        let bytes = sum_bytes(&claim);
        assert!(bytes <= 16 << 10, "{bytes}");
    }
}
