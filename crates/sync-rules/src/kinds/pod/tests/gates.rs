//! Conditions of readiness gates, which a tenant decides and the host's kubelet reads.

use super::*;

const GATE: &str = "example.com/gate";

/// What is written to the host for this condition of the tenant, if the host has `present` of it.
fn written(condition: &Value, present: &Value) -> Option<Value> {
    let with = |condition: &Value| {
        let mut condition = condition.clone();
        condition["type"] = GATE.into();
        json!({"spec": {"readinessGates": [{"conditionType": GATE}]}, "status": {"conditions": [condition]}})
    };
    Pods.host_status(&with(condition), &with(present))
}

#[test]
fn no_text_of_a_tenant_fills_the_status_on_the_host() {
    let long = "a".repeat(1 << 20);
    let only = |status: &str| Some(json!({"conditions": [{"type": GATE, "status": status}]}));
    let nothing = json!({});
    let with_texts = json!({"status": "True", "reason": long, "message": long});
    assert_eq!(written(&with_texts, &nothing), only("True"));
    assert_eq!(written(&json!({ "status": long }), &nothing), only("Unknown"));
    assert_eq!(written(&json!({"status": "False"}), &nothing), only("False"));
    // One that an earlier release has written.
    assert_eq!(
        written(&json!({ "status": long }), &json!({ "status": long })),
        only("Unknown")
    );
}

#[test]
fn other_texts_are_no_reason_for_a_write() {
    let present = json!({"status": "True", "reason": "Of", "message": "an earlier release"});
    let condition = |message: &str| json!({"status": "True", "reason": "Open", "message": message});
    assert_eq!(written(&condition("one"), &present), None);
    assert_eq!(written(&condition("two"), &json!({"status": "True"})), None);
}
