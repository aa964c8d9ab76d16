//! The tenants, the rules of their classes, and where their workloads are.

use super::{owners::OwnerKey, turns::Pace, waits::Waits};
use crate::{
    controllers::{schedule_policy::RestrictedPods, tenant::running_class},
    metrics::TenantLabels,
    stores::Stores,
};
use berth_api::{IdleReclaimMode, IdleStatus, IdleStep, StoppedOwner, TenantCluster, names::TenantId};
use berth_idle_reclaim::{
    attempts::Attempts,
    gaps::GapMemory,
    pass::{self, States},
    pod::GpuPod,
    policy::Policy,
    workload::WorkloadName,
};
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Owners of a workload that are noted while not all of them can be warned.
const MAX_OWNERS: usize = 64;

/// A tenant that exists.
pub(super) struct ObservedTenant {
    pub(super) cluster: Arc<TenantCluster>,
    pub(super) id: TenantId,
    pub(super) uid: String,
    /// The class that it runs with.
    pub(super) class: Option<String>,
    /// The rules of that class; off without one.
    pub(super) policy: Policy,
}

impl ObservedTenant {
    /// Namespace and name of its `TenantCluster`.
    pub(super) fn names(&self) -> (String, String) {
        (self.cluster.namespace().unwrap_or_default(), self.cluster.name_any())
    }

    /// The same in metrics.
    pub(super) fn labels(&self) -> TenantLabels {
        let (tenant_namespace, tenant) = self.names();
        TenantLabels {
            tenant_namespace,
            tenant,
        }
    }

    /// Whether it has nodes beyond the nominal quota of its class, as its status says.
    pub(super) fn is_over_quota(&self) -> bool {
        let status = self.cluster.status.as_ref();
        let groups = status.map(|status| status.node_groups.as_slice());
        groups.unwrap_or_default().iter().any(|group| group.borrowed > 0)
    }

    /// What its status says of its GPUs.
    pub(super) fn published(&self) -> Option<&IdleStatus> {
        self.cluster.status.as_ref()?.idle.as_ref()
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
                class: of_tenant.as_ref().map(|class| class.name_any()),
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
        // A team would otherwise give its pods such labels while a window is open, or for a moment each few minutes.
        let awaits_others = restricted.goes_on_by_labels(&pod.origin_namespace, &pod.labels);
        Arc::new(GpuPod {
            is_restricted: !awaits_others,
            awaits_others,
            ..GpuPod::clone(&pod)
        })
    };
    pods.into_iter().map(mark).collect()
}

/// States that another control left. What the GPUs did until now is not known, as after metrics were missing: the time of each step
/// starts again.
fn paused(mut states: States) -> States {
    states.pause_all();
    states
}

/// What a pass remembers for the next one. A new control reads it from the status of the `TenantCluster`s.
#[derive(Default)]
pub(super) struct Memory {
    by_tenant: HashMap<String, (IdleReclaimMode, States)>,
    /// The last Event about each host pod, by its UID: an Event is published once.
    pub(super) published: HashMap<String, &'static str>,
    /// Steps that the annotations of pods in tenants name, by the UID of the host pod.
    pub(super) marked: HashMap<String, Option<IdleStep>>,
    /// What is known of the inside of tenants, by UID of the `TenantCluster`.
    pub(super) inside: HashMap<String, InTenant>,
    /// What was tried with pods that were due.
    pub(super) attempts: Attempts,
    /// Pods whose series had no gaps.
    pub(super) gaps: GapMemory,
    /// Tenants of which the seconds of idle GPUs are counted.
    pub(super) counted: HashSet<TenantLabels>,
    /// Until when the seconds of idle GPUs are counted.
    counted_until: Option<Instant>,
    empty: States,
}

/// What is known of the inside of a tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct InTenant {
    /// Owners that carry a warning, with the step that it names, by workload.
    pub(super) owners: HashMap<WorkloadName, (Option<IdleStep>, Vec<OwnerKey>)>,
    /// Workloads whose warnings could not be written. They come last.
    pub(super) failed: HashSet<WorkloadName>,
    /// Owners that were stopped: a copy of what the status lists.
    pub(super) stopped: Vec<StoppedOwner>,
    /// UIDs of those whose kind the tenant did not serve when it was looked for last.
    pub(super) not_served: HashSet<String>,
    /// Which owners somebody asked on the host to start, if that is not done yet.
    pub(super) request: Option<String>,
    /// How long this pass still waits for the tenant, and what was too slow in it.
    pub(super) waits: Waits,
    /// How long its API server takes.
    pub(super) pace: Pace,
    /// What the status says, or is about to.
    pub(super) report: IdleStatus,
}

impl InTenant {
    /// Notes the owners of a workload that carry a warning. If that is not true of all of them, those that may carry an earlier one stay noted.
    pub(super) fn note_owners(
        &mut self,
        workload: WorkloadName,
        step: Option<IdleStep>,
        owners: Vec<OwnerKey>,
        is_complete: bool,
    ) {
        if is_complete {
            self.owners.insert(workload, (step, owners));
            return;
        }
        let (_, noted) = self.owners.entry(workload).or_default();
        for owner in owners {
            if noted.len() < MAX_OWNERS && !noted.contains(&owner) {
                noted.push(owner);
            }
        }
    }

    /// Adds to a report what is known of owners. `published` is what the status says.
    pub(super) fn complete(&mut self, mut report: IdleStatus, published: Option<&IdleStatus>) -> IdleStatus {
        let before = published.map(|status| status.workloads.as_slice()).unwrap_or_default();
        for workload in &mut report.workloads {
            let name = WorkloadName {
                kind: workload.kind.clone(),
                namespace: workload.namespace.clone(),
                name: workload.name.clone(),
            };
            workload.owner = match self.owners.get(&name) {
                Some((_, owners)) => owners.first().map(OwnerKey::as_idle_owner),
                // A new control looks after it has written the status.
                None => before
                    .iter()
                    .find(|known| {
                        (&known.kind, &known.namespace, &known.name) == (&name.kind, &name.namespace, &name.name)
                    })
                    .and_then(|known| known.owner.clone()),
            };
        }
        report.stopped_owners.clone_from(&self.stopped);
        self.report = report.clone();
        report
    }
}

impl Memory {
    /// Forgets tenants and pods that are gone.
    pub(super) fn retain(&mut self, tenants: &[ObservedTenant], pods: &HashMap<String, Vec<Arc<GpuPod>>>) {
        let known: HashSet<&str> = tenants.iter().map(|tenant| tenant.uid.as_str()).collect();
        self.by_tenant.retain(|uid, _| known.contains(uid.as_str()));
        self.inside.retain(|uid, _| known.contains(uid.as_str()));
        let known: HashSet<&str> = pods.values().flatten().map(|pod| pod.uid.as_str()).collect();
        self.published.retain(|uid, _| known.contains(uid.as_str()));
        self.marked.retain(|uid, _| known.contains(uid.as_str()));
        self.attempts.retain(|uid| known.contains(uid));
        for pod in pods.values().flatten() {
            // What an earlier control warned of carries an annotation, too.
            let was_warned = pod.condition.as_ref().is_some_and(|condition| condition.is_true);
            let marked = self.marked.entry(pod.uid.clone());
            marked.or_insert_with(|| was_warned.then_some(IdleStep::Warned));
        }
    }

    /// Tenants whose seconds were counted and that are gone, by name: one that was made again under its name goes on. They are forgotten.
    pub(super) fn take_gone(&mut self, tenants: &[ObservedTenant]) -> Vec<TenantLabels> {
        let known: HashSet<TenantLabels> = tenants.iter().map(ObservedTenant::labels).collect();
        let gone: Vec<TenantLabels> = self.counted.difference(&known).cloned().collect();
        self.counted.retain(|labels| known.contains(labels));
        gone
    }

    /// What is known of the inside of a tenant. A new control reads from the status which owners were stopped.
    pub(super) fn inside(&mut self, tenant: &ObservedTenant) -> &mut InTenant {
        self.inside.entry(tenant.uid.clone()).or_insert_with(|| InTenant {
            stopped: tenant
                .published()
                .map(|status| status.stopped_owners.clone())
                .unwrap_or_default(),
            ..InTenant::default()
        })
    }

    /// Where the workloads of a tenant are. In another mode than before all begin anew: in a dry run no team was warned.
    pub(super) fn states(&mut self, tenant: &ObservedTenant) -> &States {
        let mode = tenant.policy.mode;
        let status = tenant.published();
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

    /// Whole seconds since it was called last; none the first time: what was before that is not known.
    pub(super) fn count_seconds(&mut self) -> u64 {
        let until = self.counted_until.get_or_insert_with(Instant::now);
        let seconds = until.elapsed().as_secs();
        // The rest counts the next time.
        *until += Duration::from_secs(seconds);
        seconds
    }

    /// Lets the time of each step of a tenant's workloads start again.
    pub(super) fn pause(&mut self, tenant: &ObservedTenant) {
        let known = self.by_tenant.get_mut(&tenant.uid);
        if let Some((_, states)) = known {
            states.pause_all();
        }
    }

    /// The same for one workload of a tenant.
    pub(super) fn pause_workload(&mut self, tenant: &ObservedTenant, workload: &WorkloadName) {
        let known = self.by_tenant.get_mut(&tenant.uid);
        if let Some((_, states)) = known {
            states.pause(workload);
        }
    }

    /// Forgets a tenant whose class no longer reclaims GPUs.
    pub(super) fn forget(&mut self, tenant: &ObservedTenant) {
        self.by_tenant.remove(&tenant.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{NodeGroupStatus, TenantClusterSpec, TenantClusterStatus};

    #[test]
    fn owners_stay_noted_until_all_of_a_workload_are_warned() {
        let owner = |number: usize| OwnerKey {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            namespace: "ml".into(),
            name: format!("web-{number}"),
            uid: number.to_string(),
        };
        let mut inside = InTenant::default();
        let name = WorkloadName::default();
        let step = Some(IdleStep::Warned);
        for number in [0, 1, 1] {
            inside.note_owners(name.clone(), step, vec![owner(number)], false);
        }
        assert_eq!(
            inside.owners[&name],
            (None, vec![owner(0), owner(1)]),
            "they are warned again"
        );
        inside.note_owners(name.clone(), step, (0..1000).map(owner).collect(), false);
        assert_eq!(inside.owners[&name].1.len(), MAX_OWNERS);
        inside.note_owners(name.clone(), step, vec![owner(1)], true);
        assert_eq!(inside.owners[&name], (step, vec![owner(1)]));
    }

    #[test]
    fn a_tenant_with_borrowed_nodes_is_over_its_quota() {
        let tenant = |borrowed: &[u32]| {
            let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
            let group = |borrowed: &u32| NodeGroupStatus {
                borrowed: *borrowed,
                ..NodeGroupStatus::default()
            };
            cluster.status = Some(TenantClusterStatus {
                node_groups: borrowed.iter().map(group).collect(),
                ..TenantClusterStatus::default()
            });
            ObservedTenant {
                id: TenantId::new("vision", "u"),
                uid: "u".into(),
                class: None,
                policy: Policy::default(),
                cluster: Arc::new(cluster),
            }
        };
        assert!(!tenant(&[]).is_over_quota());
        assert!(!tenant(&[0, 0]).is_over_quota());
        assert!(tenant(&[0, 2]).is_over_quota());
    }
}
