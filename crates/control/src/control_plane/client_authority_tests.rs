use super::*;
use crate::control_plane::{Authorities, Leaf, LeafStore};
use berth_pki::{Usage, count_certificates};
use jiff::SignedDuration;

const REQUESTED: &str = "2026-05-05T12:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn rotation(phase: RotationPhase) -> Rotation {
    Rotation {
        requested_at: at(REQUESTED),
        phase,
        since: at(REQUESTED),
    }
}

fn facts(api_servers: bool, clients: bool) -> RotationFacts {
    let observed = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    RotationFacts {
        api_servers: observed(api_servers, "api"),
        clients: observed(clients, "clients"),
    }
}

#[test]
fn the_old_authority_is_revoked_in_bounded_time_whatever_clients_do() {
    let step = |api_servers, seconds| {
        let now = at(REQUESTED) + SignedDuration::from_secs(seconds);
        next_step(
            Some(&rotation(RotationPhase::Issuing)),
            None,
            &facts(api_servers, false),
            now,
        )
    };
    assert_eq!(step(true, PHASE_SECONDS - 1), RotationStep::Wait("clients".into()));
    assert_eq!(step(true, PHASE_SECONDS), RotationStep::Enter(RotationPhase::Revoking));
    // It would refuse the team's new certificates.
    assert_eq!(step(false, PHASE_SECONDS), RotationStep::Wait("api".into()));
}

#[test]
fn no_phase_goes_on_without_the_api_servers_however_late_it_is() {
    use RotationPhase::{Issuing, Revoking, Trusting};
    let now = at(REQUESTED) + SignedDuration::from_secs(2 * PHASE_SECONDS);
    for phase in [Trusting, Issuing, Revoking] {
        let recorded = rotation(phase);
        assert!(recorded.is_overdue(now));
        for clients in [false, true] {
            let step = next_step(Some(&recorded), None, &facts(false, clients), now);
            assert_eq!(step, RotationStep::Wait("api".into()), "{phase:?}");
        }
    }
}

#[test]
fn each_phase_waits_for_what_was_observed() {
    use RotationPhase::{Completed, Issuing, Revoking, Trusting};
    let step = |phase: Option<RotationPhase>, api_servers, clients, due| {
        let recorded = phase.map(rotation);
        next_step(recorded.as_ref(), due, &facts(api_servers, clients), at(REQUESTED))
    };
    let wait = |what: &str| RotationStep::Wait(what.to_owned());
    let due = Some(at(REQUESTED));
    for (api_servers, clients) in [(false, false), (true, true)] {
        for resting in [None, Some(Completed)] {
            assert_eq!(step(resting, api_servers, clients, None), RotationStep::Rest);
            assert_eq!(
                step(resting, api_servers, clients, due),
                RotationStep::Begin(at(REQUESTED))
            );
        }
    }
    // A further request changes nothing while a rotation is under way.
    for due in [None, due] {
        for clients in [false, true] {
            assert_eq!(step(Some(Trusting), false, clients, due), wait("api"));
            assert_eq!(step(Some(Trusting), true, clients, due), RotationStep::Enter(Issuing));
            assert_eq!(step(Some(Issuing), false, clients, due), wait("api"));
            assert_eq!(step(Some(Revoking), false, clients, due), wait("api"));
            assert_eq!(step(Some(Revoking), true, clients, due), RotationStep::Enter(Completed));
        }
        assert_eq!(step(Some(Issuing), true, false, due), wait("clients"));
        assert_eq!(step(Some(Issuing), true, true, due), RotationStep::Enter(Revoking));
    }
}

#[test]
fn a_request_is_carried_out_once_and_not_before_its_time() {
    let now = at("2026-05-05T13:00:00Z");
    let done = rotation(RotationPhase::Completed);
    let due = |recorded: Option<&Rotation>, text: &str| due_request(recorded, RotationRequest::At(at(text)), now);
    assert_eq!(due(None, REQUESTED), Some(at(REQUESTED)));
    assert_eq!(due(Some(&done), REQUESTED), None, "it was carried out");
    assert_eq!(due(Some(&done), "2026-05-05T11:00:00Z"), None, "an earlier one");
    assert_eq!(
        due(Some(&done), "2026-05-05T12:00:01Z"),
        Some(at("2026-05-05T12:00:01Z"))
    );
    assert_eq!(due(Some(&done), "2026-05-05T13:00:00Z"), Some(now));
    assert_eq!(due(None, "2099-01-01T00:00:00Z"), None, "the future");
    for none in [RotationRequest::None, RotationRequest::Invalid] {
        assert_eq!(due_request(None, none, now), None);
    }
}

/// A certificate and the authority that signed it.
#[derive(Clone, PartialEq, Eq)]
struct Client {
    certificate: String,
    authority: String,
}

/// What is stored, what runs, and who would be refused.
struct World {
    stored: BTreeMap<String, String>,
    leaves: LeafStore,
    /// The bundle of each API server that runs.
    api_servers: Vec<String>,
    /// The certificate of each client that runs.
    clients: Vec<Client>,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            stored: Authorities::create("abc").unwrap(),
            leaves: LeafStore::new(BTreeMap::new(), Timestamp::now()),
            api_servers: Vec::new(),
            clients: Vec::new(),
            now: Timestamp::now(),
        };
        let (bundle, client) = world.render();
        world.api_servers = vec![bundle.clone(), bundle];
        world.clients = vec![client.clone(), client];
        world
    }

    fn authorities(&self) -> Authorities {
        let ca = CertificateAuthority::create("datastore", AUTHORITY_VALIDITY).unwrap();
        Authorities::load(&self.stored, ca.cert_pem(), ca.key_pem()).unwrap()
    }

    /// What a process that knows only what is stored would run.
    fn render(&mut self) -> (String, Client) {
        let authorities = self.authorities();
        let leaf = Leaf::new("client", Usage::Client);
        let leaves = std::mem::replace(&mut self.leaves, LeafStore::new(BTreeMap::new(), self.now));
        self.leaves = LeafStore::new(leaves.into_data(), self.now);
        let issued = self.leaves.issue(&authorities.client, "client", &leaf).unwrap();
        let client = Client {
            certificate: issued.cert_pem,
            authority: authorities.client.cert_pem().trim().to_owned(),
        };
        (authorities.trusted_clients, client)
    }

    fn is_accepted(bundle: &str, client: &Client) -> bool {
        bundle.contains(&client.authority)
    }

    fn assert_nobody_is_refused(&self, when: &str) {
        for bundle in &self.api_servers {
            for client in &self.clients {
                assert!(Self::is_accepted(bundle, client), "{when}");
            }
        }
    }

    fn facts(&mut self) -> RotationFacts {
        let (bundle, client) = self.render();
        facts(
            self.api_servers.iter().all(|has| *has == bundle),
            self.clients.iter().all(|has| *has == client),
        )
    }

    /// One instance more runs with what is rendered now.
    fn roll(&mut self) {
        let (bundle, client) = self.render();
        if let Some(stale) = self.api_servers.iter_mut().find(|has| **has != bundle) {
            *stale = bundle;
        } else if let Some(stale) = self.clients.iter_mut().find(|has| **has != client) {
            *stale = client;
        }
    }

    fn step(&mut self, due: Option<Timestamp>) -> RotationStep {
        let recorded = Rotation::read(&self.stored).unwrap();
        let facts = self.facts();
        next_step(recorded.as_ref(), due, &facts, at(REQUESTED))
    }
}

/// A process is killed before and after each write, and instances are replaced one after the other meanwhile: at no point is a client refused
/// that runs, and in the end the old certificate is.
#[test]
fn no_client_is_refused_at_any_point_and_the_old_certificate_is_in_the_end() {
    let mut world = World::new();
    let leaked = world.clients[0].clone();
    let due = Some(at(REQUESTED));
    let mut phases = Vec::new();
    for _ in 0..100 {
        world.assert_nobody_is_refused("before a step");
        let recorded = Rotation::read(&world.stored).unwrap();
        let due = due.filter(|due| recorded.is_none_or(|recorded| *due > recorded.requested_at));
        let step = world.step(due);
        if step == RotationStep::Rest {
            break;
        }
        // Killed before the write: what was made is lost, and the step is decided again.
        let mut lost = world.stored.clone();
        step.carry_out(&mut lost, "abc", world.now).unwrap();
        assert_eq!(std::mem::discriminant(&world.step(due)), std::mem::discriminant(&step));
        // Killed after the write: the next process reads it.
        let before = world.stored.clone();
        let after = step.carry_out(&mut world.stored, "abc", world.now).unwrap();
        if let RotationStep::Begin(_) | RotationStep::Enter(_) = step {
            phases.extend(after.map(|after| after.phase));
            world.assert_nobody_is_refused("after a write");
        } else {
            assert_eq!(world.stored, before, "waiting writes nothing");
        }
        world.roll();
        world.assert_nobody_is_refused("during a rollout");
    }
    let all = [
        RotationPhase::Trusting,
        RotationPhase::Issuing,
        RotationPhase::Revoking,
        RotationPhase::Completed,
    ];
    assert_eq!(phases, all);
    for bundle in &world.api_servers {
        assert!(!World::is_accepted(bundle, &leaked));
        assert_eq!(count_certificates(bundle).unwrap(), 1);
    }
    assert!(
        !world
            .stored
            .keys()
            .any(|name| name.contains("next") || name.contains("previous"))
    );
}

#[test]
fn the_old_key_is_gone_once_the_new_authority_signs_and_the_bundle_stays() {
    let mut world = World::new();
    let old_key = world.stored[CURRENT[1]].clone();
    let old = world.authorities().client.cert_pem().to_owned();
    RotationStep::Begin(at(REQUESTED))
        .carry_out(&mut world.stored, "abc", world.now)
        .unwrap();
    let trusting = world.authorities();
    assert_eq!(trusting.client.cert_pem(), old, "the old one signs");
    assert_eq!(count_certificates(&trusting.trusted_clients).unwrap(), 2);
    let enter = |world: &mut World, phase| {
        let step = RotationStep::Enter(phase);
        step.carry_out(&mut world.stored, "abc", world.now).unwrap();
        world.authorities()
    };
    let issuing = enter(&mut world, RotationPhase::Issuing);
    assert_ne!(issuing.client.cert_pem(), old);
    assert_eq!(
        issuing.trusted_clients, trusting.trusted_clients,
        "API servers are not replaced"
    );
    assert!(!world.stored.values().any(|text| *text == old_key));
    let revoking = enter(&mut world, RotationPhase::Revoking);
    assert_eq!(revoking.trusted_clients.trim(), issuing.client.cert_pem().trim());
    let completed = enter(&mut world, RotationPhase::Completed);
    assert_eq!(completed.trusted_clients, revoking.trusted_clients);
}

#[test]
fn what_does_not_fit_is_an_error_and_changes_nothing_that_is_stored() {
    let mut stored = Authorities::create("abc").unwrap();
    let enter = RotationStep::Enter(RotationPhase::Issuing);
    let error = enter.carry_out(&mut stored, "abc", at(REQUESTED)).unwrap_err();
    assert!(error.to_string().contains(STATE), "{error}");
    stored.insert(STATE.into(), "{".into());
    let error = Rotation::read(&stored).unwrap_err().to_string();
    assert!(error.contains("rotation"), "{error}");
}

#[test]
fn certificates_are_issued_anew_when_another_authority_signs() {
    let mut world = World::new();
    let (_, first) = world.render();
    world.now += SignedDuration::from_mins(1);
    assert!(world.render().1 == first);
    for step in [
        RotationStep::Begin(at(REQUESTED)),
        RotationStep::Enter(RotationPhase::Issuing),
    ] {
        assert!(world.render().1 == first);
        step.carry_out(&mut world.stored, "abc", world.now).unwrap();
    }
    assert!(world.render().1.certificate != first.certificate);
}
