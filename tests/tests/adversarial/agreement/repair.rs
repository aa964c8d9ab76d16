//! Random objects become acceptable: the fields about which an API server complains are removed.

use kube::core::Status;
use serde_json::Value;

/// Removes the fields that an API server refuses. Returns whether there were some.
pub(super) fn remove_refused(object: &mut Value, status: &Status) -> bool {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice());
    let mut removed = false;
    // Later elements first, so that paths of earlier ones stay true.
    let mut paths: Vec<(Vec<Step>, bool)> = causes
        .unwrap_or_default()
        .iter()
        .map(|cause| (steps(&cause.field), cause.reason == "FieldValueRequired"))
        .collect();
    paths.extend(named_in(&status.message).map(|path| (path, false)));
    paths.sort();
    paths.dedup();
    for (mut path, is_missing) in paths.into_iter().rev() {
        if is_missing {
            path.pop();
        }
        removed |= remove(object, &path);
    }
    removed
}

/// One step of a path: a field, or an element of a list. A key of a map is a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Field(String),
    Element(usize),
}

/// Reads a path as API servers write it: `spec.containers[0].ports[1].name`, `spec.nodeSelector[a.b/c]`.
pub(super) fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            steps.push(match key.parse() {
                Ok(index) => Step::Element(index),
                Err(_) => Step::Field(key.trim_matches('"').into()),
            });
            rest = after;
        } else {
            let text = rest.trim_start_matches('.');
            let end = text.find(['.', '[']).unwrap_or(text.len());
            if end == 0 {
                break;
            }
            let name = &text[..end];
            // Some messages have the names of fields in Go.
            let name = name[..1].to_lowercase() + &name[1..];
            steps.push(Step::Field(name));
            rest = &text[end..];
        }
    }
    steps
}

/// The paths that a message names: the texts of webhooks have no causes.
fn named_in(message: &str) -> impl Iterator<Item = Vec<Step>> {
    message
        .split(|char: char| char.is_whitespace() || ",;:'\"`()".contains(char))
        .filter(|word| word.starts_with("spec."))
        .map(|word| steps(word.trim_end_matches('.')))
}

/// Removes what is at a path, or the nearest thing above it that can be removed. Specs as a whole stay.
fn remove(object: &mut Value, path: &[Step]) -> bool {
    let Some((last, above)) = path.split_last() else {
        return false;
    };
    // What every object has: the spec, and its lists and their elements.
    if path.len() <= 1 || (path.len() <= 3 && path[1] == Step::Field("containers".into())) {
        return false;
    }
    let mut parent = &mut *object;
    for step in above {
        let next = match step {
            Step::Field(name) => parent.get_mut(name),
            Step::Element(index) => parent.get_mut(index),
        };
        match next {
            Some(next) => parent = next,
            None => return false,
        }
    }
    let found = match (parent, last) {
        (Value::Object(fields), Step::Field(name)) => fields.remove(name).is_some(),
        (Value::Array(list), Step::Element(index)) if *index < list.len() => {
            list.remove(*index);
            true
        }
        _ => false,
    };
    found || (above.len() > 2 && remove(object, above))
}
