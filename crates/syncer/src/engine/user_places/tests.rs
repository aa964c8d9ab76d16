use super::*;

fn name(of: &str) -> Name {
    Name::new("team", of)
}

fn names(of: &[&str]) -> Vec<Name> {
    of.iter().map(|of| name(of)).collect()
}

fn request(user: &str, of: &str, priority: i64, created: &str) -> Request {
    Request {
        name: name(of),
        user: user.into(),
        priority,
        created: created.into(),
        gang: None,
    }
}

/// A pod of a gang.
fn member(user: &str, of: &str, priority: i64, gang: &str, size: usize) -> Request {
    let gang = Gang { name: name(gang), size };
    Request {
        gang: Some(gang),
        ..request(user, of, priority, of)
    }
}

/// Whether a pod that asks has a place.
fn enters(places: &mut UserPlaces, user: &str, of: &str) -> bool {
    places.ask(request(user, of, 0, of), Instant::now()) == Answer::HasPlace
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
    let now = Instant::now();
    for (of, priority, created) in [
        ("a-younger", 0, "2026-01-01T00:00:02Z"),
        ("z-older", 0, "2026-01-01T00:00:01Z"),
        ("important", 5, "2026-01-01T00:00:03Z"),
    ] {
        let answer = places.ask(request("alice", of, priority, created), now);
        assert_eq!(answer, Answer::Waits { is_late: false });
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
        places.observe(&name("a3"), OnHost::Gone),
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
        places.restore(name(of), "alice".into(), None, COUNTED_LATER);
    }
    assert!(!enters(&mut places, "alice", "a3"));
    assert_eq!(places.observe(&name("a1"), OnHost::Gone), [], "another is there still");
    assert_eq!(places.observe(&name("a2"), OnHost::Started), names(&["a3"]));
}

#[test]
fn pods_say_why_they_wait_once_all_before_them_are_beyond_a_limit() {
    let mut places = UserPlaces::new(2);
    assert!(enters(&mut places, "alice", "a1") && enters(&mut places, "alice", "a2"));
    let now = Instant::now();
    places.ask(request("alice", "a3", 0, ""), now);
    assert_eq!(places.observe(&name("a1"), BEYOND_LIMIT), []);
    assert_eq!(places.take_late(now + LONG_WAIT), [], "the other may start");
    assert_eq!(places.observe(&name("a2"), BEYOND_LIMIT), []);
    assert_eq!(places.take_late(now), [], "it came now");
    assert_eq!(places.take_late(now + LONG_WAIT), names(&["a3"]));
    let answer = places.ask(request("alice", "a3", 0, ""), now);
    assert_eq!(answer, Answer::Waits { is_late: true });
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
    places.ask(member("alice", of, 0, gang, size), Instant::now()) == Answer::HasPlace
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
    assert!(
        places.ask(member("bob", "b1", 0, "train", 3), Instant::now()) == Answer::HasPlace,
        "another user has places"
    );
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
        assert_eq!(
            places.ask(member("alice", of, 5, "b", 4), Instant::now()),
            Answer::Waits { is_late: false }
        );
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
        places.observe(&name(of), OnHost::Gone);
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
fn after_a_restart_gangs_that_run_are_known() {
    let mut places = UserPlaces::new(1);
    let gang = Gang {
        name: name("train"),
        size: 2,
    };
    places.restore(name("train-0"), "alice".into(), Some(gang), OnHost::Started);
    places.restore(name("single-0"), "alice".into(), None, BEYOND_LIMIT);
    places.restore(name("single-1"), "alice".into(), None, OnHost::Started);
    assert!(!places.knows(&name("single-1")), "it needs no place, and is no member");
    assert!(joins(&mut places, "train-1", "train", 2));
    assert!(!joins(&mut places, "train-2", "train", 2));
}
