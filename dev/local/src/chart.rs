//! Berth on a host cluster with real nodes, as users install it: by its Helm chart, with control planes that are pods.

use std::path::PathBuf;
use std::process::Stdio;

use berth_process::binaries::{self, Binary};
use berth_process::{create_private_dir, write_atomic};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::images::{Image, USER, catalog};
use crate::nodes::SYSTEM_NODE;
use crate::{Error, HostCluster};

/// Namespace and name of the release.
const NAMESPACE: &str = "berth-system";
const RELEASE: &str = "berth";
/// Name of the volume of the tenants' datastore, and of its class.
const VOLUME: &str = "berth-datastore";
/// Program of the gateway, which values may install.
const GATEWAY: &str = "berth-gateway";
/// Field manager of the objects that are applied here.
const MANAGER: &str = "berth-local";

/// What is to be installed.
#[derive(Clone, Debug)]
pub struct ChartInstall {
    /// Folder of the chart.
    pub chart: PathBuf,
    /// Folder of Berth's own programs, of which images are made.
    pub programs: PathBuf,
    /// Kubernetes versions for tenants, newest first.
    pub versions: Vec<String>,
    /// Replicas of control.
    pub replicas: u8,
    /// Values that override those made here, in the shape of the chart's values.
    pub values: Value,
}

impl ChartInstall {
    /// A chart in a folder with programs from another; one replica of control, and tenants of every Kubernetes version whose
    /// binaries are there.
    pub fn new(chart: impl Into<PathBuf>, programs: impl Into<PathBuf>) -> Self {
        let mut versions = binaries::available_versions();
        versions.retain(|version| {
            catalog::CONTROL_PLANE
                .iter()
                .all(|component| binaries::find(*component, version).is_ok())
        });
        Self {
            chart: chart.into(),
            programs: programs.into(),
            versions,
            replicas: 1,
            values: json!({}),
        }
    }

    fn has_gateway(&self) -> bool {
        self.values["gateway"]["enabled"] == true
    }

    fn build_values(&self) -> Value {
        let node_selector = json!({SYSTEM_NODE: ""});
        let mut values = json!({
            "control": {"replicas": self.replicas, "nodeSelector": node_selector},
            "gateway": {"nodeSelector": node_selector},
            "tenants": {"versions": self.versions, "nodeSelector": node_selector, "withoutClass": "BuiltInDefaults"},
            "datastore": {"etcd": {
                "nodeSelector": node_selector,
                "persistence": {"storageClassName": VOLUME, "size": "1Gi"},
                "quota": "2Gi",
            }},
        });
        merge_values(&mut values, &self.values);
        values
    }
}

/// Overrides `values` with `overrides`, field by field.
fn merge_values(values: &mut Value, overrides: &Value) {
    match (values, overrides) {
        (Value::Object(values), Value::Object(overrides)) => {
            for (name, value) in overrides {
                merge_values(values.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (values, overrides) => *values = overrides.clone(),
    }
}

impl HostCluster {
    /// Makes and imports the images, and installs or upgrades the chart. Returns when control is available.
    ///
    /// # Errors
    /// [`Error::NoRealNodes`] with simulated nodes, [`Error::Binary`] when a program is not built, [`Error::Helm`] when helm
    /// fails.
    pub async fn install_chart(&self, install: &ChartInstall) -> Result<(), Error> {
        let versions: Vec<&str> = install.versions.iter().map(String::as_str).collect();
        let (mut first, later): (Vec<Image>, Vec<Image>) = catalog::for_control_planes(&versions)?
            .into_iter()
            .partition(|image| image.reference == catalog::ETCD);
        first.extend(catalog::for_berth(&install.programs));
        if install.has_gateway() {
            first.push(catalog::for_program(GATEWAY, &install.programs.join(GATEWAY)));
        }
        let system_nodes = self.system_nodes();
        self.import_images(&first, Some(&system_nodes)).await?;
        // Every node that a tenant leaves is scrubbed.
        let scrub_image = catalog::for_cleaning(&install.programs);
        self.import_images(&[scrub_image], None).await?;
        self.create_volume().await?;
        let values = self.home().root().join("values.json");
        write_atomic(&values, format!("{:#}", install.build_values()).as_bytes(), 0o600)?;
        let (chart, values) = (install.chart.display().to_string(), values.display().to_string());
        let helm = ["upgrade", "--install", RELEASE, &chart, "--values", &values];
        let helm = [&helm[..], &["--create-namespace", "--wait", "--timeout", "4m"]].concat();
        // Those of tenants are the largest, and are needed later: they are imported while control and its datastore start.
        tokio::try_join!(self.helm(&helm), self.import_images(&later, Some(&system_nodes)))?;
        Ok(())
    }

    /// Runs helm in the namespace of Berth's release; returns what it printed.
    ///
    /// # Errors
    /// [`Error::Helm`] with helm's message when it fails.
    pub async fn helm(&self, args: &[&str]) -> Result<String, Error> {
        let folder = self.home().root().join("helm");
        create_private_dir(&folder)?;
        let failed = |why: String| Error::Helm {
            command: args.join(" "),
            why,
        };
        let output = Command::new(binaries::find_pinned(Binary::Helm)?)
            .args(args)
            .args(["--namespace", NAMESPACE])
            // Not the user's own.
            .env("HELM_CACHE_HOME", &folder)
            .env("HELM_CONFIG_HOME", &folder)
            .env("HELM_DATA_HOME", &folder)
            .env("KUBECONFIG", self.home().admin_kubeconfig())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
    }

    /// A volume for the datastore that outlives its pod: a folder of the home.
    async fn create_volume(&self) -> Result<(), Error> {
        let folder = self.home().root().join("data").join("tenants");
        create_private_dir(&folder)?;
        std::os::unix::fs::chown(&folder, Some(USER), Some(USER)).map_err(|source| Error::File {
            action: "change the owner of",
            path: folder.clone(),
            source,
        })?;
        let nodes = self.system_nodes();
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME},
            "spec": {
                "storageClassName": VOLUME,
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": folder, "type": "Directory"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": &nodes[..1]},
                ]}]}},
            },
        });
        let api: Api<PersistentVolume> = Api::all(self.client().await?);
        api.patch(VOLUME, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&volume))
            .await
            .map_err(Error::api("create the datastore's volume"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_values_override_the_default_ones() {
        let install = ChartInstall {
            chart: "chart".into(),
            programs: "programs".into(),
            versions: vec!["v1.37.1".into()],
            replicas: 2,
            values: json!({"control": {"logLevel": "debug"}, "tenants": {"versions": []}}),
        };
        let values = install.build_values();
        assert_eq!(values["control"]["replicas"], 2);
        assert_eq!(values["control"]["logLevel"], "debug");
        assert_eq!(values["tenants"]["versions"], json!([]));
        assert_eq!(values["tenants"]["nodeSelector"], json!({SYSTEM_NODE: ""}));
    }
}
