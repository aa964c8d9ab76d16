//! Random demand, deletions, broken nodes, labels that vanish and restarts of control, and somebody who watches from outside
//! that no node ever has two tenants, or goes from one to the next without being cleaned.
//!
//! `BERTH_RANDOM_SECONDS` says how long (30 without it), `BERTH_RANDOM_SEED` which.

use crate::setup::{SOON, Team, start_control, until_all_free};
use berth_api::{NodeGroup, NodePool, labels};
use berth_tests::{wait::until, world::World};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub(crate) async fn no_node_ever_has_two_tenants(world: Arc<World>) {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let seconds = number("BERTH_RANDOM_SECONDS", 30);
    let seed = number("BERTH_RANDOM_SEED", std::process::id().into());
    eprintln!("BERTH_RANDOM_SEED={seed} BERTH_RANDOM_SECONDS={seconds}");
    scrub(&world, "Always").await;
    let observer = Arc::new(Mutex::new(Observer::default()));
    let watches = [
        tokio::spawn(watch_nodes(world.client.clone(), Arc::clone(&observer))),
        tokio::spawn(watch_pods(world.client.clone(), Arc::clone(&observer))),
    ];
    let mut teams = Vec::new();
    for (name, floor) in [("red", 0), ("green", 0), ("blue", 1)] {
        teams.push(Team::create(&world, name, None, vec![NodeGroup::dynamic("burst", "h100", floor, 4)]).await);
    }
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut second = None;
    let begin = Instant::now();
    let mut steps = 0_u32;
    while begin.elapsed() < Duration::from_secs(seconds) {
        step(&world, &teams, &mut dice, steps, &mut second).await;
        steps += 1;
        tokio::time::sleep(Duration::from_millis(dice.below(150))).await;
        observer.lock().unwrap().assert_clean();
    }
    // Whatever was done, it is recovered from.
    let nodes: Api<Node> = Api::all(world.client.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        cordon(&nodes, &node.name_any(), false).await;
    }
    let last = teams.pop().unwrap();
    for team in teams {
        team.delete(&world).await;
    }
    for name in ["one", "two", "three", "four"] {
        last.run(&format!("last-{name}"), 8, &json!({})).await;
    }
    until("the last team has the whole pool", SOON * 3, async || {
        if last.held().await == 4 {
            return Ok(());
        }
        let list = nodes.list(&ListParams::default()).await.unwrap();
        let states: Vec<String> = list.iter().filter_map(state_of).collect();
        Err(format!("{:?}; {}", last.group().await, states.join("; ")))
    })
    .await;
    last.delete(&world).await;
    until_all_free(&world).await;
    {
        let observer = observer.lock().unwrap();
        observer.assert_clean();
        eprintln!("{steps} steps, {} changes of owner", observer.changes);
        assert!(observer.changes > 2, "nothing happened");
    }
    watches.iter().for_each(tokio::task::JoinHandle::abort);
    if let Some(second) = second {
        second.cancel();
    }
    scrub(&world, "None").await;
}

/// Where a node of a pool stands, in words.
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

async fn step(
    world: &World,
    teams: &[Team],
    dice: &mut Dice,
    step: u32,
    second: &mut Option<tokio_util::sync::CancellationToken>,
) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let team = &teams[dice.index(teams.len())];
    let node = any(&nodes, dice).await;
    match dice.below(20) {
        0..8 => {
            let gpus = [1, 2, 4, 8, 8][dice.index(5)];
            let _ = team
                .pods
                .create(
                    &kube::api::PostParams::default(),
                    &team.pod(&format!("p{step}"), gpus, &json!({})),
                )
                .await;
        }
        8 => {
            let size = 2 + dice.below(3);
            let gang: Value = json!({"metadata": {"annotations": {labels::GANG: format!("g{step}"), labels::GANG_SIZE: size.to_string()}}});
            for member in 0..size {
                let pod = team.pod(&format!("g{step}-{member}"), 8, &gang);
                let _ = team.pods.create(&kube::api::PostParams::default(), &pod).await;
            }
        }
        9..15 => {
            let pods = team.pods.list(&ListParams::default()).await.unwrap();
            for _ in 0..3 {
                if let Some(pod) = (!pods.items.is_empty()).then(|| &pods.items[dice.index(pods.items.len())]) {
                    let at_once = DeleteParams::default().grace_period(0);
                    let _ = team.pods.delete(&pod.name_any(), &at_once).await;
                }
            }
        }
        15 | 16 => cordon(&nodes, &node, dice.below(3) == 0).await,
        17 => {
            // By hand, and wrong.
            let key = [labels::TENANT, labels::NODE_STATE, labels::NODE_GROUP][dice.index(3)];
            let body = json!({"metadata": {"labels": {key: null}}});
            let _ = nodes.patch(&node, &PatchParams::default(), &Patch::Merge(&body)).await;
        }
        18 => {
            let body = json!({"metadata": {"annotations": {labels::IDLE_SINCE: "2001-01-01T00:00:00Z"}}});
            let _ = nodes.patch(&node, &PatchParams::default(), &Patch::Merge(&body)).await;
        }
        _ => match second.take() {
            // A second control comes, and goes in the middle of something.
            Some(running) => running.cancel(),
            None => *second = Some(start_control(world)),
        },
    }
}

async fn any(nodes: &Api<Node>, dice: &mut Dice) -> String {
    let all = nodes
        .list(&ListParams::default().labels("nvidia.com/gpu.product"))
        .await
        .unwrap();
    all.items[dice.index(all.items.len())].name_any()
}

async fn cordon(nodes: &Api<Node>, node: &str, wanted: bool) {
    let body = json!({"spec": {"unschedulable": wanted}});
    let _ = nodes.patch(node, &PatchParams::default(), &Patch::Merge(&body)).await;
}

async fn scrub(world: &World, policy: &str) {
    let pools: Api<NodePool> = Api::all(world.client.clone());
    let body = json!({"spec": {"scrub": {"policy": policy}}});
    pools
        .patch("h100", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}

/// What was seen from outside.
#[derive(Default)]
struct Observer {
    /// Who was served by each node last, and whether it was cleaned since.
    served: BTreeMap<String, (String, bool)>,
    /// Pods that are on nodes: the node and the tenant.
    pods: BTreeMap<String, (String, String)>,
    changes: u32,
    violations: Vec<String>,
}

impl Observer {
    fn assert_clean(&self) {
        assert!(self.violations.is_empty(), "{:#?}", self.violations);
    }

    fn node(&mut self, node: &Node) {
        let name = node.name_any();
        let annotation = |key: &str| node.annotations().get(key).map(String::as_str);
        let state = annotation(labels::NODE_STATE).unwrap_or_default();
        if matches!(state, "Scrubbing" | "Quarantined")
            && let Some((_, cleaned)) = self.served.get_mut(&name)
        {
            *cleaned = true;
        }
        let serves = matches!(state, "Assigned" | "Cordoned" | "Draining");
        let Some(owner) = annotation(labels::OWNER_UID).filter(|_| serves) else {
            return;
        };
        if let Some((earlier, cleaned)) = self.served.get(&name)
            && earlier != owner
        {
            self.changes += 1;
            if !cleaned {
                self.violations
                    .push(format!("{name} went from {earlier} to {owner} without being cleaned"));
            }
        }
        self.served.insert(name, (owner.to_owned(), false));
    }

    fn pod(&mut self, pod: &Pod, is_there: bool) {
        let name = format!("{}/{}", pod.namespace().unwrap(), pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let (Some(node), true) = (node, is_there && !ended) else {
            self.pods.remove(&name);
            return;
        };
        let tenant = pod.labels()[labels::TENANT].clone();
        self.pods.insert(name, (node.clone(), tenant));
        let tenants: BTreeSet<&String> = self
            .pods
            .values()
            .filter(|(on, _)| *on == node)
            .map(|(_, tenant)| tenant)
            .collect();
        if tenants.len() > 1 {
            self.violations.push(format!("{node} has pods of {tenants:?}"));
        }
    }
}

async fn watch_nodes(client: Client, observer: Arc<Mutex<Observer>>) {
    let mut stream = watcher(Api::<Node>::all(client), watcher::Config::default()).boxed();
    loop {
        if let Ok(Some(Event::Apply(node) | Event::InitApply(node))) = stream.try_next().await {
            observer.lock().unwrap().node(&node);
        }
    }
}

async fn watch_pods(client: Client, observer: Arc<Mutex<Observer>>) {
    let ours = watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER));
    let mut stream = watcher(Api::<Pod>::all(client), ours).boxed();
    loop {
        match stream.try_next().await {
            Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => observer.lock().unwrap().pod(&pod, true),
            Ok(Some(Event::Delete(pod))) => observer.lock().unwrap().pod(&pod, false),
            _ => {}
        }
    }
}
