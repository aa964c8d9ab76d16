//! Values at paths that go through lists, such as `spec.tls[].secretName`.

use serde_json::Value;

/// Calls `visit` for every value at a path such as `spec.tls[].secretName`, where `[]` stands for each item of a list.
pub fn each(value: &Value, path: &str, visit: &mut dyn FnMut(&Value)) {
    let Some((field, is_list, rest)) = first_step(path) else {
        return visit(value);
    };
    match value.get(field) {
        Some(Value::Array(items)) if is_list => items.iter().for_each(|item| each(item, rest, visit)),
        Some(value) if !is_list => each(value, rest, visit),
        _ => {}
    }
}

/// The same as [`each`] for values that are changed.
pub fn each_mut(value: &mut Value, path: &str, visit: &mut dyn FnMut(&mut Value)) {
    let Some((field, is_list, rest)) = first_step(path) else {
        return visit(value);
    };
    match value.get_mut(field) {
        Some(Value::Array(items)) if is_list => items.iter_mut().for_each(|item| each_mut(item, rest, visit)),
        Some(value) if !is_list => each_mut(value, rest, visit),
        _ => {}
    }
}

/// The field at which a path begins, whether it stands for each item of a list there, and the rest of the path. None if the path is empty.
fn first_step(path: &str) -> Option<(&str, bool, &str)> {
    let (step, rest) = path
        .split_once('.')
        .map_or_else(|| (!path.is_empty()).then_some((path, "")), Some)?;
    let (field, is_list) = step.strip_suffix("[]").map_or((step, false), |field| (field, true));
    Some((field, is_list, rest))
}

/// As [`each_mut`]; the last field of the path is also visited where an object has none. It is null there, and stays if the visit leaves it.
pub fn each_field_mut(value: &mut Value, path: &str, visit: &mut dyn FnMut(&mut Value)) {
    if path.ends_with("[]") {
        return each_mut(value, path, visit);
    }
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    each_mut(value, parents, &mut |parent| {
        if let Some(fields) = parent.as_object_mut() {
            visit(fields.entry(last).or_insert(Value::Null));
        }
    });
}

/// How many values [`each_field_mut`] visits. Nothing is made for that.
pub fn count_fields(value: &Value, path: &str) -> usize {
    let mut count = 0;
    if path.ends_with("[]") {
        each(value, path, &mut |_| count += 1);
    } else {
        let (parents, _) = path.rsplit_once('.').unwrap_or(("", path));
        each(value, parents, &mut |parent| count += usize::from(parent.is_object()));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_go_through_lists() {
        let mut value = json!({"a": [{"b": {"c": 1}}, {"b": {"c": 2}}, {}], "d": 3});
        let mut seen = Vec::new();
        each(&value, "a[].b.c", &mut |value| seen.push(value.clone()));
        each(&value, "d", &mut |value| seen.push(value.clone()));
        for nothing in ["a.b", "d[]", "d.e", "x"] {
            each(&value, nothing, &mut |_| panic!("{nothing}"));
        }
        assert_eq!(seen, [1, 2, 3]);
        each_mut(&mut value, "a[].b.c", &mut |value| *value = 0.into());
        assert_eq!(value["a"][1]["b"]["c"], 0);
    }

    #[test]
    fn a_last_field_that_is_missing_is_visited() {
        let mut value = json!({"a": [{"b": 1}, {}, {"b": null}, 7], "c": {}});
        let mut seen = Vec::new();
        let paths = ["a[].b", "c.d", "e"];
        assert_eq!(paths.map(|path| count_fields(&value, path)), [3, 1, 1]);
        assert_eq!([count_fields(&value, "a[]"), count_fields(&value, "x.y")], [4, 0]);
        for path in paths {
            each_field_mut(&mut value, path, &mut |field| seen.push(field.clone()));
        }
        assert_eq!(seen, [json!(1), json!(null), json!(null), json!(null), json!(null)]);
        for nothing in ["x.y", "a.b", "c.d[]", "e[]"] {
            each_field_mut(&mut value, nothing, &mut |_| panic!("{nothing}"));
        }
        each_field_mut(&mut value, "a[].b", &mut |field| *field = 2.into());
        assert_eq!(value["a"], json!([{"b": 2}, {"b": 2}, {"b": 2}, 7]));
    }
}
