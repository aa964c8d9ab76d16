//! What kinds may look at: the tenant's settings, both sides' objects, and who references what.

use crate::{
    config::Tenant,
    kinds::references::References,
    resource::{Key, KindId, Name, Side},
    store::Stores,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that is known; kinds read it, the engine fills it.
#[derive(Debug)]
pub struct World {
    /// The tenant.
    pub tenant: Tenant,
    /// Both sides' objects.
    pub stores: Stores,
    references: Mutex<References>,
}

impl World {
    /// An empty world.
    pub fn new(tenant: Tenant) -> Self {
        Self {
            tenant,
            stores: Stores::default(),
            references: Mutex::default(),
        }
    }

    /// Who references what.
    pub fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys besides its own that must be looked at because an object changed. Brings the references up to date.
    pub fn dependents(&self, side: Side, kind: KindId, name: &Name) -> Vec<Key> {
        match (side, kind) {
            (Side::Tenant, KindId::Pod) => {
                let targets = self
                    .stores
                    .tenant(kind)
                    .get(name)
                    .map(|pod| crate::kinds::pod::targets(&pod.object()));
                self.references().set(name, targets.unwrap_or_default())
            }
            // The tokens belong to the host pod: made once it exists, renewed by a timer afterwards.
            (Side::Host, KindId::Pod) if !self.stores.host(KindId::PodToken).contains(name) => {
                vec![KindId::PodToken.key(name.clone())]
            }
            (_, KindId::ConfigMap | KindId::Secret) => {
                let users = self.references().users(&kind.key(name.clone()));
                let waiting = users
                    .into_iter()
                    .filter(|pod| !self.stores.host(KindId::Pod).contains(pod));
                waiting.map(|pod| KindId::Pod.key(pod)).collect()
            }
            _ => Vec::new(),
        }
    }
}
