//! Trust bundles: what the tenant's ClusterTrustBundles contain reaches its pods as if the kubelet had projected it. The node knows
//! the host's trust bundles only, so the certificates are in the Secret that carries the pod's tokens, and follow changes there.
//!
//! | of the projection | rule |
//! |---|---|
//! | `name` | the trust bundle of this name |
//! | `signerName`, `labelSelector` | all trust bundles of the signer that the selector selects: none without a selector, all with an empty one |
//! | `optional` | without it, the pod does not start before there is a certificate: its Secret lacks the file |
//! | `path` | path in the volume |
//!
//! As by the kubelet, certificates are written once each and in no order that means anything.
//!
//! Each pod has a copy in its Secret. So what all projections of a pod select is limited: by [`check_bytes`](super::secret_size::check_bytes)
//! for new pods; one that is on the host keeps what it has.

use super::volumes::trust_key;
use crate::{
    model::{
        Cache, Kind, KindId, json,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::sizes::MAX_POD_SECRET_BYTES,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::{Selector, SelectorExt as _};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// ClusterTrustBundles of the tenant. Versions that do not serve them have none.
pub const BUNDLES: Kind = Kind::read_only(
    WatchSpec::own(Resource::new(
        "certificates.k8s.io",
        "v1",
        "ClusterTrustBundle",
        "clustertrustbundles",
    ))
    .trimmed(trim),
);

/// The first line of a certificate.
pub(super) const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// Its last line.
pub(super) const END: &str = "-----END CERTIFICATE-----";
/// The source of a projected volume.
const SOURCE: &str = "clusterTrustBundle";

fn trim(bundle: &mut Value) {
    let metadata = &bundle["metadata"];
    let field = |name: &str| metadata.get(name).cloned().unwrap_or_default();
    *bundle = json!({
        "metadata": {
            "name": field("name"), "uid": field("uid"), "resourceVersion": field("resourceVersion"), "labels": field("labels"),
        },
        "spec": bundle["spec"],
    });
}

/// The certificates of a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bundles {
    /// What its projections select, by their keys in the pod's Secret.
    pub found: BTreeMap<String, String>,
    /// What a projection that is not optional asks for, and there is no certificate: the pod does not start.
    pub missing: Option<String>,
    /// The projections select more than a pod may have; then nothing is found.
    pub are_too_large: bool,
}

/// The certificates that a pod's projections select.
pub fn bundles(cache: &Cache, pod: &Value) -> Bundles {
    let mut bundles = Bundles::default();
    let mut left = MAX_POD_SECRET_BYTES;
    for (volume_index, volume) in json::items(pod, &["spec", "volumes"]).iter().enumerate() {
        for (source_index, source) in json::items(volume, &["projected", "sources"]).iter().enumerate() {
            let Some(projection) = projection_of(source) else {
                continue;
            };
            let Some(certificates) = select(cache, projection, &mut left) else {
                return Bundles {
                    are_too_large: true,
                    ..Bundles::default()
                };
            };
            if certificates.is_empty() && projection.get("optional") != Some(&Value::Bool(true)) {
                bundles.missing = Some(describe(projection));
                continue;
            }
            let text = certificates.into_iter().collect();
            bundles.found.insert(trust_key(volume_index, source_index), text);
        }
    }
    bundles
}

/// The projection of trust bundles in a source of a projected volume.
fn projection_of(source: &Value) -> Option<&Value> {
    source.get(SOURCE).filter(|value| !value.is_null())
}

/// Notes whether a pod has projections of trust bundles, whichever these are: it follows all of them.
pub(super) fn note_pod(cache: &Cache, name: &Name) {
    let pod = cache.stores.tenant(KindId::Pod).get(name).map(|pod| pod.object());
    let volumes = pod.iter().flat_map(|pod| json::items(pod, &["spec", "volumes"]));
    let mut sources = volumes.flat_map(|volume| json::items(volume, &["projected", "sources"]));
    let follows = sources.any(|source| projection_of(source).is_some());
    cache.trust_followers().set(name, follows);
}

/// Number of trust bundles that are as much work as a pod, and bytes of them.
const BUNDLES_LIKE_A_POD: (usize, u64) = (64, 1 << 20);

/// How much work it is to reconcile all pods that follow trust bundles, in that of one pod without any: for each, all bundles are looked at.
pub fn cost_of_following(cache: &Cache) -> u64 {
    let bundles = cache.stores.tenant(KindId::ClusterTrustBundle);
    let (number, bytes) = BUNDLES_LIKE_A_POD;
    let of_bundles = (bundles.len() / number) as u64 + bundles.bytes() / bytes;
    (1 + of_bundles).saturating_mul(cache.trust_followers().len() as u64)
}

/// The certificates that a projection selects. None if they have more bytes than are `left`, from which they are taken.
fn select(cache: &Cache, projection: &Value, left: &mut usize) -> Option<BTreeSet<String>> {
    let bundles = cache.stores.tenant(KindId::ClusterTrustBundle);
    let mut found = BTreeSet::new();
    let mut add = |bundle: &Value| {
        for certificate in certificates_of(bundle) {
            let bytes = certificate.len();
            if found.insert(certificate) {
                *left = left.checked_sub(bytes)?;
            }
        }
        Some(())
    };
    if let Some(name) = json::filled(projection, &["name"]) {
        if let Some(bundle) = bundles.get(&Name::new("", name)) {
            add(&bundle.object())?;
        }
        return Some(found);
    }
    let (Some(signer), Some(selector)) = (json::text(projection, &["signerName"]), selector(projection)) else {
        return Some(found);
    };
    for (_, bundle) in bundles.all() {
        let head = bundle.extract(0, head_of);
        if json::text(&head, &["signerName"]) == Some(signer) && selector.matches(&json::strings(&head, &["labels"])) {
            add(&bundle.object())?;
        }
    }
    Some(found)
}

/// What decides whether a projection selects a trust bundle. Its certificates are read only then.
fn head_of(bundle: &Value) -> Value {
    json!({"signerName": bundle["spec"]["signerName"], "labels": bundle["metadata"]["labels"]})
}

/// The label selector; none if there is none, or if it is one that the API server would not have accepted.
fn selector(projection: &Value) -> Option<Selector> {
    let selector = projection.get("labelSelector").filter(|value| !value.is_null())?;
    let selector: LabelSelector = serde_json::from_value(selector.clone()).ok()?;
    Selector::try_from(selector).ok()
}

fn certificates_of(bundle: &Value) -> Vec<String> {
    certificates_in(json::text(bundle, &["spec", "trustBundle"]).unwrap_or_default())
}

/// The certificates in a PEM text, without what is written between them.
pub(super) fn certificates_in(text: &str) -> Vec<String> {
    text.split(BEGIN)
        .skip(1)
        .filter_map(|rest| Some(format!("{BEGIN}{}{END}\n", rest.split_once(END)?.0)))
        .collect()
}

fn describe(projection: &Value) -> String {
    let text = |field| json::filled(projection, &[field]);
    match (text("name"), text("signerName")) {
        (Some(name), _) => format!("the ClusterTrustBundle {name}"),
        (None, Some(signer)) => format!("ClusterTrustBundles of the signer {signer} that the label selector selects"),
        (None, None) => "a projection without name and signer".to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        model::{resource::Side, store::Stored, tenant::test_tenant},
        registry,
    };

    fn certificate(number: u8) -> String {
        format!("{BEGIN}\nMIIB{number}\n{END}\n")
    }

    /// The trust bundles of a tenant: names, signers, values of a label, and texts.
    pub(in crate::kinds::pod) fn cache(bundles: &[(&str, Option<&str>, &str, String)]) -> Cache {
        let cache = registry::new_cache(test_tenant());
        for (name, signer, team, text) in bundles {
            let bundle = json!({
                "metadata": {"name": name, "resourceVersion": "1", "labels": {"team": team}},
                "spec": {"signerName": signer, "trustBundle": text},
            });
            let store = cache.stores.tenant(KindId::ClusterTrustBundle);
            store.written(Name::new("", name), Stored::new(&bundle));
        }
        cache
    }

    #[test]
    fn pods_with_projections_are_known_without_reading_them() {
        let cache = cache(&[]);
        let (trusting, plain) = (Name::new("team", "trusting"), Name::new("team", "plain"));
        let pods = cache.stores.tenant(KindId::Pod);
        let put = |name: &Name, object: &Value| {
            pods.watched(name.clone(), Stored::new(object));
            cache.update_dependents(Side::Tenant, KindId::Pod, name)
        };
        put(&trusting, &pod(&json!({"name": "ours"})));
        put(
            &plain,
            &json!({"metadata": {"annotations": {"note": "clusterTrustBundle"}}, "spec": {}}),
        );
        assert!(cache.trust_followers().pods().eq([&trusting]));
        let bundle = Name::new("", "ours");
        let keys = cache.update_dependents(Side::Tenant, KindId::ClusterTrustBundle, &bundle);
        assert!(keys.is_empty(), "they follow it at a bounded pace");
        assert!(std::mem::take(&mut cache.trust_followers().has_changed));
        pods.forget(&trusting);
        assert_eq!(cache.trust_followers().len(), 1, "the store is not read");
        cache.update_dependents(Side::Tenant, KindId::Pod, &trusting);
        assert!(cache.trust_followers().is_empty());
    }

    #[test]
    fn many_or_large_bundles_make_following_more_work() {
        let cache = cache(&[]);
        assert_eq!(cost_of_following(&cache), 0, "no pod follows");
        for pod in ["one", "two"] {
            cache.trust_followers().set(&Name::new("team", pod), true);
        }
        assert_eq!(cost_of_following(&cache), 2);
        let bundles = cache.stores.tenant(KindId::ClusterTrustBundle);
        for number in 0..BUNDLES_LIKE_A_POD.0 {
            let bundle = Stored::new(&json!({"metadata": {"name": number.to_string()}})).of_bytes(1 << 15);
            bundles.watched(Name::new("", &number.to_string()), bundle);
        }
        assert_eq!(cost_of_following(&cache), 2 * (1 + 1 + 2));
    }

    #[test]
    fn certificates_of_bundles_that_are_not_selected_are_read_once() {
        let signer = "example.com/ca";
        let cache = cache(&[
            ("one", Some(signer), "a", certificate(1)),
            ("two", Some(signer), "b", certificate(2)),
        ]);
        let selected = json!({"signerName": signer, "labelSelector": {"matchLabels": {"team": "a"}}});
        assert_eq!(select_one(&cache, &selected), Ok(certificate(1)));
        let other = cache
            .stores
            .tenant(KindId::ClusterTrustBundle)
            .get(&Name::new("", "two"));
        let head = other.unwrap().extract(0, |_| unreachable!("it is known"));
        assert_eq!(head, json!({"signerName": signer, "labels": {"team": "b"}}));
    }

    fn pod(projection: &Value) -> Value {
        json!({"spec": {"volumes": [{"name": "trust", "projected": {"sources": [{"clusterTrustBundle": projection}]}}]}})
    }

    fn select_one(cache: &Cache, projection: &Value) -> Result<String, String> {
        let mut bundles = bundles(cache, &pod(projection));
        bundles
            .found
            .remove("trust-0-0")
            .ok_or_else(|| bundles.missing.unwrap())
    }

    #[test]
    fn a_bundle_is_selected_by_its_name() {
        let commented = format!("Subject: our CA\n{}\n{}", certificate(1), certificate(1));
        let cache = cache(&[("ours", None, "a", commented), ("other", None, "a", certificate(2))]);
        let found = select_one(&cache, &json!({"name": "ours", "path": "ca.pem"}));
        assert_eq!(found, Ok(certificate(1)), "once, without the text around it");
    }

    #[test]
    fn bundles_are_selected_by_signer_and_labels() {
        let signer = "example.com/ca";
        let cache = cache(&[
            ("one", Some(signer), "a", certificate(1)),
            ("two", Some(signer), "b", certificate(2)),
            ("same", Some(signer), "b", certificate(1)),
            ("foreign", Some("other.com/ca"), "a", certificate(3)),
            ("plain", None, "a", certificate(4)),
        ]);
        let with = |selector: Value| select_one(&cache, &json!({"signerName": signer, "labelSelector": selector}));
        assert_eq!(with(json!({})), Ok(certificate(1) + &certificate(2)));
        assert_eq!(with(json!({"matchLabels": {"team": "a"}})), Ok(certificate(1)));
        let not_a = json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]});
        assert_eq!(with(not_a), Ok(certificate(1) + &certificate(2)));
        assert!(with(json!({"matchLabels": {"team": "c"}})).is_err());
        assert!(
            select_one(&cache, &json!({"signerName": signer})).is_err(),
            "no selector selects nothing"
        );
    }

    #[test]
    fn only_an_optional_projection_may_be_empty() {
        let cache = cache(&[]);
        let error = select_one(&cache, &json!({"name": "ours"})).unwrap_err();
        assert_eq!(error, "the ClusterTrustBundle ours");
        assert_eq!(
            select_one(&cache, &json!({"name": "ours", "optional": true})),
            Ok(String::new())
        );
        assert_eq!(bundles(&cache, &json!({"spec": {}})), Bundles::default());
    }
}
