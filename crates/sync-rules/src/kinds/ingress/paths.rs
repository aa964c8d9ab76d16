//! Paths, numbers and sizes of Ingresses.
//!
//! | field | rule |
//! |---|---|
//! | `path` | [`PATH`]; empty where the API server allows it |
//! | `path` of type `ImplementationSpecific`, if an annotation makes it a regular expression | [`PATH_EXPRESSION`] |
//! | rules, paths, `tls` | at most 100 each, and 100 paths in all rules together |
//!
//! Paths of types `Exact` and `Prefix` follow the same rule, because a controller may read all paths of a host as regular
//! expressions as soon as one Ingress of that host wants that.

use super::settings;
use crate::{
    model::json,
    translation::{
        edge_text::{PATH, PATH_EXPRESSION, PORTS},
        field_checks::{Check, FieldChecks},
        fields::FieldIssues,
        pattern::Pattern,
    },
};
use serde_json::Value;

/// Most rules, entries of `tls`, and paths of all rules together.
pub const MAX_ENTRIES: usize = 100;
/// The type of paths that may be regular expressions.
pub const EXPRESSION_TYPE: &str = "ImplementationSpecific";

/// Checks of fields of the spec.
pub static CHECKS: FieldChecks = &[
    ("rules", Check::Items(MAX_ENTRIES)),
    ("tls", Check::Items(MAX_ENTRIES)),
    ("tls[].hosts", Check::Items(MAX_ENTRIES)),
    ("defaultBackend.service.port.number", Check::Number(PORTS.0, PORTS.1)),
    (
        "rules[].http.paths[].backend.service.port.number",
        Check::Number(PORTS.0, PORTS.1),
    ),
];

/// Whether annotations make paths of an Ingress regular expressions.
pub fn has_expressions(ingress: &Value) -> bool {
    let annotation = |key: &str| json::text(ingress, &["metadata", "annotations", key]);
    annotation(settings::USE_REGEX) == Some("true") || annotation(settings::REWRITE_TARGET).is_some()
}

/// Denies a path that could break the controller. `path` is the entry of `paths`, `field` its name in messages.
pub fn check(path: &Value, field: &str, has_expressions: bool, issues: &mut FieldIssues) {
    let text = json::text(path, &["path"]).unwrap_or_default();
    let may_be_expression = has_expressions && json::text(path, &["pathType"]) == Some(EXPRESSION_TYPE);
    let pattern: &Pattern = if may_be_expression { &PATH_EXPRESSION } else { &PATH };
    if let Some(why) = pattern.denial(text).filter(|_| !text.is_empty()) {
        issues.deny(format!("{field}.path"), why);
    }
}

/// Denies more paths than a controller should have to load for one Ingress.
pub fn check_count(spec: &Value, issues: &mut FieldIssues) {
    let rules = json::items(spec, &["rules"]).iter();
    let paths: usize = rules.map(|rule| json::items(rule, &["http", "paths"]).len()).sum();
    if paths > MAX_ENTRIES {
        let why = format!("{paths} paths in all rules together; allowed: at most {MAX_ENTRIES} in one Ingress");
        issues.deny("spec.rules", why);
    }
}
