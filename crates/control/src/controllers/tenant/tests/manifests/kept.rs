//! Objects that are kept as the manifests say, whatever the team does to them.

use super::{Fixture, NEXT_CHECK, ROLE, applied, with_manifest};
use crate::testing::make_unreadable;
use serde_json::{Value, json};
use tokio::time::sleep;

fn writes(fixture: &Fixture, since: usize) -> usize {
    let calls = fixture.script.calls().split_off(since);
    calls
        .iter()
        .filter(|call| call.text.starts_with("tenant PATCH") && call.text.ends_with("/reader"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn objects_are_the_platforms_and_are_written_again_only_if_they_changed() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let role = fixture.tenant.get(ROLE).unwrap();
    assert_eq!(
        role["metadata"]["labels"],
        json!({"berth.dev/managed-by": "platform", "berth.dev/manifest": "base"})
    );
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert_eq!(
        fixture.status()["manifests"],
        json!([{"name": "base", "version": "v1", "mode": "Keep", "objects": 1}])
    );
    let before = fixture.count_calls();
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(writes(&fixture, before), 0);

    // Somebody changes it.
    let mut changed = role.clone();
    changed["rules"] = json!([]);
    fixture.tenant.insert(ROLE, changed);
    fixture.reconcile().await.unwrap();
    assert_eq!(
        fixture.tenant.get(ROLE).unwrap()["rules"],
        json!([]),
        "it is not looked at yet"
    );
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.tenant.get(ROLE).unwrap()["rules"], role["rules"]);
    assert!(fixture.status()["manifests"][0]["driftCorrectedAt"].is_string());

    // Somebody deletes it.
    fixture.tenant.remove(ROLE);
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(ROLE).is_some());
    let events = fixture.host.find("/events/vision.");
    let drift: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "DriftCorrected")
        .collect();
    assert_eq!(drift.len(), 1, "the second counts up");
    assert!(drift[0]["note"].as_str().unwrap().contains("ClusterRole reader"));
}

#[tokio::test(start_paused = true)]
async fn what_the_team_adds_to_a_role_is_removed() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let mut changed = fixture.tenant.get(ROLE).unwrap();
    // As if the team had made a role of this name before.
    changed["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"mine": "true"}}]});
    changed["metadata"]["finalizers"] = json!(["example.com/mine"]);
    make_unreadable(&mut changed);
    fixture.tenant.insert(ROLE, changed);
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    let role = fixture.tenant.get(ROLE).unwrap();
    assert!(role["aggregationRule"].is_null(), "{role}");
    assert!(role["metadata"]["finalizers"].is_null(), "{role}");
    assert_eq!(role["metadata"]["labels"]["berth.dev/managed-by"], "platform");
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    // It is written no more.
    let before = fixture.count_calls();
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(writes(&fixture, before), 0);
}
