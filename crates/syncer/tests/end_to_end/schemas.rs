//! The schemas against which the tables of a pod's fields are checked are those of the API servers.

use crate::setup::TURNS;
use berth_local::{NodePlan, TestHost, process};
use http::Request;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

type Types = BTreeMap<String, BTreeMap<String, String>>;

const PREFIX: &str = "#/components/schemas/";

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Fields and their types of everything that pods are made of.
fn extract(schemas: &Value) -> Types {
    let mut types = Types::new();
    let mut todo = vec![
        "io.k8s.api.core.v1.PodSpec".to_owned(),
        "io.k8s.api.core.v1.PodStatus".to_owned(),
    ];
    while let Some(name) = todo.pop() {
        if types.contains_key(short(&name)) {
            continue;
        }
        let properties = schemas[&name]["properties"].as_object().unwrap();
        let fields = properties
            .iter()
            .map(|(field, schema)| (field.clone(), type_of(schemas, schema, &mut todo)));
        types.insert(short(&name).to_owned(), fields.collect());
    }
    types
}

fn type_of(schemas: &Value, schema: &Value, todo: &mut Vec<String>) -> String {
    let reference = schema["$ref"].as_str().or_else(|| {
        let all = schema["allOf"].as_array()?;
        all.iter().find_map(|part| part["$ref"].as_str())
    });
    if let Some(name) = reference.map(|reference| reference.trim_start_matches(PREFIX)) {
        if schemas[name].get("properties").is_some() {
            todo.push(name.to_owned());
        }
        return short(name).to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => format!("[{}]", type_of(schemas, &schema["items"], todo)),
        Some("object") => match schema.get("additionalProperties") {
            Some(inner) => format!("{{{}}}", type_of(schemas, inner, todo)),
            None => "{}".to_owned(),
        },
        other => other.unwrap_or("any").to_owned(),
    }
}

/// With `BERTH_UPDATE_SCHEMAS=1` writes the files instead of comparing them: the unit tests then name the fields
/// without a rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schemas_of_pods_are_the_servers() {
    let _turn = TURNS.acquire().await.unwrap();
    berth_runtime::install_crypto();
    for version in [
        berth_kubernetes_versions::KUBERNETES_DEFAULT,
        berth_kubernetes_versions::KUBERNETES_PREVIOUS,
    ] {
        let host = TestHost::start_with(|config| {
            config.kubernetes_version = version.into();
            config.nodes = NodePlan::of([]);
        })
        .await
        .unwrap();
        host.supervisor().stop(process::SCHEDULER, None).await.unwrap();
        let client = host.client().await.unwrap();
        let request = Request::get("/openapi/v3/api/v1").body(Vec::new()).unwrap();
        let document: Value = client.request(request).await.unwrap();
        let types = extract(&document["components"]["schemas"]);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../sync-rules/schemas/pod-{version}.json"));
        if std::env::var_os("BERTH_UPDATE_SCHEMAS").is_some() {
            let text = serde_json::to_string_pretty(&types).unwrap() + "\n";
            std::fs::write(&file, text).unwrap();
        }
        let kept: Types = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(kept, types, "{}: update it with BERTH_UPDATE_SCHEMAS=1", file.display());
    }
}
