//! Devices by dynamic resource allocation without hardware: how Kubernetes' own test driver is run on a real node.
//!
//! The driver (`test/e2e/dra/test-driver` of Kubernetes) is a real one: it publishes the node's ResourceSlice, the
//! kubelet calls it to prepare claims, and it writes CDI files that containerd reads. A container with a claim gets
//! variables from it: `claim_<claim>_<request>=true`, and those of the claim's and the class's opaque configuration as
//! `user_<key>` and `admin_<key>`.
//!
//! It runs in the node's mount namespace, beside the kubelet, as one user for all nodes (upstream a service account of
//! the driver's DaemonSet). To start it:
//!
//! 1. once for the cluster, apply [`objects`];
//! 2. on the node, create [`DraDriver::directories`];
//! 3. write a kubeconfig of the user [`USER`];
//! 4. run the binary with [`DraDriver::arguments`]. The kubelet need not run yet: it watches the registration directory.
//!
//! SIGTERM makes it remove its sockets; its slices stay, as those of a real driver do during an update. The kubelet deletes
//! them half a minute after the driver has gone.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Name of the driver, and of its DeviceClass: what NVIDIA's driver for whole GPUs is called.
pub const DRIVER: &str = "gpu.nvidia.com";
/// User name of the driver.
pub const USER: &str = "berth-dra-driver";

/// The driver on one node.
#[derive(Clone, Copy, Debug)]
pub struct DraDriver<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// How many devices it has. They are called `device-00`, `device-01`, …, in one pool that is called like the node.
    pub devices: u32,
    /// A kubeconfig of [`USER`].
    pub kubeconfig: &'a Path,
    /// The kubelet's own directory, as the driver sees it; usually `/var/lib/kubelet`.
    pub kubelet: &'a Path,
    /// Where containerd looks for CDI files, as the driver sees it; `/var/run/cdi` unless configured otherwise.
    pub cdi: &'a Path,
}

impl DraDriver<'_> {
    /// Its arguments. It looks for its kubeconfig in the variable `KUBECONFIG` first: leave that unset.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            "kubelet-plugin".into(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--drivername={DRIVER}"),
            format!("--node-name={}", self.node),
            format!("--num-devices={}", self.devices),
            // It adds its own name to this one.
            format!("--datadir={}", self.plugins().display()),
            format!("--plugin-registration-path={}", self.registry().display()),
            format!("--cdi-dir={}", self.cdi.display()),
        ]
    }

    /// The directories that must exist before it starts. It does not create its own, and only the kubelet
    /// creates the kubelet's.
    pub fn directories(&self) -> [PathBuf; 3] {
        [self.plugins().join(DRIVER), self.registry(), self.cdi.to_owned()]
    }

    fn plugins(&self) -> PathBuf {
        self.kubelet.join("plugins")
    }

    fn registry(&self) -> PathBuf {
        self.kubelet.join("plugins_registry")
    }
}

/// Objects that the cluster must have: the rights of the driver, and the class that claims request.
pub fn objects() -> [Value; 3] {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
            // The slices of a node belong to the Node.
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
             "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    });
    let class = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == {DRIVER:?}")}}]},
    });
    [role, binding, class]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_finds_kubelet_and_container_runtime() {
        let driver = DraDriver {
            node: "gpu-h100-01",
            devices: 8,
            kubeconfig: Path::new("/home/dra.kubeconfig"),
            kubelet: Path::new("/var/lib/kubelet"),
            cdi: Path::new("/var/run/cdi"),
        };
        assert_eq!(
            driver.arguments(),
            [
                "kubelet-plugin",
                "--kubeconfig=/home/dra.kubeconfig",
                "--drivername=gpu.nvidia.com",
                "--node-name=gpu-h100-01",
                "--num-devices=8",
                "--datadir=/var/lib/kubelet/plugins",
                "--plugin-registration-path=/var/lib/kubelet/plugins_registry",
                "--cdi-dir=/var/run/cdi",
            ]
        );
        let expected = [
            "/var/lib/kubelet/plugins/gpu.nvidia.com",
            "/var/lib/kubelet/plugins_registry",
            "/var/run/cdi",
        ];
        assert_eq!(driver.directories(), expected.map(PathBuf::from));
    }

    #[test]
    fn the_class_selects_the_drivers_devices() {
        let [.., class] = objects();
        let expression = &class["spec"]["selectors"][0]["cel"]["expression"];
        assert_eq!(expression, "device.driver == \"gpu.nvidia.com\"");
    }
}
