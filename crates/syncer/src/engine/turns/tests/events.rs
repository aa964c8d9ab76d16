//! Pods that wait because Events are written.

use super::*;

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
    let pods: Vec<Key> = (0..40).map(|number| key("a", &number.to_string())).collect();
    for (number, pod) in pods.iter().enumerate() {
        // One comes each second.
        let takes_long = number >= 29;
        assert_eq!(turns.ask_for_events(pod), Turn::Later { takes_long }, "{number}");
    }
    assert!(
        is_now(turns.ask(&key("a", "service"), 1000)) && is_now(turns.ask_for_requests(&key("a", "claim"), 7)),
        "nothing else waits"
    );
    let (first, others) = pods.split_at(10);
    let start = Instant::now();
    for pod in first {
        assert_eq!(turns.next(LineKind::Events).await, *pod);
    }
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_secs(9) && waited < Duration::from_secs(11),
        "{waited:?}"
    );
    tokio::time::advance(Duration::from_mins(1)).await;
    let start = Instant::now();
    for pod in others {
        assert_eq!(turns.next(LineKind::Events).await, *pod);
    }
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert_eq!(turns.waiting(LineKind::Events), 0);
}

/// Nodes that follow demand are idle after five minutes without pods, and go to other tenants.
#[tokio::test(start_paused = true)]
async fn while_too_many_events_are_written_pods_come_and_add_a_tenth_at_most() {
    const OF_A_POD: u64 = 25 * 2048;
    let turns = turns_without_events().await;
    turns.take_event(EVENTS + 1800 * RATE / EVENTS_PART);
    let (start, mut pods) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_mins(5) {
        let pod = key("a", &pods.to_string());
        assert!(!is_now(turns.ask_for_events(&pod)));
        assert_eq!(turns.next(LineKind::Events).await, pod);
        turns.spend(&pod);
        turns.take_event(OF_A_POD);
        pods += 1;
    }
    assert!((290..=310).contains(&pods), "{pods}");
    assert!(pods * OF_A_POD <= 300 * RATE / EVENTS_PART / 10);
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
async fn events_that_others_write_without_end_count_for_an_hour() {
    let turns = turns();
    for _ in 0..100 {
        // Two minutes each.
        turns.take_event(120 * RATE / EVENTS_PART);
    }
    tokio::time::advance(Duration::from_hours(1)).await;
    let pod = key("a", "pod");
    assert!(!is_now(turns.ask_for_events(&pod)));
    assert_eq!(turns.next(LineKind::Events).await, pod);
    tokio::time::advance(Duration::from_mins(3)).await;
    assert!(is_now(turns.ask_for_events(&key("a", "more"))));
}

#[tokio::test(start_paused = true)]
async fn a_syncer_that_starts_has_a_tenth_of_the_events() {
    let turns = turns();
    turns.take_event(EVENTS / 10 - EVENTS_OF_POD);
    assert!(is_now(turns.ask_for_events(&key("a", "pod"))));
    assert!(!is_now(turns.ask_for_events(&key("a", "more"))));
}
