//! Volumes that are claimed, and volumes that a driver makes for a pod alone.
//!
//! | source | rule |
//! |---|---|
//! | persistentVolumeClaim | the host's claim; the pod waits until it is there |
//! | ephemeral | the claim that the tenant's controllers make for the pod: an ordinary one on the host |
//! | csi | drivers in `storage.inlineDrivers`; `nodePublishSecretRef` renamed |

use crate::{
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

/// The source of a volume that names a claim.
pub fn claim(name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(source, path, CLAIM, issues);
    let claim = json::text(source, &["claimName"]).unwrap_or_default();
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
    use crate::kinds::{pod::targets, storage::fixtures};

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
        let mut issues = FieldIssues::default();
        let source = json!({"claimName": "data", "readOnly": true});
        let host = claim_on_host(&name(), "data");
        assert_eq!(
            claim(&name(), &source, "v", &mut issues),
            json!({"claimName": host, "readOnly": true})
        );
        claim(&name(), &json!({"claimName": "data", "new": 1}), "v", &mut issues);
        assert_eq!(issues.denied[0].field, "v.new");
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
