//! What the tenant has of the platform's objects, by their metadata. A tenant can serve kinds by servers of its own, so that nothing is
//! kept of an answer but the objects that manifests have, and of these only short texts.

use super::{
    objects::{MAX_OBJECTS, ObjectKey},
    parts::Kind,
};
use berth_api::labels;
use kube::{
    Api,
    api::{DynamicObject, ListParams, ObjectMeta},
};
use std::collections::{BTreeMap, BTreeSet};

/// Objects in an answer to a list. The team decides how large they are in tenants whose API server does not protect the label.
const PAGE: u32 = 100;
/// Answers of a list: twice the objects that Berth applies.
const MAX_PAGES: usize = 2 * MAX_OBJECTS / PAGE as usize;
/// Bytes of a hash or a resource version. API servers write numbers.
const MAX_TEXT: usize = 64;

/// An object as it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) hash: String,
    resource_version: String,
    /// Counts changes that are no status; some kinds have none.
    generation: Option<i64>,
}

impl Applied {
    /// What an object's metadata say of its last apply. Texts that are too long count as none.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        let short = |text: Option<&String>| text.filter(|text| text.len() <= MAX_TEXT).cloned().unwrap_or_default();
        let annotations = metadata.annotations.as_ref();
        Self {
            hash: short(annotations.and_then(|annotations| annotations.get(labels::APPLIED_HASH))),
            resource_version: short(metadata.resource_version.as_ref()),
            generation: metadata.generation,
        }
    }

    /// Whether an apply has changed the object. Its status may have changed meanwhile.
    pub(super) fn is_changed_by(&self, apply: &Self) -> bool {
        match (self.generation, apply.generation) {
            (Some(before), Some(after)) => before != after,
            _ => self.resource_version != apply.resource_version,
        }
    }
}

/// What the tenant has of the platform's objects.
#[derive(Default)]
pub(super) struct Live {
    pub(super) objects: BTreeMap<ObjectKey, Applied>,
    /// Kinds that were listed completely.
    pub(super) listed: BTreeSet<Kind>,
}

/// The platform's objects of a kind, as far as they are wanted. None if they cannot be listed, or are more than Berth applies.
pub(super) async fn list_kind(
    api: &Api<DynamicObject>,
    (group, kind): &Kind,
    wanted: &BTreeSet<&ObjectKey>,
) -> Option<BTreeMap<ObjectKey, Applied>> {
    let label = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_PLATFORM);
    let mut params = ListParams::default().labels(&label).limit(PAGE);
    let mut all = BTreeMap::new();
    for _ in 0..MAX_PAGES {
        let page = api.list_metadata(&params).await.ok()?;
        let length = page.items.len();
        if length > PAGE as usize {
            // A server of the team's that does not read in pages.
            return None;
        }
        for found in page.items {
            let key = ObjectKey {
                group: group.clone(),
                kind: kind.clone(),
                namespace: found.metadata.namespace.clone(),
                name: found.metadata.name.clone().unwrap_or_default(),
            };
            if wanted.contains(&key) {
                all.insert(key, Applied::of(&found.metadata));
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            // An API server fills its pages.
            Some(_) if length == 0 => return None,
            Some(token) => params = params.continue_token(&token),
            None => return Some(all),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(text: &str) -> ObjectMeta {
        ObjectMeta {
            annotations: Some([(labels::APPLIED_HASH.to_owned(), text.to_owned())].into()),
            resource_version: Some(text.into()),
            generation: Some(7),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn little_is_kept_of_an_object() {
        let hash = berth_api::names::hash(&["a"]);
        let kept = Applied::of(&metadata(&hash));
        assert_eq!((&kept.hash, &kept.resource_version), (&hash, &hash));
        let kept = Applied::of(&metadata(&"x".repeat(1 << 20)));
        assert!(
            kept.hash.capacity() + kept.resource_version.capacity() < 1024,
            "of 2 MiB"
        );
        assert_eq!(kept.generation, Some(7));
    }
}
