//! Of a page of many objects, few are rewritten at a time.

use super::{super::fixture::Fixture, MAX_RECONCILES, head, ready, reason, set_rules, set_value, store_patched};
use serde_json::json;
use std::sync::atomic::Ordering;

/// Objects that a page has all.
const MANY: usize = 150;

fn many_path(number: usize) -> String {
    format!("secrets/team/n{number:03}")
}

/// A tenant with many objects that are to be encrypted.
async fn ready_with_many() -> Fixture {
    let fixture = ready().await;
    fixture.stored.heads_at_once.store(MANY, Ordering::SeqCst);
    for number in 0..MANY {
        set_value(&fixture, &many_path(number), "k8s\0");
    }
    set_rules(&fixture, &json!({}));
    fixture
}

/// Reconciles, and stores what was patched. Returns how many objects were patched in a reconcile at most.
async fn rewrite_many(fixture: &mut Fixture) -> usize {
    let mut most = 0;
    for _ in 0..MAX_RECONCILES {
        let since = fixture.count_calls();
        drop(Box::pin(fixture.reconcile()).await);
        store_patched(fixture, since);
        let calls = fixture.script.calls().split_off(since);
        let is_patched = |number: &usize| {
            let patch = format!("tenant PATCH /api/v1/namespaces/team/secrets/n{number:03}");
            calls.iter().any(|call| call.text == patch)
        };
        let patched: Vec<usize> = (0..MANY).filter(is_patched).collect();
        most = most.max(patched.len());
        for number in patched {
            set_value(fixture, &many_path(number), &head(fixture));
        }
    }
    most
}

fn are_many_encrypted(fixture: &Fixture) -> bool {
    let values = fixture.stored.values.lock().unwrap();
    (0..MANY).all(|number| values[&many_path(number)].starts_with(b"k8s:enc:"))
}

/// A page may have thousands of objects.
#[tokio::test]
async fn of_a_page_few_objects_are_rewritten_at_a_time_and_all_of_them_in_the_end() {
    let mut fixture = ready_with_many().await;
    let most = rewrite_many(&mut fixture).await;
    assert!((8..=64 + 8).contains(&most), "{most}");
    assert!(are_many_encrypted(&fixture));
}

/// A round that passed over them would find nothing else, and would be taken for the last one.
#[tokio::test]
async fn objects_of_a_page_whose_connections_end_are_looked_at_again() {
    let mut fixture = ready_with_many().await;
    // More than are rewritten at a time.
    fixture.tenant.break_writes(Some("/secrets/n03"));
    rewrite_many(&mut fixture).await;
    assert!(!are_many_encrypted(&fixture));
    assert_ne!(reason(&fixture).as_deref(), Some("Encrypted"));

    fixture.tenant.break_writes(None);
    rewrite_many(&mut fixture).await;
    assert!(are_many_encrypted(&fixture));
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}
