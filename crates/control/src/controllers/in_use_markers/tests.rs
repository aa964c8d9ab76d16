//! Markers at an API server in memory.

use super::*;
use crate::testing::{Script, ScriptedApi};

/// A node in this version.
fn node(version: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": version}})).unwrap()
}

/// Marks a node by a list that is made for it alone.
async fn mark(client: &Client, node: &Node, for_use: Use<'_>) -> Result<Marker, ReconcileError> {
    super::mark(client, node, for_use, &MarkedMachines::default()).await
}

async fn mark_in(host: &ScriptedApi, version: &str, for_use: Use<'_>) -> Marker {
    mark(&host.client(), &node(version), for_use).await.unwrap()
}

async fn create_in(host: &ScriptedApi, version: &str, for_use: Use<'_>) -> MarkerVersion {
    match mark_in(host, version, for_use).await {
        Marker::Created(created) => created,
        other => panic!("{other:?}"),
    }
}

fn host() -> ScriptedApi {
    ScriptedApi::new("host", &Script::default())
}

fn is_marked(host: &ScriptedApi) -> bool {
    !host.find("/configmaps/").is_empty()
}

#[tokio::test]
async fn a_marker_on_which_another_control_relies_is_not_deleted() {
    for for_use in [Use::Tenant("vision"), Use::Shared("cpu")] {
        let host = host();
        let of_former_leader = create_in(&host, "1", for_use).await;
        assert_eq!(mark_in(&host, "1", for_use).await, Marker::Existing);
        delete(&host.client(), &of_former_leader).await.unwrap();
        assert!(is_marked(&host), "{for_use:?}");
    }
}

#[tokio::test]
async fn a_marker_of_a_later_use_is_not_deleted() {
    let host = host();
    create_in(&host, "1", Use::Tenant("vision")).await;
    let of_former_leader = read_version(&host.client(), "n").await.unwrap().unwrap();
    delete(&host.client(), &of_former_leader).await.unwrap();
    assert!(!is_marked(&host));
    create_in(&host, "2", Use::Tenant("speech")).await;
    delete(&host.client(), &of_former_leader).await.unwrap();
    assert!(is_marked(&host));
}

#[tokio::test]
async fn a_node_that_was_shared_is_clean_for_sharing_only() {
    let host = host();
    create_in(&host, "1", Use::Shared("cpu")).await;
    assert_eq!(mark_in(&host, "2", Use::Shared("more")).await, Marker::Existing);
    for version in ["1", "3"] {
        assert_eq!(
            mark_in(&host, version, Use::Tenant("vision")).await,
            Marker::OfPreviousUse(PreviousUse::Shared("more".into()))
        );
    }
}

#[tokio::test]
async fn a_node_of_a_tenant_is_clean_for_nobody() {
    let host = host();
    create_in(&host, "1", Use::Tenant("vision")).await;
    for for_use in [Use::Tenant("speech"), Use::Shared("cpu")] {
        let of_vision = PreviousUse::Tenant("vision".into());
        assert_eq!(mark_in(&host, "2", for_use).await, Marker::OfPreviousUse(of_vision));
    }
    // It was not reserved: the version of the node is the same.
    assert_eq!(mark_in(&host, "1", Use::Tenant("speech")).await, Marker::Existing);
    let of_speech = PreviousUse::Tenant("speech".into());
    assert_eq!(
        mark_in(&host, "1", Use::Shared("cpu")).await,
        Marker::OfPreviousUse(of_speech)
    );
}

/// A node of a machine that its kubelet identifies.
fn node_of_machine(name: &str, machine: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "status": {"nodeInfo": {
            "machineID": machine, "systemUUID": "s", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "operatingSystem": "", "osImage": "",
        }},
    }))
    .unwrap()
}

#[tokio::test]
async fn a_machine_is_not_clean_under_another_name() {
    let host = host();
    let client = host.client();
    let mark_node = async |name: &str, machine: &str, for_use| {
        mark(&client, &node_of_machine(name, machine), for_use).await.unwrap()
    };
    mark_node("old", "m", Use::Tenant("vision")).await;
    for (machine, is_gone) in [("other", true), ("", true), ("m", false)] {
        if !is_gone {
            host.insert("/api/v1/nodes/old", json!({"metadata": {"name": "old"}}));
        }
        let name = format!("new-{machine}");
        let marker = mark_node(&name, machine, Use::Tenant("speech")).await;
        assert!(matches!(marker, Marker::Created(_)), "{machine}: {marker:?}");
        let marker = read_version(&client, &name).await.unwrap().unwrap();
        delete(&client, &marker).await.unwrap();
    }
    host.remove("/api/v1/nodes/old");
    for for_use in [Use::Shared("cpu"), Use::Tenant("speech"), Use::Tenant("speech")] {
        assert_eq!(mark_node("new", "m", for_use).await, of_vision(), "{for_use:?}");
    }
    // It is scrubbed, once. Under its old name it is another node.
    let marker = read_version(&client, "new").await.unwrap().unwrap();
    delete(&client, &marker).await.unwrap();
    assert!(matches!(
        mark_node("new", "m", Use::Tenant("speech")).await,
        Marker::Created(_)
    ));
    host.insert("/api/v1/nodes/new", json!({"metadata": {"name": "new"}}));
    let old = read_version(&client, "old").await.unwrap();
    assert!(old.is_some(), "another machine that reports the same may come back");
}

#[tokio::test]
async fn a_machine_that_was_about_to_be_used_is_not_clean_either() {
    let host = host();
    let client = host.client();
    let old = node_of_machine("old", "m");
    mark(&client, &old, Use::Tenant("vision")).await.unwrap();
    // Control ended before the node was reserved; it had not seen yet that the other Node is gone.
    let new = node_of_machine("new", "m");
    ensure(&client, &new, Use::Tenant("speech")).await.unwrap();
    assert_eq!(
        mark(&client, &new, Use::Tenant("speech")).await.unwrap(),
        Marker::OfPreviousUse(PreviousUse::Tenant("vision".into()))
    );
}

fn of_vision() -> Marker {
    Marker::OfPreviousUse(PreviousUse::Tenant("vision".into()))
}

/// The node of this name is another machine now.
fn replace_machine(host: &ScriptedApi, name: &str, machine: &str) -> Node {
    let node = node_of_machine(name, machine);
    host.insert(&format!("/api/v1/nodes/{name}"), serde_json::to_value(&node).unwrap());
    node
}

async fn delete_marker(client: &Client, node: &str) {
    let marker = read_version(client, node).await.unwrap().unwrap();
    delete(client, &marker).await.unwrap();
}

#[tokio::test]
async fn a_machine_whose_name_another_one_took_is_not_clean() {
    for (is_other_used, name) in [(false, "b"), (true, "b"), (true, "a")] {
        let host = host();
        let client = host.client();
        let machine = node_of_machine("a", "one");
        mark(&client, &machine, Use::Tenant("vision")).await.unwrap();
        let other = replace_machine(&host, "a", "two");
        if is_other_used {
            mark(&client, &other, Use::Tenant("speech")).await.unwrap();
            delete_marker(&client, "a").await;
        }
        let back = node_of_machine(name, "one");
        let marker = mark(&client, &back, Use::Tenant("speech")).await.unwrap();
        assert_eq!(marker, of_vision(), "{is_other_used} {name}");
        // It is scrubbed, once.
        delete_marker(&client, name).await;
        let marker = mark(&client, &back, Use::Tenant("speech")).await.unwrap();
        assert!(
            matches!(marker, Marker::Created(_)),
            "{is_other_used} {name}: {marker:?}"
        );
    }
}

#[tokio::test]
async fn a_machine_that_took_a_name_is_not_clean_under_another_one() {
    let host = host();
    let client = host.client();
    let machine = node_of_machine("a", "one");
    mark(&client, &machine, Use::Shared("cpu")).await.unwrap();
    let other = replace_machine(&host, "a", "two");
    let marker = mark(&client, &other, Use::Shared("cpu")).await.unwrap();
    assert_eq!(marker, Marker::Existing);
    host.remove("/api/v1/nodes/a");
    for (name, machine) in [("b", "one"), ("c", "two")] {
        let back = node_of_machine(name, machine);
        let marker = mark(&client, &back, Use::Tenant("vision")).await.unwrap();
        let was_shared = Marker::OfPreviousUse(PreviousUse::Shared("cpu".into()));
        assert_eq!(marker, was_shared, "{name}");
    }
}

#[tokio::test]
async fn a_machine_that_lost_its_name_twice_is_not_clean_for_sharing_if_a_tenant_had_it() {
    let host = host();
    let client = host.client();
    let first = node_of_machine("a", "one");
    mark(&client, &first, Use::Shared("cpu")).await.unwrap();
    set_machine(&client, &replace_machine(&host, "a", "two")).await.unwrap();
    let second = node_of_machine("b", "one");
    mark(&client, &second, Use::Tenant("vision")).await.unwrap();
    delete_marker(&client, "b").await;
    mark(&client, &second, Use::Tenant("vision")).await.unwrap();
    set_machine(&client, &replace_machine(&host, "b", "three"))
        .await
        .unwrap();
    let third = node_of_machine("c", "one");
    let marker = mark(&client, &third, Use::Shared("cpu")).await.unwrap();
    assert_eq!(marker, of_vision());
}

#[tokio::test]
async fn machines_that_report_the_same_are_scrubbed_once_each() {
    let host = host();
    let client = host.client();
    let old = node_of_machine("old", "m");
    mark(&client, &old, Use::Tenant("vision")).await.unwrap();
    for is_first in [true, false] {
        for name in ["b", "c"] {
            let node = replace_machine(&host, name, "m");
            let marker = mark(&client, &node, Use::Tenant("speech")).await.unwrap();
            assert_eq!(marker == of_vision(), is_first, "{name}: {marker:?}");
            delete_marker(&client, name).await;
        }
    }
}

#[test]
fn a_marker_remembers_a_bounded_number_of_nodes() {
    let mut former = ConfigMap::default();
    for number in 0..150 {
        let node = node_of_machine(&number.to_string(), "m");
        let change = machine::moved_to(&former, &node, Timestamp::from_second(number).unwrap());
        let data = former.data.get_or_insert_default();
        for (key, value) in change.as_object().unwrap() {
            match value.as_str() {
                Some(at) => data.insert(key.clone(), at.into()),
                None => data.remove(key),
            };
        }
    }
    let data = former.data.unwrap();
    assert_eq!(data.len(), 100);
    assert!(data.contains_key("movedTo.uid-50") && data.contains_key("movedTo.uid-149"));
}

#[tokio::test]
async fn a_marker_of_a_former_version_gets_its_machine() {
    let host = host();
    let client = host.client();
    ensure(&client, &node("1"), Use::Tenant("vision")).await.unwrap();
    assert_eq!(list_marked_nodes(&client).await.unwrap(), [("n".into(), false)].into());
    let in_use = node_of_machine("n", "m");
    ensure(&client, &in_use, Use::Tenant("vision")).await.unwrap();
    assert_eq!(list_marked_nodes(&client).await.unwrap(), [("n".into(), true)].into());
    let back = node_of_machine("new", "m");
    let marker = mark(&client, &back, Use::Tenant("speech")).await.unwrap();
    assert_eq!(marker, of_vision());
}
