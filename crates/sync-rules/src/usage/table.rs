//! Metrics as a table, as `kubectl get` asks for them. Pure.

use crate::model::json;
use berth_api::quantity;
use serde_json::{Value, json};

/// What is measured, in the order of the columns.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// How much of each object a row carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// The value of `includeObject`.
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("None") => Self::None,
            Some("Object") => Self::Object,
            _ => Self::Metadata,
        }
    }
}

/// The version of the table that `accept` prefers to everything else that is offered.
pub fn version_asked(accept: &str) -> Option<&str> {
    let first = accept.split(',').map(str::trim).find(|part| {
        let kind = part.split(';').next().unwrap_or_default().trim();
        matches!(kind, "application/json" | "application/*" | "*/*")
    })?;
    let parameter = |name: &str| {
        let mut all = first.split(';').skip(1).filter_map(|part| part.trim().split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    (parameter("as") == Some("Table") && parameter("g") == Some("meta.k8s.io"))
        .then(|| parameter("v"))
        .flatten()
        .filter(|version| matches!(*version, "v1" | "v1beta1"))
}

/// A table of metrics.
pub fn table(version: &str, items: &[Value], include: Include) -> Value {
    let column = |name: &str, format: &str, description: &str| json!({"name": name, "type": "string", "format": format, "description": description, "priority": 0});
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": {},
        "columnDefinitions": [
            column("Name", "name", "Name of the resource"),
            column("cpu", "quantity", "CPU in use"),
            column("memory", "quantity", "Memory in use"),
            column("Window", "duration", "Time over which the use of CPU was measured"),
        ],
        "rows": items.iter().map(|item| row(item, include)).collect::<Vec<_>>(),
    })
}

fn row(item: &Value, include: Include) -> Value {
    let mut cells = vec![item["metadata"]["name"].clone()];
    cells.extend(RESOURCES.map(|resource| used(item, resource).into()));
    cells.push(item["window"].clone());
    let object = match include {
        Include::None => Value::Null,
        Include::Metadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"],
        }),
        Include::Object => item.clone(),
    };
    json!({"cells": cells, "object": object})
}

/// The amount of a resource that a node, or all containers of a pod, use.
fn used(item: &Value, resource: &str) -> String {
    let of = |usage: &Value| json::text(usage, &["usage", resource]).map(ToOwned::to_owned);
    let used: Vec<String> = match of(item) {
        Some(used) => vec![used],
        None => json::items(item, &["containers"]).iter().filter_map(of).collect(),
    };
    match used.as_slice() {
        [one] => one.clone(),
        many => {
            let sum = many.iter().filter_map(|text| quantity::parse(text)).sum();
            quantity::format(sum, many.first().map_or("", String::as_str))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_kubectl_are_parsed() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(version_asked(kubectl), Some("v1"));
        assert_eq!(
            version_asked("application/json; as=Table; g=meta.k8s.io; v=v1beta1"),
            Some("v1beta1")
        );
        for plain in [
            "",
            "*/*",
            "application/json",
            "application/json,application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/vnd.kubernetes.protobuf,application/json",
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v9;g=meta.k8s.io",
        ] {
            assert_eq!(version_asked(plain), None, "{plain}");
        }
    }

    #[test]
    fn a_pods_row_is_the_sum_of_its_containers() {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop"}, "window": "15s", "containers": [
            {"usage": {"cpu": "1500000n", "memory": "1024Ki"}}, {"usage": {"cpu": "250m", "memory": "1Mi"}}]});
        let idle = json!({"metadata": {"name": "idle", "namespace": "shop"}, "window": "15s", "containers": []});
        insta::assert_yaml_snapshot!(table("v1", &[pod, idle], Include::Metadata));
        let node =
            json!({"metadata": {"name": "gpu-1"}, "window": "20s", "usage": {"cpu": "123456789n", "memory": "2Gi"}});
        let row = row(&node, Include::None);
        assert_eq!(
            row,
            json!({"cells": ["gpu-1", "123456789n", "2Gi", "20s"], "object": null})
        );
    }
}
