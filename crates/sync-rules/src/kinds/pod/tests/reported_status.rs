//! The status that the tenant sees: the host's, or one of a pod that the host has lost.

use super::*;

#[test]
fn status_comes_back_with_the_tenants_names_and_generation() {
    let cache = cache();
    let host_name = resource::host_name(KindId::Pod, &name());
    let host_pod = json!({"metadata": {"name": host_name, "resourceVersion": "9"}, "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running", "podIP": "10.1.0.7", "hostIP": "192.168.0.1", "qosClass": "Burstable", "observedGeneration": 4,
            "conditions": [{"type": "PodScheduled", "status": "True", "observedGeneration": 4}, {"type": "example.com/gate", "status": "False"}],
            "containerStatuses": [{"name": "main", "ready": true, "state": {"waiting": {"reason": "X", "message": format!("pod {host_name} waits")}}}]}});
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host_pod));
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}});
    cache
        .stores
        .tenant(KindId::Node)
        .written(Name::new("", "gpu-1"), Stored::new(&node));
    let mut tenant = pod();
    tenant["spec"]["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    tenant["status"]["conditions"] = json!([{"type": "example.com/gate", "status": "True"}]);
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let denied = [DeniedField::new("spec.x", "no")];
    let observation = Observation {
        tenant: &tenant,
        host: &host_pod,
        in_sync: true,
        denied: &denied,
        now,
    };
    assert_eq!(
        Pods.sync_status(&cache, &name(), &observation),
        [TenantWrite::Bind { node: "gpu-1".into() }]
    );
    let mut tenant = tenant.clone();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    let observation = Observation {
        tenant: &tenant,
        ..observation
    };
    let writes = Pods.sync_status(&cache, &name(), &observation);
    let [TenantWrite::Status(status)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    insta::assert_yaml_snapshot!(status);
    let gates = Pods.host_status(&tenant, &host_pod).unwrap();
    assert_eq!(
        gates,
        json!({"conditions": [{"type": "example.com/gate", "status": "True"}]})
    );
}

#[test]
fn a_disruption_in_the_tenant_stays_while_the_host_pod_ends() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let disruption =
        |status: &str, reason: &str| json!({"type": "DisruptionTarget", "status": status, "reason": reason});
    let reason_after = |tenant_conditions: Value, host_conditions: Value| {
        let mut tenant = pod();
        tenant["spec"]["nodeName"] = "gpu-1".into();
        tenant["status"] = json!({"phase": "Running", "conditions": tenant_conditions});
        let host =
            json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "conditions": host_conditions}});
        let observation = Observation {
            tenant: &tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now,
        };
        let writes = Pods.sync_status(&cache(), &name(), &observation);
        let [TenantWrite::Status(status)] = &writes[..] else {
            panic!("{writes:?}")
        };
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut found = conditions.into_iter();
        found
            .find(|condition| condition["type"] == "DisruptionTarget")
            .map(|condition| (condition["status"].clone(), condition["reason"].clone()))
    };
    let known = |status: &str, reason: &str| Some((json!(status), json!(reason)));
    let stopped = || json!([disruption("True", "OutsideSchedule")]);
    let ready = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(reason_after(stopped(), ready.clone()), known("True", "OutsideSchedule"));
    let evicted = json!([disruption("True", "EvictionByEvictionAPI")]);
    assert_eq!(
        reason_after(stopped(), evicted.clone()),
        known("True", "OutsideSchedule")
    );
    assert_eq!(
        reason_after(ready.clone(), evicted),
        known("True", "EvictionByEvictionAPI")
    );
    // The host withdraws a preemption that did not happen.
    assert_eq!(
        reason_after(stopped(), json!([disruption("False", "")])),
        known("False", "")
    );
    assert_eq!(reason_after(json!([disruption("False", "")]), ready), None);
}

#[test]
fn ephemeral_containers_of_the_platform_are_not_shown() {
    let cache = cache();
    let mut tenant = pod();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    let shown = |tenant: &Value, statuses: Value| {
        let host = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "ephemeralContainerStatuses": statuses}});
        let observation = Observation {
            tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        match Pods.sync_status(&cache, &name(), &observation).as_slice() {
            [TenantWrite::Status(status)] => status.get("ephemeralContainerStatuses").cloned(),
            other => panic!("{other:?}"),
        }
    };
    let [own, platforms] = ["debug", "debugger-x7k2p"].map(|name| json!({"name": name, "state": {"running": {}}}));
    assert_eq!(shown(&tenant, json!([platforms])), None);
    tenant["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    assert_eq!(shown(&tenant, json!([platforms, own])), Some(json!([own])));
}

#[test]
fn a_lost_pod_fails_and_keeps_the_reason_the_host_gave() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut tenant = pod();
    tenant["status"] = json!({"phase": "Running", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}]});
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("PreemptionByScheduler"))
    );
    tenant["status"] = json!({
        "phase": "Running",
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2027-01-15T07:00:00Z"},
            {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "2027-01-15T07:00:00Z"},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2027-01-15T07:00:00Z"},
        ],
        "initContainerStatuses": [
            {"name": "first", "ready": true, "started": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "sidecar", "ready": true, "started": true, "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}}},
        ],
        "containerStatuses": [{
            "name": "main", "ready": true, "started": true, "containerID": "containerd://1", "restartCount": 2,
            "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}},
        }],
    });
    insta::assert_yaml_snapshot!(Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap());
    let tombstone = json!({"status": {"phase": "Succeeded"}});
    assert_eq!(
        Pods.lost_status(&cache(), &name(), &tenant, Some(&tombstone), now)
            .unwrap()["phase"],
        "Succeeded"
    );
    tenant["status"] = json!({"phase": "Succeeded"});
    assert_eq!(
        Pods.lost_status(&cache(), &name(), &tenant, None, now),
        None,
        "what finished stays finished"
    );
}

#[test]
fn a_deleted_pod_that_finalizers_keep_ends() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut tenant = pod();
    tenant["metadata"]["deletionTimestamp"] = "2027-01-15T07:00:00Z".into();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    tenant["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": true, "state": {"running": {}}}]});
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap();
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    let conditions = json::items(&status, &["conditions"]);
    assert!(
        conditions.iter().all(|condition| condition["status"] == "False"),
        "{conditions:?}"
    );
    let succeeded = json!({"status": {"phase": "Succeeded"}});
    let status = Pods
        .lost_status(&cache(), &name(), &tenant, Some(&succeeded), now)
        .unwrap();
    assert_eq!(status["phase"], "Succeeded");
    tenant["spec"]["nodeName"] = Value::Null;
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now);
    assert_eq!(status, None, "it never ran");
}
