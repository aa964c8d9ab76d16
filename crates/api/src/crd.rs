//! The custom resource definitions, as the API server wants them.

use crate::{
    HostNodePool, Organization, Project, SchedulePolicy, TenantClass, TenantCluster, TenantNode, TenantSchedule,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// Every custom resource definition of Berth, in the order they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    [
        HostNodePool::crd(),
        Organization::crd(),
        Project::crd(),
        SchedulePolicy::crd(),
        TenantClass::crd(),
        TenantCluster::crd(),
        TenantNode::crd(),
        TenantSchedule::crd(),
    ]
    .map(with_kubernetes_schema)
    .into()
}

/// The definition with a schema that follows the Kubernetes API conventions. Schemas that are derived from Rust types make every
/// optional field nullable, and use integer formats that API servers do not know.
///
/// # Panics
/// Never: a definition can always be converted to JSON and back.
#[allow(clippy::expect_used)]
fn with_kubernetes_schema(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("definitions are JSON");
    for version in value["spec"]["versions"].as_array_mut().into_iter().flatten() {
        follow_conventions(&mut version["schema"]["openAPIV3Schema"]);
    }
    serde_json::from_value(value).expect("the definition stays valid")
}

/// Removes `nullable` from a schema and everything in it, and turns unsigned formats into signed ones. Unsigned fields
/// have a minimum in their schemas.
fn follow_conventions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("nullable").is_some_and(Value::is_boolean) {
                fields.remove("nullable");
            }
            match fields.get("format").and_then(Value::as_str) {
                Some("uint8" | "uint16" | "uint32") => fields.insert("format".into(), "int32".into()),
                Some("uint64") => fields.insert("format".into(), "int64".into()),
                _ => None,
            };
            fields.values_mut().for_each(follow_conventions);
        }
        Value::Array(items) => items.iter_mut().for_each(follow_conventions),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn schemas_have_no_nullable_field_and_only_formats_that_api_servers_know() {
        fn check(value: &Value, path: &str) {
            if let Value::Object(fields) = value {
                assert!(
                    !fields.get("nullable").is_some_and(Value::is_boolean),
                    "{path} is nullable"
                );
                if let Some(format) = fields.get("format").and_then(Value::as_str) {
                    assert!(
                        ["int32", "int64", "date-time"].contains(&format),
                        "{path}: format {format}"
                    );
                }
                fields
                    .iter()
                    .for_each(|(name, field)| check(field, &format!("{path}.{name}")));
            }
        }
        for crd in super::all() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            check(&schema, crd.metadata.name.as_deref().unwrap());
        }
    }

    #[test]
    fn every_kind_has_status_columns_and_short_name() {
        for crd in super::all() {
            let name = crd.metadata.name.clone().unwrap();
            let version = &crd.spec.versions[0];
            // A TenantSchedule says what holds; who reads it, the syncer, may write nothing there.
            let has_status = version.subresources.as_ref().is_some_and(|s| s.status.is_some());
            assert!(
                has_status != (crd.spec.names.kind == "TenantSchedule"),
                "{name}: status"
            );
            assert!(
                version
                    .additional_printer_columns
                    .as_ref()
                    .is_some_and(|c| !c.is_empty()),
                "{name}: no columns"
            );
            assert!(crd.spec.names.short_names.is_some(), "{name}: no short name");
        }
    }
}
