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

#[test]
fn what_the_tenants_controllers_wrote_is_kept_as_far_as_there_is_room() {
    let mut route = route();
    let public = route["spec"]["parentRefs"][0].clone();
    let mut references = vec![public; 20_000];
    references[0] = json!({"name": "own"});
    route["spec"]["parentRefs"] = references.into();
    let mine = json!({"controllerName": "mine", "parentRef": {"name": "own"}, "conditions": []});
    route["status"] = json!({"parents": vec![mine.clone(); 20_000]});
    for id in KINDS {
        let (_, parents) = deny(id, &route);
        assert_eq!(parents.len(), 32);
        assert_eq!(
            parents.iter().filter(|entry| **entry == mine).count(),
            1,
            "31 are the syncer's"
        );
    }
    // One that was on the host before it got too many parents.
    let [TenantWrite::Status(status)] = &sync_status(&route, &host_status("ResolvedRefs", "True"))[..] else {
        panic!()
    };
    let parents = json::items(status, &["parents"]);
    assert_eq!(parents.len(), 32);
    assert_eq!(parents.iter().filter(|entry| **entry == mine).count(), 1);
}
