//! Pieces of expressions that several walls use.

use super::{BYPASS, RESOURCE};
use berth_api::{GROUP, labels};

/// Name of the variable [`slug`].
pub const SLUG: &str = "variables.slug";

/// Variable: the tenant whose namespace the object is in.
pub fn slug() -> (&'static str, String) {
    ("slug", format!("namespaceObject.metadata.labels['{}']", labels::TENANT))
}

/// Variable: a list of names that the tenant's class allows.
pub fn allowed(name: &'static str, annotation: &str) -> (&'static str, String) {
    let list = format!("namespaceObject.metadata.?annotations[?'{annotation}'].orValue('').split(',')");
    (name, list)
}

/// Whether a variable made by [`allowed`] contains `text`, or everything.
pub fn contains(list: &str, text: &str) -> String {
    format!("({text} in variables.{list} || '*' in variables.{list})")
}

/// Whether the request comes from the tenant's own control-plane namespace, whose name is made of that of the workload
/// namespace ([`berth_api::names::TenantId`]).
pub fn is_tenants() -> String {
    "(('system:serviceaccounts:' + request.?namespace.orValue('') + '-cp') in request.userInfo.?groups.orValue([]))"
        .into()
}

/// Whether who asks may do what only the platform may.
pub fn may_bypass() -> String {
    format!("authorizer.group('{GROUP}').resource('{RESOURCE}').check('{BYPASS}').allowed()")
}

/// Whether a key is one of Berth's own (as [`labels::is_reserved`]).
pub fn reserved(key: &str) -> String {
    format!("({key}.startsWith('{GROUP}/') || {key}.contains('.{GROUP}/'))")
}

/// Variables `<name>` and `old<Name>`: a map of the object's metadata, and what it was before.
pub fn maps() -> [(&'static str, String); 4] {
    let new = |field: &str| format!("object.metadata.?{field}.orValue({{}})");
    let old = |field: &str| format!("oldObject == null ? {{}} : oldObject.metadata.?{field}.orValue({{}})");
    [
        ("labels", new("labels")),
        ("oldLabels", old("labels")),
        ("annotations", new("annotations")),
        ("oldAnnotations", old("annotations")),
    ]
}

/// Whether every entry of a map whose key `k` fits `which` is as it was, none added, none taken away.
pub fn kept(new: &str, old: &str, which: &str) -> String {
    format!(
        "variables.{new}.all(k, !{which} || (k in variables.{old} && variables.{old}[k] == variables.{new}[k])) && \
         variables.{old}.all(k, !{which} || k in variables.{new})"
    )
}

/// A list of texts.
pub fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Texts as alternatives of a regular expression.
pub fn alternatives<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let escaped: Vec<String> = texts.into_iter().map(|text| text.replace('.', "[.]")).collect();
    escaped.join("|")
}

/// A regular expression for keys of annotations in one of these domains (as the syncer's `metadata::in_domain`).
pub fn in_domains<'a>(domains: impl IntoIterator<Item = &'a str>) -> String {
    let domains = alternatives(domains);
    format!("^(([^/]*[.])?({domains})/|({domains})$|({domains})[.][^/]*$)")
}
