use super::*;
use crate::{
    model::{resource::Name, store::Stored, tenant::test_tenant},
    registry,
};

/// Three Nodes of the host's label `gpu`. The tenant gave two of them a color, one of them a number.
fn cache() -> Cache {
    cache_of(
        [
            ("n1", json!({"color": "blue", "rack": "7"})),
            ("n2", json!({"color": "green"})),
            ("n3", json!({})),
        ]
        .map(|(name, own)| (name.to_owned(), own)),
    )
}

/// Nodes of the host's label `gpu`, with labels of the tenant's own.
fn cache_of(nodes: impl IntoIterator<Item = (String, Value)>) -> Cache {
    let cache = registry::new_cache(test_tenant());
    for (name, own) in nodes {
        let mut labels = own;
        labels["gpu"] = "h100".into();
        let node = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": labels}});
        let published = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"nodeName": name, "labels": {"gpu": "h100"}}});
        cache
            .stores
            .tenant(KindId::Node)
            .written(Name::new("", &name), Stored::new(&node));
        cache
            .stores
            .host(KindId::Node)
            .written(Name::new("", &name), Stored::new(&published));
    }
    cache
}

/// Selector and terms of the host pod for those of a tenant's.
fn resolved(selector: &Value, terms: &[Value]) -> (Value, Value) {
    let mut selector = selector.as_object().unwrap().clone();
    let mut spec = Map::new();
    if !terms.is_empty() {
        let mut affinity = json!({});
        json::set(&mut affinity, &NODE_TERMS, terms.to_vec());
        spec.insert("affinity".into(), affinity);
    }
    resolve(&cache(), &mut selector, &mut spec);
    let affinity = spec.remove("affinity").unwrap_or_default();
    (selector.into(), json::items(&affinity, &NODE_TERMS).to_vec().into())
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn named(operator: &str, name: &str) -> Value {
    requirement("metadata.name", operator, &[name])
}

#[test]
fn a_selected_label_becomes_names() {
    let (selector, terms) = resolved(&json!({"color": "blue", "gpu": "h100"}), &[]);
    assert_eq!(selector, json!({"gpu": "h100"}));
    assert_eq!(terms, json!([{"matchFields": [named("In", "n1")]}]));
}

#[test]
fn labels_of_the_host_and_unknown_ones_stay() {
    for selector in [
        json!({"gpu": "h100"}),
        json!({"unknown": "x"}),
        json!({"color": "red"}),
        json!({}),
    ] {
        assert_eq!(resolved(&selector, &[]), (selector, json!([])));
    }
}

#[test]
fn each_term_becomes_one_for_each_node() {
    let term = json!({"matchExpressions": [requirement("color", "Exists", &[]), requirement("gpu", "Exists", &[])],
        "matchFields": [named("NotIn", "n9")]});
    let (_, terms) = resolved(
        &json!({}),
        &[term, json!({"matchExpressions": [requirement("rack", "Gt", &["5"])]})],
    );
    let with = |name: &str| json!({"matchExpressions": [requirement("gpu", "Exists", &[])], "matchFields": [named("NotIn", "n9"), named("In", name)]});
    let of_rack = json!({"matchExpressions": [], "matchFields": [named("In", "n1")]});
    assert_eq!(terms, json!([with("n1"), with("n2"), of_rack]));
}

#[test]
fn what_is_absent_excludes_nodes_and_not_those_that_come_later() {
    let term = json!({"matchExpressions": [requirement("color", "NotIn", &["blue"])]});
    let (_, terms) = resolved(&json!({}), &[term]);
    assert_eq!(json::items(&terms[0], &["matchFields"]), [named("NotIn", "n1")]);
    let term = json!({"matchExpressions": [requirement("color", "DoesNotExist", &[])]});
    let (_, terms) = resolved(&json!({}), &[term]);
    assert_eq!(
        json::items(&terms[0], &["matchFields"]),
        [named("NotIn", "n1"), named("NotIn", "n2")]
    );
}

/// The preferences of the host pod for those of a tenant's.
fn preferred(preferences: &[Value]) -> Value {
    preferred_of(&cache(), preferences)
}

fn preferred_of(cache: &Cache, preferences: &[Value]) -> Value {
    let mut affinity = json!({});
    json::set(&mut affinity, &NODE_PREFERENCES, preferences.to_vec());
    let mut spec = Map::from_iter([("affinity".to_owned(), affinity)]);
    resolve(cache, &mut Map::new(), &mut spec);
    json::items(&spec["affinity"], &NODE_PREFERENCES).to_vec().into()
}

#[test]
fn preferences_are_for_the_nodes_with_the_label() {
    let preference = |weight: u32, term: Value| json!({"weight": weight, "preference": term});
    let colored = json!({"matchExpressions": [requirement("color", "Exists", &[])]});
    let not_blue = json!({"matchExpressions": [requirement("color", "NotIn", &["blue"])]});
    let of_host = json!({"matchExpressions": [requirement("gpu", "In", &["h100"])]});
    let on = |name: &str| json!({"matchExpressions": [], "matchFields": [named("In", name)]});
    let mut not_n1 = not_blue.clone();
    not_n1["matchFields"] = json!([named("NotIn", "n1")]);
    assert_eq!(
        preferred(&[
            preference(7, colored),
            preference(3, not_blue),
            preference(1, of_host.clone())
        ]),
        json!([
            preference(7, on("n1")),
            preference(7, on("n2")),
            preference(3, not_n1),
            preference(1, of_host)
        ])
    );
    let red = preference(5, json!({"matchExpressions": [requirement("color", "In", &["red"])]}));
    assert_eq!(preferred(std::slice::from_ref(&red)), json!([red]), "no node is red");
}

#[test]
fn preferences_of_a_tenant_with_many_nodes_do_not_grow_without_bound() {
    let many = (0..200).map(|number| (format!("n{number}"), json!({"color": "blue"})));
    let cache = cache_of(many);
    let colored = json!({"weight": 1, "preference": {"matchExpressions": [requirement("color", "Exists", &[])]}});
    let preferences = preferred_of(&cache, &[colored.clone(), colored.clone(), colored.clone()]);
    let preferences = preferences.as_array().unwrap();
    assert_eq!(preferences.len(), 2 * 200 + 1);
    assert_eq!(preferences.last(), Some(&colored), "it has no effect");
}

#[test]
fn requirements_are_those_of_kubernetes() {
    let labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
    let holds = |operator: &str, values: &[&str]| holds(&requirement("rack", operator, values), &labels);
    assert!(holds("In", &["7"]) && !holds("In", &["8"]));
    assert!(holds("NotIn", &["8"]) && !holds("NotIn", &["7"]));
    assert!(holds("Exists", &[]) && !holds("DoesNotExist", &[]));
    assert!(holds("Gt", &["6"]) && !holds("Gt", &["7"]) && !holds("Gt", &["x"]));
    assert!(holds("Lt", &["8"]) && !holds("Lt", &["7"]) && !holds("Resembles", &["7"]));
}

#[test]
fn a_value_that_no_node_has_excludes_none() {
    let term = json!({"matchExpressions": [requirement("color", "NotIn", &["red"])]});
    let (_, terms) = resolved(&json!({}), std::slice::from_ref(&term));
    assert_eq!(terms, json!([term]), "a term without requirements would select no node");
}

#[test]
fn a_node_that_leaves_captures_no_pods() {
    let cache = cache();
    let leaving = json!({"metadata": {"name": "n4", "resourceVersion": "1", "labels": {"gpu": "h100", "kubernetes.io/os": "linux"}}});
    let nodes = cache.stores.tenant(KindId::Node);
    nodes.written(Name::new("", "n4"), Stored::new(&leaving));
    let asked = json!({"kubernetes.io/os": "linux", "gpu": "h100"});
    let mut selector = asked.as_object().unwrap().clone();
    let mut spec = Map::new();
    resolve(&cache, &mut selector, &mut spec);
    assert_eq!(Value::from(selector), asked);
}

#[test]
fn no_more_terms_are_made_than_show_that_they_are_too_many() {
    let cache = cache_of((0..100).map(|number| (format!("n{number}"), json!({"color": "blue"}))));
    let term = json!({"matchExpressions": [requirement("color", "Exists", &[])]});
    let made = |terms: usize| {
        let mut affinity = json!({});
        json::set(&mut affinity, &NODE_TERMS, vec![term.clone(); terms]);
        let mut spec = Map::from_iter([("affinity".to_owned(), affinity)]);
        resolve(&cache, &mut Map::new(), &mut spec);
        json::items(&spec["affinity"], &NODE_TERMS).len()
    };
    assert_eq!([made(1), made(20)], [100, MOST_NODE_TERMS]);
    assert_eq!(made(1000), MOST_NODE_TERMS + 1);
}
