//! Who gets the next place.

use super::{Group, Line, OfGang, Pod, State, WaitingRoom};
use berth_sync_rules::model::resource::Name;

impl WaitingRoom {
    /// Gives places to pods that wait: first those that are kept for a gang that has changed, then those that are free. Returns the pods that got one.
    pub(super) fn admit(&mut self, changed: Option<&Name>) -> Vec<Name> {
        let mut admitted = Vec::new();
        if let Some(gang) = changed {
            self.settle(gang);
            self.fill(gang, &mut admitted);
        }
        self.note_freed();
        loop {
            if let Some(group) = self.next_turn() {
                self.take_turn(&group, &mut admitted);
            } else if let Some(gang) = self.next_early_gang() {
                self.claim_all(&gang, &mut admitted);
            } else {
                self.note_freed();
                return admitted;
            }
        }
    }

    /// Notes whether a place has become free since this was called last. One whose pod is replaced, or which is kept for another pod, has not.
    pub(super) fn note_freed(&mut self) {
        let taken = self.taken();
        self.has_freed |= taken < self.last_taken;
        self.last_taken = taken;
    }

    /// Places that no other pod can have.
    pub(super) fn taken(&self) -> usize {
        self.placed + self.kept
    }

    /// The line whose turn it is, if a place is free.
    pub(super) fn next_turn(&self) -> Option<Group> {
        if self.taken() >= self.most {
            return None;
        }
        self.order.iter().find(|group| self.may_have_turn(group)).cloned()
    }

    /// The first gang whose pods wait for each other and for which half of the room has room. Its turn is not before that of others: no other pod waits for
    /// such a place.
    pub(super) fn next_early_gang(&self) -> Option<Name> {
        if self.taken() >= self.most_alike() {
            return None;
        }
        self.gathering.iter().find(|gang| self.may_begin_early(gang)).cloned()
    }

    fn may_begin_early(&self, gang: &Name) -> bool {
        let fits = |of_gang: &OfGang| {
            self.taken() + of_gang.lacks() <= self.most_alike() && self.kept + of_gang.missing() <= self.most_missing
        };
        self.gangs.get(gang).is_some_and(fits) && self.has_room_alike(&Group::Gang(gang.clone()))
    }

    /// Gives the places to a gang that it needs.
    pub(super) fn claim_all(&mut self, gang: &Name, admitted: &mut Vec<Name>) {
        self.change_gang(gang, OfGang::claim_all);
        self.fill(gang, admitted);
    }

    /// Gives places to pods of a line whose turn it is: one, or those that its gang needs if all are known.
    fn take_turn(&mut self, group: &Group, admitted: &mut Vec<Name>) {
        self.order.pass(group);
        match group {
            Group::Gang(gang) if self.is_whole(gang) => self.claim_all(gang, admitted),
            Group::Gang(gang) => {
                admitted.extend(self.place_first(group));
                self.settle(gang);
            }
            Group::Returning(..) | Group::Alike(..) => admitted.extend(self.place_first(group)),
        }
    }

    /// Gives the places to members that are kept for them.
    fn fill(&mut self, gang: &Name, admitted: &mut Vec<Name>) {
        let group = Group::Gang(gang.clone());
        while self.gangs.get(gang).is_some_and(|of_gang| of_gang.kept() > 0)
            && let Some(name) = self.place_first(&group)
        {
            admitted.push(name);
        }
        self.settle(gang);
    }

    /// Gives a place to the first pod of a line.
    fn place_first(&mut self, group: &Group) -> Option<Name> {
        let name = self.lines.get(group)?.first()?.name.clone();
        let pod = self.remove(&name)?;
        let state = State::New;
        self.put(name.clone(), Pod { state, ..pod }, None);
        Some(name)
    }

    /// Whether the first pod of a line may have a place that is free. Pods of a gang of which others are there already, and that can complete it, do not count
    /// as alike.
    fn may_have_turn(&self, group: &Group) -> bool {
        let completes = match group {
            Group::Gang(gang) => self.lacks_to_complete(gang).is_some(),
            Group::Returning(..) | Group::Alike(..) => false,
        };
        completes || self.has_room_alike(group)
    }

    /// Whether the first pod of a line leaves half of the places to pods that are not alike.
    fn has_room_alike(&self, group: &Group) -> bool {
        let first = self.lines.get(group).and_then(Line::first);
        let shape = first.and_then(|first| self.pods.get(&first.name)).map(|pod| &pod.shape);
        shape.is_some_and(|shape| self.shapes.get(shape).is_none_or(|alike| *alike < self.most_alike()))
    }

    /// Whether all pods that a gang lacks wait.
    fn is_whole(&self, gang: &Name) -> bool {
        self.gangs.get(gang).is_some_and(|of_gang| of_gang.is_whole(self.most))
    }

    /// Places that a gang needs to be complete, if pods of it are there already and all others wait.
    pub(super) fn lacks_to_complete(&self, gang: &Name) -> Option<usize> {
        let of_gang = self.gangs.get(gang)?;
        (of_gang.is_whole(self.most) && of_gang.is_partly_there()).then(|| of_gang.lacks())
    }
}
