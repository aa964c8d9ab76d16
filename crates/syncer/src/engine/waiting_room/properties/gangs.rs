//! Gangs start: whatever happens while their pods are created.

use super::*;

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
            user: None,
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
            for name in self.room.names_in(State::New) {
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
            if ready.is_empty() && self.room.names_in(State::New).is_empty() {
                return;
            }
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::NoAnswer => {
                for name in self.room.names_in(State::New).into_iter().step_by(2) {
                    self.host.insert(name, false);
                }
            }
            Disturbance::Rejections => {
                for name in self.room.names_in(State::New) {
                    self.room.forget(&name);
                }
            }
            Disturbance::Lending => {
                for name in self.room.names_in(State::New) {
                    self.room.lend(&name);
                }
            }
            Disturbance::Replacements => {
                for name in self.room.names_in(State::OnHost) {
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
