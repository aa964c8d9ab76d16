//! The quick start on an existing cluster: the commands of its page, in their order, on a cluster of real nodes that is not prepared
//! for Berth, with nothing but the artifacts of a release. No registry is there: images of upstream, which the page pulls, are built
//! here.
//!
//! It prints how long each step takes: `cargo nextest run -p berth-tests --test quick_start --no-capture`. With
//! `BERTH_RELEASE_ARTIFACTS` it takes the signed release in this folder, which has the public key beside it, instead of one of the
//! programs of this build.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that prints how long steps took, and fails where it stands"
)]

use berth_api::{TenantCluster, names::TenantId};
use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_local::{
    Purpose, TestHost,
    images::{
        USER,
        catalog::{BERTH_PROGRAMS, PAUSE, archive_name, for_control_planes, for_workloads},
    },
};
use berth_process::binaries::{self, Binary};
use berth_tests::{
    files::binary,
    page::{Block, Place, parse_blocks},
    release::{PUBLIC_KEY, make_key, run, write},
    suite::lacks_real_nodes,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{chown, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{process::Command, task::spawn_blocking};

const PAGE: &str = "docs/guides/quick-start-existing-cluster.md";
const CPU_NODE: &str = "cpu-01";
const GPU_NODE: &str = "gpu-l40s-01";
/// The release that is used instead of one of this build.
const RELEASE: &str = "BERTH_RELEASE_ARTIFACTS";

/// A reader of the page.
struct Reader<'a> {
    host: &'a TestHost,
    /// Where commands run: the folder with the files of the release.
    release: PathBuf,
    /// Folder for what programs keep, and for the variables of the reader's shell.
    home: PathBuf,
}

impl Reader<'_> {
    /// Runs a block; returns what it printed.
    async fn run(&self, block: &Block) -> String {
        match block.place {
            Place::Here => {
                let state = self.home.join("variables");
                let script = format!(
                    "set -euo pipefail\ncd {}\n[[ ! -f {state} ]] || source {state}\n{}\nexport -p >{state}\n",
                    self.release.display(),
                    block.text,
                    state = state.display(),
                );
                let mut command = Command::new("bash");
                self.set_variables(command.args(["-c", &script]));
                output(command, block).await
            }
            Place::EachNode => {
                let script = format!("set -euo pipefail\ncd {}\n{}", self.release.display(), block.text);
                let mut printed = String::new();
                for node in [CPU_NODE, GPU_NODE] {
                    let mut command = Command::from(self.host.command_on_node(node, "bash").unwrap());
                    // A node has the programs of its container runtime in its path.
                    let path = format!("/opt/containerd/bin:{}", std::env::var("PATH").unwrap());
                    command.args(["-c", &script]).env("PATH", path);
                    printed.push_str(&output(command, block).await);
                }
                printed
            }
        }
    }

    fn set_variables(&self, command: &mut Command) {
        let folder = |binary| binaries::find_pinned(binary).unwrap().parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap();
        let own = [folder(Binary::Kubectl), folder(Binary::Helm)];
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).unwrap();
        command
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("KUBECONFIG", self.host.home().admin_kubeconfig())
            .env_remove("BERTH_HOME");
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR"] {
            command.env(name, self.home.join(name));
        }
    }
}

async fn output(mut command: Command, block: &Block) -> String {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(
        output.status.success(),
        "{PAGE}, {:?}: {}\n{}\n{printed}",
        block.heading,
        output.status,
        block.text
    );
    printed
}

/// A folder with the files of a release and the public key.
fn get_release(work: &Path) -> PathBuf {
    if let Some(given) = std::env::var_os(RELEASE) {
        let folder = work.join("release");
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(given).unwrap() {
            let file = entry.unwrap().path();
            if file.is_file() {
                fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
            }
        }
        return folder;
    }
    let programs = work.join("programs");
    fs::create_dir(&programs).unwrap();
    for name in BERTH_PROGRAMS.iter().chain([&"berth"]) {
        // As in a release, without symbols.
        let (from, to) = (
            binary(name).display().to_string(),
            programs.join(name).display().to_string(),
        );
        run(work, "strip", &["-o", &to, &from]);
    }
    let key = make_key(work);
    let folder = write(&programs, &work.join("artifacts"), Some(&key));
    fs::copy(work.join(PUBLIC_KEY), folder.join(PUBLIC_KEY)).unwrap();
    folder
}

/// Puts archives of upstream's images where `berth images save` would put those that it pulls.
fn add_upstream_images(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let mut images = for_control_planes(&[KUBERNETES_DEFAULT]).unwrap();
    images.extend(
        for_workloads()
            .unwrap()
            .into_iter()
            .filter(|image| image.reference == PAUSE),
    );
    for image in images {
        let archive = image.archive().unwrap();
        symlink(archive.path, folder.join(archive_name(&image.reference))).unwrap();
    }
}

/// What every cluster of others has: a default StorageClass. It has one volume, a folder of the CPU node.
async fn add_storage(host: &TestHost, client: &Client) {
    let folder = host.home().root().join("volume");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(USER), Some(USER)).unwrap();
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "volume"},
        "spec": {
            "storageClassName": "standard", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": folder, "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [CPU_NODE]},
            ]}]}},
        },
    });
    for (group, version, kind, object) in [
        ("storage.k8s.io", "v1", "StorageClass", class),
        ("", "v1", "PersistentVolume", volume),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// The pod of the page runs on the GPU node of the host.
async fn check_pod(client: &Client) {
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), "team-vision");
    let tenant = tenants.get("vision").await.unwrap();
    let workloads = TenantId::new(&tenant.name_any(), &tenant.uid().unwrap()).workload_namespace();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &workloads);
    until("the tenant's pod runs on the GPU node", SOON, async || {
        let pods = pods
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let runs = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let image = pod.spec.iter().flat_map(|spec| &spec.containers).next();
            phase == Some("Running")
                && node == Some(GPU_NODE)
                && image.and_then(|container| container.image.as_deref()) == Some(PAUSE)
        };
        match pods.items.iter().find(runs) {
            Some(pod) => Ok(pod.name_any()),
            None => Err(format!("{:?}", pods.items)),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_works_on_a_cluster_of_others() {
    if lacks_real_nodes() {
        return;
    }
    berth_runtime::install_crypto();
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE)).unwrap();
    let blocks = parse_blocks(&text).unwrap();
    let work = TempDir::with_prefix("berth-quick-start-").unwrap();
    let folder = work.path().to_owned();
    let release = spawn_blocking(move || {
        let release = get_release(&folder);
        add_upstream_images(&release.join("images"));
        release
    });
    let release = release.await.unwrap();
    let host = TestHost::start_with(|config| {
        config.nodes = "cpu=1,l40s=1".parse().unwrap();
        config.real_nodes = true;
        config.purpose = Purpose::Anybody;
    });
    let host = host.await.unwrap();
    let client = host.client().await.unwrap();
    add_storage(&host, &client).await;
    let home = work.path().join("home");
    fs::create_dir(&home).unwrap();
    let reader = Reader {
        host: &host,
        release,
        home,
    };

    let (mut times, mut is_warned, mut has_run): (Vec<(String, Duration)>, _, _) = (Vec::new(), false, false);
    for block in &blocks {
        let begin = Instant::now();
        let printed = reader.run(block).await;
        let took = begin.elapsed();
        println!(
            "--- {} ({:.1} s)\n{}{printed}",
            block.heading,
            took.as_secs_f64(),
            block.text
        );
        match times.last_mut().filter(|(heading, _)| *heading == block.heading) {
            Some((_, time)) => *time += took,
            None => times.push((block.heading.clone(), took)),
        }
        if block.text.contains("berth doctor") {
            // This network enforces nothing.
            is_warned = printed.contains("no DaemonSet of a network plugin is known that enforces NetworkPolicies");
            assert!(is_warned, "{printed}");
        }
        if block.text.contains("rollout status") {
            check_pod(&client).await;
            has_run = true;
        }
    }
    assert!(is_warned && has_run, "{PAGE} lacks a step: {times:?}");
    let tenants: Api<TenantCluster> = Api::all(client.clone());
    let left = tenants.list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "the page deletes its tenant: {:?}", left.items);

    println!("\n| step | time |\n|---|---|");
    for (heading, time) in &times {
        println!("| {heading} | {:.1} s |", time.as_secs_f64());
    }
    let total: Duration = times.iter().map(|(_, time)| *time).sum();
    println!("| all | {:.1} s |", total.as_secs_f64());
}
