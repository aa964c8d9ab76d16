//! What is known about both sides: the tenant's settings, the objects, and which object references which.

use super::{
    egress_index::EgressIndex,
    endpoint_changes::EndpointChanges,
    endpoint_pods::EndpointPods,
    index::Index,
    kind::{Dependency, Kind},
    kind_id::KindId,
    memo::Memo,
    mirror_sources::MirrorSources,
    pod_addresses::PodAddresses,
    references::References,
    resource::{Key, Name, Resource, Side},
    schedule::PublishedSchedule,
    service_variables::KnownServiceVariables,
    store::Unavailable,
    stores::Stores,
    tenant::Tenant,
    to_host::ToHost,
    trust_followers::TrustFollowers,
};
use berth_api::most_references;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// The tenant's own labels of its Nodes, by name of the Node.
pub type OwnLabels = BTreeMap<String, BTreeMap<String, String>>;

/// Everything that is known; kinds read it, the engine of the syncer fills it.
pub struct Cache {
    /// The tenant.
    pub tenant: Tenant,
    /// The kinds that are synced for this tenant.
    pub kinds: Vec<KindId>,
    /// Both sides' objects.
    pub stores: Stores,
    rules: HashMap<KindId, Kind>,
    /// What depends on the objects of a kind on a side.
    dependencies: HashMap<(Side, KindId), Vec<Dependency>>,
    references: Mutex<References>,
    mirror_sources: Mutex<MirrorSources>,
    pod_addresses: Mutex<PodAddresses>,
    slice_addresses: Mutex<Index<IpAddr>>,
    endpoint_pods: Mutex<EndpointPods>,
    egress_index: Mutex<EgressIndex>,
    endpoint_changes: Mutex<EndpointChanges>,
    running_pods: Mutex<Index<Arc<str>>>,
    trust_followers: Mutex<TrustFollowers>,
    /// Labels that the tenant gives its Nodes itself.
    pub own_labels: Memo<OwnLabels>,
    /// What schedules let the pods do.
    pub schedule: Memo<PublishedSchedule>,
    /// Variables of Services that pods get.
    pub service_variables: KnownServiceVariables,
}

impl Cache {
    /// An empty cache for these kinds.
    pub fn new(tenant: Tenant, kinds: Vec<(KindId, Kind)>) -> Self {
        let ids: Vec<KindId> = kinds.iter().map(|(id, _)| *id).collect();
        let mut dependencies: HashMap<(Side, KindId), Vec<Dependency>> = HashMap::new();
        for dependency in kinds.iter().flat_map(|(_, kind)| kind.depends_on) {
            let on = (dependency.side, dependency.kind);
            dependencies.entry(on).or_default().push(*dependency);
        }
        let changes = EndpointChanges::new(tenant.host_limits.endpoint_changes_per_second, Instant::now());
        let references = most_references(tenant.host_limits.bytes);
        let references = usize::try_from(references).unwrap_or(usize::MAX);
        Self {
            tenant,
            stores: Stores::new(&ids),
            kinds: ids,
            rules: kinds.into_iter().collect(),
            dependencies,
            references: Mutex::new(References::new(references)),
            mirror_sources: Mutex::default(),
            pod_addresses: Mutex::default(),
            slice_addresses: Mutex::default(),
            endpoint_pods: Mutex::default(),
            egress_index: Mutex::default(),
            endpoint_changes: Mutex::new(changes),
            running_pods: Mutex::default(),
            trust_followers: Mutex::default(),
            own_labels: Memo::default(),
            schedule: Memo::default(),
            service_variables: KnownServiceVariables::default(),
        }
    }

    /// A kind that is synced for this tenant.
    pub fn kind(&self, id: KindId) -> &Kind {
        &self.rules[&id]
    }

    /// The rules of a kind, if it is synced to the host.
    pub fn rules_to_host(&self, id: KindId) -> Option<&'static dyn ToHost> {
        self.rules.get(&id)?.rules_to_host()
    }

    /// Which object references which.
    pub fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From which objects of the host mirrored objects come.
    pub fn mirror_sources(&self) -> MutexGuard<'_, MirrorSources> {
        self.mirror_sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses of the tenant's own pods.
    pub fn pod_addresses(&self) -> MutexGuard<'_, PodAddresses> {
        self.pod_addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's EndpointSlices, by the addresses that they name.
    pub fn slice_addresses(&self) -> MutexGuard<'_, Index<IpAddr>> {
        self.slice_addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods that may be endpoints of the tenant's Services.
    pub fn endpoint_pods(&self) -> MutexGuard<'_, EndpointPods> {
        self.endpoint_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the tenant's API server may connect to, by what it names.
    pub fn egress_index(&self) -> MutexGuard<'_, EgressIndex> {
        self.egress_index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host pods that have not ended, by the names of their nodes.
    pub fn running_pods(&self) -> MutexGuard<'_, Index<Arc<str>>> {
        self.running_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods that follow trust bundles.
    pub fn trust_followers(&self) -> MutexGuard<'_, TrustFollowers> {
        self.trust_followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the endpoints of Services change.
    pub fn endpoint_changes(&self) -> MutexGuard<'_, EndpointChanges> {
        self.endpoint_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the tenant's objects of a kind are not known, because its API server has not listed them in time.
    pub fn is_unlisted(&self, id: KindId) -> bool {
        self.stores
            .tenant(id)
            .unavailable()
            .is_some_and(Unavailable::is_unlisted)
    }

    /// Whether the tenant may have objects of a kind that are not known: its API server has not listed them in time, or it does not give them any
    /// more although some are on the host. A server of the tenant's own can say that it does not serve a kind.
    pub fn may_have_unknown(&self, id: KindId) -> bool {
        match self.stores.tenant(id).unavailable() {
            None => false,
            Some(Unavailable::NotListed | Unavailable::TooMuch) => true,
            Some(Unavailable::NotServed | Unavailable::Forbidden) => {
                self.rules_to_host(id).is_some() && !self.stores.host(id).is_empty()
            }
        }
    }

    /// Whether every object that may use another one on the host is known. Of a kind that the tenant's API server does not list nobody knows what its
    /// objects use, nor of an object for whose references there is no room. Such a one does not come to the host, but may be there.
    pub fn knows_all_users(&self) -> bool {
        let mut kinds = self.kinds.iter().copied();
        if kinds.any(|id| self.rules_to_host(id).is_some() && self.may_have_unknown(id)) {
            return false;
        }
        // Of these nobody knows which are on the host.
        let mut unknown = self.kinds.clone();
        unknown.retain(|id| self.stores.host(*id).unavailable().is_some());
        let references = self.references();
        references.left_out_on_host().next().is_none() && !references.has_left_out(&unknown)
    }

    /// The kind of a host object, and what it is in the tenant, if the kind is synced to the host.
    pub fn find_kind_to_host(&self, api_version: &str, kind: &str) -> Option<(KindId, Resource)> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.iter().find_map(|id| {
            let resource = self.rules_to_host(*id)?.resource();
            (resource.kind == kind && resource.group == group).then_some((*id, resource))
        })
    }

    /// The kind that a [`FieldReference`](berth_api::sync_policy::FieldReference) names: `Kind` or `Kind.group`.
    pub fn find_kind_by_name(&self, name: &str) -> Option<KindId> {
        self.kinds.iter().copied().find(|id| {
            self.rules_to_host(*id).is_some_and(|rules| {
                let Resource { kind, group, .. } = rules.resource();
                name == id.label() || name == kind || name == format!("{kind}.{group}")
            })
        })
    }

    /// Keys besides its own to reconcile because an object was added, changed or deleted. Brings the references up to
    /// date.
    pub fn update_dependents(&self, side: Side, id: KindId, name: &Name) -> Vec<Key> {
        let mut keys = Vec::new();
        if let (Side::Tenant, Some(rules)) = (side, self.rules_to_host(id)) {
            let object = self.stores.tenant(id).get(name).map(|stored| stored.object());
            let targets = object.map(|object| rules.references(self, name, &object));
            let key = id.key(name.clone());
            keys = self.references().set(&key, targets.unwrap_or_default());
        }
        self.note_on_host(id, name);
        for dependency in self.dependencies.get(&(side, id)).into_iter().flatten() {
            keys.extend((dependency.find_dependents)(self, name));
        }
        // Objects that wait until this one is on the host, or until a controller there has made a template for it.
        let mut waited_for = vec![id.key(name.clone())];
        if let (Side::Host, KindId::Custom(_)) = (side, id) {
            let mut made = self.references().targets(&waited_for[0]);
            made.retain(|target| target.kind == KindId::ResourceClaimTemplate);
            waited_for.append(&mut made);
        }
        for target in waited_for {
            let mut users = self.references().users(&target);
            users.retain(|user| !self.stores.host(user.kind).contains(&user.name));
            keys.append(&mut users);
        }
        keys
    }

    /// Notes whether an object that uses others is on the host.
    fn note_on_host(&self, id: KindId, name: &Name) {
        let key = id.key(name.clone());
        let mut references = self.references();
        // While they are locked: both sides change at the same time.
        let is_on_host = self.stores.host(id).contains(name);
        references.note_on_host(&key, is_on_host);
    }

    /// The tenant's objects of a kind.
    pub fn keys_of(&self, id: KindId) -> Vec<Key> {
        let names = self.stores.tenant(id).names().into_iter();
        names.map(|name| id.key(name)).collect()
    }

    /// The tenant's objects of a kind in one of its namespaces.
    pub fn keys_in_namespace(&self, id: KindId, namespace: &str) -> Vec<Key> {
        let mut keys = self.keys_of(id);
        keys.retain(|key| &*key.name.namespace == namespace);
        keys
    }

    /// The tenant's objects of a kind that are not on the host.
    pub fn keys_missing_on_host(&self, id: KindId) -> Vec<Key> {
        let mut keys = self.keys_of(id);
        keys.retain(|key| !self.stores.host(id).contains(&key.name));
        keys
    }

    /// The objects of a kind that reference an object.
    pub fn keys_that_reference(&self, user: KindId, target: &Key) -> Vec<Key> {
        let mut keys = self.references().users(target);
        keys.retain(|key| key.kind == user);
        keys
    }

    /// The objects of a kind, not of pods, that reference an object, and those of the kind on the host of which it is not known what they reference. No
    /// others are looked at, nor the pods that use the same: a team may change one object all the time. Others without room are not on the host, and do not
    /// come there.
    pub fn keys_that_may_reference(&self, user: KindId, target: &Key) -> Vec<Key> {
        let references = self.references();
        let known = references.users_besides_pods(target);
        let all = known.chain(references.left_out_on_host());
        all.filter(|key| key.kind == user).cloned().collect()
    }
}
