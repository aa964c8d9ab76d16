//! Who created a pod, on the host pod: control counts what each user has.
//!
//! Both are set when the host pod is created, and never changed by a syncer. They are not among the keys that came from the tenant, so
//! updates leave them alone.

use crate::{
    model::{json, tenant::UserRules},
    translation::conditions::{condition, put, with_time},
};
use berth_api::{UNKNOWN_USER, conditions::USER_LIMIT_EXCEEDED, labels};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Reason of the Event and of the condition of pods that wait, as control has them.
pub const LIMIT_EXCEEDED: &str = "UserLimitExceeded";
/// Prefix of the names of ServiceAccounts as users.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user as whom a pod waits. ServiceAccounts of a namespace wait together: who may create pods there may run them in the name of each of
/// them, and perhaps make more. Those of other namespaces, as of operators, are out of that user's reach.
pub fn waits_as(rules: UserRules, pod: &Value) -> &str {
    let created_by = json::text(pod, &["metadata", "annotations", labels::CREATED_BY]);
    match created_by.filter(|user| rules.are_stamped && !user.is_empty()) {
        None => UNKNOWN_USER,
        Some(user) => match user.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.rfind(':')) {
            Some(end) => &user[..SERVICE_ACCOUNT.len() + end],
            None => user,
        },
    }
}

/// Whether a host pod waits until control has counted it.
pub fn is_gated(host: &Value) -> bool {
    let gates = json::items(host, &["spec", "schedulingGates"]);
    gates.iter().any(|gate| gate["name"] == labels::USER_QUOTA_GATE)
}

/// Whether a host pod waits because of a limit, as control says.
pub fn exceeds_limit(host: &Value) -> bool {
    let exceeded = condition(&host["status"], USER_LIMIT_EXCEEDED);
    exceeded.is_some_and(|condition| condition["status"] == "True")
}

/// Why a pod waits whose user has `most` others on the host that wait because of a limit.
pub fn describe_wait(user: &str, most: u32) -> String {
    format!(
        "{most} other pods of user {user} wait because of a limit of the user, and this one waits until one of them has started or is deleted. \
         Delete what is no longer needed, or ask the platform team to raise spec.userQuotas of the Project"
    )
}

/// The status of a pod that is not on the host because of others of its user: as before, with the condition that those have.
pub fn waiting_status(pod: &Value, message: &str, now: Timestamp) -> Value {
    let before = &pod["status"];
    let mut status = before.clone();
    let exceeded = json!({"type": USER_LIMIT_EXCEEDED, "status": "True", "reason": LIMIT_EXCEEDED, "message": message});
    put(&mut status, with_time(before, exceeded, now));
    status
}

/// Adds to a new host pod who created the tenant's pod, and the gate that it waits behind until control has counted it.
pub(super) fn stamp(rules: UserRules, pod: &Value, desired: &mut Value) {
    let created_by = json::text(pod, &["metadata", "annotations", labels::CREATED_BY]);
    if let Some(user) = created_by.filter(|_| rules.are_stamped) {
        desired["metadata"]["annotations"][labels::CREATED_BY] = user.into();
    }
    if rules.are_limited {
        desired["spec"]["schedulingGates"] = json!([{"name": labels::USER_QUOTA_GATE}]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::update;

    fn created(rules: UserRules) -> Value {
        let pod = json!({"metadata": {"annotations": {(labels::CREATED_BY): "alice"}}});
        let mut desired = json!({"metadata": {"annotations": {}}, "spec": {}});
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = update::applied_keys(&desired).into();
        stamp(rules, &pod, &mut desired);
        desired
    }

    const LIMITED: UserRules = UserRules {
        are_stamped: true,
        are_limited: true,
    };

    #[test]
    fn the_user_is_believed_only_if_the_api_server_stamps_it() {
        let user = |rules: UserRules| created(rules)["metadata"]["annotations"][labels::CREATED_BY].clone();
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
        let gates = |rules: UserRules| created(rules)["spec"]["schedulingGates"].clone();
        assert_eq!(gates(UserRules::default()), Value::Null);
        assert_eq!(gates(LIMITED), json!([{"name": labels::USER_QUOTA_GATE}]));
    }

    #[test]
    fn accounts_of_a_namespace_wait_together() {
        let waits_as = |rules: UserRules, user: &str| {
            let pod = json!({"metadata": {"annotations": {(labels::CREATED_BY): user}}});
            super::waits_as(rules, &pod).to_owned()
        };
        for (user, expected) in [
            ("alice@example.com", "alice@example.com"),
            ("system:serviceaccount:ci:runner", "system:serviceaccount:ci"),
            ("system:serviceaccount:ci:other", "system:serviceaccount:ci"),
            ("system:serviceaccount:odd", "system:serviceaccount:odd"),
            ("", UNKNOWN_USER),
        ] {
            assert_eq!(waits_as(LIMITED, user), expected);
        }
        let unstamped = UserRules {
            are_stamped: false,
            ..LIMITED
        };
        assert_eq!(waits_as(unstamped, "alice"), UNKNOWN_USER, "anybody could say so");
    }

    #[test]
    fn a_pod_that_waits_in_the_tenant_has_the_condition_of_those_on_the_host() {
        let pod = json!({"status": {"phase": "Pending"}});
        let message = describe_wait("alice", 2);
        let status = waiting_status(&pod, &message, Timestamp::UNIX_EPOCH);
        assert!(exceeds_limit(&json!({"status": status})));
        assert_eq!(status["phase"], "Pending");
        let again = waiting_status(&json!({"status": status}), &message, Timestamp::now());
        assert_eq!(again, status, "it is said once");
        assert!(is_gated(&created(LIMITED)) && !is_gated(&created(UserRules::default())));
    }

    #[test]
    fn updates_leave_user_and_gate_alone() {
        let live = created(LIMITED);
        let mut desired = json!({"metadata": {"annotations": {}}, "spec": {}});
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = update::applied_keys(&desired).into();
        let patches = update::update(&desired, &live);
        let [crate::model::HostWrite::Merge(patch)] = patches.as_slice() else {
            panic!("one patch")
        };
        assert_eq!(patch["spec"].get("schedulingGates"), None);
        assert_eq!(patch["metadata"]["annotations"].get(labels::CREATED_BY), None);
        assert!(!update::has_gates_of_tenant(&live), "control takes it off");
        let mut plain = live.clone();
        plain["spec"] = json!({});
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
