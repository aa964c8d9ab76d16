//! Filters of rules and of backends.
//!
//! | filter | rule |
//! |---|---|
//! | header modifiers, redirects, rewrites, CORS | copied: they concern the route's own requests. `checks` denies values that a gateway may not be able to load |
//! | `requestMirror` | its backend becomes the host's |
//! | `extensionRef`, `externalAuth` | denied |
//! | anything else | denied by name |

use super::route::Backends;
use crate::{
    model::json,
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use serde_json::{Value, json};

const FILTER: Fields = &[
    ("cors", Rule::Copy),
    (
        "extensionRef",
        Rule::Deny("extensions belong to the controller, which is shared with others"),
    ),
    (
        "externalAuth",
        Rule::Deny("the controller, which is shared with others, would call it"),
    ),
    ("requestHeaderModifier", Rule::Copy),
    ("requestMirror", Rule::Rewrite),
    ("requestRedirect", Rule::Copy),
    ("responseHeaderModifier", Rule::Copy),
    ("type", Rule::Copy),
    ("urlRewrite", Rule::Copy),
];

/// The fields of filters that may be on the host.
pub fn allowed() -> impl Iterator<Item = &'static str> {
    let fields = FILTER.iter().filter(|(_, rule)| !matches!(rule, Rule::Deny(_)));
    fields.map(|(field, _)| *field)
}

const MIRROR: Fields = &[
    ("backendRef", Rule::Rewrite),
    ("fraction", Rule::Copy),
    ("percent", Rule::Copy),
];

/// The filters of `source` on the host, if it has any.
pub fn translate(backends: &Backends<'_>, source: &Value, path: &str, issues: &mut FieldIssues) -> Option<Value> {
    let filters: Vec<Value> = json::items(source, &["filters"])
        .iter()
        .enumerate()
        .map(|(index, filter)| {
            let path = format!("{path}.filters[{index}]");
            let mut copied = fields::copy(filter, &path, FILTER, issues);
            if let Some(mirror) = filter.get("requestMirror").filter(|mirror| !mirror.is_null()) {
                let path = format!("{path}.requestMirror");
                let mut mirrored = Value::Object(fields::copy(mirror, &path, MIRROR, issues));
                let path = format!("{path}.backendRef");
                mirrored["backendRef"] = backends.translate(&mirror["backendRef"], &path, issues).into();
                copied.insert("requestMirror".into(), mirrored);
            }
            copied.into()
        })
        .collect();
    (!filters.is_empty()).then(|| json!(filters))
}
