//! The labels of NVIDIA's software on free nodes.

use super::{Fixture, NODES, api::Failing};
use crate::testing::merge;
use berth_api::{HostNodePoolSpec, NvidiaSpec, labels};
use berth_node_lifecycle::nvidia_labels::{DEVICE_PLUGIN_CONFIG, MIG_CONFIG, MIG_STATE};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A free node with the configuration of its pool `h100`, which names this one now.
fn fixture(config: Option<&str>) -> Fixture {
    let spec = HostNodePoolSpec {
        nvidia: Some(NvidiaSpec {
            device_plugin_config: config.map(ToOwned::to_owned),
            ..NvidiaSpec::default()
        }),
        ..HostNodePoolSpec::default()
    };
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), spec)]),
        ..Fixture::new(&["a"])
    };
    let set = json!({"metadata": {
        "labels": {DEVICE_PLUGIN_CONFIG: "four"}, "annotations": {labels::CHANGED_DEVICE_PLUGIN_CONFIG: "four=default"},
    }});
    merge(fixture.api().objects.get_mut(&format!("{NODES}/a")).unwrap(), &set);
    fixture
}

/// The label and the annotation of the node after a pass.
async fn after_pass(fixture: &Fixture, failing: Failing) -> (Value, Value) {
    let _ = fixture.execute(&[], failing).await;
    let metadata = fixture.api().objects[&format!("{NODES}/a")]["metadata"].clone();
    (
        metadata["labels"][DEVICE_PLUGIN_CONFIG].clone(),
        metadata["annotations"][labels::CHANGED_DEVICE_PLUGIN_CONFIG].clone(),
    )
}

#[tokio::test]
async fn it_is_restored_once_no_pool_of_the_node_names_one() {
    let kept = (json!("four"), json!("four=default"));
    let restored = (json!("default"), Value::Null);
    for config in ["four", "eight"] {
        let in_pool = fixture(Some(config));
        assert_eq!(after_pass(&in_pool, Failing::Nothing).await, kept, "{config}");
    }
    let without = fixture(None);
    assert_eq!(after_pass(&without, Failing::Call(1)).await, kept);
    assert_eq!(after_pass(&without, Failing::Nothing).await, restored);

    let left = fixture(Some("four"));
    let outside = json!({"metadata": {"labels": {"pool": "none"}}});
    merge(left.api().objects.get_mut(&format!("{NODES}/a")).unwrap(), &outside);
    assert_eq!(after_pass(&left, Failing::Nothing).await, restored);
}

#[tokio::test]
async fn the_pool_decides_for_each_label() {
    let fixture = fixture(Some("four"));
    let set = json!({"metadata": {
        "labels": {MIG_CONFIG: "all-disabled", MIG_STATE: "success"}, "annotations": {labels::CHANGED_MIG_CONFIG: "all-disabled="},
    }});
    merge(fixture.api().objects.get_mut(&format!("{NODES}/a")).unwrap(), &set);
    assert_eq!(
        after_pass(&fixture, Failing::Nothing).await,
        (json!("four"), json!("four=default"))
    );
    let metadata = fixture.api().objects[&format!("{NODES}/a")]["metadata"].clone();
    for gone in [
        &metadata["labels"][MIG_CONFIG],
        &metadata["labels"][MIG_STATE],
        &metadata["annotations"][labels::CHANGED_MIG_CONFIG],
    ] {
        assert_eq!(*gone, Value::Null);
    }
}

#[tokio::test]
async fn it_stays_as_long_as_a_tenant_has_the_node() {
    let serving = fixture(None);
    serving.assign("a");
    let kept = (json!("four"), json!("four=default"));
    assert_eq!(after_pass(&serving, Failing::Nothing).await, kept);
}
