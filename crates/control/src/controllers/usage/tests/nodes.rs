//! Nodes of tenants.

use super::*;
use berth_api::{NodeMode, UsageLine};

#[tokio::test]
async fn a_node_counts_from_its_assignment_to_its_release_which_is_written_at_once() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 600);
    assert_seconds(fixture.amount(UsageResource::Node), 1, 600);
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 3600);
    let record = fixture.record();
    assert_eq!(record.metadata.name, Some(format!("{}-2026-11", slug())));
    assert!(record.spec.in_use);
    let gpus = record
        .spec
        .lines
        .iter()
        .find(|line| line.resource == UsageResource::Gpu);
    let expected = UsageLine {
        resource: UsageResource::Gpu,
        pool_name: Some("h100".into()),
        gpu_product: Some("H100".into()),
        mode: Some(NodeMode::Dynamic),
        class_name: Some("gold".into()),
        project_name: Some("p".into()),
        organization_name: Some("research".into()),
        storage_class_name: None,
        daily: gpus.unwrap().daily.clone(),
    };
    assert_eq!(gpus, Some(&expected));

    // The record of the pool, which begins with the first pass.
    fixture.advance_to(1);
    fixture.pass().await.unwrap();
    // Nothing is due: nobody is asked anything.
    let calls = fixture.calls();
    fixture.pass().await.unwrap();
    assert_eq!(fixture.calls(), calls);

    fixture.advance_to(300);
    fixture.release("gpu-1", -600, 100);
    fixture.pass().await.unwrap();
    assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 700);
    assert_eq!(fixture.amount(UsageResource::Node), 700);
    let line = |record: &UsageRecord| {
        record
            .spec
            .lines
            .iter()
            .filter(|line| line.resource == UsageResource::Node)
            .count()
    };
    assert_eq!(line(&fixture.record()), 1, "it is still the mode of its group");
    // It is scrubbed for a long time, and that is the platform's.
    fixture.advance_to(3600);
    fixture.stop().await;
    assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 700);
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 7200);
}

#[tokio::test]
async fn a_control_that_was_killed_loses_nothing_of_nodes_and_counts_nothing_twice() {
    for leaves in [false, true] {
        let mut fixture = Fixture::new();
        fixture.assign("gpu-1", ("vision", UID), -600);
        fixture.pass().await.unwrap();
        // What is counted here is not due yet, or has just been written.
        fixture.advance_to(300);
        fixture.pass().await.unwrap();
        fixture.restart();
        fixture.assign("gpu-2", ("vision", UID), 400);
        if leaves {
            // Before it is killed it releases the node, and does not come to write it down.
            fixture.release("gpu-1", -600, 350);
        }
        fixture.advance_to(1200);
        fixture.pass().await.unwrap();
        fixture.stop().await;
        let first = if leaves { 950 } else { 1800 };
        assert_seconds(fixture.amount(UsageResource::Gpu), 8, first + 800);
        fixture.restart();
        fixture.pass().await.unwrap();
        fixture.stop().await;
        assert_seconds(fixture.amount(UsageResource::Gpu), 8, first + 800);
    }
}

#[tokio::test]
async fn a_node_that_came_and_left_while_nothing_was_written_counts_from_its_own_assignment() {
    let mut fixture = Fixture::new();
    fixture.pass().await.unwrap();
    fixture.restart();
    fixture.advance_to(900);
    fixture.release("gpu-1", 500, 700);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 200);
}

#[tokio::test]
async fn what_a_node_proves_is_kept_until_it_is_known_what_is_recorded() {
    for is_loaded_at_once in [true, false] {
        let mut fixture = Fixture::new();
        fixture.assign("gpu-1", ("vision", UID), 0);
        fixture.pass().await.unwrap();
        // It is killed after it has released the node.
        fixture.advance_to(300);
        fixture.release("gpu-1", 0, 200);
        fixture.restart();
        if is_loaded_at_once {
            fixture.begin();
        } else {
            fixture.script.fail_call(fixture.calls());
            fixture.pass().await.unwrap_err();
        }
        // Its scrub is over, and the controller of nodes is faster.
        fixture.free("gpu-1");
        fixture.pass().await.unwrap();
        fixture.stop().await;
        assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 200, "{is_loaded_at_once}");
        fixture.begin();
        fixture.pass().await.unwrap();
        fixture.stop().await;
        assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 200, "{is_loaded_at_once}");
    }
}

#[tokio::test]
async fn what_a_node_still_proves_is_counted_once() {
    let mut fixture = Fixture::new();
    fixture.pass().await.unwrap();
    fixture.restart();
    fixture.advance_to(300);
    fixture.release("gpu-1", 100, 200);
    fixture.begin();
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 100);
}

/// A pod was bound late, or its Job was lost. Control was killed before it had counted the node.
#[tokio::test]
async fn a_node_whose_scrub_starts_again_counts_until_it_has_left_its_tenant() {
    for is_killed in [false, true] {
        let mut fixture = Fixture::new();
        fixture.assign("gpu-1", ("vision", UID), 0);
        fixture.pass().await.unwrap();
        fixture.advance_to(300);
        if is_killed {
            fixture.restart();
        }
        fixture.scrub("gpu-1", (0, 100), 250);
        fixture.pass().await.unwrap();
        assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 100, "{is_killed}");
        fixture.advance_to(900);
        fixture.scrub("gpu-1", (0, 100), 800);
        fixture.pass().await.unwrap();
        fixture.stop().await;
        assert_eq!(fixture.amount(UsageResource::Gpu), 8 * 100, "{is_killed}");
    }
}

#[tokio::test]
async fn a_node_that_another_tenant_gets_at_once_is_never_counted_for_both() {
    let mut fixture = Fixture::new();
    fixture.put_tenant("speech", "u2", &json!({}));
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    // Its pool does not scrub.
    fixture.advance_to(600);
    fixture.assign("gpu-1", ("speech", "u2"), 400);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    let of = |uid: &str| {
        let records = fixture.records();
        let record = records.iter().find(|record| record.spec.tenant.uid == uid);
        sum(record.unwrap(), UsageResource::Gpu)
    };
    assert_eq!(of(UID), 8 * 400);
    assert_seconds(of("u2"), 8, 200);
}

#[tokio::test]
async fn a_node_that_is_deleted_counts_until_that_is_noticed() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    fixture.advance_to(200);
    fixture.host.remove(&node_path("gpu-1"));
    fixture.pass().await.unwrap();
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 200);
    let counted = fixture.amount(UsageResource::Gpu);
    fixture.advance_to(2000);
    fixture.stop().await;
    assert_eq!(fixture.amount(UsageResource::Gpu), counted);
}

#[tokio::test]
async fn the_record_of_a_tenant_that_is_gone_stays_and_gets_what_its_nodes_prove() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    fixture.advance_to(500);
    fixture.remove_tenant("vision");
    fixture.release("gpu-1", 0, 400);
    fixture.pass().await.unwrap();
    let record = fixture.record();
    assert!(!record.spec.in_use);
    assert_eq!(sum(&record, UsageResource::Gpu), 8 * 400);
    for seconds in [1000, 5000, 90_000, 200_000] {
        fixture.advance_to(seconds);
        fixture.pass().await.unwrap();
        assert_eq!(fixture.record(), record);
    }
}

#[tokio::test]
async fn tenants_that_were_never_created_are_forgotten_soon() {
    let mut fixture = Fixture::new();
    let path = tenant_path("vision");
    let used = fixture.host.get(&path).unwrap();
    for number in 0..3 {
        let mut unused = used.clone();
        unused["metadata"]["name"] = format!("unused-{number}").into();
        unused["metadata"]["uid"] = format!("unused-{number}").into();
        unused["status"] = json!({});
        fixture.host.insert(&tenant_path(&format!("unused-{number}")), unused);
    }
    let count = |fixture: &Fixture| fixture.context.state.lock().memory.remembered().len();
    fixture.pass().await.unwrap();
    assert_eq!(count(&fixture), 4);
    for name in ["vision", "unused-0", "unused-1", "unused-2"] {
        fixture.remove_tenant(name);
    }
    for (seconds, expected) in [(60, 4), (500, 4), (720, 1), (80_000, 1), (90_000, 0)] {
        fixture.advance_to(seconds);
        fixture.pass().await.unwrap();
        assert_eq!(count(&fixture), expected, "{seconds}");
    }
}

/// The modes in which the tenant had GPUs, and how many GPU-seconds in each.
fn gpus_by_mode(fixture: &Fixture) -> Vec<(Option<NodeMode>, i64)> {
    let record = fixture.record();
    let gpus = record.spec.lines.iter();
    let gpus = gpus.filter(|line| line.resource == UsageResource::Gpu);
    gpus.map(|line| (line.mode, line.daily.iter().sum())).collect()
}

fn private(group: &str) -> Value {
    json!([{"name": group, "poolName": "h100", "mode": "Private", "replicas": 1}])
}

fn dynamic(group: &str, pool: &str) -> Value {
    json!([{"name": group, "poolName": pool, "mode": "Dynamic", "maxReplicas": 1}])
}

#[tokio::test]
async fn a_node_keeps_its_mode_if_the_spec_changes_and_is_not_accepted_or_is_about_other_nodes() {
    let shared = json!([{"name": "train", "poolName": "h100", "mode": "Shared"}]);
    for (groups, is_accepted) in [
        (dynamic("train", "h100"), Some(false)),
        (dynamic("train", "h100"), None),
        (shared.clone(), Some(false)),
        (shared, Some(true)),
        (json!([]), Some(true)),
        // It was removed and added again while the node drains.
        (dynamic("train", "b200"), Some(true)),
        (dynamic("other", "h100"), Some(true)),
    ] {
        for is_restarted in [false, true] {
            let mut fixture = Fixture::new();
            fixture.set_groups(&private("train"), Some(true));
            fixture.assign("gpu-1", ("vision", UID), -600);
            fixture.pass().await.unwrap();
            fixture.set_groups(&groups, is_accepted);
            if is_restarted {
                fixture.restart();
            }
            fixture.advance_to(600);
            fixture.pass().await.unwrap();
            fixture.advance_to(1200);
            fixture.release("gpu-1", -600, 900);
            fixture.pass().await.unwrap();
            let found = gpus_by_mode(&fixture);
            let expected = [(Some(NodeMode::Private), 8 * 1500)];
            assert_eq!(found, expected, "{groups} {is_accepted:?} {is_restarted}");
        }
    }
}

#[tokio::test]
async fn a_node_that_leaves_while_no_control_runs_had_the_mode_that_is_recorded() {
    let mut fixture = Fixture::new();
    fixture.set_groups(&private("train"), Some(true));
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    fixture.restart();
    fixture.set_groups(&dynamic("train", "h100"), Some(true));
    fixture.advance_to(600);
    fixture.release("gpu-1", -600, 300);
    fixture.pass().await.unwrap();
    assert_eq!(gpus_by_mode(&fixture), [(Some(NodeMode::Private), 8 * 900)]);
}

#[tokio::test]
async fn a_mode_counts_from_when_it_is_accepted() {
    let mut fixture = Fixture::new();
    fixture.set_groups(&private("train"), Some(true));
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    fixture.set_groups(&dynamic("train", "h100"), Some(true));
    // The change wakes it.
    fixture.pass().await.unwrap();
    fixture.advance_to(1200);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    let [(first, before), (second, after)]: [(Option<NodeMode>, i64); 2] = gpus_by_mode(&fixture).try_into().unwrap();
    assert_eq!((first, second), (Some(NodeMode::Private), Some(NodeMode::Dynamic)));
    assert_seconds(before, 8, 600);
    assert_seconds(after, 8, 1200);
}

/// GPU-seconds of nodes in the mode Private, and in the mode Dynamic.
fn private_and_dynamic(fixture: &Fixture) -> (i64, i64) {
    let of_mode = |mode: NodeMode| -> i64 {
        let all = gpus_by_mode(fixture).into_iter();
        all.filter(|(of, _)| *of == Some(mode)).map(|(_, amount)| amount).sum()
    };
    (of_mode(NodeMode::Private), of_mode(NodeMode::Dynamic))
}

fn dynamic_from(minimum: u32) -> Value {
    json!([{"name": "train", "poolName": "h100", "mode": "Dynamic", "minReplicas": minimum, "maxReplicas": 4}])
}

/// No price of nodes that others can reclaim for those that nobody can, and that are kept without a use.
#[tokio::test]
async fn the_minimum_of_a_dynamic_group_counts_as_private() {
    for is_restarted in [false, true] {
        let mut fixture = Fixture::new();
        fixture.set_groups(&dynamic_from(1), Some(true));
        fixture.assign("gpu-1", ("vision", UID), -600);
        fixture.assign("gpu-2", ("vision", UID), -900);
        fixture.pass().await.unwrap();
        let (private, dynamic) = private_and_dynamic(&fixture);
        assert_seconds(private, 8, 900);
        assert_seconds(dynamic, 8, 600);
        // A spec that is not accepted keeps what it asks for as well.
        for (seconds, minimum, is_accepted, of_private, of_dynamic) in [
            (300, 2, Some(true), 900 + 600, 600),
            (600, 0, Some(true), 900 + 600, 600 + 600),
            (900, 2, Some(false), 900 + 1200, 600 + 600),
        ] {
            fixture.set_groups(&dynamic_from(minimum), is_accepted);
            if is_restarted {
                fixture.restart();
            }
            fixture.pass().await.unwrap();
            fixture.advance_to(seconds);
            fixture.stop().await;
            let (private, dynamic) = private_and_dynamic(&fixture);
            assert_seconds(private, 8, of_private);
            assert_seconds(dynamic, 8, of_dynamic);
        }
        // It leaves the tenant, which has one that it may lose and one that it keeps.
        fixture.set_groups(&dynamic_from(1), Some(true));
        fixture.pass().await.unwrap();
        let (before, _) = private_and_dynamic(&fixture);
        fixture.advance_to(1200);
        fixture.release("gpu-1", -600, 1200);
        fixture.stop().await;
        let (private, dynamic) = private_and_dynamic(&fixture);
        assert_seconds(private - before, 8, 300);
        assert_seconds(dynamic, 8, 600 + 600 + 300);
    }
}

/// It is Private for a minute, and Dynamic whenever a pass comes.
#[tokio::test]
async fn a_tenant_that_goes_back_and_forth_between_two_modes_is_counted_in_both() {
    let mut fixture = Fixture::new();
    fixture.set_groups(&private("train"), Some(true));
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    for minute in 0..10 {
        for (second, groups) in [(59, dynamic_from(0)), (60, private("train"))] {
            fixture.advance_to(minute * 60 + second);
            fixture.set_groups(&groups, Some(true));
            fixture.pass().await.unwrap();
        }
    }
    fixture.stop().await;
    let (private, dynamic) = private_and_dynamic(&fixture);
    assert_seconds(private, 8, 590);
    assert_seconds(dynamic, 8, 10);
}

/// The planner keeps as many as the spec asks for, and may take the others.
#[tokio::test]
async fn a_lower_minimum_counts_also_if_the_spec_is_not_accepted() {
    let mut fixture = Fixture::new();
    fixture.set_groups(&dynamic_from(1), Some(true));
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    fixture.set_groups(&dynamic_from(0), Some(false));
    fixture.pass().await.unwrap();
    fixture.advance_to(600);
    fixture.stop().await;
    let (private, dynamic) = private_and_dynamic(&fixture);
    assert_seconds(private, 8, 0);
    assert_seconds(dynamic, 8, 600);
}

#[tokio::test]
async fn what_was_used_before_a_namespace_moves_stays_with_its_former_project() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    fixture.advance_to(600);
    fixture.host.remove("/apis/berth.dev/v1alpha1/projects/p");
    let project = json!({"metadata": {"name": "q", "uid": "q"}, "spec": {"namespaces": ["team"]}});
    fixture.host.insert("/apis/berth.dev/v1alpha1/projects/q", project);
    // The change wakes it.
    fixture.pass().await.unwrap();
    fixture.advance_to(1000);
    fixture.stop().await;
    let record = fixture.record();
    let gpus = { record.spec.lines.iter() }.filter(|line| line.resource == UsageResource::Gpu);
    let amount = |line: &UsageLine| line.daily.iter().sum::<i64>();
    let of_projects: Vec<(Option<&str>, i64)> = gpus.map(|line| (line.project_name.as_deref(), amount(line))).collect();
    let [(first, before), (second, after)] = of_projects[..] else {
        panic!("{of_projects:?}")
    };
    assert_eq!((first, second), (Some("p"), Some("q")));
    assert_seconds(before, 8, 600);
    assert_seconds(after, 8, 400);
}

#[tokio::test]
async fn nodes_that_wait_join_or_are_scrubbed_are_the_platforms() {
    let mut fixture = Fixture::new();
    for (number, state) in ["Reserved", "Joining", "Validating", "Quarantined"]
        .into_iter()
        .enumerate()
    {
        let name = format!("gpu-{number}");
        fixture.assign(&name, ("vision", UID), -600);
        let mut node = fixture.host.get(&node_path(&name)).unwrap();
        node["metadata"]["annotations"][labels::NODE_STATE] = state.into();
        node["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(labels::ASSIGNED_SINCE);
        fixture.host.insert(&node_path(&name), node);
    }
    fixture.pass().await.unwrap();
    fixture.advance_to(600);
    fixture.stop().await;
    assert_eq!(fixture.amount(UsageResource::Node), 0);
}
