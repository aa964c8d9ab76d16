//! Volumes that are claimed, and volumes that a driver makes for a pod alone.
//!
//! | source | rule |
//! |---|---|
//! | persistentVolumeClaim | the host's claim; the pod waits until it is there; denied if its StorageClass is no longer offered |
//! | ephemeral | the claim that the tenant's controllers make for the pod: an ordinary one on the host, with the same rule |
//! | csi | drivers in `storage.inlineDrivers`; `nodePublishSecretRef` renamed |
//!
//! What is on the host decides on the StorageClass of a claim. A pod that has a node there keeps running until the class is withdrawn; from
//! then on it is denied as well, and ends.

use super::placement;
use crate::{
    kinds::storage::classes::offered,
    model::{
        Cache, KindId, json,
        references::Target,
        resource::{Key, Name, host_name},
    },
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use berth_api::sync_policy::allows;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The rules of `PersistentVolumeClaimVolumeSource`.
pub const CLAIM: Fields = &[("claimName", Rule::Rewrite), ("readOnly", Rule::Copy)];

/// The rules of `EphemeralVolumeSource`.
pub const EPHEMERAL: Fields = &[(
    "volumeClaimTemplate",
    Rule::Ignore("the tenant's controllers make a claim of it"),
)];

/// The rules of `CSIVolumeSource`.
pub const INLINE: Fields = &[
    ("driver", Rule::Rewrite),
    ("fsType", Rule::Copy),
    ("nodePublishSecretRef", Rule::Rewrite),
    ("readOnly", Rule::Copy),
    ("volumeAttributes", Rule::Rewrite),
];

/// Prefix of the attributes by which a kubelet tells a driver about the pod.
const KUBELETS: &str = "csi.storage.k8s.io/";

/// The name of the claim that the tenant's controllers make for an ephemeral volume of a pod.
pub fn ephemeral(pod: &Value, volume: &Value) -> Option<String> {
    volume.get("ephemeral").filter(|source| !source.is_null())?;
    let name = |object, path: &[&str]| json::text(object, path).map(ToOwned::to_owned);
    Some(format!(
        "{}-{}",
        name(pod, &["metadata", "name"])?,
        name(volume, &["name"])?
    ))
}

/// What must be on the host before the pod: existing objects that it references, and claims that the tenant's
/// controllers are about to make.
pub fn prerequisites(cache: &Cache, pod: &Value, references: BTreeSet<Target>) -> Vec<Key> {
    let made: Vec<String> = json::items(pod, &["spec", "volumes"])
        .iter()
        .filter_map(|volume| ephemeral(pod, volume))
        .collect();
    let is_made = |target: &Target| {
        target.kind == KindId::PersistentVolumeClaim && made.iter().any(|claim| **claim == *target.name.name)
    };
    references
        .into_iter()
        .filter(|target| is_made(target) || cache.stores.tenant(target.kind).contains(&target.name))
        .map(|target| target.kind.key(target.name))
        .collect()
}

fn claim_on_host(pod: &Name, claim: &str) -> String {
    host_name(KindId::PersistentVolumeClaim, &Name::new(&pod.namespace, claim))
}

/// The StorageClass of a claim that is on the host, if the tenant's class no longer offers it.
fn unoffered_class(cache: &Cache, pod: &Name, claim: &str) -> Option<String> {
    let claims = cache.stores.host(KindId::PersistentVolumeClaim);
    let host = claims.get(&Name::new(&pod.namespace, claim))?.object();
    let class = json::text(&host, &["spec", "storageClassName"])?;
    (!allows(&cache.tenant.policy.storage.classes, class)).then(|| class.to_owned())
}

/// Denies a claim whose StorageClass is no longer offered, to all pods but those that have a node before the class is withdrawn.
fn check_class(cache: &Cache, pod: &Name, claim: &str, path: &str, issues: &mut FieldIssues) {
    let Some(class) = unoffered_class(cache, pod, claim) else {
        return;
    };
    let host = cache.stores.host(KindId::Pod).get(pod);
    let has_node = host.is_some_and(|host| !placement::waits(&host));
    if has_node && !cache.tenant.withdrawn_storage_classes.contains(&class) {
        return;
    }
    let offer = offered(cache, KindId::StorageClass, &cache.tenant.policy.storage.classes);
    issues.deny(
        path,
        format!(
            "the claim {claim} has the StorageClass {class}, which the platform no longer offers. The claim and its data stay: use a claim of \
             another class ({offer}), or ask the platform team to offer {class} again"
        ),
    );
}

/// The claims that a pod mounts whose StorageClass is no longer offered, each with the class.
pub fn find_unoffered_claims(cache: &Cache, name: &Name, pod: &Value) -> Vec<(String, String)> {
    let claims = json::items(pod, &["spec", "volumes"]).iter().filter_map(|volume| {
        let named = json::text(volume, &["persistentVolumeClaim", "claimName"]).map(ToOwned::to_owned);
        named.or_else(|| ephemeral(pod, volume))
    });
    claims
        .filter_map(|claim| {
            let class = unoffered_class(cache, name, &claim)?;
            Some((claim, class))
        })
        .collect()
}

/// The source of a volume that names a claim.
pub fn claim(cache: &Cache, name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(source, path, CLAIM, issues);
    let claim = json::text(source, &["claimName"]).unwrap_or_default();
    check_class(cache, name, claim, path, issues);
    copied.insert("claimName".into(), claim_on_host(name, claim).into());
    copied.into()
}

/// The source of a volume whose claim is made for the pod.
pub fn ephemeral_claim(
    cache: &Cache,
    name: &Name,
    pod: &Value,
    volume: &Value,
    path: &str,
    issues: &mut FieldIssues,
) -> Value {
    if let Some(source) = volume.get("ephemeral") {
        fields::copy(source, path, EPHEMERAL, issues);
    }
    let claim = ephemeral(pod, volume).unwrap_or_default();
    let stored = cache
        .stores
        .tenant(KindId::PersistentVolumeClaim)
        .get(&Name::new(&name.namespace, &claim));
    let is_pods = |claim: &Value| {
        let uid = json::text(pod, &["metadata", "uid"]);
        json::items(claim, &["metadata", "ownerReferences"])
            .iter()
            .any(|owner| owner["controller"] == true && json::text(owner, &["uid"]) == uid)
    };
    if stored.is_some_and(|stored| !is_pods(&stored.object())) {
        issues.deny(path, format!("the claim {claim} exists and was not made for this pod"));
    }
    check_class(cache, name, &claim, path, issues);
    json!({"claimName": claim_on_host(name, &claim)})
}

/// The source of a volume that a driver makes for the pod alone.
pub fn inline(cache: &Cache, name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(source, path, INLINE, issues);
    let driver = json::text(source, &["driver"]).unwrap_or_default();
    if allows(&cache.tenant.policy.storage.inline_drivers, driver) {
        copied.insert("driver".into(), driver.into());
    } else {
        let why = format!("the driver {driver} is not offered for volumes of pods: use a PersistentVolumeClaim");
        issues.deny(format!("{path}.driver"), why);
    }
    let attributes = json::strings(source, &["volumeAttributes"]);
    for key in attributes.keys().filter(|key| key.starts_with(KUBELETS)) {
        let field = format!("{path}.volumeAttributes[{key}]");
        issues.deny(field, "drivers learn this from the node");
    }
    if !attributes.is_empty() {
        copied.insert("volumeAttributes".into(), json!(attributes));
    }
    if let Some(secret) = json::text(source, &["nodePublishSecretRef", "name"]) {
        let secret = host_name(KindId::Secret, &Name::new(&name.namespace, secret));
        copied.insert("nodePublishSecretRef".into(), json!({"name": secret}));
    }
    copied.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::{pod::targets, storage::fixtures},
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

    /// A cache in which the host's claim `data` has a class, and some classes are withdrawn.
    fn cache_with_claim(class: &str, withdrawn: &[&str]) -> Cache {
        let mut tenant = fixtures::cache().tenant.clone();
        tenant.withdrawn_storage_classes = withdrawn.iter().map(ToString::to_string).collect();
        let cache = registry::new_cache(tenant);
        let mut host = fixtures::host_claim();
        host["spec"]["storageClassName"] = class.into();
        fixtures::put_host(&cache, KindId::PersistentVolumeClaim, &fixtures::name(), &host);
        cache
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
        let cache = cache_with_claim("gone", &["gone"]);
        put_host_pod(&cache, &json!({"nodeName": "node-1"}));
        assert!(denied(&cache).is_some());
        // A list of withdrawn classes that is older than the policy takes nothing away.
        let cache = cache_with_claim("fast", &["fast"]);
        put_host_pod(&cache, &json!({"nodeName": "node-1"}));
        assert_eq!(denied(&cache), None);
    }

    #[test]
    fn a_pod_that_waits_is_withdrawn_at_once_and_one_that_runs_ends_with_the_grace_period_of_the_class() {
        let when_denied = |class: &str, withdrawn: &[&str], spec: &Value| {
            let cache = cache_with_claim(class, withdrawn);
            put_host_pod(&cache, spec);
            let Direction::ToHost(pods) = kind(KindId::Pod).direction else {
                panic!()
            };
            pods.when_denied(&cache, &name(), &pod(), &Value::Null)
        };
        let (waits, runs) = (json!({}), json!({"nodeName": "node-1"}));
        assert_eq!(when_denied("gone", &[], &waits), WhenDenied::Withdraw);
        assert!(matches!(when_denied("gone", &["other"], &runs), WhenDenied::Reduce(_)));
        assert_eq!(when_denied("fast", &["fast"], &waits), WhenDenied::Withdraw);
        let WhenDenied::End { reason, message } = when_denied("gone", &["gone"], &runs) else {
            panic!()
        };
        assert_eq!(reason, "StorageClassWithdrawn");
        assert!(
            message.contains("claim data") && message.contains("StorageClass gone"),
            "{message}"
        );
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
    }
}
