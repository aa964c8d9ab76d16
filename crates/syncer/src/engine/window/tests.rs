use super::*;
use crate::engine::test_requests::{member, name, request};

const MAXIMUM: usize = 64;

fn names(admitted: &[Admitted]) -> Vec<&str> {
    admitted.iter().map(|pod| &*pod.name.name).collect()
}

/// A window in which `pods` asked for a place and, where they got one, were created.
fn flooded(pods: usize, now: Instant) -> SchedulingWindow {
    let mut window = SchedulingWindow::new(MAXIMUM);
    for index in 0..pods {
        let of = format!("p{index}");
        if window.ask(request(&of), now).waits.is_none() {
            window.observe(&name(&of), Some(SchedulingStage::Untried), now);
        }
    }
    window
}

#[test]
fn a_flood_waits_and_each_try_makes_room_for_the_next_pod() {
    let now = Instant::now();
    let mut window = flooded(300, now);
    let limit = window.limit();
    assert_eq!((window.used(), window.waiting()), (limit, 300 - limit));
    // The scheduler takes long: no more pods than before are let in, until there are fewer than half.
    let later = now + Duration::from_millis(500);
    let mut admitted = 0;
    for index in 0..limit {
        let progress = window.observe(&name(&format!("p{index}")), Some(SchedulingStage::Tried), later);
        assert_eq!(progress.tried_after, Some(Duration::from_millis(500)));
        admitted += progress.admitted.len();
    }
    assert_eq!(window.used(), limit / 2);
    assert_eq!(admitted, limit / 2);
}

/// Has the pod with a place tried `after` the moment in which it got it. Returns that moment, and the pods that get a place at once.
fn try_slowly(window: &mut SchedulingWindow, since: Instant, after: Duration) -> (Instant, Vec<Admitted>) {
    let tried = window.placed.keys().next().unwrap().clone();
    let at = since + after;
    let progress = window.observe(&tried, Some(SchedulingStage::Tried), at);
    (at, progress.admitted)
}

#[test]
fn a_flood_with_one_place_rests_while_pods_take_long() {
    let slow = Duration::from_millis(500);
    let start = Instant::now();
    let mut window = SchedulingWindow::new(1);
    for of in ["p0", "p1", "p2", "p3"] {
        window.ask(request(of), start);
    }
    let (at, admitted) = try_slowly(&mut window, start, slow);
    let end = window.rests_until().unwrap();
    assert!(admitted.is_empty() && end > at);
    assert!(window.check(at).admitted.is_empty());
    assert_eq!(names(&window.check(end).admitted), ["p1"]);
    assert_eq!(window.rests_until(), None, "nothing is to be looked after");
    let first_rest = end - at;
    let (at, _) = try_slowly(&mut window, end, slow);
    let second = window.rests_until().unwrap();
    assert_eq!(second - at, 2 * first_rest);
    // Pods are quick again.
    window.check(second);
    let (at, _) = try_slowly(&mut window, second, Duration::from_millis(60));
    let third = window.rests_until().unwrap();
    assert!(third > at && third - at < 2 * first_rest, "it rests less");
    window.check(third);
    let (_, admitted) = try_slowly(&mut window, third, Duration::from_millis(60));
    assert!(admitted.is_empty() && window.rests_until().is_none(), "no pod is left");
    assert!(
        window.ask(request("p4"), third + slow).waits.is_none(),
        "it begins anew"
    );
}

#[test]
fn gangs_begin_no_rest_that_they_could_not_end() {
    let slow = Duration::from_millis(500);
    let start = Instant::now();
    let mut window = SchedulingWindow::new(1);
    for request in [request("p0"), member("p1", "train", 2), request("p2")] {
        window.ask(request, start);
    }
    try_slowly(&mut window, start, slow);
    let end = window.rests_until().unwrap();
    assert_eq!(names(&window.check(end).admitted), ["p1"]);
    let (_, admitted) = try_slowly(&mut window, end, slow);
    assert_eq!(names(&admitted), ["p2"]);
}

#[test]
fn a_flood_that_is_deleted_during_a_rest_leaves_nothing_behind() {
    let start = Instant::now();
    let mut window = SchedulingWindow::new(1);
    for of in ["p0", "p1"] {
        window.ask(request(of), start);
    }
    let (at, admitted) = try_slowly(&mut window, start, Duration::from_millis(500));
    assert!(admitted.is_empty() && window.rests_until().is_some());
    window.forget(&name("p1"), at);
    assert!(window.ask(request("p2"), at).waits.is_none());
    assert!(window.limit.rest().is_zero());
}

#[test]
fn pods_are_admitted_in_their_order_and_say_how_long_they_waited() {
    let now = Instant::now();
    let mut window = flooded(10, now);
    let later = now + Duration::from_millis(60);
    let progress = window.observe(&name("p0"), Some(SchedulingStage::Tried), later);
    assert_eq!(names(&progress.admitted), ["p8", "p9"], "the limit has grown");
    assert_eq!(progress.admitted[0].waited, Duration::from_millis(60));
    assert!(window.has(&name("p8")) && !window.has(&name("p0")));
}

#[test]
fn a_pod_that_asks_again_keeps_its_place() {
    let now = Instant::now();
    let mut window = SchedulingWindow::new(MAXIMUM);
    for _ in 0..3 {
        assert_eq!(window.ask(request("a"), now).waits, None);
    }
    assert_eq!((window.used(), window.waiting()), (1, 0));
}

#[test]
fn a_gang_is_admitted_whole() {
    let now = Instant::now();
    let mut window = flooded(300, now);
    let limit = window.limit();
    // Members that wait come with the first one.
    let mut window_of_gangs = SchedulingWindow::new(1);
    window_of_gangs.ask(request("first"), now);
    for of in ["m1", "m2", "m3", "m4"] {
        assert!(window_of_gangs.ask(member(of, "train", 3), now).waits.is_some());
    }
    let progress = window_of_gangs.observe(&name("first"), Some(SchedulingStage::Tried), now);
    assert_eq!(
        names(&progress.admitted),
        ["m1", "m2", "m3"],
        "as many as start together"
    );
    assert_eq!(window_of_gangs.waiting(), 1);
    // A member that comes later is admitted at once, as long as one is missing.
    let mut late = SchedulingWindow::new(1);
    assert_eq!(late.ask(member("m1", "train", 2), now).waits, None);
    assert_eq!(late.ask(member("m2", "train", 2), now).waits, None);
    assert!(late.ask(member("m3", "train", 2), now).waits.is_some());
    // A gang that has no member with a place waits as any other pod does.
    assert!(window.ask(member("m1", "train", 2), now).waits.is_some());
    assert_eq!(window.used(), limit);
}

#[test]
fn a_pod_whose_creation_had_no_answer_waits_no_more_once_it_is_on_the_host() {
    let now = Instant::now();
    let waits_after = |request: Request, stage: Option<SchedulingStage>| {
        let mut window = flooded(8, now);
        assert!(window.ask(request, now).waits.is_some());
        window.observe(&name("late"), stage, now);
        (window.waiting(), window.used() - window.limit())
    };
    let created = || request("late");
    assert_eq!(
        waits_after(created(), Some(SchedulingStage::Untried)),
        (0, 1),
        "it counts"
    );
    assert_eq!(waits_after(created(), Some(SchedulingStage::Tried)), (0, 0));
    assert_eq!(waits_after(created(), Some(SchedulingStage::Gated)), (0, 0));
    assert_eq!(
        waits_after(created(), None),
        (1, 0),
        "an earlier pod of the name is gone"
    );
}

#[test]
fn only_delays_of_the_queue_change_the_limit() {
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    let limit_after = |request: Request| {
        let mut window = SchedulingWindow::new(MAXIMUM);
        window.ask(request, now);
        window.observe(&name("a"), Some(SchedulingStage::Untried), now);
        // More than there are places for.
        for index in 0..window.limit() {
            window.ask(self::request(&format!("waiting-{index}")), now);
        }
        let progress = window.observe(&name("a"), Some(SchedulingStage::Tried), later);
        assert_eq!(progress.tried_after, Some(Duration::from_secs(1)));
        window.limit()
    };
    let before = SchedulingWindow::new(MAXIMUM).limit();
    assert_eq!(limit_after(member("a", "train", 8)), before, "it waited for its gang");
    assert!(limit_after(request("a")) < before);
    assert!(limit_after(member("a", "alone", 1)) < before);
}

#[test]
fn pods_that_are_gone_leave_the_window() {
    let now = Instant::now();
    let mut window = flooded(9, now);
    assert_eq!(window.waiting(), 1);
    assert!(window.forget(&name("p8"), now).is_empty(), "it waited");
    assert_eq!(window.waiting(), 0);
    assert!(window.forget(&name("p0"), now).is_empty());
    assert!(window.has(&name("p0")), "it is still on the host");
    window.observe(&name("p0"), None, now);
    assert!(!window.has(&name("p0")));
    // A place for a pod that was not created is free again.
    window.ask(request("denied"), now);
    window.observe(&name("denied"), None, now);
    assert!(window.has(&name("denied")), "that was an earlier pod of the name");
    window.forget(&name("denied"), now);
    assert!(!window.has(&name("denied")));
    for index in 1..8 {
        window.observe(&name(&format!("p{index}")), Some(SchedulingStage::Tried), now);
    }
    assert_eq!(window.used(), 0);
    assert!(window.placed.is_empty() && window.members.is_empty());
}

#[test]
fn pods_with_gates_of_the_platform_need_no_place() {
    let now = Instant::now();
    let mut window = SchedulingWindow::new(MAXIMUM);
    window.ask(request("gated"), now);
    let progress = window.observe(&name("gated"), Some(SchedulingStage::Gated), now);
    assert_eq!((window.used(), progress.tried_after), (0, None));
}

#[test]
fn without_a_scheduler_all_pods_are_admitted_until_one_is_tried() {
    let now = Instant::now();
    let mut window = flooded(300, now);
    let limit = window.limit();
    let waiting = name("p299");
    assert!(window.check(now + TIMEOUT / 2).admitted.is_empty());
    let early = window.ask(request("p299"), now + TIMEOUT / 2);
    assert_eq!(early.waits, Some(TIMEOUT / 2));
    assert_eq!(window.check(now + TIMEOUT).admitted.len(), 300 - limit);
    assert!(window.has(&waiting));
    assert_eq!(window.ask(request("p299"), now + TIMEOUT).waits, None);
    let late = now + TIMEOUT + Duration::from_secs(1);
    assert_eq!(window.ask(request("one-more"), late).waits, None);
    window.observe(&name("p0"), Some(SchedulingStage::Tried), late);
    assert!(window.ask(request("after-that"), late).waits.is_some());
}

#[test]
fn a_pod_that_is_left_out_gives_its_place_away() {
    let now = Instant::now();
    let mut window = flooded(300, now);
    let limit = window.limit();
    let later = now + TIMEOUT;
    // The scheduler is there: it tries one pod, and leaves the others out.
    window.observe(&name("p0"), Some(SchedulingStage::Tried), later);
    let admitted = window.check(later).admitted;
    assert!(!admitted.is_empty() && admitted.len() < limit);
    assert!(window.waiting() > 0, "only the places of those left out are free");
}

#[test]
fn pods_whose_creation_fails_do_not_open_the_window() {
    let now = Instant::now();
    let mut window = SchedulingWindow::new(1);
    window.ask(request("fails"), now);
    window.ask(request("waits"), now);
    let admitted = window.check(now + TIMEOUT).admitted;
    assert_eq!(names(&admitted), ["waits"], "the place is free");
    assert!(window.ask(request("next"), now + TIMEOUT).waits.is_some());
}

#[test]
fn pods_that_were_not_created_in_time_do_not_come_all_at_once() {
    let mut now = Instant::now();
    let mut window = SchedulingWindow::new(MAXIMUM);
    let of = |index: usize| format!("p{index}");
    for index in 0..100 {
        window.ask(request(&of(index)), now);
    }
    let limit = window.limit();
    // They got a place in turn, and wait for the tenant's API server.
    for _ in 0..100 {
        now += TIMEOUT;
        window.check(now);
    }
    assert_eq!((window.used(), window.unseen, window.waiting()), (0, 0, 0));
    let comes = (0..100).filter(|index| window.ask(request(&of(*index)), now).waits.is_none());
    assert_eq!(comes.count(), limit);
    assert_eq!((window.used(), window.waiting()), (limit, 100 - limit));
    window.observe(&name("p0"), Some(SchedulingStage::Untried), now);
    let progress = window.observe(&name("p0"), Some(SchedulingStage::Tried), now);
    assert!(
        names(&progress.admitted).contains(&&*of(limit)),
        "the others come as always"
    );
}

#[test]
fn a_pod_that_comes_late_waits_for_those_on_the_host_only() {
    let start = Instant::now();
    let mut window = SchedulingWindow::new(1);
    for of in ["p0", "p1"] {
        window.ask(request(of), start);
    }
    let later = start + TIMEOUT;
    assert_eq!(names(&window.check(later).admitted), ["p1"]);
    assert!(window.ask(request("p0"), later).waits.is_none(), "p1 is not there yet");
    window.observe(&name("p0"), Some(SchedulingStage::Untried), later);
    window.forget(&name("p1"), later);
    assert!(window.ask(request("p1"), later).waits.is_some(), "p0 is there");
    assert_eq!((window.used(), window.unseen), (1, 0));
}

#[test]
fn a_pod_that_was_created_late_counts_from_then_on() {
    let start = Instant::now();
    let mut window = SchedulingWindow::new(1);
    window.ask(request("p0"), start);
    let later = start + TIMEOUT;
    window.check(later);
    assert_eq!(window.used(), 0);
    window.observe(&name("p0"), Some(SchedulingStage::Untried), later);
    assert_eq!(window.used(), 1);
    assert!(window.ask(request("p1"), later).waits.is_some());
    window.observe(&name("p0"), Some(SchedulingStage::Tried), later);
    assert!(window.has(&name("p1")) && window.used() == 1);
}

#[test]
fn a_restarted_syncer_counts_what_is_on_the_host() {
    let now = Instant::now();
    let mut window = SchedulingWindow::new(MAXIMUM);
    for index in 0..100 {
        window.restore(request(&format!("old-{index}")), now);
    }
    assert!(window.ask(request("new"), now).waits.is_some());
    let later = now + Duration::from_millis(10);
    for index in 0..100 {
        window.observe(&name(&format!("old-{index}")), Some(SchedulingStage::Tried), later);
    }
    assert!(window.has(&name("new")));
}

#[test]
fn a_restarted_syncer_admits_the_rest_of_a_gang() {
    let now = Instant::now();
    let mut window = SchedulingWindow::new(1);
    for of in ["m1", "m2"] {
        window.restore(member(of, "train", 3), now);
    }
    assert_eq!(window.ask(member("m3", "train", 3), now).waits, None);
    assert!(window.ask(member("m4", "train", 3), now).waits.is_some());
}
