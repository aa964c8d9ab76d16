use super::{
    of_gang::{PATIENCE, PATIENCE_OF_OTHERS},
    *,
};
use crate::engine::{
    test_requests::{member, name, request},
    window::LONG_WAIT,
};

mod gangs;

fn names(admitted: &[Name]) -> Vec<&str> {
    admitted.iter().map(|name| &*name.name).collect()
}

/// A room of a tenant whose users have no limits.
fn room(most: usize) -> WaitingRoom {
    WaitingRoom::new(most, None)
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

/// All pods of a gang of so many ask one after another. Returns whether the last one has a place.
fn ask_all(room: &mut WaitingRoom, gang: &str, size: usize) -> bool {
    let mut ask_one = |index: usize| ask(room, gang, member(&format!("{gang}{index}"), gang, size));
    (0..size).fold(false, |_, index| ask_one(index))
}

/// Nothing is left behind that grows.
pub(super) fn is_clean(room: &WaitingRoom) -> bool {
    let counts_nothing = room.placed == 0 && room.kept == 0 && room.shapes.is_empty();
    let nobody_waits = room.lines.is_empty() && room.order.is_empty() && room.gathering.is_empty();
    counts_nothing && nobody_waits && room.gangs.is_empty() && room.pods.is_empty()
}

#[test]
fn half_of_the_places_are_for_pods_that_are_alike() {
    let mut room = room(10);
    assert_eq!(flood(&mut room, "a", 20), 5);
    assert_eq!(flood(&mut room, "b", 3), 3);
    assert_eq!(flood(&mut room, "c", 20), 2);
    assert_eq!((room.placed(), room.waiting()), (10, 33));
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["a5"]);
    assert_eq!(
        names(&room.observe(&name("b0"), OnHost::Ended)),
        ["c2"],
        "they take turns"
    );
    assert_eq!(room.placed(), 10);
}

#[test]
fn one_place_is_enough_to_go_on() {
    let mut room = room(1);
    assert_eq!(flood(&mut room, "a", 3), 1);
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["a1"]);
    assert_eq!(names(&room.forget(&name("a1"))), ["a2"], "it was not created");
    assert!(room.forget(&name("a2")).is_empty());
    assert!(is_clean(&room));
}

#[test]
fn higher_priorities_come_first_and_then_namespaces_take_turns() {
    let mut room = room(2);
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
    let mut room = room(2);
    let shape: Shape = "a".into();
    for _ in 0..3 {
        assert_eq!(room.ask(&shape, request("p"), now).waits, None);
    }
    assert_eq!(room.ask(&shape, request("q"), now).waits, Some(Duration::ZERO));
    assert!(room.check(now).late.is_empty());
    let later = now + LONG_WAIT;
    assert_eq!(room.check(later).late, [name("q")]);
    assert_eq!(room.check(later), Checked::default());
    assert_eq!(room.ask(&shape, request("q"), later).waits, Some(LONG_WAIT));
    // Another pod of that name asks for something else.
    assert_eq!(room.ask(&"b".into(), request("q"), later).waits, None);
    assert_eq!((room.placed(), room.waiting()), (2, 0));
}

#[test]
fn a_pod_waits_for_a_turn_of_each_other_namespace_and_shape_at_most() {
    let mut room = room(4);
    assert_eq!(flood(&mut room, "stuck", 2) + flood(&mut room, "zz", 2), 4);
    assert!(room.observe(&name("zz1"), OnHost::Ended).is_empty());
    assert!(ask(&mut room, "circulates", request("circulates")));
    assert!(!ask(&mut room, "zz", request("zz2")), "one that is alike has a place");
    let other = Request {
        name: Name::new("other", "other"),
        ..request("")
    };
    assert!(!ask(&mut room, "zzz", other));
    let (mut current, mut admitted) = (name("circulates"), Vec::new());
    for index in 0..3 {
        // Each asks for something else, and of none a pod has a place.
        assert!(!ask(&mut room, &format!("a{index}"), request(&format!("a{index}"))));
        let next = room.observe(&current, OnHost::Placed);
        assert_eq!(next.len(), 1);
        current = next[0].clone();
        admitted.extend(next);
    }
    assert_eq!(names(&admitted), ["zz2", "other", "a0"]);
}

#[test]
fn the_replacement_of_a_pod_of_a_gang_takes_one_place() {
    let mut room = room(4);
    let shape: Shape = "g".into();
    for index in 0..4 {
        room.restore(&shape, member(&format!("g{index}"), "train", 4), OnHost::Placed);
    }
    assert_eq!(room.taken(), 0);
    assert!(room.observe(&name("g0"), OnHost::Gone).is_empty());
    assert!(ask(&mut room, "g", member("new", "train", 4)));
    assert_eq!(room.taken(), 1);
    for of in ["new", "g1", "g2", "g3"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_restarted_syncer_counts_what_is_on_the_host_and_knows_gangs() {
    let mut room = room(4);
    let shape: Shape = "g".into();
    for index in 0..6 {
        room.restore(&shape, request(&format!("p{index}")), OnHost::Waiting);
    }
    room.restore(&shape, request("runs"), OnHost::Placed);
    room.restore(&shape, member("m0", "train", 2), OnHost::Waiting);
    assert!(!room.knows(&name("runs")));
    assert!(!ask(&mut room, "other", request("other")), "there are more than may be");
    assert!(
        !ask(&mut room, "g", member("m1", "train", 2)),
        "its gang is complete in its turn"
    );
    for index in 0..6 {
        room.observe(&name(&format!("p{index}")), OnHost::Placed);
    }
    assert_eq!((room.placed(), room.waiting()), (3, 0));
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
        let mut room = room(1);
        assert_eq!(flood(&mut room, "a", 2), 1);
        room.observe(&name("a1"), on_host);
        assert_eq!((room.placed(), room.waiting()), expected, "{on_host:?}");
    }
}

#[test]
fn a_pod_whose_host_pod_is_replaced_keeps_its_place() {
    let mut room = room(1);
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
    let mut room = room(8);
    let now = Instant::now();
    assert_eq!(room.ask(&"a".into(), request("claims"), now).waits, None);
    assert_eq!(room.ask(&"g".into(), member("m0", "train", 2), now).waits, None);
    assert_eq!(
        flood(&mut room, "b", 4) + flood(&mut room, "c", 1),
        5,
        "a place is kept for m1"
    );
    assert!(!ask(&mut room, "d", request("plain")));
    assert!(room.lend(&name("m0")).is_empty());
    assert_eq!(names(&room.lend(&name("claims"))), ["plain"]);
    assert!(room.knows(&name("claims")) && !room.is_waiting(&name("claims")));
    assert!(room.observe(&name("claims"), OnHost::Gone).is_empty() && room.has_lent(&name("claims")));
    assert!(room.forget(&name("claims")).is_empty() && !room.knows(&name("claims")));
}

#[test]
fn a_pod_that_has_lent_its_place_gets_the_next_one() {
    let mut room = room(4);
    assert!(ask(&mut room, "stuck", request("stuck")) && flood(&mut room, "b", 2) == 2);
    let now = Instant::now();
    assert_eq!(room.ask(&"a".into(), request("claims"), now).waits, None);
    for of in ["c0", "c1"] {
        assert!(!ask(&mut room, "c", request(of)));
    }
    let mut current = room.lend(&name("claims"));
    assert_eq!(names(&current), ["c0"]);
    // Again and again it waits for something else, and comes back.
    for next in ["c1", "c2"] {
        assert!(!ask(&mut room, "a", request("claims")), "it asks again");
        assert!(room.is_waiting(&name("claims")) && room.lend(&name("claims")).is_empty());
        ask(&mut room, "c", request(next));
        assert_eq!(names(&room.observe(&current[0], OnHost::Placed)), ["claims"]);
        current = room.lend(&name("claims"));
        assert_eq!(names(&current), [next]);
    }
}

#[test]
fn pods_that_come_back_for_their_places_take_turns_with_others() {
    let (mut room, now) = (room(4), Instant::now());
    // They come while the room is empty, and have to wait for requests.
    for of in ["c0", "c1", "c2"] {
        assert_eq!(room.ask(&of.into(), request(of), now).waits, None);
        assert!(room.lend(&name(of)).is_empty());
    }
    for of in ["a0", "a1", "a2", "a3"] {
        assert!(ask(&mut room, of, request(of)));
    }
    for of in ["d0", "d1"] {
        let urgent = Request {
            priority: 100,
            ..request(of)
        };
        assert!(!ask(&mut room, of, urgent));
    }
    for of in ["c0", "c1", "c2"] {
        assert!(!ask(&mut room, of, request(of)), "it has its requests");
    }
    let mut current = name("a0");
    for expected in ["c0", "d0", "c1", "d1", "c2"] {
        let next = room.observe(&current, OnHost::Placed);
        assert_eq!(names(&next), [expected]);
        current = next[0].clone();
    }
}

#[test]
fn users_with_limits_take_turns_in_their_namespace() {
    let mut room = WaitingRoom::new(4, Some(100));
    let ask_of = |room: &mut WaitingRoom, user: &str, of: &str| {
        let request = Request {
            user: Some(user.into()),
            ..request(of)
        };
        ask(room, of, request)
    };
    for index in 0..4 {
        assert!(ask_of(&mut room, "alice", &format!("a{index}")));
    }
    // Each asks the scheduler for something else.
    for index in 4..40 {
        assert!(!ask_of(&mut room, "alice", &format!("a{index}")));
    }
    assert!(!ask_of(&mut room, "bob", "b0") && !ask_of(&mut room, "bob", "b1"));
    let mut current = name("a0");
    for expected in ["a4", "b0", "a5", "b1", "a6"] {
        let next = room.observe(&current, OnHost::Placed);
        assert_eq!(names(&next), [expected]);
        current = next[0].clone();
    }
}

#[test]
fn a_pod_that_has_lent_its_place_leaves_half_of_them_to_others_as_well() {
    let mut room = room(4);
    let now = Instant::now();
    assert_eq!(room.ask(&"a".into(), request("claims"), now).waits, None);
    assert!(room.lend(&name("claims")).is_empty());
    assert_eq!(flood(&mut room, "a", 3), 2);
    assert!(!ask(&mut room, "a", request("claims")));
    assert!(ask(&mut room, "b", request("b0")));
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["claims"]);
}

#[test]
fn members_that_have_succeeded_are_not_missing() {
    let mut room = room(8);
    for index in 0..4 {
        assert!(ask(&mut room, "g", member(&format!("g{index}"), "train", 4)));
        room.observe(&name(&format!("g{index}")), OnHost::Placed);
    }
    room.observe(&name("g0"), OnHost::Ended);
    assert!(ask(&mut room, "g", member("new", "train", 4)));
    assert_eq!(room.taken(), 1, "three run or have succeeded");
    for of in ["new", "g1", "g2", "g3"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_gang_that_becomes_known_or_has_another_size_takes_other_places() {
    let mut room = room(8);
    let gang = |size| Gang {
        name: name("train"),
        size,
    };
    assert!(ask(&mut room, "g", member("m0", "train", 4)));
    assert_eq!(flood(&mut room, "a", 4), 4);
    assert!(!ask(&mut room, "c", request("c0")), "places are kept for others");
    assert_eq!(names(&room.regroup(&name("m0"), Some(&gang(1)))), ["c0"]);
    assert!(room.regroup(&name("m0"), None).is_empty() && room.gangs.is_empty());
    assert_eq!(flood(&mut room, "d", 2), 2);
    assert!(!ask(&mut room, "e", request("e0")));
    assert!(room.regroup(&name("m0"), Some(&gang(2))).is_empty());
    assert!(room.regroup(&name("e0"), Some(&gang(2))).is_empty());
    assert_eq!(names(&room.observe(&name("a0"), OnHost::Placed)), ["e0"]);
    room.restore(&"g".into(), member("runs", "train", 2), OnHost::Placed);
    assert!(room.regroup(&name("runs"), None).is_empty() && !room.knows(&name("runs")));
    for of in ["m0", "a1", "a2", "a3", "c0", "d0", "d1", "e0"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn places_are_not_kept_for_a_member_that_is_found_to_run() {
    let mut room = room(8);
    assert!(ask(&mut room, "g", member("m0", "train", 4)));
    assert_eq!(flood(&mut room, "a", 4), 4);
    assert!(!ask(&mut room, "c", request("c0")), "three are kept");
    let admitted = room.restore(&"g".into(), member("runs", "train", 4), OnHost::Placed);
    assert_eq!(names(&admitted), ["c0"]);
}

#[test]
fn a_pod_that_asks_and_says_that_its_gang_is_smaller_lets_others_in() {
    let mut room = room(8);
    assert!(ask(&mut room, "g", member("m0", "train", 4)));
    assert_eq!(flood(&mut room, "a", 4), 4);
    assert!(!ask(&mut room, "c", request("c0")));
    let answer = room.ask(&"g".into(), member("m1", "train", 1), Instant::now());
    assert_eq!(names(&answer.admitted), ["c0"]);
    assert_eq!((answer.waits, room.taken()), (None, 7));
}
