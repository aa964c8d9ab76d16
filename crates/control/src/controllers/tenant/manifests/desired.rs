//! The manifests of a class with their objects, as the ConfigMaps have them now.

use super::objects::{MAX_OBJECTS, ManifestObject, ObjectKey, parse, validate_kept};
use berth_api::{ClassManifest, ManifestMode, labels, names, system};
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

/// Why the objects of a manifest are not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Reason of the condition.
    pub(crate) reason: &'static str,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// A manifest of a class.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) spec: ClassManifest,
    pub(crate) objects: Result<Arc<Vec<ManifestObject>>, Problem>,
}

impl Manifest {
    /// Its objects; none if they are not known.
    pub(crate) fn known(&self) -> &[ManifestObject] {
        self.objects.as_ref().map_or(&[], |objects| objects.as_slice())
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.spec.mode == ManifestMode::Keep
    }
}

type Parsed = Result<Arc<Vec<ManifestObject>>, String>;

/// Objects of ConfigMaps, so that each version of a ConfigMap is parsed once for all tenants.
#[derive(Default)]
pub(crate) struct ParsedManifests(Mutex<HashMap<String, (String, Parsed)>>);

impl ParsedManifests {
    fn of(&self, map: &ConfigMap) -> Parsed {
        let version = format!(
            "{}/{}",
            map.uid().unwrap_or_default(),
            map.resource_version().unwrap_or_default()
        );
        let mut known = lock(&self.0);
        if let Some((_, parsed)) = known.get(&map.name_any()).filter(|(known, _)| *known == version) {
            return parsed.clone();
        }
        let parsed = parse(&map.data.clone().unwrap_or_default()).map(Arc::new);
        known.insert(map.name_any(), (version, parsed.clone()));
        parsed
    }
}

/// The manifests of a class. `find` returns a ConfigMap of Berth's namespace that has the label of manifests.
pub(crate) fn resolve(
    manifests: &[ClassManifest],
    find: impl Fn(&str) -> Option<Arc<ConfigMap>>,
    parsed: &ParsedManifests,
) -> Vec<Manifest> {
    let read = |spec: &ClassManifest| {
        let ClassManifest {
            name, config_map_ref, ..
        } = spec;
        let map = &config_map_ref.name;
        let Some(found) = find(map) else {
            return Err(Problem::new(
                "ConfigMapMissing",
                format!(
                    "manifest {name}: there is no ConfigMap {}/{map} with the label {}: \"{}\"; create it or add the label",
                    system::NAMESPACE,
                    labels::MANIFESTS,
                    labels::MANIFESTS_ALLOWED
                ),
            ));
        };
        let invalid = |why: String| Problem::new("ManifestInvalid", format!("manifest {name}, ConfigMap {map}: {why}"));
        parsed.of(&found).map_err(invalid)
    };
    let mut resolved: Vec<Manifest> = manifests
        .iter()
        .map(|spec| Manifest {
            spec: spec.clone(),
            objects: read(spec),
        })
        .collect();
    if let Err(why) = validate(&resolved) {
        for manifest in &mut resolved {
            if manifest.objects.is_ok() {
                manifest.objects = Err(Problem::new("ManifestInvalid", why.clone()));
            }
        }
    }
    resolved
}

/// Whether the manifests of a class fit each other.
fn validate(manifests: &[Manifest]) -> Result<(), String> {
    let mut owners: BTreeMap<&ObjectKey, &str> = BTreeMap::new();
    for manifest in manifests {
        for object in manifest.known() {
            if let Some(other) = owners.insert(&object.key, &manifest.spec.name) {
                return Err(format!(
                    "{} is in the manifests {other} and {}; remove it from one of them",
                    object.key, manifest.spec.name
                ));
            }
        }
    }
    if owners.len() > MAX_OBJECTS {
        return Err(format!(
            "the manifests of the class have {} objects, and {MAX_OBJECTS} are allowed",
            owners.len()
        ));
    }
    let kept = manifests.iter().filter(|manifest| manifest.is_kept());
    validate_kept(kept.flat_map(Manifest::known))
}

/// Text that changes with everything that a pass depends on.
pub(crate) fn digest(manifests: &[Manifest]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for Manifest { spec, objects } in manifests {
        parts.push(format!("{} {} {:?}", spec.name, spec.version, spec.mode));
        match objects {
            Ok(objects) => parts.extend(objects.iter().map(|object| object.hash.clone())),
            Err(problem) => parts.push(problem.message.clone()),
        }
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    names::hash(&parts)
}

#[cfg(test)]
mod tests {
    use super::{super::objects::tests::data, *};
    use berth_api::ManifestConfigMap;

    fn manifest(name: &str, mode: ManifestMode) -> ClassManifest {
        ClassManifest {
            name: name.into(),
            version: "v1".into(),
            mode,
            config_map_ref: ManifestConfigMap { name: name.into() },
        }
    }

    fn map(name: &str, version: &str, text: &str) -> Arc<ConfigMap> {
        let mut map = ConfigMap {
            data: Some(data(text)),
            ..ConfigMap::default()
        };
        map.metadata.name = Some(name.into());
        map.metadata.resource_version = Some(version.into());
        Arc::new(map)
    }

    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}";

    fn problem(manifest: &Manifest) -> &Problem {
        manifest.objects.as_ref().unwrap_err()
    }

    #[test]
    fn a_config_map_that_is_missing_or_invalid_concerns_its_manifest_only() {
        let specs = [
            manifest("a", ManifestMode::Keep),
            manifest("b", ManifestMode::Keep),
            manifest("c", ManifestMode::Keep),
        ];
        let find = |name: &str| match name {
            "a" => Some(map("a", "1", MAP)),
            "b" => Some(map("b", "1", "kind: x")),
            _ => None,
        };
        let resolved = resolve(&specs, find, &ParsedManifests::default());
        assert_eq!(resolved[0].known().len(), 1);
        assert_eq!(problem(&resolved[1]).reason, "ManifestInvalid");
        assert_eq!(problem(&resolved[2]).reason, "ConfigMapMissing");
        assert!(problem(&resolved[2]).message.contains("berth.dev/manifests: \"true\""));
    }

    #[test]
    fn an_object_belongs_to_one_manifest() {
        let specs = [manifest("a", ManifestMode::Keep), manifest("b", ManifestMode::Once)];
        let resolved = resolve(&specs, |name| Some(map(name, "1", MAP)), &ParsedManifests::default());
        for manifest in &resolved {
            let message = &problem(manifest).message;
            assert!(message.contains("is in the manifests a and b"), "{message}");
        }
    }

    #[test]
    fn a_change_of_the_config_map_the_version_or_the_mode_changes_the_digest() {
        let parsed = ParsedManifests::default();
        let digest_of = |spec: ClassManifest, version: &str, text: &str| {
            digest(&resolve(&[spec], |name| Some(map(name, version, text)), &parsed))
        };
        let first = digest_of(manifest("a", ManifestMode::Keep), "1", MAP);
        assert_eq!(digest_of(manifest("a", ManifestMode::Keep), "1", MAP), first);
        let changed = MAP.replace("default}", "default, labels: {a: b}}");
        let mut newer = manifest("a", ManifestMode::Keep);
        newer.version = "v2".into();
        for other in [
            digest_of(manifest("a", ManifestMode::Keep), "2", &changed),
            digest_of(manifest("a", ManifestMode::Once), "1", MAP),
            digest_of(newer, "1", MAP),
        ] {
            assert_ne!(other, first);
        }
    }
}
