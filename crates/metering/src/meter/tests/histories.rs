//! Random histories: nodes come and go, control is killed at any time, and two controls write at once. What the records say is what the
//! nodes' assignments prove.

use super::*;
use proptest::prelude::*;

/// What happens in one step of a history.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes.
    Pass(i64),
    /// A node is assigned.
    Assign(i64),
    /// The oldest node leaves. Its annotations stay for a while.
    Release,
    /// Control is killed, and another one starts with what is stored.
    Kill,
    /// The other control, which does not know that it is not the leader any more, observes and writes.
    OtherWrites,
    /// A write fails.
    WriteFails,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (1_i64..4_000).prop_map(Event::Pass),
        1 => (80_000_i64..200_000).prop_map(Event::Pass),
        2 => (1_i64..9).prop_map(Event::Assign),
        2 => Just(Event::Release),
        1 => Just(Event::Kill),
        1 => Just(Event::OtherWrites),
        1 => Just(Event::WriteFails),
    ];
    proptest::collection::vec(event, 1..60)
}

/// A host with nodes of one tenant.
struct Host {
    now: Timestamp,
    items: Vec<Item>,
    identities: [Identity; 1],
}

impl Host {
    fn new() -> Self {
        let start = "2026-11-25T00:00:00Z";
        Self {
            now: at(start),
            items: Vec::new(),
            identities: [identity("a", start)],
        }
    }

    /// What the assignments prove: GPU-seconds up to now.
    fn proven(&self) -> i64 {
        let seconds = |item: &Item| {
            item.until
                .unwrap_or(self.now)
                .duration_since(item.since.unwrap())
                .as_secs()
        };
        self.items.iter().map(|item| item.amount * seconds(item)).sum()
    }
}

proptest! {
    #[test]
    fn records_say_what_assignments_prove(events in events()) {
        let mut host = Host::new();
        let mut server = Server::default();
        let (mut meter, mut other) = (Meter::default(), Meter::default());
        for event in events {
            match event {
                Event::Pass(seconds) => host.now = later(host.now, seconds),
                Event::Assign(amount) => host.items.push(gpus("a", amount, &host.now.to_string())),
                Event::Release => {
                    let now = host.now;
                    if let Some(item) = host.items.iter_mut().find(|item| item.until.is_none()) {
                        item.until = Some(now);
                    }
                }
                Event::Kill => meter = server.load(),
                Event::OtherWrites => {
                    other.observe(host.now, &host.identities, &host.items);
                    server.write_unsaved(&mut other);
                    continue;
                }
                Event::WriteFails => {
                    meter.observe(host.now, &host.identities, &host.items);
                    continue;
                }
            }
            meter.observe(host.now, &host.identities, &host.items);
            server.write_due(&mut meter, host.now);
            prop_assert!(server.total(UsageResource::Gpu) <= host.proven());
        }
        meter.observe(host.now, &host.identities, &host.items);
        for _ in 0..10 {
            server.write_unsaved(&mut meter);
        }
        prop_assert!(meter.unsaved().is_empty());
        prop_assert_eq!(server.total(UsageResource::Gpu), host.proven());
        for record in server.records.values() {
            let days = record.spec.lines.iter().map(|line| line.daily.len());
            prop_assert!(days.max().unwrap_or_default() <= 31);
        }
    }
}
