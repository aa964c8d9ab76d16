//! Which resource of a tenant has the objects of a kind.
//!
//! Several definitions can have the same kind, and API servers serve the one that had its names first. The team's may be that one. So objects
//! of a kind that the manifests define go to the resource of their definition, and wait until it is served.

use super::{desired::Manifest, messages::message_of_list};
use crate::control_plane::served_groups;
use berth_runtime::discovery;
use kube::{Client, api::GroupVersionKind};
use std::collections::{BTreeMap, BTreeSet};

pub(super) use berth_runtime::discovery::Resource as ServedKind;

/// Why it is not known where objects of a kind are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KindError {
    /// The tenant does not serve it.
    NotServed(String),
    /// Its API server does not say, or its definitions contradict each other.
    Unclear(String),
}

impl KindError {
    /// What is wrong.
    pub(super) fn message(self) -> String {
        match self {
            Self::NotServed(message) | Self::Unclear(message) => message,
        }
    }
}

/// The kinds that manifests define.
#[derive(Clone, Debug, Default)]
pub(super) struct DefinedKinds {
    /// Their plural names, by group and kind.
    plurals: BTreeMap<(String, String), BTreeSet<String>>,
    /// A manifest that cannot be read: it may define more.
    unread: Option<String>,
}

impl DefinedKinds {
    /// Those of the definitions in manifests.
    pub(super) fn of(manifests: &[Manifest]) -> Self {
        let mut kinds: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        for object in manifests.iter().flat_map(Manifest::known) {
            if !object.key.is_definition() {
                continue;
            }
            let text = |path: &str| {
                let value = object.value.pointer(path).and_then(serde_json::Value::as_str);
                value.unwrap_or_default().to_owned()
            };
            let kind = (text("/spec/group"), text("/spec/names/kind"));
            kinds.entry(kind).or_default().insert(text("/spec/names/plural"));
        }
        let unread = manifests.iter().find(|manifest| manifest.objects.is_err());
        Self {
            plurals: kinds,
            unread: unread.map(|manifest| manifest.spec.name.clone()),
        }
    }

    /// The plural names that a kind may have; None if no manifest defines it.
    fn plurals(&self, kind: &GroupVersionKind) -> Option<&BTreeSet<String>> {
        self.plurals.get(&(kind.group.clone(), kind.kind.clone()))
    }

    /// Whether objects of a kind may go to the resource of this plural name.
    pub(super) fn allow(&self, kind: &GroupVersionKind, plural: &str) -> bool {
        self.plurals(kind).is_none_or(|plurals| plurals.contains(plural))
    }

    /// Whether a manifest that cannot be read may define a kind.
    fn may_be_defined_elsewhere(&self, kind: &GroupVersionKind) -> bool {
        // Other groups of `k8s.io` are those of definitions, such as the Gateway API's, which the team may have.
        let is_built_in = served_groups().any(|group| group == kind.group);
        self.unread.is_some() && !is_built_in && self.plurals(kind).is_none()
    }

    /// Asks a tenant's API server where objects of a kind are.
    pub(super) async fn find(&self, client: &Client, kind: &GroupVersionKind) -> Result<ServedKind, KindError> {
        if let Some(unread) = self.unread.as_ref().filter(|_| self.may_be_defined_elsewhere(kind)) {
            return Err(KindError::Unclear(format!(
                "the manifest {unread} cannot be read, and may define the kind; repair it first"
            )));
        }
        match discovery::resources(client, &kind.group, &kind.version).await {
            Ok(served) => self.choose(kind, served),
            Err(error) => Err(KindError::Unclear(message_of_list(kind, &error))),
        }
    }

    /// The one of the resources of a group and version that has the kind.
    fn choose(&self, kind: &GroupVersionKind, served: Vec<ServedKind>) -> Result<ServedKind, KindError> {
        let is_of_kind =
            |served: &ServedKind| served.resource.kind == kind.kind && self.allow(kind, &served.resource.plural);
        let mut found = served.into_iter().filter(is_of_kind);
        let Some(first) = found.next() else {
            return Err(self.not_served(kind));
        };
        if let Some(other) = found.next() {
            return Err(KindError::Unclear(format!(
                "the tenant serves the kind as {} and as {} of the group {}; define it in a manifest of the class, or delete one of the two \
                 CustomResourceDefinitions",
                first.resource.plural, other.resource.plural, kind.group
            )));
        }
        Ok(first)
    }

    fn not_served(&self, kind: &GroupVersionKind) -> KindError {
        let GroupVersionKind { group, version, .. } = kind;
        let mut message = format!("the tenant does not serve the kind in version {version}");
        if let Some(plurals) = self.plurals(kind) {
            let names: Vec<String> = plurals.iter().map(|plural| format!("{plural}.{group}")).collect();
            let names = names.join(", ");
            message = format!(
                "{message} as the CustomResourceDefinition {names} of the manifests says; look at its conditions in the tenant: another \
                 definition there may have its names"
            );
        }
        KindError::NotServed(message)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::objects::{parse, tests::data},
        *,
    };
    use berth_api::ClassManifest;
    use kube::api::ApiResource;
    use std::sync::Arc;

    const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                              metadata: {name: guards.platform.example}\n\
                              spec: {group: platform.example, names: {kind: Guard, plural: guards}}\n";

    fn defined(text: &str) -> DefinedKinds {
        let manifest = Manifest {
            spec: ClassManifest::default(),
            objects: Ok(Arc::new(parse(&data(text)).unwrap())),
        };
        DefinedKinds::of(&[manifest])
    }

    fn guard() -> GroupVersionKind {
        GroupVersionKind::gvk("platform.example", "v1", "Guard")
    }

    /// Resources of these plural names, all of them of the kind.
    fn served(plurals: &[&str]) -> Vec<ServedKind> {
        let resource = |plural: &&str| ServedKind {
            resource: ApiResource::from_gvk_with_plural(&guard(), plural),
            is_namespaced: true,
        };
        plurals.iter().map(resource).collect()
    }

    fn plural(chosen: Result<ServedKind, KindError>) -> Result<String, String> {
        match chosen {
            Ok(served) => Ok(served.resource.plural),
            Err(error) => Err(error.message()),
        }
    }

    #[test]
    fn a_kind_that_manifests_define_is_that_of_their_definition() {
        let kinds = defined(DEFINITION);
        assert_eq!(
            plural(kinds.choose(&guard(), served(&["evils", "guards"]))),
            Ok("guards".into())
        );
        let other = kinds.choose(&guard(), served(&["evils"]));
        assert!(matches!(other, Err(KindError::NotServed(_))), "{other:?}");
        let message = plural(other).unwrap_err();
        assert!(message.contains("guards.platform.example"), "{message}");
        assert!(kinds.allow(&guard(), "guards") && !kinds.allow(&guard(), "evils"));
    }

    #[test]
    fn a_kind_that_no_manifest_defines_has_one_resource() {
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n";
        let kinds = defined(map);
        let one = kinds.choose(&guard(), served(&["guards"])).unwrap();
        assert!(one.is_namespaced);
        assert_eq!(one.resource.plural, "guards");
        let two = kinds.choose(&guard(), served(&["evils", "guards"]));
        assert!(matches!(two, Err(KindError::Unclear(_))), "{two:?}");
        let message = plural(two).unwrap_err();
        assert!(message.contains("as evils and as guards"), "{message}");
        assert_eq!(
            plural(kinds.choose(&guard(), served(&[]))),
            Err("the tenant does not serve the kind in version v1".into())
        );
    }

    #[test]
    fn only_kinds_that_api_servers_serve_themselves_are_looked_for_while_a_manifest_cannot_be_read() {
        let mut kinds = defined(DEFINITION);
        kinds.unread = Some("base".into());
        let may_be_defined = |group: &str| kinds.may_be_defined_elsewhere(&GroupVersionKind::gvk(group, "v1", "Guard"));
        for group in ["other.example", "gateway.networking.k8s.io", "snapshot.storage.k8s.io"] {
            assert!(may_be_defined(group), "{group}");
        }
        for group in ["", "apps", "networking.k8s.io", "platform.example"] {
            assert!(!may_be_defined(group), "{group}");
        }
        kinds.unread = None;
        assert!(!kinds.may_be_defined_elsewhere(&GroupVersionKind::gvk("other.example", "v1", "Guard")));
    }

    #[test]
    fn the_same_kind_of_another_group_is_another_one() {
        let kinds = defined(DEFINITION);
        let other = GroupVersionKind::gvk("other.example", "v1", "Guard");
        assert!(kinds.allow(&other, "evils"));
    }
}
