//! Random demand; tenants that come and go; nodes that break, vanish and are changed by hand; cleaning that hangs; two controls at
//! once without leader election, killed and started again; a clock that jumps. An observer checks from outside that no node
//! ever has two tenants, or goes from one to the next without being cleaned.
//!
//! `BERTH_RANDOM_SECONDS` sets the duration (default 30), `BERTH_RANDOM_SEED` the seed.

use crate::setup::{CLOCK, Control, SOON, Team, until_all_free};
use berth_api::{NodeGroup, labels};
use berth_tests::{dice::Dice, observer::Observer, tenant::until_gone, test_cluster::TestCluster, wait::until};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long cleaning takes.
const QUICK: &str = "300ms";
/// Longer than cleaning may take.
const FOR_EVER: &str = "1h";

pub(crate) async fn no_node_ever_has_two_tenants(host: Arc<TestCluster>) {
    let seconds = std::env::var("BERTH_RANDOM_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(30);
    eprintln!("BERTH_RANDOM_SECONDS={seconds}");
    let cleans = json!({"scrub": {"policy": "Always", "podAnnotations": {"simulation.berth.dev/run-for": QUICK}},
        "timeouts": {"scrub": "20s"}});
    host.patch_pool("h100", &cleans).await;
    let mut chaos = Chaos::begin(&host, Dice::from_environment()).await;
    let begin = Instant::now();
    // A slow machine takes longer for as many steps, but not for ever.
    let is_enough = |steps| begin.elapsed() > Duration::from_secs(if steps < 200 { seconds + 300 } else { seconds });
    while !is_enough(chaos.steps) {
        chaos.step().await;
        tokio::time::sleep(Duration::from_millis(chaos.dice.below(60))).await;
        chaos.observer.assert_clean();
    }
    let (steps, observer) = chaos.end().await;
    let (recyclings, late) = observer.finish().await;
    eprintln!("{steps} steps, {recyclings} nodes came to another tenant, {late} pods came late");
    assert!(recyclings > 2, "nothing happened");
    let none = json!({"scrub": {"policy": "None", "podAnnotations": null}, "timeouts": {"scrub": null}});
    host.patch_pool("h100", &none).await;
}

/// Everything that is done to the fleet.
struct Chaos<'a> {
    host: &'a TestCluster,
    dice: Dice,
    nodes: Api<Node>,
    observer: Observer,
    controls: [Option<Control>; 2],
    teams: Vec<Team>,
    leaving: Vec<Team>,
    /// Labels of nodes that were there at first, for those that vanish.
    labels: BTreeMap<String, BTreeMap<String, String>>,
    steps: u32,
}

impl<'a> Chaos<'a> {
    async fn begin(host: &'a TestCluster, dice: Dice) -> Self {
        let nodes: Api<Node> = Api::all(host.client.clone());
        let ours = ListParams::default().labels("nvidia.com/gpu.product");
        let list = nodes.list(&ours).await.unwrap();
        let labels = list.iter().map(|node| (node.name_any(), node.labels().clone()));
        let mut chaos = Self {
            host,
            dice,
            observer: Observer::start(&host.client, true),
            controls: [Control::first().take(), Some(Control::start(host))],
            teams: Vec::new(),
            leaving: Vec::new(),
            labels: labels.collect(),
            nodes,
            steps: 0,
        };
        for minimum in [0, 0, 1] {
            chaos.team_comes(minimum).await;
        }
        chaos
    }

    async fn team_comes(&mut self, minimum: u32) {
        self.keep_one_control();
        let groups = vec![NodeGroup::dynamic("burst", "h100", minimum, 4)];
        let name = format!(
            "team-{}",
            self.steps + minimum * 7 + u32::try_from(self.teams.len()).unwrap()
        );
        self.teams.push(Team::create(self.host, &name, None, groups).await);
    }

    /// Both may be down for a while, but not while the test waits for something.
    fn keep_one_control(&mut self) {
        if self.controls.iter().all(Option::is_none) {
            self.controls[0] = Some(Control::start(self.host));
        }
    }

    /// A node, of those in one of these states if there is one.
    async fn node(&mut self, states: &[&str]) -> Option<Node> {
        let ours = ListParams::default().labels("nvidia.com/gpu.product");
        let mut all = self.nodes.list(&ours).await.unwrap().items;
        if !states.is_empty() {
            let state = |node: &Node| node.labels().get(labels::NODE_STATE).cloned().unwrap_or_default();
            all.retain(|node| states.contains(&state(node).as_str()));
        }
        let index = (!all.is_empty()).then(|| self.dice.index(all.len()))?;
        Some(all.swap_remove(index))
    }

    async fn patch(&self, node: &str, body: &Value) -> kube::Result<Node> {
        let params = PatchParams::default();
        self.nodes.patch(node, &params, &Patch::Merge(body)).await
    }

    async fn step(&mut self) {
        self.steps += 1;
        match self.dice.below(30) {
            0..8 => self.pod_comes().await,
            8 => self.gang_comes().await,
            9..15 => self.pods_go().await,
            15 | 16 => {
                if let Some(node) = self.node(&[]).await {
                    let wanted = self.dice.below(3) == 0;
                    let cordon = json!({"spec": {"unschedulable": wanted}});
                    self.observer.by_hand(self.patch(&node.name_any(), &cordon)).await;
                }
            }
            17 | 18 => self.node_is_changed_by_hand().await,
            19 => {
                if let Some(node) = self.node(&[]).await {
                    let idle = json!({"metadata": {"annotations": {labels::IDLE_SINCE: "2001-01-01T00:00:00Z"}}});
                    let _ = self.patch(&node.name_any(), &idle).await;
                }
            }
            20..23 => {
                let which = self.dice.index(2);
                match self.controls[which].take() {
                    // In the middle of its work.
                    Some(running) => running.kill(),
                    None => self.controls[which] = Some(Control::start(self.host)),
                }
            }
            23 | 24 => {
                let ahead = [0, 5, 60, 3600, 100_000, -60, -3600, -100_000];
                CLOCK.set_ahead(ahead[self.dice.index(ahead.len())]);
            }
            25 => self.node_vanishes().await,
            26 => {
                let run_for = [QUICK, QUICK, FOR_EVER][self.dice.index(3)];
                let pace = json!({"scrub": {"podAnnotations": {"simulation.berth.dev/run-for": run_for}}});
                self.host.patch_pool("h100", &pace).await;
            }
            27 => self.release_quarantined().await,
            28 => {
                // Whatever the node's state: reserved, being prepared, in use.
                if let Some(node) = self.node(&["Reserved", "Joining", "Scrubbing", "Assigned"]).await {
                    let ready = if self.dice.below(2) == 0 { "True" } else { "False" };
                    set_ready(&self.nodes, &node.name_any(), ready).await;
                }
            }
            _ => {
                if self.dice.below(3) == 0 {
                    let team = self.teams.swap_remove(self.dice.index(self.teams.len()));
                    team.begin_to_delete().await;
                    self.leaving.push(team);
                    self.team_comes(0).await;
                }
            }
        }
    }

    async fn pod_comes(&mut self) {
        let team = &self.teams[self.dice.index(self.teams.len())];
        let gpus = [1, 2, 4, 8, 8][self.dice.index(5)];
        let pod = team.pod(&format!("p{}", self.steps), gpus, &json!({}));
        let _ = team.pods.create(&PostParams::default(), &pod).await;
    }

    async fn gang_comes(&mut self) {
        let team = &self.teams[self.dice.index(self.teams.len())];
        let (size, step) = (2 + self.dice.below(3), self.steps);
        let gang = json!({"metadata": {"annotations": {
            labels::GANG: format!("g{step}"), labels::GANG_SIZE: size.to_string()}}});
        for member in 0..size {
            let pod = team.pod(&format!("g{step}-{member}"), 8, &gang);
            let _ = team.pods.create(&PostParams::default(), &pod).await;
        }
    }

    async fn pods_go(&mut self) {
        let team = &self.teams[self.dice.index(self.teams.len())];
        let pods = team.pods.list(&ListParams::default()).await.unwrap();
        for _ in 0..3 {
            if let Some(pod) = (!pods.items.is_empty()).then(|| &pods.items[self.dice.index(pods.items.len())]) {
                let at_once = DeleteParams::default().grace_period(0);
                let _ = team.pods.delete(&pod.name_any(), &at_once).await;
            }
        }
    }

    /// Removes a part of a node's assignment by hand.
    async fn node_is_changed_by_hand(&mut self) {
        let Some(node) = self.node(&[]).await else { return };
        let keys = [labels::TENANT, labels::NODE_STATE, labels::NODE_GROUP];
        let body = match self.dice.below(6) {
            0 => json!({"metadata": {"annotations": {labels::NODE_STATE: null}}}),
            1 => json!({"metadata": {"annotations": {labels::OWNER_UID: null}}}),
            2 => json!({"spec": {"taints": null}}),
            _ => json!({"metadata": {"labels": {keys[self.dice.index(3)]: null}}}),
        };
        self.observer.by_hand(self.patch(&node.name_any(), &body)).await;
    }

    /// A Node is deleted while it is cleaned, and its kubelet creates it again.
    async fn node_vanishes(&mut self) {
        let Some(node) = self.node(&["Scrubbing", "Validating", "Quarantined"]).await else {
            return;
        };
        let name = node.name_any();
        let _ = self.nodes.delete(&name, &DeleteParams::default()).await;
        let again: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": self.labels[&name], "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": node.status,
        }))
        .unwrap();
        until("its kubelet has created it again", SOON, async || {
            self.nodes.create(&PostParams::default(), &again).await
        })
        .await;
        let status = Patch::Merge(json!({"status": node.status}));
        let _ = self.nodes.patch_status(&name, &PatchParams::default(), &status).await;
    }

    async fn release_quarantined(&self) {
        let quarantined = ListParams::default().labels(&format!("{}=Quarantined", labels::NODE_STATE));
        for node in self.nodes.list(&quarantined).await.unwrap() {
            let release = json!({"metadata": {"annotations": {labels::RELEASE_QUARANTINE: "yes"}}});
            let _ = self.patch(&node.name_any(), &release).await;
        }
    }

    /// Checks that the fleet recovers and that nothing is left.
    async fn end(mut self) -> (u32, Observer) {
        CLOCK.set_ahead(0);
        let pace = json!({"scrub": {"podAnnotations": {"simulation.berth.dev/run-for": QUICK}}});
        self.host.patch_pool("h100", &pace).await;
        for node in self.nodes.list(&ListParams::default()).await.unwrap() {
            let uncordoned = json!({"spec": {"unschedulable": false}});
            let name = node.name_any();
            self.observer.by_hand(self.patch(&name, &uncordoned)).await;
            set_ready(&self.nodes, &name, "True").await;
        }
        self.keep_one_control();
        for team in std::mem::take(&mut self.teams) {
            team.begin_to_delete().await;
            self.leaving.push(team);
        }
        for team in std::mem::take(&mut self.leaving) {
            until_gone(self.host, crate::setup::NAMESPACE, &team.name).await;
        }
        let last = vec![NodeGroup::dynamic("burst", "h100", 0, 4)];
        let last = Team::create(self.host, "last", None, last).await;
        for name in ["one", "two", "three", "four"] {
            last.run(name, 8, &json!({})).await;
        }
        until("the last team has the whole pool", SOON * 3, async || {
            if last.running().await == 4 {
                return Ok(());
            }
            // Cleaning hung, or took too long on a machine that has a lot to do.
            self.release_quarantined().await;
            let list = self.nodes.list(&ListParams::default()).await.unwrap();
            let states: Vec<String> = list.iter().filter_map(state_of).collect();
            Err(format!("{:?}; {}", last.group().await, states.join("; ")))
        })
        .await;
        last.delete(self.host).await;
        until("all is clean", SOON * 2, async || {
            self.release_quarantined().await;
            let list = self.nodes.list(&ListParams::default()).await.unwrap();
            let left: Vec<String> = list
                .iter()
                .filter(|node| node.annotations().contains_key(labels::NODE_STATE))
                .filter_map(state_of)
                .collect();
            if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
        })
        .await;
        until_all_free(self.host).await;
        let markers: Api<ConfigMap> = Api::namespaced(self.host.client.clone(), "berth-system");
        until("no in-use marker is left", SOON, async || {
            let left = markers
                .list(&ListParams::default().labels(labels::IN_USE_MARKER))
                .await
                .unwrap();
            let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
            if names.is_empty() { Ok(()) } else { Err(names) }
        })
        .await;
        let [one, two] = self.controls;
        *Control::first() = match (one, two) {
            (Some(one), Some(two)) => {
                two.stop();
                Some(one)
            }
            (one, two) => one.or(two),
        };
        (self.steps, self.observer)
    }
}

/// The state of a node of a pool, as text.
fn state_of(node: &Node) -> Option<String> {
    node.labels().get("nvidia.com/gpu.product")?;
    let about: Vec<String> = node
        .annotations()
        .iter()
        .filter(|(key, _)| labels::is_reserved(key))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let spec = node.spec.clone().unwrap_or_default();
    Some(format!(
        "{}: {} cordoned={:?} taints={:?}",
        node.name_any(),
        about.join(" "),
        spec.unschedulable,
        spec.taints
    ))
}

async fn set_ready(nodes: &Api<Node>, node: &str, status: &str) {
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let patch = Patch::Strategic(&body);
    let _ = nodes.patch_status(node, &PatchParams::default(), &patch).await;
}
