//! Devices of `ResourceClaims`: checks that the kubelet has none prepared for a tenant's pod.

use crate::{
    Unclean,
    files::text,
    node::{Node, is_tenants},
    pods,
};
use serde_json::Value;

/// The kubelet's checkpoint of prepared claims.
const CHECKPOINT: &str = "/var/lib/kubelet/dra_manager_state";

/// Whether no claim of a tenant is prepared.
pub(crate) fn none_prepared(node: &Node) -> Result<String, Unclean> {
    let path = node.path(CHECKPOINT);
    let Some(text) = text(&path)? else {
        // A kubelet with another folder has its checkpoint there.
        pods::folders(node)?;
        return Ok("the kubelet has never prepared a claim".into());
    };
    let unreadable = || Unclean::Left(format!("{} cannot be read", path.display()));
    let state: Value = serde_json::from_str(&text).map_err(|_| unreadable())?;
    // The list is a string within the file, because the checksum is that of the string.
    let list = match &state["Data"] {
        Value::String(data) => serde_json::from_str(data).map_err(|_| unreadable())?,
        Value::Null => state,
        data => data.clone(),
    };
    let prepared = claims(&list);
    if prepared.is_empty() {
        return Ok("no claim of a tenant is prepared".into());
    }
    Err(Unclean::Left(format!("claims are prepared: {}", prepared.join(", "))))
}

/// The claims of tenants, wherever they stand in the checkpoint.
fn claims(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
            let mut found: Vec<String> = fields.values().flat_map(claims).collect();
            if is_tenants(field("Namespace")) {
                found.push(format!("{}/{}", field("Namespace"), field("ClaimName")));
            }
            found
        }
        Value::Array(all) => all.iter().flat_map(claims).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_of_tenants_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), ["me".to_owned()]);
        assert!(none_prepared(&node).is_err(), "the kubelet's folder is another one");
        std::fs::create_dir_all(folder.path().join("var/lib/kubelet/pods/me")).unwrap();
        assert!(none_prepared(&node).is_ok());
        let file = folder.path().join("var/lib/kubelet/dra_manager_state");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let write = |namespace: &str| {
            let data = json!({"Entries": [{"ClaimUID": "u", "ClaimName": "gpu", "Namespace": namespace}]}).to_string();
            std::fs::write(&file, json!({"Data": data, "Checksum": 7}).to_string()).unwrap();
        };
        write("kube-system");
        assert!(none_prepared(&node).is_ok());
        write("berth-vision-x");
        let error = none_prepared(&node).unwrap_err().to_string();
        assert!(error.contains("berth-vision-x/gpu"), "{error}");
        std::fs::write(&file, "{").unwrap();
        assert!(none_prepared(&node).is_err(), "what cannot be read is not clean");
    }
}
