use super::*;
use crate::node::{autoscalers, is_available, taints};
use json_patch::merge;
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
    let mut value = serde_json::to_value(node).unwrap();
    merge(&mut value, patch);
    // The API server changes the version.
    let version: i64 = value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    value["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    serde_json::from_value(value).unwrap()
}

fn written(node: &Node, assignment: &Assignment) -> Node {
    patched(node, &assignment.to_patch(node, &[]))
}

fn in_state(state: AssignmentState) -> (Node, Assignment) {
    let free = node();
    let reserved = Assignment::reserved("uid-1", "train", "h100", 2, at(10), "asked for");
    let owned = Assignment {
        slug: "vision-abc".into(),
        ..reserved.with_state(AssignmentState::Assigned, at(20), "asked for")
    };
    let assignment = match state {
        AssignmentState::Reserved => reserved,
        AssignmentState::Joining => reserved.with_state(AssignmentState::Joining, at(15), "asked for"),
        AssignmentState::Cordoned => Assignment {
            cordoned_until: Some(at(99)),
            ..owned.with_state(AssignmentState::Cordoned, at(30), "reclaimed")
        },
        AssignmentState::Scrubbing => owned.start_recycling(&free, at(40), "reclaimed"),
        AssignmentState::Validating | AssignmentState::Quarantined => owned
            .start_recycling(&free, at(40), "reclaimed")
            .with_state(state, at(50), "because"),
        state => owned.with_state(state, at(30), "because"),
    };
    (written(&free, &assignment), assignment)
}

#[test]
fn every_state_round_trips_and_clearing_restores_the_node() {
    for state in AssignmentState::ALL {
        let (node, assignment) = in_state(state);
        assert_eq!(Assignment::read(&node).as_ref(), Some(&assignment), "{state:?}");
        assert!(assignment.is_written_on(&node), "{state:?}");
        assert!(autoscalers::is_protected_from_removal(&node), "{state:?}");
        assert_eq!(
            node.labels().contains_key(labels::TENANT),
            state.runs_tenant_pods(),
            "{state:?}"
        );
        let found = taints(&node).iter().filter(|taint| taint.key == labels::TENANT);
        let found: Vec<_> = found
            .map(|taint| (taint.value.as_deref().unwrap(), taint.effect.as_str()))
            .collect();
        let value = if state.runs_tenant_pods() {
            "vision-abc"
        } else {
            RECYCLING
        };
        let mut expected = vec![(value, "NoExecute")];
        if state == AssignmentState::Draining {
            expected.push((RECYCLING, "NoSchedule"));
        }
        assert_eq!(found, expected, "{state:?}");
        let free = patched(&node, &clear_assignment_patch(&node));
        assert_eq!(Assignment::read(&free), None, "{state:?}");
        assert_eq!(free.spec, self::node().spec, "{state:?}");
        assert_eq!(free.labels(), self::node().labels(), "{state:?}");
        assert!(free.annotations().is_empty(), "{state:?}: {:?}", free.annotations());
    }
}

#[test]
fn a_partial_assignment_keeps_a_node_from_being_free() {
    for state in AssignmentState::ALL {
        let (node, _) = in_state(state);
        let value = serde_json::to_value(&node).unwrap();
        for (kind, keep_taint) in [("labels", true), ("annotations", true), ("labels", false)] {
            let mut stripped = value.clone();
            stripped["metadata"][kind] = json!({});
            if !keep_taint {
                stripped["spec"]["taints"] = json!([]);
            }
            let stripped: Node = serde_json::from_value(stripped).unwrap();
            let assignment =
                Assignment::read(&stripped).unwrap_or_else(|| panic!("{state:?} without {kind} seems free"));
            assert!(!assignment.is_written_on(&stripped), "{state:?} without {kind}");
            if kind == "labels" {
                assert_eq!(assignment.state, state, "annotations decide");
            } else if !matches!(
                state,
                AssignmentState::Scrubbing | AssignmentState::Validating | AssignmentState::Quarantined
            ) {
                assert_eq!(
                    assignment.state,
                    AssignmentState::Draining,
                    "the tenant is not known: {state:?}"
                );
            }
        }
        let mut only_taint = value.clone();
        only_taint["metadata"]["labels"] = json!({});
        only_taint["metadata"]["annotations"] = json!({});
        let only_taint: Node = serde_json::from_value(only_taint).unwrap();
        let expected = if state.runs_tenant_pods() {
            AssignmentState::Draining
        } else {
            AssignmentState::Scrubbing
        };
        assert_eq!(Assignment::read(&only_taint).unwrap().state, expected, "{state:?}");
    }
}

/// Nothing else would ever remove it.
#[test]
fn a_node_of_whose_assignment_only_the_cordon_is_left_is_recycled_and_uncordoned() {
    let cordoned = |whose: &str| {
        let mut node = node();
        node.spec.get_or_insert_default().unschedulable = Some(true);
        node.annotations_mut().insert(labels::CORDON.into(), whose.into());
        node
    };
    let left = cordoned("berth");
    let found = Assignment::read(&left).unwrap();
    assert_eq!(found.state, AssignmentState::Scrubbing);
    assert!(!found.is_written_on(&left), "the taint is missing");
    let free = patched(&left, &clear_assignment_patch(&left));
    assert_eq!((Assignment::read(&free), free.spec), (None, node().spec));
    assert_eq!(Assignment::read(&cordoned("people")), None);
}

#[test]
fn a_cordon_by_people_survives_recycling() {
    let mut cordoned = node();
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let owned =
        Assignment::reserved("uid-1", "train", "h100", 1, at(1), "").with_state(AssignmentState::Assigned, at(2), "");
    let assigned = written(&cordoned, &owned);
    let drained = written(&assigned, &owned.with_state(AssignmentState::Draining, at(3), ""));
    let scrubbing = written(&drained, &owned.start_recycling(&drained, at(4), ""));
    let free = patched(&scrubbing, &clear_assignment_patch(&scrubbing));
    assert_eq!(free.spec.unwrap().unschedulable, Some(true));
}

#[test]
fn an_uncordoned_node_is_cordoned_by_berth() {
    let mut cordoned = node();
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let owned =
        Assignment::reserved("uid-1", "train", "h100", 1, at(1), "").with_state(AssignmentState::Assigned, at(2), "");
    let mut scrubbing = written(&cordoned, &owned.start_recycling(&cordoned, at(4), ""));
    scrubbing.spec.as_mut().unwrap().unschedulable = None;
    let assignment = Assignment::read(&scrubbing).unwrap();
    assert!(!assignment.is_written_on(&scrubbing));
    let corrected = written(&scrubbing, &assignment);
    assert_eq!(
        corrected.spec.as_ref().unwrap().unschedulable,
        Some(true),
        "no pods may be scheduled"
    );
    let free = patched(&corrected, &clear_assignment_patch(&corrected));
    assert_eq!(free.spec.unwrap().unschedulable, None);
}

#[test]
fn a_node_that_has_just_left_its_tenant_says_from_when_to_when_that_had_it() {
    let (node, draining) = in_state(AssignmentState::Draining);
    for left in [
        draining.start_recycling(&node, at(40), "reclaimed"),
        draining.with_state(AssignmentState::Quarantined, at(40), "not Ready"),
    ] {
        let read = Assignment::read(&written(&node, &left)).unwrap();
        assert_eq!(
            (read.owned_since, read.left_at),
            (Some(at(20)), Some(at(40))),
            "{:?}",
            left.state
        );
        assert_eq!((read.uid.as_str(), read.slug.as_str()), ("", "vision-abc"));
        // Later states begin at other times.
        for next in [AssignmentState::Validating, AssignmentState::Quarantined] {
            let later = left.with_state(next, at(50), "");
            assert_eq!((later.owned_since, later.left_at), (None, None));
        }
    }
    let (node, joining) = in_state(AssignmentState::Joining);
    let never_served = joining.start_recycling(&node, at(40), "not wanted any more");
    assert_eq!((never_served.owned_since, never_served.left_at), (None, None));
}

/// A pod was bound late, or control did not run: that the tenant had the node may not be counted yet.
#[test]
fn a_node_whose_scrub_starts_again_says_the_same() {
    let (node, draining) = in_state(AssignmentState::Draining);
    let mut left = draining.start_recycling(&node, at(40), "reclaimed");
    for second in [50, 60] {
        left = Assignment::read(&written(&node, &left.start_recycling(&node, at(second), "again"))).unwrap();
        assert_eq!(
            (left.owned_since, left.left_at, left.since),
            (Some(at(20)), Some(at(40)), Some(at(second)))
        );
    }
    // After a scrub or a quarantine, nothing begins that anybody could take for it.
    for before in [AssignmentState::Validating, AssignmentState::Quarantined] {
        let again = left
            .with_state(before, at(70), "")
            .start_recycling(&node, at(80), "again");
        assert_eq!((again.owned_since, again.left_at), (None, None), "{before:?}");
    }
}

/// An earlier version of Berth has written it, or somebody has removed the annotation.
#[test]
fn a_node_that_does_not_say_when_it_has_left_its_tenant_says_it_by_its_state() {
    let (mut node, scrubbing) = in_state(AssignmentState::Scrubbing);
    let mut without = node.annotations().clone();
    without.remove(labels::LEFT_AT);
    node.metadata.annotations = Some(without);
    let read = Assignment::read(&node).unwrap();
    assert_eq!(read, scrubbing);
    assert!(!read.is_written_on(&node), "it is written again");
    let again = read.start_recycling(&node, at(60), "again");
    assert_eq!((again.owned_since, again.left_at), (Some(at(20)), Some(at(40))));
    // Of those that serve a tenant, the state says something else.
    for state in [AssignmentState::Assigned, AssignmentState::Draining] {
        let (node, _) = in_state(state);
        assert_eq!(Assignment::read(&node).unwrap().left_at, None, "{state:?}");
    }
}

#[test]
fn each_recycling_has_its_own_id() {
    let (node, assignment) = in_state(AssignmentState::Draining);
    let first = assignment.start_recycling(&node, at(1), "").recycling_id;
    assert_eq!(
        assignment.start_recycling(&node, at(2), "").recycling_id,
        first,
        "two decisions on the same version of the node"
    );
    let later = patched(&node, &json!({}));
    assert_ne!(assignment.start_recycling(&later, at(1), "").recycling_id, first);
}

#[test]
fn clocks_that_go_back_keep_durations() {
    let (_, assignment) = in_state(AssignmentState::Draining);
    assert_eq!((assignment.elapsed(at(31)), assignment.elapsed(at(5))), (1, 0));
    let (_, cordoned) = in_state(AssignmentState::Cordoned);
    let times = |assignment: &Assignment| {
        [assignment.since, assignment.cordoned_until, assignment.owned_since].map(Option::unwrap)
    };
    assert_eq!(times(&cordoned), [at(30), at(99), at(20)]);
    assert_eq!(
        cordoned.without_future_times(at(1)),
        cordoned,
        "clocks of two controls differ a little"
    );
    assert_eq!(
        times(&cordoned.without_future_times(at(-500))),
        [at(-500), at(-431), at(-500)]
    );
}

#[test]
fn fractions_of_a_second_are_no_drift() {
    let now: Timestamp = "2026-11-22T09:39:15.754918321Z".parse().unwrap();
    let until = "2026-11-22T09:40:15.5Z".parse().unwrap();
    let assignment = Assignment {
        cordoned_until: Some(until),
        ..Assignment::reserved("uid-1", "train", "h100", 1, now, "").with_state(AssignmentState::Assigned, now, "")
    };
    let read = Assignment::read(&written(&node(), &assignment)).unwrap();
    assert_eq!(read.without_future_times(now), read);
}

#[test]
fn an_unprotected_node_is_drift() {
    for state in AssignmentState::ALL {
        let (mut node, assignment) = in_state(state);
        node.annotations_mut().remove(autoscalers::PROTECTION_ANNOTATIONS[0]);
        assert!(!assignment.is_written_on(&node), "{state:?}");
        assert!(assignment.is_written_on(&written(&node, &assignment)), "{state:?}");
    }
}

#[test]
fn nodes_that_start_or_are_removed_are_not_available() {
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
