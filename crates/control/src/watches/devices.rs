//! Watches of `DeviceClass`es, `ResourceClaim`s and their templates, and the devices that drivers publish (`ResourceSlice`). A
//! host that does not serve them has none.

use super::{
    FLEET_PAUSE,
    follow::{Index, follow_if_served},
    pods_on_nodes::{Owners, Places},
};
use crate::{
    gpu_pods::{self, GpuPods},
    key::Key,
};
use berth_api::HostNodePool;
use berth_node_lifecycle::{
    NodeIndex,
    devices::{DeviceClaim, DeviceClass, Devices},
};
use berth_runtime::queue::Queue;
use kube::{Client, ResourceExt, api::DynamicObject, runtime::reflector::Store};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// The contents of the watches.
pub(super) struct Watched {
    pub(super) devices: Arc<Devices>,
    pub(super) slices: Arc<NodeIndex<Value>>,
    /// Each resolves when the first list is complete, or the host does not serve the kind.
    pub(super) listed: Vec<oneshot::Receiver<()>>,
}

/// Starts the watches.
pub(super) fn start(
    client: &Client,
    owners: &Owners,
    pools: &Store<HostNodePool>,
    gpu_pods: &Arc<GpuPods>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Watched {
    let slices = Arc::new(NodeIndex::default());
    let devices = Arc::new(Devices::new(Arc::clone(&slices)));
    let mut listed = Vec::new();
    for kind in [Kind::Class, Kind::Claim, Kind::Template] {
        let index = Objects {
            kind,
            devices: Arc::clone(&devices),
            gpu_pods: Arc::clone(gpu_pods),
            queue: owners.queue.clone(),
        };
        let (done, is_done) = oneshot::channel();
        listed.push(is_done);
        let (client, stop) = (client.clone(), stop.clone());
        tasks.spawn(async move { follow_if_served(client, kind.names(), &index, done, &stop).await });
    }
    let (done, is_done) = oneshot::channel();
    listed.push(is_done);
    let (client, stop, owners, pools) = (client.clone(), stop.clone(), owners.clone(), pools.clone());
    let (index, counted) = (Arc::clone(&slices), Arc::clone(&devices));
    tasks.spawn(async move {
        let places = Places {
            index: &index,
            place: place_of_slice,
            wake: |nodes: &BTreeSet<String>| {
                if nodes.is_empty() {
                    return;
                }
                counted.slices_changed(nodes);
                owners.wake(nodes);
                // A node that has devices must not be shared.
                owners.queue.add_after(Key::SharedNodes, FLEET_PAUSE);
                owners.queue.add_after(Key::Fleet, FLEET_PAUSE);
                for pool in pools.state() {
                    owners.queue.add_after(Key::Pool(pool.name_any()), FLEET_PAUSE);
                }
            },
        };
        follow_if_served(client, ("ResourceSlice", "resourceslices"), &places, done, &stop).await;
    });
    Watched {
        devices,
        slices,
        listed,
    }
}

/// The node whose devices a slice has; the empty name for devices that several nodes reach.
fn place_of_slice(slice: &DynamicObject) -> Option<(String, Value)> {
    let spec = slice.data.get("spec")?;
    let node = spec.get("nodeName").and_then(Value::as_str).unwrap_or_default();
    Some((node.to_owned(), spec.clone()))
}

#[derive(Clone, Copy)]
enum Kind {
    Class,
    Claim,
    Template,
}

impl Kind {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Class => ("DeviceClass", "deviceclasses"),
            Self::Claim => ("ResourceClaim", "resourceclaims"),
            Self::Template => ("ResourceClaimTemplate", "resourceclaimtemplates"),
        }
    }
}

/// Objects of one kind.
struct Objects {
    kind: Kind,
    devices: Arc<Devices>,
    /// Pods with GPUs: those of claims are theirs.
    gpu_pods: Arc<GpuPods>,
    queue: Queue<Key>,
}

impl Objects {
    fn wake(&self, changed: bool) {
        if changed {
            self.queue.add_after(Key::Fleet, FLEET_PAUSE);
            // Limits of users count devices that are claimed.
            self.queue.add_after(Key::UserQuotas, FLEET_PAUSE);
        }
    }
}

impl Index<DynamicObject> for Objects {
    fn put(&self, name: &str, object: Option<&DynamicObject>) {
        let data = object.map(|object| &object.data);
        self.wake(match self.kind {
            Kind::Class => self
                .devices
                .put_class(name, data.map(|data| DeviceClass::read(&data["spec"]))),
            Kind::Claim => {
                let gpus = data.and_then(|data| gpu_pods::count_gpus_of_claim(&data["spec"], &data["status"]));
                self.gpu_pods.put_claim(name, gpus);
                let claim = data.map(|data| DeviceClaim::read(&data["spec"], &data["status"]));
                self.devices.put_claim(name, claim)
            }
            Kind::Template => {
                let claim = data.map(|data| DeviceClaim::read(&data["spec"]["spec"], &Value::Null));
                self.devices.put_template(name, claim)
            }
        });
    }

    fn retain(&self, names: &HashSet<String>) {
        self.wake(match self.kind {
            Kind::Class => self.devices.retain_classes(names),
            Kind::Claim => {
                self.gpu_pods.retain_claims(names);
                self.devices.retain_claims(names)
            }
            Kind::Template => self.devices.retain_templates(names),
        });
    }
}
