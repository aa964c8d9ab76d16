use super::*;
use crate::{
    model::{DesiredState, KindId, tenant::test_tenant},
    registry,
};
use std::sync::Arc;

fn name() -> Name {
    Name::new("research", "web-0")
}

fn put_node(cache: &Cache, labels: &Value, unschedulable: bool) {
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1", "labels": labels}, "spec": {"unschedulable": unschedulable}});
    let nodes = cache.stores.tenant(KindId::Node);
    nodes.written(Name::new("", "gpu-1"), Stored::new(&node));
    let published =
        json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"nodeName": "gpu-1", "labels": {}}});
    let published_nodes = cache.stores.host(KindId::Node);
    published_nodes.written(Name::new("", "gpu-1"), Stored::new(&published));
}

fn cache() -> Cache {
    let cache = registry::new_cache(test_tenant());
    put_node(&cache, &json!({}), false);
    cache
}

fn pod(spec: &Value) -> Value {
    json!({"metadata": {"name": "web-0", "namespace": "research"}, "spec": spec})
}

/// A host pod that waits for a node, with what is on record.
fn host(record: Option<&str>) -> Stored {
    let annotations = record.map_or_else(|| json!({}), |record| json!({labels::PLACEMENT: record}));
    Stored::new(&json!({"metadata": {"name": "h", "resourceVersion": "1", "annotations": annotations}, "spec": {}}))
}

#[test]
fn pods_without_constraints_have_nothing_on_record() {
    let cache = cache();
    let anywhere = pod(&json!({}));
    assert_eq!(record(&cache, &name(), &anywhere), None);
    assert!(!is_outdated(&cache, &name(), &anywhere, &host(None)));
    let together = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {}}]}});
    assert_eq!(
        record(&cache, &name(), &pod(&json!({"affinity": together}))),
        None,
        "other pods decide"
    );
}

#[test]
fn a_cordon_and_its_end_are_noticed() {
    let (cache, anywhere) = (cache(), pod(&json!({})));
    put_node(&cache, &json!({}), true);
    let during = record(&cache, &name(), &anywhere);
    assert!(during.is_some());
    assert!(!is_outdated(&cache, &name(), &anywhere, &host(during.as_deref())));
    assert!(
        is_outdated(&cache, &name(), &anywhere, &host(None)),
        "the cordon came later"
    );
    put_node(&cache, &json!({}), false);
    assert!(is_outdated(&cache, &name(), &anywhere, &host(during.as_deref())));
}

#[test]
fn labels_that_come_later_are_noticed() {
    let (cache, blue) = (cache(), pod(&json!({"nodeSelector": {"color": "blue"}})));
    let before = record(&cache, &name(), &blue);
    put_node(&cache, &json!({"other": "x"}), false);
    assert_eq!(record(&cache, &name(), &blue), before);
    put_node(&cache, &json!({"color": "blue"}), false);
    assert!(is_outdated(&cache, &name(), &blue, &host(before.as_deref())));
}

/// A host pod with these gates, of which these came from the tenant.
fn gated_host(on_host: &[&str], applied: &[&str]) -> Value {
    let gates: Vec<Value> = on_host.iter().map(|name| json!({"name": name})).collect();
    let applied = format!("labels=app;annotations=;gates={}", applied.join(","));
    let mut host = json!({
        "metadata": {"name": "h", "resourceVersion": "1", "annotations": {labels::APPLIED_KEYS: applied}},
        "spec": {"schedulingGates": gates},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    });
    super::super::trim_host(&mut host);
    host
}

#[test]
fn a_pod_with_gates_is_not_on_the_host() {
    let cache = cache();
    let desired = |gates: Value| {
        let rules = cache.rules_to_host(KindId::Pod).unwrap();
        rules.desired_state(&cache, &name(), &pod(&json!({"schedulingGates": gates})))
    };
    let gated = || json!([{"name": "quota"}]);
    assert_eq!(
        (desired(gated()), desired(json!([]))),
        (DesiredState::Leave, DesiredState::Sync)
    );
    let put_host = |host: &Value| cache.stores.host(KindId::Pod).written(name(), Stored::new(host));
    put_host(&gated_host(&["quota"], &["quota"]));
    assert_eq!(desired(gated()), DesiredState::Absent, "an earlier release created it");
    assert_eq!(
        desired(json!([])),
        DesiredState::Absent,
        "it is created again without them"
    );
    put_host(&gated_host(&["kueue"], &[]));
    assert_eq!(desired(json!([])), DesiredState::Sync, "the gate is the platform's");
}

#[test]
fn only_gates_that_came_from_the_tenant_make_a_host_pod_outdated() {
    let is_outdated = |on_host: &[&str], applied: &[&str]| {
        let host = Stored::new(&gated_host(on_host, applied));
        is_outdated(&cache(), &name(), &pod(&json!({})), &host)
    };
    assert!(is_outdated(&["quota"], &["quota"]));
    assert!(is_outdated(&["quota", "kueue"], &["quota"]));
    assert!(!is_outdated(&["kueue"], &["quota"]), "it is gone");
    assert!(!is_outdated(&[labels::USER_QUOTA_GATE], &[]));
}

#[test]
fn a_scheduler_of_the_tenant_places_the_pods_that_name_it() {
    let mut tenant = test_tenant();
    let mut policy = (*tenant.policy).clone();
    policy.pods.schedulers = vec!["kai-scheduler".into()];
    tenant.policy = Arc::new(policy);
    let cache = registry::new_cache(tenant);
    let mode = |scheduler: &str| mode(&cache, &json!({"schedulerName": scheduler}));
    for hosts in ["", "default-scheduler", "kai-scheduler"] {
        assert_eq!(mode(hosts), SchedulingMode::Host, "{hosts}");
    }
    assert_eq!(mode("volcano"), SchedulingMode::Tenant);
    let bound = pod(&json!({"schedulerName": "volcano", "nodeName": "gpu-1"}));
    let elsewhere = pod(&json!({"schedulerName": "volcano", "nodeName": "gpu-2"}));
    assert_ne!(record(&cache, &name(), &bound), None);
    assert_ne!(record(&cache, &name(), &bound), record(&cache, &name(), &elsewhere));
}

#[test]
fn a_host_pod_waits_until_it_has_a_node() {
    assert!(waits(&host(Some("x"))));
    let placed = json!({"metadata": {"name": "h"}, "spec": {"nodeName": "gpu-1"}});
    assert!(!waits(&Stored::new(&placed)));
    let says_so = json!({"metadata": {"name": "h"}, "spec": {}, "status": {"message": "no \"nodeName\": \"x\""}});
    assert!(waits(&Stored::new(&says_so)));
}

#[test]
fn a_pod_is_untried_until_the_scheduler_reports_something() {
    let stage_of = |spec: Value, conditions: Value| {
        stage(&Stored::new(
            &json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": spec,
            "status": {"phase": "Pending", "conditions": conditions}}),
        ))
    };
    let condition = |status: &str, reason: &str| json!([{"type": "PodScheduled", "status": status, "reason": reason}]);
    let nothing = || json!({});
    assert_eq!(stage_of(nothing(), json!([])), SchedulingStage::Untried);
    assert_eq!(
        stage_of(nothing(), condition("False", "SchedulingGated")),
        SchedulingStage::Gated
    );
    assert_eq!(
        stage_of(nothing(), condition("False", "Unschedulable")),
        SchedulingStage::Tried
    );
    assert_eq!(stage_of(json!({"nodeName": "n"}), json!([])), SchedulingStage::Tried);
    let other = json!([{"type": "Other", "status": "True", "message": "{\"type\":\"PodScheduled\"}"}]);
    assert_eq!(stage_of(nothing(), other), SchedulingStage::Untried, "that is a text");
}

#[test]
fn a_pod_that_waits_for_its_binding_has_been_tried() {
    let stage_of = |status: Value| {
        let mut host =
            json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"containers": []}, "status": status});
        super::super::trim_host(&mut host);
        stage(&Stored::new(&host))
    };
    let gated = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    assert_eq!(stage_of(json!({"nominatedNodeName": "gpu-1"})), SchedulingStage::Tried);
    assert_eq!(
        stage_of(json!({"nominatedNodeName": "gpu-1", "conditions": gated})),
        SchedulingStage::Tried,
        "the condition of the time before stays"
    );
    assert_eq!(stage_of(json!({"nominatedNodeName": ""})), SchedulingStage::Untried);
}

#[test]
fn host_pods_keep_only_what_decisions_need() {
    let trimmed = |spec: Value| {
        let mut host = json!({
            "metadata": {"name": "h", "namespace": "w", "labels": {"a": "b"}, "annotations": {
                labels::ORIGIN_UID: "u", labels::APPLIED_KEYS: "gates=quota", "other": "x"}},
            "spec": spec,
        });
        super::super::trim_host(&mut host);
        host
    };
    assert_eq!(
        trimmed(json!({"containers": [], "nodeName": "gpu-1"})),
        json!({"metadata": {"name": "h", "annotations": {labels::ORIGIN_UID: "u"}}, "spec": {"nodeName": "gpu-1"}})
    );
    let gates = json!([{"name": "quota"}]);
    assert_eq!(
        trimmed(json!({"containers": [], "schedulingGates": gates})),
        json!({
            "metadata": {"name": "h", "annotations": {labels::ORIGIN_UID: "u", labels::APPLIED_KEYS: "gates=quota"}},
            "spec": {"schedulingGates": gates},
        })
    );
}

#[test]
fn a_tenant_cannot_make_up_schedulers_of_the_host() {
    let scheduler = |mode: SchedulingMode, listed: &[&str], name: &str| {
        let mut tenant = test_tenant();
        tenant.scheduling = mode;
        Arc::make_mut(&mut tenant.policy).pods.schedulers = listed.iter().map(|name| (*name).to_owned()).collect();
        let cache = registry::new_cache(tenant);
        host_scheduler(&cache, &json!({"schedulerName": name})).to_owned()
    };
    let by_host = |listed: &[&str], name: &str| scheduler(SchedulingMode::Host, listed, name);
    assert_eq!(by_host(&["kai", ANY], "kai"), "kai");
    assert_eq!(by_host(&["kai", ANY], "made-up"), ANY);
    assert_eq!(by_host(&[ANY], ""), DEFAULT_SCHEDULER);
    assert_eq!(
        by_host(&["kai"], "made-up"),
        DEFAULT_SCHEDULER,
        "it checks what a scheduler in the tenant places"
    );
    assert_eq!(scheduler(SchedulingMode::Tenant, &["kai"], "kai"), DEFAULT_SCHEDULER);
}
