use super::*;
use crate::engine::test_requests::name;
use std::ops::Range;

/// Claims of each pod.
const CLAIMS: u64 = 2;

/// A host on which a tenant may have so many claims.
struct Host {
    gangs: GangClaims,
    limit: u64,
    taken: u64,
    now: Instant,
}

fn pod(gang: &str, index: usize) -> Name {
    name(&format!("{gang}{index}"))
}

fn names(pods: &[Name]) -> Vec<&str> {
    pods.iter().map(|name| &*name.name).collect()
}

impl Host {
    fn new(limit: u64) -> Self {
        Self {
            gangs: GangClaims::new(limit),
            limit,
            taken: 0,
            now: Instant::now(),
        }
    }

    fn set(&mut self, gang: &str, size: usize, index: usize, is_on_host: bool) {
        self.set_with(CLAIMS, gang, size, index, is_on_host);
    }

    /// Sets a pod that has so many claims.
    fn set_with(&mut self, claims: u64, gang: &str, size: usize, index: usize, is_on_host: bool) {
        let member = Member {
            gang: Gang { name: name(gang), size },
            claims,
            is_on_host,
        };
        self.gangs.set(&pod(gang, index), Some(member), self.now);
    }

    /// Pods of a gang of `size` are created in the tenant.
    fn create(&mut self, gang: &str, size: usize, pods: Range<usize>) {
        for index in pods {
            self.set(gang, size, index, false);
        }
    }

    fn ask(&mut self, gang: &str, index: usize) -> Result<Vec<Name>, Refusal> {
        let free = self.limit - self.taken;
        self.gangs.ask(Some(&pod(gang, index)), CLAIMS, free, self.now)
    }

    /// Asks for a pod of no gang with so many claims.
    fn ask_alone(&mut self, claims: u64) -> Result<Vec<Name>, Refusal> {
        let free = self.limit - self.taken;
        self.gangs.ask(None, claims, free, self.now)
    }

    /// A pod of a gang of `size` asks, and comes to the host if there is room. Returns whether there is.
    fn come(&mut self, gang: &str, size: usize, index: usize) -> bool {
        let comes = self.ask(gang, index).is_ok();
        if comes {
            self.set(gang, size, index, true);
            self.taken += CLAIMS;
        }
        comes
    }

    /// A pod that is on the host is gone on both sides.
    fn delete(&mut self, gang: &str, index: usize) {
        self.gangs.set(&pod(gang, index), None, self.now);
        self.taken -= CLAIMS;
    }

    /// Nothing is left behind that grows.
    fn is_clean(&self) -> bool {
        let GangClaims {
            limit: _,
            gangs,
            pods,
            expected: _,
            growing: _,
            kept,
            wanted,
        } = &self.gangs;
        gangs.is_empty() && pods.is_empty() && (*kept, *wanted) == (0, 0)
    }
}

#[test]
fn gangs_that_are_created_together_come_one_after_the_other() {
    let mut host = Host::new(10);
    for index in 0..4 {
        for gang in ["a", "b"] {
            host.create(gang, 4, index..index + 1);
        }
    }
    for index in 0..4 {
        assert!(host.come("a", 4, index));
        assert!(!host.come("b", 4, index), "there is room for it and not for its gang");
    }
    assert_eq!(host.ask("b", 0), Err(Refusal::FullForGang));
    assert_eq!(
        host.ask_alone(2),
        Ok(Vec::new()),
        "nothing is kept for a gang that waits"
    );
    for index in 0..4 {
        host.delete("a", index);
        assert_eq!(host.ask("b", 0).is_ok(), index >= 2);
    }
    let came = (0..4).filter(|index| host.come("b", 4, *index));
    assert_eq!(came.count(), 4);
    for index in 0..4 {
        host.delete("b", index);
    }
    assert!(host.is_clean());
}

#[test]
fn what_a_gang_needs_that_has_begun_is_kept_for_its_pods_that_exist() {
    let mut host = Host::new(10);
    host.create("a", 100, 0..4);
    host.now += CREATION;
    let others = host.ask("a", 2).unwrap();
    assert_eq!(
        names(&others),
        ["a0", "a1", "a3"],
        "pods that do not exist have no room"
    );
    assert_eq!(host.ask_alone(2), Ok(Vec::new()));
    assert_eq!(host.ask_alone(3), Err(Refusal::Full));
    assert_eq!(host.ask("a", 0), Ok(Vec::new()));
    host.gangs.set(&pod("a", 3), None, host.now);
    assert_eq!(host.ask_alone(4), Ok(Vec::new()), "it was deleted");
    host.now += LASTS;
    assert_eq!(
        host.ask_alone(6),
        Ok(Vec::new()),
        "the one that has not asked does not count"
    );
    assert_eq!(host.ask_alone(7), Err(Refusal::Full), "the others wait for their turns");
    assert_eq!(host.ask("a", 1), Ok(Vec::new()), "it counts now");
    assert_eq!(host.ask_alone(5), Err(Refusal::Full));
    for index in 0..3 {
        host.gangs.set(&pod("a", index), None, host.now);
    }
    assert!(host.is_clean());
}

#[test]
fn a_pod_that_cannot_be_created_keeps_room_from_others_for_a_while_only() {
    let mut host = Host::new(4);
    host.create("a", 2, 0..2);
    assert!(host.come("a", 2, 0) && host.ask("a", 1).is_ok());
    let start = host.now;
    host.gangs.put_off(&pod("a", 1), start);
    assert_eq!(host.ask_alone(1), Err(Refusal::Full));
    assert!(host.ask("a", 1).is_ok());
    host.now = start + LASTS;
    assert_eq!(host.ask_alone(1), Err(Refusal::Full), "it is being tried");
    for _ in 0..2 {
        host.gangs.put_off(&pod("a", 1), host.now);
        assert_eq!(host.ask_alone(1), Ok(Vec::new()));
        assert!(host.ask("a", 1).is_ok());
    }
    host.gangs.give_up(&pod("a", 1), host.now);
    assert_eq!(host.ask_alone(2), Ok(Vec::new()), "its user has no place for it");
}

#[test]
fn while_claims_are_scarce_a_gang_waits_until_its_pods_are_created() {
    let mut host = Host::new(10);
    host.create("a", 4, 0..1);
    host.create("b", 4, 0..1);
    for gang in ["a", "b"] {
        assert_eq!(host.ask(gang, 0), Err(Refusal::Incomplete), "both may want 16");
    }
    host.create("a", 4, 1..4);
    let came = (0..4).filter(|index| host.come("a", 4, *index));
    assert_eq!(came.count(), 4);
    assert_eq!(host.ask("b", 0), Err(Refusal::Incomplete));
    host.now += CREATION;
    assert_eq!(
        host.ask("b", 0),
        Ok(Vec::new()),
        "as a leader whose workers come once it runs"
    );
}

#[test]
fn while_there_is_enough_for_all_no_gang_waits_for_its_pods() {
    let mut host = Host::new(16);
    host.create("a", 4, 0..1);
    host.create("b", 4, 0..1);
    assert!(host.come("a", 4, 0) && host.come("b", 4, 0));
    for gang in ["a", "b"] {
        host.create(gang, 4, 1..4);
        let came = (1..4).filter(|index| host.come(gang, 4, *index));
        assert_eq!(came.count(), 3);
    }
}

#[test]
fn a_pod_without_claims_is_not_missing() {
    let mut host = Host::new(14);
    host.create("other", 4, 0..1);
    host.create("a", 4, 1..4);
    assert_eq!(host.ask("a", 1), Err(Refusal::Incomplete));
    // Its leader needs no device.
    host.set_with(0, "a", 4, 0, false);
    let came = (1..4).filter(|index| host.come("a", 4, *index));
    assert_eq!(came.count(), 3);
    host.set_with(0, "a", 4, 0, true);
    assert!(host.come("other", 4, 0), "nothing is wanted for the gang that runs");
}

#[test]
fn what_a_gang_says_about_its_size_keeps_others_waiting_for_a_minute_at_most() {
    let mut host = Host::new(100);
    host.create("large", 10_000, 0..1);
    host.create("a", 4, 0..1);
    assert_eq!(host.ask("a", 0), Err(Refusal::Incomplete));
    assert_eq!(host.gangs.wanted, 100 + 8);
    host.now += CREATION;
    host.create("b", 4, 0..1);
    assert!(host.come("b", 4, 0), "two claims are wanted for the large one");
    // One that runs with fewer pods than it says, as after a restart.
    host.set("runs", 10_000, 0, true);
    assert!(host.come("a", 4, 0));
    for gang in ["a", "b", "runs"] {
        host.gangs.set(&pod(gang, 0), None, host.now);
    }
    host.gangs.set(&pod("large", 0), None, host.now);
    assert!(host.is_clean());
}

#[test]
fn a_pod_that_is_being_created_takes_its_room_once() {
    let mut host = Host::new(10);
    host.create("a", 2, 0..2);
    assert!(host.ask("a", 0).is_ok());
    host.gangs.begin_creation(&pod("a", 0), host.now);
    host.taken += CLAIMS;
    assert_eq!(host.gangs.kept, CLAIMS);
    assert_eq!(host.ask_alone(7), Err(Refusal::Full));
    assert_eq!(host.ask_alone(6), Ok(Vec::new()));
    host.taken -= CLAIMS;
    host.gangs.end_creation(&pod("a", 0), host.now);
    assert_eq!(
        host.gangs.kept,
        2 * CLAIMS,
        "it was not created, and waits for its turn"
    );
    host.gangs.begin_creation(&pod("a", 0), host.now);
    host.set("a", 2, 0, true);
    host.gangs.end_creation(&pod("a", 0), host.now);
    assert_eq!(host.gangs.kept, CLAIMS);
}

#[test]
fn a_gang_that_never_fits_says_what_it_needs() {
    let mut host = Host::new(10);
    host.create("a", 6, 0..8);
    assert_eq!(host.ask("a", 0), Err(Refusal::TooLarge(12)));
    assert_eq!(host.ask_alone(10), Ok(Vec::new()), "others do not wait for it");
}

#[test]
fn only_the_pods_that_start_together_are_one_gang() {
    let mut host = Host::new(10);
    host.create("a", 2, 0..5);
    assert_eq!(names(&host.ask("a", 3).unwrap()), ["a0"]);
    assert_eq!(host.ask_alone(6), Ok(Vec::new()));
    assert!(host.come("a", 2, 3) && host.come("a", 2, 0));
    assert_eq!(host.ask("a", 4), Ok(Vec::new()), "it comes as a pod of no gang does");
    assert_eq!(host.ask_alone(6), Ok(Vec::new()), "nothing is kept for it");
}

#[test]
fn a_pod_that_is_made_again_needs_room_for_itself() {
    let mut host = Host::new(5);
    host.create("a", 2, 0..2);
    assert!(host.come("a", 2, 0) && host.come("a", 2, 1));
    // It has failed, and its controller makes another one.
    host.delete("a", 1);
    host.create("a", 2, 2..3);
    assert!(host.come("a", 2, 2));
    // Its node is cordoned.
    host.set("a", 2, 2, false);
    assert_eq!(
        host.ask("a", 2),
        Err(Refusal::FullForGang),
        "its claims are not deleted yet"
    );
    host.taken -= CLAIMS;
    assert!(host.come("a", 2, 2));
}

#[test]
fn a_gang_of_another_size_takes_other_room() {
    let mut host = Host::new(10);
    host.create("a", 6, 0..4);
    host.create("b", 2, 0..1);
    assert_eq!(host.ask("a", 0), Err(Refusal::Incomplete));
    host.set("a", 3, 0, false);
    assert_eq!(names(&host.ask("a", 0).unwrap()), ["a1", "a2"]);
    // A pod moves to another gang.
    let moved = Member {
        gang: Gang {
            name: name("b"),
            size: 2,
        },
        claims: CLAIMS,
        is_on_host: false,
    };
    host.gangs.set(&pod("a", 1), Some(moved), host.now);
    assert_eq!(names(&host.ask("b", 0).unwrap()), ["a1"]);
    assert_eq!(host.gangs.kept, 8);
}
