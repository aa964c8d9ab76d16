use super::{of_gang::PATIENCE, *};
use crate::engine::{
    test_requests::{member, name, request},
    window::LONG_WAIT,
};

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
fn a_gang_has_places_for_all_of_its_pods() {
    let mut room = room(4);
    assert_eq!(flood(&mut room, "a", 1), 1);
    for index in 0..3 {
        assert!(
            !ask(&mut room, "g", member(&format!("g{index}"), "g", 4)),
            "one is missing"
        );
    }
    assert!(ask(&mut room, "g", member("g3", "g", 4)));
    assert_eq!((room.placed(), room.waiting()), (5, 0), "all of them");
    assert!(!ask(&mut room, "g", member("g4", "g", 4)), "it has started");
    assert!(!ask(&mut room, "b", request("b0")), "the room is full");
    for index in 0..4 {
        room.observe(&name(&format!("g{index}")), OnHost::Placed);
    }
    assert_eq!((room.taken(), room.waiting()), (3, 0), "a0, g4 and b0");
}

#[test]
fn members_that_wait_come_with_the_first_one() {
    let mut room = room(2);
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
    let mut room = room(100);
    for index in 0..30 {
        for gang in 0..10 {
            let (of, gang) = (format!("{gang}-{index}"), format!("gang{gang}"));
            ask(&mut room, &gang, member(&of, &gang, 30));
        }
    }
    // The first one has begun within half of the room. The others begin when they are complete, the last of them with one free place.
    assert_eq!((room.placed(), room.kept), (4 * 30, 0));
    for gang in 0..10_usize {
        let placed: Vec<_> = room.gangs.values().map(|of_gang| of_gang.placed).collect();
        assert_eq!(
            placed.iter().filter(|placed| **placed == 30).count(),
            (10 - gang).min(4)
        );
        assert_eq!(placed.iter().sum::<usize>(), 30 * (10 - gang).min(4), "none has a part");
        for index in 0..30 {
            room.observe(&name(&format!("{gang}-{index}")), OnHost::Placed);
        }
    }
    assert_eq!((room.placed(), room.waiting()), (0, 0));
}

#[test]
fn gangs_exceed_the_limit_by_as_many_pods_as_there_are_places_at_most() {
    let mut room = room(100);
    assert_eq!(flood(&mut room, "a", 50) + flood(&mut room, "b", 49), 99);
    assert!(ask_all(&mut room, "first", 100), "one place is free");
    assert!(!ask_all(&mut room, "second", 100));
    assert!(!ask(&mut room, "c", request("c0")));
    assert_eq!(room.placed(), 199);
}

#[test]
fn a_gang_that_is_larger_than_the_room_takes_no_more_than_others() {
    let mut room = room(100);
    for index in 0..200 {
        for gang in 0..20 {
            let (of, gang) = (format!("{gang}-{index}"), format!("gang{gang}"));
            ask(&mut room, &gang, member(&of, &gang, 10_000));
        }
    }
    assert_eq!((room.placed(), room.kept), (100, 0));
}

#[test]
fn a_gang_that_grows_after_it_has_begun_takes_no_more_than_others() {
    let mut room = room(100);
    for gang in 0..15 {
        let gang = format!("gang{gang}");
        assert!(ask(&mut room, &gang, member(&format!("{gang}-first"), &gang, 1)));
    }
    for gang in 0..15 {
        for index in 0..99 {
            let (of, gang) = (format!("{gang}-{index}"), format!("gang{gang}"));
            ask(&mut room, &gang, member(&of, &gang, 100));
        }
    }
    assert!(room.placed() < 200, "{} pods", room.placed());
}

#[test]
fn a_member_that_had_a_node_and_is_created_again_needs_a_place() {
    let mut room = room(2);
    for index in 0..9 {
        room.restore(&"g".into(), member(&format!("g{index}"), "g", 9), OnHost::Placed);
    }
    // Nobody has seen yet that they are gone.
    let again = (0..9).filter(|index| ask(&mut room, "g", member(&format!("g{index}"), "g", 9)));
    assert_eq!(again.count(), 2);
    assert_eq!((room.placed(), room.waiting()), (2, 7));
}

#[test]
fn two_pods_keep_places_for_others_within_half_of_the_room_and_for_a_while() {
    let mut room = room(1000);
    let (start, shape): (_, Shape) = (Instant::now(), "stuck".into());
    for (gang, size) in [("a", 1000), ("b", 400), ("c", 400)] {
        let answer = room.ask(&shape, member(gang, gang, size), start);
        assert_eq!(answer.waits.is_none(), gang == "b", "{gang}");
    }
    assert_eq!((room.placed(), room.kept), (1, 399));
    assert_eq!(flood(&mut room, "d", 1000) + flood(&mut room, "e", 1000), 600);
    assert_eq!(room.check(start).admitted, []);
    // Nobody else of their gangs has come: these wait no more, and others have the places.
    let admitted = room.check(start + PATIENCE).admitted;
    assert_eq!((room.placed(), room.kept, admitted.len()), (1000, 0, 399));
    assert!(admitted.contains(&name("a")), "it comes to its turn");
    assert!(!ask(&mut room, "stuck", member("b1", "b", 400)), "it has had its time");
    // Nor does another size give it time anew.
    assert!(room.regroup(&name("b"), member("b", "b", 1).gang.as_ref()).is_empty());
    assert!(room.regroup(&name("b"), member("b", "b", 400).gang.as_ref()).is_empty());
    assert_eq!(room.kept, 0);
}

#[test]
fn where_users_have_limits_no_more_places_are_kept_than_one_user_may_have() {
    let mut room = WaitingRoom::new(1000, Some(100));
    assert!(ask(&mut room, "a", member("a0", "a", 90)));
    assert!(!ask(&mut room, "b", member("b0", "b", 90)));
    assert_eq!((room.placed(), room.kept), (1, 89));
    // So many pods of a gang never come here together.
    assert!(ask(&mut room, "c", member("c0", "c", 150)));
    assert_eq!((room.placed(), room.kept), (2, 89));
}

#[test]
fn a_leader_comes_first_and_its_workers_together() {
    let mut room = room(10);
    assert_eq!(flood(&mut room, "a", 3) + flood(&mut room, "b", 3), 6);
    let start = Instant::now();
    let answer = room.ask(&"leader".into(), member("leader", "g", 4), start);
    assert!(answer.waits.is_some(), "it does not know that others come later");
    assert!(room.check(start + PATIENCE / 2).admitted.is_empty());
    assert_eq!(names(&room.check(start + PATIENCE).admitted), ["leader"]);
    room.observe(&name("leader"), OnHost::Placed);
    assert!(!ask(&mut room, "worker", member("w0", "g", 4)) && !ask(&mut room, "worker", member("w1", "g", 4)));
    assert!(ask(&mut room, "worker", member("w2", "g", 4)));
    assert_eq!((room.placed(), room.waiting()), (9, 0));
}

#[test]
fn the_places_of_workers_are_kept_while_their_leader_starts() {
    let mut room = room(100);
    assert!(ask(&mut room, "leader", member("leader", "g", 8)));
    room.observe(&name("leader"), OnHost::Placed);
    assert_eq!(flood(&mut room, "a", 60) + flood(&mut room, "b", 60), 93);
    assert!(ask(&mut room, "worker", member("w0", "g", 8)));
    assert_eq!((room.taken(), room.kept), (100, 6));
}

#[test]
fn the_place_of_a_member_is_kept_for_its_replacement() {
    let mut room = room(4);
    assert!(ask_all(&mut room, "g", 4));
    let start = Instant::now();
    for replaced in ["g0", "g1"] {
        assert!(room.observe(&name(replaced), OnHost::Ended).is_empty());
    }
    assert!(!ask(&mut room, "a", request("a0")));
    assert!(ask(&mut room, "g", member("new", "g", 4)));
    assert!(room.check(start).admitted.is_empty());
    assert_eq!(
        names(&room.check(start + PATIENCE).admitted),
        ["a0"],
        "none has come for g1"
    );
}

#[test]
fn gangs_that_each_have_a_part_of_the_room_are_completed_once_nothing_moves() {
    let mut room = room(4);
    for of in ["a0", "a1", "b0", "b1"] {
        room.restore(&"g".into(), member(of, &of[..1], 3), OnHost::Waiting);
    }
    assert!(!ask(&mut room, "g", member("a2", "a", 3)) && !ask(&mut room, "g", member("b2", "b", 3)));
    let start = Instant::now();
    assert_eq!(room.check(start), Checked::default());
    assert!(room.check(start + PATIENCE / 2).admitted.is_empty());
    assert_eq!(names(&room.check(start + PATIENCE).admitted), ["a2", "b2"]);
    assert_eq!((room.placed(), room.waiting()), (6, 0));
}

#[test]
fn a_pod_that_is_created_again_and_again_does_not_put_off_the_end_of_a_stall() {
    let mut room = room(4);
    for of in ["a0", "a1", "b0", "b1"] {
        room.restore(&"g".into(), member(of, &of[..1], 3), OnHost::Waiting);
    }
    assert!(!ask(&mut room, "g", member("a2", "a", 3)) && !ask(&mut room, "g", member("b2", "b", 3)));
    let start = Instant::now();
    assert_eq!(room.check(start), Checked::default());
    // Its node is cordoned, and it moves to another gang and back.
    for _ in 0..2 {
        for on_host in [OnHost::Gone, OnHost::Waiting] {
            assert!(room.observe(&name("a0"), on_host).is_empty());
        }
        for gang in ["other", "a"] {
            let gang = member("a0", gang, 3).gang;
            assert!(room.regroup(&name("a0"), gang.as_ref()).is_empty());
        }
        assert!(room.check(start + PATIENCE / 2).admitted.is_empty());
    }
    assert_eq!(names(&room.check(start + PATIENCE).admitted), ["b2", "a2"]);
}

#[test]
fn while_places_become_free_no_gang_is_completed_beyond_the_limit() {
    let mut room = room(4);
    for of in ["a0", "a1", "b0"] {
        room.restore(&"g".into(), member(of, &of[..1], 3), OnHost::Waiting);
    }
    assert!(ask(&mut room, "c", request("c0")) && !ask(&mut room, "d", request("d0")));
    assert!(!ask(&mut room, "g", member("a2", "a", 3)));
    let start = Instant::now();
    assert_eq!(room.check(start), Checked::default());
    // The place goes to another pod at once.
    let admitted = room.observe(&name("c0"), OnHost::Placed);
    assert_eq!(admitted.len(), 1);
    assert!(room.check(start + PATIENCE).admitted.is_empty());
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
