//! The tenants, the rules of their classes, and where their workloads are.

use crate::{
    controllers::{schedule_policy::RestrictedPods, tenant::running_class},
    stores::Stores,
};
use berth_api::{IdleReclaimMode, TenantCluster, names::TenantId};
use berth_idle_reclaim::{
    ladder::LadderState,
    pass::{self, States},
    pod::GpuPod,
    policy::Policy,
};
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// A tenant that exists.
pub(super) struct ObservedTenant {
    pub(super) cluster: Arc<TenantCluster>,
    pub(super) id: TenantId,
    pub(super) uid: String,
    /// The rules of the class that it runs with; off without a class.
    pub(super) policy: Policy,
}

impl ObservedTenant {
    /// Namespace and name of its `TenantCluster`.
    pub(super) fn names(&self) -> (String, String) {
        (self.cluster.namespace().unwrap_or_default(), self.cluster.name_any())
    }
}

/// All tenants that are not being deleted.
pub(super) fn observe(stores: &Stores) -> Vec<ObservedTenant> {
    let class = |name: &str| stores.classes.get(&ObjectRef::new(name));
    let tenants = stores.tenants.state();
    let existing = tenants
        .into_iter()
        .filter(|tenant| tenant.metadata.deletion_timestamp.is_none());
    existing
        .filter_map(|cluster| {
            let uid = cluster.uid()?;
            // Not the class that its spec names: a spec that is not accepted keeps no rule away.
            let running = cluster.status.as_ref().and_then(|status| status.class_name.as_deref());
            let of_tenant =
                running_class(&cluster, running, |name| class(name).is_some()).and_then(|name| class(&name));
            Some(ObservedTenant {
                id: TenantId::new(&cluster.name_any(), &uid),
                policy: of_tenant.map_or_else(Policy::default, |class| Policy::new(&class.spec.idle_reclaim)),
                uid,
                cluster,
            })
        })
        .collect()
}

/// Extended resources that count the GPUs of pools.
pub(super) fn gpu_resources(stores: &Stores) -> BTreeSet<String> {
    let pools = stores.pools.state();
    pools
        .iter()
        .filter_map(|pool| pool.spec.gpu_resource_name.clone())
        .collect()
}

/// The pods of a tenant, those marked that schedules restrict.
pub(super) fn mark_restricted(pods: Vec<Arc<GpuPod>>, restricted: &RestrictedPods) -> Vec<Arc<GpuPod>> {
    if restricted.is_empty() {
        return pods;
    }
    let mark = |pod: Arc<GpuPod>| {
        if !restricted.contains(&pod.origin_namespace, &pod.labels) {
            return pod;
        }
        Arc::new(GpuPod {
            is_restricted: true,
            ..GpuPod::clone(&pod)
        })
    };
    pods.into_iter().map(mark).collect()
}

/// States that another control left. What the GPUs did until now is not known, as after metrics were missing: the time of each step
/// starts again.
fn paused(states: States) -> States {
    states
        .into_iter()
        .map(|(name, state)| (name, LadderState { paused: true, ..state }))
        .collect()
}

/// What a pass remembers for the next one. A new control reads it from the status of the `TenantCluster`s.
#[derive(Default)]
pub(super) struct Memory {
    by_tenant: HashMap<String, (IdleReclaimMode, States)>,
    /// The last Event about each host pod, by its UID: an Event is published once.
    pub(super) published: HashMap<String, &'static str>,
    empty: States,
}

impl Memory {
    /// Forgets tenants and pods that are gone.
    pub(super) fn retain(&mut self, tenants: &[ObservedTenant], pods: &HashMap<String, Vec<Arc<GpuPod>>>) {
        let known: HashSet<&str> = tenants.iter().map(|tenant| tenant.uid.as_str()).collect();
        self.by_tenant.retain(|uid, _| known.contains(uid.as_str()));
        let known: HashSet<&str> = pods.values().flatten().map(|pod| pod.uid.as_str()).collect();
        self.published.retain(|uid, _| known.contains(uid.as_str()));
    }

    /// Where the workloads of a tenant are. In another mode than before all begin anew: in a dry run no team was warned.
    pub(super) fn states(&mut self, tenant: &ObservedTenant) -> &States {
        let mode = tenant.policy.mode;
        let status = tenant.cluster.status.as_ref().and_then(|status| status.idle.as_ref());
        let known: &(IdleReclaimMode, States) = self
            .by_tenant
            .entry(tenant.uid.clone())
            .or_insert_with(|| (mode, paused(pass::states_of(status, mode))));
        if known.0 == mode { &known.1 } else { &self.empty }
    }

    /// Remembers where they are now.
    pub(super) fn remember(&mut self, tenant: &ObservedTenant, states: States) {
        self.by_tenant.insert(tenant.uid.clone(), (tenant.policy.mode, states));
    }

    /// Lets the time of each step of a tenant's workloads start again.
    pub(super) fn pause(&mut self, tenant: &ObservedTenant) {
        let known = self.by_tenant.get_mut(&tenant.uid);
        for state in known.into_iter().flat_map(|(_, states)| states.values_mut()) {
            state.paused = true;
        }
    }

    /// Forgets a tenant whose class no longer reclaims GPUs.
    pub(super) fn forget(&mut self, tenant: &ObservedTenant) {
        self.by_tenant.remove(&tenant.uid);
    }
}
