//! The class of a tenant that sleeps changes: its rules hold all the same.

use super::{
    super::memory::Tenants,
    fixture::{CLASS, Fixture, UID},
    sleep::{MAX_RECONCILES, WAKE, fall_asleep, reconcile_until, request, set_mode, state},
};
use crate::{key::Key, testing::ScriptedRuntime};
use berth_sleep::Turn;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

fn set_hostnames(fixture: &Fixture, hostnames: &[&str]) {
    fixture.set_class(&json!({"sync": {"ingress": {"classes": ["nginx"], "hostnames": hostnames}}}));
}

/// A tenant that sleeps because of its mode, with a host name that its class allows.
async fn asleep() -> Fixture {
    let mut fixture = Fixture::new();
    set_hostnames(&fixture, &["app.example.com"]);
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    fixture.reconcile_until_ready().await;
    set_mode(&fixture, "Asleep");
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
    fixture
}

/// What ran in the reconciles since there were so many calls, in order.
fn runs_since(fixture: &Fixture, calls: usize) -> Vec<String> {
    let calls = fixture.script.calls().split_off(calls);
    let runs = calls
        .into_iter()
        .filter_map(|call| Some(call.text.strip_prefix("runtime run ")?.to_owned()));
    let mut runs: Vec<String> = runs.collect();
    runs.dedup();
    runs
}

fn tenant(namespace: &str, name: &str) -> Key {
    Key::Tenant {
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn is_outdated(fixture: &Fixture) -> bool {
    fixture.context.tenants.is_outdated(UID)
}

#[tokio::test]
async fn only_what_enforces_the_class_runs_and_the_tenant_sleeps_again() {
    let mut fixture = Box::pin(asleep()).await;
    let (before, status) = (fixture.count_calls(), fixture.status());
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(
        runs_since(&fixture, before),
        Vec::<String>::new(),
        "the class is enforced"
    );
    assert!(!is_outdated(&fixture));

    // The syncer takes its time.
    fixture.stored.uncompared_objects.store(3, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        assert_eq!(state(&fixture), "Enforcing");
        assert!(is_outdated(&fixture));
    }
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("ClassChanged")));
    for condition in ["ControlPlaneReady", "SyncerReady", "Ready"] {
        assert_eq!(
            fixture.reason(condition),
            (json!("False"), json!("Sleeping")),
            "{condition}"
        );
    }
    let enforcing = fixture.status();
    assert_eq!(enforcing["phase"], "Sleeping");
    assert_eq!(
        enforcing["sleep"]["since"], status["sleep"]["since"],
        "no request is void"
    );
    assert_eq!(enforcing["nodeGroups"][0]["desired"], 0);
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_eq!(quotas[0]["spec"]["hard"]["count/pods"], "0");
    let mut runs = runs_since(&fixture, before);
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(runs, ["kube-apiserver", "syncer"]);

    fixture.stored.uncompared_objects.store(0, Ordering::SeqCst);
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("Mode")));
    assert_eq!(fixture.status()["sleep"]["since"], status["sleep"]["since"]);
    assert_ne!(
        fixture.status()["sleep"]["enforcedRules"],
        status["sleep"]["enforcedRules"]
    );
    // Nothing starts it a second time.
    let before = fixture.count_calls();
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(runs_since(&fixture, before), Vec::<String>::new());
    assert!(!is_outdated(&fixture));
    let events = fixture.host.find("/events/vision.");
    let changed: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "ClassChanged")
        .collect();
    assert_eq!((changed.len(), &changed[0]["type"]), (1, &json!("Normal")));
}

#[tokio::test]
async fn rules_that_concern_pods_alone_start_nothing() {
    let mut fixture = Box::pin(asleep()).await;
    let mut class = fixture.host.get(CLASS).unwrap();
    class["spec"]["sync"]["pods"] = json!({"runtimeClasses": ["kata"]});
    fixture.host.insert(CLASS, class);
    let before = fixture.count_calls();
    for _ in 0..3 {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(
        (state(&fixture), runs_since(&fixture, before).len()),
        (json!("Sleeping"), 0)
    );
}

#[tokio::test]
async fn a_tenant_that_never_follows_its_class_stays_where_that_is_seen() {
    let mut fixture = Box::pin(asleep()).await;
    // A server of the tenant's own says nothing of a kind, of which the host has an object.
    fixture.stored.unlisted_kinds.store(1, Ordering::SeqCst);
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    let mut states = Vec::new();
    for _ in 0..3 * MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        states.push(state(&fixture));
    }
    states.dedup();
    assert_eq!(states, ["Enforcing"], "it is started once");
    let report = fixture.context.tenants.syncer(UID).unwrap_or_default();
    assert_eq!((report.is_ready, report.unlisted_kinds), (true, 1), "alerts see it");
}

/// With a class whose rules no syncer can follow, all tenants that sleep are started in the end.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_does_not_follow_its_class_in_its_time_is_looked_at_seldom() {
    const SELDOM: Duration = Duration::from_secs(10);
    let mut fixture = Box::pin(asleep()).await;
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    let pause = Box::pin(fixture.reconcile()).await.unwrap().unwrap();
    assert!(pause < SELDOM, "{pause:?}");
    tokio::time::sleep(Duration::from_mins(2)).await;
    let pause = Box::pin(fixture.reconcile()).await.unwrap().unwrap();
    assert!(pause > SELDOM, "{pause:?}");
    fixture.stored.uncompared_objects.store(0, Ordering::SeqCst);
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
}

/// Of no tenant the syncer can do its work, such as when its image cannot be pulled. They must not all run for ever, and what the class takes away must go.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_does_not_follow_its_class_is_started_again_and_again_with_pauses() {
    const RUNS: Duration = Duration::from_mins(30);
    let mut fixture = Box::pin(asleep()).await;
    let since = fixture.status()["sleep"]["since"].clone();
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    Box::pin(fixture.reconcile()).await.unwrap();
    tokio::time::sleep(RUNS).await;
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
    let before = fixture.count_calls();
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        assert_eq!(state(&fixture), "Sleeping");
        assert_eq!(fixture.reason("Awake"), (json!("False"), json!("ClassNotEnforced")));
    }
    assert_eq!(runs_since(&fixture, before), Vec::<String>::new());
    assert!(is_outdated(&fixture), "an alert says so");
    let sleep = fixture.status()["sleep"].clone();
    assert_eq!((&sleep["since"], &sleep["enforcedRules"]), (&since, &json!(null)));
    // Its syncer may have done something for the rules of now: those from before have to be enforced as well.
    set_hostnames(&fixture, &["app.example.com"]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    tokio::time::sleep(RUNS).await;
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
    Box::pin(fixture.reconcile()).await.unwrap();
    Box::pin(fixture.reconcile()).await.unwrap();
    fixture.stored.uncompared_objects.store(0, Ordering::SeqCst);
    tokio::time::sleep(RUNS).await;
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
    assert!(fixture.status()["sleep"]["enforcedRules"].is_string());
    Box::pin(fixture.reconcile()).await.unwrap();
    assert!(!is_outdated(&fixture));
}

#[tokio::test]
async fn a_tenant_does_not_fall_asleep_before_its_class_is_enforced() {
    let mut fixture = Fixture::new();
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    set_mode(&fixture, "Asleep");
    for _ in 0..3 {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("ClassNotEnforced")));
    fixture.stored.uncompared_objects.store(0, Ordering::SeqCst);
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
}

/// What the syncer of the old class says counts for the old class only.
#[tokio::test]
async fn a_syncer_that_still_runs_with_earlier_rules_says_nothing_of_the_present_ones() {
    let mut fixture = Box::pin(asleep()).await;
    set_hostnames(&fixture, &[]);
    let runtime = ScriptedRuntime::new(&fixture.script);
    let has_rolled_out = Arc::clone(&runtime.has_rolled_out);
    fixture.context.runtime = Arc::new(runtime);
    has_rolled_out.store(false, Ordering::SeqCst);
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(state(&fixture), "Enforcing");
    has_rolled_out.store(true, Ordering::SeqCst);
    Box::pin(reconcile_until(&mut fixture, "Sleeping", |_| {})).await;
}

#[tokio::test]
async fn a_request_wakes_a_tenant_whose_class_is_enforced() {
    let mut fixture = Fixture::new();
    set_hostnames(&fixture, &["app.example.com"]);
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    fixture.reconcile_until_ready().await;
    Box::pin(fall_asleep(&mut fixture)).await;
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    request(&fixture, WAKE, Timestamp::now());
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(state(&fixture), "Waking");
    Box::pin(reconcile_until(&mut fixture, "Awake", |_| {})).await;
    assert_eq!(fixture.status()["sleep"]["enforcedRules"], json!(null));
}

#[tokio::test]
async fn control_that_forgets_everything_goes_on() {
    let mut fixture = Box::pin(asleep()).await;
    set_hostnames(&fixture, &[]);
    let mut states = Vec::new();
    for _ in 0..2 * MAX_RECONCILES {
        fixture.context.tenants = Arc::new(Tenants::default());
        // The first reconcile connects to the tenant again, the second asks the syncer, and the third records what it says.
        for _ in 0..3 {
            Box::pin(fixture.reconcile()).await.unwrap();
            states.push(state(&fixture));
        }
    }
    states.dedup();
    // Nothing of it may run before.
    assert_eq!(states, ["Sleeping", "Enforcing", "Sleeping"]);
}

/// Control is killed after it has recorded that the tenant sleeps: its controllers still run.
#[tokio::test]
async fn what_runs_is_stopped_before_a_class_is_enforced() {
    let mut fixture = Box::pin(asleep()).await;
    fixture.context.tenants = Arc::new(Tenants::default());
    let before = fixture.count_calls();
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    let calls = fixture.script.calls().split_off(before);
    let position = |text: &str| calls.iter().position(|call| call.text == text);
    let (stopped, started) = (
        position("runtime stop everything"),
        position("runtime run kube-apiserver"),
    );
    assert!(stopped.is_some() && stopped < started, "{stopped:?} {started:?}");
}

#[tokio::test]
async fn a_tenant_that_was_stopped_need_not_wait_until_it_is_looked_at_again() {
    let mut fixture = Box::pin(asleep()).await;
    fixture.context.tenants = Arc::new(Tenants::default());
    set_hostnames(&fixture, &[]);
    let queue = fixture.context.queue.clone();
    while !queue.is_empty() {
        let taken = queue.take().await;
        queue.done(&taken.key);
    }
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(state(&fixture), "Sleeping");
    assert!(!queue.claim(&tenant("team", "vision")), "it waits in the queue");
}

#[tokio::test]
async fn a_tenant_that_is_deleted_gives_its_place_to_the_next() {
    let mut fixture = Box::pin(asleep()).await;
    fixture.stored.uncompared_objects.store(1, Ordering::SeqCst);
    set_hostnames(&fixture, &[]);
    Box::pin(reconcile_until(&mut fixture, "Enforcing", |_| {})).await;
    let asks = |fixture: &Fixture, number: usize| {
        let other = tenant("others", &number.to_string());
        let places = &fixture.context.tenants.enforcement_places;
        places.ask(&other, "rules", Instant::now()) == Turn::Now
    };
    let first = (0..100).find(|number| !asks(&fixture, *number)).unwrap();
    fixture.change_tenant(|cluster| cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    let _ = Box::pin(fixture.reconcile()).await;
    assert!(asks(&fixture, first));
}

#[tokio::test]
async fn each_call_may_fail_once_while_a_class_is_enforced() {
    let sleeps_again = |fixture: &Fixture, rules: &Value| {
        state(fixture) == "Sleeping" && fixture.status()["sleep"]["enforcedRules"] != *rules
    };
    let calls = {
        let mut fixture = Box::pin(asleep()).await;
        let (rules, before) = (
            fixture.status()["sleep"]["enforcedRules"].clone(),
            fixture.count_calls(),
        );
        set_hostnames(&fixture, &[]);
        for _ in 0..MAX_RECONCILES {
            if !sleeps_again(&fixture, &rules) {
                Box::pin(fixture.reconcile()).await.unwrap();
            }
        }
        fixture.count_calls() - before
    };
    for number in 0..calls {
        let mut fixture = Box::pin(asleep()).await;
        let rules = fixture.status()["sleep"]["enforcedRules"].clone();
        set_hostnames(&fixture, &[]);
        fixture.script.fail_call(fixture.count_calls() + number);
        for _ in 0..2 * MAX_RECONCILES {
            if !sleeps_again(&fixture, &rules) {
                let _ = Box::pin(fixture.reconcile()).await;
            }
        }
        assert!(sleeps_again(&fixture, &rules), "{:?}", fixture.script.failed());
    }
}
