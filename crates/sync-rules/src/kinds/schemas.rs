//! The tables of fields against the API servers' own schemas: every field of every structure, in every supported version, has a
//! rule, and no rule is for a field that no version has. So a field that Kubernetes adds is passed, denied or left out on purpose.
//!
//! The schemas are kept in `schemas/`; the end-to-end tests compare them with running servers and update them with
//! `BERTH_UPDATE_SCHEMAS=1`.

use crate::translation::fields::{Fields, Rule};
use std::collections::{BTreeMap, BTreeSet};

/// Fields and their types, by the name of the structure: `string`, `[Container]`, `{Quantity}`…
pub type Types = BTreeMap<String, BTreeMap<String, String>>;

/// Structures and their rules.
pub type Tables = &'static [(&'static str, Fields)];

/// Structures for which code of all kinds makes another one, of which nothing is copied by a table.
const MADE_BY_TRANSLATION: [&str; 1] = ["ObjectMeta"];

/// The rules of `LabelSelector`, which `translation::selector` translates.
pub const LABEL_SELECTOR: Fields = &[("matchExpressions", Rule::Rewrite), ("matchLabels", Rule::Rewrite)];

/// The rules of `LabelSelectorRequirement`.
pub const REQUIREMENT: Fields = &[("key", Rule::Rewrite), ("operator", Rule::Copy), ("values", Rule::Copy)];

/// The schemas of pods, of all supported versions.
pub fn of_pods() -> [Types; 2] {
    [
        include_str!("../../schemas/pod-v1.36.4.json"),
        include_str!("../../schemas/pod-v1.37.1.json"),
    ]
    .map(parse)
}

/// The schemas of the other kinds of Kubernetes that are synced, of all supported versions.
pub fn of_other_kinds() -> [Types; 2] {
    [
        include_str!("../../schemas/kinds-v1.36.4.json"),
        include_str!("../../schemas/kinds-v1.37.1.json"),
    ]
    .map(parse)
}

fn parse(text: &str) -> Types {
    serde_json::from_str(text).unwrap()
}

/// The structure in a field's type: `[Container]` → `Container`.
pub fn structure(kind: &str) -> &str {
    kind.trim_matches(['[', ']', '{', '}'])
}

fn table(tables: Tables, structure: &str) -> Option<Fields> {
    let mut tables = tables.iter();
    tables.find(|(name, _)| *name == structure).map(|(_, fields)| *fields)
}

/// What is wrong with the tables: fields without a rule, and fields whose structure is not checked by its own table.
pub fn find_gaps(schemas: &[Types], tables: Tables) -> BTreeSet<String> {
    let mut wrong = BTreeSet::new();
    for types in schemas {
        for (name, fields) in tables {
            for (field, kind) in types.get(*name).into_iter().flatten() {
                let structure = structure(kind);
                let has_rules = types.contains_key(structure) && !MADE_BY_TRANSLATION.contains(&structure);
                let inner = has_rules.then(|| table(tables, structure));
                let rule = fields.iter().find(|(known, _)| known == field).map(|(_, rule)| *rule);
                let problem = match (rule, inner) {
                    (None, _) => "has no rule",
                    (Some(Rule::Copy), Some(_)) => "is copied with everything below it",
                    (Some(Rule::Within(used)), Some(Some(meant))) if used == meant => continue,
                    (Some(Rule::Within(_)), _) => "is checked by another structure's table",
                    (Some(Rule::Rewrite), Some(None)) => "is made anew from a structure without table",
                    _ => continue,
                };
                wrong.insert(format!("{name}.{field} {problem}"));
            }
        }
    }
    wrong
}

/// Rules for fields that no version has, and tables of structures that no version has.
pub fn find_leftovers(schemas: &[Types], tables: Tables) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for (name, fields) in tables {
        let sharing = tables.iter().filter(|(_, other)| other == fields);
        let known: BTreeSet<&str> = sharing
            .flat_map(|(name, _)| schemas.iter().filter_map(move |types| types.get(*name)))
            .flat_map(|fields| fields.keys().map(String::as_str))
            .collect();
        if !schemas.iter().any(|types| types.contains_key(*name)) {
            left.insert((*name).to_owned());
        }
        let unknown = fields.iter().filter(|(field, _)| !known.contains(field));
        left.extend(unknown.map(|(field, _)| format!("{name}.{field}")));
    }
    left
}

/// Compares the tables of a kind with the schemas of all supported versions.
pub fn check(tables: Tables) {
    let schemas = of_other_kinds();
    let (gaps, leftovers) = (find_gaps(&schemas, tables), find_leftovers(&schemas, tables));
    assert!(gaps.is_empty() && leftovers.is_empty(), "{gaps:#?}: {leftovers:#?}");
}

#[test]
fn new_fields_and_fields_that_are_gone_are_named() {
    const INNER: Fields = &[("a", Rule::Copy)];
    const TABLES: Tables = &[
        (
            "Outer",
            &[
                ("known", Rule::Within(INNER)),
                ("all", Rule::Copy),
                ("gone", Rule::Copy),
            ],
        ),
        ("Inner", INNER),
        ("Missing", &[]),
    ];
    let schemas = [parse(
        r#"{"Outer": {"known": "[Inner]", "all": "Inner", "new": "string"}, "Inner": {"a": "string", "b": "string"}}"#,
    )];
    let gaps = find_gaps(&schemas, TABLES);
    assert_eq!(
        gaps.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "Inner.b has no rule",
            "Outer.all is copied with everything below it",
            "Outer.new has no rule"
        ]
    );
    let leftovers = find_leftovers(&schemas, TABLES);
    assert_eq!(
        leftovers.iter().map(String::as_str).collect::<Vec<_>>(),
        ["Missing", "Outer.gone"]
    );
}
