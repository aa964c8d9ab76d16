//! Free nodes on which pods run that an assignment would evict, and that the plan did not know of.

use super::{Fixture, NOW, api::Failing, markers::count_markers, reserve, state_of};
use crate::testing::merge;
use berth_node_lifecycle::assignment::AssignmentState::Reserved;
use serde_json::{Value, json};

const POD: &str = "/api/v1/namespaces/shop/pods/web-1";

fn pod(more: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "uid-w"},
        "spec": {"nodeName": "a", "containers": []},
    });
    merge(&mut pod, more);
    pod
}

#[tokio::test]
async fn they_are_not_evicted_and_the_node_is_reserved_once_they_are_gone() {
    let fixture = Fixture::new(&["a"]);
    fixture.api().objects.insert(POD.into(), pod(&json!({})));
    let reservation = [reserve("a", "group")];
    fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
    assert_eq!((state_of(&fixture, "a"), count_markers(&fixture)), (None, 0));
    fixture.api().objects.remove(POD);
    fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a"), Some(Reserved));
}

#[tokio::test]
async fn pods_that_stay_keep_no_node() {
    let daemon_set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "o", "uid": "u", "controller": true});
    for more in [
        json!({"metadata": {"ownerReferences": [daemon_set]}}),
        json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
        json!({"status": {"phase": "Succeeded"}}),
    ] {
        let fixture = Fixture::new(&["a"]);
        fixture.api().objects.insert(POD.into(), pod(&more));
        let reservation = [reserve("a", "group")];
        fixture.execute(&reservation, Failing::Nothing).await.0.unwrap();
        assert_eq!(state_of(&fixture, "a"), Some(Reserved), "{more}");
    }
}

#[tokio::test]
async fn a_node_with_a_pod_that_cannot_be_read_is_left_to_people_and_a_group_gets_others() {
    let fixture = Fixture::new(&["a"]);
    let unreadable = pod(&json!({"spec": {"nodeName": 1}}));
    fixture.api().objects.insert(POD.into(), unreadable);
    fixture
        .execute(&[reserve("a", "group")], Failing::Nothing)
        .await
        .0
        .unwrap();
    let why = fixture.rejected.reason("a", NOW).unwrap_or_default();
    assert!(why.contains("shop/web-1") && why.contains("cannot be read"), "{why}");
    assert_eq!((state_of(&fixture, "a"), count_markers(&fixture)), (None, 0));
}
