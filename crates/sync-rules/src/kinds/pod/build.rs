//! The host pod for a tenant's pod: its metadata, and its spec from the other modules.

use super::{
    ANNOTATIONS, downward, ephemeral, gang, images, metadata_size, placement, secret_size, spec, status,
    status_changes, token, update, volume_claims,
};
use crate::{
    kinds::{network_policy::isolation, node},
    model::{Cache, DeniedField, KindId, json, resource::Name},
    translation::{
        fields::FieldIssues,
        metadata::{self, AnnotationRules},
        namespace_labels, pod_labels,
        sizes::{self, SizeLimit},
    },
};
use berth_api::{SchedulingMode, labels};
use serde_json::{Value, json};

/// The host pod for a tenant's pod, without what is denied.
pub fn host_pod(cache: &Cache, name: &Name, pod: &Value, issues: &mut FieldIssues) -> Value {
    let is_running = cache.stores.host(KindId::Pod).contains(name) && token::node_of(pod).is_some();
    // Ephemeral containers are measured one by one: nothing else waits for those that do not fit.
    let measured = ephemeral::without(pod);
    let measured = measured.as_ref().unwrap_or(pod);
    let reduced = without_what_is_too_large(pod, measured, is_running);
    let pod = reduced.as_ref().unwrap_or(pod);
    if let Some(node) = json::filled(pod, &["spec", "nodeName"]) {
        let is_new = !cache.stores.host(KindId::Pod).contains(name);
        match placement::mode(cache, &pod["spec"]) {
            SchedulingMode::Host if !status::is_bound(pod) => issues.deny(
                "spec.nodeName",
                "pods are placed by the scheduler: use a node selector or affinity",
            ),
            // Only the host's scheduler knows what other tenants use of a shared node.
            SchedulingMode::Tenant if is_new && !node::is_own_alone(cache, node) => {
                issues.deny("spec.nodeName", format!("{node} is not a node of this cluster alone"));
            }
            _ => {}
        }
    }
    let rules = AnnotationRules {
        always: ANNOTATIONS,
        listed: &cache.tenant.policy.pods.annotations,
        class_field: Some("sync.pods.annotations"),
        load_balancers: None,
    };
    let mut annotations = metadata::annotations(pod, &rules, issues);
    let mut of_spec = FieldIssues::default();
    let spec = spec::translate(cache, name, pod, &mut of_spec);
    settle(cache, name, pod, of_spec, issues);
    for field in spec.downward {
        let value = downward::literal(pod, &field).unwrap_or_default();
        annotations.insert(downward::annotation(&field), value.into());
    }
    annotations.extend(gang::annotations(cache, name, pod));
    let mut host_labels = pod_labels::labels_of(pod, &cache.tenant.policy.pods.labels);
    if !spec.shared_pools.is_empty() {
        host_labels.insert(labels::SHARED_NODES.into(), labels::SHARED_NODES_ALLOWED.into());
        annotations.insert(labels::SHARED_POOLS.into(), spec.shared_pools.join(",").into());
    }
    host_labels.extend(namespace_labels::labels_of(cache, &name.namespace));
    host_labels.extend(isolation::labels_of(cache, name, pod));
    let metadata = json::object([("labels", host_labels.into()), ("annotations", annotations.into())]);
    let mut object = json::object([("metadata", metadata), ("spec", spec.spec.into())]);
    object["metadata"]["annotations"][labels::APPLIED_KEYS] = update::applied_keys(&object).into();
    metadata_size::check(pod, &object, issues);
    if is_running {
        // Its other fields cannot change. If they were denied, labels that close it would not reach the host any more.
        let counted = if reduced.is_some() { measured } else { &object };
        let mut too_many = FieldIssues::default();
        sizes::check_on_host(sizes::RUNNING_POD, counted, &mut too_many);
        status_changes::check_tolerations(&object["spec"], &mut too_many);
        if !too_many.denied.is_empty() {
            // What was added to a pod stays in it, so this does not keep its other changes from the host either. Only tolerations become more there.
            if let Some(fields) = object["spec"].as_object_mut().filter(|_| reduced.is_none()) {
                fields.remove("tolerations");
            }
            issues.leave_out(too_many.denied);
        }
    } else {
        sizes::check(sizes::POD, measured, &object, issues);
        sizes::check(sizes::RUNNING_POD, measured, &object, issues);
        sizes::check_pod_bytes(measured, &object, issues);
        let alone = ephemeral::without(&object);
        status_changes::check_new(measured, alone.as_ref().unwrap_or(&object), issues);
        namespace_labels::check(cache, &name.namespace, issues);
        secret_size::check_bytes(cache, pod, issues);
    }
    object
}

/// Says what becomes of what is denied in the spec of a pod. Once the host pod has a node, little of the spec can change: what is denied of the rest was
/// allowed when the pod was made, and a class, an object that the pod names, or a rule has changed. The host pod keeps that. Tolerations can be added, and
/// not removed again.
fn settle(cache: &Cache, name: &Name, pod: &Value, of_spec: FieldIssues, issues: &mut FieldIssues) {
    let FieldIssues { denied, ignored, parts } = of_spec;
    issues.ignored.extend(ignored);
    issues.parts = parts;
    let keeps = || placement::is_placed(cache, name) && !volume_claims::uses_withdrawn(cache, name, pod);
    if denied.is_empty() || !keeps() {
        issues.denied.extend(denied);
        return;
    }
    let is_toleration = |denied: &DeniedField| denied.field.starts_with("spec.tolerations[");
    let (added, kept) = denied.into_iter().partition(is_toleration);
    issues.leave_out(added);
    issues.keep(kept);
}

/// A pod without its lists, if some are longer than they may be: it is denied in any case. What they become on the host can be a thousand times as large, and
/// would take the memory and the time of the whole syncer. Of one that runs, without tolerations, which can be added then. `measured` is the pod without
/// ephemeral containers.
fn without_what_is_too_large(pod: &Value, measured: &Value, is_running: bool) -> Option<Value> {
    let are_too_many = |limits: &[SizeLimit], most: fn(&SizeLimit) -> usize| {
        let mut limits = limits.iter();
        limits.any(|limit| limit.measure.count(measured) > most(limit))
    };
    let is_too_large = if is_running {
        are_too_many(sizes::RUNNING_POD, |limit| limit.on_host)
    } else {
        are_too_many(sizes::POD, |limit| limit.in_tenant) || are_too_many(sizes::RUNNING_POD, |limit| limit.in_tenant)
    };
    if !is_too_large {
        return None;
    }
    let mut reduced = pod.clone();
    if let Some(spec) = reduced["spec"].as_object_mut() {
        spec.retain(|field, value| {
            if is_running {
                field != "tolerations"
            } else {
                !value.is_array() && !value.is_object()
            }
        });
    }
    Some(reduced)
}

/// The metadata of a host pod that runs, without what is denied. Its spec stays, and so does where it may run. Labels and annotations that are
/// too large for the host are left out: what is left reaches it in any case.
pub fn metadata_of_running(cache: &Cache, name: &Name, pod: &Value, host: &Value) -> Value {
    let mut issues = FieldIssues::default();
    let mut object = host_pod(cache, name, pod, &mut issues);
    let denied_images = images::images_at(&issues.parts.in_doubt, &object);
    object["spec"] = json!({});
    // A pod that is denied for something else is reduced although nobody has compared its images with those of the host pod.
    if issues.denied.is_empty() && !denied_images.is_empty() {
        object["spec"][update::DENIED_IMAGES] = denied_images.into();
    }
    metadata_size::reduce(pod, &mut object);
    let pools = json::text(host, &["metadata", "annotations", labels::SHARED_POOLS]);
    for (map, key, value) in [
        (
            "labels",
            labels::SHARED_NODES,
            pools.map(|_| labels::SHARED_NODES_ALLOWED),
        ),
        ("annotations", labels::SHARED_POOLS, pools),
        ("annotations", labels::APPLIED_KEYS, None),
    ] {
        let Some(entries) = object["metadata"][map].as_object_mut() else {
            continue;
        };
        match value {
            Some(value) => drop(entries.insert(key.to_owned(), value.into())),
            None => drop(entries.remove(key)),
        }
    }
    object["metadata"]["annotations"][labels::APPLIED_KEYS] = update::applied_keys(&object).into();
    object
}
