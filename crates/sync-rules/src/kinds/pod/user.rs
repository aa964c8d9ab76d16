//! Who created a pod, on the host pod: control counts what each user has.
//!
//! Both are set when the host pod is created, and never changed by a syncer. They are not among the keys that came from the tenant, so
//! updates leave them alone.

use crate::model::{json, tenant::UserRules};
use berth_api::labels;
use serde_json::{Value, json};

/// Adds to a new host pod who created the tenant's pod, and the gate that it waits behind until control has counted it.
pub(super) fn stamp(rules: UserRules, pod: &Value, desired: &mut Value) {
    let created_by = json::text(pod, &["metadata", "annotations", labels::CREATED_BY]);
    if let Some(user) = created_by.filter(|_| rules.are_stamped) {
        desired["metadata"]["annotations"][labels::CREATED_BY] = user.into();
    }
    if rules.are_limited {
        let mut gates = json::items(desired, &["spec", "schedulingGates"]).to_vec();
        gates.retain(|gate| gate["name"] != labels::USER_QUOTA_GATE);
        gates.push(json!({"name": labels::USER_QUOTA_GATE}));
        desired["spec"]["schedulingGates"] = gates.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::update;

    fn created(rules: UserRules, gates: &[&str]) -> Value {
        let gates: Vec<Value> = gates.iter().map(|name| json!({"name": name})).collect();
        let pod = json!({"metadata": {"annotations": {(labels::CREATED_BY): "alice"}}});
        let mut desired = json!({"metadata": {"annotations": {}}, "spec": {"schedulingGates": gates}});
        desired["metadata"]["annotations"][update::APPLIED_KEYS] = update::applied_keys(&desired).into();
        stamp(rules, &pod, &mut desired);
        desired
    }

    const LIMITED: UserRules = UserRules {
        are_stamped: true,
        are_limited: true,
    };

    #[test]
    fn the_user_is_believed_only_if_the_api_server_stamps_it() {
        let user = |rules: UserRules| created(rules, &[])["metadata"]["annotations"][labels::CREATED_BY].clone();
        assert_eq!(user(LIMITED), "alice");
        assert_eq!(
            user(UserRules {
                are_stamped: false,
                ..LIMITED
            }),
            Value::Null
        );
    }

    #[test]
    fn only_pods_of_limited_users_get_a_gate() {
        let gates = |rules: UserRules, own: &[&str]| created(rules, own)["spec"]["schedulingGates"].clone();
        assert_eq!(gates(UserRules::default(), &["own"]), json!([{"name": "own"}]));
        let both = json!([{"name": "own"}, {"name": labels::USER_QUOTA_GATE}]);
        assert_eq!(gates(LIMITED, &["own"]), both);
        assert_eq!(
            gates(LIMITED, &["own", labels::USER_QUOTA_GATE]),
            both,
            "a tenant's gate of that name is one"
        );
    }

    #[test]
    fn updates_leave_user_and_gate_alone() {
        let live = created(LIMITED, &["own"]);
        let mut desired = json!({"metadata": {"annotations": {}}, "spec": {}});
        desired["metadata"]["annotations"][update::APPLIED_KEYS] = update::applied_keys(&desired).into();
        let patches = update::update(&desired, &live);
        let [crate::model::HostWrite::Merge(patch)] = patches.as_slice() else {
            panic!("one patch")
        };
        assert_eq!(
            patch["spec"]["schedulingGates"],
            json!([{"name": labels::USER_QUOTA_GATE}])
        );
        assert_eq!(patch["metadata"]["annotations"].get(labels::CREATED_BY), None);
        let host = json!({"metadata": live["metadata"], "spec": live["spec"]});
        assert!(
            !update::opens_gates(&desired, &host),
            "the scheduler does not try it yet"
        );
        let mut plain = live.clone();
        plain["spec"]["schedulingGates"] = json!([{"name": "own"}]);
        plain["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(labels::CREATED_BY);
        assert_eq!(
            update::mutable_part(&live),
            update::mutable_part(&plain),
            "they are no reason for an update"
        );
    }
}
