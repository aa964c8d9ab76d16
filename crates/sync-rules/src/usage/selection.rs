//! Label and field selectors of a query. Pure.

use std::collections::BTreeMap;

/// Most bytes of both selectors: they are compared with each pod of the tenant, on the thread that also carries streams.
const LONGEST: usize = 4 << 10;

/// What a list is limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Whether the field is the namespace, and not the name.
    is_namespace: bool,
    equal: bool,
    value: String,
}

impl Selection {
    /// Reads a `labelSelector` and a `fieldSelector`; empty ones select everything.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        if labels.len() + fields.len() > LONGEST {
            return Err(format!("selectors may have at most {LONGEST} bytes here"));
        }
        Ok(Self {
            labels: parts(labels).map(requirement).collect::<Result<_, _>>()?,
            fields: field_parts(fields).map(field).collect::<Result<_, _>>()?,
        })
    }

    /// Whether an object is selected.
    pub fn selects(&self, namespace: &str, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let has = |key: &String, values: &Vec<String>| labels.get(key).is_some_and(|value| values.contains(value));
        let labels_match = self.labels.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => has(key, values),
            Requirement::NotIn(key, values) => !has(key, values),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        });
        labels_match
            && self.fields.iter().all(|field| {
                let value = if field.is_namespace { namespace } else { name };
                (value == field.value) == field.equal
            })
    }
}

/// The parts of a field selector, at every comma: it has no lists. The API server reads the name in it before it authorizes the request, as that of the
/// only object that is asked for. So nothing that is a part to the API server may be hidden in another one here.
fn field_parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The parts of a label selector, at the commas that are not between parentheses.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let at_top = move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    text.split(at_top).map(str::trim).filter(|part| !part.is_empty())
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let bad = || format!("unable to parse requirement: {part:?}");
    let set = |key: &str, list: &str| {
        let list = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
        let values = list.ok_or_else(bad)?.split(',').map(|value| value.trim().to_owned());
        Ok::<_, String>((key.to_owned(), values.collect()))
    };
    let is_key = |key: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        !key.is_empty() && key.chars().all(is_plain)
    };
    let one = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    let read = if let Some((key, value)) = part.split_once("!=") {
        let (key, values) = one(key, value);
        Requirement::NotIn(key, values)
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        let (key, values) = one(key, value);
        Requirement::In(key, values)
    } else if let Some(key) = part.strip_prefix('!') {
        Requirement::Absent(key.trim().to_owned())
    } else if let Some((key, rest)) = part.split_once(char::is_whitespace) {
        let rest = rest.trim();
        if let Some(list) = rest.strip_prefix("notin") {
            let (key, values) = set(key, list)?;
            Requirement::NotIn(key, values)
        } else {
            let (key, values) = set(key, rest.strip_prefix("in").ok_or_else(bad)?)?;
            Requirement::In(key, values)
        }
    } else {
        Requirement::Exists(part.to_owned())
    };
    let (Requirement::In(key, _) | Requirement::NotIn(key, _) | Requirement::Exists(key) | Requirement::Absent(key)) =
        &read;
    if is_key(key) { Ok(read) } else { Err(bad()) }
}

fn field(part: &str) -> Result<Field, String> {
    // What would follow is one character of the value to an API server. No name has one that needs it.
    if part.contains('\\') {
        return Err(format!("invalid field selector: {part:?}"));
    }
    let (key, value, equal) = if let Some((key, value)) = part.split_once("!=") {
        (key, value, false)
    } else {
        let (key, value) = part
            .split_once("==")
            .or_else(|| part.split_once('='))
            .ok_or_else(|| format!("invalid field selector: {part:?}"))?;
        (key, value, true)
    };
    let is_namespace = match key.trim() {
        "metadata.name" => false,
        "metadata.namespace" => true,
        other => return Err(format!("field label not supported: {other}")),
    };
    Ok(Field {
        is_namespace,
        equal,
        value: value.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(labels: &str, fields: &str) -> bool {
        let of = BTreeMap::from([("app".into(), "web".into()), ("example.com/tier".into(), "a".into())]);
        Selection::parse(labels, fields).unwrap().selects("shop", "web-0", &of)
    }

    #[test]
    fn label_selectors_match_as_in_an_api_server() {
        for yes in [
            "",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "none!=x",
            "app in (db, web)",
            "app notin (db,cache),example.com/tier",
            "none notin (a)",
            "!none",
            "app,example.com/tier=a",
        ] {
            assert!(selects(yes, ""), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (web)",
            "none",
            "!app",
            "none=",
            "app=web,x=y",
        ] {
            assert!(!selects(no, ""), "{no}");
        }
        for bad in ["app in web", "app xx (a)", "a b c", "(a)=b", "=x", "!"] {
            assert!(Selection::parse(bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_are_name_and_namespace() {
        assert!(selects("", "metadata.name=web-0"));
        assert!(selects("", "metadata.name!=web-1,metadata.namespace==shop"));
        assert!(!selects("", "metadata.namespace!=shop"));
        assert!(Selection::parse("", "spec.nodeName=a").is_err());
        assert!(Selection::parse("", "metadata.name").is_err());
    }

    #[test]
    fn selectors_that_are_long_to_compare_are_rejected() {
        let of = |count: usize| vec!["!none"; count].join(",");
        assert!(Selection::parse(&of(600), "").is_ok());
        assert!(Selection::parse(&of(1000), "").is_err());
        assert!(Selection::parse(&of(600), &format!("metadata.name={}", "a".repeat(1000))).is_err());
    }

    #[test]
    fn a_name_that_the_api_server_has_authorized_is_the_only_one_that_is_selected() {
        for fields in [
            "metadata.name!=(,metadata.name=web-1",
            "metadata.name=web-1,metadata.name!=)",
            "metadata.namespace!=((,metadata.name==web-1,metadata.name!=))",
        ] {
            assert!(!selects("", fields), "{fields}");
            assert!(selects("", &fields.replace("web-1", "web-0")), "{fields}");
        }
        for fields in [
            r"metadata.name!=\,metadata.name=web-1",
            r"metadata.name!=a\,b",
            r"metadata.name=web-1\=",
        ] {
            assert!(Selection::parse("", fields).is_err(), "{fields}");
        }
    }
}
