//! Manifests in the documentation and in `examples/` fit the schemas: every field exists, and no value is of another type or
//! outside its enum.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_api::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files with this ending below a folder.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path, ending)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        .collect();
    found.sort();
    found
}

/// The fenced YAML blocks of a Markdown text.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match (&mut block, line.trim()) {
            (None, "```yaml") => block = Some(String::new()),
            (Some(_), "```") => blocks.extend(block.take()),
            (Some(block), _) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

fn documents(text: &str) -> impl Iterator<Item = Value> {
    let separated = format!("\n{text}");
    let parts: Vec<String> = separated.split("\n---").map(ToOwned::to_owned).collect();
    parts
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .map(|part| serde_saphyr::from_str(&part).unwrap_or_else(|error| panic!("no YAML: {error}\n{part}")))
}

/// Appends the errors of `value` at `path`.
fn check(schema: &JSONSchemaProps, value: &Value, path: &str, errors: &mut Vec<String>) {
    if schema.x_kubernetes_int_or_string == Some(true) || value.is_null() {
        return;
    }
    if let Some(allowed) = &schema.enum_
        && !allowed.iter().any(|allowed| allowed.0 == *value)
    {
        errors.push(format!("{path}: {value} is not one of the allowed values"));
    }
    let fits = match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        errors.push(format!(
            "{path}: {value} is not of type {}",
            schema.type_.as_deref().unwrap_or_default()
        ));
        return;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let properties = schema.properties.as_ref();
        let path = format!("{path}.{key}");
        match (
            properties.and_then(|properties| properties.get(key)),
            &schema.additional_properties,
        ) {
            (Some(property), _) => check(property, inner, &path, errors),
            (None, Some(JSONSchemaPropsOrBool::Schema(additional))) => check(additional, inner, &path, errors),
            (None, None) if properties.is_some() => errors.push(format!("{path}: there is no such field")),
            _ => {}
        }
    }
    for required in schema.required.iter().flatten() {
        if value.is_object() && value.get(required).is_none() {
            errors.push(format!("{path}.{required}: is missing"));
        }
    }
    if let (Some(items), Some(JSONSchemaPropsOrArray::Schema(item))) = (value.as_array(), &schema.items) {
        for (index, inner) in items.iter().enumerate() {
            check(item, inner, &format!("{path}[{index}]"), errors);
        }
    }
}

fn schema(definition: &CustomResourceDefinition) -> &JSONSchemaProps {
    let validation = definition.spec.versions[0].schema.as_ref().unwrap();
    validation.open_api_v3_schema.as_ref().unwrap()
}

fn errors(definition: &CustomResourceDefinition, value: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(
        &schema(definition).properties.as_ref().unwrap()["spec"],
        &value["spec"],
        "spec",
        &mut errors,
    );
    errors
}

/// The errors of a document. A part that begins with `spec:` must fit one of Berth's kinds; other documents are not checked.
fn problems(definitions: &[CustomResourceDefinition], document: &Value) -> Vec<String> {
    match (document["apiVersion"].as_str(), document["kind"].as_str()) {
        (Some("berth.dev/v1alpha1"), Some(kind)) => {
            match definitions.iter().find(|definition| definition.spec.names.kind == kind) {
                Some(definition) => errors(definition, document),
                None => vec![format!("{kind}: there is no such kind")],
            }
        }
        (None, None) if document.get("spec").is_some() => definitions
            .iter()
            .map(|definition| without_missing(errors(definition, document)))
            .min_by_key(Vec::len)
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Removes errors about missing fields: a part of a manifest leaves out required ones.
fn without_missing(mut errors: Vec<String>) -> Vec<String> {
    errors.retain(|error| !error.ends_with("is missing"));
    errors
}

/// Whether objects of a kind have conditions, by which Argo CD can judge their health.
fn has_conditions(definition: &CustomResourceDefinition) -> bool {
    let properties = schema(definition).properties.as_ref().unwrap();
    let status = properties.get("status").and_then(|status| status.properties.as_ref());
    status.is_some_and(|fields| fields.contains_key("conditions"))
}

#[test]
fn argo_cd_gets_a_health_check_for_each_kind_with_conditions() {
    let file = root().join("examples/gitops/argo-cd-health.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let settings = documents(&text).next().unwrap();
    let mut checks: Vec<&str> = Vec::new();
    for (key, script) in settings["data"].as_object().unwrap() {
        checks.push(key.strip_prefix("resource.customizations.health.berth.dev_").unwrap());
        assert!(
            script
                .as_str()
                .is_some_and(|script| script.contains("status = \"Healthy\"")),
            "{key}"
        );
    }
    let definitions = crd::all();
    let with_conditions = definitions.iter().filter(|definition| has_conditions(definition));
    let mut kinds: Vec<&str> = with_conditions
        .map(|definition| definition.spec.names.kind.as_str())
        .collect();
    checks.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(checks, kinds);
}

#[test]
fn manifests_in_documentation_and_examples_fit_the_schemas() {
    let definitions = crd::all();
    let mut texts: Vec<(PathBuf, String)> = Vec::new();
    let mut pages = files(&root().join("docs"), "md");
    pages.push(root().join("README.md"));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        texts.extend(blocks(&text).into_iter().map(|block| (page.clone(), block)));
    }
    for example in files(&root().join("examples"), "yaml") {
        let text = std::fs::read_to_string(&example).unwrap();
        texts.push((example, text));
    }
    let mut found = Vec::new();
    let mut ours = 0;
    for (path, text) in &texts {
        for document in documents(text) {
            ours += usize::from(document["apiVersion"] == "berth.dev/v1alpha1");
            let problems = problems(&definitions, &document);
            found.extend(problems.iter().map(|problem| format!("{}: {problem}", path.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(ours > 10, "only {ours} manifests were found");
}
