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

    /// Lets gangs wait no more for pods that have not come in time. Nor are places kept from others again and again: a gang keeps some only while no pod
    /// waits that could have them, and then for seconds.
    fn give_up_waits(&mut self, now: Instant) {
        let (most_gathered, others_wait) = (self.most_gathered, self.first_in_turn().is_some());
        let over = self.gangs.iter_mut().filter_map(|(gang, of_gang)| {
            let is_over = of_gang.is_over(most_gathered, others_wait, now);
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
            self.complete_gangs(&mut admitted);
            self.note_freed();
        }
        admitted
    }

    /// Completes the gangs of which a part has places, in the order of their turns, while there is room for all pods of one.
    fn complete_gangs(&mut self, admitted: &mut Vec<Name>) {
        let gangs = self.order.unlimited().filter_map(|group| match group {
            Group::Gang(gang) => Some(gang),
            Group::Returning(..) | Group::Alike(..) => None,
        });
        let gangs: Vec<Name> = gangs.filter(|gang| self.can_be_completed(gang)).cloned().collect();
        for gang in gangs {
            // Those before have taken places.
            if self.can_be_completed(&gang) {
                self.claim_all(&gang, admitted);
            }
        }
    }

    /// Whether there is room for all pods that a gang lacks, beyond the limit.
    fn can_be_completed(&self, gang: &Name) -> bool {
        let left = self.most.saturating_mul(TIMES_FOR_GANGS).saturating_sub(self.taken());
        self.lacks_to_complete(gang).is_some_and(|lacks| lacks <= left)
    }
}
