//! Recycling of a node between two tenants. Each test has a node and a pool of its own.

use berth_api::{HostNodePool, HostNodePoolSpec, KubeDuration, conditions, labels};
use berth_control::install::uninstall::find_remaining_objects;
use berth_process::binaries::{Binary, find_pinned};
use berth_tests::{
    kubectl::Kubectl,
    objects::{apply, simulate_node},
    page::{find_commands, parse_blocks},
    tenant::{Tenant, cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{Event, Node},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    process::Stdio,
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::process::Command;

/// Label that puts a node into a test's pool.
pub(crate) const POOL: &str = "example.com/pool";

/// A simulated node and the pool that holds it alone, both named after the test.
pub(crate) struct Bench {
    host: Arc<TestCluster>,
    pub(crate) name: &'static str,
    nodes: Api<Node>,
    states: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    pub(crate) async fn new(
        host: &Arc<TestCluster>,
        name: &'static str,
        change: impl FnOnce(&mut HostNodePoolSpec),
    ) -> Self {
        let nodes: Api<Node> = Api::all(host.client.clone());
        let mut spec = HostNodePoolSpec {
            node_selector: BTreeMap::from([(POOL.to_owned(), name.to_owned())]),
            gpu_resource_name: Some("nvidia.com/gpu".into()),
            ..HostNodePoolSpec::default()
        };
        change(&mut spec);
        let pools: Api<HostNodePool> = Api::all(host.client.clone());
        pools
            .create(&PostParams::default(), &HostNodePool::new(name, spec))
            .await
            .unwrap();
        ensure_namespace(&host.client, name).await;
        let states: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, watched) = (Arc::clone(&states), nodes.clone());
        tokio::spawn(async move {
            let config = watcher::Config::default().labels(&format!("{POOL}={name}"));
            let mut stream = watcher(watched, config).default_backoff().touched_objects().boxed();
            while let Ok(Some(node)) = stream.try_next().await {
                let state = node.labels().get(labels::NODE_STATE).cloned();
                let state = state.unwrap_or_else(|| "Free".into());
                let mut seen = seen.lock().unwrap();
                if seen.last() != Some(&state) {
                    seen.push(state);
                }
            }
        });
        let bench = Self {
            host: Arc::clone(host),
            name,
            nodes,
            states,
        };
        bench.create_node().await;
        bench
    }

    /// Creates the Node, as a kubelet does.
    async fn create_node(&self) {
        let labels = json!({POOL: self.name, "nvidia.com/gpu.product": self.name});
        simulate_node(&self.host.client, "gpu-l40s-01", self.name, labels).await;
    }

    pub(crate) async fn tenant(&self) -> Tenant {
        Tenant::create(&self.host, self.name, &cluster(self.name, &[("train", self.name, 1)])).await
    }

    pub(crate) async fn delete_tenant(&self) {
        let tenants = self.host.tenants(self.name);
        tenants.delete(self.name, &DeleteParams::default()).await.unwrap();
        until_gone(&self.host, self.name, self.name).await;
    }

    pub(crate) async fn node(&self) -> Node {
        self.nodes.get(self.name).await.unwrap()
    }

    pub(crate) async fn until_state(&self, wanted: &str) -> Node {
        until(&format!("node {} is {wanted}", self.name), SOON, async || {
            let node = self.nodes.get(self.name).await.map_err(|error| error.to_string())?;
            let state = node.labels().get(labels::NODE_STATE).map_or("Free", String::as_str);
            if state == wanted {
                Ok(node)
            } else {
                Err(format!("{state}: {:?}", node.annotations()))
            }
        })
        .await
    }

    pub(crate) async fn patch_node(&self, body: Value) {
        self.nodes
            .patch(self.name, &PatchParams::default(), &Patch::Merge(&body))
            .await
            .unwrap();
    }

    pub(crate) async fn pod_annotations(&self, annotations: Value) {
        let spec = json!({"scrub": {"podAnnotations": annotations}});
        self.host.patch_pool(self.name, &spec).await;
    }

    /// Waits until the observed states end with these: the watch reports them a little later. Returns those before.
    async fn until_states(&self, wanted: &str) -> String {
        until(&format!("{} was {wanted}", self.name), SOON, async || {
            let states = self.states.lock().unwrap().join(" ");
            states.strip_suffix(wanted).map(str::to_owned).ok_or(states)
        })
        .await
    }

    /// How often control has reported that it corrected the node's assignment.
    async fn corrections(&self) -> i32 {
        let events: Api<Event> = Api::all(self.host.client.clone());
        let of_node = format!("reason=DriftCorrected,involvedObject.name={}", self.name);
        let events = events.list(&ListParams::default().fields(&of_node)).await.unwrap();
        // Equal ones are one Event with a count.
        let times = |event: &Event| event.series.as_ref().and_then(|series| series.count).unwrap_or(1);
        events.iter().map(times).sum()
    }

    pub(crate) async fn remove(&self) {
        let pools: Api<HostNodePool> = Api::all(self.host.client.clone());
        pools.delete(self.name, &DeleteParams::default()).await.unwrap();
        self.nodes.delete(self.name, &DeleteParams::default()).await.unwrap();
    }
}

fn taint(node: &Node) -> Option<String> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    taints.iter().find(|taint| taint.key == labels::TENANT)?.value.clone()
}

pub(crate) async fn node_states_follow_in_order_and_drift_is_corrected(host: Arc<TestCluster>) {
    let bench = Bench::new(&host, "recycling-states", |_| {}).await;
    let tenant = bench.tenant().await;
    let slug = tenant.id.slug().to_owned();
    let assigned = bench.until_state("Assigned").await;
    assert_eq!(taint(&assigned).as_deref(), Some(slug.as_str()));

    bench.until_states("Reserved Joining Assigned").await;
    assert_eq!(bench.corrections().await, 0, "there was no drift");

    // A label or taint that is removed by hand is restored.
    let gone =
        json!({"metadata": {"labels": {labels::TENANT: null, labels::NODE_STATE: null}}, "spec": {"taints": null}});
    bench.patch_node(gone).await;
    until_true("label and taint are back", SOON, async || {
        let node = bench.node().await;
        node.labels().get(labels::TENANT) == Some(&slug) && taint(&node).as_ref() == Some(&slug)
    })
    .await;

    bench.delete_tenant().await;
    let free = bench.until_state("Free").await;
    assert_eq!(taint(&free), None);
    assert!(!free.spec.unwrap_or_default().unschedulable.unwrap_or_default());
    let left: Vec<&String> = free.metadata.annotations.iter().flatten().map(|(key, _)| key).collect();
    assert!(left.iter().all(|key| !key.starts_with("berth.dev/")), "{left:?}");
    bench
        .until_states("Assigned Cordoned Draining Scrubbing Validating Free")
        .await;
    assert_eq!(bench.corrections().await, 1);
    let jobs: Api<Job> = Api::namespaced(host.client.clone(), "berth-system");
    until_true("the Jobs of the recycling are gone", SOON, async || {
        let listed = jobs
            .list(&ListParams::default().labels(labels::NODE_JOB))
            .await
            .unwrap();
        !listed.iter().any(|job| job.name_any().contains(bench.name))
    })
    .await;
    bench.remove().await;
}

pub(crate) async fn failed_scrub_quarantines_a_node_until_it_is_released(host: Arc<TestCluster>) {
    let bench = Bench::new(&host, "recycling-fails", |spec| {
        spec.timeouts.scrub = Some(KubeDuration::from("4s"));
    })
    .await;
    // The pod that cleans never ends.
    bench
        .pod_annotations(json!({"simulation.berth.dev/run-for": "1h"}))
        .await;
    bench.tenant().await;
    bench.delete_tenant().await;
    let node = bench.until_state("Quarantined").await;
    assert!(!node.labels().contains_key(labels::TENANT));
    assert_eq!(taint(&node).as_deref(), Some(labels::RECYCLING));
    let why = &node.annotations()[labels::QUARANTINE];
    assert!(why.starts_with("the scrub"), "{why}");
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    until_true("the pool names the node", SOON, async || {
        let status = pools.get(bench.name).await.unwrap().status.unwrap_or_default();
        let healthy = status.conditions.iter().find(|c| c.type_ == conditions::HEALTHY);
        let is_reported = healthy.is_some_and(|c| c.status == "False" && c.message.contains(bench.name));
        is_reported
            && status
                .nodes
                .is_some_and(|nodes| nodes.quarantined == 1 && nodes.free == 0)
    })
    .await;

    // Without Berth, nothing would ever remove the quarantine.
    let message = find_remaining_objects(&host.client)
        .await
        .unwrap()
        .error_message()
        .unwrap();
    assert!(message.contains("recycling-fails (Quarantined)"), "{message}");

    // A person releases it, but the fault is still there: the scrub fails.
    let release = json!({"metadata": {"annotations": {labels::RELEASE_QUARANTINE: "yes"}}});
    let failing = json!({"simulation.berth.dev/run-for": "200ms", "simulation.berth.dev/exit-code": "1"});
    bench.pod_annotations(failing).await;
    bench.patch_node(release.clone()).await;
    bench.until_states("Quarantined Scrubbing Quarantined").await;
    // From now on, the scrub succeeds.
    let repaired = json!({"timeouts": {"scrub": null}, "scrub": {"podAnnotations": {
        "simulation.berth.dev/run-for": null, "simulation.berth.dev/exit-code": null}}});
    host.patch_pool(bench.name, &repaired).await;
    until("the node is free", SOON, async || {
        match bench.node().await.labels().get(labels::NODE_STATE).map(String::as_str) {
            None => Ok(()),
            Some("Quarantined") => {
                // Control may see the release before the change of the pool: then it is released again.
                bench.patch_node(release.clone()).await;
                Err("released".to_owned())
            }
            Some(state) => Err(state.to_owned()),
        }
    })
    .await;
    bench.remove().await;
}

pub(crate) async fn deleted_node_is_scrubbed_when_it_returns(host: Arc<TestCluster>) {
    let bench = Bench::new(&host, "recycling-vanishes", |_| {}).await;
    bench
        .pod_annotations(json!({"simulation.berth.dev/run-for": "1h"}))
        .await;
    bench.tenant().await;
    bench.delete_tenant().await;
    bench.until_state("Scrubbing").await;
    bench.nodes.delete(bench.name, &DeleteParams::default()).await.unwrap();
    // And its Lease, which the garbage collector deletes: kwok simulates the next node only with a Lease of its own.
    let leases: Api<Lease> = Api::namespaced(host.client.clone(), "kube-node-lease");
    until_true("the node is gone", SOON, async || {
        bench.nodes.get_opt(bench.name).await.unwrap().is_none() && leases.get_opt(bench.name).await.unwrap().is_none()
    })
    .await;
    let listed = list_markers_without_node(&host).await;
    assert!(listed.iter().any(|node| node == bench.name), "{listed:?}");
    assert!(!listed.iter().any(|node| node == "cpu-01"), "it exists: {listed:?}");
    bench
        .pod_annotations(json!({"simulation.berth.dev/run-for": null}))
        .await;
    bench.states.lock().unwrap().clear();
    bench.create_node().await;
    // It looks new, but is cleaned before a tenant gets it.
    bench.tenant().await;
    bench.until_state("Assigned").await;
    let before = bench
        .until_states("Scrubbing Validating Free Reserved Joining Assigned")
        .await;
    assert!(!before.contains("Reserved"), "{before}");
    bench.delete_tenant().await;
    bench.until_state("Free").await;
    bench.remove().await;
}

/// The nodes that the commands of the guide print: those that have an in-use marker and do not exist.
async fn list_markers_without_node(host: &TestCluster) -> Vec<String> {
    const PAGE: &str = include_str!("../../../docs/guides/host-node-pools.md");
    let blocks = parse_blocks(PAGE).unwrap();
    let block = blocks
        .iter()
        .find(|block| block.heading == "Machines that do not come back")
        .unwrap();
    let kubectl = find_pinned(Binary::Kubectl).unwrap();
    let path = [
        kubectl.parent().unwrap().as_os_str(),
        "/usr/bin".as_ref(),
        "/bin".as_ref(),
    ];
    let folder = TempDir::with_prefix("berth-markers-").unwrap();
    let output = Command::new("sh")
        .args(["-ec", &block.text])
        .current_dir(&folder)
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("KUBECONFIG", host.home().admin_kubeconfig())
        .env("KUBECACHEDIR", folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows = printed.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    rows.map(|row| {
        assert_eq!(row.len(), 3, "node, ConfigMap and time: {row:?}");
        row[0].to_owned()
    })
    .collect()
}

pub(crate) async fn invalid_pools_are_rejected(host: Arc<TestCluster>) {
    let pool = |more: Value| {
        let mut spec = json!({"nodeSelector": {POOL: "none"}, "gpuResourceName": "nvidia.com/gpu"});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        // A field that is null is left out.
        spec.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "refused"}, "spec": spec})
    };
    let refused = [
        (json!({"nvidia": {"migConfig": "all-1g.10gb"}}), "sharing: MIG"),
        (
            json!({"nvidia": {"devicePluginConfig": "shared-4"}}),
            "sharing: MIG, TimeSlicing or MPS",
        ),
        (json!({"sharing": "MPS"}), "requires nvidia.devicePluginConfig"),
        (
            json!({"sharing": "MPS", "nvidia": {"devicePluginConfig": "mps-4"}, "scrub": {"steps": ["GPUReset"]}}),
            "requires the step MPS",
        ),
        (
            json!({"sharing": "MIG", "nvidia": {"migConfig": "all-1g.10gb"}}),
            "set gpusPerAssignedNode",
        ),
        (
            json!({"sharing": "TimeSlicing", "nvidia": {"devicePluginConfig": "shared-4"}}),
            "set gpusPerAssignedNode",
        ),
        (
            json!({"gpuResourceName": null, "gpusPerAssignedNode": 56}),
            "gpusPerAssignedNode requires spec.gpuResourceName",
        ),
        (json!({"gpusPerAssignedNode": 0}), "spec.gpusPerAssignedNode"),
        (json!({"nvidia": {"mpsRoot": "/run"}}), "spec.nvidia.mpsRoot"),
        (
            json!({"nvidia": {"driverRoot": "/opt/../etc"}}),
            "spec.nvidia.driverRoot",
        ),
        (
            json!({"scrub": {"pause": {"labels": {POOL: "none"}}}}),
            "must not change labels of nodeSelector",
        ),
        (
            json!({"scrub": {"pause": {"addLabels": ["berth.dev/tenant"]}}}),
            "set by Berth itself",
        ),
        (
            json!({"scrub": {"pause": {"addLabels": ["no gpu agent"]}}}),
            "spec.scrub.pause.addLabels[0]",
        ),
        (json!({"modes": ["Shared"]}), "cannot offer the mode Shared"),
        (json!({"scrub": {"steps": []}}), "scrubs nothing"),
        (
            json!({"scrub": {"policy": "None", "steps": ["Claims"]}}),
            "policy None scrubs nothing",
        ),
        (
            json!({"validate": {"policy": "None", "riskPolicy": "Quarantine"}}),
            "policy None validates nothing",
        ),
        (json!({"scrub": {"disks": ["/mnt/nvme0"]}}), "go together"),
        (
            json!({"scrub": {"steps": ["Disks"], "disks": ["/"]}}),
            "spec.scrub.disks[0]",
        ),
        (
            json!({"scrub": {"steps": ["Disks"], "disks": ["/mnt/../etc"]}}),
            "spec.scrub.disks[0]",
        ),
        (
            json!({"policy": {"reclaim": "FairShare", "order": "FIFO"}}),
            "requires order: FairShare",
        ),
        (json!({"timeouts": {"drain": "soon"}}), "spec.timeouts.drain"),
        (
            json!({"policy": {"reclaimGracePeriod": "-5m"}}),
            "spec.policy.reclaimGracePeriod",
        ),
    ];
    for (more, why) in refused {
        let error = apply(&host.client, "", &pool(more.clone()))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{more}: {error}");
    }
}

/// After a restore of the host: it may not know who had a node last.
pub(crate) async fn nodes_that_somebody_marks_are_scrubbed(host: Arc<TestCluster>) {
    const PAGE: &str = include_str!("../../../docs/operations/backup.md");
    let bench = Bench::new(&host, "nodes-restored", |_| {}).await;
    let kubectl = Kubectl::with(&fs::read_to_string(host.home().admin_kubeconfig()).unwrap());
    let commands = find_commands(PAGE, "FREE-NODE").unwrap();
    let run = async |node: &str| {
        let command = commands.lines().find(|line| line.contains(node)).unwrap();
        let command = command.replace(node, bench.name);
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        kubectl.output(&arguments).await;
    };
    let until_seen = async |state: &str| {
        until(&format!("the node was {state}"), SOON, async || {
            let seen = bench.states.lock().unwrap().clone();
            if seen.iter().any(|other| other == state) {
                Ok(())
            } else {
                Err(seen)
            }
        })
        .await;
    };
    run("FREE-NODE").await;
    until_seen("Scrubbing").await;
    bench.until_state("Free").await;
    bench.tenant().await;
    run("ASSIGNED-NODE").await;
    until_seen("Draining").await;
    // It comes back to the tenant, which has no other one.
    bench.until_state("Assigned").await;
    bench.delete_tenant().await;
    bench.until_state("Free").await;
    bench.remove().await;
}
