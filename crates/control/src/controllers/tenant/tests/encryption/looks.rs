//! Whether a tenant has the keys of what it stores is looked at in turns with other tenants, and with pauses for those that sleep.

use super::{
    super::{
        super::{memory::Tenants, readable::LooksWhileAsleep},
        fixture::Fixture,
        sleep::{fall_asleep, set_mode, state},
    },
    STORED, head, ready, reason, reconcile_some, set_rules, set_value,
};
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// A tenant may have some hundred thousand objects, and all tenants are looked at when a class begins to encrypt.
#[tokio::test(start_paused = true)]
async fn a_look_at_many_objects_keeps_no_other_tenant_waiting() {
    let mut fixture = Fixture::new();
    fixture.stored.keys.store(50, Ordering::SeqCst);
    for number in 0..10 {
        set_value(&fixture, &format!("secrets/team/{number}"), "k8s\0");
    }
    fixture.stored.head_seconds.store(1, Ordering::SeqCst);
    set_rules(&fixture, &json!({}));
    let tenants = Arc::clone(&fixture.context.tenants);
    let other = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let begun = Instant::now();
        drop(tenants.head_reading.lock().await);
        begun.elapsed()
    };
    let reconciles = async {
        for _ in 0..5 {
            drop(Box::pin(fixture.reconcile()).await);
        }
    };
    let ((), waited) = tokio::join!(reconciles, other);
    let calls = fixture.script.calls();
    let pages = calls
        .iter()
        .filter(|call| call.text == "datastore read secrets/")
        .count();
    assert!(pages >= 10, "{pages}");
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
}

/// The look at a tenant waits for its turn before each page, and each resource is a page at least.
#[tokio::test(start_paused = true)]
async fn a_look_at_many_resources_comes_to_an_end() {
    let mut fixture = Fixture::new();
    fixture.stored.keys.store(50, Ordering::SeqCst);
    fixture.stored.head_seconds.store(4, Ordering::SeqCst);
    let mut resources: Vec<String> = (10..30).map(|number| format!("r{number}.example.com")).collect();
    resources.push("secrets".into());
    set_value(&fixture, "example.com/r10/team/a", "k8s\0");
    set_rules(&fixture, &json!({"resources": resources}));
    for _ in 0..10 {
        drop(Box::pin(fixture.reconcile()).await);
    }
    let calls = fixture.script.calls();
    let is_last = |text: &str| text == "datastore read secrets/";
    assert!(calls.iter().any(|call| is_last(&call.text)), "{calls:?}");
}

/// An encrypted tenant that sleeps, after control was started again.
async fn asleep_after_a_restart() -> Fixture {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
    fall_asleep(&mut fixture).await;
    fixture.context.tenants = Arc::new(Tenants::default());
    fixture
}

/// Whether a reconcile reads in etcd how Secrets are stored.
async fn does_look(fixture: &mut Fixture) -> bool {
    let before = fixture.count_calls();
    drop(Box::pin(fixture.reconcile()).await);
    let calls = fixture.script.calls().split_off(before);
    calls.iter().any(|call| call.text.contains("datastore read secrets"))
}

/// Keeps tenants that sleep from being looked at, as if another one was looked at a moment ago.
fn look_at_no_other(fixture: &Fixture) {
    let mut looks = fixture.context.tenants.looks_while_asleep();
    looks.end(Instant::now() + Duration::from_hours(1));
}

#[tokio::test]
async fn a_tenant_that_sleeps_is_looked_at_once_and_only_if_no_other_tenant_is() {
    let mut fixture = asleep_after_a_restart().await;
    let is_prepared = |fixture: &Fixture| fixture.reason("InfrastructureReady") == (json!("True"), json!("Applied"));
    let tenants = Arc::clone(&fixture.context.tenants);
    let turn_of_another = tenants.head_reading.lock().await;
    assert!(!does_look(&mut fixture).await && is_prepared(&fixture));
    drop(turn_of_another);
    look_at_no_other(&fixture);
    assert!(!does_look(&mut fixture).await && is_prepared(&fixture));
    *tenants.looks_while_asleep() = LooksWhileAsleep::default();
    assert!(does_look(&mut fixture).await && is_prepared(&fixture));
    *tenants.looks_while_asleep() = LooksWhileAsleep::default();
    assert!(!does_look(&mut fixture).await, "all of it is known to be readable");
    assert_eq!(
        (state(&fixture), reason(&fixture).as_deref()),
        (json!("Sleeping"), Some("Encrypted"))
    );
}

#[tokio::test]
async fn a_key_that_is_lost_is_noticed_while_the_tenant_sleeps() {
    let mut fixture = asleep_after_a_restart().await;
    set_value(&fixture, STORED[1], "k8s:enc:secretbox:v1:encryption-key-lost:\u{1}");
    assert!(does_look(&mut fixture).await);
    assert_eq!(
        fixture.condition("InfrastructureReady").unwrap()["reason"],
        "EncryptionKeyMissing"
    );
}

#[tokio::test]
async fn a_tenant_that_was_not_looked_at_while_it_slept_is_before_it_is_started() {
    let mut fixture = asleep_after_a_restart().await;
    look_at_no_other(&fixture);
    assert!(!does_look(&mut fixture).await);
    set_value(&fixture, STORED[1], "k8s:enc:secretbox:v1:encryption-key-lost:\u{1}");
    set_mode(&fixture, "Awake");
    let before = fixture.count_calls();
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(
        fixture.condition("InfrastructureReady").unwrap()["reason"],
        "EncryptionKeyMissing"
    );
    let calls = fixture.script.calls().split_off(before);
    assert!(!calls.iter().any(|call| call.text.contains("runtime run")), "{calls:?}");
    set_value(&fixture, STORED[1], &head(&fixture));
    fixture.reconcile_until_ready().await;
}

#[tokio::test]
async fn an_older_secret_is_noticed_at_once_although_the_tenant_sleeps() {
    let mut fixture = asleep_after_a_restart().await;
    look_at_no_other(&fixture);
    // The status names another key than the Secret.
    fixture.change_tenant(|cluster| cluster["status"]["encryption"]["keyName"] = "encryption-key-newer".into());
    assert!(does_look(&mut fixture).await);
}
