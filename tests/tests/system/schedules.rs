//! SchedulePolicies on a real API server: what its schema rejects, what control says about the rest, and which pods of tenants a stop ends.
//! What they do to nodes is tested with a fleet, where the test sets the clock.

use berth_api::{SchedulePolicy, ScheduleState, TenantSchedule, conditions};
use berth_tests::{
    files::example,
    objects::{apply, phase},
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
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

/// A target narrowed to workloads.
fn narrowed(workloads: &Value) -> Value {
    json!({"kind": "TenantClass", "name": "no-such-class", "workloads": workloads})
}

pub(crate) async fn schemas_reject_invalid_schedules(host: Arc<TestCluster>) {
    let class = json!({"kind": "TenantClass", "name": "no-such-class"});
    let night = window("0 22 * * *", "8h");
    let requirement = |operator: &str, values: Value| {
        let requirement = json!({"key": "tier", "operator": operator, "values": values});
        narrowed(&json!({"selector": {"matchExpressions": [requirement]}}))
    };
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
            spec("UTC", &narrowed(&json!({})), &night),
            "need namespaces, a selector, or both",
        ),
        (
            spec("UTC", &narrowed(&json!({"namespaces": []})), &night),
            "need namespaces, a selector, or both",
        ),
        (
            spec("UTC", &narrowed(&json!({"namespaces": ["Jobs"]})), &night),
            "workloads.namespaces",
        ),
        (spec("UTC", &requirement("In", json!([])), &night), "need values"),
        (spec("UTC", &requirement("Exists", json!(["a"])), &night), "need values"),
        (
            spec("UTC", &requirement("Like", json!(["a"])), &night),
            "Unsupported value",
        ),
        (
            json!({"timeZone": "UTC", "targets": [class], "windows": [night], "evictionTimeout": "soon"}),
            "evictionTimeout",
        ),
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

/// A pod with a label, for a node.
fn pod_on(name: &str, tier: &str, node: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"tier": tier}}, "spec": {
        "containers": [{"name": "main", "image": "registry.example.com/any"}], "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
    }}))
    .unwrap()
}

fn pods_of(tenant: &Tenant) -> Api<Pod> {
    Api::namespaced(tenant.client.clone(), "default")
}

async fn until_it_runs(tenant: &Tenant, name: &str) {
    until_true(&format!("pod {name} runs"), SOON, async || {
        let pod = pods_of(tenant).get_opt(name).await.unwrap();
        pod.is_some_and(|pod| phase(&pod) == "Running")
    })
    .await;
}

/// Waits until a pod waits for a schedule.
async fn until_it_waits(tenant: &Tenant, name: &str) {
    until(&format!("pod {name} waits"), SOON, async || {
        let status = pods_of(tenant)
            .get(name)
            .await
            .map_err(|error| error.to_string())?
            .status;
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        let waits = conditions.iter().any(|condition| {
            condition.type_ == "berth.dev/Synced" && condition.reason.as_deref() == Some("OutsideSchedule")
        });
        if waits { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
}

/// A policy that stops one tenant as a whole, and of another one only its batch jobs. Both run on `node`, which is shared.
pub(crate) async fn a_stop_ends_pods_on_shared_nodes(
    host: &TestCluster,
    stopped: &Tenant,
    narrowed: &Tenant,
    node: &str,
) {
    let create = async |tenant: &Tenant, name: &str, tier: &str| {
        let pod = pod_on(name, tier, node);
        pods_of(tenant).create(&PostParams::default(), &pod).await.unwrap();
    };
    create(stopped, "any", "web").await;
    create(narrowed, "batch", "batch").await;
    create(narrowed, "web", "web").await;
    until_it_runs(stopped, "any").await;
    until_it_runs(narrowed, "batch").await;
    until_it_runs(narrowed, "web").await;

    let target = |tenant: &Tenant| json!({"kind": "TenantCluster", "namespace": tenant.namespace, "name": tenant.name});
    let mut batch = target(narrowed);
    batch["workloads"] = json!({"selector": {"matchLabels": {"tier": "batch"}}});
    let spec = json!({"timeZone": "UTC", "targets": [target(stopped), batch], "windows": [window("0 0 * * *", "24h")]});
    apply(&host.client, "", &policy("side-by-side", &spec)).await.unwrap();
    for (tenant, name) in [(stopped, "any"), (narrowed, "batch")] {
        until_true(&format!("pod {name} is evicted"), SOON, async || {
            pods_of(tenant).get_opt(name).await.unwrap().is_none()
        })
        .await;
        create(tenant, name, name).await;
    }
    let published: Api<TenantSchedule> = Api::namespaced(host.client.clone(), &narrowed.id.control_plane_namespace());
    let schedule = published.list(&ListParams::default()).await.unwrap().items.remove(0);
    assert!(schedule.spec.tenant.is_empty(), "{schedule:?}");
    assert_eq!(schedule.spec.workloads[0].policy_name, "side-by-side");
    until_it_waits(stopped, "any").await;
    until_it_waits(narrowed, "batch").await;
    until_it_runs(narrowed, "web").await;

    let policies: Api<SchedulePolicy> = Api::all(host.client.clone());
    policies.delete("side-by-side", &DeleteParams::default()).await.unwrap();
    until_it_runs(stopped, "any").await;
    until_it_runs(narrowed, "batch").await;
    until_true("nothing is published any more", SOON, async || {
        published.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await;
    let now = DeleteParams::default().grace_period(0);
    for (tenant, name) in [(stopped, "any"), (narrowed, "batch"), (narrowed, "web")] {
        pods_of(tenant).delete(name, &now).await.unwrap();
    }
    for tenant in [stopped, narrowed] {
        let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        until_true("nothing is left on the host", SOON, async || {
            pods.list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
    }
}
