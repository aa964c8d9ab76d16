//! Which pods may be on the host without a node for which its scheduler [allocates](berth_sync_rules::kinds::devices::allocation) devices.
//!
//! Such a pod can cost the scheduler far more than others. For each node it tries the devices one after another, again and again in all combinations, until one
//! satisfies all requests, selectors and constraints. With a request for each of eight GPUs and of eight network cards that is a billion tries, if a selector of
//! the last one matches nothing. Neither the number of requests nor the number of devices that are free says what it will be: the same pod starts at once on a node
//! where everything fits. What bounds a try is `filterTimeout` of the scheduler alone, ten seconds by default. So what bounds a tenant is how many such pods there
//! are: with 64 of them and a timeout of 200 ms, they keep others waiting for 13 seconds at most, and with a gang for 26.
//!
//! They have a room of their own with fewer places, and what is said of the [waiting room](super::waiting_room) holds for it too. They ask there first: a pod that
//! waits for one of these places takes none of those that are for all pods. Where users have limits, all pods of a user count as alike: a user has half of the
//! places at most, however different the pods are.
//!
//! A gang can have members without devices, as the launcher of workers. These need no place here, and are known: the gang does not wait for them.

use super::{
    Engine, lock,
    room_waits::count_places,
    waiting_room::{Shape, WaitingRoom},
};
use berth_sync_rules::{
    kinds::devices::allocation,
    model::{Cache, KindId, resource::Name},
};
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// The part of all places, one in so many, that pods with devices may have.
const PART: usize = 16;
/// Places that they may have in any case, if there are as many: gangs of 64 nodes are usual.
const LEAST: usize = 64;

/// The room of pods with devices of a tenant.
pub(super) fn new_device_room(cache: &Cache) -> Mutex<WaitingRoom> {
    let (most, of_user) = count_places(cache);
    Mutex::new(WaitingRoom::new(most_with_devices(most), of_user))
}

/// How many pods with devices may be on the host without a node, of `most` pods.
fn most_with_devices(most: usize) -> usize {
    (most / PART).max(LEAST).min(most)
}

/// Why a pod with devices waits.
pub(super) fn describe_wait(cache: &Cache) -> String {
    let (waiting_pods, _) = count_places(cache);
    let most = most_with_devices(waiting_pods);
    format!(
        "The pod waits in the cluster until others have a node or are deleted: at most {most} pods that need devices of a DeviceClass and have no node may \
         be at the host's scheduler, and half of them may ask it for the same or be of one user with limits. Pods whose claims cannot be allocated take \
         these places: delete them or what creates them, or ask the platform team for nodes, or to raise spec.limits.waitingPods of the class: one in {PART} \
         of these places is for such pods, and {LEAST} in any case. A gang of more than {most} such pods needs a higher limit."
    )
}

impl Engine {
    /// The rooms, in the order in which pods ask for places.
    pub(super) fn rooms(&self) -> [&Mutex<WaitingRoom>; 2] {
        [&self.device_room, &self.waiting_room]
    }

    /// Those in which a pod asks for a place, in this order, and its shape in each.
    pub(super) fn rooms_of(&self, pod: &Value) -> impl Iterator<Item = (&Mutex<WaitingRoom>, Shape)> {
        let shape = self.shape(pod);
        let of_devices = allocation::is_needed(&self.cache, pod).then(|| {
            let shape = if self.cache.tenant.users.are_limited {
                self.user_of(pod)
            } else {
                Arc::clone(&shape)
            };
            (&self.device_room, shape)
        });
        of_devices.into_iter().chain([(&self.waiting_room, shape)])
    }

    /// Notes in the room of pods with devices that a pod has none, unless it has some. To be called when the pod asks for its places, and when it is on the host.
    pub(super) fn exempt_without_devices(&self, name: &Name, pod: &Value) {
        // Other tenants have no claims.
        if self.cache.tenant.policy.devices.classes.is_empty() || allocation::is_needed(&self.cache, pod) {
            return;
        }
        let gang = self.find_gang(name, pod);
        let mut room = lock(&self.device_room);
        let mut admitted = room.exempt(name, gang.as_ref());
        // While the room is locked: one that is gone by now would be known for ever.
        let host = self.cache.stores.host(KindId::Pod).get(name);
        admitted.extend(room.observe(name, self.find_on_host(name, host.as_deref())));
        drop(room);
        self.let_in(admitted);
    }
}

#[cfg(test)]
mod tests;
