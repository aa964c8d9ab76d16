//! Snapshots that teams create, with names and labels as they like.

use super::*;

/// Who may create snapshots, and not delete them, must not keep those of the schedule from being there.
#[tokio::test(start_paused = true)]
async fn a_name_that_somebody_has_taken_keeps_no_snapshot_of_the_schedule_back() {
    for tenant in ["vision", "other"] {
        let mut case = Case::new();
        case.set_class(&json!({"schedule": {"cron": "0 2 * * *"}}));
        let name = "vision-20261130-0200";
        case.create(name);
        let mut taken = case.get(name).unwrap();
        taken["spec"]["tenantClusterName"] = tenant.into();
        case.host.insert(&format!("{SNAPSHOTS}/{name}"), taken);
        let of_schedule = |case: &Case| -> Vec<Value> {
            let mut all = case.host.find(SNAPSHOTS);
            all.retain(|snapshot| snapshot["metadata"]["labels"][labels::SNAPSHOT_TRIGGER] == "schedule");
            all
        };
        case.pass().await;
        let mut created = of_schedule(&case);
        assert_eq!(created.len(), 1, "{tenant}");
        let mut created = created.remove(0);
        let other = created["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(other.starts_with("vision-20261130-0200-"), "{other}");
        // As an API server does.
        created["metadata"]["creationTimestamp"] = "2026-11-30T12:00:00Z".into();
        case.host.insert(&format!("{SNAPSHOTS}/{other}"), created);
        for _ in 0..3 {
            case.pass().await;
        }
        assert_eq!(of_schedule(&case).len(), 1, "{tenant}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_snapshots_of_a_namespace_keep_that_of_its_schedule_not_back() {
    let mut case = Case::new();
    case.set_class(&json!({"max": 0, "schedule": {"cron": "0 2 * * *"}}));
    for number in 0..=MOST_WRITES_OF_NAMESPACE {
        case.create(&format!("n{number:03}"));
    }
    case.pass().await;
    assert!(case.get("vision-20261130-0200").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_in_which_nothing_can_be_created_does_not_hold_up_those_of_others() {
    let mut case = Case::new();
    case.set_class(&json!({"schedule": {"cron": "0 2 * * *"}}));
    let refusal = (
        "/namespaces/team/tenantsnapshots",
        403,
        "exceeded quota: count/tenantsnapshots",
    );
    case.host.refuse_writes(Some(refusal));
    let path = |number: usize| format!("{}/n{number:03}", SNAPSHOTS.replace("/team/", "/other/"));
    for number in 0..=MOST_WRITES_OF_NAMESPACE {
        case.create(&format!("n{number:03}"));
        let mut snapshot = case.get(&format!("n{number:03}")).unwrap();
        snapshot["metadata"]["namespace"] = "other".into();
        case.host.insert(&path(number), snapshot);
        case.host.remove(&format!("{SNAPSHOTS}/n{number:03}"));
    }
    case.writers.update(&case.host);
    // There is one more than is done in a pass.
    assert_eq!(reconcile(&case.context).await.unwrap(), Some(GO_ON));
    case.writers.update(&case.host);
    assert!(
        reconcile(&case.context).await.is_err(),
        "it is tried again after a pause"
    );
    for number in 0..=MOST_WRITES_OF_NAMESPACE {
        let snapshot = case.host.get(&path(number)).unwrap();
        assert_eq!(snapshot["status"]["phase"], "Failed", "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_in_a_namespace_is_not_tried_each_second_however_much_there_is() {
    let mut case = Case::new();
    case.set_class(&json!({"max": 0}));
    let refusal = ("/namespaces/team/tenantsnapshots", 403, "no");
    case.host.refuse_writes(Some(refusal));
    for number in 0..=MOST_WRITES_OF_NAMESPACE {
        case.create(&format!("n{number:03}"));
    }
    case.writers.update(&case.host);
    assert!(reconcile(&case.context).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_label_puts_no_snapshot_before_one_that_waits_for_longer() {
    let mut case = Case::new();
    case.create("a");
    let folder = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters";
    let cluster = case.host.get(&format!("{folder}/vision")).unwrap();
    let mut snapshot = case.get("a").unwrap();
    snapshot["metadata"]["finalizers"] = json!([labels::SNAPSHOT_FINALIZER]);
    case.host.insert(&format!("{SNAPSHOTS}/a"), snapshot.clone());
    // As many as are taken at the same time.
    for tenant in ["speech", "text"] {
        let mut other = cluster.clone();
        other["metadata"]["name"] = tenant.into();
        other["metadata"]["uid"] = format!("uid-of-{tenant}").into();
        case.host.insert(&format!("{folder}/{tenant}"), other);
        let mut labelled = snapshot.clone();
        labelled["metadata"]["name"] = tenant.into();
        labelled["metadata"]["uid"] = format!("uid-{tenant}").into();
        labelled["metadata"]["creationTimestamp"] = "2026-11-30T11:30:00Z".into();
        labelled["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "before-restore"});
        labelled["spec"]["tenantClusterName"] = tenant.into();
        case.host.insert(&format!("{SNAPSHOTS}/{tenant}"), labelled);
    }
    case.pass().await;
    assert_eq!(case.get("a").unwrap()["status"]["attempts"], 1);
}

#[test]
fn what_a_restore_waits_for_comes_first_and_then_what_waits_for_the_longest_time() {
    let created = |at: &str, status: Value| -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "a", "namespace": "team", "creationTimestamp": at},
            "spec": {"tenantClusterName": "vision"}, "status": status,
        }))
        .unwrap()
    };
    let (first, last) = ("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z");
    assert!(turn(&created(last, json!({})), true) < turn(&created(first, json!({})), false));
    assert!(turn(&created(first, json!({})), false) < turn(&created(last, json!({})), false));
    // One that was tried waits since then: those that others create all the time do not keep it back.
    let tried = json!({"attempts": 1, "startedAt": "2026-11-30T10:30:00Z"});
    assert!(turn(&created(first, tried.clone()), false) < turn(&created(last, json!({})), false));
    assert!(turn(&created("2026-11-30T10:15:00Z", json!({})), false) < turn(&created(first, tried), false));
}
