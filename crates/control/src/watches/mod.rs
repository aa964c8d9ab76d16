//! Watches of the host cluster: they keep the [`Stores`] current and put into the queue
//! what has to be reconciled after a change ([`wake`]).

mod devices;
mod follow;
mod host_nodes;
mod node_ports;
mod pods_on_nodes;
mod reflect;
mod storage_claims;
mod volume_snapshots;
mod wake;
mod workloads;

use crate::{key::Key, metered_use::MeteredUse, published_nodes::PublishedNode, stores::Stores};
use berth_api::{
    HostNodePool, Organization, Project, SchedulePolicy, TenantClass, TenantCluster, TenantSchedule, TenantSnapshot,
    labels, names, policy_annotations, system,
};
use berth_runtime::queue::Queue;
use futures::future::{join_all, try_join_all};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Node, Pod, Secret},
        networking::v1::NetworkPolicy,
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        reflector::{Store, store::WriterDropped},
        watcher::Config,
    },
};
use reflect::Watches;
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wake::{Seen, Wake, full_name};

/// Pause before the fleet is planned, so that several changes are one plan.
const FLEET_PAUSE: Duration = Duration::from_millis(20);
/// Pause before what tenants use is counted: objects say since when and until when it was so.
const USAGE_PAUSE: Duration = Duration::from_secs(1);
/// How long snapshots are waited for. Their kind is not Kubernetes' own: a host that cannot list it must not keep everything from work.
const SNAPSHOTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts all watches as tasks that end with `stop`, and waits until each has listed what there is. With `uses_pods` the
/// Deployments of control planes are watched as well. What is metered goes to `metered`.
///
/// # Errors
/// A store was dropped before it was filled: the process is ending.
pub async fn start(
    client: &Client,
    queue: &Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
    uses_pods: bool,
    metered: MeteredUse,
) -> Result<Stores, WriterDropped> {
    let mut watches = Watches {
        client,
        queue,
        tasks,
        stop,
        changes: Arc::default(),
        listed: Vec::new(),
    };
    let objects = watches.start_objects();
    let manifests = watches.start_manifests(&objects);
    watches.start_children(uses_pods, &objects.tenants);
    let namespaces = watches.start_namespaces();
    let team_namespaces = watches.start_team_namespaces(&objects.tenants);
    let network_policies = watches.start_network_policies(&objects.tenants);
    let tenant_nodes = watches.start_tenant_nodes(&objects.tenants);
    let tenant_schedules = watches.start_tenant_schedules(&objects.tenants);
    let placeholders = watches.start_placeholders();
    let Watches { changes, listed, .. } = watches;

    // Of these objects only a part is kept.
    let Objects {
        tenants,
        classes,
        schedule_policies,
        snapshots,
        organizations,
        projects,
        priority_classes,
        pools,
        nodes,
    } = objects;
    let owners = pods_on_nodes::Owners {
        nodes: nodes.clone(),
        pools: pools.clone(),
        tenants: tenants.clone(),
        queue: queue.clone(),
    };
    let workloads::Watched {
        workloads,
        gpu_pods,
        user_pods,
        inline_volumes,
        activity: pod_activity,
        listed: workloads_listed,
    } = workloads::start(client, tenants.clone(), metered.clone(), queue.clone(), tasks, stop);
    let (node_ports, node_ports_listed) = node_ports::start(client, tenants.clone(), queue.clone(), tasks, stop);
    let (storage_claims, storage_claims_listed) = storage_claims::start(client, metered.clone(), tasks, stop);
    let snapshots_listed = volume_snapshots::start(client, metered.clone(), tasks, stop);
    let (usage, usage_listed) = pods_on_nodes::platform_pods(client, owners.clone(), tasks, stop);
    let devices::Watched {
        devices,
        slices,
        listed: devices_listed,
    } = devices::start(client, &owners, &pools, &gpu_pods, tasks, stop);
    let (shared_pods, shared_listed) = pods_on_nodes::shared_pods(client, queue.clone(), tasks, stop);
    try_join_all(listed).await?;
    // A sender that is dropped has nothing to list.
    let _ = tokio::join!(
        usage_listed,
        join_all(devices_listed),
        shared_listed,
        workloads_listed,
        node_ports_listed,
        storage_claims_listed,
        tokio::time::timeout(SNAPSHOTS_TIMEOUT, snapshots_listed)
    );
    Ok(Stores {
        tenants,
        pools,
        classes,
        schedule_policies,
        snapshots,
        organizations,
        projects,
        manifests,
        priority_classes,
        nodes,
        usage,
        workloads,
        gpu_pods,
        user_pods,
        pod_activity,
        node_ports,
        storage_claims,
        inline_volumes,
        metered,
        slices,
        devices,
        shared_pods,
        placeholders,
        team_namespaces,
        namespaces,
        network_policies,
        tenant_nodes,
        tenant_schedules,
        changes,
        pools_with_nodes: Arc::default(),
    })
}

/// Objects that were made for a tenant.
fn of_tenants() -> Config {
    Config::default().labels(labels::TENANT)
}

/// Objects that were made for a tenant, without those that its syncer made.
fn of_tenants_and_platform() -> Config {
    let (tenant, managed_by, syncer) = (labels::TENANT, labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    Config::default().labels(&format!("{tenant},{managed_by}!={syncer}"))
}

/// Objects that control made.
fn of_control() -> Config {
    Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_CONTROL))
}

/// Takes all metadata away but what says which object it is, and of which tenant.
fn keep_labels_of_tenant(object: &mut impl Resource) {
    let meta = std::mem::take(object.meta_mut());
    let is_kept =
        |key: &String| [labels::TENANT, labels::TENANT_NAME, labels::TENANT_NAMESPACE].contains(&key.as_str());
    let labels = meta.labels.map(|mut labels| {
        labels.retain(|key, _| is_kept(key));
        labels
    });
    *object.meta_mut() = ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        labels,
        ..ObjectMeta::default()
    };
}

/// Whether an object is in a namespace of the tenant that its label names.
fn is_in_namespace_of_tenant(object: &impl Resource) -> bool {
    let slug = object
        .labels()
        .get(labels::TENANT)
        .map(String::as_str)
        .unwrap_or_default();
    let namespace = object.namespace().unwrap_or_default();
    names::is_workload_namespace(&namespace, slug) || names::is_control_plane_namespace(&namespace, slug)
}

/// Objects that people and the platform write.
struct Objects {
    tenants: Store<TenantCluster>,
    classes: Store<TenantClass>,
    schedule_policies: Store<SchedulePolicy>,
    snapshots: Store<TenantSnapshot>,
    organizations: Store<Organization>,
    projects: Store<Project>,
    priority_classes: Store<PriorityClass>,
    pools: Store<HostNodePool>,
    nodes: Store<Node>,
}

impl Watches<'_> {
    fn start_objects(&mut self) -> Objects {
        let tenants = self.all(Config::default(), |tenant: &TenantCluster, seen| {
            wake::for_tenant(tenant, seen)
        });
        let known = tenants.clone();
        let classes = self.all(Config::default(), move |class: &TenantClass, seen| {
            wake::for_class(class, seen, &known.state())
        });
        let schedule_policies = self.all(Config::default(), |policy: &SchedulePolicy, _| {
            vec![Wake::Now(Key::SchedulePolicy(policy.name_any()))]
        });
        let snapshots = self.all(Config::default(), |_: &TenantSnapshot, _| {
            vec![Wake::Later(Key::Snapshots)]
        });
        let (known_tenants, known_policies) = (tenants.clone(), schedule_policies.clone());
        let organizations = self.all(Config::default(), move |organization: &Organization, seen| {
            wake::for_level(organization, seen, &known_tenants.state(), &known_policies.state())
        });
        let (known_tenants, known_policies) = (tenants.clone(), schedule_policies.clone());
        let projects = self.all(Config::default(), move |project: &Project, seen| {
            wake::for_level(project, seen, &known_tenants.state(), &known_policies.state())
        });
        let priority_classes = self.all(Config::default(), |priority: &PriorityClass, _| {
            let class = priority.labels().get(labels::CLASS);
            class
                .map(|class| Wake::Soon(Key::Class(class.clone())))
                .into_iter()
                .collect()
        });
        let known = tenants.clone();
        let pools = self.all(Config::default(), move |pool: &HostNodePool, seen| {
            wake::for_pool(pool, seen, &known.state())
        });
        let (known_tenants, known_pools) = (tenants.clone(), pools.clone());
        let wake = move |node: &Node, seen: &mut Seen| {
            wake::for_node(node, seen, &known_tenants.state(), &known_pools.state())
        };
        let nodes = self.start_reduced(
            Api::all(self.client.clone()),
            Config::default(),
            host_nodes::reduce,
            wake,
        );
        Objects {
            tenants,
            classes,
            schedule_policies,
            snapshots,
            organizations,
            projects,
            priority_classes,
            pools,
            nodes,
        }
    }

    /// Watches the ConfigMaps that classes may name in `manifests`.
    fn start_manifests(&mut self, objects: &Objects) -> Store<ConfigMap> {
        let (tenants, classes) = (objects.tenants.clone(), objects.classes.clone());
        let is_manifest = format!("{}={}", labels::MANIFESTS, labels::MANIFESTS_ALLOWED);
        let api = Api::namespaced(self.client.clone(), system::NAMESPACE);
        self.start(
            api,
            Config::default().labels(&is_manifest),
            move |map: &ConfigMap, seen| wake::for_manifest(map, seen, &classes.state(), &tenants.state()),
        )
    }

    /// Watches the namespaces of tenants. Only the platform can write their labels.
    fn start_namespaces(&mut self) -> Store<PartialObjectMeta<Namespace>> {
        self.all(of_tenants(), |namespace: &PartialObjectMeta<Namespace>, seen| {
            let pools = namespace.annotations().get(policy_annotations::SHARED_POOLS);
            let mut wakes = wake::for_labels(namespace.labels());
            if seen.is_new(&namespace.name_any(), &pools) {
                wakes.push(Wake::Soon(Key::SharedNodes));
            }
            wakes
        })
    }

    /// Watches the NetworkPolicies that control made.
    fn start_network_policies(&mut self, tenants: &Store<TenantCluster>) -> Store<NetworkPolicy> {
        let known = tenants.clone();
        let wake = move |policy: &NetworkPolicy, seen: &mut Seen| {
            if seen.is_new(&full_name(policy), &(policy.uid(), policy.metadata.generation)) {
                wake::for_child(policy, &known)
            } else {
                Vec::new()
            }
        };
        // Others can write these labels in namespaces of their own.
        let reduce = |policy: &mut NetworkPolicy| {
            if !is_in_namespace_of_tenant(policy) {
                keep_labels_of_tenant(policy);
                policy.spec = None;
            }
        };
        self.start_reduced(Api::all(self.client.clone()), of_control(), reduce, wake)
    }

    /// Watches the nodes that are published to tenants.
    fn start_tenant_nodes(&mut self, tenants: &Store<TenantCluster>) -> Store<PublishedNode> {
        let known = tenants.clone();
        self.all(Config::default(), move |node: &PublishedNode, seen| {
            if seen.is_new(&full_name(node), &node.metadata.generation) {
                wake::for_child(node, &known)
            } else {
                Vec::new()
            }
        })
    }

    /// Watches the schedules that are published to tenants.
    fn start_tenant_schedules(&mut self, tenants: &Store<TenantCluster>) -> Store<TenantSchedule> {
        let known = tenants.clone();
        self.all(Config::default(), move |schedule: &TenantSchedule, seen| {
            if seen.is_new(&full_name(schedule), &(schedule.uid(), schedule.metadata.generation)) {
                wake::for_child(schedule, &known)
            } else {
                Vec::new()
            }
        })
    }

    /// Watches placeholders: pods that request nodes from an autoscaler.
    fn start_placeholders(&mut self) -> Store<Pod> {
        let api = Api::namespaced(self.client.clone(), system::NAMESPACE);
        self.start(api, Config::default().labels(labels::PLACEHOLDER), |pod: &Pod, seen| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let is_ending = pod.metadata.deletion_timestamp.is_some();
            let is_new = seen.is_new(&pod.name_any(), &(pod.uid(), node, phase, is_ending));
            is_new.then_some(Wake::Soon(Key::Fleet)).into_iter().collect()
        })
    }

    /// Watches the labels of namespaces in which TenantClusters may be: classes and pools select them.
    fn start_team_namespaces(&mut self, tenants: &Store<TenantCluster>) -> Store<PartialObjectMeta<Namespace>> {
        let known = tenants.clone();
        let config = Config::default().labels(&format!("!{}", labels::TENANT));
        let wake = move |namespace: &PartialObjectMeta<Namespace>, seen: &mut Seen| {
            wake::for_team_namespace(namespace, seen, &known.state())
        };
        let reduce = |namespace: &mut PartialObjectMeta<Namespace>| namespace.metadata.annotations = None;
        self.start_reduced(Api::all(self.client.clone()), config, reduce, wake)
    }

    /// Watches only the metadata of what control made for tenants, so that drift is corrected. Who may create Secrets in a namespace of their
    /// own can give them these labels, and 1.5 MiB of others.
    fn start_children(&mut self, uses_pods: bool, tenants: &Store<TenantCluster>) {
        let (api, known) = (Api::all(self.client.clone()), tenants.clone());
        let wake = move |secret: &PartialObjectMeta<Secret>, _: &mut Seen| wake::for_child(secret, &known);
        self.start_reduced(api, of_tenants_and_platform(), keep_labels_of_tenant, wake);
        if uses_pods {
            // Their status is read when a tenant is reconciled.
            let (api, known) = (Api::all(self.client.clone()), tenants.clone());
            let wake =
                move |deployment: &PartialObjectMeta<Deployment>, _: &mut Seen| wake::for_child(deployment, &known);
            self.start_reduced(api, of_tenants_and_platform(), keep_labels_of_tenant, wake);
        }
    }
}
