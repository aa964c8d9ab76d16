//! What is decided about workloads, by the metrics of one moment: in a pass about all of them, and once more about those that are about to
//! be given back.

use super::{
    IdleGpusContext,
    collect::collect_anew,
    tenants::{self, Memory, ObservedTenant},
};
use crate::controllers::schedule_policy::ObservedSchedules;
use berth_api::IdleReclaimMode;
use berth_idle_reclaim::{
    Seconds,
    evidence::Metrics,
    pass::{self, Decision, TenantInput},
    pod::GpuPod,
    question::Questions,
};
use berth_prometheus::QueryError;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// What decisions of one moment depend on, besides metrics and pods.
pub(super) struct Moment<'a> {
    pub(super) now: Seconds,
    pub(super) gpu_resources: BTreeSet<String>,
    schedules: ObservedSchedules<'a>,
}

impl<'a> Moment<'a> {
    /// What is known now.
    pub(super) fn observe(context: &'a IdleGpusContext) -> Self {
        let time = context.clock.now();
        Self {
            now: time.as_second(),
            gpu_resources: tenants::gpu_resources(&context.stores),
            schedules: context.schedules.observe(&context.stores, time),
        }
    }

    /// Decides about the workloads of a tenant.
    pub(super) fn judge(
        &self,
        memory: &mut Memory,
        tenant: &ObservedTenant,
        pods: Vec<Arc<GpuPod>>,
        metrics: Option<&Metrics>,
    ) -> Vec<Decision> {
        let restricted = self.schedules.restricted_pods(&tenant.cluster);
        let input = TenantInput {
            policy: &tenant.policy,
            pods: &tenants::mark_restricted(pods, &restricted),
            gpu_resources: &self.gpu_resources,
            states: memory.states(tenant),
        };
        pass::evaluate(&input, metrics, self.now)
    }
}

/// What is decided now about the workloads of some tenants, by UID.
pub(super) type Confirmed = HashMap<String, Vec<Decision>>;

/// Asks Prometheus once more about workloads that are due, and decides again with the pods that they have now. A pass may take minutes
/// until it gets here, and a pod that woke up meanwhile must not leave.
///
/// # Errors
/// There is no complete answer within `timeout`: nothing is known, and nothing may be given back.
pub(super) async fn confirm(
    context: &IdleGpusContext,
    memory: &mut Memory,
    due: &[(&ObservedTenant, &Decision)],
    timeout: Duration,
) -> Result<Confirmed, QueryError> {
    let moment = Moment::observe(context);
    let Some(source) = &context.source else {
        return Ok(Confirmed::new());
    };
    let questions = Questions::about_few(
        due.iter()
            .map(|(tenant, decision)| (&tenant.policy, decision.pods.as_slice())),
        &moment.gpu_resources,
    );
    let metrics = collect_anew(source, &questions, timeout, moment.now).await?;
    let mut confirmed = Confirmed::new();
    let mut pods = context.stores.gpu_pods.by_tenant();
    for (tenant, _) in due {
        if !confirmed.contains_key(&tenant.uid) {
            let pods = pods.remove(tenant.id.slug()).unwrap_or_default();
            let decisions = moment.judge(memory, tenant, pods, Some(&metrics));
            confirmed.insert(tenant.uid.clone(), decisions);
        }
    }
    Ok(confirmed)
}

/// The decision about a workload, if it is still due.
pub(super) fn find_due<'a>(
    confirmed: &'a Confirmed,
    tenant: &ObservedTenant,
    before: &Decision,
) -> Option<&'a Decision> {
    find_due_of(confirmed.get(&tenant.uid)?, tenant.policy.mode, before)
}

/// That of the pods that hold devices, whatever name it has by now: teams choose the labels that name it, and can change them all the time.
fn find_due_of<'a>(decisions: &'a [Decision], mode: IdleReclaimMode, before: &Decision) -> Option<&'a Decision> {
    let holding = before.pods.iter().filter(|pod| pod.holds_devices());
    let holding: HashSet<&str> = holding.map(|pod| pod.uid.as_str()).collect();
    let is_same = |decision: &&Decision| decision.pods.iter().any(|pod| holding.contains(pod.uid.as_str()));
    let mut same = decisions.iter().filter(is_same);
    same.find(|decision| decision.is_due(mode))
}

#[cfg(test)]
mod tests {
    use super::{super::test_decision::idle_at, *};
    use berth_api::IdleStep;
    use berth_idle_reclaim::{evidence::Verdict, pod::DevicesHeld};

    /// A workload that is due, with one pod.
    fn due(workload: &str, pod: &str) -> Decision {
        let pod = GpuPod {
            uid: pod.into(),
            devices_held: DevicesHeld::Now,
            ..GpuPod::default()
        };
        Decision {
            pods: vec![Arc::new(pod)],
            gpus: 1,
            ..idle_at(IdleStep::Reclaimable, workload)
        }
    }

    #[test]
    fn another_name_of_a_workload_does_not_keep_it() {
        let mut active = due("job-1", "b");
        active.verdict = Verdict::Active;
        let decisions = [active, due("job-3", "c"), due("job-2", "a")];
        let found = |pod: &str| {
            let found = find_due_of(&decisions, IdleReclaimMode::Enforce, &due("job-1", pod));
            found.map(|decision| decision.workload.name.as_str())
        };
        assert_eq!(found("a"), Some("job-2"));
        assert_eq!(found("b"), None, "it is active by now");
        assert_eq!(found("d"), None, "it is gone, and others have its name");
    }
}
