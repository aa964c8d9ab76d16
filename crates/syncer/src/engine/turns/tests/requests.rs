//! Writes because of which controllers of the host make requests.

use super::*;

/// Requests of a pod with 32 claims.
const FULL_POD: u64 = 33;
/// Requests that may be taken at once.
const REQUESTS: u64 = 3000;

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
