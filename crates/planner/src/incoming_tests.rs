//! Nodes that will be free, without a plan.

use super::*;

const GROUP: usize = 7;

fn entry(node: usize, kind: usize, group: Option<usize>, is_idle: bool, time: Option<Seconds>) -> Entry {
    Entry {
        kind,
        source: Source { group, is_idle },
        arrival: Arrival {
            is_offered: false,
            time,
            node,
        },
    }
}

/// Two nodes of a group, one idle, one that leaves; one that is recycled, of another kind.
fn incoming() -> Incoming {
    let mut incoming = Incoming::default();
    incoming.insert(entry(1, 0, Some(GROUP), true, Some(50)));
    incoming.insert(entry(2, 0, Some(GROUP), false, Some(90)));
    incoming.insert(entry(3, 1, None, false, None));
    incoming
}

#[test]
fn nodes_come_in_order_and_those_that_are_offered_come_last() {
    let mut incoming = incoming();
    assert_eq!(incoming.list_all(), [3, 1, 2]);
    incoming.insert(Entry {
        arrival: Arrival {
            is_offered: true,
            time: Some(10),
            node: 4,
        },
        ..entry(4, 0, Some(GROUP), true, None)
    });
    assert_eq!(incoming.list_all(), [3, 1, 2, 4]);
    assert_eq!(incoming.count_certain(), 2);
}

#[test]
fn the_first_node_is_found_by_kind_and_source() {
    let incoming = incoming();
    let first = |kind: usize, idle: bool| incoming.find_first(|of| of == kind, |source| idle || !source.is_idle);
    assert_eq!((first(0, true), first(0, false)), (Some(1), Some(2)));
    assert_eq!((first(1, false), first(2, true)), (Some(3), None));
    assert_eq!(incoming.list(|_| true, |source| source.group.is_some()), [1, 2]);
}

#[test]
fn a_node_that_is_released_is_no_longer_idle_and_one_that_is_removed_can_be_added_again() {
    let mut incoming = incoming();
    incoming.insert(entry(1, 0, Some(GROUP), false, Some(95)));
    assert_eq!((incoming.list_all(), incoming.count_certain()), (vec![3, 2, 1], 3));
    let removed: Vec<Entry> = [1, 2, 3, 4]
        .into_iter()
        .filter_map(|node| incoming.remove(node))
        .collect();
    assert!(
        incoming.is_empty() && !incoming.contains(1),
        "{:?}",
        incoming.list_all()
    );
    assert_eq!(incoming.find_first(|_| true, |_| true), None);
    for entry in removed {
        incoming.insert(entry);
    }
    assert_eq!(incoming.list_all(), [3, 2, 1]);
}
