use std::collections::BTreeSet;

use super::{object::addresses, *};

#[test]
fn plans_are_read_and_written() {
    let plan: NodePlan = "l40s=1, h100=4".parse().unwrap();
    assert_eq!(plan.to_string(), "h100=4,l40s=1");
    assert_eq!(
        plan.names(),
        [
            "gpu-h100-01",
            "gpu-h100-02",
            "gpu-h100-03",
            "gpu-h100-04",
            "gpu-l40s-01"
        ]
    );
    assert_eq!(NodePlan::default().to_string(), "h100=2,l40s=2,cpu=1");
    assert_eq!("".parse::<NodePlan>().unwrap().names(), Vec::<String>::new());
}

#[test]
fn invalid_plan_is_rejected_with_an_example() {
    for text in ["h100", "a100=1", "h100=many", "cpu=1,cpu=2", "cpu=9000"] {
        let message = text.parse::<NodePlan>().unwrap_err().to_string();
        assert!(message.contains("h100=4,l40s=2,cpu=1"), "{message}");
    }
}

#[test]
fn a_gpu_node_looks_like_a_real_one() {
    let node = build_node(NodeShape::H100, 5, "v1.37.1");
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3");
    assert_eq!(labels[RACK_LABEL], "h100-rack-02");
    assert_eq!(node.metadata.name.as_deref(), Some("gpu-h100-05"));
    let status = node.status.unwrap();
    assert_eq!(status.capacity.unwrap()["nvidia.com/gpu"].0, "8");
    assert_eq!(status.allocatable.unwrap()["cpu"].0, "221");
    assert_eq!(status.node_info.unwrap().kubelet_version, "v1.37.1");
    let (uuid, clique) = labels["nvidia.com/gpu.clique"].split_once('.').unwrap();
    assert_eq!((uuid.len(), clique), (36, "0"));
}

#[test]
fn nvlink_domains_are_racks() {
    let clique = |number| {
        build_node(NodeShape::H100, number, "v1.37.1").metadata.labels.unwrap()["nvidia.com/gpu.clique"].clone()
    };
    assert_eq!(clique(1), clique(4));
    assert_ne!(clique(4), clique(5));
}

#[test]
fn a_cpu_node_has_no_trace_of_a_gpu() {
    let node = serde_json::to_string(&build_node(NodeShape::Cpu, 1, "v1.37.1")).unwrap();
    assert!(!node.contains("nvidia"), "{node}");
}

#[test]
fn no_two_nodes_share_an_address_or_a_pod_range() {
    let plan = NodePlan::of(NodeShape::ALL.map(|shape| (shape, MAX_NODES_PER_SHAPE)));
    let (mut nodes, mut pods) = (BTreeSet::new(), BTreeSet::new());
    for (shape, number) in plan.shapes_and_numbers() {
        let (address, range) = addresses(shape, number - 1);
        address.parse::<std::net::Ipv4Addr>().unwrap();
        range.trim_end_matches("/24").parse::<std::net::Ipv4Addr>().unwrap();
        assert!(nodes.insert(address) && pods.insert(range));
    }
}
