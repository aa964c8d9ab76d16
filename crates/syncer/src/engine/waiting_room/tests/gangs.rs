//! Which places gangs get, keep for members that are missing, and give back.

use super::*;

/// The pod of a number in a gang of so many asks for a place. Returns whether it has one.
fn ask_of_gang(room: &mut WaitingRoom, gang: usize, index: usize, size: usize) -> bool {
    let (of, gang) = (format!("{gang}-{index}"), format!("gang{gang}"));
    ask(room, &gang, member(&of, &gang, size))
}

/// So many pods of each of so many gangs ask, and the gangs take turns.
fn flood_gangs(room: &mut WaitingRoom, gangs: usize, pods: usize, size: usize) {
    for index in 0..pods {
        for gang in 0..gangs {
            ask_of_gang(room, gang, index, size);
        }
    }
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
fn members_that_need_no_place_are_known_and_take_none() {
    let mut room = room(4);
    let launcher = name("launcher");
    let gang = member("launcher", "g", 5).gang;
    assert!(room.exempt(&launcher, gang.as_ref()).is_empty());
    for index in 0..3 {
        let worker = member(&format!("g{index}"), "g", 5);
        assert!(!ask(&mut room, "g", worker), "one is missing");
    }
    assert!(ask(&mut room, "g", member("g3", "g", 5)));
    for on_host in [OnHost::Waiting, OnHost::Placed, OnHost::Gone] {
        assert!(room.observe(&launcher, on_host).is_empty());
        assert!(room.knows(&launcher) && room.taken() == 4);
    }
    for of in ["launcher", "g0", "g1", "g2", "g3"] {
        room.observe(&name(of), OnHost::Ended);
    }
    assert!(is_clean(&room));
}

#[test]
fn a_pod_that_needs_no_place_any_more_leaves_it_to_others() {
    let mut room = room(1);
    assert!(ask(&mut room, "a", request("p")));
    assert!(!ask(&mut room, "b", request("q")));
    assert_eq!(names(&room.exempt(&name("p"), None)), ["q"]);
    assert!(!room.knows(&name("p")));
    let gang = member("p", "g", 2).gang;
    assert!(room.exempt(&name("p"), gang.as_ref()).is_empty());
    assert!(!ask(&mut room, "a", request("p")), "it is another pod");
    for of in ["q", "p"] {
        room.forget(&name(of));
    }
    assert!(is_clean(&room));
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
    flood_gangs(&mut room, 10, 30, 30);
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
    flood_gangs(&mut room, 20, 200, 10_000);
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
            ask_of_gang(&mut room, gang, index, 100);
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
fn places_that_other_pods_could_have_are_kept_for_seconds() {
    let (mut room, start) = (room(8), Instant::now());
    assert!(ask(&mut room, "g", member("g0", "g", 4)));
    assert_eq!(
        flood(&mut room, "a", 5),
        4,
        "half of the places are for those that are alike"
    );
    let later = start + PATIENCE_OF_OTHERS;
    for now in [start, later] {
        assert!(room.check(now).admitted.is_empty() && room.kept == 3);
    }
    assert!(!ask(&mut room, "c", request("c0")));
    assert_eq!(names(&room.check(later).admitted), ["c0"]);
    assert_eq!((room.placed, room.kept), (6, 0));
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
