//! The custom resource definitions, as the API server wants them.

use crate::{
    HostNodePool, Organization, Project, RateCard, SchedulePolicy, TenantClass, TenantCluster, TenantNode,
    TenantSchedule, TenantSnapshot, UsageRecord,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube::{
    CustomResourceExt,
    core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter},
};
use schemars::{
    JsonSchema, Schema,
    generate::SchemaSettings,
    transform::{AddNullable, RecursiveTransform},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Every custom resource definition of Berth, in the order they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        definition_of::<HostNodePool>(),
        definition_of::<Organization>(),
        definition_of::<Project>(),
        definition_of::<RateCard>(),
        definition_of::<SchedulePolicy>(),
        definition_of::<TenantClass>(),
        definition_of::<TenantCluster>(),
        definition_of::<TenantNode>(),
        definition_of::<TenantSchedule>(),
        definition_of::<TenantSnapshot>(),
        definition_of::<UsageRecord>(),
    ]
}

/// Names of the fields of the status of a kind, as they are in JSON. Empty if it has no status.
///
/// # Panics
/// Never: a definition can always be converted to JSON.
#[expect(clippy::expect_used, reason = "definitions are JSON")]
pub fn status_fields<K: CustomResourceExt + JsonSchema>() -> BTreeSet<String> {
    let definition = serde_json::to_value(definition_of::<K>()).expect("definitions are JSON");
    let status = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let fields = status["properties"].as_object();
    fields.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// The definition of one kind.
fn definition_of<K: CustomResourceExt + JsonSchema>() -> CustomResourceDefinition {
    let mut definition = K::crd();
    for version in &mut definition.spec.versions {
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(structural_schema_of::<K>()),
        });
    }
    with_kubernetes_schema(definition)
}

/// The schema of a kind as kube's derive makes it, but that every field keeps its own text, which also says what its values mean.
///
/// # Panics
/// Never: what kube makes of a schema is one that definitions may have.
#[expect(clippy::expect_used, reason = "a schema of kube is structural")]
fn structural_schema_of<K: JsonSchema>() -> JSONSchemaProps {
    let generator = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(RecursiveTransform(keep_text_of_field))
        .with_transform(RecursiveTransform(explain_values))
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    let schema = generator.into_root_schema_for::<K>().to_value();
    serde_json::from_value(schema).expect("the schema is structural")
}

/// Removes the text of the type of an optional field that has a text itself. The schema of such a field is that of the type or null, and
/// [`OptionalEnum`] would put the type's text in place of the field's.
fn keep_text_of_field(schema: &mut Schema) {
    if schema.get("description").is_none() {
        return;
    }
    let alternatives = schema.get_mut("anyOf").and_then(Value::as_array_mut);
    for alternative in alternatives.into_iter().flatten().filter_map(Value::as_object_mut) {
        alternative.remove("description");
    }
}

/// Adds to the text of a field what each of its values means, as the schemas of Kubernetes do: what [`StructuralSchemaRewriter`] leaves of the
/// values are their names. Texts that say it themselves, by `Name:`, stay as they are.
fn explain_values(schema: &mut Schema) {
    let Some(text) = schema.get("description").and_then(Value::as_str) else {
        return;
    };
    // An optional field: the type or null.
    let alternatives = schema.get("anyOf").and_then(Value::as_array);
    let optional = alternatives.into_iter().flatten().find_map(values_of);
    // Of a list, kubectl shows the text of the field, and not that of its entries.
    let of_entries = schema.get("items").and_then(values_of);
    let is_list = of_entries.is_some();
    let Some(values) = values_of(schema.as_value()).or(optional).or(of_entries) else {
        return;
    };
    let is_explained = values.iter().all(|(value, _)| text.contains(&format!("{value}:")));
    let says_nothing = values
        .iter()
        .all(|(value, meaning)| meaning.trim_end_matches('.') == value);
    if is_explained || says_nothing {
        return;
    }
    let lines: Vec<String> = values
        .iter()
        .map(|(value, meaning)| format!("- `{value}`: {meaning}"))
        .collect();
    let text = format!("{text}\n\nPossible values:\n{}", lines.join("\n"));
    schema.insert("description".into(), text.into());
    if is_list && let Some(entries) = schema.get_mut("items").and_then(Value::as_object_mut) {
        entries.remove("description");
    }
}

/// The values of an enum and their texts. None if the schema is of something else.
fn values_of(schema: &Value) -> Option<Vec<(String, String)>> {
    let alternatives = schema.get("oneOf")?.as_array()?.iter();
    let values = alternatives.map(|alternative| {
        let value = alternative.get("enum")?.as_array()?.first()?.as_str()?;
        let text = alternative.get("description")?.as_str()?;
        Some((value.to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
    });
    values.collect()
}

/// The definition with a schema that follows the Kubernetes API conventions. Schemas that are derived from Rust types make every
/// optional field nullable, and use integer formats that API servers do not know.
///
/// # Panics
/// Never: a definition can always be converted to JSON and back.
#[expect(clippy::expect_used, reason = "definitions are JSON, and stay valid")]
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
    use super::*;

    /// Paths of fields of a kind whose text in the code is not in its definition.
    fn lost_texts_of<K: CustomResourceExt + JsonSchema>() -> Vec<String> {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let in_code = settings.into_generator().into_root_schema_for::<K>().to_value();
        let definition = serde_json::to_value(definition_of::<K>()).unwrap();
        let mut lost = Vec::new();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        find_lost_texts(&in_code, schema, K::crd_name(), &mut lost);
        lost
    }

    fn find_lost_texts(in_code: &Value, schema: &Value, path: &str, lost: &mut Vec<String>) {
        // An optional field: the type or null.
        let of_type = in_code.get("anyOf").map_or(in_code, |alternatives| &alternatives[0]);
        for (name, field) in of_type["properties"].as_object().into_iter().flatten() {
            let (written, path) = (&schema["properties"][name], format!("{path}.{name}"));
            // What values mean may follow.
            let is_kept = |text: &str| {
                written["description"]
                    .as_str()
                    .is_some_and(|written| written.starts_with(text))
            };
            if field["description"].as_str().is_some_and(|text| !is_kept(text)) {
                lost.push(path.clone());
            }
            find_lost_texts(field, written, &path, lost);
        }
        for inner in ["items", "additionalProperties"] {
            if of_type[inner].is_object() {
                find_lost_texts(&of_type[inner], &schema[inner], &format!("{path}[]"), lost);
            }
        }
    }

    #[test]
    fn every_field_keeps_its_text() {
        let lost = [
            lost_texts_of::<HostNodePool>(),
            lost_texts_of::<Organization>(),
            lost_texts_of::<Project>(),
            lost_texts_of::<RateCard>(),
            lost_texts_of::<SchedulePolicy>(),
            lost_texts_of::<TenantClass>(),
            lost_texts_of::<TenantCluster>(),
            lost_texts_of::<TenantNode>(),
            lost_texts_of::<TenantSchedule>(),
            lost_texts_of::<TenantSnapshot>(),
            lost_texts_of::<UsageRecord>(),
        ];
        assert_eq!(lost.len(), all().len(), "a kind is missing in this test");
        assert_eq!(lost.concat(), [""; 0]);
    }

    #[test]
    fn texts_say_what_the_values_of_a_field_mean() {
        let schema_of = |definition: CustomResourceDefinition| {
            let definition = serde_json::to_value(definition).unwrap();
            definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone()
        };
        let tenant = schema_of(definition_of::<TenantCluster>());
        let pool = schema_of(definition_of::<HostNodePool>());
        let spec = &tenant["spec"]["properties"];
        let optional = &spec["schedulingMode"];
        let required = &tenant["status"]["properties"]["nodeGroups"]["items"]["properties"]["mode"];
        let list = &pool["spec"]["properties"]["scrub"]["properties"]["steps"];
        for (field, value) in [
            (optional, "Host"),
            (required, "Dynamic"),
            (list, "GPUReset"),
            (&tenant["status"]["properties"]["phase"], "Waking"),
        ] {
            let text = field["description"].as_str().unwrap();
            let start = format!("\n- `{value}`: ");
            assert!(
                text.contains("\n\nPossible values:\n- ") && text.contains(&start),
                "{text}"
            );
        }
        // It says it itself.
        let text = &pool["spec"]["properties"]["allowedNamespaces"]["properties"]["from"]["description"];
        assert!(!text.as_str().unwrap().contains("Possible values"), "{text}");
        // Names that need no words.
        let peers = &spec["network"]["properties"]["egress"]["properties"]["allow"]["items"]["properties"];
        let text = peers["protocol"]["description"].as_str().unwrap();
        assert!(!text.contains("Possible values"), "{text}");
    }

    /// `kubectl apply` writes the whole definition into an annotation, and annotations have at most 256 KiB.
    #[test]
    fn definitions_fit_into_an_annotation() {
        for definition in all() {
            let name = definition.metadata.name.clone();
            let size = serde_json::to_string(&definition).unwrap().len();
            assert!(size < 240 * 1024, "{name:?}: {size}");
        }
    }

    #[test]
    fn the_fields_of_a_status_are_those_of_its_type() {
        let expected = ["conditions", "observedGeneration", "tenants"].map(ToOwned::to_owned);
        assert_eq!(status_fields::<TenantClass>(), expected.into());
        let of_tenants = status_fields::<TenantCluster>();
        for field in [
            "idle",
            "monthlyUsage",
            "violations",
            "expirationLimits",
            "hostUsage",
            "conditions",
        ] {
            assert!(of_tenants.contains(field), "{field}: {of_tenants:?}");
        }
        assert_eq!(status_fields::<TenantSchedule>(), BTreeSet::new());
    }

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
        for crd in all() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            check(&schema, crd.metadata.name.as_deref().unwrap());
        }
    }

    #[test]
    fn every_kind_has_status_columns_and_short_name() {
        for crd in all() {
            let name = crd.metadata.name.clone().unwrap();
            let version = &crd.spec.versions[0];
            // A TenantSchedule says what holds; who reads it, the syncer, may write nothing there. A UsageRecord says what was, and a RateCard is
            // only read.
            let has_status = version.subresources.as_ref().is_some_and(|s| s.status.is_some());
            let has_none = ["RateCard", "TenantSchedule", "UsageRecord"].contains(&crd.spec.names.kind.as_str());
            assert!(has_status != has_none, "{name}: status");
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

    #[test]
    fn columns_are_where_users_of_kubectl_expect_them() {
        for crd in all() {
            let kind = &crd.spec.names.kind;
            let columns = crd.spec.versions[0].additional_printer_columns.as_deref().unwrap();
            // `-o wide` adds columns behind those that are always shown, of which the age is the last.
            let shown = columns.partition_point(|column| column.priority.unwrap_or_default() == 0);
            let (always, wide) = columns.split_at(shown);
            assert!(
                wide.iter().all(|column| column.priority == Some(1)),
                "{kind}: {columns:?}"
            );
            assert_eq!(always.last().map(|column| column.name.as_str()), Some("Age"), "{kind}");
            // A long text moves no other column.
            let message = columns.iter().position(|column| column.name == "Message");
            assert!(message.is_none_or(|at| at + 1 == columns.len()), "{kind}");
            let names: Vec<&str> = always.iter().map(|column| column.name.as_str()).collect();
            // A TenantSnapshot is done once, as a Job is: it is never Ready.
            let is_run = kind == "TenantSnapshot";
            let has_conditions = !["RateCard", "TenantNode", "TenantSchedule", "UsageRecord"].contains(&kind.as_str());
            assert_eq!(
                names.starts_with(&["Ready", "Reason"]),
                has_conditions && !is_run,
                "{kind}"
            );
            assert_eq!(names.starts_with(&["Tenant", "Phase"]), is_run, "{kind}");
            assert_eq!(message.is_some(), has_conditions, "{kind}");
        }
    }

    /// The API server refuses a definition that selects by anything else, and a list by a field that is not selectable.
    #[test]
    fn fields_that_lists_can_be_selected_by_are_texts() {
        let selectable: Vec<String> = all()
            .iter()
            .flat_map(|crd| {
                let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
                let fields = version["selectableFields"].as_array().cloned().unwrap_or_default();
                let paths = fields
                    .into_iter()
                    .map(|field| field["jsonPath"].as_str().unwrap().to_owned());
                let check = |path: String| {
                    let pointer = path.replace('.', "/properties/");
                    let schema = version["schema"]["openAPIV3Schema"].pointer(&pointer);
                    assert_eq!(
                        schema.map(|schema| &schema["type"]),
                        Some(&Value::from("string")),
                        "{path}"
                    );
                    format!("{}{path}", crd.spec.names.kind)
                };
                paths.map(check).collect::<Vec<_>>()
            })
            .collect();
        let expected = [
            "Project.spec.organizationName",
            "TenantCluster.status.phase",
            "TenantCluster.status.className",
            "TenantSnapshot.spec.tenantClusterName",
            "TenantSnapshot.status.phase",
        ];
        assert_eq!(selectable, expected);
    }

    #[test]
    fn a_class_shows_the_version_of_its_new_tenants() {
        let class = all().into_iter().find(|crd| crd.spec.names.kind == "TenantClass");
        let columns = class.unwrap().spec.versions[0].additional_printer_columns.clone();
        let columns = columns.unwrap_or_default();
        let version = columns.iter().find(|column| column.name == "Default-Version");
        assert_eq!(
            version.map(|column| column.json_path.as_str()),
            Some(".spec.defaultVersion")
        );
    }
}
