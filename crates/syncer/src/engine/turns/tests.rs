use super::*;
use crate::engine::{Outcome, api::CallError, queued_key::QueuedKey, test_engine::engine, to_host};
use berth_api::labels;
use berth_sync_rules::model::{KindId, resource::Name, store::Stored};
use futures::FutureExt;
use serde_json::json;

const RATE: u64 = 1 << 20;
const LARGEST: u64 = 1 << 20;
const LARGE_LINE: LineKind = LineKind::Bytes(Size::Large);
/// Requests of a pod with 32 claims.
const FULL_POD: u64 = 33;
/// Requests that may be taken at once.
const REQUESTS: u64 = 3000;

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
async fn requests_have_an_allowance_and_then_a_pace_and_delay_nothing_else() {
    let turns = whole_turns().await;
    for number in 0..90 {
        let pod = key("a", &number.to_string());
        assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
        assert_eq!(turns.spend(&pod), FULL_POD);
    }
    let (more, none) = (key("a", "more"), key("a", "none"));
    assert!(!is_now(turns.ask_for_requests(&more, FULL_POD)));
    assert!(
        !is_now(turns.ask_for_requests(&key("a", "small"), 2)),
        "it is after that"
    );
    assert!(is_now(turns.ask_for_requests(&none, 0)) && is_now(turns.ask(&none, 1000)));
    assert_eq!((turns.waiting(LineKind::Requests), turns.waiting(LARGE_LINE)), (2, 0));
    let start = Instant::now();
    assert_eq!(turns.next(LineKind::Requests).await, more);
    // 30 were left, and 3 are 0.6 s.
    assert_eq!(start.elapsed(), Duration::from_millis(600));
    assert_eq!(turns.spend(&more), FULL_POD);
    assert_eq!(turns.next(LineKind::Requests).await, key("a", "small"));
    assert_eq!(turns.spend(&key("a", "small")), 2);
    tokio::time::advance(Duration::from_secs(601)).await;
    assert!(is_now(turns.ask_for_requests(&more, REQUESTS)), "it is whole again");
}

#[tokio::test(start_paused = true)]
async fn requests_are_taken_once_for_each_object_that_is_made() {
    let turns = whole_turns().await;
    let (pod, others) = (key("a", "pod"), key("a", "others"));
    for _ in 0..1000 {
        let begun = turns.begin(&pod);
        assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
        turns.end(&pod, begun, Keeps::Requests);
    }
    assert_eq!(turns.spend(&pod), FULL_POD);
    assert!(is_now(turns.ask_for_requests(&others, REQUESTS - 2 * FULL_POD)));
    assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)), "made again");
    assert_eq!(turns.spend(&pod), FULL_POD);
    assert!(!is_now(turns.ask_for_requests(&pod, 1)), "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn requests_of_what_is_not_made_are_forgotten_and_more_are_taken_for_more_claims() {
    let turns = whole_turns().await;
    let pod = key("a", "pod");
    assert!(is_now(turns.ask_for_requests(&pod, 2)));
    let begun = turns.begin(&pod);
    assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
    turns.end(&pod, begun, Keeps::All);
    let rest = REQUESTS - FULL_POD;
    assert!(is_now(turns.ask_for_requests(&key("a", "others"), rest)));
    assert!(!is_now(turns.ask_for_requests(&key("a", "more"), 1)));
    // The pod was deleted meanwhile.
    let begun = turns.begin(&pod);
    turns.end(&pod, begun, Keeps::Nothing);
    assert_eq!(turns.spend(&pod), 0);
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

#[tokio::test(start_paused = true)]
async fn a_syncer_that_starts_has_a_tenth_of_the_requests() {
    let turns = turns();
    assert!(!is_now(turns.ask_for_requests(&key("a", "many"), REQUESTS / 10 + 1)));
    let turns = self::turns();
    assert!(is_now(turns.ask_for_requests(&key("a", "some"), REQUESTS / 10)));
    assert!(!is_now(turns.ask_for_requests(&key("a", "more"), 1)));
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_not_used_are_bounded_and_keep_others_waiting_for_minutes_at_most() {
    let turns = Arc::new(whole_turns().await);
    let stuck: Vec<Key> = (0..500).map(|number| key("stuck", &number.to_string())).collect();
    let other = key("quiet", "pod");
    let (mut waited, start) = (None, Instant::now());
    let line = tokio::spawn({
        let turns = Arc::clone(&turns);
        async move {
            loop {
                turns.next(LineKind::Requests).await;
            }
        }
    });
    while start.elapsed() < Duration::from_hours(1) {
        // They fail, and are tried again and again.
        for key in &stuck {
            let begun = turns.begin(key);
            turns.ask_for_requests(key, FULL_POD);
            turns.end(key, begun, Keeps::Requests);
        }
        assert!(lock(&turns.granted_requests).total() <= REQUESTS);
        if waited.is_none() && is_now(turns.ask_for_requests(&other, 2)) {
            waited = Some(start.elapsed());
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    line.abort();
    assert!(
        waited.is_some_and(|waited| waited <= Duration::from_mins(11)),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_last_until_ten_minutes_after_a_whole_reconciliation() {
    let turns = whole_turns().await;
    let pod = key("a", "pod");
    assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
    turns.take_requests(100 * REQUESTS);
    // It waits for the tenant's API server, in the second queue.
    tokio::time::advance(Duration::from_hours(2)).await;
    assert!(!lock(&turns.granted_requests).has_room(REQUESTS, now()));
    let begun = turns.begin(&pod);
    assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
    turns.end(&pod, begun, Keeps::Requests);
    tokio::time::advance(Duration::from_mins(9)).await;
    assert!(is_now(turns.ask_for_requests(&pod, FULL_POD)));
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(!is_now(turns.ask_for_requests(&pod, FULL_POD)));
}

#[tokio::test(start_paused = true)]
async fn pods_do_not_come_after_all_claims_that_wait() {
    let turns = turns();
    turns.take_requests(REQUESTS);
    let claim = |number: u32| KindId::PersistentVolumeClaim.key(Name::new("a", &number.to_string()));
    for number in 0..150 {
        assert!(!is_now(turns.ask_for_requests(&claim(number), 7)));
    }
    let mut pods = 0;
    for _ in 0..100 {
        let next = turns.next(LineKind::Requests).await;
        turns.spend(&next);
        if next.kind == KindId::Pod {
            pods += 1;
        } else {
            // Its claim is on the host now.
            assert!(!is_now(turns.ask_for_requests(&KindId::Pod.key(next.name), 2)));
        }
    }
    assert_eq!(pods, 49);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_made_again_with_more_claims_waits_for_them() {
    let turns = whole_turns().await;
    let small: Vec<Key> = (0..500).map(|number| key("a", &number.to_string())).collect();
    assert!(small.iter().all(|key| is_now(turns.ask_for_requests(key, 2))));
    let large = small.iter().filter(|key| is_now(turns.ask_for_requests(key, FULL_POD)));
    // 2,000 were left, and each needs 31 more.
    assert_eq!(large.count(), 64);
    assert_eq!(turns.spend(&small[0]), FULL_POD);
    assert_eq!(turns.next(LineKind::Requests).await, small[64]);
    assert_eq!(turns.spend(&small[64]), FULL_POD, "it has got the rest");
}

#[tokio::test(start_paused = true)]
async fn what_the_hosts_controllers_do_anyway_delays_what_is_written_next() {
    let turns = whole_turns().await;
    turns.take_requests(REQUESTS + 50);
    let pod = key("a", "pod");
    assert!(!is_now(turns.ask_for_requests(&pod, 5)));
    let start = Instant::now();
    assert_eq!(turns.next(LineKind::Requests).await, pod);
    assert_eq!(start.elapsed(), Duration::from_secs(11));
}

/// Bytes of Events that may be written at once.
const EVENTS: u64 = SMALL_ALLOWANCE;

/// Turns ten minutes after the start, when all that was taken is made up for.
async fn turns_without_events() -> Turns {
    let turns = whole_turns().await;
    assert!(is_now(turns.ask_for_events(&key("a", "first"))));
    turns
}

#[tokio::test(start_paused = true)]
async fn pods_wait_while_too_many_events_are_written_and_come_one_after_another_then() {
    let turns = turns_without_events().await;
    turns.take_event(EVENTS / 2);
    assert!(is_now(turns.ask_for_events(&key("a", "some"))), "something is left");
    // A minute more than may be written: a tenant gets half of its rate for Events.
    turns.take_event(EVENTS / 2 + 60 * RATE / EVENTS_PART);
    let pods: Vec<Key> = (0..3).map(|number| key("a", &number.to_string())).collect();
    for pod in &pods {
        assert_eq!(turns.ask_for_events(pod), Turn::Later { takes_long: true });
    }
    assert!(
        is_now(turns.ask(&key("a", "service"), 1000)) && is_now(turns.ask_for_requests(&key("a", "claim"), 7)),
        "nothing else waits"
    );
    let start = Instant::now();
    for pod in &pods {
        assert_eq!(turns.next(LineKind::Events).await, *pod);
    }
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_secs(59) && waited < Duration::from_secs(61),
        "{waited:?}"
    );
    assert_eq!(turns.waiting(LineKind::Events), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_about_pods_that_are_made_again_and_again_is_bounded() {
    // A kubelet writes 25 Events of 2 KB about each pod, which is replaced at once.
    const OF_A_POD: u64 = 25 * 2048;
    let turns = turns();
    let (start, mut written, mut number) = (Instant::now(), 0, 0_u64);
    while start.elapsed() < Duration::from_hours(1) {
        let pod = key("a", &number.to_string());
        if !is_now(turns.ask_for_events(&pod)) {
            assert_eq!(turns.next(LineKind::Events).await, pod);
        }
        turns.spend(&pod);
        turns.take_event(OF_A_POD);
        (written, number) = (written + OF_A_POD, number + 1);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let most = EVENTS / 10 + 3600 * RATE / EVENTS_PART + OF_A_POD;
    assert!(written <= most && written > most / 2, "{written} of {most}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_keeps_its_turn_among_events_until_it_is_made_or_gone() {
    let turns = turns_without_events().await;
    let (made, gone) = (key("a", "made"), key("a", "gone"));
    for pod in [&made, &gone] {
        assert!(is_now(turns.ask_for_events(pod)));
    }
    turns.take_event(2 * EVENTS);
    // They wait for their bytes meanwhile, and the host fails.
    for (pod, keeps) in [(&made, Keeps::All), (&made, Keeps::Requests), (&gone, Keeps::All)] {
        let begun = turns.begin(pod);
        assert!(is_now(turns.ask_for_events(pod)));
        turns.end(pod, begun, keeps);
    }
    turns.spend(&made);
    let begun = turns.begin(&gone);
    turns.end(&gone, begun, Keeps::Nothing);
    for pod in [&made, &gone] {
        assert!(!is_now(turns.ask_for_events(pod)), "{pod}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_no_longer_than_an_hour_because_of_events_that_others_write_without_end() {
    let turns = turns();
    for _ in 0..100 {
        // Two minutes each.
        turns.take_event(120 * RATE / EVENTS_PART);
    }
    let (pod, start) = (key("a", "pod"), Instant::now());
    assert!(!is_now(turns.ask_for_events(&pod)));
    assert_eq!(turns.next(LineKind::Events).await, pod);
    let waited = start.elapsed();
    let hour = Duration::from_hours(1);
    assert!(waited > hour && waited < hour + Duration::from_mins(3), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_syncer_that_starts_has_a_tenth_of_the_events() {
    let turns = turns();
    turns.take_event(EVENTS / 10 - EVENTS_OF_POD);
    assert!(is_now(turns.ask_for_events(&key("a", "pod"))));
    assert!(!is_now(turns.ask_for_events(&key("a", "more"))));
}
