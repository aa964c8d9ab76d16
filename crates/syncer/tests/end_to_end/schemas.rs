//! The schemas against which the tables of fields are checked are those of the API servers.

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

/// The path of a document, and the names of structures in it.
type Document = (&'static str, &'static [&'static str]);

/// The names of the files, and of what each has the structures.
const FILES: [(&str, &[Document]); 2] = [
    (
        "pod",
        &[(
            "api/v1",
            &["io.k8s.api.core.v1.PodSpec", "io.k8s.api.core.v1.PodStatus"],
        )],
    ),
    (
        "kinds",
        &[
            (
                "api/v1",
                &[
                    "io.k8s.api.core.v1.ConfigMap",
                    "io.k8s.api.core.v1.PersistentVolumeClaimSpec",
                    "io.k8s.api.core.v1.Secret",
                    "io.k8s.api.core.v1.ServiceSpec",
                ],
            ),
            ("apis/discovery.k8s.io/v1", &["io.k8s.api.discovery.v1.EndpointSlice"]),
            (
                "apis/networking.k8s.io/v1",
                &[
                    "io.k8s.api.networking.v1.IngressSpec",
                    "io.k8s.api.networking.v1.NetworkPolicySpec",
                ],
            ),
            ("apis/policy/v1", &["io.k8s.api.policy.v1.PodDisruptionBudgetSpec"]),
            (
                "apis/resource.k8s.io/v1",
                &[
                    "io.k8s.api.resource.v1.ResourceClaimSpec",
                    "io.k8s.api.resource.v1.ResourceClaimTemplateSpec",
                ],
            ),
        ],
    ),
];

/// Fields and their types of everything that some structures are made of.
fn extract(schemas: &Value, roots: &[&str]) -> Types {
    let mut types = Types::new();
    let mut todo: Vec<String> = roots.iter().map(ToString::to_string).collect();
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

/// With `BERTH_UPDATE_SCHEMAS=1` writes the file instead of comparing it: the unit tests then name the fields without a rule.
fn compare(name: &str, types: &Types) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sync-rules/schemas");
    let file = folder.join(name);
    if std::env::var_os("BERTH_UPDATE_SCHEMAS").is_some() {
        let text = serde_json::to_string_pretty(types).unwrap() + "\n";
        std::fs::write(&file, text).unwrap();
    }
    let kept: Types = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        &kept,
        types,
        "{}: update it with BERTH_UPDATE_SCHEMAS=1",
        file.display()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schemas_of_kinds_are_the_servers() {
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
        for (name, documents) in FILES {
            let mut types = Types::new();
            for (path, roots) in documents {
                let request = Request::get(format!("/openapi/v3/{path}")).body(Vec::new()).unwrap();
                let document: Value = client.request(request).await.unwrap();
                types.extend(extract(&document["components"]["schemas"], roots));
            }
            compare(&format!("{name}-{version}.json"), &types);
        }
    }
}
