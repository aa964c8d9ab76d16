//! Counts pods in and out of the waiting room: by shape, by gang, and in the lines.

use super::{Group, Line, OfGang, Pod, State, WaitingRoom, of_gang::Lack};
use crate::engine::window::{Gang, Request};
use berth_sync_rules::model::resource::Name;
use std::{sync::Arc, time::Instant};

impl WaitingRoom {
    /// Changes the state of a pod that does not wait then, or forgets it. Returns the pods that got a place because of it.
    pub(super) fn change(&mut self, name: &Name, state: Option<State>) -> Vec<Name> {
        let Some(pod) = self.remove(name) else {
            return Vec::new();
        };
        let gang = pod.gang.clone();
        if let Some(state) = state {
            let starts = pod.state.has_place() && state == State::Started;
            if let Some(gang) = gang.as_ref().filter(|_| starts) {
                self.change_gang(gang, OfGang::drop_place);
            }
            self.put(name.clone(), Pod { state, ..pod }, None);
        }
        self.admit(gang.as_ref())
    }

    /// Adds a pod. One that waits does so since then.
    pub(super) fn put(&mut self, name: Name, pod: Pod, since: Option<Instant>) {
        if pod.state.has_place() {
            self.placed += 1;
            *self.shapes.entry(Arc::clone(&pod.shape)).or_default() += 1;
        }
        if let Some(gang) = &pod.gang {
            self.change_gang(gang, |of_gang| of_gang.count_in(pod.state, since));
        }
        let (group, priority) = (pod.group(&name), pod.priority);
        self.pods.insert(name.clone(), pod);
        if let (Some(group), Some(since)) = (group, since) {
            let request = Request {
                name,
                priority,
                gang: None,
                user: None,
            };
            self.lines.entry(group.clone()).or_default().add(request, since);
            self.refresh(&group);
        }
    }

    /// Forgets a pod, but not the size of its gang.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        if pod.state.has_place() {
            self.placed -= 1;
            if let Some(alike) = self.shapes.get_mut(&pod.shape) {
                *alike -= 1;
                if *alike == 0 {
                    self.shapes.remove(&pod.shape);
                }
            }
        }
        if let Some(gang) = &pod.gang {
            self.change_gang(gang, |of_gang| of_gang.count_out(pod.state));
        }
        if let Some(group) = pod.group(name) {
            if let Some(line) = self.lines.get_mut(&group) {
                line.take(name);
            }
            self.refresh(&group);
        }
        Some(pod)
    }

    /// Keeps the size of a gang, as the last of its pods says it. Returns its name.
    pub(super) fn note_size(&mut self, gang: Option<Gang>) -> Option<Name> {
        let Gang { name, size } = gang?;
        self.gangs.entry(name.clone()).or_default().size = size;
        Some(name)
    }

    /// A gang has this size now, if any pod of it is known. Returns the pods that got a place because of it.
    pub(super) fn resize(&mut self, gang: &Gang) -> Vec<Name> {
        if self.gangs.get(&gang.name).is_none_or(|known| known.size == gang.size) {
            return Vec::new();
        }
        let name = self.note_size(Some(gang.clone()));
        self.admit(name.as_ref())
    }

    /// Changes what is known of a gang.
    pub(super) fn change_gang(&mut self, gang: &Name, change: impl FnOnce(&mut OfGang)) {
        if let Some(of_gang) = self.gangs.get_mut(gang) {
            let before = of_gang.kept();
            change(of_gang);
            self.kept = self.kept + of_gang.kept() - before;
        }
    }

    /// Brings up to date what follows from the numbers of a gang. Without pods it is forgotten.
    pub(super) fn settle(&mut self, gang: &Name) {
        self.change_gang(gang, OfGang::settle);
        self.refresh(&Group::Gang(gang.clone()));
        if self.gangs.get(gang).is_some_and(OfGang::is_empty) {
            self.gangs.remove(gang);
        }
    }

    /// Brings the turn of a line up to date.
    fn refresh(&mut self, group: &Group) {
        let first = self.lines.get(group).and_then(Line::first);
        let first = first.and_then(|first| self.pods.get(&first.name));
        let turn = first.map(|pod| (pod.priority, pod.user.clone()));
        let gathers = match group {
            Group::Gang(gang) => self.find_gathering(gang),
            Group::Returning(..) | Group::Alike(..) => None,
        };
        match turn {
            None => {
                self.lines.remove(group);
                self.order.leave(group);
            }
            Some(_) if gathers.is_some() => self.order.leave(group),
            Some((priority, user)) => {
                let class = self.class(group);
                self.order.join(group, priority, user, class);
            }
        }
        if let Group::Gang(gang) = group {
            match gathers {
                Some(lack) => self.gathering.join(gang, lack),
                None => {
                    self.gathering.leave(gang);
                }
            }
        }
    }

    /// What a gang lacks, if its pods wait for each other.
    fn find_gathering(&self, gang: &Name) -> Option<Lack> {
        let of_gang = self.gangs.get(gang)?;
        of_gang.gathers(self.most_gathered).then(|| of_gang.lack())
    }
}

impl OfGang {
    /// Counts a pod, which waits since then if it does.
    fn count_in(&mut self, state: State, since: Option<Instant>) {
        match state {
            State::Waiting => {
                self.waiting += 1;
                if let Some(since) = since {
                    self.wait(since);
                }
            }
            State::New | State::OnHost => self.placed += 1,
            State::Started => self.started += 1,
            State::Exempt => self.exempt += 1,
            // Members of gangs lend nothing.
            State::Lent | State::Returning => {}
        }
    }

    /// Counts it no more.
    fn count_out(&mut self, state: State) {
        match state {
            State::Waiting => self.waiting -= 1,
            State::New | State::OnHost => self.placed -= 1,
            State::Started => self.started -= 1,
            State::Exempt => self.exempt -= 1,
            State::Lent | State::Returning => {}
        }
    }
}
