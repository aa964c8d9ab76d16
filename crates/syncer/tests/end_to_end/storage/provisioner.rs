//! The host's storage, simulated by the test: it makes, grows and removes volumes, and takes snapshots.

use super::{CLAIM, SNAPSHOT, VOLUME, api};
use crate::setup::WORKLOADS;
use kube::{
    Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The name of the driver.
pub const DRIVER: &str = "disks.example.com";

/// Runs until it is dropped.
pub struct Provisioner(JoinHandle<()>);

impl Provisioner {
    /// Serves the claims of the workload namespace.
    pub fn start(host: Client) -> Self {
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = round(&host).await {
                    tracing::debug!(%error, "the provisioner tries again");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

async fn round(host: &Client) -> Result<(), kube::Error> {
    let everything = ListParams::default();
    let (claims, volumes) = (api(host, CLAIM, WORKLOADS), api(host, VOLUME, ""));
    let known = volumes.list(&everything).await?.items;
    for claim in claims.list(&everything).await?.items {
        let name = format!("pvc-{}", claim.uid().unwrap());
        let size = text(&claim.data, "/spec/resources/requests/storage");
        let chosen = claim.annotations().contains_key("volume.kubernetes.io/selected-node");
        match known.iter().find(|volume| volume.name_any() == name) {
            None if text(&claim.data, "/spec/storageClassName") == "late" && !chosen => {}
            None if text(&claim.data, "/status/phase") == "Pending" => {
                let volume = volume(&name, &claim, size);
                volumes.create(&PostParams::default(), &volume).await?;
            }
            Some(volume)
                if text(&claim.data, "/status/phase") == "Bound"
                    && text(&volume.data, "/spec/capacity/storage") != size =>
            {
                let grown = Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
                volumes.patch(&name, &PatchParams::default(), &grown).await?;
                let grown = Patch::Merge(json!({"status": {"capacity": {"storage": size}}}));
                claims
                    .patch_status(&claim.name_any(), &PatchParams::default(), &grown)
                    .await?;
            }
            _ => {}
        }
    }
    for volume in known {
        if matches!(text(&volume.data, "/status/phase"), "Released" | "Failed") {
            volumes.delete(&volume.name_any(), &DeleteParams::default()).await?;
        }
    }
    let snapshots = api(host, SNAPSHOT, WORKLOADS);
    for snapshot in snapshots.list(&everything).await?.items {
        if snapshot.data.get("status").is_none() {
            claims
                .get(text(&snapshot.data, "/spec/source/persistentVolumeClaimName"))
                .await?;
            let status = json!({"readyToUse": true, "restoreSize": "10Gi", "creationTime": "2026-11-20T10:00:00Z",
                "boundVolumeSnapshotContentName": "snapcontent-of-the-host"});
            let status = Patch::Merge(json!({"status": status}));
            snapshots
                .patch_status(&snapshot.name_any(), &PatchParams::default(), &status)
                .await?;
        }
    }
    Ok(())
}

fn volume(name: &str, claim: &DynamicObject, size: &str) -> DynamicObject {
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {"accessModes": claim.data["spec"]["accessModes"], "capacity": {"storage": size},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": WORKLOADS,
                "name": claim.name_any(), "uid": claim.uid()},
            "csi": {"driver": DRIVER, "volumeHandle": format!("secret-handle-{name}")},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": claim.data["spec"]["storageClassName"],
            "volumeAttributesClassName": claim.data["spec"]["volumeAttributesClassName"],
            "volumeMode": claim.data["spec"]["volumeMode"]}});
    serde_json::from_value(volume).unwrap()
}
