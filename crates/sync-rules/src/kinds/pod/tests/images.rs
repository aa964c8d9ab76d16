//! Images that the tenant's class lists.

use super::super::*;
use super::class::{cache, denied, name, pod, spec};
use crate::model::store::Stored;
use berth_api::sync_policy::SyncPolicy;

fn limited(policy: &mut SyncPolicy) {
    policy.pods.images = Some(vec![
        "docker.io/library/*".into(),
        "registry.example.com/team-a/*".into(),
    ]);
}

#[test]
fn images_of_all_containers_and_of_volumes_are_those_of_the_class() {
    let cache = cache(SchedulingMode::Host, limited);
    let with = |own: &str, other: &str| {
        let container = |name: &str, image: &str| json!({"name": name, "image": image});
        json!({"containers": [container("main", "web:1"), container("second", own)],
            "initContainers": [container("init", own)], "ephemeralContainers": [container("debug", own)],
            "volumes": [{"name": "empty", "emptyDir": {}}, {"name": "model", "image": {"reference": other}}]})
    };
    let allowed = "registry.example.com/team-a/train:1";
    let host = spec(&cache, &with(allowed, allowed));
    assert_eq!(host["containers"][0]["image"], "web:1", "names stay as they are");
    assert_eq!(host["volumes"][1]["image"]["reference"], allowed);
    for foreign in [
        "registry.example.com/team-b/train:1",
        "registry.example.com.evil.org/team-a/train",
        "team-a/train",
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "cafe",
    ] {
        let mut fields = denied(&cache, &with(foreign, foreign));
        fields.sort();
        let expected = [
            "spec.containers[1].image",
            "spec.initContainers[0].image",
            "spec.volumes[1].image.reference",
        ];
        assert_eq!(fields, expected, "{foreign}");
    }
}

#[test]
fn without_a_list_every_image_is_allowed() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let id = json!({"containers": [{"name": "main", "image": "sha256:0123"}]});
    assert_eq!(spec(&cache, &id)["containers"][0]["image"], "sha256:0123");
}

/// The image of a pod that runs can change to any text, and the limits of its size are for new pods.
#[test]
fn an_image_makes_no_pod_larger_than_it_may_be() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let long = json!({"containers": [{"name": "main", "image": "a".repeat(1 << 20)}]});
    assert!(denied(&cache, &long).contains(&"spec.containers[0].image".to_owned()));
    let host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"nodeName": "gpu-1"}});
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
    let mut running = pod(&long);
    running["spec"]["nodeName"] = "gpu-1".into();
    running["status"] = json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]});
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &running).unwrap();
    assert_eq!(parts.in_doubt.len(), 1, "only a host pod that has it keeps it");
    let live = json!({"spec": {"containers": [{"name": "main", "image": "a"}]}});
    assert!(!Pods.is_on_host(&parts.in_doubt[0].field, &object, &live));
    let WhenDenied::Reduce(reduced) = Pods.when_denied(&cache, &name(), &running, &json!({})) else {
        panic!("it goes on")
    };
    assert!(json::items(&reduced, &["spec", "containers"]).is_empty());
}

/// A class that takes an image away ends no pod, but none starts with it later. What closes a pod still reaches it.
#[test]
fn a_pod_that_waits_is_taken_back_and_one_that_runs_stays() {
    let cache = cache(SchedulingMode::Host, limited);
    let tenant = pod(&json!({"containers": [{"name": "main", "image": "registry.example.com/team-b/train"}]}));
    let written = |spec: &Value, version: &str| {
        let host = json!({"metadata": {"name": "h", "resourceVersion": version}, "spec": spec});
        cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
        Pods.when_denied(&cache, &name(), &tenant, &host)
    };
    assert!(matches!(written(&json!({}), "1"), WhenDenied::Withdraw));
    assert!(matches!(
        written(&json!({"nodeName": "gpu-1"}), "2"),
        WhenDenied::Reduce(_)
    ));
}
