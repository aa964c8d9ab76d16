//! Random histories of a waiting room: pods come, change their gangs, get nodes, are created again and go, and the syncer starts again.

use super::{tests::is_clean, *};
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

/// Places of the room.
const MOST: usize = 4;
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

/// Gangs of which all pods are created, and of which none starts before all of its pods are on the host. Other pods start once they are there.
struct Gangs {
    room: WaitingRoom,
    now: Instant,
    sizes: Vec<usize>,
    shapes: usize,
    /// Pods of each gang that exist, and other pods.
    asked: Vec<usize>,
    others: usize,
    /// Pods on the host, and whether they have a node.
    host: BTreeMap<Name, bool>,
}

/// What happens besides.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// There is no answer to creations, although every second pod is created.
    NoAnswer,
    /// The host rejects all pods that have a place. They ask again.
    Rejections,
    /// Other pods wait for requests, and lend their places.
    Lending,
    /// The nodes of the pods that wait on the host are cordoned: these are created again.
    Replacements,
    /// Another pod asks.
    Other,
    Restart,
}

impl Gangs {
    fn new(sizes: Vec<usize>, shapes: usize) -> Self {
        Self {
            room: WaitingRoom::new(MOST, None),
            now: Instant::now(),
            asked: vec![0; sizes.len()],
            sizes,
            shapes,
            others: 0,
            host: BTreeMap::new(),
        }
    }

    fn member(&self, gang: usize, member: usize) -> (Shape, Request) {
        let namespace = ["a", "b"][gang % 2];
        let of = Gang {
            name: Name::new(namespace, &format!("g{gang}")),
            size: self.sizes[gang],
        };
        let request = Request {
            name: Name::new(namespace, &format!("g{gang}-{member}")),
            priority: 0,
            gang: Some(of),
        };
        (format!("s{}", gang % self.shapes).into(), request)
    }

    /// All pods that exist.
    fn existing(&self) -> Vec<(Shape, Request)> {
        let gangs = self.asked.iter().enumerate();
        let members = gangs.flat_map(|(gang, asked)| (0..*asked).map(move |member| self.member(gang, member)));
        let others = (0..self.others).map(|number| (Shape::from("other"), request_of(0, number)));
        members.chain(others).collect()
    }

    fn names_of(&self, gang: usize) -> Vec<Name> {
        let members = 0..self.sizes[gang];
        members.map(|member| self.member(gang, member).1.name).collect()
    }

    /// The pods that are in one of these states.
    fn names_in(&self, states: &[State]) -> Vec<Name> {
        let pods = self.room.pods.iter().filter(|(_, pod)| states.contains(&pod.state));
        let mut names: Vec<_> = pods.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn has_started(&self, gang: usize) -> bool {
        self.names_of(gang)
            .iter()
            .all(|name| self.host.get(name) == Some(&true))
    }

    /// Pods that are neither on the host nor have a place or wait for one ask.
    fn ask_again(&mut self) {
        for (shape, request) in self.existing() {
            if !self.host.contains_key(&request.name) {
                self.room.ask(&shape, request, self.now);
            }
        }
    }

    fn create(&mut self, name: &Name) {
        self.host.entry(name.clone()).or_insert(false);
        self.room.observe(name, OnHost::Waiting);
    }

    fn start(&mut self, name: &Name) {
        self.host.insert(name.clone(), true);
        self.room.observe(name, OnHost::Placed);
    }

    /// Creates the pods that have a place, and lets gangs start that are complete, and other pods.
    fn create_and_start(&mut self) {
        loop {
            for name in self.names_in(&[State::New]) {
                self.create(&name);
            }
            let waits = |name: &Name| self.host.get(name) == Some(&false);
            let gangs = (0..self.sizes.len()).map(|gang| self.names_of(gang));
            let complete = gangs.filter(|names| names.iter().all(|name| self.host.contains_key(name)));
            let others = (0..self.others).map(|number| vec![request_of(0, number).name]);
            let ready: Vec<Name> = complete.chain(others).flatten().filter(waits).collect();
            for name in &ready {
                self.start(name);
            }
            if ready.is_empty() && self.names_in(&[State::New]).is_empty() {
                return;
            }
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::NoAnswer => {
                for name in self.names_in(&[State::New]).into_iter().step_by(2) {
                    self.host.insert(name, false);
                }
            }
            Disturbance::Rejections => {
                for name in self.names_in(&[State::New]) {
                    self.room.forget(&name);
                }
            }
            Disturbance::Lending => {
                for name in self.names_in(&[State::New]) {
                    self.room.lend(&name);
                }
            }
            Disturbance::Replacements => {
                for name in self.names_in(&[State::OnHost]) {
                    self.host.remove(&name);
                    self.room.observe(&name, OnHost::Gone);
                }
            }
            Disturbance::Other => self.others += 1,
            Disturbance::Restart => self.restart(),
        }
    }

    fn restart(&mut self) {
        self.room = WaitingRoom::new(MOST, None);
        for (shape, request) in self.existing() {
            if let Some(has_node) = self.host.get(&request.name) {
                let on_host = if *has_node { OnHost::Placed } else { OnHost::Waiting };
                self.room.restore(&shape, request, on_host);
            }
        }
    }

    fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.room.check(self.now);
        self.ask_again();
        self.create_and_start();
    }

    /// The next pod of a gang is created in the tenant. Meanwhile this happens to those that have a place.
    fn ask(&mut self, gang: usize, disturbance: Option<Disturbance>) {
        self.asked[gang] += 1;
        self.ask_again();
        if let Some(disturbance) = disturbance {
            self.disturb(disturbance);
            self.ask_again();
        }
    }
}

/// Sizes of gangs, and which of them creates its next pod.
fn sizes_and_order() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    vec(1..=MOST, 1..9).prop_flat_map(|sizes| {
        let of_gangs = sizes.iter().enumerate();
        let members: Vec<usize> = of_gangs
            .flat_map(|(gang, size)| std::iter::repeat_n(gang, *size))
            .collect();
        (Just(sizes), Just(members).prop_shuffle())
    })
}

fn disturbances() -> impl Strategy<Value = Vec<Option<Disturbance>>> {
    let one = prop_oneof![
        Just(Disturbance::NoAnswer),
        Just(Disturbance::Rejections),
        Just(Disturbance::Lending),
        Just(Disturbance::Replacements),
        Just(Disturbance::Other),
        Just(Disturbance::Restart),
    ];
    vec(proptest::option::of(one), 8 * MOST)
}

proptest! {
    /// However slowly and in which order they are created, and whatever happens meanwhile.
    #[test]
    fn gangs_that_fit_into_the_room_all_start(
        (sizes, order) in sizes_and_order(),
        shapes in 1..4_usize,
        pace in 0..50_u64,
        disturbances in disturbances(),
    ) {
        let mut gangs = Gangs::new(sizes, shapes);
        for (gang, disturbance) in order.into_iter().zip(disturbances) {
            gangs.ask(gang, disturbance);
            gangs.pass_time(pace);
        }
        for _ in 0..100 {
            gangs.pass_time(20);
            // No place becomes free by that.
            gangs.disturb(Disturbance::Replacements);
            gangs.ask_again();
            gangs.create_and_start();
        }
        for gang in 0..gangs.sizes.len() {
            prop_assert!(gangs.has_started(gang), "{:?}", gangs.room);
        }
        let others = (0..gangs.others).map(|number| request_of(0, number).name);
        for other in others {
            prop_assert_eq!(gangs.host.get(&other), Some(&true), "{:?}", gangs.room);
        }
    }
}

/// A request of a namespace that has a name of its own.
fn request_of(namespace: usize, number: usize) -> Request {
    Request {
        name: Name::new(&format!("n{namespace}"), &format!("p{number}")),
        priority: 0,
        gang: None,
    }
}

proptest! {
    /// One place becomes free again and again. Whatever others ask for, one has it after a turn of each other namespace.
    #[test]
    fn a_pod_waits_for_one_turn_of_each_other_namespace(
        before in vec((0..4_usize, 0..30_usize), 0..30),
        after in vec((0..4_usize, 0..30_usize), 8),
        shape in 0..30_usize,
    ) {
        let (mut room, now) = (WaitingRoom::new(MOST, None), Instant::now());
        let ask = |room: &mut WaitingRoom, request: Request, shape: usize| {
            room.ask(&format!("s{shape}").into(), request, now).waits.is_some()
        };
        for number in 0..MOST - 1 {
            prop_assert!(!ask(&mut room, request_of(9, number), 100 + number), "it has a place for ever");
        }
        let mut current = request_of(9, MOST).name;
        prop_assert!(!ask(&mut room, request_of(9, MOST), 200));
        let mut others = 0..;
        for (namespace, shape) in before {
            prop_assert!(ask(&mut room, request_of(namespace, others.next().unwrap()), shape));
        }
        let honest = request_of(8, 0);
        prop_assert!(ask(&mut room, honest.clone(), shape));
        let mut turns = 0;
        for (namespace, shape) in after {
            prop_assert!(ask(&mut room, request_of(namespace, others.next().unwrap()), shape));
            let next = room.observe(&current, OnHost::Placed);
            prop_assert_eq!(next.len(), 1);
            current = next[0].clone();
            turns += 1;
            if current == honest.name {
                break;
            }
        }
        prop_assert!(current == honest.name && turns <= 5, "{} turns", turns);
    }
}
