//! Servers of the team's for API groups of manifests: they take little time, and nothing of other kinds.

use super::{GUARD, OTHER_ROLE, ROLE, WRITER, applied, manifest, message, set_class, set_guards, with_manifest};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_group_that_the_team_serves_itself_takes_no_time() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD], &[]);
    // Names that continue each other, which are followed one by one: 2 to the power of 39 calls.
    let entry =
        |length: usize| json!({"name": format!("x{}", "/".repeat(length)), "kind": "Guard", "namespaced": false});
    let entries: Vec<Value> = (0..40).map(entry).collect();
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "platform.example/v1", "resources": entries});
    fixture.tenant.serve("/apis/platform.example/v1", list);
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert!(fixture.tenant.get("/apis/platform.example/v1/x/g1").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_of_the_team_that_does_not_answer_keeps_its_own_kinds_back_only() {
    for part in [
        "/apis/platform.example/v1/guards",
        "/apis/platform.example/v1/guards/g1",
        "/apis/platform.example",
    ] {
        let mut fixture = Box::pin(with_manifest("Keep")).await;
        set_guards(&fixture, &[GUARD, WRITER], &["guards"]);
        fixture.tenant.never_answer(Some(part));
        for _ in 0..2 {
            let started = Instant::now();
            fixture.reconcile().await.unwrap();
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "{part}: {:?}",
                started.elapsed()
            );
            // The second corrects that somebody deleted it.
            assert!(fixture.tenant.get(OTHER_ROLE).is_some(), "{part}");
            assert!(
                fixture.tenant.get(ROLE).is_none(),
                "{part}: no manifest has it any more"
            );
            assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
            let message = message(&fixture);
            assert!(message.contains("Guard g1: the server of its API group"), "{message}");
            assert!(!message.contains("ClusterRole"), "{message}");
            fixture.tenant.remove(OTHER_ROLE);
        }
        fixture.tenant.never_answer(None);
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("True".into(), "Applied".into()), "{part}");
        // What is dropped while its server does not answer is reported, and deleted later.
        fixture.tenant.never_answer(Some(part));
        set_guards(&fixture, &[WRITER], &["guards"]);
        set_class(&fixture, &manifest("v2", "Keep"));
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()), "{part}");
        fixture.tenant.never_answer(None);
        for _ in 0..2 {
            fixture.reconcile().await.unwrap();
        }
        assert_eq!(applied(&fixture), ("True".into(), "Applied".into()), "{part}");
        assert!(fixture.tenant.find("/apis/platform.example/").is_empty(), "{part}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_read_as_far_as_manifests_have_objects() {
    const LIST: &str = "/apis/platform.example/v1/guards";
    for (items, most) in [(json!([]), 1), (json!([{"metadata": {"name": "other"}}]), 10)] {
        let mut fixture = Box::pin(with_manifest("Keep")).await;
        set_guards(&fixture, &[GUARD], &["guards"]);
        let endless = json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": "x"}, "items": items});
        fixture.tenant.serve(LIST, endless);
        let before = fixture.count_calls();
        fixture.reconcile().await.unwrap();
        let calls = fixture.script.calls().split_off(before);
        let lists = calls.iter().filter(|call| call.text == format!("tenant GET {LIST}"));
        assert_eq!(lists.count(), most);
        assert!(fixture.tenant.get(&format!("{LIST}/g1")).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_kinds_that_is_too_long_is_named() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD, WRITER], &["guards"]);
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "platform.example/v1", "resources": []});
    let long = format!("{list}{}", " ".repeat(1 << 20));
    fixture.tenant.serve("/apis/platform.example/v1", long.into());
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    let message = message(&fixture);
    let expected = "Guard g1: the list of kinds of platform.example/v1 in the tenant is longer than Berth reads";
    assert!(message.contains(expected), "{message}");
}
