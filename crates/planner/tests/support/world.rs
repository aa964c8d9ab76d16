//! A simulated fleet: pods come and go, and an executor carries out plans, step by step.

use super::{GPU, executor, gpus};
use berth_planner::{Demand, Fleet, NodeState, Phase, Plan, Seconds, plan};
use std::collections::BTreeMap;

/// Time between two steps.
pub const STEP: Seconds = 60;
/// How long a node is being scrubbed and validated.
pub const RECYCLING: Seconds = 180;
/// How long pods stay on a node that is being drained, where budgets hold up its drain.
pub const DRAIN: Seconds = 240;

/// Demand with this name fits on nodes, and its pods never start: an affinity to pods that do not exist, for example.
pub const STUCK: &str = "stuck";

/// Demand that arrives at some step.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub step: usize,
    pub tenant: usize,
    pub demand: Demand,
    /// How long its pods run, in steps.
    pub runs: usize,
}

struct Pod {
    node: usize,
    gpus: u64,
    ends: usize,
    tenant: usize,
    /// Demand that waits again if the pod is stopped: all pods of a gang.
    demand: Demand,
    runs: usize,
}

/// The fleet and what runs on it.
pub struct World {
    pub fleet: Fleet,
    pub step: usize,
    pods: Vec<Pod>,
    runs: BTreeMap<String, usize>,
}

impl World {
    pub fn new(fleet: Fleet) -> Self {
        Self {
            fleet,
            step: 0,
            pods: Vec::new(),
            runs: BTreeMap::new(),
        }
    }

    /// Adds demand to a tenant's first group.
    pub fn add_demand(&mut self, tenant: usize, mut demand: Demand, runs: usize) {
        demand.waiting_since = self.fleet.now;
        self.runs.insert(demand.name.clone(), runs);
        self.fleet.tenants[tenant].node_groups[0].demand.push(demand);
    }

    /// Removes finished pods, makes a plan and carries it out except on nodes for which `fails` returns true; then time passes.
    pub fn advance(&mut self, fails: impl Fn(&str) -> bool) -> Plan {
        let over: Vec<Pod> = self.pods.extract_if(.., |pod| pod.ends <= self.step).collect();
        for pod in over {
            self.remove_pod(&pod);
        }
        self.update_gangs();
        self.note_free_nodes();
        let made = plan(&self.fleet);
        let mut done = made.clone();
        done.actions.retain(|action| !fails(&action.node));
        executor::apply(&mut self.fleet, &done);
        self.advance_nodes();
        self.schedule_pods();
        self.step += 1;
        self.fleet.now += STEP;
        made
    }

    fn update_gangs(&mut self) {
        for (at, node) in self.fleet.nodes.iter_mut().enumerate() {
            let here = self.pods.iter().filter(|pod| pod.node == at && pod.demand.gang);
            node.gangs = here.map(|pod| pod.demand.name.clone()).collect();
        }
    }

    fn note_free_nodes(&mut self) {
        let now = self.fleet.now;
        for node in &mut self.fleet.nodes {
            let is_free = node.state == NodeState::Free;
            node.free_since = is_free.then(|| node.free_since.unwrap_or(now));
        }
    }

    /// Counts the nodes of a tenant that count for reservations.
    pub fn count_joining_nodes(fleet: &Fleet, tenant: &str) -> u32 {
        let there = fleet.nodes.iter().filter(|node| match &node.state {
            NodeState::Owned(owner) => owner.tenant == tenant && !matches!(owner.phase, Phase::Cordoned { .. }),
            _ => false,
        });
        u32::try_from(there.count()).unwrap()
    }

    fn advance_nodes(&mut self) {
        let now = self.fleet.now;
        let before = self.fleet.clone();
        for at in 0..self.fleet.nodes.len() {
            let node = &mut self.fleet.nodes[at];
            match &mut node.state {
                NodeState::Recycling { since, .. } if *since + RECYCLING <= now => node.state = NodeState::Free,
                NodeState::Owned(owner) => match owner.phase {
                    Phase::Reserved { required_nodes: of }
                        if Self::count_joining_nodes(&before, &owner.tenant) >= of =>
                    {
                        owner.phase = Phase::Joining;
                    }
                    Phase::Joining => owner.phase = Phase::Assigned,
                    Phase::Cordoned { drain_at: until } if until <= now => {
                        let tenant = owner.tenant.clone();
                        node.state = NodeState::Draining { tenant, since: now };
                        self.drain(at);
                    }
                    _ => {}
                },
                NodeState::Draining { .. } => self.drain(at),
                _ => {}
            }
        }
    }

    /// Ends the drain of a node if no pods are left, or no budget holds for them any more. There are budgets for every other node.
    fn drain(&mut self, at: usize) {
        let (now, node) = (self.fleet.now, &self.fleet.nodes[at]);
        let NodeState::Draining { tenant, since } = node.state.clone() else {
            return;
        };
        if node.pods > 0 && at.is_multiple_of(2) && now < since + DRAIN {
            return;
        }
        self.stop_pods(at);
        let node = &mut self.fleet.nodes[at];
        node.idle_since = None;
        node.state = NodeState::Recycling {
            previous_tenant: tenant,
            since: now,
        };
    }

    /// Stops what runs on a node; the rest of a gang stops with it, and all of it waits again.
    fn stop_pods(&mut self, node: usize) {
        while let Some(at) = self.pods.iter().position(|pod| pod.node == node) {
            let demand = self.pods[at].demand.clone();
            let runs = self.pods[at].runs;
            let tenant = self.pods[at].tenant;
            let stopped: Vec<Pod> = if demand.gang {
                self.pods.extract_if(.., |pod| pod.demand.name == demand.name).collect()
            } else {
                vec![self.pods.remove(at)]
            };
            for pod in &stopped {
                self.remove_pod(pod);
            }
            let waiting = &mut self.fleet.tenants[tenant].node_groups[0].demand;
            if let Some(known) = waiting.iter_mut().find(|known| known.name == demand.name) {
                known.pod_sets[0].count += 1;
            } else {
                let mut again = demand;
                again.waiting_since = self.fleet.now;
                again.pod_sets[0].count = u32::try_from(stopped.len()).unwrap();
                self.runs.insert(again.name.clone(), runs);
                waiting.push(again);
            }
        }
    }

    fn remove_pod(&mut self, pod: &Pod) {
        let node = &mut self.fleet.nodes[pod.node];
        let used = node.used.entry(GPU.into()).or_default();
        *used -= pod.gpus;
        node.pods -= 1;
        if *used == 0 {
            node.used.clear();
            node.idle_since = Some(self.fleet.now);
        }
    }

    /// Schedules pods as the tenants' schedulers do; gangs start as a whole.
    fn schedule_pods(&mut self) {
        for tenant in 0..self.fleet.tenants.len() {
            let uid = self.fleet.tenants[tenant].uid.clone();
            let mut waiting = std::mem::take(&mut self.fleet.tenants[tenant].node_groups[0].demand);
            waiting.sort_by_key(|demand| (-demand.priority, demand.waiting_since));
            for demand in waiting.iter_mut().filter(|demand| demand.name != STUCK) {
                let (count, each) = (demand.pod_sets[0].count, demand.pod_sets[0].requests[GPU]);
                let mut free: Vec<(usize, u64)> = Vec::new();
                for (at, node) in self.fleet.nodes.iter().enumerate() {
                    let serves = match &node.state {
                        NodeState::Owned(owner) => owner.tenant == uid && owner.phase == Phase::Assigned,
                        _ => false,
                    };
                    if serves {
                        free.push((at, node.capacity[GPU] - node.used.get(GPU).copied().unwrap_or(0)));
                    }
                }
                free.sort_by_key(|(at, gpus)| (*gpus, *at));
                let places = free.iter().flat_map(|(at, gpus)| (0..gpus / each).map(|_| *at));
                let places: Vec<usize> = places.take(count as usize).collect();
                if demand.gang && places.len() < count as usize {
                    continue;
                }
                let runs = self.runs[&demand.name];
                demand.pod_sets[0].count -= u32::try_from(places.len()).unwrap();
                for node in places {
                    let on = &mut self.fleet.nodes[node];
                    *on.used.entry(GPU.into()).or_default() += each;
                    on.pods += 1;
                    on.idle_since = None;
                    on.priority = on.priority.max(demand.priority);
                    let mut single = demand.clone();
                    single.pod_sets[0].requests = gpus(each);
                    self.pods.push(Pod {
                        node,
                        gpus: each,
                        ends: self.step + runs,
                        tenant,
                        demand: single,
                        runs,
                    });
                }
            }
            waiting.retain(|demand| demand.pod_sets[0].count > 0);
            self.fleet.tenants[tenant].node_groups[0].demand = waiting;
        }
    }
}
