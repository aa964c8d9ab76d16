//! One pass over the GPUs of one tenant.

use crate::{
    Seconds,
    evidence::{self, Metrics, Unknown, Verdict},
    ladder::{self, LadderState, Observation, UnknownTime},
    opt_out,
    pod::{DevicesHeld, GpuPod},
    policy::{Policy, Timings},
    workload::{self, Workload, WorkloadName},
};
use berth_api::{
    IdleReclaimMode, IdleStatus, IdleStep, IdleWorkload, MOST_IDLE_WORKLOADS, UnknownGpus, UnlistedWorkloads,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where the workloads of a tenant are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    workloads: BTreeMap<WorkloadName, LadderState>,
    /// The workload that each pod belonged to, by UID on the host. Teams choose the labels that name it, and change them.
    pods: BTreeMap<String, WorkloadName>,
}

impl States {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is held against any workload.
    pub fn is_empty(&self) -> bool {
        self.workloads.is_empty()
    }

    /// Where the workload with this name is; none if nothing is held against it.
    pub fn get(&self, workload: &WorkloadName) -> Option<&LadderState> {
        self.workloads.get(workload)
    }

    /// The workloads, and where they are.
    pub fn workloads(&self) -> impl Iterator<Item = (&WorkloadName, &LadderState)> {
        self.workloads.iter()
    }

    /// Lets the time of the step of a workload start again.
    pub fn pause(&mut self, workload: &WorkloadName) {
        if let Some(state) = self.workloads.get_mut(workload) {
            state.paused = true;
        }
    }

    /// Lets the time of each step start again.
    pub fn pause_all(&mut self) {
        for state in self.workloads.values_mut() {
            state.paused = true;
        }
    }

    /// Where the pods of a workload that hold devices were, whatever its name was then. If that is not known of all of them, where the workload with its
    /// name was.
    fn find(&self, name: &WorkloadName, pods: &[Arc<GpuPod>]) -> Option<LadderState> {
        let holding = pods.iter().filter(|pod| pod.holds_devices());
        let known: Option<Vec<LadderState>> = holding.map(|pod| self.get(self.pods.get(&pod.uid)?).copied()).collect();
        let of_pods = known.and_then(|known| known.into_iter().reduce(LadderState::merge));
        of_pods.or_else(|| self.get(name).copied())
    }
}

/// What a pass knows of one tenant.
#[derive(Clone, Copy, Debug)]
pub struct TenantInput<'a> {
    /// The rules of its class.
    pub policy: &'a Policy,
    /// Its host pods that request devices.
    pub pods: &'a [Arc<GpuPod>],
    /// Extended resources that count the GPUs of pools.
    pub gpu_resources: &'a BTreeSet<String>,
    /// Where its workloads were after the pass before.
    pub states: &'a States,
}

/// What was decided about one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The workload.
    pub workload: WorkloadName,
    /// Its pods that have GPUs.
    pub pods: Vec<Arc<GpuPod>>,
    /// GPUs and MIG instances of these pods.
    pub gpus: u32,
    /// The profile that applies, if any.
    pub profile: Option<String>,
    /// What is known of the GPUs.
    pub verdict: Verdict,
    /// Whether the team excepted it.
    pub is_opted_out: bool,
    /// Where it is now; none if nothing is held against it.
    pub state: Option<LadderState>,
    /// When the next step is due.
    pub next_step_at: Option<Seconds>,
    /// Whether the last step comes later as long as one of its pods waits for a node, or may not start.
    pub awaits_pods: bool,
}

impl Decision {
    /// The last step that was taken.
    pub fn step(&self) -> Option<IdleStep> {
        self.state.map(|state| state.step)
    }

    /// Whether its pods are to be evicted: it took the last step, and nothing has changed since.
    pub fn is_due(&self, mode: IdleReclaimMode) -> bool {
        mode == IdleReclaimMode::Enforce
            && self.verdict == Verdict::Idle
            && self
                .state
                .is_some_and(|state| state.step == IdleStep::Reclaimable && !state.paused)
    }

    /// Whether it took its first or its last step in this pass. `before` is where the workloads were: another name makes none new.
    pub fn is_new(&self, before: &States) -> bool {
        let earlier = before.find(&self.workload, &self.pods).map(|state| state.step);
        let is_announced = matches!(self.step(), Some(IdleStep::Warned | IdleStep::Reclaimable));
        is_announced && self.step() != earlier
    }

    /// Whether the last step may come before `next_step_at`: what it waits for may get its node, or be deleted, at any time.
    pub fn may_come_sooner(&self) -> bool {
        self.awaits_pods && self.step() == Some(IdleStep::CheckpointRequested)
    }

    /// Whether disruption budgets may keep its pods no longer: it took the last step this long ago.
    pub fn is_overdue(&self, eviction_timeout: Seconds, now: Seconds) -> bool {
        let last = self.state.filter(|state| state.step == IdleStep::Reclaimable);
        last.is_some_and(|state| state.step_since.saturating_add(eviction_timeout) <= now)
    }
}

/// Decides about all workloads of a tenant. Without metrics nothing is known, and nothing changes.
pub fn evaluate(input: &TenantInput<'_>, metrics: Option<&Metrics>, now: Seconds) -> Vec<Decision> {
    let has_gpus =
        |pod: &&Arc<GpuPod>| pod.devices_held != DevicesHeld::NoMore && pod.may_have_gpus(input.gpu_resources);
    let pods: Vec<Arc<GpuPod>> = input.pods.iter().filter(has_gpus).cloned().collect();
    // A pod that waits for a node may be what the others wait for: it is judged with them, and not alone.
    let holds_devices = |workload: &Workload| workload.pods.iter().any(|pod| pod.holds_devices());
    let workloads: Vec<Workload> = workload::group(&pods).into_iter().filter(holds_devices).collect();
    let gpus: Vec<u32> = workloads
        .iter()
        .map(|workload| gpus_of(workload, input.gpu_resources))
        .collect();
    let excepted = opt_out::find_excepted(input.policy.opt_out.as_ref(), &workloads, &gpus);
    workloads
        .into_iter()
        .zip(gpus)
        .enumerate()
        .map(|(index, (workload, gpus))| decide(input, metrics, workload, gpus, excepted.contains(&index), now))
        .collect()
}

fn gpus_of(workload: &Workload, resources: &BTreeSet<String>) -> u32 {
    let holding = workload.pods.iter().filter(|pod| pod.holds_devices());
    holding.map(|pod| pod.gpus(resources)).fold(0, u32::saturating_add)
}

fn decide(
    input: &TenantInput<'_>,
    metrics: Option<&Metrics>,
    workload: Workload,
    gpus: u32,
    is_opted_out: bool,
    now: Seconds,
) -> Decision {
    let Workload { name, pods } = workload;
    let mut profile = None;
    let mut longest = Timings::default();
    let mut verdict = Verdict::Idle;
    let mut last_start = Some(Seconds::MIN);
    let mut awaits_pods = false;
    for pod in &pods {
        let (of_pod, timings) = input.policy.timings_of(&pod.labels);
        profile = profile.or(of_pod);
        longest = longest.longest(timings);
        if pod.is_restricted {
            // It has no chance to do something, or is ended anyway.
            verdict = verdict.max(Verdict::Unknown(Unknown::OutsideSchedule));
        }
        if pod.devices_held == DevicesHeld::NotYet {
            // The others may be waiting for it, but not for ever: it may never get a node.
            awaits_pods = true;
            continue;
        }
        awaits_pods |= pod.awaits_others;
        let known = evidence::judge(pod, input.policy, timings, input.gpu_resources, metrics, now);
        verdict = verdict.max(known);
        let started = evidence::start_of(pod, timings, now);
        last_start = last_start.and_then(|last| Some(last.max(started?)));
        if pod.is_ending {
            // The others may be waiting for it.
            verdict = verdict.max(Verdict::Unknown(Unknown::NotStarted));
        }
    }
    let observation = Observation {
        verdict,
        last_start,
        awaits_pods,
        timings: longest,
    };
    let before = input.states.find(&name, &pods);
    let state = ladder::advance(before, &observation, now).filter(|_| !is_opted_out);
    Decision {
        next_step_at: state.and_then(|state| ladder::next_step_at(&state, &observation)),
        profile: profile.map(ToOwned::to_owned),
        workload: name,
        pods,
        gpus,
        verdict,
        is_opted_out,
        state,
        awaits_pods,
    }
}

/// Where the workloads of a tenant are after a pass. Those that its team excepted wait where they were `before`, unless their GPUs do something: they do not begin
/// anew once they are no longer excepted, so that a team cannot keep all its GPUs by excepting a few of them in turn.
pub fn states_after(decisions: &[Decision], before: &States) -> States {
    let mut states = States::new();
    for decision in decisions {
        let Decision {
            workload, pods, state, ..
        } = decision;
        let waits = decision.is_opted_out && decision.verdict != Verdict::Active;
        let waiting = || {
            let known = before.find(workload, pods).filter(|_| waits);
            known.map(|known| LadderState { paused: true, ..known })
        };
        let Some(state) = state.or_else(waiting) else { continue };
        states.workloads.insert(workload.clone(), state);
        let of_workload = pods.iter().map(|pod| (pod.uid.clone(), workload.clone()));
        states.pods.extend(of_workload);
    }
    states
}

/// Where the workloads of a tenant are by its status. What was found in another mode does not count: in a dry run no team was
/// warned.
pub fn states_of(status: Option<&IdleStatus>, mode: IdleReclaimMode) -> States {
    let Some(status) = status.filter(|status| status.mode == mode) else {
        return States::new();
    };
    let read = |workload: &IdleWorkload| {
        let name = WorkloadName {
            kind: workload.kind.clone(),
            namespace: workload.namespace.clone(),
            name: workload.name.clone(),
        };
        let state = LadderState {
            idle_since: workload.idle_since.0.as_second(),
            step: workload.step,
            step_since: workload.step_since.0.as_second(),
            paused: workload.paused,
            unknown: UnknownTime {
                since: workload.unknown_since.as_ref().map(|since| since.0.as_second()),
                before: workload.unknown_seconds.into(),
            },
        };
        (name, state)
    };
    States {
        workloads: status.workloads.iter().map(read).collect(),
        // The status has no pods.
        pods: BTreeMap::new(),
    }
}

/// The status of the tenant, without what is known of owners. It changes only if a workload takes a step, appears or ends, or if metrics come or go.
pub fn report(policy: &Policy, decisions: &[Decision]) -> IdleStatus {
    let sum = |of: &dyn Fn(&Decision) -> bool| {
        let gpus = decisions
            .iter()
            .filter(|decision| of(decision))
            .map(|decision| decision.gpus);
        gpus.fold(0, u32::saturating_add)
    };
    let mut unknown: BTreeMap<&'static str, u32> = BTreeMap::new();
    for decision in decisions.iter().filter(|decision| !decision.is_opted_out) {
        if let Verdict::Unknown(reason) = decision.verdict {
            let gpus = unknown.entry(reason.as_str()).or_default();
            *gpus = gpus.saturating_add(decision.gpus);
        }
    }
    let mut workloads: Vec<IdleWorkload> = decisions.iter().filter_map(describe).collect();
    workloads.sort_by(|a, b| {
        let key = |workload: &IdleWorkload| (Reverse(workload.gpus), workload.idle_since.0);
        key(a)
            .cmp(&key(b))
            .then_with(|| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)))
    });
    let unlisted = sum_unlisted(workloads.get(MOST_IDLE_WORKLOADS..).unwrap_or_default());
    workloads.truncate(MOST_IDLE_WORKLOADS);
    IdleStatus {
        mode: policy.mode,
        last_step: policy.last_step,
        gpus: sum(&|_| true),
        idle_gpus: sum(&|decision| decision.verdict == Verdict::Idle && !decision.is_opted_out),
        unknown_gpus: unknown
            .into_iter()
            .map(|(reason, gpus)| UnknownGpus {
                reason: reason.to_owned(),
                gpus,
            })
            .collect(),
        opted_out_gpus: sum(&|decision| decision.is_opted_out),
        gpu_hour_price: policy.gpu_hour_price.clone(),
        workloads,
        unlisted,
        // Who looks into the tenant adds them.
        stopped_owners: Vec::new(),
        // Who looks at nodes adds them.
        nodes: Vec::new(),
        unlisted_nodes: None,
    }
}

/// The sum of workloads that are not listed, of those of which it is known that they do nothing; none if there are none.
fn sum_unlisted(workloads: &[IdleWorkload]) -> Option<UnlistedWorkloads> {
    let known = || workloads.iter().filter(|workload| workload.unknown_since.is_none());
    let gpus = known().map(|workload| workload.gpus).fold(0, u32::saturating_add);
    let since = known().map(|workload| i128::from(workload.gpus) * i128::from(workload.counted_since()));
    let average = since.sum::<i128>().checked_div(gpus.into())?;
    Some(UnlistedWorkloads {
        workloads: u32::try_from(known().count()).unwrap_or(u32::MAX),
        gpus,
        idle_since: time(Seconds::try_from(average).ok()?)?,
    })
}

fn describe(decision: &Decision) -> Option<IdleWorkload> {
    let state = decision.state?;
    let WorkloadName { kind, namespace, name } = decision.workload.clone();
    Some(IdleWorkload {
        kind,
        namespace,
        name,
        profile: decision.profile.clone(),
        // See above.
        owner: None,
        gpus: decision.gpus,
        idle_since: time(state.idle_since)?,
        step: state.step,
        step_since: time(state.step_since)?,
        next_step_at: decision.next_step_at.and_then(time),
        paused: state.paused,
        unknown_since: state.unknown.since.and_then(time),
        unknown_seconds: u32::try_from(state.unknown.before).unwrap_or_default(),
    })
}

fn time(second: Seconds) -> Option<Time> {
    Timestamp::from_second(second).ok().map(Time)
}
