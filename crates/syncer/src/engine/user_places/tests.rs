use super::*;
use crate::engine::test_requests::{member, name, request};

fn names(of: &[&str]) -> Vec<Name> {
    of.iter().map(|of| name(of)).collect()
}

/// Asks for a pod whose name says how old it is.
fn ask(places: &mut UserPlaces, user: &str, request: Request) -> Answer {
    let created = request.name.name.to_string();
    places.ask(&user.into(), &created, request, Instant::now())
}

/// Whether a pod that asks has a place.
fn enters(places: &mut UserPlaces, user: &str, of: &str) -> bool {
    ask(places, user, request(of)).waits.is_none()
}

const COUNTED_LATER: OnHost = OnHost::Gated { exceeds_limit: false };
const BEYOND_LIMIT: OnHost = OnHost::Gated { exceeds_limit: true };

#[test]
fn pods_of_one_user_leave_places_to_others() {
    let mut places = UserPlaces::new(2);
    assert!(enters(&mut places, "alice", "a1") && enters(&mut places, "alice", "a2"));
    assert!(!enters(&mut places, "alice", "a3") && !enters(&mut places, "alice", "a4"));
    assert!(enters(&mut places, "bob", "b1"));
    assert!(enters(&mut places, "alice", "a1"), "it asks again");
    assert_eq!(places.observe(&name("a1"), COUNTED_LATER), []);
    assert_eq!(places.observe(&name("a1"), OnHost::Started), names(&["a3"]));
    assert_eq!(places.observe(&name("a1"), OnHost::Gone), [], "its place is given");
    assert_eq!(places.forget(&name("a2")), names(&["a4"]), "it was not created");
    assert!(!places.knows(&name("a1")) && !places.knows(&name("a2")));
    assert!(enters(&mut places, "alice", "a3") && enters(&mut places, "alice", "a4"));
}

#[test]
fn the_most_important_and_then_the_oldest_is_next() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "first"));
    for (of, priority, created) in [
        ("a-younger", 0, "2026-01-01T00:00:02Z"),
        ("z-older", 0, "2026-01-01T00:00:01Z"),
        ("important", 5, "2026-01-01T00:00:03Z"),
    ] {
        let request = Request {
            priority,
            ..request(of)
        };
        let answer = places.ask(&"alice".into(), created, request, Instant::now());
        assert_eq!(answer.waits, Some(Waits { is_late: false }));
    }
    let mut current = name("first");
    for expected in ["important", "z-older", "a-younger"] {
        assert_eq!(places.observe(&current, OnHost::Started), names(&[expected]));
        current = name(expected);
    }
}

#[test]
fn a_pod_that_is_gone_or_on_the_host_already_waits_no_more() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "a1"));
    assert!(!enters(&mut places, "alice", "a2") && !enters(&mut places, "alice", "a3"));
    assert_eq!(
        places.observe(&name("a2"), OnHost::Gone),
        [],
        "an earlier pod of the name"
    );
    assert_eq!(places.forget(&name("a2")), [], "it is gone in the tenant");
    assert_eq!(places.observe(&name("a3"), COUNTED_LATER), [], "the answer was lost");
    assert_eq!(places.forget(&name("a3")), [], "it is on the host");
    assert!(!enters(&mut places, "alice", "a4"));
    assert_eq!(
        places.observe(&name("a3"), OnHost::Ended),
        [],
        "the other has the only place"
    );
    assert_eq!(places.forget(&name("a1")), names(&["a4"]));
    assert_eq!(places.forget(&name("a4")), []);
    assert!(places.users.is_empty() && places.pods.is_empty());
}

#[test]
fn after_a_restart_those_on_the_host_count() {
    let mut places = UserPlaces::new(1);
    for of in ["a1", "a2"] {
        assert_eq!(places.restore(&"alice".into(), request(of), COUNTED_LATER), []);
    }
    assert!(!enters(&mut places, "alice", "a3"));
    assert_eq!(places.observe(&name("a1"), OnHost::Ended), [], "another is there still");
    assert_eq!(places.observe(&name("a2"), OnHost::Started), names(&["a3"]));
}

#[test]
fn pods_say_why_they_wait_once_all_before_them_are_beyond_a_limit() {
    let mut places = UserPlaces::new(2);
    assert!(enters(&mut places, "alice", "a1") && enters(&mut places, "alice", "a2"));
    let now = Instant::now();
    let ask = |places: &mut UserPlaces| places.ask(&"alice".into(), "", request("a3"), now).waits;
    assert_eq!(ask(&mut places), Some(Waits { is_late: false }));
    assert_eq!(places.observe(&name("a1"), BEYOND_LIMIT), []);
    assert_eq!(places.take_late(now + LONG_WAIT), [], "the other may start");
    assert_eq!(places.observe(&name("a2"), BEYOND_LIMIT), []);
    assert_eq!(places.take_late(now), [], "it came now");
    assert_eq!(places.take_late(now + LONG_WAIT), names(&["a3"]));
    assert_eq!(ask(&mut places), Some(Waits { is_late: true }));
    assert_eq!(places.take_late(now + 2 * LONG_WAIT), [], "it has said so");
    assert_eq!(
        places.observe(&name("a1"), COUNTED_LATER),
        [],
        "the limit is higher now"
    );
    assert!(!enters(&mut places, "alice", "a4"));
    assert_eq!(places.take_late(now + 2 * LONG_WAIT), []);
}

/// Whether a member of a gang that asks has a place.
fn joins(places: &mut UserPlaces, of: &str, gang: &str, size: usize) -> bool {
    ask(places, "alice", member(of, gang, size)).waits.is_none()
}

/// A user with so many places, whose gangs of three pods each have one that runs, and whose places are full.
fn full(most: usize, gangs: &[&str]) -> UserPlaces {
    let mut places = UserPlaces::new(most);
    for gang in gangs {
        let first = format!("{gang}-0");
        assert!(joins(&mut places, &first, gang, 3));
        places.observe(&name(&first), COUNTED_LATER);
        places.observe(&name(&first), OnHost::Started);
    }
    for index in 0..most {
        let single = format!("single-{index}");
        assert!(enters(&mut places, "alice", &single));
        places.observe(&name(&single), BEYOND_LIMIT);
    }
    places
}

#[test]
fn a_started_gang_gets_its_other_members_while_the_places_are_full() {
    let mut places = full(2, &["train"]);
    assert!(!enters(&mut places, "alice", "single-2"));
    assert!(joins(&mut places, "train-1", "train", 3) && joins(&mut places, "train-2", "train", 3));
    assert!(!joins(&mut places, "train-3", "train", 3), "the gang has its size");
    assert!(!joins(&mut places, "other-0", "other", 3), "none of it runs");
    let other = ask(&mut places, "bob", member("b1", "train", 3));
    assert_eq!(other.waits, None, "another user has places");
    places.observe(&name("train-1"), OnHost::Started);
    assert_eq!(places.observe(&name("train-1"), OnHost::Started), [], "it runs still");
    assert!(!joins(&mut places, "train-3", "train", 3));
    assert_eq!(
        places.observe(&name("train-0"), OnHost::Gone),
        names(&["train-3"]),
        "it is the replacement of one that ended"
    );
}

#[test]
fn a_gang_that_was_admitted_in_part_is_completed_before_another() {
    let mut places = UserPlaces::new(2);
    for of in ["a0", "a1", "a2", "a3"] {
        assert_eq!(joins(&mut places, of, "a", 4), matches!(of, "a0" | "a1"));
    }
    for of in ["b0", "b1", "b2", "b3"] {
        let important = Request {
            priority: 5,
            ..member(of, "b", 4)
        };
        assert!(ask(&mut places, "alice", important).waits.is_some());
    }
    places.observe(&name("a0"), COUNTED_LATER);
    places.observe(&name("a1"), COUNTED_LATER);
    assert_eq!(places.observe(&name("a0"), OnHost::Started), names(&["b0", "a2", "a3"]));
    assert_eq!(
        places.observe(&name("a1"), OnHost::Started),
        [],
        "three others have places"
    );
    for of in ["a2", "a3"] {
        places.observe(&name(of), COUNTED_LATER);
        places.observe(&name(of), OnHost::Started);
    }
    assert!(places.pods.contains_key(&name("b1")));
    for of in ["a0", "a1", "a2", "a3"] {
        places.observe(&name(of), OnHost::Gone);
    }
    for of in ["b0", "b1", "b2", "b3"] {
        places.observe(&name(of), COUNTED_LATER);
        places.observe(&name(of), OnHost::Ended);
    }
    assert!(places.users.is_empty() && places.pods.is_empty(), "{places:?}");
}

#[test]
fn gangs_do_not_multiply_the_places_of_a_user() {
    let mut places = full(1, &["a", "b", "c"]);
    assert!(joins(&mut places, "a-1", "a", 9));
    assert!(!joins(&mut places, "a-2", "a", 9), "twice as many places are taken");
    assert!(joins(&mut places, "b-1", "b", 9), "each gang has one");
    assert!(!joins(&mut places, "b-2", "b", 9));
    assert!(
        !joins(&mut places, "c-1", "c", 9),
        "three times as many places are taken"
    );
    assert_eq!(places.observe(&name("a-1"), OnHost::Started), names(&["a-2"]));
    assert_eq!(places.observe(&name("b-1"), OnHost::Started), names(&["b-2"]));
}

#[test]
fn a_gang_that_grows_gets_the_members_that_wait() {
    let mut places = full(2, &["train"]);
    assert!(joins(&mut places, "train-1", "train", 2));
    assert!(!joins(&mut places, "train-2", "train", 2));
    assert!(!joins(&mut places, "train-2", "train", 2), "it asks again");
    assert!(joins(&mut places, "train-2", "train", 3));
}

#[test]
fn a_gang_that_grows_gets_all_of_its_members_that_wait() {
    let mut places = full(3, &["train"]);
    assert!(joins(&mut places, "train-1", "train", 2));
    for of in ["train-2", "train-3"] {
        assert!(!joins(&mut places, of, "train", 2));
    }
    let larger = ask(&mut places, "alice", member("train-1", "train", 4));
    assert_eq!(larger.admitted, names(&["train-2", "train-3"]));
}

#[test]
fn after_a_restart_gangs_that_run_are_known() {
    let mut places = UserPlaces::new(1);
    let alice: User = "alice".into();
    places.restore(&alice, member("train-0", "train", 2), OnHost::Started);
    places.restore(&alice, request("single-0"), BEYOND_LIMIT);
    places.restore(&alice, request("single-1"), OnHost::Started);
    assert!(!places.knows(&name("single-1")), "it needs no place, and is no member");
    assert!(joins(&mut places, "train-1", "train", 2));
    assert!(!joins(&mut places, "train-2", "train", 2));
}

#[test]
fn a_gang_that_is_found_to_run_gets_its_members_that_wait() {
    let mut places = full(1, &[]);
    assert!(!joins(&mut places, "train-1", "train", 2), "none of it is known to run");
    let admitted = places.restore(&"alice".into(), member("train-0", "train", 2), OnHost::Started);
    assert_eq!(admitted, names(&["train-1"]));
}

#[test]
fn members_that_have_succeeded_are_not_missing() {
    let mut places = full(1, &["train"]);
    for of in ["train-1", "train-2"] {
        assert!(joins(&mut places, of, "train", 3));
        places.observe(&name(of), OnHost::Started);
        if of == "train-1" {
            assert_eq!(places.observe(&name(of), OnHost::Succeeded), []);
        }
    }
    assert!(
        !joins(&mut places, "train-3", "train", 3),
        "two run, and one has succeeded"
    );
    assert_eq!(places.observe(&name("train-0"), OnHost::Ended), names(&["train-3"]));
    for of in ["train-1", "train-2", "train-3", "single-0"] {
        places.observe(&name(of), OnHost::Ended);
    }
    assert!(places.users.is_empty() && places.pods.is_empty(), "{places:?}");
}

#[test]
fn a_pod_whose_host_pod_is_replaced_keeps_its_place() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "a1") && !enters(&mut places, "alice", "a2"));
    places.observe(&name("a1"), BEYOND_LIMIT);
    assert_eq!(places.observe(&name("a1"), OnHost::Gone), [], "it is created again");
    assert!(enters(&mut places, "alice", "a1") && !enters(&mut places, "alice", "a2"));
    assert_eq!(places.forget(&name("a1")), names(&["a2"]), "it is not");
}

#[test]
fn a_pod_of_another_user_gets_no_place_of_an_earlier_one_of_its_name() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "a1"));
    for of in ["x", "y", "z"] {
        assert!(!enters(&mut places, "alice", of));
    }
    assert!(enters(&mut places, "bob", "x"), "bob has a place");
    assert!(!enters(&mut places, "bob", "y"), "and no other");
    assert_eq!(places.forget(&name("a1")), names(&["z"]), "the others are not of alice");
    assert!(!enters(&mut places, "alice", "last"));
    let answer = ask(&mut places, "bob", request("z"));
    assert_eq!(
        (answer.waits.is_some(), answer.admitted),
        (true, names(&["last"])),
        "the place was of alice"
    );
}

#[test]
fn a_pod_that_is_made_again_is_not_as_old_as_before() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "first"));
    let mut waits = |of: &str, created: &str| {
        let answer = places.ask(&"alice".into(), created, request(of), Instant::now());
        assert!(answer.waits.is_some());
    };
    waits("again", "2026-01-01T00:00:01Z");
    waits("other", "2026-01-01T00:00:02Z");
    waits("again", "2026-01-01T00:00:03Z");
    assert_eq!(places.observe(&name("first"), OnHost::Started), names(&["other"]));
}

#[test]
fn a_pod_counts_for_the_gang_that_it_belongs_to_now() {
    let alice: User = "alice".into();
    let gang = |of: &str| member("", of, 3).gang;
    let mut places = full(1, &["a", "b"]);
    assert!(!enters(&mut places, "alice", "late"));
    let joined = places.regroup(&name("late"), &alice, gang("a").as_ref());
    assert_eq!(joined, names(&["late"]), "a runs, and lacks it");
    assert!(!joins(&mut places, "a-1", "a", 3), "twice as many places are taken");
    let renamed = places.regroup(&name("late"), &alice, gang("b").as_ref());
    assert_eq!(renamed, names(&["a-1"]), "a lacks it again");
    // With other names there are not more places.
    assert_eq!(places.regroup(&name("late"), &alice, gang("c").as_ref()), []);
    assert!(
        !joins(&mut places, "b-1", "b", 3),
        "three times as many places are taken"
    );
    assert_eq!(places.regroup(&name("a-0"), &alice, None), []);
    assert!(!places.knows(&name("a-0")), "it runs, and is no member");
    assert_eq!(places.regroup(&name("late"), &"bob".into(), gang("a").as_ref()), []);
    for of in ["a-1", "b-0", "b-1", "late", "single-0"] {
        places.observe(&name(of), OnHost::Ended);
    }
    assert!(places.users.is_empty() && places.pods.is_empty(), "{places:?}");
}

#[test]
fn of_many_gangs_those_that_run_come_first_and_nothing_is_left_of_them() {
    let mut places = UserPlaces::new(1);
    assert!(enters(&mut places, "alice", "full"));
    for gang in 0..100 {
        assert!(!joins(&mut places, &format!("m{gang}"), &format!("g{gang}"), 2));
    }
    let restored = places.restore(&"alice".into(), member("runs", "g42", 2), OnHost::Started);
    assert_eq!(restored, names(&["m42"]));
    assert!(!joins(&mut places, "n42", "g42", 2), "it is complete");
    assert_eq!(places.observe(&name("runs"), OnHost::Ended), []);
    let mut all: Vec<String> = (0..100).map(|gang| format!("m{gang}")).collect();
    all.extend(["full", "runs", "n42"].map(str::to_owned));
    for of in &all {
        places.observe(&name(of), OnHost::Ended);
    }
    assert!(places.users.is_empty() && places.pods.is_empty());
}
