//! Cordons and taints that a tenant gives its Nodes.

use super::{super::*, cache, name, pod};
use crate::model::{KindId, store::Stored};

/// Puts a node of the platform.
fn publish(cache: &Cache, name: &str) {
    let node = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"nodeName": name}});
    let nodes = cache.stores.host(KindId::Node);
    nodes.written(Name::new("", name), Stored::new(&node));
}

#[test]
fn new_pods_keep_off_cordoned_nodes() {
    let cache = cache();
    publish(&cache, "gpu-1");
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"unschedulable": true}});
    cache
        .stores
        .tenant(KindId::Node)
        .written(Name::new("", "gpu-1"), Stored::new(&node));
    let terms = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let translated = Pods.translate(&cache, &name(), &pod()).unwrap().object;
    let expected = json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1"]}]}]);
    assert_eq!(json::at(&translated, &terms), Some(&expected));
    let mut daemon = pod();
    daemon["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]);
    let translated = Pods.translate(&cache, &name(), &daemon).unwrap().object;
    assert_eq!(json::at(&translated, &terms), None);
}

#[test]
fn new_pods_keep_off_nodes_that_the_tenant_has_tainted() {
    let cache = cache();
    let gpu = json!({"key": "nvidia.com/gpu", "effect": "NoSchedule"});
    let own = json!({"key": "dedicated", "value": "training", "effect": "NoSchedule"});
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let node = |taints: Value| {
        Stored::new(&json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"taints": taints}}))
    };
    let nodes = Name::new("", "gpu-1");
    cache
        .stores
        .host(KindId::Node)
        .written(nodes.clone(), node(json!([gpu])));
    cache
        .stores
        .tenant(KindId::Node)
        .written(nodes, node(json!([gpu, own, not_ready])));
    let avoids = |tolerations: Value| {
        let mut pod = pod();
        pod["spec"]["tolerations"] = tolerations;
        let translated = Pods.translate(&cache, &name(), &pod).unwrap().object;
        let required = [
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ];
        json::at(&translated, &required).is_some()
    };
    assert!(avoids(json!([])));
    assert!(!avoids(json!([{"key": "dedicated", "value": "training"}])));
    assert!(avoids(json!([{"key": "dedicated", "value": "inference"}])));
}

#[test]
fn new_pods_prefer_nodes_that_the_tenant_has_tainted_less() {
    let cache = cache();
    let taint = |key: &str| json!({"key": key, "effect": "PreferNoSchedule"});
    for (name, keys) in [
        ("gpu-1", &["a", "b", "c"] as &[&str]),
        ("gpu-2", &["a"]),
        ("gpu-3", &[]),
    ] {
        let taints: Vec<Value> = keys.iter().map(|key| taint(key)).collect();
        let node = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"taints": taints}});
        let nodes = cache.stores.tenant(KindId::Node);
        nodes.written(Name::new("", name), Stored::new(&node));
        publish(&cache, name);
    }
    let preferences = |tolerated: &[&str]| {
        let mut pod = pod();
        let tolerations: Vec<Value> = tolerated
            .iter()
            .map(|key| json!({"key": key, "operator": "Exists"}))
            .collect();
        pod["spec"]["tolerations"] = tolerations.into();
        let affinity = Pods.translate(&cache, &name(), &pod).unwrap().object["spec"]["affinity"].take();
        assert!(json::items(&affinity, &scheduling::NODE_TERMS).is_empty(), "{affinity}");
        json::items(&affinity, &scheduling::NODE_PREFERENCES)
            .iter()
            .map(|one| {
                let field = &one["preference"]["matchFields"][0];
                assert_eq!(field["operator"], "NotIn");
                (
                    field["values"][0].as_str().unwrap().to_owned(),
                    one["weight"].as_u64().unwrap(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(preferences(&[]), [("gpu-1".to_owned(), 100), ("gpu-2".to_owned(), 33)]);
    assert_eq!(preferences(&["a"]), [("gpu-1".to_owned(), 100)]);
    assert_eq!(preferences(&["a", "b", "c"]), []);
}

#[test]
fn pods_of_a_tenant_that_tainted_many_nodes_are_accepted_all_the_same() {
    let cache = cache();
    let nodes = cache.stores.tenant(KindId::Node);
    for number in 0..3_000 {
        let taints = json!([{"key": "a", "effect": "PreferNoSchedule"}]);
        let name = format!("gpu-{number}");
        let node = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"taints": taints}});
        nodes.written(Name::new("", &name), Stored::new(&node));
        publish(&cache, &name);
    }
    let translated = Pods.translate(&cache, &name(), &pod()).unwrap();
    assert!(json::items(&translated.object, &["spec", "affinity", "nodeAffinity"]).is_empty());
}

#[test]
fn nodes_that_the_tenant_makes_itself_change_no_pod() {
    let cache = cache();
    let before = Pods.translate(&cache, &name(), &pod()).unwrap().object;
    let taints = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}]);
    let node =
        json!({"metadata": {"name": "own", "resourceVersion": "1"}, "spec": {"unschedulable": true, "taints": taints}});
    let nodes = cache.stores.tenant(KindId::Node);
    nodes.written(Name::new("", "own"), Stored::new(&node));
    assert_eq!(Pods.translate(&cache, &name(), &pod()).unwrap().object, before);
    publish(&cache, "own");
    assert_ne!(Pods.translate(&cache, &name(), &pod()).unwrap().object, before);
}
