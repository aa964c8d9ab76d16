//! Watches of `DeviceClass`es, `ResourceClaim`s and their templates, and the devices that drivers publish (`ResourceSlice`). A
//! host that does not serve them has none.
//!
//! Tenants fill claims, and who is root on a node its slices. None of them is ever a tree of JSON here: of a claim the parts are parsed that
//! count, and a slice is kept as text.

use super::{
    FLEET_PAUSE,
    follow::{Index, follow_if_served},
    pods_on_nodes::Owners,
};
use crate::{
    device_claims::ClaimObject,
    gpu_pods::{self, GpuPods},
    key::Key,
};
use berth_api::HostNodePool;
use berth_node_lifecycle::devices::{ClassSpec, DeviceClaim, DeviceClass, Devices, Slice, Slices, TemplateSpec};
use berth_runtime::queue::Queue;
use kube::{
    Client, ResourceExt,
    api::{ApiResource, GroupVersionKind},
    core::{NotUsed, Object},
    runtime::{reflector::Store, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::{
    collections::{BTreeSet, HashSet},
    fmt::Debug,
    sync::Arc,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

// The `spec` may be missing: of a deleted object that cannot be read nothing but its name is known.
type ClassObject = Object<Option<ClassSpec>, NotUsed>;
type TemplateObject = Object<Option<TemplateSpec>, NotUsed>;
type SliceObject = Object<Option<Box<RawValue>>, NotUsed>;

/// The contents of the watches.
pub(super) struct Watched {
    pub(super) devices: Arc<Devices>,
    pub(super) slices: Arc<Slices>,
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
    let slices = Arc::new(Slices::default());
    let devices = Arc::new(Devices::new(Arc::clone(&slices)));
    let objects = Objects {
        devices: Arc::clone(&devices),
        gpu_pods: Arc::clone(gpu_pods),
        queue: owners.queue.clone(),
    };
    let of_slices = SliceWatch {
        slices: Arc::clone(&slices),
        devices: Arc::clone(&devices),
        owners: owners.clone(),
        pools: pools.clone(),
    };
    let (classes, claims) = (("DeviceClass", "deviceclasses"), ("ResourceClaim", "resourceclaims"));
    let templates = ("ResourceClaimTemplate", "resourceclaimtemplates");
    let listed = vec![
        watch::<ClassObject>(client, classes, objects.clone(), tasks, stop),
        watch::<ClaimObject>(client, claims, objects.clone(), tasks, stop),
        watch::<TemplateObject>(client, templates, objects, tasks, stop),
        watch::<SliceObject>(client, ("ResourceSlice", "resourceslices"), of_slices, tasks, stop),
    ];
    Watched {
        devices,
        slices,
        listed,
    }
}

/// Watches one kind. The receiver resolves when the first list is complete.
fn watch<K>(
    client: &Client,
    (kind, plural): (&str, &str),
    index: impl Index<K> + Send + Sync + 'static,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> oneshot::Receiver<()>
where
    K: kube::Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (done, is_done) = oneshot::channel();
    let (client, stop) = (client.clone(), stop.clone());
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let config = watcher::Config::default();
    tasks.spawn(async move { follow_if_served(client, (&resource, config), &index, done, &stop).await });
    is_done
}

/// Slices by node.
struct SliceWatch {
    slices: Arc<Slices>,
    devices: Arc<Devices>,
    owners: Owners,
    pools: Store<HostNodePool>,
}

impl SliceWatch {
    fn wake(&self, nodes: &BTreeSet<String>) {
        if nodes.is_empty() {
            return;
        }
        self.devices.slices_changed(nodes);
        self.owners.wake(nodes);
        let queue = &self.owners.queue;
        // A node that has devices must not be shared.
        queue.add_after(Key::SharedNodes, FLEET_PAUSE);
        queue.add_after(Key::Fleet, FLEET_PAUSE);
        for pool in self.pools.state() {
            queue.add_after(Key::Pool(pool.name_any()), FLEET_PAUSE);
        }
    }
}

impl Index<SliceObject> for SliceWatch {
    fn put(&self, name: &str, slice: Option<&SliceObject>) {
        let spec = slice.and_then(|slice| slice.spec.as_ref());
        let read = spec.map(|spec| Slice::read(spec.get()));
        let place = match read.transpose() {
            Ok(place) => place,
            Err(error) => {
                tracing::error!(name, %error, "a ResourceSlice cannot be read, and is as it was before, or as if it did not exist");
                return;
            }
        };
        self.wake(&self.slices.put(name, place));
    }

    fn retain(&self, names: &HashSet<String>) {
        self.wake(&self.slices.retain(names));
    }

    fn lacks_objects(&self) -> bool {
        self.slices.have_room_again()
    }
}

/// Classes, claims and templates.
#[derive(Clone)]
struct Objects {
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

impl Index<ClassObject> for Objects {
    fn put(&self, name: &str, class: Option<&ClassObject>) {
        let class = class.map(|class| DeviceClass::read(class.spec.clone()));
        self.wake(self.devices.put_class(name, class));
    }

    fn retain(&self, names: &HashSet<String>) {
        self.wake(self.devices.retain_classes(names));
    }
}

impl Index<ClaimObject> for Objects {
    fn put(&self, name: &str, claim: Option<&ClaimObject>) {
        let gpus = claim.and_then(|claim| gpu_pods::count_gpus_of_claim(claim.spec.as_ref(), claim.status.as_ref()));
        self.gpu_pods.put_claim(name, gpus);
        let claim = claim.map(|claim| DeviceClaim::read(claim.spec.as_ref(), claim.status.as_ref()));
        self.wake(self.devices.put_claim(name, claim));
    }

    fn retain(&self, names: &HashSet<String>) {
        self.gpu_pods.retain_claims(names);
        self.wake(self.devices.retain_claims(names));
    }
}

impl Index<TemplateObject> for Objects {
    fn put(&self, name: &str, template: Option<&TemplateObject>) {
        let claim = template.map(|template| {
            let spec = template.spec.as_ref().and_then(|template| template.spec.as_ref());
            DeviceClaim::read(spec, None)
        });
        self.wake(self.devices.put_template(name, claim));
    }

    fn retain(&self, names: &HashSet<String>) {
        self.wake(self.devices.retain_templates(names));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_runtime::watched;
    use kube::core::ObjectList;
    use serde_json::{Value, json};

    /// Reads a page with one object, as a watch does.
    fn read<K: kube::Resource + Clone + DeserializeOwned>(object: &Value) -> Option<K> {
        let text = json!({"metadata": {}, "items": [object]}).to_string();
        let page: ObjectList<watched::Watched<K>> = serde_json::from_str(&text).unwrap();
        page.items.into_iter().next().unwrap().readable()
    }

    #[test]
    fn objects_of_the_api_server_are_read() {
        let metadata = json!({"name": "a", "namespace": "n", "managedFields": [{"fieldsV1": {}}]});
        let of = |kind: &str, spec: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
        let exactly = json!({"deviceClassName": "gpu", "count": 1, "allocationMode": "ExactCount"});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": exactly}], "config": [{"opaque": {}}]}});
        let claim: ClaimObject = read(&of("ResourceClaim", spec.clone())).unwrap();
        let claim = DeviceClaim::read(claim.spec.as_ref(), claim.status.as_ref());
        assert_eq!(claim.requests[0].0[0].kind.class, "gpu");
        let template: TemplateObject = read(&of("ResourceClaimTemplate", json!({"spec": spec}))).unwrap();
        let template = template.spec.unwrap().spec;
        assert_eq!(DeviceClaim::read(template.as_ref(), None), claim);
        let class: ClassObject = read(&of("DeviceClass", json!({"extendedResourceName": "example.com/gpu"}))).unwrap();
        let class = DeviceClass::read(class.spec);
        assert_eq!(class.extended_resource.as_deref(), Some("example.com/gpu"));
        let slice: SliceObject = read(&of("ResourceSlice", json!({"nodeName": "n1", "devices": []}))).unwrap();
        let (node, slice) = Slice::read(slice.spec.unwrap().get()).unwrap();
        assert_eq!(node, "n1");
        assert!(slice.spec().contains(r#""nodeName":"n1""#), "{}", slice.spec());
    }
}
