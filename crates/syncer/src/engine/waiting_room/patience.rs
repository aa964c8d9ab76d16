//! What changes in the waiting room with time.

use super::{Checked, Group, OfGang, WaitingRoom, of_gang::PATIENCE};
use berth_sync_rules::model::resource::Name;
use std::time::Instant;

/// How many times as many pods as there are places may have one, because of gangs.
const TIMES_FOR_GANGS: usize = 2;

impl WaitingRoom {
    /// To be called every second or so: what has changed because nothing happened.
    pub(in crate::engine) fn check(&mut self, now: Instant) -> Checked {
        self.give_up_waits(now);
        let mut admitted = self.admit(None);
        admitted.extend(self.end_stall(now));
        Checked {
            admitted,
            late: self.lines.values_mut().flat_map(|line| line.take_late(now)).collect(),
        }
    }

    /// Lets gangs wait no more for pods that have not come in time.
    fn give_up_waits(&mut self, now: Instant) {
        let most_gathered = self.most_gathered;
        let over = self.gangs.iter_mut().filter_map(|(gang, of_gang)| {
            let is_over = of_gang.is_over(most_gathered, now);
            is_over.then(|| gang.clone())
        });
        let mut over: Vec<_> = over.collect();
        over.sort();
        for gang in over {
            self.change_gang(&gang, OfGang::give_up);
            self.settle(&gang);
        }
    }

    /// If no place has become free for a while, completes gangs beyond the limit of which a part has places. Otherwise several that each have a part, and
    /// together all places, would wait for each other for ever. Not earlier: while places become free, each comes to its turn, and pods of no gang as well.
    fn end_stall(&mut self, now: Instant) -> Vec<Name> {
        if self.has_freed || self.taken() < self.most {
            self.has_freed = false;
            self.stalls_since = Some(now);
            return Vec::new();
        }
        let since = *self.stalls_since.get_or_insert(now);
        let mut admitted = Vec::new();
        if now.saturating_duration_since(since) >= PATIENCE {
            while let Some(gang) = self.next_to_complete() {
                self.claim_all(&gang, &mut admitted);
            }
            self.note_freed();
        }
        admitted
    }

    /// The next gang that can be completed.
    fn next_to_complete(&self) -> Option<Name> {
        let left = self.most.saturating_mul(TIMES_FOR_GANGS).checked_sub(self.taken())?;
        let mut gangs = self.order.unlimited().filter_map(|group| match group {
            Group::Gang(gang) => Some(gang),
            Group::Returning(..) | Group::Alike(..) => None,
        });
        let fits = |gang: &&Name| self.lacks_to_complete(gang).is_some_and(|lacks| lacks <= left);
        gangs.find(fits).cloned()
    }
}
