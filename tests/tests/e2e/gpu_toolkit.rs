//! NVIDIA's container toolkit: a node on which it has a known way out of a container goes to no tenant. There is no GPU here. The node's PCI bus shows one
//! of NVIDIA's, and scripts take the place of NVIDIA's programs.

use crate::{
    node_recycling::{only_node, until_free},
    on_node,
    pods::SOON,
};
use berth_api::labels;
use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

/// Devices on the PCI bus of a node.
const DEVICES: &str = "/sys/bus/pci/devices";
/// nvidia-smi on a node with one GPU, without MIG and persistence mode.
const SMI: &str = r#"#!/bin/sh
case "$1" in
    -L) echo "GPU 0: NVIDIA L40S (UUID: GPU-1)" ;;
    mig) echo "No MIG-supported devices found."; exit 1 ;;
    --query-gpu=*) echo "GPU-1, Disabled" ;;
esac
"#;

fn write_program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Puts a toolkit of a version beside the driver.
fn install_toolkit(driver: &Path, version: &str) {
    let script = format!("#!/bin/sh\necho \"NVIDIA Container Toolkit CLI version {version}\"\n");
    write_program(&driver.join("toolkit/nvidia-ctk"), &script);
}

/// Lets the PCI bus of a node show a GPU, and nothing else.
fn show_gpu(host: &TestCluster, node: &str, folder: &Path) {
    let bus = folder.join("bus");
    let device = bus.join("0000:01:00.0");
    fs::create_dir_all(&device).unwrap();
    for (file, content) in [("vendor", "0x10de\n"), ("class", "0x030200\n")] {
        fs::write(device.join(file), content).unwrap();
    }
    on_node::run(host, node, "mount", &["--bind", bus.to_str().unwrap(), DEVICES]);
}

pub(crate) async fn an_unsafe_container_toolkit_keeps_a_node(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "toolkit", &cluster("toolkit", &[("own", "l40s", 1)])).await;
    let node = only_node(&host, &tenant).await;
    // The node has the folders of this machine. Its name may not begin with a dot.
    let folder = tempfile::Builder::new().prefix("berth-toolkit-").tempdir().unwrap();
    let driver = folder.path().join("driver");
    write_program(&driver.join("bin/nvidia-smi"), SMI);
    install_toolkit(&driver, "1.19.0");
    host.patch_pool("l40s", &json!({"nvidia": {"driverRoot": driver}}))
        .await;
    show_gpu(&host, &node, folder.path());

    tenant.delete(&host).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let why = until("the node is quarantined", SOON, async || {
        let node = nodes.get(&node).await.map_err(|error| error.to_string())?;
        match node.annotations().get(labels::QUARANTINE) {
            Some(why) => Ok(why.clone()),
            None => Err(format!("{:?}", node.labels().get(labels::NODE_STATE))),
        }
    })
    .await;
    let unsafe_toolkit = "nvidia-ctk is of version 1.19.0: an image can take over the node";
    assert!(why.contains(unsafe_toolkit), "{why}");

    install_toolkit(&driver, "1.19.1");
    let release = Patch::Merge(json!({"metadata": {"annotations": {labels::RELEASE_QUARANTINE: "yes"}}}));
    nodes.patch(&node, &PatchParams::default(), &release).await.unwrap();
    until_free(&host, &node).await;
    on_node::run(&host, &node, "umount", &[DEVICES]);
    host.patch_pool("l40s", &json!({"nvidia": null})).await;
}
