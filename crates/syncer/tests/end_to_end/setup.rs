//! Two real API servers: a host cluster with scheduler and simulated nodes, and a tenant with a controller manager only.
//! This module does what control does in production: namespaces, nodes, roles.

use crate::{
    admission::AdmissionFiles,
    objects::{TIME_LIMIT, create, eventually, origin},
};
use berth_api::{
    SchedulingMode, StorageOffer, SyncPolicy, TenantNode, TenantNodeSpec, TenantNodeStatus, TenantSchedule, labels,
    policy_annotations,
};
use berth_local::{HostCluster, HostClusterConfig, NodePlan, NodeShape, TestHost, process};
use berth_sync_rules::{
    model::{HostLimits, Tenant, resource::Side},
    permissions,
};
use berth_syncer::{ApiServers, Servers, engine::Lists, metrics::Metrics};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        core::v1::{Namespace, Node, Pod, Service},
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub const SLUG: &str = "vision-aaaaaaaaaaaaa";
pub const WORKLOADS: &str = "berth-vision-aaaaaaaaaaaaa";
pub const CONTROL_PLANE: &str = "berth-vision-aaaaaaaaaaaaa-cp";
/// User of the syncer on both sides.
pub const USER: &str = "berth:syncer";
/// Controllers whose work is done on the host: tenants run without them.
const NOT_IN_TENANTS: [&str; 2] = ["resourceclaim-controller", "device-taint-eviction-controller"];
/// Cluster pairs at a time. Tests run in threads of their own, and a small machine can run two pairs.
pub static TURNS: Semaphore = Semaphore::const_new(2);

/// The version before the default one; its programs are installed, too.
pub const OLDER_VERSION: &str = "v1.36.4";

/// What a pair of clusters should be.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The rules of the tenant's class.
    pub policy: SyncPolicy,
    /// Who places the tenant's pods.
    pub scheduling: SchedulingMode,
    /// Kubernetes version of the host.
    pub host_version: String,
    /// Kubernetes version of the tenant.
    pub tenant_version: String,
    /// Minor version that the tenant's API server behaves as, for example `1.35`.
    pub emulated: Option<&'static str>,
    /// Addresses of Services on both sides; the default ones if absent.
    pub service_ranges: Option<&'static str>,
}

impl Default for Setup {
    fn default() -> Self {
        let version: String = berth_kubernetes_versions::KUBERNETES_DEFAULT.into();
        Self {
            policy: SyncPolicy::default(),
            scheduling: SchedulingMode::Host,
            host_version: version.clone(),
            tenant_version: version,
            emulated: None,
            service_ranges: None,
        }
    }
}

pub struct Clusters {
    pub host: TestHost,
    pub tenant: TestHost,
    /// Cluster-admin of the host.
    pub host_admin: Client,
    /// Cluster-admin of the tenant.
    pub tenant_admin: Client,
    /// The rules of the tenant's class.
    pub policy: SyncPolicy,
    /// What of storage was withdrawn from the tenant.
    pub withdrawn_storage: BTreeSet<StorageOffer>,
    /// How much the tenant's objects may be on the host.
    pub host_limits: HostLimits,
    /// Who places the tenant's pods.
    pub scheduling: SchedulingMode,
    admission: AdmissionFiles,
    _turn: SemaphorePermit<'static>,
}

/// A running syncer.
pub struct Syncer {
    stop: CancellationToken,
    task: JoinHandle<Result<(), berth_syncer::Error>>,
    pub metrics: Metrics,
}

impl Syncer {
    /// Ends it at once, whatever it is doing: like a kill.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// Everything outside is declared, but for one range.
fn open_network() -> berth_api::NetworkLimits {
    let ranges = json!([{"cidr": "0.0.0.0/0"}, {"cidr": "::/0"}]);
    serde_json::from_value(
        json!({"blocked": ["10.0.0.0/8"], "egress": ranges, "ingress": ranges, "endpointCidrs": ["192.0.2.0/24"]}),
    )
    .unwrap()
}

impl Clusters {
    /// Starts both, with two H100 nodes assigned to the tenant.
    pub async fn start() -> Self {
        Self::start_with(SyncPolicy::default(), SchedulingMode::Host).await
    }

    /// The same for a tenant of a class with these rules.
    pub async fn start_with(policy: SyncPolicy, scheduling: SchedulingMode) -> Self {
        let setup = Setup {
            policy,
            scheduling,
            ..Setup::default()
        };
        Box::pin(Self::start_as(setup)).await
    }

    /// Starts both as `setup` says.
    pub async fn start_as(setup: Setup) -> Self {
        let turn = TURNS.acquire().await.unwrap();
        berth_runtime::install_crypto();
        berth_runtime::telemetry::init(berth_runtime::telemetry::LogFormat::Text);
        let Setup {
            policy,
            scheduling,
            host_version,
            tenant_version,
            emulated,
            service_ranges,
        } = setup;
        let admission = AdmissionFiles::new();
        let with_ranges = |config: &mut HostClusterConfig| {
            if let Some(ranges) = service_ranges {
                config.service_ranges = ranges.into();
            }
        };
        let (host, tenant) = tokio::join!(
            TestHost::start_with(|config| {
                config.kubernetes_version = host_version;
                config.nodes = NodePlan::of([(NodeShape::H100, 2), (NodeShape::Cpu, 1)]);
                with_ranges(config);
            }),
            TestHost::start_with(|config| {
                config.kubernetes_version = tenant_version;
                config.emulated_version = emulated.map(ToOwned::to_owned);
                config.nodes = NodePlan::of([(NodeShape::Cpu, 1)]);
                config.disabled_controllers = NOT_IN_TENANTS.map(Into::into).into();
                config.apiserver_flags = vec![admission.flag()];
                with_ranges(config);
            }),
        );
        let (host, tenant) = (host.unwrap(), tenant.unwrap());
        tenant.supervisor().stop(process::KWOK, None).await.unwrap();
        if scheduling == SchedulingMode::Host {
            tenant.supervisor().stop(process::SCHEDULER, None).await.unwrap();
        }
        let (host_admin, tenant_admin) = (host.client().await.unwrap(), tenant.client().await.unwrap());
        let clusters = Self {
            host,
            tenant,
            host_admin,
            tenant_admin,
            policy,
            withdrawn_storage: BTreeSet::new(),
            host_limits: HostLimits::default(),
            scheduling,
            admission,
            _turn: turn,
        };
        let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
        nodes.delete("cpu-01", &DeleteParams::default()).await.unwrap();
        clusters.prepare_host().await;
        clusters.grant().await;
        clusters.publish_nodes(&["gpu-h100-01", "gpu-h100-02"]).await;
        clusters
    }

    async fn prepare_host(&self) {
        let namespaces: Api<Namespace> = Api::all(self.host_admin.clone());
        let mut allowed = policy_annotations::annotations(&self.policy, berth_api::DEFAULT_CLASS, None);
        allowed.extend(policy_annotations::of_network(&open_network()));
        for (name, role, annotations) in [
            (WORKLOADS, labels::ROLE_WORKLOADS, json!(allowed)),
            (CONTROL_PLANE, labels::ROLE_CONTROL_PLANE, json!({})),
        ] {
            let labels = json!({labels::TENANT: SLUG, labels::ROLE: role,
                "pod-security.kubernetes.io/enforce": "baseline"});
            create(
                &namespaces,
                json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}}),
            )
            .await;
        }
        self.install_admission_policies().await;
        let crds: Api<CustomResourceDefinition> = Api::all(self.host_admin.clone());
        for definition in [TenantNode::crd(), TenantSchedule::crd()] {
            crds.create(&PostParams::default(), &definition).await.unwrap();
        }
        let nodes: Api<TenantNode> = Api::namespaced(self.host_admin.clone(), CONTROL_PLANE);
        let schedules: Api<TenantSchedule> = Api::namespaced(self.host_admin.clone(), CONTROL_PLANE);
        eventually("TenantNode and TenantSchedule are served", async || {
            let list = ListParams::default();
            nodes.list(&list).await.is_ok() && schedules.list(&list).await.is_ok()
        })
        .await;
    }

    /// The admission policies of the chart, which confine every syncer in these tests.
    async fn install_admission_policies(&self) {
        let text = include_str!("../../../../charts/berth/files/admission-policies.yaml");
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.host_admin.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.host_admin.clone());
        for object in serde_saphyr::from_multiple::<Value>(text).unwrap() {
            match object["kind"].as_str() {
                Some("ValidatingAdmissionPolicy") => drop(create(&policies, object).await),
                _ => drop(create(&bindings, object).await),
            }
        }
    }

    async fn grant(&self) {
        let host = |namespace: &'static str| {
            (
                Api::<Role>::namespaced(self.host_admin.clone(), namespace),
                Api::<RoleBinding>::namespaced(self.host_admin.clone(), namespace),
            )
        };
        for (namespace, rules) in [
            (WORKLOADS, permissions::host_workload_rules(&self.policy)),
            (CONTROL_PLANE, permissions::host_control_plane_rules()),
        ] {
            let (roles, bindings) = host(namespace);
            create(&roles, json!({"metadata": {"name": "syncer"}, "rules": rules})).await;
            create(&bindings, binding("Role")).await;
        }
        create(
            &Api::<ClusterRole>::all(self.host_admin.clone()),
            json!({"metadata": {"name": "syncer"}, "rules": permissions::host_cluster_rules()}),
        )
        .await;
        create(
            &Api::<ClusterRoleBinding>::all(self.host_admin.clone()),
            binding("ClusterRole"),
        )
        .await;
        let rules: Vec<PolicyRule> = permissions::tenant_rules(&self.policy);
        create(
            &Api::<ClusterRole>::all(self.tenant_admin.clone()),
            json!({"metadata": {"name": "syncer"}, "rules": rules}),
        )
        .await;
        create(
            &Api::<ClusterRoleBinding>::all(self.tenant_admin.clone()),
            binding("ClusterRole"),
        )
        .await;
    }

    /// Assigns host nodes to the tenant, as control does.
    pub async fn publish_nodes(&self, names: &[&str]) {
        let nodes: Api<Node> = Api::all(self.host_admin.clone());
        let published: Api<TenantNode> = Api::namespaced(self.host_admin.clone(), CONTROL_PLANE);
        for name in names {
            let patch = json!({"metadata": {"labels": {labels::TENANT: SLUG}},
                "spec": {"taints": [{"key": labels::TENANT, "value": SLUG, "effect": "NoExecute"}]}});
            let node = nodes
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .unwrap();
            let spec = TenantNodeSpec {
                node_name: (*name).into(),
                pool_name: "h100".into(),
                node_group_name: "train".into(),
                labels: node
                    .metadata
                    .labels
                    .clone()
                    .unwrap()
                    .into_iter()
                    .filter(|(key, _)| !labels::is_reserved(key))
                    .collect(),
                taints: Vec::new(),
                unschedulable: false,
            };
            let created = published
                .create(&PostParams::default(), &TenantNode::new(name, spec))
                .await
                .unwrap();
            let mut status = serde_json::to_value(node.status.unwrap()).unwrap();
            status.as_object_mut().unwrap().remove("images");
            let mut with_status = created;
            with_status.status = Some(TenantNodeStatus {
                node: status,
                ..TenantNodeStatus::default()
            });
            published
                .replace_status(name, &PostParams::default(), &with_status)
                .await
                .unwrap();
        }
    }

    /// Takes a node from the tenant, as control does.
    pub async fn unpublish_node(&self, name: &str) {
        let published: Api<TenantNode> = Api::namespaced(self.host_admin.clone(), CONTROL_PLANE);
        published.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Starts a syncer with the rights it has in production, and waits until it is ready.
    pub async fn syncer(&self) -> Syncer {
        self.syncer_by(&|_, kubeconfig| kubeconfig).await
    }

    /// The same with kubeconfigs that `change` returns.
    pub async fn syncer_by(&self, change: &dyn Fn(Side, String) -> String) -> Syncer {
        let config = async |side: Side, cluster: &HostCluster| {
            // The group that the API server gives to service accounts of this namespace.
            let group = format!("system:serviceaccounts:{CONTROL_PLANE}");
            let text = change(side, cluster.kubeconfig_for(USER, &[&group]).unwrap());
            berth_runtime::client::config_from_text(&text).await.unwrap()
        };
        let api_servers = ApiServers {
            host: config(Side::Host, &self.host).await,
            tenant: config(Side::Tenant, &self.tenant).await,
        };
        let settings = Tenant {
            slug: SLUG.into(),
            workload_namespace: WORKLOADS.into(),
            control_plane_namespace: CONTROL_PLANE.into(),
            api_server_host: "10.96.0.49".into(),
            api_server_port: 443,
            dns_address: None,
            cluster_domain: "cluster.local".into(),
            policy: std::sync::Arc::new(self.policy.clone()),
            network: std::sync::Arc::new(open_network()),
            class_name: berth_api::DEFAULT_CLASS.into(),
            scheduling: self.scheduling,
            users: berth_sync_rules::model::UserRules::default(),
            withdrawn_storage: self.withdrawn_storage.clone(),
            // As control does for the range of the hosts.
            reserved_service_addresses: vec!["10.96.0.0/24".parse().unwrap()],
            host_limits: self.host_limits,
            host_account: String::new(),
        };
        let admission = self.admission.listen().await;
        let stop = CancellationToken::new();
        let metrics = Metrics::default();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(berth_syncer::sync(
            settings,
            api_servers,
            Servers::new(Some(admission), None),
            metrics.clone(),
            stop.clone(),
            {
                let mut ready = Some(ready);
                move |lists: Lists<'_>| {
                    if matches!(lists, Lists::Complete { .. })
                        && let Some(ready) = ready.take()
                    {
                        let _: Result<(), ()> = ready.send(());
                    }
                }
            },
        ));
        tokio::time::timeout(TIME_LIMIT, is_ready)
            .await
            .expect("the syncer becomes ready")
            .unwrap();
        self.wait_for_admission().await;
        Syncer { stop, task, metrics }
    }

    /// Waits until the tenant's API server calls the webhook for Services. In production it does so before there is a
    /// syncer, because control creates the configuration.
    async fn wait_for_admission(&self) {
        let denied =
            json!({"metadata": {"name": "denied"}, "spec": {"externalIPs": ["1.2.3.4"], "ports": [{"port": 1}]}});
        let denied: Service = serde_json::from_value(denied).unwrap();
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let services = self.tenant_api::<Service>();
        eventually("Services are admitted", async || {
            let answer = services.create(&dry_run, &denied).await;
            matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
        })
        .await;
    }

    pub fn tenant_api<K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.tenant_admin.clone(), "default")
    }

    pub fn host_api<K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.host_admin.clone(), WORKLOADS)
    }

    /// The tenant's pods on the host.
    pub async fn host_pods(&self) -> Vec<Pod> {
        self.host_api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    /// The host pod of a pod of the tenant, by the name there.
    pub async fn host_pod(&self, name: &str) -> Option<Pod> {
        self.host_pods().await.into_iter().find(|pod| origin(pod) == name)
    }
}

impl Syncer {
    /// Ends it in order.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn binding(kind: &str) -> Value {
    json!({"metadata": {"name": "syncer"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "syncer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]})
}
