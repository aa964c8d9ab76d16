//! A tenant leaves nothing on a node for the next one, and keeps no node that it has to give back.

use crate::{
    kept_connection::KeptConnection,
    lost_mount::LostMount,
    on_node,
    pods::{IMAGE, SOON, only, pod},
};
use berth_api::{is_pod_ready, labels};
use berth_local::images::{Image, catalog};
use berth_process::binaries::{self, Binary};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::{
    core::v1::{Event, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Folder of a pod whose volumes the kubelet could not remove: it is left on the node.
const ORPHAN: &str = "11111111-2222-4333-8444-555555555555";

/// Name of an image that only the tenant has.
const MODEL: &str = "registry.example.com/leaver/model:1";

/// The path in this image that is a volume.
const VOLUME: &str = "/data";

/// Connections that the tenant leaves: a peer, and the address of a pod. No packet comes from there.
const CONNECTIONS: [(&str, &str); 2] = [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")];

/// The tool for the kernel's table of connections.
const CONNTRACK: &str = "conntrack";

/// The lines that containerd's client prints.
fn containerd(host: &TestCluster, node: &str, arguments: &[&str]) -> BTreeSet<String> {
    let output = host.ctr(node, arguments).unwrap();
    output.lines().map(|line| line.trim().to_owned()).collect()
}

/// Adds connections as peers of the tenant keep them up: established ones.
fn add_connections(host: &TestCluster, node: &str) {
    for (peer, pod) in CONNECTIONS {
        let arguments = format!(
            "-I -p udp -s {peer} -d {pod} --sport 4000 --dport 4001 --timeout 3600 --status SEEN_REPLY,ASSURED"
        );
        on_node::run(host, node, CONNTRACK, &arguments.split(' ').collect::<Vec<_>>());
    }
}

/// The connections that were added and that the kernel still has.
fn connections(host: &TestCluster, node: &str) -> Vec<(&'static str, &'static str)> {
    let listed = ["ipv4", "ipv6"].map(|family| on_node::run(host, node, CONNTRACK, &["-L", "-f", family, "-p", "udp"]));
    let is_listed = |peer: &str, pod: &str| {
        let sides = format!("src={peer} dst={pod} ");
        listed.iter().any(|listed| listed.contains(&sides))
    };
    CONNECTIONS
        .into_iter()
        .filter(|(peer, pod)| is_listed(peer, pod))
        .collect()
}

/// The image as the node's container runtime has it.
struct Model {
    /// The digest of its manifest.
    digest: String,
    /// Its ID, by which containerd has a second record of it.
    id: String,
    /// What came with it into containerd's content store.
    blobs: BTreeSet<String>,
}

impl Model {
    /// Brings it onto the node, where the kubelet would have pulled it: there is no registry.
    async fn import(host: &TestCluster, node: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pause = binaries::find_pinned(Binary::Pause).unwrap();
        let mut image = catalog::with_shell(Image::new(MODEL, &pause, "/pause")).unwrap();
        image.files.insert("/weights".into(), b"secret".to_vec());
        image.volumes.insert(VOLUME.into());
        let archive = image.archive_in(folder.path()).unwrap();
        let before = containerd(host, node, &["content", "ls", "-q"]);
        let path = archive.path.display().to_string();
        host.ctr(node, &["images", "import", &path]).unwrap();
        let id = until("containerd has the image by its ID", SOON, async || {
            let listed = containerd(host, node, &["images", "ls"]);
            let mut names = listed
                .iter()
                .filter(|line| line.contains(&archive.digest))
                .filter_map(|line| line.split_whitespace().next());
            let id = names.find(|name| name.starts_with("sha256:")).map(str::to_owned);
            id.ok_or(listed)
        })
        .await;
        let after = containerd(host, node, &["content", "ls", "-q"]);
        Self {
            digest: archive.digest,
            id,
            blobs: after.difference(&before).cloned().collect(),
        }
    }

    /// Asserts that nothing of it is on the node, and that what the platform needs there is.
    fn assert_gone(&self, host: &TestCluster, node: &str) {
        assert!(!self.blobs.is_empty());
        let images = host.ctr(node, &["images", "ls"]).unwrap();
        for gone in [MODEL, self.id.as_str(), self.digest.as_str()] {
            assert!(!images.contains(gone), "{gone} is left: {images}");
        }
        for stays in [catalog::PAUSE, catalog::AGNHOST] {
            assert!(images.contains(stays), "{stays} is gone: {images}");
        }
        let blobs = containerd(host, node, &["content", "ls", "-q"]);
        let left: Vec<&String> = self.blobs.intersection(&blobs).collect();
        assert!(left.is_empty(), "content is left: {left:?}");
    }
}

/// The folders that a node's containerd has for volumes of images. No image of the platform declares one here.
fn volumes_of_images(node: &Path) -> Vec<PathBuf> {
    let inside = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    inside(node.join("containerd/io.containerd.grpc.v1.cri/containers"))
        .flat_map(|container| inside(container.join("volumes")))
        .collect()
}

pub(crate) async fn a_node_is_clean_when_the_next_tenant_gets_it(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "recycling", &cluster("leaver", &[("own", "l40s", 1)])).await;
    let node = only_node(&host, &tenant).await;
    let model = Model::import(&host, &node).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let writer = json!({
        "metadata": {"name": "writer"},
        "spec": {
            "containers": [{
                "name": "writer", "image": crate::pods::IMAGE,
                "command": ["sh", "-c", "echo secret | tee /scratch/weights; sleep 3600"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }, {
                // The folder is root's.
                "name": "by-name", "image": MODEL, "securityContext": {"runAsUser": 0},
                "command": ["sh", "-c", format!("echo secret >{VOLUME}/weights; sleep 3600")],
            }, {"name": "by-id", "image": model.id}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(writer).unwrap())
        .await
        .unwrap();
    until_ready(&pods, "writer").await;
    let folder = host.home().root().join("nodes").join(&node);
    until("the pod has written into the volume of its image", SOON, async || {
        let volumes = volumes_of_images(&folder);
        let is_written = volumes.iter().any(|volume| volume.join("weights").exists());
        if is_written { Ok(()) } else { Err(volumes) }
    })
    .await;
    let orphan = folder.join("kubelet/pods").join(ORPHAN);
    let scratch = orphan.join("volumes/kubernetes.io~empty-dir/scratch");
    fs::create_dir_all(&scratch).unwrap();
    fs::write(scratch.join("weights"), "secret").unwrap();
    // As NVIDIA's multi-process service would leave it, which needs a GPU.
    let mps = folder.join("mps");
    for (shared, file) in [("shm", "weights"), ("nvidia.com/gpu/pipe", "control")] {
        fs::create_dir_all(mps.join(shared)).unwrap();
        fs::write(mps.join(shared).join(file), "secret").unwrap();
    }
    // As the kernel's handlers of core dumps and the kubelet would leave them.
    let dumps = [
        "coredump/core.train.zst",
        "crash/train.crash",
        "kubelet/checkpoints/checkpoint-job.tar",
    ];
    let dumps = dumps.map(|dump| folder.join(dump));
    for dump in &dumps {
        fs::create_dir_all(dump.parent().unwrap()).unwrap();
        fs::write(dump, "secret").unwrap();
    }
    add_connections(&host, &node);
    assert_eq!(connections(&host, &node), CONNECTIONS);
    let mut kept = KeptConnection::open(&host, &node).await;
    kept.assert_lets_the_peer_in().await;
    let lost = LostMount::make(&host, &node);
    let logs = || -> Vec<String> {
        let listed = fs::read_dir(folder.join("pods-log")).unwrap();
        let names = listed.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("leaver")).collect()
    };
    assert!(!logs().is_empty(), "the node has logs of the tenant");

    let tenants = host.tenants("recycling");
    tenants.delete("leaver", &DeleteParams::default()).await.unwrap();
    until_gone(&host, "recycling", "leaver").await;
    lost.assert_keeps_the_node().await;
    until_free(&host, &node).await;
    assert!(!orphan.exists(), "what the kubelet left is gone");
    assert_eq!(
        fs::read_dir(&mps).unwrap().count(),
        0,
        "what containers shared by MPS is gone"
    );
    assert!(
        dumps.iter().all(|dump| !dump.exists()),
        "core dumps and checkpoints are gone"
    );
    let left = connections(&host, &node);
    assert!(left.is_empty(), "connections are left: {left:?}");
    kept.assert_keeps_the_peer_out().await;
    assert!(logs().is_empty(), "{:?}", logs());
    model.assert_gone(&host, &node);
    let volumes = volumes_of_images(&folder);
    assert!(volumes.is_empty(), "volumes of images are left: {volumes:?}");
}

/// The node of a tenant that has one.
pub(crate) async fn only_node(host: &TestCluster, tenant: &Tenant) -> String {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let own = ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.id.slug()));
    nodes.list(&own).await.unwrap().items.remove(0).name_any()
}

async fn until_ready(pods: &Api<Pod>, name: &str) {
    until(&format!("pod {name} runs"), SOON, async || {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        if is_pod_ready(&pod) {
            Ok(())
        } else {
            Err(format!("{:?}", pod.status))
        }
    })
    .await;
}

/// Waits until no tenant has a node, and it is not being recycled.
pub(crate) async fn until_free(host: &TestCluster, node: &str) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    until(&format!("node {node} is free"), SOON, async || {
        let node = nodes.get(node).await.map_err(|error| error.to_string())?;
        match node.labels().get(labels::NODE_STATE) {
            None => Ok(()),
            Some(state) => Err(format!("{state}: {:?}", node.annotations())),
        }
    })
    .await;
}

/// Reasons and messages of Events about an object of this name.
async fn events_about(client: &Client, name: &str) -> Vec<String> {
    let events: Api<Event> = Api::all(client.clone());
    let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let text = |event: Event| {
        let (reason, message) = (event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        format!("{reason}: {message}")
    };
    events.list(&about).await.unwrap().items.into_iter().map(text).collect()
}

/// Waits until an Event about an object of this name has these parts in its reason and message.
pub(crate) async fn until_event(client: &Client, name: &str, parts: &[&str]) {
    until(&format!("an Event about {name} says {parts:?}"), SOON, async || {
        let events = events_about(client, name).await;
        if events.iter().any(|text| parts.iter().all(|part| text.contains(part))) {
            Ok(())
        } else {
            Err(events)
        }
    })
    .await;
}

/// Creates a pod whose process ignores SIGTERM and that asks for a day to end, and waits until it runs.
async fn create_stubborn(pods: &Api<Pod>, name: &str) {
    let text = "trap '' TERM; while true; do sleep 1; done";
    let process = json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", text]});
    let mut stubborn = pod(name, only(process));
    stubborn["spec"]["terminationGracePeriodSeconds"] = 86_400.into();
    pods.create(&PostParams::default(), &serde_json::from_value(stubborn).unwrap())
        .await
        .unwrap();
    until_ready(pods, name).await;
}

/// A tenant with one node, on which a process ignores SIGTERM. Its pod asks for a day to end, and a budget forbids its eviction.
/// The class gives pods five seconds.
async fn stubborn_tenant(host: &TestCluster, name: &str) -> Tenant {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "brief"},
        "spec": {"sync": {"pods": {"maxTerminationGracePeriodSeconds": 5}}}});
    apply(&host.client, "", &class).await.unwrap();
    let mut cluster = cluster(name, &[("own", "l40s", 1)]);
    cluster.spec.class_name = Some("brief".into());
    let tenant = Tenant::create(host, name, &cluster).await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"minAvailable": 1, "selector": {}}});
    apply(&tenant.client, "default", &budget).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    create_stubborn(&pods, "stubborn").await;
    until_event(
        &tenant.client,
        "stubborn",
        &["FieldIgnored", "spec.terminationGracePeriodSeconds"],
    )
    .await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    until("the budget on the host has counted the pod", SOON, async || {
        let budgets = budgets
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        // A budget protects pods without a controller only by number, and only those that it has counted.
        let is_observed = budgets.iter().any(|budget| {
            let status = budget.status.as_ref();
            status.is_some_and(|status| status.current_healthy == Some(1))
        });
        if is_observed {
            Ok(())
        } else {
            Err(format!("{:?}", budgets.items))
        }
    })
    .await;
    tenant
}

/// Sets the time limits of the pool whose nodes these tests use; null: the defaults.
async fn limit_drains(host: &TestCluster, drain: Option<&str>) {
    let timeouts = json!({"timeouts": {"drain": drain, "terminate": drain}});
    host.patch_pool("l40s", &timeouts).await;
}

pub(crate) async fn a_process_that_ignores_sigterm_keeps_no_node(host: Arc<TestCluster>) {
    limit_drains(&host, Some("10s")).await;
    let tenant = stubborn_tenant(&host, "stubborn-node").await;
    let node = only_node(&host, &tenant).await;
    host.patch_tenant("stubborn-node", "stubborn-node", &json!({"nodeGroups": []}))
        .await;
    until_free(&host, &node).await;
    until_event(&host.client, &node, &["DrainForced"]).await;
    until_event(&tenant.client, "stubborn", &["NodeReclaimed"]).await;
    limit_drains(&host, None).await;
    tenant.delete(&host).await;
}

pub(crate) async fn a_process_that_ignores_sigterm_keeps_no_tenant(host: Arc<TestCluster>) {
    let tenant = stubborn_tenant(&host, "stubborn-tenant").await;
    let node = only_node(&host, &tenant).await;
    // The team's own deletion may name a longer time than its pod: on the host it is that of the class.
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.delete("stubborn", &DeleteParams::default().grace_period(86_400))
        .await
        .unwrap();
    until("the pod is gone, with a day left", SOON, async || {
        match pods.get_opt("stubborn").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    create_stubborn(&pods, "again").await;
    tenant.delete(&host).await;
    until_free(&host, &node).await;
}
