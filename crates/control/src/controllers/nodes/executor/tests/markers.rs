//! In-use markers: which nodes are clean when they are reserved.

use super::{Fixture, NODES, SLUG, api::Failing, finish_recycling, names, of_machine, reserve, state_of};
use crate::{
    controllers::in_use_markers::{self, Use},
    testing::merge,
};
use berth_api::HostNodePoolSpec;
use berth_node_lifecycle::assignment::AssignmentState::{Draining, Scrubbing};
use berth_planner::Action;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn count_markers(fixture: &Fixture) -> usize {
    let api = fixture.api();
    api.objects.keys().filter(|path| path.contains("/configmaps/")).count()
}

#[tokio::test]
async fn a_node_that_was_shared_and_lost_its_node_object_is_scrubbed_before_a_tenant_gets_it() {
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a1"])
    };
    // Tenants shared it. Then its Node was deleted, and registered again with the labels of a pool for single tenants.
    let before: Node = serde_json::from_value(json!({"metadata": {"name": "a1", "uid": "before"}})).unwrap();
    let shared = in_use_markers::ensure(&fixture.client, &before, Use::Shared("cpu"));
    shared.await.unwrap();
    let reservation = [reserve("a1", "a")];
    fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a1"), Some(Scrubbing));
    finish_recycling(&fixture).await;
    assert_eq!((state_of(&fixture, "a1"), count_markers(&fixture)), (None, 0));
}

#[tokio::test]
async fn a_marker_of_another_leader_stays_when_a_group_cannot_be_reserved() {
    for is_of_other in [true, false] {
        let fixture = Fixture::new(&["a1", "a2"]);
        fixture.api().objects.get_mut(&format!("{NODES}/a2")).unwrap()["status"] = json!({});
        if is_of_other {
            // The new leader is about to reserve the node, in the same version.
            let node = fixture.api().objects[&format!("{NODES}/a1")].clone();
            let node: Node = serde_json::from_value(node).unwrap();
            let marked = in_use_markers::ensure(&fixture.client, &node, Use::Tenant(SLUG));
            marked.await.unwrap();
        }
        let reservations = ["a1", "a2"].map(|node| reserve(node, "a"));
        fixture.execute(&reservations, Failing::Nothing).await.0.unwrap();
        assert_eq!(state_of(&fixture, "a1"), None);
        assert_eq!(count_markers(&fixture), usize::from(is_of_other));
    }
}

#[tokio::test]
async fn a_node_that_can_no_longer_be_reserved_has_no_marker() {
    let closed = json!({"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]});
    for changed in [json!({"status": {"conditions": []}}), json!({"spec": closed})] {
        let fixture = Fixture::new(&["a1"]);
        let mut change = changed.clone();
        change["metadata"]["resourceVersion"] = "7".into();
        fixture.api().changed_before_patch = Some(change);
        let reservation = [reserve("a1", "a")];
        fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
        assert!(fixture.api().changed_before_patch.is_none());
        assert_eq!(
            (state_of(&fixture, "a1"), count_markers(&fixture)),
            (None, 0),
            "{changed}"
        );
        // Nor is it reserved by the next plan, which may be made on an older view.
        fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
        assert_eq!(
            (state_of(&fixture, "a1"), count_markers(&fixture)),
            (None, 0),
            "{changed}"
        );
    }
}

/// The marker of a machine that was used under a name which no Node has any more.
async fn marker_of_former_name(fixture: &Fixture, machine: &str) -> (String, Value) {
    let mut node = of_machine(machine);
    node["metadata"] = json!({"name": "old", "uid": "uid-old"});
    let node: Node = serde_json::from_value(node).unwrap();
    let marked = in_use_markers::ensure(&fixture.client, &node, Use::Tenant("speech-abc"));
    marked.await.unwrap();
    let mut api = fixture.api();
    let path = { api.objects.keys() }
        .find(|path| path.contains("/configmaps/"))
        .cloned();
    api.objects.remove_entry(&path.unwrap()).unwrap()
}

#[tokio::test]
async fn the_markers_of_machines_are_listed_once_for_all_reservations() {
    let all: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    let fixture = Fixture::new(&all.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &all {
        fixture.set_machine(name, name);
    }
    let marker = marker_of_former_name(&fixture, "n19").await;
    fixture.api().objects.extend([marker]);
    fixture.api().log.clear();
    let actions: Vec<Action> = { all.iter() }.map(|name| reserve(name, name)).collect();
    fixture.execute(&actions, Failing::Nothing).await.0.unwrap();
    let api = fixture.api();
    let lists = { api.log.iter() }.filter(|call| call.starts_with("GET") && call.ends_with("/configmaps"));
    assert_eq!(
        lists.count(),
        2,
        "one for all, and one for the machine that is not clean"
    );
    assert_eq!(api.nodes_in(Scrubbing), names(&["n19"]));
}

#[tokio::test]
async fn a_machine_that_was_marked_until_its_node_was_read_is_not_clean() {
    let fixture = Fixture::new(&["a1", "b1"]);
    fixture.set_machine("a1", "one");
    fixture.set_machine("b1", "two");
    // The list that is made for the first group has the marker of a machine of the second one.
    let marker = marker_of_former_name(&fixture, "two").await;
    fixture.api().inserted_after_read = Some(marker);
    let reservations = [reserve("a1", "a"), reserve("b1", "b")];
    fixture.execute(&reservations, Failing::Nothing).await.0.unwrap();
    assert!(fixture.api().inserted_after_read.is_none());
    assert_eq!(state_of(&fixture, "b1"), Some(Scrubbing));
}

#[tokio::test]
async fn a_node_that_is_another_machine_once_it_was_checked_is_not_reserved() {
    for change in [of_machine("two"), json!({"metadata": {"uid": "uid-of-new-node"}})] {
        let fixture = Fixture {
            pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
            ..Fixture::new(&["a1"])
        };
        fixture.set_machine("a1", "one");
        let marker = marker_of_former_name(&fixture, "two").await;
        fixture.api().objects.extend([marker]);
        let mut changed = json!({"metadata": {"resourceVersion": "7"}});
        merge(&mut changed, &change);
        fixture.api().changed_before_patch = Some(changed);
        let reservation = [reserve("a1", "a")];
        fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
        assert!(fixture.api().changed_before_patch.is_none());
        assert_eq!(state_of(&fixture, "a1"), None, "{change}");
        fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
        assert_eq!(state_of(&fixture, "a1"), Some(Scrubbing), "{change}");
    }
}

#[tokio::test]
async fn a_machine_that_lost_its_node_to_another_one_is_not_clean_once_that_one_is() {
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a1", "a2"])
    };
    fixture.set_machine("a1", "one");
    let reservations = ["a1", "a2"].map(|node| reserve(node, "a"));
    fixture.execute(&reservations, Failing::Nothing).await.0.unwrap();
    assert_eq!(count_markers(&fixture), 2);
    fixture.set_machine("a1", "two");
    fixture.put_in_state("a1", Draining);
    finish_recycling(&fixture).await;
    assert_eq!(state_of(&fixture, "a1"), None);
    let api = fixture.api();
    let markers = api.objects.iter().filter(|(path, _)| path.contains("/configmaps/"));
    let nodes: Vec<&str> = { markers }
        .map(|(_, marker)| marker["data"]["node"].as_str().unwrap())
        .collect();
    assert!(
        nodes.len() == 2 && nodes.iter().any(|node| node.starts_with("a1@")),
        "{nodes:?}"
    );
}
