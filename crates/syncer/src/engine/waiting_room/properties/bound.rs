//! How many pods have a place: pods come, change their gangs, get nodes, are created again and go, and the syncer starts again.

use super::*;

const PODS: usize = 40;

/// What a pod asks for.
#[derive(Clone, Debug, Default)]
struct Spec {
    shape: usize,
    /// Number and size.
    gang: Option<(usize, usize)>,
    priority: i64,
}

/// What becomes of a pod that has a place.
#[derive(Clone, Copy, Debug)]
enum Creation {
    Created,
    /// The host rejects it.
    Fails,
    /// There is no answer, and the host has created it or not.
    HasNoAnswer(bool),
    WaitsForRequests,
}

#[derive(Clone, Debug)]
enum Event {
    /// A pod that is not on the host asks; it may be another pod of the name.
    Ask(usize, Option<Spec>, Creation),
    /// A pod on the host gets a node.
    Start(usize),
    /// A host pod is gone, which is seen now or not at all.
    Lose(usize, bool),
    Delete(usize),
    /// A pod that is not on the host needs no place here.
    Exempt(usize),
    Regroup(usize, Option<(usize, usize)>),
    /// So many seconds later.
    Wait(u64),
    Restart,
}

fn gang() -> impl Strategy<Value = Option<(usize, usize)>> {
    proptest::option::weighted(0.7, (0..2_usize, 0..=2 * MOST))
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let spec = (0..4_usize, gang(), 0..2_i64).prop_map(|(shape, gang, priority)| Spec { shape, gang, priority });
    let creation = prop_oneof![
        6 => Just(Creation::Created),
        1 => Just(Creation::Fails),
        2 => any::<bool>().prop_map(Creation::HasNoAnswer),
        1 => Just(Creation::WaitsForRequests),
    ];
    let event = prop_oneof![
        28 => (0..PODS, proptest::option::of(spec), creation)
            .prop_map(|(pod, spec, creation)| Event::Ask(pod, spec, creation)),
        8 => (0..PODS).prop_map(Event::Start),
        8 => (0..PODS, any::<bool>()).prop_map(|(pod, is_seen)| Event::Lose(pod, is_seen)),
        2 => (0..PODS).prop_map(Event::Delete),
        4 => (0..PODS).prop_map(Event::Exempt),
        6 => (0..PODS, gang()).prop_map(|(pod, gang)| Event::Regroup(pod, gang)),
        4 => (0..90_u64).prop_map(Event::Wait),
        1 => Just(Event::Restart),
    ];
    vec(event, 1..250)
}

/// A room, and the host.
struct World {
    of_user: Option<usize>,
    room: WaitingRoom,
    now: Instant,
    specs: Vec<Spec>,
    /// Pods on the host, and whether they have a node.
    host: BTreeMap<usize, bool>,
}

/// Pods of two namespaces.
fn pod_name(pod: usize) -> Name {
    Name::new(["a", "b"][pod % 2], &format!("p{pod}"))
}

impl World {
    fn new(of_user: Option<usize>) -> Self {
        Self {
            of_user,
            room: WaitingRoom::new(MOST, of_user),
            now: Instant::now(),
            specs: vec![Spec::default(); PODS],
            host: BTreeMap::new(),
        }
    }

    fn gang(&self, pod: usize) -> Option<Gang> {
        let (gang, size) = self.specs[pod].gang?;
        let name = Name::new(&pod_name(pod).namespace, &format!("g{gang}"));
        Some(Gang { name, size })
    }

    fn request(&self, pod: usize) -> (Shape, Request) {
        let request = Request {
            name: pod_name(pod),
            priority: self.specs[pod].priority,
            gang: self.gang(pod),
            user: self.of_user.map(|_| ["x", "y", "z"][pod % 3].into()),
        };
        (format!("s{}", self.specs[pod].shape).into(), request)
    }

    fn follow(&mut self, event: &Event) {
        match event {
            Event::Ask(pod, spec, creation) => self.ask(*pod, spec.as_ref(), *creation),
            Event::Start(pod) => {
                if let Some(has_node) = self.host.get_mut(pod) {
                    *has_node = true;
                    self.room.observe(&pod_name(*pod), OnHost::Placed);
                }
            }
            Event::Lose(pod, is_seen) => {
                if self.host.remove(pod).is_some() && *is_seen {
                    self.room.observe(&pod_name(*pod), OnHost::Gone);
                }
            }
            Event::Delete(pod) => {
                self.host.remove(pod);
                self.room.observe(&pod_name(*pod), OnHost::Ended);
            }
            Event::Exempt(pod) => {
                if !self.host.contains_key(pod) {
                    self.room.exempt(&pod_name(*pod), self.gang(*pod).as_ref());
                }
            }
            Event::Regroup(pod, gang) => {
                self.specs[*pod].gang = *gang;
                self.room.regroup(&pod_name(*pod), self.gang(*pod).as_ref());
            }
            Event::Wait(seconds) => {
                self.now += Duration::from_secs(*seconds);
                self.room.check(self.now);
            }
            Event::Restart => self.restart(),
        }
    }

    fn ask(&mut self, pod: usize, spec: Option<&Spec>, creation: Creation) {
        if let Some(has_node) = self.host.get(&pod) {
            // It is found there, also if there was no answer.
            let on_host = if *has_node { OnHost::Placed } else { OnHost::Waiting };
            self.room.observe(&pod_name(pod), on_host);
            return;
        }
        if let Some(spec) = spec {
            self.specs[pod] = spec.clone();
        }
        let (shape, request) = self.request(pod);
        if self.room.ask(&shape, request, self.now).waits.is_some() {
            return;
        }
        match creation {
            Creation::Created => {
                self.host.insert(pod, false);
                self.room.observe(&pod_name(pod), OnHost::Waiting);
            }
            Creation::Fails => {
                self.room.forget(&pod_name(pod));
            }
            // It keeps its place, and asks again.
            Creation::HasNoAnswer(is_created) => {
                if is_created {
                    self.host.insert(pod, false);
                }
            }
            Creation::WaitsForRequests => {
                self.room.lend(&pod_name(pod));
            }
        }
    }

    fn restart(&mut self) {
        self.room = WaitingRoom::new(MOST, self.of_user);
        for (pod, has_node) in &self.host {
            let (shape, request) = self.request(*pod);
            let on_host = if *has_node { OnHost::Placed } else { OnHost::Waiting };
            self.room.restore(&shape, request, on_host);
        }
    }

    /// The room agrees with the host and with itself, and has no place for a pod that waits.
    fn check(&self) {
        let room = &self.room;
        let on_host = self.host.values().filter(|has_node| !**has_node).count();
        assert!(on_host <= room.placed && room.taken() <= 2 * MOST, "{room:?}");
        let count = |is: &dyn Fn(&Pod) -> bool| room.pods.values().filter(|pod| is(pod)).count();
        assert_eq!(room.placed, count(&|pod| pod.state.has_place()), "{room:?}");
        assert_eq!(room.placed, room.shapes.values().sum::<usize>());
        assert_eq!(room.kept, room.gangs.values().map(OfGang::kept).sum::<usize>());
        let is_waiting = |pod: &Pod| matches!(pod.state, State::Waiting | State::Returning);
        assert_eq!(room.waiting(), count(&is_waiting), "{room:?}");
        for (gang, of_gang) in &room.gangs {
            let count_in = |is: &dyn Fn(State) -> bool| count(&|pod| pod.gang.as_ref() == Some(gang) && is(pod.state));
            assert_eq!(of_gang.placed, count_in(&State::has_place), "{room:?}");
            assert_eq!(of_gang.waiting, count_in(&|state| state == State::Waiting));
            assert_eq!(of_gang.started, count_in(&|state| state == State::Started));
            assert_eq!(of_gang.exempt, count_in(&|state| state == State::Exempt));
            if let Some(lack) = room.gathering.class(gang) {
                assert_eq!(*lack, of_gang.lack(), "{room:?}");
            }
            assert!(
                !of_gang.is_empty() && (of_gang.kept() == 0 || of_gang.waiting == 0),
                "{room:?}"
            );
        }
        let lines = room.lines.keys().filter(|group| !self.gathers(group)).count();
        assert_eq!(lines, room.order.all().len(), "{room:?}");
        for group in room.order.all() {
            assert_eq!(room.order.class(group), Some(&room.class(group)), "{room:?}");
        }
        assert!(
            room.next_turn().is_none() && room.next_early_gang().is_none(),
            "{room:?}"
        );
    }

    fn gathers(&self, group: &Group) -> bool {
        matches!(group, Group::Gang(gang) if self.room.gathering.all().contains(&gang))
    }
}

proptest! {
    /// Whatever gangs say about themselves, whenever they say it, and when the syncer starts again.
    #[test]
    fn at_most_twice_as_many_pods_as_there_are_places_have_one(
        of_user in proptest::option::of(1..MOST),
        events in events(),
    ) {
        let mut world = World::new(of_user);
        for event in &events {
            world.follow(event);
            world.check();
        }
        for pod in 0..PODS {
            world.follow(&Event::Delete(pod));
        }
        prop_assert!(is_clean(&world.room), "{:?}", world.room);
    }
}
