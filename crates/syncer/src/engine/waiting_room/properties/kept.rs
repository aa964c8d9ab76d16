//! Places that are kept for pods that do not exist.

use super::*;

/// Places of the room.
const PLACES: usize = 8;
/// Seconds for which a pod may wait for places that are kept, with the one until the next check.
const SECONDS: usize = 11;

/// What happens in a second.
#[derive(Clone, Debug)]
struct Second {
    /// The size of another gang of which one pod exists.
    gang: Option<usize>,
    /// Other pods that ask, each for something else.
    others: usize,
    /// Pods that get a node.
    start: usize,
}

fn seconds() -> impl Strategy<Value = Vec<Second>> {
    let second = (proptest::option::of(2..=PLACES), 0..4_usize, 0..4_usize);
    let second = second.prop_map(|(gang, others, start)| Second { gang, others, start });
    vec(second, 1..200)
}

proptest! {
    /// However often somebody makes another gang of which no other pod exists.
    #[test]
    fn no_pod_waits_for_longer_than_seconds_while_places_are_kept(seconds in seconds()) {
        let mut room = WaitingRoom::new(PLACES, None);
        let (mut now, mut numbers) = (Instant::now(), 0..);
        let mut waited: BTreeMap<Name, usize> = BTreeMap::new();
        for Second { gang, others, start } in seconds {
            now += Duration::from_secs(1);
            let gangs = gang.into_iter().map(Some).chain(std::iter::repeat_n(None, others));
            for size in gangs {
                let request = request_of(0, numbers.next().unwrap());
                let gang = size.map(|size| Gang { name: request.name.clone(), size });
                room.ask(&request.name.name.clone(), Request { gang, ..request }, now);
            }
            for name in room.names_in(State::New) {
                room.observe(&name, OnHost::Waiting);
            }
            for name in room.names_in(State::OnHost).into_iter().take(start) {
                room.observe(&name, OnHost::Placed);
            }
            room.check(now);
            if room.kept == 0 {
                continue;
            }
            let in_turn = room.names_in(State::Waiting);
            for name in in_turn.into_iter().filter(|name| room.pods[name].gang.is_none()) {
                let seconds = waited.entry(name).or_default();
                *seconds += 1;
                prop_assert!(*seconds <= SECONDS, "{:?}", room);
            }
        }
    }
}
