//! The CustomResourceDefinitions of a tenant that have a kind. API servers serve these themselves, so they say for certain where objects of the
//! kind can be: in versions that are not served any more, nothing is found.

use super::{
    messages::message,
    objects::ObjectKey,
    parts::{Kind, Turns},
    registrations::Registration,
};
use crate::{apply::optional, tenant_lists::Pages};
use berth_runtime::discovery::is_segment;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Definitions of a group that are read. Providers of clouds have some hundreds in a group.
pub(super) const MAX_DEFINITIONS: usize = 500;
/// Versions of a definition that are asked.
const MAX_VERSIONS: usize = 8;
/// Where all definitions are.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Definitions that are listed.
const MAX_LISTED: usize = 10_000;

/// A definition of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) name: String,
    kind: String,
    plural: String,
    /// Versions that it serves. The one in which objects are stored, which needs no webhook for conversion, comes first.
    pub(super) versions: Vec<String>,
    /// Whether API servers serve it: no other definition has its names.
    pub(super) is_accepted: bool,
}

impl Definition {
    /// What a definition says. None: it is of another group.
    fn of(object: &DynamicObject, group: &str) -> Option<Self> {
        let spec = &object.data["spec"];
        if spec["group"] != group {
            return None;
        }
        let text = |value: &Value| value.as_str().filter(|text| is_segment(text)).map(ToOwned::to_owned);
        let mut served: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
        served.retain(|version| version["served"] == true);
        served.sort_by_key(|version| version["storage"] != true);
        let versions = served.into_iter().filter_map(|version| text(&version["name"]));
        let conditions = object.data["status"]["conditions"].as_array();
        let is_accepted = conditions.into_iter().flatten().any(|condition| {
            // API servers serve a definition that has one of the two.
            let is_one = condition["type"] == "Established" || condition["type"] == "NamesAccepted";
            is_one && condition["status"] == "True"
        });
        Some(Self {
            name: object.metadata.name.clone()?,
            kind: text(&spec["names"]["kind"]).unwrap_or_default(),
            plural: text(&spec["names"]["plural"])?,
            versions: versions.take(MAX_VERSIONS).collect(),
            is_accepted,
        })
    }

    /// Whether it may have an object that was applied in the resource of this plural name, if that is known. The team can change the kind of its
    /// definitions for a while, but not their plural names, which are parts of their names.
    pub(super) fn may_have(&self, key: &ObjectKey, resource: &str) -> bool {
        self.kind == key.kind || self.plural == resource
    }

    /// Where objects of a kind are in a version of the definition.
    pub(super) fn resource(&self, key: &ObjectKey, version: &str) -> ApiResource {
        let kind = GroupVersionKind::gvk(&key.group, version, &key.kind);
        ApiResource::from_gvk_with_plural(&kind, &self.plural)
    }
}

/// The definitions that a pass has read.
#[derive(Default)]
pub(super) struct Definitions {
    /// Their names, by the kind for which they were listed.
    names: BTreeMap<Kind, Vec<String>>,
    /// What they say; None if there is no such definition, or it is of another group.
    read: BTreeMap<String, Option<Definition>>,
}

impl Definitions {
    /// Names of the definitions in the group of an object: those first that are probably of its kind, and one more than
    /// [`MAX_DEFINITIONS`] if there are more.
    ///
    /// # Errors
    /// The API server refuses or does not answer in time.
    pub(super) async fn list(
        &mut self,
        client: &Client,
        turns: &mut Turns,
        key: &ObjectKey,
    ) -> Result<Vec<String>, String> {
        let kind = key.group_and_kind();
        if let Some(known) = self.names.get(&kind) {
            return Ok(known.clone());
        }
        let mut names = turns.read(key, list_names(client, &kind.0)).await??;
        sort_by_likeness(&mut names, &kind.1);
        names.truncate(MAX_DEFINITIONS + 1);
        self.names.insert(kind, names.clone());
        Ok(names)
    }

    /// What a definition says that [`Self::list`] names, if it is there.
    ///
    /// # Errors
    /// The API server refuses or does not answer in time.
    pub(super) async fn read(
        &mut self,
        client: &Client,
        turns: &mut Turns,
        key: &ObjectKey,
        name: &str,
    ) -> Result<Option<Definition>, String> {
        if let Some(known) = self.read.get(name) {
            return Ok(known.clone());
        }
        let found = turns.read(key, definitions(client).get(name)).await?;
        let found = optional(found).map_err(|error| message(&error))?;
        let definition = found.and_then(|found| Definition::of(&found, &key.group));
        self.read.insert(name.to_owned(), definition.clone());
        Ok(definition)
    }
}

/// Reads which revision of a definition there is.
///
/// # Errors
/// The API server refuses or does not answer.
pub(super) async fn read_revision(client: &Client, name: &str) -> kube::Result<Option<Registration>> {
    let found = optional(definitions(client).get_metadata(name).await)?;
    Ok(found.map(|found| Registration::of_own(&found.metadata)))
}

fn definitions(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
    Api::all_with(client.clone(), &resource)
}

/// What is read of a definition in a list.
#[derive(Deserialize)]
struct Listed {
    metadata: ListedMetadata,
}

#[derive(Deserialize)]
struct ListedMetadata {
    #[serde(default)]
    name: String,
}

/// Names of all definitions of a group: that of a definition is its plural name, a dot, and its group.
async fn list_names(client: &Client, group: &str) -> Result<Vec<String>, String> {
    let is_of_group = |name: &String| name.split_once('.').is_some_and(|(_, of)| of == group) && is_segment(name);
    // Their annotations alone have up to 256 KiB each, so some pages may be too long.
    let mut pages = Pages::of_metadata(client, DEFINITIONS);
    let (mut names, mut listed) = (Vec::new(), 0);
    while listed <= MAX_LISTED {
        let Some(page) = pages.next::<Listed>().await? else {
            return Ok(names);
        };
        listed += page.len();
        names.extend(page.into_iter().map(|found| found.metadata.name).filter(is_of_group));
    }
    Err(format!(
        "the tenant has more than {MAX_LISTED} CustomResourceDefinitions, which are not all read"
    ))
}

/// Puts names first whose plural begins as that of a kind probably does.
fn sort_by_likeness(names: &mut [String], kind: &str) {
    let mut stem = kind.to_lowercase();
    // The last letter changes in some plurals.
    stem.pop();
    names.sort_by_key(|name| !name.starts_with(&stem));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GROUP: &str = "platform.example";

    fn object(versions: &Value, condition: &str) -> DynamicObject {
        let object = json!({
            "metadata": {"name": "guards.platform.example"},
            "spec": {"group": "platform.example", "names": {"kind": "Guard", "plural": "guards"}, "versions": versions},
            "status": {"conditions": [{"type": condition, "status": "True"}]},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn versions_that_are_served_count_and_the_stored_one_comes_first() {
        let versions = json!([
            {"name": "v1alpha1", "served": false, "storage": false},
            {"name": "v1beta1", "served": true, "storage": false},
            {"name": "v1", "served": true, "storage": true},
        ]);
        let definition = Definition::of(&object(&versions, "Established"), GROUP).unwrap();
        assert_eq!(definition.versions, ["v1", "v1beta1"]);
        assert!(definition.is_accepted);
        let key = ObjectKey {
            group: "platform.example".into(),
            kind: "Guard".into(),
            namespace: None,
            name: "a".into(),
        };
        let resource = definition.resource(&key, "v1");
        assert_eq!(
            (resource.api_version.as_str(), resource.plural.as_str()),
            ("platform.example/v1", "guards")
        );
        assert_eq!(Definition::of(&object(&versions, "Established"), "other.example"), None);
        assert!(definition.may_have(&key, "") && definition.may_have(&key, "guards"));
        let other = ObjectKey {
            kind: "Other".into(),
            ..key
        };
        assert!(!definition.may_have(&other, "") && !definition.may_have(&other, "others"));
        assert!(definition.may_have(&other, "guards"), "it was of the kind before");
    }

    #[test]
    fn a_definition_whose_names_another_one_has_is_not_accepted() {
        let versions = json!([{"name": "v1", "served": true, "storage": true}]);
        let definition = Definition::of(&object(&versions, "Terminating"), GROUP).unwrap();
        assert!(!definition.is_accepted);
    }

    #[test]
    fn little_is_kept_of_a_definition() {
        let version = json!({"name": "v1", "served": true, "schema": "x".repeat(1000)});
        let definition = Definition::of(&object(&vec![version; 100].into(), "Established"), GROUP).unwrap();
        assert_eq!(definition.versions.len(), MAX_VERSIONS);
    }

    #[test]
    fn likely_names_come_first() {
        let mut names = ["a.x", "policies.x", "b.x", "policyexceptions.x"].map(ToOwned::to_owned);
        sort_by_likeness(&mut names, "Policy");
        assert_eq!(names, ["policies.x", "policyexceptions.x", "a.x", "b.x"]);
    }
}
