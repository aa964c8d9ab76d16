use super::text::describe;
use super::*;
use serde_json::json;

fn tenant(idle: &serde_json::Value) -> TenantCluster {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "vision", "namespace": "team"}, "spec": {}, "status": {"idle": idle},
    }))
    .unwrap()
}

fn view() -> IdleView {
    let idle = json!({
        "mode": "DryRun", "lastStep": "StopOwner", "gpus": 24, "idleGPUs": 9, "optedOutGPUs": 0,
        "unknownGPUs": [{"reason": "StaleSeries", "gpus": 8}],
        "gpuHourPrice": {"amount": "2.50", "currency": "EUR"},
        "workloads": [
            {"kind": "Pod", "namespace": "ml", "name": "lab", "gpus": 1, "idleSince": "1970-01-01T00:00:00Z",
             "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "paused": true},
            {"kind": "Job", "namespace": "ml", "name": "train", "gpus": 8,
             "owner": {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}, "idleSince": "1970-01-01T01:00:00Z",
             "step": "Reclaimable", "stepSince": "1970-01-01T02:00:00Z"},
        ],
        "stoppedOwners": [{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "web", "uid": "u",
            "gpus": 4, "stoppedAt": "1970-01-01T01:30:00Z"}],
    });
    build_view(&[tenant(&idle)], Timestamp::from_second(7200).unwrap())
}

#[test]
fn hours_and_worth_are_summed_up() {
    let view = view();
    assert_eq!(
        (view.totals.gpus, view.totals.idle_gpus, view.totals.unknown_gpus),
        (24, 9, 8)
    );
    assert_eq!(format!("{:.1}", view.totals.idle_gpu_hours), "10.0");
    assert_eq!(view.totals.worth["EUR"], "25.00");
    assert_eq!(view.workloads[0].workload.name, "train", "the most GPU-hours first");
}

#[test]
fn time_for_which_nothing_is_known_does_not_count_and_workloads_that_are_not_listed_do() {
    let idle = json!({
        "mode": "Enforce", "lastStep": "EvictPods", "gpus": 800, "idleGPUs": 706, "optedOutGPUs": 0,
        "workloads": [
            {"kind": "Pod", "namespace": "ml", "name": "gap", "gpus": 6, "idleSince": "1970-01-01T00:00:00Z",
             "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "unknownSeconds": 3600},
            {"kind": "Pod", "namespace": "ml", "name": "unseen", "gpus": 1, "idleSince": "1970-01-01T00:00:00Z", "paused": true,
             "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "unknownSince": "1970-01-01T00:30:00Z"},
        ],
        "unlisted": {"workloads": 700, "gpus": 700, "idleSince": "1970-01-01T01:30:00Z"},
    });
    let view = build_view(&[tenant(&idle)], Timestamp::from_second(7200).unwrap());
    // 6 GPUs for one hour, one for half an hour, and 700 for half an hour.
    assert_eq!(format!("{:.1}", view.totals.idle_gpu_hours), "356.5");
    let rows = view.workloads.iter().map(|view| format!("{:.1}", view.idle_gpu_hours));
    assert_eq!(rows.collect::<Vec<_>>(), ["6.0", "0.5"]);
    let text = describe(&view);
    assert!(text.contains("and 700 more idle workloads"), "{text}");
}

#[test]
fn what_rounding_takes_from_each_workload_is_in_the_sum() {
    let workload = |name: &str| {
        json!({"kind": "Pod", "namespace": "ml", "name": name, "gpus": 1, "idleSince": "1970-01-01T00:00:00Z",
            "step": "Warned", "stepSince": "1970-01-01T00:00:00Z"})
    };
    let names: Vec<String> = (0..60).map(|number| format!("lab-{number}")).collect();
    let workloads: Vec<_> = names.iter().map(|name| workload(name)).collect();
    let idle = json!({
        "mode": "DryRun", "lastStep": "EvictPods", "gpus": 60, "idleGPUs": 60, "optedOutGPUs": 0,
        "gpuHourPrice": {"amount": "0.059", "currency": "EUR"}, "workloads": workloads,
    });
    // A minute each: less than a thousandth of them.
    let view = build_view(&[tenant(&idle)], Timestamp::from_second(60).unwrap());
    assert_eq!(view.totals.worth["EUR"], "0.06");
}

#[test]
fn tenants_with_idle_or_stopped_workloads_are_named() {
    let idle = |idle: &serde_json::Value| has_idle_gpus(&tenant(idle));
    let nothing = json!({"mode": "DryRun", "lastStep": "StopOwner", "gpus": 8, "idleGPUs": 0, "optedOutGPUs": 0});
    assert!(!idle(&nothing) && !idle(&json!(null)));
    let mut stopped = nothing;
    stopped["stoppedOwners"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "web",
        "uid": "u", "gpus": 4, "stoppedAt": "1970-01-01T01:30:00Z"}]);
    assert!(idle(&stopped));
}

#[test]
fn the_table_says_what_comes_next() {
    let text = describe(&view());
    assert!(
        text.starts_with("9 of 24 GPUs are idle, 10.0 GPU-hours so far"),
        "{text}"
    );
    assert!(text.contains("Job ml/train") && text.contains("20.00 EUR"), "{text}");
    assert!(text.contains("paused: metrics are missing"), "{text}");
    assert!(text.contains("StaleSeries"), "{text}");
    assert!(text.contains("Job/train") && text.contains("StopOwner"), "{text}");
    assert!(
        text.contains("Deployment/ml/web") && text.contains("1970-01-01T01:30:00Z"),
        "{text}"
    );
}

#[test]
fn tenants_without_reclaim_are_not_shown() {
    let none: TenantCluster = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "vision", "namespace": "team"}, "spec": {},
    }))
    .unwrap();
    assert_eq!(build_view(&[none], Timestamp::UNIX_EPOCH), IdleView::default());
}

/// The status of a tenant whose class does not look for idle GPUs, and that keeps two nodes.
fn nodes_without_gpu_pods() -> serde_json::Value {
    json!({
        "mode": "Off", "gpus": 0, "idleGPUs": 0,
        "nodes": [
            {"name": "gpu-7", "poolName": "h100", "nodeGroupName": "train", "gpus": 8, "idleSince": "1970-01-01T00:00:00Z",
             "pods": ["ml/web", "ml/lab", "ml/db"], "unlistedPods": 2},
            {"name": "gpu-8", "poolName": "h100", "nodeGroupName": "train", "gpus": 8, "idleSince": "1970-01-01T01:00:00Z"},
        ],
        "unlistedNodes": {"nodes": 3, "gpus": 12},
    })
}

#[test]
fn nodes_that_pods_without_gpus_keep_are_shown_whatever_the_class_says() {
    let mut other = nodes_without_gpu_pods();
    other["nodes"] = json!([{"name": "big", "poolName": "nvl", "nodeGroupName": "lab", "gpus": 16, "idleSince": "1970-01-01T02:00:00Z"}]);
    other["unlistedNodes"] = json!(null);
    let view = build_view(
        &[tenant(&nodes_without_gpu_pods()), tenant(&other)],
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!((view.totals.idle_nodes, view.totals.idle_node_gpus), (6, 44));
    let expected = "\
No class of these tenants looks for idle GPUs of pods: set spec.idleReclaim of a TenantClass

No pod requests a GPU of 6 nodes with 44 GPUs:
NODE   POOL  TENANT       GROUP  GPUS  IDLE SINCE            PODS
big    nvl   team/vision  lab    16    1970-01-01T02:00:00Z  -
gpu-7  h100  team/vision  train  8     1970-01-01T00:00:00Z  ml/web, ml/lab, ml/db and 2 more
gpu-8  h100  team/vision  train  8     1970-01-01T01:00:00Z  -
and 3 more nodes, in the sums";
    assert_eq!(describe(&view), expected);
    assert!(has_idle_gpus(&tenant(&nodes_without_gpu_pods())));
}

#[test]
fn programs_find_the_nodes_and_their_sums() {
    let view = build_view(&[tenant(&nodes_without_gpu_pods())], Timestamp::UNIX_EPOCH);
    let value = serde_json::to_value(&view).unwrap();
    let totals = &value["totals"];
    let sums = (&totals["tenants"], &totals["idleNodes"], &totals["idleNodeGPUs"]);
    assert_eq!(sums, (&json!(0), &json!(5), &json!(28)));
    let node = &value["nodes"][0];
    assert_eq!(
        (&node["tenant"], &node["name"]),
        (&json!("team/vision"), &json!("gpu-7"))
    );
    assert_eq!(
        (&node["poolName"], &node["pods"][0]),
        (&json!("h100"), &json!("ml/web"))
    );
}
