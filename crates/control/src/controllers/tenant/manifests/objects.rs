//! Objects of a manifest: read from the YAML of a ConfigMap, and validated. Pure.

use berth_api::{labels, names};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Objects of all manifests of a class together: each is at least one request to every tenant.
pub(crate) const MAX_OBJECTS: usize = 500;
/// Namespaces that an API server never deletes.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];
/// Metadata that decide on the life of an object, or that only API servers write.
const DENIED_METADATA: [&str; 6] = [
    "generateName",
    "ownerReferences",
    "finalizers",
    "uid",
    "resourceVersion",
    "managedFields",
];
/// Kinds that other programs create, bind or delete all the time, so that no manifest can keep them, and what to use instead.
const DENIED_KINDS: [(&str, &str); 14] = [
    ("Pod", "use a Deployment or DaemonSet"),
    ("ReplicaSet", "use a Deployment"),
    ("Job", "use mode Once, or a CronJob"),
    ("Node", "nodes come from the platform"),
    ("Event", "Events are deleted after an hour"),
    ("Lease", "Leases are renewed by others"),
    ("Endpoints", "use mode Once"),
    ("EndpointSlice", "use mode Once"),
    ("PersistentVolumeClaim", "use mode Once"),
    ("ResourceClaim", "use mode Once"),
    ("VolumeSnapshot", "use mode Once"),
    ("PersistentVolume", "the host decides on volumes"),
    ("StorageClass", "the host decides on classes"),
    ("RuntimeClass", "the host decides on classes"),
];

/// What names an object, whatever the version of its API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ObjectKey {
    /// API group, empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
    /// None if its kind has no namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            group: _,
            kind,
            namespace,
            name,
        } = self;
        match namespace {
            Some(namespace) => write!(f, "{kind} {namespace}/{name}"),
            None => write!(f, "{kind} {name}"),
        }
    }
}

impl ObjectKey {
    /// Whether it is a namespace that an API server never deletes.
    pub(crate) fn is_immortal(&self) -> bool {
        self.group.is_empty() && self.kind == "Namespace" && IMMORTAL_NAMESPACES.contains(&self.name.as_str())
    }

    /// Group and name of its kind.
    pub(crate) fn group_and_kind(&self) -> (String, String) {
        (self.group.clone(), self.kind.clone())
    }

    /// Whether it has others in it, which end with it: it is a namespace or a definition.
    pub(crate) fn has_others(&self) -> bool {
        self.is_definition() || (self.group.is_empty() && self.kind == "Namespace")
    }

    /// Whether it defines a kind.
    pub(crate) fn is_definition(&self) -> bool {
        self.group == "apiextensions.k8s.io" && self.kind == "CustomResourceDefinition"
    }

    /// When it is applied among those of its part of a pass: namespaces and definitions before what needs them, policies and webhooks after
    /// what they could deny.
    pub(crate) fn rank(&self) -> u8 {
        match (self.group.as_str(), self.kind.as_str()) {
            ("", "Namespace") => 0,
            ("apiextensions.k8s.io", _) => 1,
            ("", "ServiceAccount" | "Secret" | "ConfigMap") => 2,
            ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => 3,
            ("admissionregistration.k8s.io", kind) if !kind.ends_with("Binding") => 5,
            ("admissionregistration.k8s.io", _) => 6,
            _ => 4,
        }
    }
}

/// An object of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ManifestObject {
    pub(crate) key: ObjectKey,
    /// Version of its API.
    pub(crate) version: String,
    /// As the manifest has it.
    pub(crate) value: Value,
    /// Hash of the value.
    pub(crate) hash: String,
}

/// The objects in the data of a ConfigMap.
///
/// # Errors
/// What is wrong, with the key of the data.
pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Vec<ManifestObject>, String> {
    let (mut objects, mut keys) = (Vec::new(), BTreeSet::new());
    for (file, text) in data {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
            // Its message shows the text, and the team reads this one.
            let place = error
                .location()
                .map_or_else(String::new, |at| format!(" (line {})", at.line()));
            format!("{file} is not YAML{place}")
        })?;
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            let object = read_object(document).map_err(|why| format!("{file}: {why}"))?;
            if !keys.insert(object.key.clone()) {
                return Err(format!("{file}: {} is there twice", object.key));
            }
            objects.push(object);
        }
    }
    if objects.is_empty() {
        return Err("it has no objects".into());
    }
    Ok(objects)
}

fn read_object(value: Value) -> Result<ManifestObject, String> {
    let text = |path: &str| value.pointer(path).and_then(Value::as_str).map(ToOwned::to_owned);
    let present = |path: &str, field: &str| {
        text(path)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| format!("an object has no {field}"))
    };
    let (kind, name) = (present("/kind", "kind")?, present("/metadata/name", "metadata.name")?);
    let api_version = present("/apiVersion", "apiVersion")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version.as_str()));
    let key = ObjectKey {
        group: group.to_owned(),
        kind,
        namespace: text("/metadata/namespace").filter(|namespace| !namespace.is_empty()),
        name,
    };
    if let Some(field) = DENIED_METADATA
        .iter()
        .find(|field| !value["metadata"][**field].is_null())
    {
        return Err(format!("{key}: remove metadata.{field}"));
    }
    for field in ["labels", "annotations"] {
        let map = &value["metadata"][field];
        if !map.is_null() && !map.is_object() {
            return Err(format!("{key}: metadata.{field} must be a map"));
        }
    }
    if let Some(reserved) = find_reserved_key(&value) {
        return Err(format!("{key}: remove {reserved}, which only Berth sets"));
    }
    Ok(ManifestObject {
        version: version.to_owned(),
        hash: names::hash(&[&value.to_string()]),
        key,
        value,
    })
}

/// A label or annotation of the object itself that is Berth's own, or one anywhere in it (such as a template of pods) by which the API
/// server knows the platform's objects.
fn find_reserved_key(value: &Value) -> Option<String> {
    let metadata = &value["metadata"];
    let own = ["labels", "annotations"]
        .into_iter()
        .filter_map(|field| metadata[field].as_object())
        .flat_map(serde_json::Map::keys)
        .find(|key| labels::is_reserved(key) && *key != labels::AGGREGATE_TO_VIEWER);
    own.cloned().or_else(|| find_managed_by(value))
}

/// Where `labels` in an object have [`labels::MANAGED_BY`].
fn find_managed_by(value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let has_label = fields
                .get("labels")
                .is_some_and(|all| !all[labels::MANAGED_BY].is_null());
            if has_label {
                return Some(labels::MANAGED_BY.to_owned());
            }
            fields.values().find_map(find_managed_by)
        }
        Value::Array(items) => items.iter().find_map(find_managed_by),
        _ => None,
    }
}

/// Whether objects can be kept: their kinds are no others' business, and nobody can delete a namespace under them.
///
/// # Errors
/// The first object that cannot, and what to do.
pub(crate) fn validate_kept<'a>(objects: impl Iterator<Item = &'a ManifestObject> + Clone) -> Result<(), String> {
    let is_namespace = |key: &ObjectKey| key.group.is_empty() && key.kind == "Namespace";
    let namespaces: BTreeSet<&str> = objects
        .clone()
        .filter(|object| is_namespace(&object.key))
        .map(|object| object.key.name.as_str())
        .collect();
    for ManifestObject { key, .. } in objects {
        let denied = DENIED_KINDS.iter().find(|(kind, _)| *kind == key.kind);
        if let Some((_, instead)) = denied.filter(|_| is_of_kubernetes(&key.group)) {
            return Err(format!("{key} cannot be kept: {instead}"));
        }
        if let Some(namespace) = key.namespace.as_deref()
            && !IMMORTAL_NAMESPACES.contains(&namespace)
            && !namespaces.contains(namespace)
        {
            return Err(format!(
                "{key}: the team could delete its namespace; add the Namespace {namespace} to a manifest of mode Keep, or use one of {}",
                IMMORTAL_NAMESPACES.join(", ")
            ));
        }
    }
    Ok(())
}

/// Whether a group is one of Kubernetes itself or of its projects.
fn is_of_kubernetes(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn data(text: &str) -> BTreeMap<String, String> {
        [("objects.yaml".to_owned(), text.to_owned())].into()
    }

    fn error(text: &str) -> String {
        parse(&data(text)).unwrap_err()
    }

    #[test]
    fn documents_become_objects() {
        let text = "# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: tools}\n---\n\
                    apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: tools}\n\
                    spec: {podSelector: {}}\n";
        let objects = parse(&data(text)).unwrap();
        let names: Vec<String> = objects.iter().map(|object| object.key.to_string()).collect();
        assert_eq!(names, ["Namespace tools", "NetworkPolicy tools/deny"]);
        assert_eq!(
            (objects[1].key.group.as_str(), objects[1].version.as_str()),
            ("networking.k8s.io", "v1")
        );
        assert_eq!((objects[0].key.group.as_str(), objects[0].version.as_str()), ("", "v1"));
        assert!(objects[0].key.rank() < objects[1].key.rank());
    }

    #[test]
    fn errors_name_the_file_and_the_object_and_show_no_text() {
        let error_in_yaml = error("password: [");
        assert!(error_in_yaml.starts_with("objects.yaml is not YAML"), "{error_in_yaml}");
        assert!(!error_in_yaml.contains("password"), "{error_in_yaml}");
        assert_eq!(error(""), "it has no objects");
        assert_eq!(
            error("kind: ConfigMap\nmetadata: {name: a}"),
            "objects.yaml: an object has no apiVersion"
        );
        assert_eq!(
            error("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a}"),
            "objects.yaml: an object has no metadata.name"
        );
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n";
        assert_eq!(
            error(&format!("{map}---\n{map}")),
            "objects.yaml: ConfigMap default/a is there twice"
        );
    }

    #[test]
    fn what_only_berth_or_api_servers_set_is_rejected() {
        for metadata in [
            "finalizers: [a.b/c]",
            "ownerReferences: [{name: a}]",
            "uid: a",
            "labels: {berth.dev/managed-by: control}",
            "annotations: {berth.dev/applied-hash: a}",
        ] {
            let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, {metadata}}}");
            assert!(error(&text).contains("remove "), "{metadata}");
        }
        let list = error("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: [a]}");
        assert!(list.contains("metadata.labels must be a map"), "{list}");
        // Its pods could not be created.
        let template = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n\
                        spec: {template: {metadata: {labels: {berth.dev/managed-by: platform}}}}";
        assert!(error(template).contains("remove berth.dev/managed-by"));
        let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n\
                    metadata: {name: a, labels: {berth.dev/aggregate-to-viewer: 'true'}}";
        assert_eq!(parse(&data(role)).unwrap().len(), 1);
    }

    #[test]
    fn what_is_kept_is_in_a_namespace_that_the_team_cannot_delete() {
        let policy = |namespace: &str| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a, namespace: {namespace}}}\n"
            )
        };
        let check = |text: &str| validate_kept(parse(&data(text)).unwrap().iter());
        assert_eq!(check(&policy("default")), Ok(()));
        let message = check(&policy("tools")).unwrap_err();
        assert!(message.contains("add the Namespace tools"), "{message}");
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tools}";
        assert_eq!(check(&format!("{}---\n{namespace}", policy("tools"))), Ok(()));
        let message = check("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: default}").unwrap_err();
        assert_eq!(message, "Pod default/a cannot be kept: use a Deployment or DaemonSet");
    }
}
