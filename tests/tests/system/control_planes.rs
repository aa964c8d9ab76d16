//! Control planes as pods, on a real API server with simulated nodes: what is accepted under Pod Security, what is rolled
//! out, and what is left. (Nothing answers in simulated pods; tenants with such control planes live in the tests on real
//! nodes.)

use berth_api::{
    DatastoreUsage, DnsPolicy, NetworkLimits, SchedulingMode, SyncPolicy, TenantLimits, labels, names::TenantId,
};
use berth_control::{
    apply::Applier,
    control_plane::{
        API_SERVER, Authorities, COMPONENTS, Component, ControlPlaneInput, DatastoreInput, DnsInput, HostInput,
        LeafStore, SCHEDULER, ServiceRange, dns_customization::DnsCustomization, render_components,
    },
    runtime::{
        ClusterRuntime, ComponentState, ControlPlaneRuntime, Owner,
        cluster::{ClusterSettings, pod_selector},
    },
};
use berth_tests::{
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod, Secret, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

/// A tenant that has only its control-plane namespace.
struct Scene {
    tenant: TenantId,
    labels: BTreeMap<String, String>,
    host: Applier,
    authorities: Authorities,
    datastore: DatastoreInput,
    client: Client,
    runtime: ClusterRuntime,
}

impl Scene {
    async fn new(host: &TestCluster) -> Self {
        let client = host.client.clone();
        let tenant = TenantId::new("pods", "1");
        let namespace = json!({"metadata": {"name": tenant.control_plane_namespace(), "labels": {
            "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest",
            labels::ROLE: labels::ROLE_CONTROL_PLANE,
        }}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &tenant.control_plane_namespace());
        let syncer: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "syncer"}})).unwrap();
        accounts.create(&PostParams::default(), &syncer).await.unwrap();
        let files = host.datastore();
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
        let (ca, key) = (read(&files.ca_cert), read(&files.ca_key));
        Self {
            labels: BTreeMap::from([(labels::TENANT.into(), tenant.slug().into())]),
            host: Applier::new(client.clone()),
            authorities: Authorities::load(&Authorities::create("pods").unwrap(), &ca, &key).unwrap(),
            datastore: DatastoreInput {
                endpoints: vec![files.endpoint],
                ca_pem: ca,
            },
            runtime: ClusterRuntime::new(ClusterSettings::default(), client.clone()),
            tenant,
            client,
        }
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            tenant: &self.tenant,
            labels: &self.labels,
            host: &self.host,
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.tenant.control_plane_namespace())
    }

    /// The components as control renders them.
    async fn render(&self, replicas: u32, leaves: &mut LeafStore) -> Vec<Component> {
        let service_range = ServiceRange {
            cidr: "10.96.77.0/29".into(),
            first: [10, 96, 77, 1].into(),
            secondary: None,
        };
        let ports = self.runtime.allocate_ports(&self.tenant).unwrap();
        let endpoints = self
            .runtime
            .find_endpoints(self.owner(), &ports, &service_range)
            .await
            .unwrap();
        let dns = DnsInput {
            address: [10, 96, 77, 2].into(),
            policy: DnsPolicy::default(),
            blocked_domains: Vec::new(),
            customization: Some(DnsCustomization::default()),
        };
        let input = ControlPlaneInput {
            tenant: &self.tenant,
            version: berth_kubernetes_versions::KUBERNETES_DEFAULT,
            class: "default",
            scheduling: SchedulingMode::Tenant,
            policy: &SyncPolicy::default(),
            withdrawn_storage: &std::collections::BTreeSet::new(),
            limits: &TenantLimits::default(),
            datastore_usage: DatastoreUsage::default(),
            limits_users: false,
            authentication: &berth_api::TenantAuthentication::default(),
            max_token_seconds: 86_400,
            audit: None,
            network: &NetworkLimits::default(),
            form: self.runtime.form(replicas),
            endpoints: &endpoints,
            service_range: &service_range,
            reserved_service_addresses: &[],
            datastore: &self.datastore,
            host: &HostInput {
                server: "https://10.96.0.1".into(),
                ca_pem: String::new(),
                cluster_domain: "cluster.local".into(),
            },
            dns: Some(&dns),
        };
        render_components(&input, &self.authorities, leaves).unwrap()
    }

    async fn running(&self, component: &Component) {
        until(&format!("{} runs", component.name), SOON, async || {
            match self.runtime.apply_component(self.owner(), component).await {
                Ok(ComponentState::Running) => Ok(()),
                Ok(ComponentState::Down(why)) => Err(why),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Names of the Secrets with a component's files.
    async fn files(&self, component: &str) -> Vec<String> {
        let selector: Vec<String> = pod_selector(&self.tenant, component)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let secrets: Api<Secret> = self.api();
        let listed = secrets
            .list_metadata(&ListParams::default().labels(&selector.join(",")))
            .await;
        listed.unwrap().iter().map(ResourceExt::name_any).collect()
    }

    /// A component of a rendering, once it runs and nothing is left of an earlier one.
    async fn rolled_out(&self, components: &[Component], name: &str) -> String {
        let component = components.iter().find(|component| component.name == name).unwrap();
        until(&format!("{name} is rolled out"), SOON, async || {
            self.running(component).await;
            match &self.files(name).await[..] {
                [one] => Ok(one.clone()),
                several => Err(several.to_vec()),
            }
        })
        .await
    }
}

pub(crate) async fn pods_are_accepted_rolled_out_and_stopped(host: Arc<TestCluster>) {
    let scene = Scene::new(&host).await;
    let mut leaves = LeafStore::new(BTreeMap::new(), Timestamp::now());
    let components = scene.render(1, &mut leaves).await;
    for name in COMPONENTS {
        if let Some(component) = components.iter().find(|component| component.name == name) {
            scene.running(component).await;
        }
    }
    let pods: Api<Pod> = scene.api();
    let budgets: Api<PodDisruptionBudget> = scene.api();
    until_true("each has its pod", SOON, async || {
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let lives = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        pods.iter().filter(lives).count() == components.len()
    })
    .await;
    assert!(budgets.get_opt(API_SERVER).await.unwrap().is_none());

    // Applying again changes nothing.
    let deployments: Api<Deployment> = scene.api();
    let before = deployments.get(API_SERVER).await.unwrap();
    let first = scene.rolled_out(&components, API_SERVER).await;
    assert_eq!(
        deployments.get(API_SERVER).await.unwrap().metadata.generation,
        before.metadata.generation
    );

    // New certificates bring new pods, with files of their own.
    let renewed = scene
        .render(1, &mut LeafStore::new(BTreeMap::new(), Timestamp::now()))
        .await;
    let is_rolled_out = async |components: &[Component]| {
        let component = components
            .iter()
            .find(|component| component.name == API_SERVER)
            .unwrap();
        scene.runtime.is_rolled_out(scene.owner(), component).await.unwrap()
    };
    assert!(!is_rolled_out(&renewed).await, "these files are not applied yet");
    let second = scene.rolled_out(&renewed, API_SERVER).await;
    assert_ne!(first, second);
    until_true(
        "no pod with the earlier files is left, not even one that ends",
        SOON,
        async || is_rolled_out(&renewed).await,
    )
    .await;
    assert!(!is_rolled_out(&components).await);

    // Several replicas may not all be evicted at once; a single one may.
    let three = scene.render(3, &mut leaves).await;
    scene.rolled_out(&three, API_SERVER).await;
    assert!(budgets.get_opt(API_SERVER).await.unwrap().is_some());
    scene.rolled_out(&components, API_SERVER).await;
    until_true("the budget is gone", SOON, async || {
        scene.rolled_out(&components, API_SERVER).await;
        budgets.get_opt(API_SERVER).await.unwrap().is_none()
    })
    .await;

    // What is deleted by hand comes back.
    deployments.delete(API_SERVER, &DeleteParams::default()).await.unwrap();
    scene.rolled_out(&components, API_SERVER).await;

    // As control does: a component that does not stop in time is an error, and is stopped again.
    until("it is deleted", SOON, async || {
        scene.runtime.delete_component(&scene.tenant, SCHEDULER).await
    })
    .await;
    assert!(deployments.get_opt(SCHEDULER).await.unwrap().is_none());
    assert!(scene.files(SCHEDULER).await.is_empty());
    until("all are stopped", SOON, async || {
        scene.runtime.stop_components(&scene.tenant).await
    })
    .await;
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
    scene.runtime.stop_components(&scene.tenant).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let name = scene.tenant.control_plane_namespace();
    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    until_true("the namespace is gone", SOON, async || {
        namespaces.get_opt(&name).await.unwrap().is_none()
    })
    .await;
}
