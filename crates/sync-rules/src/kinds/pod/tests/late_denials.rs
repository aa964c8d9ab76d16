//! What a class takes away from pods that run.

use super::super::*;
use super::class::{cache, name, pod};
use crate::model::{DeniedParts, store::Stored};
use berth_api::{StorageOffer, sync_policy::SyncPolicy};
use std::sync::Arc;

pub(super) const LISTED: &str = "registry.example.com/tools/debug:1";

pub(super) fn limited(policy: &mut SyncPolicy) {
    policy.pods.images = Some(vec!["registry.example.com/*".into()]);
}

/// A pod that has a node in the tenant.
pub(super) fn running(spec: &Value) -> Value {
    let mut pod = pod(spec);
    pod["spec"]["nodeName"] = "gpu-1".into();
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]});
    pod
}

/// Puts the host pod into the store, as a watch does. Its ephemeral containers are the tenant's.
pub(super) fn put_on_host(cache: &Cache, version: u32, spec: &Value) {
    let mut host = json!({"metadata": {"name": "h", "resourceVersion": version.to_string()}, "spec": spec});
    json::each_mut(&mut host, "spec.ephemeralContainers[]", &mut |container| {
        container["env"] = json!([{"name": own_containers::OF_TENANT, "value": "tcp"}]);
    });
    trim_host(&mut host);
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
}

pub(super) fn fields(denied: &[DeniedField]) -> Vec<&str> {
    denied.iter().map(|denied| denied.field.as_str()).collect()
}

/// What becomes of what is denied, of a pod that has a node on the host.
fn parts_of_running(cache: &Cache, spec: &Value) -> Result<DeniedParts, Vec<DeniedField>> {
    put_on_host(cache, 2, &json!({"nodeName": "gpu-1"}));
    let translated = Pods.translate(cache, &name(), &running(spec))?;
    Ok(translated.parts)
}

#[test]
fn a_pod_that_runs_keeps_what_its_class_no_longer_gives() {
    let spec = json!({
        "containers": [{"name": "main", "image": LISTED, "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
        "runtimeClassName": "kata",
        "volumes": [{"name": "model", "image": {"reference": "busybox"}}],
    });
    let expected = [
        "spec.containers[0].securityContext.capabilities.add",
        "spec.volumes[0].image.reference",
        "spec.runtimeClassName",
    ];
    let sorted = |denied: &[DeniedField]| {
        let mut fields: Vec<String> = denied.iter().map(|denied| denied.field.clone()).collect();
        fields.sort();
        fields
    };
    let mut wanted = expected.map(ToOwned::to_owned).to_vec();
    wanted.sort();
    let cache = cache(SchedulingMode::Host, limited);
    // One that waits would start with it.
    put_on_host(&cache, 1, &json!({}));
    let waits = Pods.translate(&cache, &name(), &pod(&spec)).unwrap_err();
    assert_eq!(sorted(&waits), wanted);
    let parts = parts_of_running(&cache, &spec).unwrap();
    assert_eq!(sorted(&parts.kept), wanted);
    assert!(parts.left_out.is_empty() && parts.in_doubt.is_empty(), "{parts:?}");
}

#[test]
fn what_a_team_can_correct_in_a_pod_that_runs_is_denied() {
    let cache = cache(SchedulingMode::Host, limited);
    put_on_host(&cache, 1, &json!({"nodeName": "gpu-1"}));
    let mut pod = running(&json!({"containers": [{"name": "main", "image": LISTED}], "runtimeClassName": "kata"}));
    pod["metadata"]["annotations"] = json!({"io.katacontainers.config.hypervisor.path": "/tmp/x"});
    let denied = Pods.translate(&cache, &name(), &pod).unwrap_err();
    assert_eq!(
        fields(&denied),
        ["metadata.annotations[io.katacontainers.config.hypervisor.path]"]
    );
}

#[test]
fn a_toleration_that_cannot_be_taken_back_is_left_out() {
    let cache = cache(SchedulingMode::Host, limited);
    let spec = json!({"containers": [{"name": "main", "image": LISTED}],
        "tolerations": [{"key": "berth.dev/state", "operator": "Exists"}, {"key": "own", "operator": "Exists"},
            {"key": "newer", "operator": "Exists", "onlyOf": "x"}]});
    let expected = ["spec.tolerations[0].key", "spec.tolerations[2].onlyOf"];
    let denied = Pods.translate(&cache, &name(), &pod(&spec)).unwrap_err();
    assert_eq!(fields(&denied), expected);
    let parts = parts_of_running(&cache, &spec).unwrap();
    assert_eq!(fields(&parts.left_out), expected);
    let object = Pods.translate(&cache, &name(), &running(&spec)).unwrap().object;
    let tolerations = json::items(&object, &["spec", "tolerations"]).iter();
    let keys: Vec<&str> = tolerations
        .filter_map(|toleration| json::text(toleration, &["key"]))
        .collect();
    assert_eq!(keys, [labels::TENANT, "own"]);
}

/// Such a pod has to end.
#[test]
fn a_pod_with_withdrawn_storage_keeps_nothing() {
    let mut cache = cache(SchedulingMode::Host, limited);
    let spec = json!({
        "containers": [{"name": "main", "image": "busybox"}],
        "runtimeClassName": "kata",
        "volumes": [{"name": "vault", "csi": {"driver": "gone.example.com"}}],
    });
    let parts = parts_of_running(&cache, &spec).unwrap();
    assert_eq!(fields(&parts.kept), ["spec.runtimeClassName"]);
    let withdrawn: StorageOffer = "CSIDriver/gone.example.com".parse().unwrap();
    cache.tenant.withdrawn_storage = [withdrawn].into();
    let denied = parts_of_running(&cache, &spec).unwrap_err();
    let mut denied = fields(&denied);
    denied.sort_unstable();
    assert_eq!(denied, ["spec.runtimeClassName", "spec.volumes[0].csi.driver"]);
}

#[test]
fn the_host_pod_says_whether_an_image_that_is_not_listed_is_new() {
    let mut cache = cache(SchedulingMode::Host, limited);
    let with = |main: &str, init: &str| {
        running(
            &json!({"containers": [{"name": "main", "image": main}], "initContainers": [{"name": "init", "image": init}]}),
        )
    };
    let (main, init) = ("spec.containers[0].image", "spec.initContainers[0].image");
    put_on_host(&cache, 1, &json!({"nodeName": "gpu-1"}));
    let translated = Pods.translate(&cache, &name(), &with("nginx:2", "busybox")).unwrap();
    assert_eq!(fields(&translated.parts.in_doubt), [init, main]);
    assert!(translated.parts.kept.is_empty());
    let live = json!({"spec": {
        "containers": [{"name": "of-the-platform", "image": "nginx:2"}, {"name": "main", "image": "nginx:1"}],
        "initContainers": [{"name": "init", "image": "busybox"}]}});
    let is_on_host = |field: &str| Pods.is_on_host(field, &translated.object, &live);
    assert!(is_on_host(init) && !is_on_host(main));
    for unknown in [
        "spec.containers[1].image",
        "spec.containers[x].image",
        "spec.volumes[0].image.reference",
        "",
    ] {
        assert!(!is_on_host(unknown), "{unknown}");
    }
    // What the host pod is reduced to depends on the images that are denied, so that others are looked at again.
    let reduced = |main: &str| match Pods.when_denied(&cache, &name(), &with(main, LISTED), &json!({})) {
        WhenDenied::Reduce(reduced) => reduced,
        other => panic!("{other:?}"),
    };
    let hash = |object: &Value| json::hash(&Pods.mutable_part(object));
    assert_eq!(
        reduced("nginx:1")["spec"],
        json!({(update::DENIED_IMAGES): {main: "nginx:1"}})
    );
    assert_ne!(hash(&reduced("nginx:1")), hash(&reduced("nginx:2")));
    let writes = update::update(&reduced("nginx:1"), &live);
    let [HostWrite::Merge(patch)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    assert_eq!(patch["spec"], json!({}), "nothing of them is written");
    // A class without a list says nothing about images.
    Arc::make_mut(&mut cache.tenant.policy).pods.images = None;
    let translated = Pods.translate(&cache, &name(), &with("nginx:2", "busybox")).unwrap();
    assert_eq!(translated.parts, DeniedParts::default());
}

#[test]
fn a_pod_that_is_made_now_keeps_nothing() {
    let cache = cache(SchedulingMode::Host, limited);
    put_on_host(&cache, 1, &json!({"nodeName": "gpu-1"}));
    for (spec, field) in [
        (
            json!({"containers": [{"name": "main", "image": "busybox"}]}),
            "spec.containers[0].image",
        ),
        (
            json!({"containers": [{"name": "main", "image": LISTED}], "runtimeClassName": "kata"}),
            "spec.runtimeClassName",
        ),
    ] {
        assert!(Pods.translate(&cache, &name(), &running(&spec)).is_ok());
        let denied = Pods.translate_new(&cache, &name(), &running(&spec)).unwrap_err();
        assert_eq!(fields(&denied), [field]);
    }
}

#[test]
fn a_reduced_pod_names_denied_images_only_if_the_host_pod_was_found_to_have_others() {
    let cache = cache(SchedulingMode::Host, limited);
    put_on_host(&cache, 1, &json!({"nodeName": "gpu-1"}));
    let mut pod = running(&json!({"containers": [{"name": "main", "image": "busybox"}]}));
    let spec_of = |reduced: WhenDenied| match reduced {
        WhenDenied::Reduce(reduced) => reduced["spec"].clone(),
        other => panic!("{other:?}"),
    };
    let denied = Pods.when_denied(&cache, &name(), &pod, &json!({}));
    assert_eq!(
        spec_of(denied),
        json!({(update::DENIED_IMAGES): {"spec.containers[0].image": "busybox"}})
    );
    // A host that refuses a resize says nothing about images, and neither does an annotation that is denied.
    let refused = Pods.when_refused(&cache, &name(), &pod, &json!({}));
    assert_eq!(spec_of(refused), json!({}));
    pod["metadata"]["annotations"] = json!({"io.katacontainers.config.hypervisor.path": "/tmp/x"});
    let denied = Pods.when_denied(&cache, &name(), &pod, &json!({}));
    assert_eq!(spec_of(denied), json!({}));
}

#[test]
fn what_needs_no_subresource_is_written_although_one_is_refused() {
    let pod = |image: &str, cpu: &str| {
        let container = json!({"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}});
        json!({"metadata": {"annotations": {(labels::APPLIED_HASH): cpu}}, "spec": {"containers": [container]}})
    };
    let patch = Pods.rest_of_update(&pod("b", "2"), &pod("a", "1")).unwrap();
    assert_eq!(patch["spec"]["containers"][0]["image"], "b");
    assert_eq!(patch["metadata"]["annotations"], json!({}), "not all was applied");
    assert_eq!(Pods.rest_of_update(&pod("a", "2"), &pod("a", "1")), None);
}
