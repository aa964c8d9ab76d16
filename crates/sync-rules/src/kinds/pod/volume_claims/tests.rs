//! Tests of volumes with claims, and of what a class takes back.

use super::*;
use crate::{
    kinds::{
        pod::targets,
        storage::{claim, fixtures},
    },
    model::{Direction, WhenDenied},
    registry::{self, kind},
};

fn name() -> Name {
    Name::new("research", "train")
}

fn pod() -> Value {
    json!({"metadata": {"name": "train", "namespace": "research", "uid": "pod-uid"}, "spec": {"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]}})
}

fn scratch(cache: &Cache, pod: &Value) -> Result<Value, String> {
    let mut issues = FieldIssues::default();
    let source = ephemeral_claim(cache, &name(), pod, &pod["spec"]["volumes"][1], "v", &mut issues);
    issues
        .denied
        .first()
        .map_or(Ok(source), |denied| Err(denied.to_string()))
}

#[test]
fn claims_are_the_hosts() {
    let (cache, mut issues) = (fixtures::cache(), FieldIssues::default());
    let source = json!({"claimName": "data", "readOnly": true});
    let host = claim_on_host(&name(), "data");
    assert_eq!(
        claim(&cache, &name(), &source, "v", &mut issues),
        json!({"claimName": host, "readOnly": true})
    );
    claim(
        &cache,
        &name(),
        &json!({"claimName": "data", "new": 1}),
        "v",
        &mut issues,
    );
    assert_eq!(issues.denied[0].field, "v.new");
}

/// A cache in which some storage is withdrawn.
fn cache_without(withdrawn: &[&str]) -> Cache {
    let mut tenant = fixtures::cache().tenant.clone();
    tenant.withdrawn_storage = withdrawn.iter().map(|offer| offer.parse().unwrap()).collect();
    registry::new_cache(tenant)
}

/// The same, with the host's claim `data`, of this StorageClass.
fn cache_with_claim(class: &str, withdrawn: &[&str]) -> Cache {
    let cache = cache_without(withdrawn);
    let mut host = fixtures::host_claim();
    host["spec"]["storageClassName"] = class.into();
    fixtures::put_host(&cache, KindId::PersistentVolumeClaim, &fixtures::name(), &host);
    cache
}

/// The same, with attributes of one class that become those of another.
fn cache_with_attributes(current: &str, wanted: &str, withdrawn: &[&str]) -> Cache {
    let cache = cache_without(withdrawn);
    let mut host = fixtures::host_claim();
    host["spec"]["volumeAttributesClassName"] = wanted.into();
    host["status"]["currentVolumeAttributesClassName"] = current.into();
    let (_, watched) = claim::KIND.host.unwrap();
    (watched.trim)(&mut host);
    fixtures::put_host(&cache, KindId::PersistentVolumeClaim, &fixtures::name(), &host);
    cache
}

fn when_denied(cache: &Cache, pod: &Value, host_spec: &Value) -> WhenDenied {
    put_host_pod(cache, host_spec);
    let Direction::ToHost(pods) = kind(KindId::Pod).direction else {
        panic!()
    };
    pods.when_denied(cache, &name(), pod, &Value::Null)
}

/// Why a pod may not mount the claim `data`.
fn denied(cache: &Cache) -> Option<String> {
    let mut issues = FieldIssues::default();
    claim(cache, &name(), &json!({"claimName": "data"}), "v", &mut issues);
    issues.denied.first().map(ToString::to_string)
}

fn put_host_pod(cache: &Cache, spec: &Value) {
    let host = json!({"metadata": {"name": "p", "resourceVersion": "1"}, "spec": spec});
    fixtures::put_host(cache, KindId::Pod, &name(), &host);
}

#[test]
fn claims_of_a_class_that_is_no_longer_offered_are_denied_to_pods_without_a_node() {
    assert_eq!(denied(&cache_with_claim("fast", &[])), None);
    let cache = cache_with_claim("gone", &[]);
    let why = denied(&cache).unwrap();
    assert!(why.contains("StorageClass gone") && why.contains("data stay"), "{why}");
    // One that waits on the host does not run.
    put_host_pod(&cache, &json!({}));
    assert!(denied(&cache).is_some());
    let cache = cache_with_claim("gone", &[]);
    put_host_pod(&cache, &json!({"nodeName": "node-1"}));
    assert_eq!(denied(&cache), None);
}

#[test]
fn a_withdrawn_class_is_denied_to_pods_that_run_and_no_longer_once_it_is_offered_again() {
    let cache = cache_with_claim("gone", &["StorageClass/gone"]);
    put_host_pod(&cache, &json!({"nodeName": "node-1"}));
    assert!(denied(&cache).is_some());
    // A list of withdrawn classes that is older than the policy takes nothing away.
    let cache = cache_with_claim("fast", &["StorageClass/fast"]);
    put_host_pod(&cache, &json!({"nodeName": "node-1"}));
    assert_eq!(denied(&cache), None);
}

#[test]
fn a_pod_that_waits_is_withdrawn_at_once_and_one_that_runs_ends_with_the_grace_period_of_the_class() {
    let when_denied =
        |class: &str, withdrawn: &[&str], spec: &Value| when_denied(&cache_with_claim(class, withdrawn), &pod(), spec);
    let (waits, runs) = (json!({}), json!({"nodeName": "node-1"}));
    assert_eq!(when_denied("gone", &[], &waits), WhenDenied::Withdraw);
    assert!(matches!(
        when_denied("gone", &["StorageClass/other"], &runs),
        WhenDenied::Reduce(_)
    ));
    assert_eq!(
        when_denied("fast", &["StorageClass/fast"], &waits),
        WhenDenied::Withdraw
    );
    let WhenDenied::End { reason, message } = when_denied("gone", &["StorageClass/gone"], &runs) else {
        panic!()
    };
    assert_eq!(reason, "StorageClassWithdrawn");
    assert!(
        message.contains("claim data") && message.contains("StorageClass gone"),
        "{message}"
    );
}

#[test]
fn a_claim_with_attributes_of_a_withdrawn_class_ends_its_pods_until_it_has_those_of_another() {
    let (waits, runs) = (json!({}), json!({"nodeName": "node-1"}));
    let withdrawn: &[&str] = &["VolumeAttributesClass/gone"];
    assert_eq!(denied(&cache_with_attributes("gold", "gold", withdrawn)), None);
    let cache = cache_with_attributes("gone", "gone", &[]);
    let why = denied(&cache).unwrap();
    assert!(
        why.contains("VolumeAttributesClass gone") && why.contains("give the claim another one"),
        "{why}"
    );
    put_host_pod(&cache, &runs);
    assert_eq!(denied(&cache), None, "it goes on for now");
    for (current, wanted) in [("gone", "gone"), ("gone", "gold"), ("gold", "gone")] {
        let cache = cache_with_attributes(current, wanted, withdrawn);
        put_host_pod(&cache, &runs);
        assert!(denied(&cache).is_some(), "{current} becomes {wanted}");
        assert_eq!(when_denied(&cache, &pod(), &waits), WhenDenied::Withdraw);
        let WhenDenied::End { reason, message } = when_denied(&cache, &pod(), &runs) else {
            panic!()
        };
        assert_eq!(reason, "VolumeAttributesClassWithdrawn");
        assert!(message.contains("claim data"), "{message}");
    }
}

#[test]
fn an_inline_volume_of_a_driver_that_is_no_longer_offered_stays_until_the_driver_is_withdrawn() {
    let (waits, runs) = (json!({}), json!({"nodeName": "node-1"}));
    let source = json!({"driver": "gone.example.com"});
    let pod = json!({"metadata": {"name": "train", "namespace": "research", "uid": "pod-uid"},
        "spec": {"volumes": [{"name": "vault", "csi": &source}]}});
    let is_denied = |withdrawn: &[&str], spec: Option<&Value>| {
        let (cache, mut issues) = (cache_without(withdrawn), FieldIssues::default());
        if let Some(spec) = spec {
            put_host_pod(&cache, spec);
        }
        inline(&cache, &name(), &source, "v", &mut issues);
        !issues.denied.is_empty()
    };
    let withdrawn: &[&str] = &["CSIDriver/gone.example.com"];
    assert!(is_denied(&[], None) && is_denied(&[], Some(&waits)));
    assert!(!is_denied(&[], Some(&runs)) && is_denied(withdrawn, Some(&runs)));
    let when = |withdrawn, spec| when_denied(&cache_without(withdrawn), &pod, spec);
    assert_eq!(when(&[], &waits), WhenDenied::Withdraw);
    assert!(matches!(when(&[], &runs), WhenDenied::Reduce(_)));
    let WhenDenied::End { reason, message } = when(withdrawn, &runs) else {
        panic!()
    };
    assert_eq!(reason, "InlineDriverWithdrawn");
    assert!(message.contains("CSIDriver gone.example.com"), "{message}");
}

#[test]
fn an_ephemeral_volume_is_the_claim_made_for_the_pod_and_no_other() {
    let (cache, pod) = (fixtures::cache(), pod());
    let host = claim_on_host(&name(), "train-scratch");
    assert_eq!(scratch(&cache, &pod), Ok(json!({"claimName": host})));
    let key = Name::new("research", "train-scratch");
    let mut claim = fixtures::claim(&json!({}));
    fixtures::put_tenant(&cache, KindId::PersistentVolumeClaim, &key, &claim);
    assert!(scratch(&cache, &pod).unwrap_err().contains("train-scratch exists"));
    claim["metadata"]["ownerReferences"] = json!([{"controller": true, "uid": "pod-uid"}]);
    claim["metadata"]["resourceVersion"] = "6".into();
    fixtures::put_tenant(&cache, KindId::PersistentVolumeClaim, &key, &claim);
    assert!(scratch(&cache, &pod).is_ok());
}

#[test]
fn pods_wait_for_claims_that_exist_or_are_about_to() {
    let (cache, pod) = (fixtures::cache(), pod());
    let names = |keys: Vec<Key>| {
        keys.into_iter()
            .map(|key| key.name.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(prerequisites(&cache, &pod, targets(&pod))), ["train-scratch"]);
    let claim = fixtures::claim(&json!({}));
    fixtures::put_tenant(&cache, KindId::PersistentVolumeClaim, &fixtures::name(), &claim);
    assert_eq!(
        names(prerequisites(&cache, &pod, targets(&pod))),
        ["data", "train-scratch"]
    );
}

#[test]
fn each_claim_of_a_new_pod_costs_two_requests_however_often_it_is_mounted() {
    let volume = |name: &str, claim: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
    let volumes =
        json!([volume("a", "data"), volume("b", "data"), volume("c", "scratch"), {"name": "d", "emptyDir": {}}]);
    let pod = json!({"spec": {"volumes": volumes, "resourceClaims": [{"name": "gpu"}]}});
    assert_eq!((requests(&pod), requests(&json!({"spec": {}}))), (4, 0));
    let rules = kind(KindId::Pod).rules_to_host().unwrap();
    let costs = [true, false].map(|is_new| rules.controller_requests(&pod, is_new));
    assert_eq!(costs, [6, 0], "with those of its claim of a device");
}

#[test]
fn inline_volumes_are_those_of_drivers_that_are_offered() {
    let cache = fixtures::cache();
    let mut issues = FieldIssues::default();
    let source = json!({"driver": "inline.example.com", "fsType": "ext4", "volumeAttributes": {"size": "1Gi"},
        "nodePublishSecretRef": {"name": "login"}});
    let translated = inline(&cache, &name(), &source, "v", &mut issues);
    let secret = host_name(KindId::Secret, &Name::new("research", "login"));
    assert_eq!(translated["nodePublishSecretRef"], json!({"name": secret}));
    assert_eq!(translated["volumeAttributes"], json!({"size": "1Gi"}));
    assert!(issues.denied.is_empty());
    let source =
        json!({"driver": "disks.example.com", "volumeAttributes": {"csi.storage.k8s.io/pod.namespace": "other"}});
    inline(&cache, &name(), &source, "v", &mut issues);
    let fields: Vec<_> = issues.denied.iter().map(|denied| denied.field.as_str()).collect();
    let expected = ["v.driver", "v.volumeAttributes[csi.storage.k8s.io/pod.namespace]"];
    assert_eq!(fields, expected);
    let mut issues = FieldIssues::default();
    inline(&cache, &name(), &json!({}), "v", &mut issues);
    assert_eq!(
        issues.denied[0].field, "v.driver",
        "nobody offers a volume without a driver"
    );
}
