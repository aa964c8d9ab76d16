//! CustomResourceDefinitions of the further kinds that a class lists: a tenant that has none gets the host's, so that its
//! teams can use the kind as documented.
//!
//! Only what the one listed version needs is copied: its schema and columns, but no conversion webhook, which would be an
//! address of the host. A definition that the tenant created itself is left alone, and none is ever deleted: the tenant's
//! objects would be deleted with it.

use berth_api::labels;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion,
};
use kube::{ResourceExt, api::ObjectMeta};
use std::collections::BTreeMap;

/// Annotation that definitions in groups under `k8s.io` and `kubernetes.io` must carry.
const APPROVAL: &str = "api-approved.kubernetes.io";

/// The host's definition as the tenant gets it; none if it does not serve the version or is not namespaced.
pub fn tenant_definition(host: &CustomResourceDefinition, version: &str) -> Option<CustomResourceDefinition> {
    let CustomResourceDefinitionSpec {
        conversion: _,
        group,
        names,
        preserve_unknown_fields: _,
        scope,
        versions,
    } = &host.spec;
    if scope != "Namespaced" {
        return None;
    }
    let found = versions.iter().find(|known| known.name == version && known.served)?;
    let CustomResourceDefinitionNames {
        categories,
        kind,
        list_kind,
        plural,
        short_names,
        singular,
    } = names;
    Some(CustomResourceDefinition {
        metadata: ObjectMeta {
            name: Some(format!("{plural}.{group}")),
            labels: Some(BTreeMap::from([(
                labels::MANAGED_BY.into(),
                labels::MANAGED_BY_CONTROL.into(),
            )])),
            annotations: host
                .annotations()
                .get_key_value(APPROVAL)
                .map(|(key, value)| BTreeMap::from([(key.clone(), value.clone())])),
            ..ObjectMeta::default()
        },
        spec: CustomResourceDefinitionSpec {
            conversion: None,
            group: group.clone(),
            names: CustomResourceDefinitionNames {
                categories: categories.clone(),
                kind: kind.clone(),
                list_kind: list_kind.clone(),
                plural: plural.clone(),
                short_names: short_names.clone(),
                singular: singular.clone(),
            },
            preserve_unknown_fields: None,
            scope: scope.clone(),
            versions: vec![CustomResourceDefinitionVersion {
                storage: true,
                deprecated: None,
                deprecation_warning: None,
                ..found.clone()
            }],
        },
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(scope: &str) -> CustomResourceDefinition {
        let version = |name: &str, served: bool, storage: bool| {
            json!({
                "name": name, "served": served, "storage": storage, "deprecated": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                "subresources": {"status": {}},
            })
        };
        serde_json::from_value(json!({
            "metadata": {
                "name": "gangs.example.com", "uid": "u", "labels": {"app": "x"},
                "annotations": {"api-approved.kubernetes.io": "https://example.com", "other": "y"},
            },
            "spec": {
                "group": "example.com", "scope": scope,
                "names": {"plural": "gangs", "kind": "Gang", "singular": "gang", "shortNames": ["gg"]},
                "conversion": {"strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://host.example.com"},
                }},
                "versions": [version("v1", true, true), version("v1beta1", true, false), version("v0", false, false)],
            },
            "status": {"storedVersions": ["v1"]},
        }))
        .unwrap()
    }

    #[test]
    fn one_version_is_carried_over_without_webhook() {
        let ours = tenant_definition(&definition("Namespaced"), "v1beta1").unwrap();
        insta::assert_yaml_snapshot!(ours);
    }

    #[test]
    fn unusable_definitions_are_not_copied() {
        assert!(tenant_definition(&definition("Cluster"), "v1").is_none());
        assert!(tenant_definition(&definition("Namespaced"), "v2").is_none());
        assert!(tenant_definition(&definition("Namespaced"), "v0").is_none());
    }
}
