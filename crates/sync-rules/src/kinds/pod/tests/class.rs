//! Rules that depend on the tenant's class: priorities, accounts, runtime classes, groups, and the scheduling mode.

use super::super::*;
use crate::{
    model::{resource::host_name, store::Stored, tenant::test_tenant},
    registry,
};
use berth_api::sync_policy::{PriorityBand, ServiceAccountMapping, SyncPolicy, SyncedKind};
use std::sync::Arc;

pub(super) fn cache(scheduling: SchedulingMode, change: impl FnOnce(&mut SyncPolicy)) -> Cache {
    let mut policy = SyncPolicy::default();
    change(&mut policy);
    let mut tenant = test_tenant();
    tenant.policy = Arc::new(policy);
    tenant.class_name = "gold".into();
    tenant.scheduling = scheduling;
    let cache = registry::new_cache(tenant);
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"nodeName": "gpu-1"}});
    let nodes = cache.stores.host(KindId::Node);
    nodes.written(Name::new("", "gpu-1"), Stored::new(&node));
    cache
}

pub(super) fn name() -> Name {
    Name::new("research", "web-0")
}

pub(super) fn pod(spec: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": "web-0", "namespace": "research", "uid": "u"},
        "spec": {"containers": [{"name": "main", "image": "web:1"}], "serviceAccountName": "default", "priority": 0}, "status": {}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

pub(super) fn spec(cache: &Cache, spec: &Value) -> Value {
    let translated = Pods.translate(cache, &name(), &pod(spec));
    translated.unwrap().object["spec"].take()
}

pub(super) fn denied(cache: &Cache, spec: &Value) -> Vec<String> {
    let denied = Pods.translate(cache, &name(), &pod(spec)).unwrap_err();
    denied.into_iter().map(|denied| denied.field).collect()
}

fn ignored(cache: &Cache, spec: &Value) -> usize {
    Pods.translate(cache, &name(), &pod(spec)).unwrap().ignored.len()
}

#[test]
fn pods_run_with_the_seccomp_profile_of_the_runtime_unless_the_class_leaves_it_to_the_kubelet() {
    let profile = |cache: &Cache, fields: &Value| spec(cache, fields)["securityContext"]["seccompProfile"].clone();
    let default = cache(SchedulingMode::Host, |_| ());
    let of_kubelet = cache(SchedulingMode::Host, |policy| policy.pods.seccomp_default = Some(false));
    assert_eq!(profile(&default, &json!({})), json!({"type": "RuntimeDefault"}));
    assert_eq!(profile(&of_kubelet, &json!({})), Value::Null);
    let own = json!({"type": "Localhost", "localhostProfile": "audit.json"});
    let unconfined = json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}});
    for cache in [&default, &of_kubelet] {
        assert_eq!(
            profile(cache, &json!({"securityContext": {"seccompProfile": own}})),
            own
        );
        assert_eq!(denied(cache, &unconfined), ["spec.securityContext.seccompProfile.type"]);
    }
    // A container's own profile stays beside the pod's.
    let container =
        json!({"containers": [{"name": "main", "image": "web:1", "securityContext": {"seccompProfile": own}}]});
    let host = spec(&default, &container);
    assert_eq!(host["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(host["containers"][0]["securityContext"]["seccompProfile"], own);
}

#[test]
fn priorities_become_steps_of_the_band() {
    let cache = cache(SchedulingMode::Host, |policy| {
        policy.pods.priority = Some(PriorityBand {
            lowest: 0,
            highest: 1100,
        });
    });
    let class = |fields: &Value| spec(&cache, fields)["priorityClassName"].clone();
    assert_eq!(class(&json!({})), "berth-gold-1");
    assert_eq!(class(&json!({"priority": -5})), "berth-gold-0");
    let high = json!({"priority": 1000, "priorityClassName": "high", "preemptionPolicy": "Never"});
    assert_eq!(class(&high), "berth-gold-5-never");
    assert_eq!(ignored(&cache, &high), 0);
    let system = json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"});
    assert_eq!(class(&system), "berth-gold-11");
    assert_eq!(ignored(&cache, &system), 1);
    assert_eq!(spec(&cache, &system).get("priority"), None);
}

#[test]
fn priorities_without_a_band_are_ignored_with_an_event() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let system = json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"});
    assert_eq!(spec(&cache, &system).get("priorityClassName"), None);
    assert_eq!((ignored(&cache, &system), ignored(&cache, &json!({}))), (1, 0));
}

#[test]
fn accounts_of_the_class_run_under_the_hosts_accounts() {
    let cache = cache(SchedulingMode::Host, |policy| {
        policy.service_accounts = vec![ServiceAccountMapping {
            namespace: "research".into(),
            name: "s3-reader".into(),
            host_name: "vision-s3".into(),
            audiences: Vec::new(),
        }];
    });
    let mapped = spec(&cache, &json!({"serviceAccountName": "s3-reader"}));
    assert_eq!(mapped["serviceAccountName"], "vision-s3");
    assert_eq!(mapped["automountServiceAccountToken"], false);
    assert_eq!(spec(&cache, &json!({})).get("serviceAccountName"), None);
    let elsewhere = Name::new("other", "web-0");
    let translated = Pods.translate(&cache, &elsewhere, &pod(&json!({"serviceAccountName": "s3-reader"})));
    assert_eq!(translated.unwrap().object["spec"].get("serviceAccountName"), None);
}

#[test]
fn runtime_classes_and_schedulers_are_those_of_the_class() {
    let cache = cache(SchedulingMode::Host, |policy| {
        policy.pods.runtime_classes = vec!["kata".into()];
        policy.pods.schedulers = vec!["kai-scheduler".into()];
    });
    let allowed =
        json!({"runtimeClassName": "kata", "overhead": {"memory": "120Mi"}, "schedulerName": "kai-scheduler"});
    let allowed = spec(&cache, &allowed);
    assert_eq!(
        (&allowed["runtimeClassName"], &allowed["schedulerName"]),
        (&json!("kata"), &json!("kai-scheduler"))
    );
    assert_eq!(allowed.get("overhead"), None, "the host's API server adds it");
    let own = |name: &str, handler: &str| {
        let class = json!({"metadata": {"name": name, "resourceVersion": "1"}, "handler": handler});
        (Name::new("", name), Stored::new(&class))
    };
    for (name, handler) in [("kata", "kata-qemu"), ("hidden", "runsc")] {
        let (name, class) = own(name, handler);
        cache.stores.host(KindId::RuntimeClass).written(name, class);
    }
    for (name, handler) in [("mine", "kata-qemu"), ("sneaky", "runsc")] {
        let (name, class) = own(name, handler);
        cache.stores.tenant(KindId::RuntimeClass).written(name, class);
    }
    let mine = spec(&cache, &json!({"runtimeClassName": "mine"}));
    assert_eq!(mine["runtimeClassName"], "kata", "the listed class with its handler");
    assert_eq!(
        denied(&cache, &json!({"runtimeClassName": "sneaky"})),
        ["spec.runtimeClassName"],
        "the host's class is not listed"
    );
    let other = json!({"runtimeClassName": "gvisor"});
    assert_eq!(denied(&cache, &other), ["spec.runtimeClassName"]);
}

#[test]
fn groups_of_pods_are_named_by_their_host_names() {
    let group = json!({"schedulingGroup": {"podGroupName": "ring"}});
    let listed = cache(SchedulingMode::Host, |policy| {
        policy.kinds = vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1beta1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            ..SyncedKind::default()
        }];
    });
    let kind = listed.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
    let ring = Name::new("research", "ring");
    assert_eq!(
        spec(&listed, &group)["schedulingGroup"]["podGroupName"],
        host_name(kind, &ring)
    );
    let object = json!({"metadata": {"name": "ring", "namespace": "research", "resourceVersion": "1"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}});
    listed.stores.tenant(kind).written(ring.clone(), Stored::new(&object));
    let translated = Pods.translate(&listed, &name(), &pod(&group)).unwrap();
    let annotations = &translated.object["metadata"]["annotations"];
    assert_eq!(
        (&annotations["berth.dev/gang"], &annotations["berth.dev/gang-size"]),
        (&json!("ring"), &json!("4"))
    );
    let target = Target { kind, name: ring };
    assert!(Pods.references(&listed, &name(), &pod(&group)).contains(&target));
    assert_eq!(
        denied(&cache(SchedulingMode::Host, |_| {}), &group),
        ["spec.schedulingGroup"]
    );
    let decided = cache(SchedulingMode::Tenant, |_| {});
    assert_eq!(spec(&decided, &group).get("schedulingGroup"), None);
}

#[test]
fn host_names_are_as_on_any_cluster() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let plain = spec(&cache, &json!({"hostname": "db-0", "subdomain": "db"}));
    assert_eq!(
        (&plain["hostname"], &plain["subdomain"]),
        (&json!("db-0"), &json!("db"))
    );
    assert_eq!(plain.get("hostnameOverride"), None);
    let full = json!({"hostname": "db-0", "subdomain": "db", "setHostnameAsFQDN": true});
    let full = spec(&cache, &full);
    assert_eq!(full["hostnameOverride"], "db-0.db.research.svc.cluster.local");
    assert_eq!(full.get("setHostnameAsFQDN"), None);
    let own = spec(&cache, &json!({"hostnameOverride": "any.example.com"}));
    assert_eq!(own["hostnameOverride"], "any.example.com");
    let long = json!({"hostname": "d".repeat(60), "subdomain": "db", "setHostnameAsFQDN": true});
    assert_eq!(denied(&cache, &long), ["spec.setHostnameAsFQDN"]);
    let alone = spec(&cache, &json!({"setHostnameAsFQDN": true}));
    assert_eq!(
        (&alone["hostname"], alone.get("hostnameOverride")),
        (&json!("web-0"), None)
    );
    let dotted = Name::new("research", "web.v1-0");
    let dotted = Pods.translate(&cache, &dotted, &pod(&json!({}))).unwrap().object;
    assert_eq!(dotted["spec"]["hostname"], "web-v1-0");
    assert_eq!(dotted["spec"]["hostnameOverride"], "web.v1-0");
}

#[test]
fn tenants_select_nodes_by_the_labels_they_see() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let visible = json!({"nodeSelector": {labels::POOL: "h100", labels::NODE_GROUP: "train"}});
    assert_eq!(spec(&cache, &visible)["nodeSelector"][labels::POOL], "h100");
    let hidden = json!({"nodeSelector": {labels::OWNER_UID: "x"}});
    assert_eq!(denied(&cache, &hidden), ["spec.nodeSelector[berth.dev/owner-uid]"]);
}

#[test]
fn the_host_pod_runs_only_where_the_tenants_scheduler_placed_it() {
    let cache = cache(SchedulingMode::Tenant, |_| {});
    let waiting = pod(&json!({"schedulerName": "volcano"}));
    assert_eq!(Pods.desired_state(&cache, &name(), &waiting), DesiredState::Leave);
    let placed = json!({"nodeName": "gpu-1", "schedulerName": "volcano", "nodeSelector": {"mine": "yes"},
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]});
    assert_eq!(
        Pods.desired_state(&cache, &name(), &pod(&placed)),
        DesiredState::Sync,
        "it never ran, so it is created"
    );
    let host = spec(&cache, &placed);
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]);
    let required =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    assert_eq!(host["affinity"], required);
    assert_eq!(host["nodeSelector"], json!({labels::TENANT: test_tenant().slug}));
    for field in ["nodeName", "schedulerName", "topologySpreadConstraints"] {
        assert_eq!(host.get(field), None);
    }
    assert_eq!(denied(&cache, &json!({"nodeName": "of-others"})), ["spec.nodeName"]);
    let mut ran = pod(&placed);
    ran["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
    assert_eq!(Pods.desired_state(&cache, &name(), &ran), DesiredState::Once);
}

#[test]
fn a_single_pod_may_have_a_scheduler_of_the_tenant() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let mine = |fields: Value| {
        let mut all = json!({"schedulerName": "volcano"});
        for (field, value) in fields.as_object().unwrap() {
            all[field] = value.clone();
        }
        all
    };
    let waiting = pod(&mine(json!({})));
    assert_eq!(Pods.desired_state(&cache, &name(), &waiting), DesiredState::Leave);
    let bound = pod(&mine(json!({"nodeName": "gpu-1"})));
    assert_eq!(Pods.desired_state(&cache, &name(), &bound), DesiredState::Sync);
    let host = spec(&cache, &mine(json!({"nodeName": "gpu-1"})));
    assert_eq!(host.get("schedulerName"), None, "the host's default scheduler checks");
    let terms =
        &host["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchFields"][0]["values"], json!(["gpu-1"]));
    let claims = json!({"nodeName": "gpu-1", "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]});
    assert!(denied(&cache, &mine(claims)).contains(&"spec.resourceClaims".to_owned()));
    assert_eq!(
        denied(&cache, &mine(json!({"nodeName": "of-others"}))),
        ["spec.nodeName"]
    );
}

#[test]
fn a_host_pod_that_waits_is_made_again_when_nodes_are_open_again() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let node = |unschedulable: bool| {
        let node =
            json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"unschedulable": unschedulable}});
        cache
            .stores
            .tenant(KindId::Node)
            .written(Name::new("", "gpu-1"), Stored::new(&node));
    };
    node(true);
    let tenant = pod(&json!({}));
    let mut host = Pods.translate_new(&cache, &name(), &tenant).unwrap().object;
    let hosts = cache.stores.host(KindId::Pod);
    let state = || Pods.desired_state(&cache, &name(), &tenant);
    // It becomes known later, and may be late for that.
    node(false);
    host["metadata"]["resourceVersion"] = "1".into();
    trim_host(&mut host);
    hosts.written(name(), Stored::new(&host));
    assert_eq!(state(), DesiredState::Absent);
    node(true);
    assert_eq!(state(), DesiredState::Sync);
    node(false);
    assert_eq!(state(), DesiredState::Absent);
    assert!(Pods.deletes_only_this_version(&Stored::new(&host)));
    host["metadata"]["resourceVersion"] = "2".into();
    host["spec"]["nodeName"] = "gpu-1".into();
    assert!(!Pods.deletes_only_this_version(&Stored::new(&host)));
    hosts.written(name(), Stored::new(&host));
    assert_eq!(state(), DesiredState::Sync, "it was placed meanwhile");
}

#[test]
fn an_unplaced_host_pod_is_removed_if_the_tenant_schedules() {
    let cache = cache(SchedulingMode::Tenant, |_| {});
    let mut host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {}});
    let hosts = cache.stores.host(KindId::Pod);
    hosts.written(name(), Stored::new(&host));
    assert_eq!(
        Pods.desired_state(&cache, &name(), &pod(&json!({}))),
        DesiredState::Absent
    );
    host["metadata"]["resourceVersion"] = "2".into();
    host["spec"]["nodeName"] = "gpu-1".into();
    hosts.written(name(), Stored::new(&host));
    assert_eq!(
        Pods.desired_state(&cache, &name(), &pod(&json!({}))),
        DesiredState::Leave,
        "it runs: it is bound there"
    );
}

/// The status that the tenant's pod gets, given that of the host's, which is as it should be.
fn synced_status(cache: &Cache, tenant: &Value, host: &Value) -> Value {
    let observation = Observation {
        tenant,
        host,
        in_sync: true,
        denied: &[],
        now: Timestamp::UNIX_EPOCH,
    };
    let mut writes = Pods.sync_status(cache, &name(), &observation);
    match (writes.pop(), writes.as_slice()) {
        (Some(TenantWrite::Status(status)), []) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn conditions_of_the_tenants_scheduler_stay_and_host_failures_are_reported() {
    let cache = cache(SchedulingMode::Tenant, |_| {});
    let mut tenant = pod(&json!({"nodeName": "gpu-1"}));
    tenant["status"] = json!({"phase": "Pending", "nominatedNodeName": "gpu-1",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let host = json!({"spec": {}, "status": {"phase": "Pending", "nominatedNodeName": "gpu-2", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes are available: 1 Insufficient cpu."}]}});
    let status = synced_status(&cache, &tenant, &host);
    insta::assert_yaml_snapshot!(status);
}

#[test]
fn resizes_and_custom_conditions_come_back() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let conditions = json!([
        {"type": "PodResizePending", "status": "True", "reason": "Deferred", "observedGeneration": 7, "message": "Node didn't have enough resource: cpu"},
        {"type": "PodResizeInProgress", "status": "True", "observedGeneration": 7},
        {"type": "example.com/by-host", "status": "True"}]);
    let host = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "qosClass": "Guaranteed", "observedGeneration": 7,
        "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}, "conditions": conditions}});
    let mut tenant = pod(&json!({"nodeName": "gpu-1"}));
    tenant["metadata"]["generation"] = 3.into();
    // With default requests of the platform, the host's pod is of another class.
    tenant["status"]["qosClass"] = "BestEffort".into();
    let status = synced_status(&cache, &tenant, &host);
    let generations: Vec<_> = json::items(&status, &["conditions"])
        .iter()
        .map(|condition| condition.get("observedGeneration").cloned().unwrap_or_default())
        .collect();
    assert_eq!(generations, [json!(3), json!(3), Value::Null]);
    assert_eq!(status["observedGeneration"], 3);
    assert_eq!(status["qosClass"], "BestEffort");
    for field in ["allocatedResources", "resources"] {
        assert_eq!(status[field], host["status"][field]);
    }
}

#[test]
fn a_status_from_before_a_resize_does_not_count_as_observed() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let mut tenant = pod(&json!({"nodeName": "gpu-1"}));
    tenant["metadata"]["generation"] = 2.into();
    tenant["status"] =
        json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]});
    let observed = |generation: i64| {
        let ready = json!({"type": "Ready", "status": "True", "observedGeneration": generation});
        let host = json!({"metadata": {"generation": 5}, "spec": {"nodeName": "gpu-1"},
            "status": {"phase": "Running", "observedGeneration": generation, "conditions": [ready]}});
        let status = synced_status(&cache, &tenant, &host);
        let of = |part: &Value| part["observedGeneration"].as_i64();
        (of(&status), of(&status["conditions"][0]))
    };
    assert_eq!(observed(4), (Some(1), Some(1)), "the kubelet has not seen the resize");
    assert_eq!(observed(5), (Some(2), Some(2)));
}

#[test]
fn a_pod_that_holds_too_much_is_denied() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let repeated = |item: Value, count: usize| Value::from(vec![item; count]);
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
    let affinity = |count| {
        let required = json!({"nodeSelectorTerms": repeated(term.clone(), count)});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    let spread =
        json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}});
    let spread = |count| json!({"topologySpreadConstraints": repeated(spread.clone(), count)});
    spec(&cache, &affinity(250));
    spec(&cache, &spread(30));
    assert_eq!(denied(&cache, &affinity(251)), ["spec.affinity.nodeAffinity: terms"]);
    assert_eq!(denied(&cache, &spread(31)), ["spec.topologySpreadConstraints"]);
    let large = json!({"containers": [{"name": "main", "image": "web:1", "args": ["a".repeat(600 * 1024)]}]});
    assert_eq!(denied(&cache, &large), ["spec"]);
}
