use super::*;
use crate::nodes::autoscalers;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

/// A free node.
pub(super) fn node() -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "uid": "node-uid", "resourceVersion": "7", "labels": {"pool": "h100"}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A node after a merge patch.
pub(crate) fn patched(node: &Node, patch: &Value) -> Node {
    fn merge(target: &mut Value, patch: &Value) {
        let Value::Object(fields) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in fields {
            if value.is_null() {
                target.as_object_mut().unwrap().remove(key);
            } else {
                merge(&mut target[key], value);
            }
        }
    }
    let mut value = serde_json::to_value(node).unwrap();
    merge(&mut value, patch);
    // What the API server does.
    let version: i64 = value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    value["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    serde_json::from_value(value).unwrap()
}

fn written(node: &Node, record: &NodeRecord) -> Node {
    patched(node, &record.patch(node, &[]))
}

fn in_state(state: State) -> (Node, NodeRecord) {
    let free = node();
    let reserved = NodeRecord::reserved("uid-1", "train", "h100", 2, at(10), "asked for");
    let owned = NodeRecord {
        slug: "vision-abc".into(),
        ..reserved.to(State::Assigned, at(20), "asked for")
    };
    let record = match state {
        State::Reserved => reserved,
        State::Joining => reserved.to(State::Joining, at(15), "asked for"),
        State::Cordoned => NodeRecord {
            cordoned_until: Some(at(99)),
            ..owned.to(State::Cordoned, at(30), "reclaimed")
        },
        State::Scrubbing => owned.to_scrubbing(&free, at(40), "reclaimed"),
        State::Validating | State::Quarantined => {
            owned
                .to_scrubbing(&free, at(40), "reclaimed")
                .to(state, at(50), "because")
        }
        state => owned.to(state, at(30), "because"),
    };
    (written(&free, &record), record)
}

#[test]
fn every_state_is_read_as_it_was_written_and_leaves_a_free_node_as_it_was() {
    for state in State::ALL {
        let (node, record) = in_state(state);
        assert_eq!(NodeRecord::read(&node).as_ref(), Some(&record), "{state:?}");
        assert!(record.is_complete(&node), "{state:?}");
        assert!(autoscalers::is_protected(&node), "{state:?}");
        assert_eq!(node.labels().contains_key(labels::TENANT), state.serves(), "{state:?}");
        let taint = taints(&node).iter().find(|taint| taint.key == labels::TENANT).unwrap();
        let value = if state.serves() { "vision-abc" } else { RECYCLING };
        assert_eq!(
            (taint.value.as_deref(), taint.effect.as_str()),
            (Some(value), "NoExecute")
        );
        let free = patched(&node, &free_patch(&node));
        assert_eq!(NodeRecord::read(&free), None, "{state:?}");
        assert_eq!(free.spec, self::node().spec, "{state:?}");
        assert_eq!(free.labels(), self::node().labels(), "{state:?}");
        assert!(free.annotations().is_empty(), "{state:?}: {:?}", free.annotations());
    }
}

#[test]
fn whatever_is_left_of_a_record_keeps_a_node_from_being_free_and_clean() {
    for state in State::ALL {
        let (node, _) = in_state(state);
        let value = serde_json::to_value(&node).unwrap();
        for (kind, keep_taint) in [("labels", true), ("annotations", true), ("labels", false)] {
            let mut stripped = value.clone();
            stripped["metadata"][kind] = json!({});
            if !keep_taint {
                stripped["spec"]["taints"] = json!([]);
            }
            let stripped: Node = serde_json::from_value(stripped).unwrap();
            let record = NodeRecord::read(&stripped).unwrap_or_else(|| panic!("{state:?} without {kind} seems free"));
            assert!(!record.is_complete(&stripped), "{state:?} without {kind}");
            if kind == "labels" {
                assert_eq!(record.state, state, "annotations decide");
            } else if !matches!(state, State::Scrubbing | State::Validating | State::Quarantined) {
                assert_eq!(record.state, State::Draining, "an owner that cannot be told: {state:?}");
            }
        }
        let mut only_taint = value.clone();
        only_taint["metadata"]["labels"] = json!({});
        only_taint["metadata"]["annotations"] = json!({});
        let only_taint: Node = serde_json::from_value(only_taint).unwrap();
        let expected = if state.serves() {
            State::Draining
        } else {
            State::Scrubbing
        };
        assert_eq!(NodeRecord::read(&only_taint).unwrap().state, expected, "{state:?}");
    }
}

#[test]
fn a_cordon_by_people_survives_a_hand_over() {
    let mut cordoned = node();
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let owned = NodeRecord::reserved("uid-1", "train", "h100", 1, at(1), "").to(State::Assigned, at(2), "");
    let assigned = written(&cordoned, &owned);
    let drained = written(&assigned, &owned.to(State::Draining, at(3), ""));
    let scrubbing = written(&drained, &owned.to_scrubbing(&drained, at(4), ""));
    let free = patched(&scrubbing, &free_patch(&scrubbing));
    assert_eq!(free.spec.unwrap().unschedulable, Some(true));
}

#[test]
fn a_cordon_that_people_took_off_is_not_theirs_any_more() {
    let mut cordoned = node();
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let owned = NodeRecord::reserved("uid-1", "train", "h100", 1, at(1), "").to(State::Assigned, at(2), "");
    let mut scrubbing = written(&cordoned, &owned.to_scrubbing(&cordoned, at(4), ""));
    scrubbing.spec.as_mut().unwrap().unschedulable = None;
    let record = NodeRecord::read(&scrubbing).unwrap();
    assert!(!record.is_complete(&scrubbing));
    let mended = written(&scrubbing, &record);
    assert_eq!(
        mended.spec.as_ref().unwrap().unschedulable,
        Some(true),
        "no pod may come"
    );
    let free = patched(&mended, &free_patch(&mended));
    assert_eq!(free.spec.unwrap().unschedulable, None);
}

#[test]
fn hand_overs_have_names_of_their_own() {
    let (node, record) = in_state(State::Draining);
    let first = record.to_scrubbing(&node, at(1), "").handover;
    assert_eq!(
        record.to_scrubbing(&node, at(2), "").handover,
        first,
        "decided twice on the same node"
    );
    let later = patched(&node, &json!({}));
    assert_ne!(record.to_scrubbing(&later, at(1), "").handover, first);
}

#[test]
fn clocks_that_go_back_end_nothing() {
    let (_, record) = in_state(State::Draining);
    assert_eq!((record.elapsed(at(31)), record.elapsed(at(5))), (1, 0));
    let (_, cordoned) = in_state(State::Cordoned);
    let times = |record: &NodeRecord| [record.since, record.cordoned_until, record.owned_since].map(Option::unwrap);
    assert_eq!(times(&cordoned), [at(30), at(99), at(20)]);
    assert_eq!(
        cordoned.without_future(at(1)),
        cordoned,
        "clocks of two controls differ"
    );
    assert_eq!(
        times(&cordoned.without_future(at(-500))),
        [at(-500), at(-431), at(-500)]
    );
}

#[test]
fn times_within_a_second_are_nothing_to_mend() {
    let now: Timestamp = "2026-11-22T09:39:15.754918321Z".parse().unwrap();
    let until = "2026-11-22T09:40:15.5Z".parse().unwrap();
    let record = NodeRecord {
        cordoned_until: Some(until),
        ..NodeRecord::reserved("uid-1", "train", "h100", 1, now, "").to(State::Assigned, now, "")
    };
    let read = NodeRecord::read(&written(&node(), &record)).unwrap();
    assert_eq!(read.without_future(now), read);
}

#[test]
fn a_node_that_an_autoscaler_may_remove_is_no_tenants() {
    for state in State::ALL {
        let (mut node, record) = in_state(state);
        node.annotations_mut().remove(autoscalers::KEEP[0]);
        assert!(!record.is_complete(&node), "{state:?}");
        assert!(record.is_complete(&written(&node, &record)), "{state:?}");
    }
}

#[test]
fn nodes_that_come_or_go_are_not_available() {
    assert!(is_available(&node()));
    for key in [
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/unregistered",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver",
    ] {
        let mut node = node();
        let taint = Taint {
            key: key.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        node.spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default()
            .push(taint);
        assert!(!is_available(&node), "{key}");
    }
}
