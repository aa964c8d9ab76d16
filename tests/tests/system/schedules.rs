//! SchedulePolicies on a real API server: what its schema rejects, and what control says about the rest. What they do to tenants is
//! tested with the nodes of a fleet, where the test sets the clock.

use berth_api::{SchedulePolicy, ScheduleState, conditions};
use berth_tests::{files::example, objects::apply, test_cluster::TestCluster, wait::SOON, wait::until};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "SchedulePolicy", "metadata": {"name": name}, "spec": spec})
}

fn spec(zone: &str, target: &Value, window: &Value) -> Value {
    json!({"timeZone": zone, "targets": [target], "windows": [window]})
}

fn window(schedule: &str, duration: &str) -> Value {
    json!({"name": "night", "action": "Stop", "schedule": schedule, "duration": duration})
}

pub(crate) async fn schemas_reject_invalid_schedules(host: Arc<TestCluster>) {
    let class = json!({"kind": "TenantClass", "name": "no-such-class"});
    let night = window("0 22 * * *", "8h");
    for (spec, expected) in [
        (
            spec("UTC", &json!({"kind": "TenantCluster", "name": "a"}), &night),
            "needs a namespace",
        ),
        (
            spec(
                "UTC",
                &json!({"kind": "TenantClass", "name": "a", "namespace": "b"}),
                &night,
            ),
            "no other kind has one",
        ),
        (
            spec("UTC", &json!({"kind": "Namespace", "name": "a"}), &night),
            "Unsupported value",
        ),
        (spec("../etc", &class, &night), "spec.timeZone"),
        (spec("UTC", &class, &window("0 22 * *", "8h")), "schedule"),
        (spec("UTC", &class, &window("@daily", "8h")), "schedule"),
        (spec("UTC", &class, &window("0 22 * * *", "tomorrow")), "duration"),
        (json!({"timeZone": "UTC", "targets": [class], "windows": []}), "windows"),
        (json!({"timeZone": "UTC", "targets": [], "windows": [night]}), "targets"),
        (
            json!({"timeZone": "UTC", "targets": [class], "windows": [night, night]}),
            "uplicate",
        ),
    ] {
        let error = apply(&host.client, "", &policy("rejected", &spec))
            .await
            .expect_err(&spec.to_string())
            .to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
}

pub(crate) async fn examples_and_their_next_changes(host: Arc<TestCluster>) {
    let policies: Api<SchedulePolicy> = Api::all(host.client.clone());
    let params = PatchParams::apply("berth-tests");
    for policy in example::<SchedulePolicy>("schedules/office-hours.yaml") {
        let name = policy.name_any();
        let stored = policies.patch(&name, &params, &Patch::Apply(&policy)).await.unwrap();
        assert_eq!(stored.spec, policy.spec, "nothing was pruned or defaulted");
        let status = until(&format!("the status of {name} is there"), SOON, async || {
            let status = policies.get(&name).await.unwrap().status;
            status.filter(|status| !status.conditions.is_empty()).ok_or("no status")
        })
        .await;
        assert_eq!(status.next_transitions.len(), 3, "{status:?}");
        let reason = status.conditions[0].reason.as_str();
        // The targets of the examples do not exist here.
        assert_eq!(reason, "TargetNotFound", "{status:?}");
        policies.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) async fn a_zone_that_does_not_exist_is_reported(host: Arc<TestCluster>) {
    let policies: Api<SchedulePolicy> = Api::all(host.client.clone());
    let class = json!({"kind": "TenantClass", "name": "no-such-class"});
    let ready = async |generation: i64| {
        until("the newest spec was read", SOON, async || {
            let status = policies.get("zones").await.unwrap().status.unwrap_or_default();
            match status.observed_generation {
                Some(observed) if observed >= generation => Ok(status),
                observed => Err(format!("{observed:?}")),
            }
        })
        .await
    };
    apply(
        &host.client,
        "",
        &policy("zones", &spec("Europe/Bonn", &class, &window("0 0 * * *", "24h"))),
    )
    .await
    .unwrap();
    let status = ready(1).await;
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == conditions::READY);
    let condition = condition.unwrap();
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "InvalidSpec")
    );
    assert!(
        condition.message.contains("spec.timeZone: \"Europe/Bonn\""),
        "{}",
        condition.message
    );
    assert_eq!(status.state, None);
    apply(
        &host.client,
        "",
        &policy("zones", &spec("Europe/Berlin", &class, &window("0 0 * * *", "24h"))),
    )
    .await
    .unwrap();
    let status = ready(2).await;
    assert_eq!(
        (status.state, status.window.as_deref()),
        (Some(ScheduleState::Stopped), Some("night"))
    );
    policies.delete("zones", &DeleteParams::default()).await.unwrap();
}
