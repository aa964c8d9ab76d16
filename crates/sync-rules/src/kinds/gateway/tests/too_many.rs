//! Routes with more entries than the Gateway API allows. A tenant with a definition of its own can write them.

use super::{cache, host_status, name, route, rules, sync_status};
use crate::model::{DeniedField, KindId, TenantWrite, json};
use jiff::Timestamp;
use serde_json::{Value, json};

const KINDS: [KindId; 3] = [KindId::HttpRoute, KindId::GrpcRoute, KindId::TlsRoute];

/// The denied fields of a route, and the entries of its status in the tenant.
fn deny(id: KindId, route: &Value) -> (Vec<DeniedField>, Vec<Value>) {
    let (cache, rules) = (cache(), rules(id));
    let denied = rules.translate(&cache, &name(), route).unwrap_err();
    let status = rules.denied_status(&cache, &name(), route, &denied, Timestamp::UNIX_EPOCH);
    let parents = json::items(&status.unwrap(), &["parents"]).to_vec();
    (denied, parents)
}

#[test]
fn a_route_with_too_many_parents_is_denied_once_and_its_status_stays_small() {
    for (parent, reported) in [
        (json!({"name": "public"}), 32),
        (json!({"name": "own"}), 0),
        (json!({"name": "unknown"}), 0),
        (json!(0), 0),
    ] {
        let mut route = route();
        route["spec"]["parentRefs"] = vec![parent.clone(); 70_000].into();
        for id in KINDS {
            let (denied, parents) = deny(id, &route);
            let why = "70000 entries; allowed: at most 32";
            assert_eq!(denied, [DeniedField::new("spec.parentRefs", why)], "{parent}");
            assert_eq!(parents.len(), reported, "{parent}");
            assert!(json::to_text(&parents.into()).len() < 100_000, "{parent}");
        }
    }
}

#[test]
fn of_other_lists_that_are_too_long_no_entry_is_read() {
    const COUNT: usize = 100_000;
    for (list, entry) in [
        ("/hostnames", json!("example.org")),
        ("/rules", json!({"new": true})),
        ("/rules/0/matches", json!({"path": {"value": "/\n"}})),
        ("/rules/0/matches/0/headers", json!({"name": "\n"})),
        ("/rules/0/filters", json!({"new": true})),
        ("/rules/0/filters/0/requestHeaderModifier/set", json!({"name": "\n"})),
        ("/rules/0/filters/0/cors/allowHeaders", json!("\n")),
        ("/rules/0/backendRefs", json!({"kind": "Bucket"})),
        ("/rules/0/backendRefs/1/filters", json!({"new": true})),
        ("/rules/0/retry/codes", json!(200)),
    ] {
        let mut route = route();
        let rule = &mut route["spec"]["rules"][0];
        rule["matches"][0]["headers"] = json!([]);
        rule["filters"][0]["cors"] = json!({"allowHeaders": []});
        rule["retry"] = json!({"codes": []});
        *route["spec"].pointer_mut(list).unwrap() = vec![entry; COUNT].into();
        for id in KINDS {
            let (denied, _) = deny(id, &route);
            assert_eq!(denied.len(), 1, "{list}");
            assert!(rules(id).references(&cache(), &name(), &route).is_empty(), "{list}");
            assert!(denied[0].why.starts_with("100000 entries"), "{}", denied[0]);
        }
    }
}

/// An entry of a controller in the tenant about one of its parents.
fn entry(controller: &str, parent: &str) -> Value {
    json!({"controllerName": controller, "parentRef": {"name": parent}, "conditions": []})
}

fn synced_parents(route: &Value) -> Vec<Value> {
    let [TenantWrite::Status(status)] = &sync_status(route, &host_status("ResolvedRefs", "True"))[..] else {
        panic!()
    };
    json::items(status, &["parents"]).to_vec()
}

#[test]
fn what_the_tenants_controllers_wrote_is_kept_before_what_is_new() {
    let mut route = route();
    let public = route["spec"]["parentRefs"][0].clone();
    let mut references = vec![public; 20_000];
    references[0] = json!({"name": "own"});
    route["spec"]["parentRefs"] = references.into();
    let mine = [entry("mine", "own"), entry("theirs", "own")];
    let mut before = mine.to_vec();
    before.resize(20_000, entry("mine", "before"));
    route["status"] = json!({ "parents": before });
    for id in KINDS {
        let (_, parents) = deny(id, &route);
        assert_eq!(parents.len(), 32);
        assert_eq!(parents[..2], mine, "30 are the syncer's");
        let is_new = |entry: &Value| entry["controllerName"] == "berth.dev/syncer";
        assert!(parents[2..].iter().all(is_new));
    }
    // One that was on the host before it got too many parents.
    let parents = synced_parents(&route);
    assert_eq!(parents.len(), 32);
    assert_eq!(parents[..2], mine);
    assert!(parents[2..].iter().all(|entry| entry["parentRef"]["name"] == "public"));
}

#[test]
fn entries_for_parents_that_a_route_had_before_leave_room_for_new_ones() {
    let mut route = route();
    let mut before: Vec<Value> = (0..31).map(|number| entry("mine", &number.to_string())).collect();
    before.push(entry("mine", "own"));
    route["status"] = json!({ "parents": before });
    let parents = synced_parents(&route);
    assert_eq!(parents.len(), 32);
    assert_eq!(parents[..30], before[..30], "in their order");
    assert_eq!(parents[30], entry("mine", "own"));
    assert_eq!(parents[31]["controllerName"], "example.com/gateway");
    // What was written once is not written in another order.
    route["status"] = json!({ "parents": parents });
    assert_eq!(synced_parents(&route), parents);
}

#[test]
fn a_name_without_end_is_not_in_each_entry() {
    let mut route = route();
    let long = "x".repeat(1 << 20);
    route["spec"]["rules"][0]["backendRefs"][0] = json!({"name": long, "namespace": "lab"});
    let [TenantWrite::Status(status)] = &sync_status(&route, &host_status("BackendNotFound", "False"))[..] else {
        panic!()
    };
    let text = json::to_text(status);
    assert!(
        text.contains("RefNotPermitted") && text.len() < 10_000,
        "{}",
        text.len()
    );
}

#[test]
fn where_a_route_leads_whose_lists_are_too_long_is_not_looked_at() {
    let mut route = route();
    route["spec"]["rules"][0]["backendRefs"] = vec![json!({"name": "any", "namespace": "elsewhere"}); 17].into();
    let [TenantWrite::Status(status)] = &sync_status(&route, &host_status("BackendNotFound", "False"))[..] else {
        panic!()
    };
    assert!(!json::to_text(status).contains("RefNotPermitted"));
}
