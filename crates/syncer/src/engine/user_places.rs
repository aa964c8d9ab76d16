//! The places of users on the host, and the pods that wait for one: higher priorities first, then older pods.

use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

/// A pod that waits for so long because of a limit says so. Pods of users with room need far less.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(5);

/// A pod that asks for a place.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Name in the tenant.
    pub(super) name: Name,
    /// Its user, as far as the tenant tells users apart.
    pub(super) user: Arc<str>,
    /// Priority in the tenant.
    pub(super) priority: i64,
    /// When it was created in the tenant.
    pub(super) created: String,
}

/// The answer to a pod that asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has one.
    HasPlace,
    /// It has none.
    Waits {
        /// Whether [`UserPlaces::take_late`] has returned it.
        is_late: bool,
    },
}

/// What became of a pod on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHost {
    /// It is behind the gate.
    Gated {
        /// Because of a limit, as control says. Otherwise control has not counted it yet.
        exceeds_limit: bool,
    },
    /// Control has let it start.
    Started,
    /// It is not there, or is being deleted.
    Gone,
}

/// Priority, time of creation, name: the least comes first.
type Position = (Reverse<i64>, String, Name);

/// Which pods have a place on the host, and which wait for one.
#[derive(Debug)]
pub(super) struct UserPlaces {
    /// Places of each user.
    most: usize,
    users: HashMap<Arc<str>, OfUser>,
    pods: HashMap<Name, Pod>,
}

/// The pods of one user.
#[derive(Debug, Default)]
struct OfUser {
    /// Pods with a place.
    placed: usize,
    /// Those of them that wait because of a limit.
    beyond_limit: usize,
    line: BTreeMap<Position, Waiting>,
}

/// A pod without a place.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    is_late: bool,
}

#[derive(Debug)]
struct Pod {
    user: Arc<str>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has a place, and is to be created.
    New,
    /// It has a place, and is on the host.
    OnHost {
        exceeds_limit: bool,
    },
    Waiting(Position),
}

impl UserPlaces {
    /// With so many places for each user.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            users: HashMap::new(),
            pods: HashMap::new(),
        }
    }

    /// Whether a pod has a place or waits for one.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.pods.contains_key(name)
    }

    /// A pod is behind the gate on the host that has not asked, as when the syncer starts.
    pub(super) fn restore(&mut self, name: Name, user: Arc<str>) {
        self.place(name, user, State::OnHost { exceeds_limit: false });
    }

    /// A pod asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, request: Request, now: Instant) -> Answer {
        match self.pods.get(&request.name) {
            Some(Pod {
                user,
                state: State::Waiting(position),
            }) => {
                let waiting = self.users.get(user).and_then(|of_user| of_user.line.get(position));
                let is_late = waiting.is_some_and(|waiting| waiting.is_late);
                return Answer::Waits { is_late };
            }
            Some(_) => return Answer::HasPlace,
            None => {}
        }
        let of_user = self.users.entry(Arc::clone(&request.user)).or_default();
        // While there is room, nobody waits.
        if of_user.placed < self.most {
            self.place(request.name, request.user, State::New);
            return Answer::HasPlace;
        }
        let Request {
            name,
            user,
            priority,
            created,
        } = request;
        let position = (Reverse(priority), created, name.clone());
        let waiting = Waiting {
            since: now,
            is_late: false,
        };
        of_user.line.insert(position.clone(), waiting);
        let state = State::Waiting(position);
        self.pods.insert(name, Pod { user, state });
        Answer::Waits { is_late: false }
    }

    /// A pod that asked was seen on the host. Returns the pods that got a place because of it.
    pub(super) fn observe(&mut self, name: &Name, on_host: OnHost) -> Vec<Name> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        match (on_host, &pod.state) {
            // Also one that waits: the answer to an earlier creation was lost.
            (OnHost::Gated { exceeds_limit }, _) => {
                let user = Arc::clone(&pod.user);
                self.remove(name);
                self.place(name.clone(), user, State::OnHost { exceeds_limit });
                Vec::new()
            }
            // An earlier pod of the name is gone.
            (OnHost::Gone, State::New | State::Waiting(_)) => Vec::new(),
            (OnHost::Started, _) | (OnHost::Gone, State::OnHost { .. }) => self.leave(name),
        }
    }

    /// A pod needs no place: it is gone in the tenant, or was not created on the host. Returns the pods that got one instead.
    pub(super) fn forget(&mut self, name: &Name) -> Vec<Name> {
        match self.pods.get(name).map(|pod| &pod.state) {
            None | Some(State::OnHost { .. }) => Vec::new(),
            Some(State::New | State::Waiting(_)) => self.leave(name),
        }
    }

    /// The pods that have waited for [`LONG_WAIT`] while all pods of their users on the host wait because of a limit, each of them once.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Name> {
        let mut late = Vec::new();
        let blocked = self.users.values_mut();
        for of_user in blocked.filter(|of_user| of_user.beyond_limit == of_user.placed) {
            for ((.., name), waiting) in &mut of_user.line {
                if !waiting.is_late && now.saturating_duration_since(waiting.since) >= LONG_WAIT {
                    waiting.is_late = true;
                    late.push(name.clone());
                }
            }
        }
        late
    }

    fn place(&mut self, name: Name, user: Arc<str>, state: State) {
        let of_user = self.users.entry(Arc::clone(&user)).or_default();
        of_user.placed += 1;
        of_user.beyond_limit += usize::from(exceeds_limit(&state));
        self.pods.insert(name, Pod { user, state });
    }

    /// Forgets a pod. Returns its user.
    fn remove(&mut self, name: &Name) -> Option<Arc<str>> {
        let Pod { user, state } = self.pods.remove(name)?;
        let of_user = self.users.get_mut(&user)?;
        if let State::Waiting(position) = &state {
            of_user.line.remove(position);
        } else {
            of_user.placed -= 1;
            of_user.beyond_limit -= usize::from(exceeds_limit(&state));
        }
        Some(user)
    }

    /// Forgets a pod. Returns the pods that got its place.
    fn leave(&mut self, name: &Name) -> Vec<Name> {
        let Some(user) = self.remove(name) else {
            return Vec::new();
        };
        let mut admitted = Vec::new();
        while let Some(of_user) = self.users.get_mut(&user).filter(|of_user| of_user.placed < self.most)
            && let Some(((.., first), _)) = of_user.line.pop_first()
        {
            self.place(first.clone(), Arc::clone(&user), State::New);
            admitted.push(first);
        }
        if self.users.get(&user).is_some_and(|of_user| of_user.placed == 0) {
            self.users.remove(&user);
        }
        admitted
    }
}

fn exceeds_limit(state: &State) -> bool {
    matches!(state, State::OnHost { exceeds_limit: true })
}

#[cfg(test)]
mod tests {
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
            places.restore(name(of), "alice".into());
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
}
