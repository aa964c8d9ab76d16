//! Patches of statuses, as API servers carry them out.

use serde_json::{Value, json};

/// What a patch says, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Apply,
    Json,
    Merge,
    Strategic,
}

impl PatchKind {
    pub(super) fn of(content_type: &str) -> Self {
        match content_type {
            "application/apply-patch+yaml" => Self::Apply,
            "application/json-patch+json" => Self::Json,
            "application/merge-patch+json" => Self::Merge,
            _ => Self::Strategic,
        }
    }
}

/// Carries out the operations `add`, `replace`, `remove` and `test` of a JSON patch on fields of objects. None: one of them does not fit.
pub(super) fn carry_out(object: &mut Value, operations: &Value) -> Option<()> {
    for operation in operations.as_array()? {
        let (parent, field) = operation["path"].as_str()?.rsplit_once('/')?;
        let (fields, value) = (object.pointer_mut(parent)?.as_object_mut()?, &operation["value"]);
        match operation["op"].as_str()? {
            "replace" if !fields.contains_key(field) => return None,
            "add" | "replace" => {
                fields.insert(field.to_owned(), value.clone());
            }
            "remove" => {
                fields.remove(field)?;
            }
            "test" if fields.get(field) == Some(value) => {}
            _ => return None,
        }
    }
    Some(())
}

/// Server-side apply of a status, field by field: what the manager has applied before and does not send is removed, unless another one has applied it
/// as well. `metadata.managedFields` says who has applied what.
pub(super) fn apply(object: &mut Value, manager: &str, sent: &Value) {
    let entries = object["metadata"]["managedFields"].as_array().cloned();
    let is_own = |entry: &Value| {
        entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status"
    };
    let (own, mut others): (Vec<Value>, Vec<Value>) = entries.unwrap_or_default().into_iter().partition(is_own);
    let fields_of = |entries: &[Value]| -> Vec<String> {
        let fields = entries
            .iter()
            .filter_map(|entry| entry["fieldsV1"]["f:status"].as_object());
        let names = fields.flatten().filter_map(|(name, _)| name.strip_prefix("f:"));
        names.map(ToOwned::to_owned).collect()
    };
    let of_others = fields_of(&others);
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let Some(status) = object["status"].as_object_mut() else {
        return;
    };
    for field in fields_of(&own) {
        if !of_others.contains(&field) {
            status.remove(&field);
        }
    }
    let mut fields = json!({});
    for (field, value) in sent.as_object().into_iter().flatten() {
        status.insert(field.clone(), value.clone());
        fields[format!("f:{field}")] = json!({});
    }
    others.push(json!({
        "manager": manager, "operation": "Apply", "subresource": "status", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": fields},
    }));
    object["metadata"]["managedFields"] = others.into();
}
