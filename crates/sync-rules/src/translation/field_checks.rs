//! Checks of fields that are copied, as tables: translation evaluates them here, and the host's admission policies make CEL
//! of the same tables.

use super::{fields::FieldIssues, pattern::Pattern};
use crate::model::json;
use serde_json::Value;

/// What a value must be.
#[derive(Debug)]
pub enum Check {
    /// A text that fits.
    Text(&'static Pattern),
    /// A number between two, both included.
    Number(i64, i64),
    /// A list of at most so many entries.
    Items(usize),
    /// An object with `type` and some texts: regular expressions if the type is [`EXPRESSION_TYPE`].
    Match {
        /// The texts.
        fields: &'static [&'static str],
        /// What they must be.
        plain: &'static Pattern,
        /// What they must be as regular expressions.
        expression: &'static Pattern,
    },
}

/// The type of matches that are regular expressions, in the Gateway API.
pub const EXPRESSION_TYPE: &str = "RegularExpression";

/// Checks by the path of a field, such as `rules[].matches[].path`, where `[]` stands for each item of a list.
pub type FieldChecks = &'static [(&'static str, Check)];

/// Denies the fields of `source` that fail a check. `path` names `source` in messages; `prefix` is put before the path of each
/// check.
pub fn check(source: &Value, path: &str, prefix: &str, checks: FieldChecks, issues: &mut FieldIssues) {
    for (steps, check) in checks {
        visit(source, path, &format!("{prefix}{steps}"), &mut |field, value| {
            check.apply(field, value, issues);
        });
    }
}

/// Denies the lists of `source` that have too many entries, and checks nothing else. After the first check that fails there is no further one, nor if something is denied
/// already: lists within a list that is too long are not looked at. To be called before anything is made of each entry: a tenant may write some hundred thousand.
pub fn check_lists(source: &Value, path: &str, prefix: &str, checks: FieldChecks, issues: &mut FieldIssues) {
    for (steps, check) in checks.iter().filter(|(_, check)| matches!(check, Check::Items(_))) {
        if !issues.denied.is_empty() {
            return;
        }
        visit(source, path, &format!("{prefix}{steps}"), &mut |field, value| {
            check.apply(field, value, issues);
        });
    }
}

/// Calls `found` with path and value of every field at `steps` that is set.
fn visit(value: &Value, path: &str, steps: &str, found: &mut dyn FnMut(&str, &Value)) {
    if value.is_null() {
        return;
    }
    if steps.is_empty() {
        return found(path, value);
    }
    let (step, rest) = steps.split_once('.').unwrap_or((steps, ""));
    let join = |field: &str| {
        if path.is_empty() {
            field.to_owned()
        } else {
            format!("{path}.{field}")
        }
    };
    if let Some(list) = step.strip_suffix("[]") {
        for (index, item) in json::items(value, &[list]).iter().enumerate() {
            visit(item, &format!("{}[{index}]", join(list)), rest, found);
        }
    } else if let Some(value) = value.get(step) {
        visit(value, &join(step), rest, found);
    }
}

impl Check {
    fn apply(&self, field: &str, value: &Value, issues: &mut FieldIssues) {
        match self {
            Self::Text(pattern) => check_text(field, value, pattern, issues),
            Self::Number(least, most) => {
                if !value.as_i64().is_some_and(|number| (*least..=*most).contains(&number)) {
                    let why = format!("{value} is not possible here; allowed: a number from {least} to {most}");
                    issues.deny(field, why);
                }
            }
            Self::Items(most) => {
                if let Some(items) = value.as_array().filter(|items| items.len() > *most) {
                    issues.deny(field, format!("{} entries; allowed: at most {most}", items.len()));
                }
            }
            Self::Match {
                fields,
                plain,
                expression,
            } => {
                let is_expression = json::text(value, &["type"]) == Some(EXPRESSION_TYPE);
                let pattern = if is_expression { expression } else { plain };
                for name in *fields {
                    if let Some(text) = value.get(*name).filter(|text| !text.is_null()) {
                        check_text(&format!("{field}.{name}"), text, pattern, issues);
                    }
                }
            }
        }
    }
}

fn check_text(field: &str, value: &Value, pattern: &Pattern, issues: &mut FieldIssues) {
    let denial = match value.as_str() {
        Some(text) => pattern.denial(text),
        None => Some(format!("not a text; allowed: {}", pattern.allowed)),
    };
    if let Some(why) = denial {
        issues.deny(field, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    static WORD: Pattern = Pattern::new("^[a-z]+$", "a word");
    static ANY: Pattern = Pattern::new("^.*$", "anything");
    static CHECKS: FieldChecks = &[
        ("a[]", Check::Items(1)),
        ("a[].word", Check::Text(&WORD)),
        ("b.number", Check::Number(1, 3)),
        (
            "m[]",
            Check::Match {
                fields: &["value"],
                plain: &WORD,
                expression: &ANY,
            },
        ),
        ("m", Check::Items(2)),
    ];

    fn denied(source: &Value) -> Vec<String> {
        let mut issues = FieldIssues::default();
        check(source, "spec", "", CHECKS, &mut issues);
        issues.denied.into_iter().map(|denied| denied.field).collect()
    }

    #[test]
    fn fields_are_named_with_their_place() {
        let source = json!({"a": [{"word": "w"}, {"word": "W"}, {"word": 1}], "b": {"number": 4}, "m": [{"value": "1"}, {}, {}]});
        let fields = [
            "spec.a[1].word",
            "spec.a[2].word",
            "spec.b.number",
            "spec.m[0].value",
            "spec.m",
        ];
        assert_eq!(denied(&source), fields);
    }

    #[test]
    fn what_fits_or_is_not_set_passes() {
        for source in [
            json!({}),
            json!({"a": null, "b": {"number": null}, "m": [null]}),
            json!({"a": [{}], "b": {"number": 3}, "m": [{"type": "RegularExpression", "value": "1"}, {"value": "w"}]}),
        ] {
            assert_eq!(denied(&source), Vec::<String>::new(), "{source}");
        }
    }

    #[test]
    fn lists_alone_are_checked_up_to_the_first_that_is_too_long() {
        static LISTS: FieldChecks = &[
            ("a", Check::Items(1)),
            ("a[].word", Check::Text(&WORD)),
            ("a[].b", Check::Items(1)),
        ];
        let denied = |source: &Value| {
            let mut issues = FieldIssues::default();
            check_lists(source, "spec", "", LISTS, &mut issues);
            let fields = issues.denied.into_iter().map(|denied| denied.field);
            fields.collect::<Vec<_>>()
        };
        let entry = json!({"word": "W", "b": [1, 2]});
        assert_eq!(denied(&json!({"a": [entry, entry]})), ["spec.a"]);
        assert_eq!(denied(&json!({"a": [entry]})), ["spec.a[0].b"]);
        assert_eq!(denied(&json!({"a": [{"word": "W", "b": [1]}]})), Vec::<String>::new());
    }

    #[test]
    fn checks_apply_below_a_prefix() {
        let mut issues = FieldIssues::default();
        check(
            &json!({"c": [{"b": {"number": 0.5}}]}),
            "spec",
            "c[].",
            CHECKS,
            &mut issues,
        );
        assert_eq!(issues.denied[0].field, "spec.c[0].b.number");
        assert_eq!(
            issues.denied[0].why,
            "0.5 is not possible here; allowed: a number from 1 to 3"
        );
    }
}
