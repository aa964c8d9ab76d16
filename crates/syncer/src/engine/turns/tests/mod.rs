//! When writes have their turns.

mod events;
mod requests;

use super::*;
use crate::engine::{Engine, Outcome, api::CallError, queued_key::QueuedKey, test_engine::engine, to_host};
use berth_api::labels;
use berth_sync_rules::model::{KindId, resource::Name, store::Stored};
use futures::FutureExt;
use serde_json::json;
use std::sync::Arc;

const RATE: u64 = 1 << 20;
const LARGEST: u64 = 1 << 20;
const LARGE_LINE: LineKind = LineKind::Bytes(Size::Large);

fn key(namespace: &str, name: &str) -> Key {
    KindId::Pod.key(Name::new(namespace, name))
}

fn is_now(turn: Turn) -> bool {
    turn == Turn::Now
}

/// Turns for [`RATE`] bytes and five requests a second.
fn turns() -> Turns {
    Turns::new(&HostLimits {
        write_bytes_per_second: RATE,
        controller_requests_per_second: 5,
        ..HostLimits::default()
    })
}

/// The same ten minutes after the start: all that may be taken at once is there.
async fn whole_turns() -> Turns {
    let turns = turns();
    tokio::time::advance(Duration::from_mins(10)).await;
    turns
}

/// Turns without any allowance left for large objects.
async fn used_up() -> Turns {
    let turns = whole_turns().await;
    turns.take(ALLOWANCE);
    turns
}

#[tokio::test(start_paused = true)]
async fn what_is_allowed_at_once_does_not_wait() {
    let turns = whole_turns().await;
    for number in 0..32 {
        assert!(is_now(turns.ask(&key("a", &number.to_string()), LARGEST)));
    }
    assert!(!is_now(turns.ask(&key("a", "more"), LARGEST)));
    assert_eq!(
        (turns.waiting(LARGE_LINE), turns.waiting(LineKind::Bytes(Size::Small))),
        (1, 0)
    );
    assert!(
        is_now(turns.ask(&key("a", "small"), 1000)),
        "large objects never delay small ones"
    );
}

#[tokio::test(start_paused = true)]
async fn keys_get_their_turns_at_the_pace_and_namespaces_take_turns() {
    let turns = used_up().await;
    for number in 0..100 {
        assert!(!is_now(turns.ask(&key("flood", &number.to_string()), LARGEST)));
    }
    let other = key("quiet", "pod");
    assert!(!is_now(turns.ask(&other, LARGEST)));
    let start = Instant::now();
    turns.next(LARGE_LINE).await;
    assert_eq!(turns.next(LARGE_LINE).await, other);
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    let begun = turns.begin(&other);
    assert!(is_now(turns.ask(&other, LARGEST)));
    turns.end(&other, begun, Keeps::Nothing);
    assert!(!is_now(turns.ask(&other, LARGEST)), "once for each turn");
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn no_more_is_written_than_the_pace_allows() {
    let turns = turns();
    let start = Instant::now();
    let mut written = 0;
    for number in 0..50_u64 {
        let (key, bytes) = (key("a", &number.to_string()), 20_000 + number * 30_000);
        if !is_now(turns.ask(&key, bytes)) {
            assert_eq!(turns.next(LARGE_LINE).await, key);
            assert!(is_now(turns.ask(&key, bytes)));
        }
        written += bytes;
        let allowed = ALLOWANCE / 10 + RATE * (start.elapsed().as_secs() + 1);
        assert!(written <= allowed, "{written} of {allowed}");
    }
    assert!(start.elapsed() > Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_needs_its_turn_no_more_does_not_take_it() {
    let turns = used_up().await;
    let (gone, next) = (key("a", "gone"), key("a", "next"));
    for key in [&gone, &next] {
        assert!(!is_now(turns.ask(key, LARGEST)));
    }
    // Its object is deleted: the reconciliation does not ask.
    let begun = turns.begin(&gone);
    turns.end(&gone, begun, Keeps::Nothing);
    // This one is reconciled for another reason, and asks again.
    let begun = turns.begin(&next);
    assert!(!is_now(turns.ask(&next, LARGEST)));
    turns.end(&next, begun, Keeps::Nothing);
    assert_eq!(turns.next(LARGE_LINE).await, next);
    assert_eq!(turns.waiting(LARGE_LINE), 0);
    let begun = turns.begin(&next);
    turns.end(&next, begun, Keeps::Nothing);
    assert!(!is_now(turns.ask(&next, LARGEST)), "what was not used is lost");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_a_place_keeps_its_turn() {
    let turns = whole_turns().await;
    let pod = key("a", "pod");
    for _ in 0..3 {
        let begun = turns.begin(&pod);
        assert!(is_now(turns.ask(&pod, LARGEST)));
        turns.keep(&pod, LARGEST, 0);
        turns.end(&pod, begun, Keeps::All);
    }
    assert!(turns.take_soon(31 * LARGEST).unwrap().is_zero(), "it was taken once");
    assert!(!turns.take_soon(LARGEST).unwrap().is_zero());
    assert!(turns.take_soon(10 * LARGEST).is_err());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_has_grown_a_little_takes_the_rest_as_well() {
    let turns = used_up().await;
    let pod = key("a", "pod");
    assert!(!is_now(turns.ask(&pod, LARGEST)));
    turns.next(LARGE_LINE).await;
    assert!(is_now(turns.ask(&pod, LARGEST + KEEPS_TURN)));
    turns.take(LARGEST);
    let start = Instant::now();
    assert!(!is_now(turns.ask(&pod, LARGEST)));
    turns.next(LARGE_LINE).await;
    assert!(start.elapsed() > Duration::from_millis(1000));
}

#[tokio::test(start_paused = true)]
async fn pods_that_become_large_while_they_wait_for_a_place_wait_for_another_turn() {
    let turns = used_up().await;
    let pods = [0, 1, 2].map(|number| key("a", &number.to_string()));
    for pod in &pods {
        let begun = turns.begin(pod);
        assert!(is_now(turns.ask(pod, 2000)), "a small one");
        turns.keep(pod, 2000, 0);
        turns.end(pod, begun, Keeps::All);
    }
    for pod in &pods {
        let begun = turns.begin(pod);
        assert!(!is_now(turns.ask(pod, LARGEST)));
        turns.end(pod, begun, Keeps::Requests);
    }
    let start = Instant::now();
    for _ in &pods {
        turns.next(LARGE_LINE).await;
    }
    assert!(start.elapsed() >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_while_its_pod_is_reconciled_is_not_lost() {
    let turns = used_up().await;
    let pod = key("a", "pod");
    turns.keep(&pod, 2000, 0);
    let begun = turns.begin(&pod);
    assert!(!is_now(turns.ask(&pod, LARGEST)), "it has grown");
    turns.next(LARGE_LINE).await;
    turns.end(&pod, begun, Keeps::Requests);
    assert!(is_now(turns.ask(&pod, LARGEST)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_becomes_smaller_and_larger_while_it_waits_takes_nothing_more() {
    let turns = whole_turns().await;
    let pod = key("a", "pod");
    for bytes in [KEEPS_TURN, 1000].into_iter().cycle().take(100) {
        let begun = turns.begin(&pod);
        let granted = turns.granted(&pod);
        assert!(is_now(turns.ask(&pod, bytes)));
        turns.keep(&pod, bytes, granted);
        turns.end(&pod, begun, Keeps::All);
    }
    let rest = SMALL_ALLOWANCE - KEEPS_TURN;
    let pace = lock(&turns.small.pace);
    assert!(pace.has(rest, now()) && !pace.has(rest + 1, now()));
}

/// Reconciles the budget of an application.
async fn reconcile_budget(engine: &Engine) -> Result<Outcome, CallError> {
    let id = KindId::PodDisruptionBudget;
    let rules = engine.cache.rules_to_host(id).unwrap();
    to_host::reconcile(
        engine,
        (id, rules),
        &Name::new("a", "web"),
        std::time::Instant::now(),
        true,
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_for_its_turn_and_a_deletion_does_not() {
    let engine = engine();
    engine.turns.take(ALLOWANCE + LARGEST);
    let name = Name::new("a", "web");
    let of_tenant = engine.cache.stores.tenant(KindId::PodDisruptionBudget);
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = json!({"metadata": {"name": "web", "uid": "t", "resourceVersion": "1"}, "spec": spec});
    of_tenant.watched(name.clone(), Stored::new(&budget));
    let annotations = json!({labels::ORIGIN_UID: "t", labels::APPLIED_HASH: "of an earlier state"});
    let on_host =
        json!({"metadata": {"name": "web-x", "uid": "h", "resourceVersion": "2", "annotations": annotations}});
    let on_host = Stored::new(&on_host).of_bytes(100_000);
    engine
        .cache
        .stores
        .host(KindId::PodDisruptionBudget)
        .watched(name.clone(), on_host);
    let outcome = reconcile_budget(&engine).await.unwrap();
    assert_eq!(outcome, Outcome::new(WAITS).comparing_again());
    of_tenant.gone(&name, 3);
    // There is no API server.
    assert!(reconcile_budget(&engine).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_turn_has_come_is_compared() {
    let engine = engine();
    engine.turns.take(ALLOWANCE + LARGEST);
    let pod = key("a", "pod");
    assert!(!engine.may_write(&pod, LARGEST).await);
    let turns = tokio::spawn(Arc::clone(&engine).take_turns(LARGE_LINE));
    let taken = engine.queue_of(KindId::Pod).take().await;
    assert_eq!(taken.key, QueuedKey(pod.clone()));
    assert!(lock(&engine.to_compare).contains(&pod));
    assert!(engine.may_write(&pod, LARGEST).now_or_never() == Some(true));
    turns.abort();
}

#[tokio::test(start_paused = true)]
async fn a_syncer_that_starts_has_a_tenth_of_the_bytes() {
    for (size, bytes) in [(Size::Large, ALLOWANCE), (Size::Small, SMALL_ALLOWANCE)] {
        let (turns, each) = (turns(), u64::from(LARGE) + u64::from(size == Size::Large));
        let asked = (0..bytes / each).map(|number| turns.ask(&key("a", &number.to_string()), each));
        let written: u64 = asked.take_while(|turn| is_now(*turn)).map(|_| each).sum();
        assert!(
            written <= bytes / 10 && written + each > bytes / 10,
            "{size:?}: {written}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn restarts_add_little_to_what_is_written() {
    let (start, mut written) = (Instant::now(), 0);
    // A team has its syncer started again each minute, and changes as much as it can.
    while start.elapsed() < Duration::from_mins(10) {
        let (turns, begun) = (turns(), Instant::now());
        while begun.elapsed() < Duration::from_mins(1) {
            match turns.take_soon(LARGEST) {
                Ok(wait) => {
                    tokio::time::sleep(wait).await;
                    written += LARGEST;
                }
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }
    let once = ALLOWANCE + RATE * start.elapsed().as_secs();
    assert!(written < once + ALLOWANCE, "{written} of {once}");
}
