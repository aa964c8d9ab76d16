//! What the host's API server has left out of an object that it created.

use berth_sync_rules::model::{DeniedField, json};
use serde_json::Value;

/// Fields of the spec that the host's API server accepted and dropped: it knows them, but a feature that they belong to
/// is off there.
pub(super) fn dropped(desired: &Value, created: &Value) -> Vec<DeniedField> {
    let mut lost = Vec::new();
    find_dropped("spec", &desired["spec"], &created["spec"], &mut lost);
    lost
}

fn find_dropped(path: &str, desired: &Value, created: &Value, lost: &mut Vec<DeniedField>) {
    match (desired, created) {
        (Value::Object(wanted), Value::Object(kept)) => {
            for (field, value) in wanted {
                let path = format!("{path}.{field}");
                match kept.get(field) {
                    Some(kept) => find_dropped(&path, value, kept, lost),
                    None if json::is_unset(value) => {}
                    None => {
                        let why = "the host cluster does not have this feature, so the field has no effect";
                        lost.push(DeniedField::new(path, why));
                    }
                }
            }
        }
        // Webhooks of the host may add items; only those that can be told apart are compared.
        (Value::Array(wanted), Value::Array(kept)) => {
            for (index, item) in wanted.iter().enumerate() {
                let same = match item.get("name") {
                    Some(name) => kept.iter().find(|other| other.get("name") == Some(name)),
                    None => kept.get(index).filter(|_| wanted.len() == kept.len()),
                };
                if let Some(same) = same {
                    find_dropped(&format!("{path}[{index}]"), item, same, lost);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_that_the_host_dropped_are_reported() {
        let desired = json!({"spec": {"kept": 1, "lost": {"a": 1}, "empty": [], "list": [{"name": "a", "new": 1, "old": 2}],
            "others": [{"new": 1}]}});
        let created = json!({"spec": {"kept": 1, "defaulted": 2, "list": [{"name": "injected"}, {"name": "a", "old": 2}],
            "others": [{"x": 1}, {"y": 1}]}});
        let fields: Vec<_> = dropped(&desired, &created)
            .into_iter()
            .map(|denied| denied.field)
            .collect();
        assert_eq!(fields, ["spec.list[0].new", "spec.lost"]);
    }
}
