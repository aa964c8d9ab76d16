use super::*;
use crate::engine::{
    test_requests::{member, name, request},
    window::LONG_WAIT,
};

fn names(admitted: &[Name]) -> Vec<&str> {
    admitted.iter().map(|name| &*name.name).collect()
}

/// Asks for a place for a pod of a shape. Returns whether it has one; then it is created.
fn ask(room: &mut WaitingRoom, shape: &str, request: Request) -> bool {
    let name = request.name.clone();
    let Answer { waits, admitted } = room.ask(&shape.into(), request, Instant::now());
    for created in admitted.iter().chain([&name]).filter(|_| waits.is_none()) {
        room.observe(created, OnHost::Waiting);
    }
    waits.is_none()
}

/// How many of so many pods of a shape get a place.
fn flood(room: &mut WaitingRoom, shape: &str, pods: usize) -> usize {
    let asked = (0..pods).map(|index| ask(room, shape, request(&format!("{shape}{index}"))));
    asked.filter(|has_place| *has_place).count()
}

/// Nothing is left behind that grows.
fn is_clean(room: &WaitingRoom) -> bool {
    room.taken == 0 && room.shapes.is_empty() && room.turns.is_empty() && room.gangs.is_empty() && room.pods.is_empty()
}

#[test]
fn half_of_the_places_are_for_pods_that_are_alike() {
    let mut room = WaitingRoom::new(10);
    assert_eq!(flood(&mut room, "a", 20), 5);
    assert_eq!(flood(&mut room, "b", 3), 3);
    assert_eq!(flood(&mut room, "c", 20), 2);
    assert_eq!((room.placed(), room.waiting()), (10, 33));
    assert_eq!(
        names(&room.observe(&name("a0"), OnHost::Placed)),
        ["c2"],
        "c has the fewest"
    );
    assert_eq!(names(&room.observe(&name("b0"), OnHost::Ended)), ["c3"]);
    assert_eq!(room.placed(), 10);
}

#[test]
fn one_place_is_enough_to_go_on() {
    let mut room = WaitingRoom::new(1);
    assert_eq!(flood(&mut room, "a", 3), 1);
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["a1"]);
    assert_eq!(names(&room.forget(&name("a1"))), ["a2"], "it was not created");
    assert!(room.forget(&name("a2")).is_empty());
    assert!(is_clean(&room));
}

#[test]
fn higher_priorities_come_first_and_then_namespaces_take_turns() {
    let mut room = WaitingRoom::new(2);
    assert_eq!(flood(&mut room, "a", 3), 1);
    assert_eq!(flood(&mut room, "b", 2), 1);
    let other = Request {
        name: Name::new("other", "a"),
        ..request("")
    };
    assert!(!ask(&mut room, "a", other));
    let urgent = Request {
        priority: 100,
        ..request("urgent")
    };
    assert!(!ask(&mut room, "c", urgent));
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["urgent"]);
    assert_eq!(names(&room.forget(&name("urgent"))), ["a1"]);
    assert_eq!(names(&room.forget(&name("a1"))), ["a"], "the other namespace");
    assert_eq!(names(&room.forget(&Name::new("other", "a"))), ["a2"]);
}

#[test]
fn a_pod_that_asks_again_keeps_its_place_and_one_that_waits_its_time() {
    let now = Instant::now();
    let mut room = WaitingRoom::new(2);
    let shape: Shape = "a".into();
    for _ in 0..3 {
        assert_eq!(room.ask(&shape, request("p"), now).waits, None);
    }
    assert_eq!(room.ask(&shape, request("q"), now).waits, Some(Duration::ZERO));
    assert!(room.take_late(now).is_empty());
    let later = now + LONG_WAIT;
    assert_eq!(room.take_late(later), [name("q")]);
    assert!(room.take_late(later).is_empty());
    assert_eq!(room.ask(&shape, request("q"), later).waits, Some(LONG_WAIT));
    // Another pod of that name asks for something else.
    assert_eq!(room.ask(&"b".into(), request("q"), later).waits, None);
    assert_eq!((room.placed(), room.waiting()), (2, 0));
}

#[test]
fn a_gang_has_places_for_all_of_its_pods() {
    let mut room = WaitingRoom::new(4);
    assert_eq!(flood(&mut room, "a", 1), 1);
    for index in 0..4 {
        assert!(ask(&mut room, "g", member(&format!("g{index}"), "train", 4)));
    }
    assert!(!ask(&mut room, "g", member("g4", "train", 4)), "it has started");
    assert!(!ask(&mut room, "b", request("b0")), "the room is full");
    for index in 0..4 {
        room.observe(&name(&format!("g{index}")), OnHost::Placed);
    }
    assert_eq!((room.taken, room.waiting()), (3, 0), "a0, g4 and b0");
}

#[test]
fn members_that_wait_come_with_the_first_one() {
    let mut room = WaitingRoom::new(2);
    assert_eq!(flood(&mut room, "a", 1) + flood(&mut room, "b", 1), 2);
    // They may ask for different things.
    for (shape, of) in [("leader", "m0"), ("worker", "m1"), ("worker", "m2")] {
        assert!(!ask(&mut room, shape, member(of, "train", 2)));
    }
    let admitted = room.observe(&name("a0"), OnHost::Placed);
    assert_eq!(names(&admitted), ["m0", "m1"], "as many as start together");
    assert_eq!(room.waiting(), 1);
}

#[test]
fn gangs_that_are_created_at_the_same_time_all_become_complete() {
    let mut room = WaitingRoom::new(100);
    let mut begun = [0; 10];
    for index in 0..30 {
        for (gang, members) in begun.iter_mut().enumerate() {
            let of = format!("{gang}-{index}");
            let (shape, gang) = (format!("g{gang}"), format!("gang{gang}"));
            *members += usize::from(ask(&mut room, &shape, member(&of, &gang, 30)));
        }
    }
    // Each takes the places of 30 pods from its first pod on: the fourth begins with the last ten.
    assert_eq!(begun, [30, 30, 30, 30, 0, 0, 0, 0, 0, 0]);
    for index in 0..30 {
        room.observe(&name(&format!("0-{index}")), OnHost::Placed);
    }
    assert_eq!(room.placed(), 4 * 30, "the next one has begun");
}

#[test]
fn gangs_exceed_the_limit_by_one_and_a_half_times_at_most() {
    let mut room = WaitingRoom::new(100);
    assert_eq!(flood(&mut room, "a", 49), 49);
    for index in 0..200 {
        for gang in 0..20 {
            let (of, shape, gang) = (format!("{gang}-{index}"), format!("g{gang}"), format!("gang{gang}"));
            ask(&mut room, &shape, member(&of, &gang, 10_000));
        }
    }
    assert_eq!(room.placed(), 49 + 2 * 100);
}

#[test]
fn the_replacement_of_a_pod_of_a_gang_takes_one_place() {
    let mut room = WaitingRoom::new(4);
    let shape: Shape = "g".into();
    for index in 0..4 {
        room.restore(&shape, member(&format!("g{index}"), "train", 4), OnHost::Placed);
    }
    assert_eq!(room.taken, 0);
    assert!(room.observe(&name("g0"), OnHost::Gone).is_empty());
    assert!(ask(&mut room, "g", member("new", "train", 4)));
    assert_eq!(room.taken, 1);
    for of in ["new", "g1", "g2", "g3"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_restarted_syncer_counts_what_is_on_the_host_and_knows_gangs() {
    let mut room = WaitingRoom::new(4);
    let shape: Shape = "g".into();
    for index in 0..6 {
        room.restore(&shape, request(&format!("p{index}")), OnHost::Waiting);
    }
    room.restore(&shape, request("runs"), OnHost::Placed);
    room.restore(&shape, member("m0", "train", 2), OnHost::Waiting);
    assert!(!room.knows(&name("runs")));
    assert!(!ask(&mut room, "other", request("other")), "there are more than may be");
    assert!(ask(&mut room, "g", member("m1", "train", 2)));
    for index in 0..6 {
        room.observe(&name(&format!("p{index}")), OnHost::Placed);
    }
    for of in ["other", "m0", "m1"] {
        room.observe(&name(of), OnHost::Waiting);
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_pod_whose_creation_had_no_answer_waits_no_more_once_it_is_on_the_host() {
    for (on_host, expected) in [
        (OnHost::Waiting, (2, 0)),
        (OnHost::Placed, (1, 0)),
        // An earlier pod of the name is gone.
        (OnHost::Gone, (1, 1)),
    ] {
        let mut room = WaitingRoom::new(1);
        assert_eq!(flood(&mut room, "a", 2), 1);
        room.observe(&name("a1"), on_host);
        assert_eq!((room.placed(), room.waiting()), expected, "{on_host:?}");
    }
}

#[test]
fn a_pod_whose_host_pod_is_replaced_keeps_its_place() {
    let mut room = WaitingRoom::new(1);
    assert_eq!(flood(&mut room, "a", 2), 1);
    assert!(room.observe(&name("a0"), OnHost::Gone).is_empty());
    assert!(ask(&mut room, "a", request("a0")), "it is created again");
    room.observe(&name("a0"), OnHost::Gone);
    // Another pod of that name asks for something else.
    assert!(!ask(&mut room, "b", request("a0")), "a1 was first");
    assert_eq!(names(&room.forget(&name("a1"))), ["a0"]);
    assert!(room.forget(&name("a0")).is_empty() && is_clean(&room));
}

#[test]
fn a_pod_that_waits_for_something_else_lends_its_place_but_not_that_of_its_gang() {
    let mut room = WaitingRoom::new(2);
    let now = Instant::now();
    assert_eq!(room.ask(&"a".into(), request("claims"), now).waits, None);
    assert_eq!(room.ask(&"g".into(), member("m0", "train", 2), now).waits, None);
    assert!(!ask(&mut room, "b", request("plain")));
    assert!(room.lend(&name("m0")).is_empty());
    assert_eq!(names(&room.lend(&name("claims"))), ["plain"]);
    assert!(!ask(&mut room, "a", request("claims")), "it asks again");
    assert!(room.lend(&name("claims")).is_empty() && !room.knows(&name("claims")));
}

#[test]
fn members_that_have_succeeded_are_not_missing() {
    let mut room = WaitingRoom::new(8);
    for index in 0..4 {
        assert!(ask(&mut room, "g", member(&format!("g{index}"), "train", 4)));
        room.observe(&name(&format!("g{index}")), OnHost::Placed);
    }
    room.observe(&name("g0"), OnHost::Ended);
    assert!(ask(&mut room, "g", member("new", "train", 4)));
    assert_eq!(room.taken, 1, "three run or have succeeded");
    for of in ["new", "g1", "g2", "g3"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_gang_that_becomes_known_or_has_another_size_takes_other_places() {
    let mut room = WaitingRoom::new(4);
    let gang = |size| Gang {
        name: name("train"),
        size,
    };
    assert!(ask(&mut room, "g", member("m0", "train", 4)));
    assert_eq!(flood(&mut room, "a", 1) + flood(&mut room, "b", 1), 2);
    assert!(!ask(&mut room, "c", request("c0")), "a place is kept for m1");
    assert_eq!(names(&room.regroup(&name("m0"), Some(&gang(1)))), ["c0"]);
    assert!(room.regroup(&name("m0"), None).is_empty() && room.gangs.is_empty());
    assert!(!ask(&mut room, "d", request("d0")));
    assert!(room.regroup(&name("m0"), Some(&gang(2))).is_empty());
    assert_eq!(names(&room.regroup(&name("d0"), Some(&gang(2)))), ["d0"]);
    room.restore(&"g".into(), member("runs", "train", 2), OnHost::Placed);
    assert!(room.regroup(&name("runs"), None).is_empty() && !room.knows(&name("runs")));
    for of in ["m0", "a0", "b0", "c0", "d0"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_pod_that_asks_and_says_that_its_gang_is_smaller_lets_others_in() {
    let mut room = WaitingRoom::new(4);
    assert!(ask(&mut room, "g", member("m0", "train", 4)));
    assert_eq!(flood(&mut room, "a", 1) + flood(&mut room, "b", 1), 2);
    assert!(!ask(&mut room, "c", request("c0")));
    let answer = room.ask(&"g".into(), member("m1", "train", 1), Instant::now());
    assert_eq!(names(&answer.admitted), ["c0"]);
    assert_eq!((answer.waits, room.taken), (Some(Duration::ZERO), 4));
}
