use super::*;
use serde_json::json;
use std::collections::HashSet;

/// A slice of a node with these many devices of 32 attributes each.
fn slice(node: &str, devices: usize) -> (String, Slice) {
    let attributes: serde_json::Map<_, _> = (0..32)
        .map(|number| (format!("a{number}"), json!({"int": 1})))
        .collect();
    let devices = vec![json!({"name": "gpu-0", "attributes": attributes}); devices];
    let spec = json!({
        "driver": "gpu.example.com", "nodeName": node, "pool": {"name": node, "generation": 1}, "devices": devices,
    });
    Slice::read(&spec.to_string()).unwrap()
}

fn nodes(changed: BTreeSet<String>) -> Vec<String> {
    changed.into_iter().collect()
}

#[test]
fn a_slice_has_a_node_or_several_and_the_products_of_its_devices() {
    let device = |product: &str| json!({"attributes": {"productName": {"string": product}, "driverVersion": {"version": "580.95.5"}}});
    let devices = json!([
        device("B200"),
        device("H100"),
        device("B200"),
        device(&"x".repeat(200)),
        {}
    ]);
    let (node, read) = Slice::read(&json!({"nodeName": "a", "devices": devices}).to_string()).unwrap();
    let texts = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>();
    assert_eq!(node, "a");
    assert_eq!(texts(read.products()), ["B200", "H100"]);
    assert_eq!(texts(read.driver_versions()), ["580.95.5"]);
    assert_eq!(Slice::read(r#"{"allNodes":true,"devices":null}"#).unwrap().0, "");
    let many: Vec<_> = (0..100).map(|number| device(&number.to_string())).collect();
    let (_, read) = Slice::read(&json!({"devices": many}).to_string()).unwrap();
    assert_eq!(read.products().len(), MOST_TEXTS);
}

#[test]
fn changes_are_reported_once_and_by_node() {
    let slices = Slices::default();
    assert_eq!(nodes(slices.put("a", Some(slice("n1", 1)))), ["n1"]);
    assert!(slices.put("a", Some(slice("n1", 1))).is_empty());
    assert_eq!(nodes(slices.put("a", Some(slice("n1", 2)))), ["n1"]);
    assert_eq!(nodes(slices.put("a", Some(slice("n2", 2)))), ["n1", "n2"]);
    assert_eq!((slices.count("n1"), slices.count("n2")), (0, 1));
    slices.put("b", Some(slice("n1", 1)));
    assert_eq!(nodes(slices.retain(&HashSet::from(["a".to_owned()]))), ["n1"]);
    assert_eq!(nodes(slices.put("a", None)), ["n2"]);
    assert!(slices.put("a", None).is_empty() && slices.nodes().is_empty());
}

/// The bytes that are kept of the slices of a node.
fn sum_bytes(slices: &Slices, node: &str) -> usize {
    slices.of(node).values().map(|slice| slice.spec().len()).sum()
}

#[test]
fn of_one_node_only_so_much_is_kept() {
    for (count, devices) in [(300, 128), (300, 1)] {
        let slices = Slices::default();
        slices.put("other", Some(slice("n2", 1)));
        for number in 0..count {
            slices.put(&format!("s{number}"), Some(slice("n1", devices)));
        }
        assert!(sum_bytes(&slices, "n1") <= MOST_BYTES && slices.of("n1").len() <= MOST_SLICES);
        assert_eq!(slices.count("n1"), count);
        assert!(slices.exceed_limits("n1") && !slices.exceed_limits("n2"));
        // One that grows has no room either.
        slices.put("s0", Some(slice("n1", 1000)));
        assert!(sum_bytes(&slices, "n1") <= MOST_BYTES);
        for number in 0..count {
            slices.put(&format!("s{number}"), None);
        }
        assert!(!slices.exceed_limits("n1"));
        slices.put("s0", Some(slice("n1", 128)));
        assert_eq!(slices.of("n1").len(), 1);
    }
}

#[test]
fn a_slice_that_had_no_room_has_some_when_others_are_gone() {
    let slices = Slices::default();
    for number in 0..=MOST_SLICES {
        slices.put(&format!("s{number}"), Some(slice("n1", 1)));
    }
    slices.put("huge", Some(slice("n1", 5000)));
    assert!(slices.exceed_limits("n1") && !slices.have_room_again());
    slices.put("s0", None);
    assert!(slices.have_room_again());
    // It is listed again.
    let last = format!("s{MOST_SLICES}");
    assert_eq!(nodes(slices.put(&last, Some(slice("n1", 1)))), ["n1"]);
    assert!(
        slices.exceed_limits("n1") && !slices.have_room_again(),
        "one is too large"
    );
    slices.put("huge", None);
    assert!(!slices.exceed_limits("n1"));
}

#[test]
fn a_slice_without_room_that_changes_wakes_nobody_again() {
    let slices = Slices::default();
    for number in 0..MOST_SLICES {
        slices.put(&format!("s{number}"), Some(slice("n1", 1)));
    }
    assert_eq!(nodes(slices.put("last", Some(slice("n1", 1)))), ["n1"]);
    assert!(slices.put("last", Some(slice("n1", 2))).is_empty());
}

#[test]
fn slices_of_several_nodes_have_no_limit() {
    let slices = Slices::default();
    for number in 0..2 * MOST_SLICES {
        slices.put(&format!("s{number}"), Some(slice("", 1)));
    }
    assert_eq!(slices.of("").len(), 2 * MOST_SLICES);
}
