//! Who gets the next place.

use super::{Group, Line, OfGang, Pod, Shape, State, WaitingRoom, of_gang::Lack, order::Class};
use berth_sync_rules::model::resource::Name;
use std::sync::Arc;

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
        self.first_in_turn().cloned()
    }

    /// The line whose turn it is, whether or not a place is free.
    pub(super) fn first_in_turn(&self) -> Option<&Group> {
        self.order.next(|class| self.may_have_turn(class.as_ref()))
    }

    /// The first gang whose pods wait for each other and for which half of the room has room. Its turn is not before that of others: no other pod waits for
    /// such a place. Nor do pods that are alike have half of the places then.
    pub(super) fn next_early_gang(&self) -> Option<Name> {
        let free = self.most_alike().saturating_sub(self.taken());
        if free == 0 {
            return None;
        }
        let missing = self.most_missing.saturating_sub(self.kept);
        let fits = |of_gang: &Lack| of_gang.places <= free && of_gang.missing <= missing;
        self.gathering.first(fits).cloned()
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

    /// Whether groups of a class may have a place that is free: half of them are left to pods that are not alike.
    fn may_have_turn(&self, shape: Option<&Shape>) -> bool {
        let alike = shape.and_then(|shape| self.shapes.get(shape));
        alike.is_none_or(|alike| *alike < self.most_alike())
    }

    /// The class of a line. Pods of a gang of which others are there already, and that can complete it, do not count as alike.
    pub(super) fn class(&self, group: &Group) -> Class {
        if let Group::Gang(gang) = group
            && self.lacks_to_complete(gang).is_some()
        {
            return None;
        }
        let first = self.lines.get(group).and_then(Line::first)?;
        self.pods.get(&first.name).map(|pod| Arc::clone(&pod.shape))
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
