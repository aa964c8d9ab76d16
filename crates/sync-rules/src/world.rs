//! What kinds may look at: the tenant's settings, both sides' objects, and who references what.

use crate::{
    kinds::{
        self, Custom, Flow,
        endpoint_slice::addresses::{self, PodAddresses},
        gateway,
        references::References,
        shown::Shown,
        storage,
    },
    resource::{Key, KindId, Name, Resource, Side},
    store::Stores,
    tenant::Tenant,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that is known; kinds read it, the engine fills it.
#[derive(Debug)]
pub struct World {
    /// The tenant.
    pub tenant: Tenant,
    /// The kinds that are synced for this tenant.
    pub kinds: Vec<KindId>,
    /// Both sides' objects.
    pub stores: Stores,
    references: Mutex<References>,
    shown: Mutex<Shown>,
    addresses: Mutex<PodAddresses>,
}

impl World {
    /// An empty world.
    pub fn new(tenant: Tenant) -> Self {
        let mut kinds = KindId::BUILT_IN.to_vec();
        kinds.extend(Custom::all(&tenant.policy));
        Self {
            tenant,
            stores: Stores::new(&kinds),
            kinds,
            references: Mutex::default(),
            shown: Mutex::default(),
            addresses: Mutex::default(),
        }
    }

    /// Who references what.
    pub fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is shown of which objects of the host.
    pub fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses of the tenant's own pods.
    pub fn addresses(&self) -> MutexGuard<'_, PodAddresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind of a host object, and what it is in the tenant, if it is one that goes from the tenant to the host.
    pub fn down_kind(&self, api_version: &str, kind: &str) -> Option<(KindId, Resource)> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.iter().find_map(|id| {
            let resource = id.down()?.resource();
            (resource.kind == kind && resource.group == group).then_some((*id, resource))
        })
    }

    /// The kind that a [`FieldReference`](berth_api::sync_policy::FieldReference) names: `Kind` or `Kind.group`.
    pub fn kind_named(&self, name: &str) -> Option<KindId> {
        self.kinds.iter().copied().find(|id| {
            id.down().is_some_and(|rules| {
                let Resource { kind, group, .. } = rules.resource();
                name == id.label() || name == kind || name == format!("{kind}.{group}")
            })
        })
    }

    /// Keys besides its own that must be looked at because an object changed. Brings the references up to date.
    pub fn dependents(&self, side: Side, id: KindId, name: &Name) -> Vec<Key> {
        let mut keys = match (side, kinds::kind(id).flow) {
            (Side::Tenant, Flow::Down(rules)) => {
                let object = self.stores.tenant(id).get(name).map(|stored| stored.object());
                let targets = object.map(|object| rules.references(self, name, &object));
                self.references()
                    .set(&id.key(name.clone()), targets.unwrap_or_default())
            }
            _ => Vec::new(),
        };
        if (side, id) == (Side::Host, KindId::Pod) {
            let pod = self.stores.host(id).get(name).map(|stored| stored.object());
            let addresses = pod.as_ref().map(addresses::of).unwrap_or_default();
            // Which endpoints of the tenant's own making are good.
            if self.addresses().set(name, addresses) {
                keys.extend(self.all_of(KindId::EndpointSlice));
            }
        }
        match (side, id) {
            // The tokens belong to the host pod: made once it exists, renewed by a timer afterwards.
            (Side::Host, KindId::Pod) if !self.stores.host(KindId::PodToken).contains(name) => {
                keys.push(KindId::PodToken.key(name.clone()));
            }
            // The labels of a namespace are on its pods.
            (Side::Tenant, KindId::Namespace) => keys.extend(self.in_namespace(KindId::Pod, &name.name)),
            // Where traffic from outside must not be led depends on the Service.
            (Side::Tenant, KindId::Service) => keys.extend(self.references().users(&id.key(name.clone()))),
            // Whether an Ingress is of a class of the host.
            (_, KindId::IngressClass) => keys.extend(self.all_of(KindId::Ingress)),
            // Which parents of a route are the tenant's own, and where it may lead.
            (Side::Tenant, KindId::Gateway | KindId::ReferenceGrant) => {
                keys.extend(gateway::route::KINDS.iter().flat_map(|kind| self.all_of(*kind)));
            }
            // Which pods are open to the platform's allowances.
            (Side::Tenant, KindId::NetworkPolicy) => keys.extend(self.in_namespace(KindId::Pod, &name.namespace)),
            _ => {}
        }
        keys.extend(kinds::devices::dependents(self, side, id, name));
        keys.extend(storage::dependents(self, side, id, name));
        // Whoever waits for this object to come to the host.
        let users = self.references().users(&id.key(name.clone()));
        keys.extend(
            users
                .into_iter()
                .filter(|user| !self.stores.host(user.kind).contains(&user.name)),
        );
        keys
    }

    /// All of the tenant's objects of a kind.
    fn all_of(&self, id: KindId) -> impl Iterator<Item = Key> {
        self.stores.tenant(id).names().into_iter().map(move |name| id.key(name))
    }

    /// The tenant's objects of a kind in one of its namespaces.
    pub fn in_namespace(&self, id: KindId, namespace: &str) -> Vec<Key> {
        let names = self.stores.tenant(id).names().into_iter();
        names
            .filter(|name| &*name.namespace == namespace)
            .map(|name| id.key(name))
            .collect()
    }
}
