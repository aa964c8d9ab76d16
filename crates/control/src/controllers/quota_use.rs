//! What tenants really use of what is reserved for them, for people: quotas limit what is reserved. Of a tenant that comes to a Project, what it uses is reserved.
//!
//! Use changes with every pod. So nothing watches it. It is measured at intervals, and all levels are summed up from one measurement: the
//! host's API server has counted objects in the `ResourceQuota` of each tenant, the Service of its API server is beside them, what a tenant
//! stores is in its status, and GPUs are those that pods on its nodes request.

use crate::{
    control_plane::EXTERNAL_SERVICE,
    error::{ReconcileError, api},
    key::Key,
    quota_ledger::{MeasuredUse, QuotaLedger, TenantUse},
    stores::Stores,
    tenant_state::is_created,
};
use berth_api::{
    Amount, ControlPlaneServiceType, LIMITS_NAME, TenantCluster, TreeResource, counted_custom_kind, names::TenantId,
    quota_resource,
};
use berth_node_lifecycle::{
    demand::{PoolDevices, needs_node_of},
    own_nodes::{OwnNode, list_own_nodes},
};
use berth_quota::{Amounts, Projects};
use berth_runtime::{
    queue::Queue,
    watched::{Watched, for_each},
};
use k8s_openapi::{
    api::core::v1::{ResourceQuota, Service},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Time between two measurements, unless a test sets another one.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// What use is measured with. One per process.
pub(crate) struct QuotaUseContext {
    /// The host's API server.
    pub(crate) client: Client,
    /// Views of the host.
    pub(crate) stores: Stores,
    /// Gets what was measured.
    pub(crate) quotas: Arc<QuotaLedger>,
    /// Objects that wait to be reconciled.
    pub(crate) queue: Queue<Key>,
    /// Time between two measurements.
    pub(crate) interval: Duration,
}

/// What exists on the host.
#[derive(Debug, Default)]
struct Counted {
    /// What the host's API server has counted in each workload namespace, in whole units.
    objects: HashMap<String, BTreeMap<String, u64>>,
    /// The Service of the API server in each control-plane namespace, if it is reached from outside.
    services: HashMap<String, ControlPlaneServiceType>,
}

/// Measures until `stop`.
pub(crate) async fn watch(context: QuotaUseContext, stop: CancellationToken) {
    loop {
        let pass = async {
            if let Err(error) = measure(&context).await {
                tracing::warn!(%error, "cannot measure what tenants use of their quotas; trying again");
            }
            tokio::time::sleep(context.interval).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = pass => {}
        }
    }
}

/// Measures once. What cannot be measured stays as it was.
async fn measure(context: &QuotaUseContext) -> Result<(), ReconcileError> {
    let measured = if context.stores.projects.is_empty() {
        MeasuredUse::new()
    } else {
        let mut counted = list_counted(&context.client).await?;
        for (namespace, used) in &mut counted.objects {
            context.stores.storage_claims.add_excess(namespace, used);
        }
        sum_use(&context.stores, &counted)
    };
    if context.quotas.set_measured(measured) {
        context.queue.add(Key::Quotas);
    }
    Ok(())
}

/// Reads what exists on the host.
async fn list_counted(client: &Client) -> Result<Counted, ReconcileError> {
    let mut counted = Counted::default();
    for_each_named(client, LIMITS_NAME, |quota: ResourceQuota| {
        let namespace = quota.namespace().unwrap_or_default();
        let used = quota.status.and_then(|status| status.used).unwrap_or_default();
        let used = used
            .iter()
            .filter_map(|(name, used)| Some((name.clone(), whole_units(used)?)));
        counted.objects.insert(namespace, used.collect());
    })
    .await
    .map_err(api("list what tenants use of their limits"))?;
    for_each_named(client, EXTERNAL_SERVICE, |service: Service| {
        let namespace = service.namespace().unwrap_or_default();
        let kind = service.spec.and_then(|spec| spec.type_).unwrap_or_default();
        let kind = ControlPlaneServiceType::from_name(&kind).unwrap_or_default();
        counted.services.insert(namespace, kind);
    })
    .await
    .map_err(api("list the Services of API servers"))?;
    Ok(counted)
}

/// Reads the objects of a name in all namespaces, without those that cannot be read.
async fn for_each_named<K>(client: &Client, name: &str, mut take: impl FnMut(K)) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let objects: Api<Watched<K>> = Api::all(client.clone());
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    for_each(&objects, params, |object| {
        if let Some(object) = object.readable() {
            take(object);
        }
    })
    .await
}

/// An amount in whole units, rounded up: pods may use parts of a CPU. None: it cannot be read.
pub(crate) fn whole_units(quantity: &Quantity) -> Option<u64> {
    Amount::Text(quantity.0.clone()).value()
}

/// What each tenant uses, by UID. Those of no Project may come to one, with more than their limits let them have by then.
fn sum_use(stores: &Stores, counted: &Counted) -> MeasuredUse {
    let projects = stores.projects.state();
    let owners = Projects::new(projects.iter().map(AsRef::as_ref));
    let mut gpus = sum_gpus(stores);
    let tenants = stores.tenants.state();
    let all = tenants.iter().filter_map(|cluster| {
        let uid = cluster.uid()?;
        let id = TenantId::new(&cluster.name_any(), &uid);
        let used = TenantUse {
            amounts: amounts(cluster, &id, counted),
            gpus: gpus.remove(&uid).unwrap_or_default(),
            has_no_project: owners.of(&cluster.namespace().unwrap_or_default()).is_none(),
        };
        Some((uid, used))
    });
    all.collect()
}

/// What a tenant uses besides GPUs, as far as that is known.
fn amounts(cluster: &TenantCluster, id: &TenantId, counted: &Counted) -> Amounts {
    let status = cluster.status.as_ref();
    let service = counted.services.get(&id.control_plane_namespace());
    let service = service.copied().unwrap_or_default();
    let counted = counted.objects.get(&id.workload_namespace());
    let datastore = status.and_then(|status| status.datastore);
    let count = |name: &str| counted?.get(name).copied();
    let by_name = counted.into_iter().flat_map(BTreeMap::keys);
    // No quota of a Project limits objects of a further kind.
    let named = by_name.filter(|name| quota_resource(name).is_none() && counted_custom_kind(name).is_none());
    let resources = TreeResource::RESERVED
        .into_iter()
        .chain(named.map(|name| TreeResource::from(name.clone())));
    let known = resources.filter_map(|resource| {
        let amount = match &resource {
            TreeResource::TenantClusters => Some(u64::from(is_created(cluster))),
            TreeResource::DatastoreBytes => datastore.map(|stored| stored.bytes),
            TreeResource::DatastoreObjects => datastore.map(|stored| stored.objects),
            other => other
                .used_in(count)
                .map(|used| used.saturating_add(other.used_by_service(service))),
        };
        Some((resource, amount?))
    });
    known.collect()
}

/// Devices that tenants' pods have of the nodes of each pool, by UID of the tenant; nodes with such pods, in a pool without GPUs. Only nodes
/// that count towards quotas.
fn sum_gpus(stores: &Stores) -> HashMap<String, BTreeMap<String, u64>> {
    let pools: HashMap<String, Option<String>> = stores
        .pools
        .state()
        .iter()
        .map(|pool| (pool.name_any(), pool.spec.gpu_resource_name.clone()))
        .collect();
    let (nodes, workloads) = (stores.nodes.state(), stores.workloads.all());
    let resolved = stores.devices.resolve(&workloads);
    let mut sum: HashMap<String, BTreeMap<String, u64>> = HashMap::new();
    for OwnNode { assignment, pods, .. } in list_own_nodes(&nodes, &resolved) {
        let amount = match pools.get(&assignment.pool).and_then(Option::as_ref) {
            Some(resource) => {
                let devices = pods.iter().map(|pod| resolved.count_devices(pod, resource));
                devices.fold(0, u64::saturating_add)
            }
            None => u64::from(pods.iter().any(|pod| needs_node_of(pod, PoolDevices::None))),
        };
        if amount > 0 {
            let of_tenant = sum.entry(assignment.uid).or_default();
            *of_tenant.entry(assignment.pool).or_default() += amount;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi, StoreWriters};
    use berth_api::labels;
    use berth_node_lifecycle::{
        demand::{SchedulingState, Workload},
        devices::DeviceClass,
    };
    use serde_json::{Value, json};

    const UID: &str = "u1";

    struct Fixture {
        host: ScriptedApi,
        context: QuotaUseContext,
        writers: StoreWriters,
    }

    impl Fixture {
        /// A tenant of a Project, and one of none.
        fn new() -> Self {
            let host = ScriptedApi::new("host", &Script::default());
            let (stores, writers) = StoreWriters::new();
            for (name, namespace, uid) in [("vision", "team", UID), ("other", "elsewhere", "u2")] {
                let metadata = json!({"name": name, "namespace": namespace, "uid": uid});
                let status = json!({"controlPlaneNamespace": "berth-cp", "datastore": {"bytes": 1000, "objects": 7,
                    "percent": 1, "full": false}});
                let path = format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantclusters/{name}");
                host.insert(&path, json!({"metadata": metadata, "spec": {}, "status": status}));
            }
            let project = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"namespaces": ["team"]}});
            host.insert("/apis/berth.dev/v1alpha1/projects/p", project);
            let context = QuotaUseContext {
                client: host.client(),
                stores,
                quotas: Arc::default(),
                queue: Queue::new(),
                interval: INTERVAL,
            };
            Self { host, context, writers }
        }

        async fn measure(&mut self) -> Result<TenantUse, ReconcileError> {
            self.writers.update(&self.host);
            measure(&self.context).await?;
            let measured = self.context.quotas.measured();
            assert!(measured.tenants["u2"].has_no_project && !measured.tenants[UID].has_no_project);
            Ok(measured.tenants[UID].clone())
        }

        fn set_counted(&self, used: &Value) {
            let namespace = TenantId::new("vision", UID).workload_namespace();
            let metadata = json!({"name": LIMITS_NAME, "namespace": namespace});
            let quota = json!({"metadata": metadata, "status": {"used": used}});
            let list = json!({"kind": "ResourceQuotaList", "apiVersion": "v1", "metadata": {}, "items": [quota]});
            self.host.serve("/api/v1/resourcequotas", list);
        }
    }

    #[tokio::test]
    async fn use_is_what_the_host_counts_and_what_the_tenant_stores() {
        let mut fixture = Fixture::new();
        let used = fixture.measure().await.unwrap();
        let expected = [
            (TreeResource::TenantClusters, 1),
            (TreeResource::DatastoreBytes, 1000),
            (TreeResource::DatastoreObjects, 7),
        ];
        assert_eq!(used.amounts, expected.into(), "the host has not counted yet");
        assert_eq!(fixture.context.queue.len(), 1);
        fixture.set_counted(&json!({
            "count/pods": "3", "count/services": "2", "requests.cpu": "1500m", "requests.storage": "2Gi", "count/secrets": "9",
            "count/podgroups.scheduling.k8s.io": "4",
        }));
        let used = fixture.measure().await.unwrap().amounts;
        assert_eq!((used[&TreeResource::Pods], used[&TreeResource::Services]), (3, 2));
        assert_eq!(used[&TreeResource::Host("requests.cpu".into())], 2);
        assert_eq!(used[&TreeResource::RequestsStorage], 2 << 30);
        assert_eq!(used.len(), 7, "{used:?}");
        // The volume of a claim is larger than the claim.
        let claim = json!({"metadata": {"name": "data"}, "status": {"capacity": {"storage": "4Gi"}},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        let claim = serde_json::from_value(claim).unwrap();
        let name = format!("{}/data", TenantId::new("vision", UID).workload_namespace());
        let claims = &fixture.context.stores.storage_claims;
        claims.put_volume(&name, Some(&claim));
        let used = fixture.measure().await.unwrap().amounts;
        assert_eq!(used[&TreeResource::RequestsStorage], 5 << 30);
    }

    #[tokio::test]
    async fn the_service_of_the_api_server_is_used() {
        let mut fixture = Fixture::new();
        let namespace = TenantId::new("vision", UID).control_plane_namespace();
        let service =
            json!({"metadata": {"name": EXTERNAL_SERVICE, "namespace": namespace}, "spec": {"type": "LoadBalancer"}});
        let list = json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": [service]});
        fixture.host.serve("/api/v1/services", list);
        fixture.set_counted(&json!({"services.loadbalancers": "2", "services.nodeports": "4", "count/services": "9"}));
        let used = fixture.measure().await.unwrap().amounts;
        assert_eq!(
            (used[&TreeResource::LoadBalancers], used[&TreeResource::NodePorts]),
            (3, 5)
        );
        assert_eq!(used[&TreeResource::Services], 9);
    }

    #[tokio::test]
    async fn without_an_answer_the_last_measurement_counts() {
        let mut fixture = Fixture::new();
        fixture.set_counted(&json!({"count/pods": "3"}));
        let before = fixture.measure().await.unwrap();
        fixture.set_counted(&json!({"count/pods": "4"}));
        let script = Script::default();
        script.fail_call(0);
        fixture.context.client = ScriptedApi::new("broken", &script).client();
        assert!(fixture.measure().await.is_err());
        let measured = fixture.context.quotas.measured();
        assert_eq!((&measured.tenants[UID], measured.number), (&before, 1));
    }

    #[tokio::test]
    async fn gpus_are_those_of_pods_on_the_nodes_of_their_tenant() {
        let mut fixture = Fixture::new();
        let id = TenantId::new("vision", UID);
        for (pool, resource) in [("h100", Some("nvidia.com/gpu")), ("cpu", None)] {
            let mut spec = json!({"nodeSelector": {"pool": pool}});
            spec["gpuResourceName"] = resource.into();
            let path = format!("/apis/berth.dev/v1alpha1/hostnodepools/{pool}");
            fixture
                .host
                .insert(&path, json!({"metadata": {"name": pool, "uid": pool}, "spec": spec}));
        }
        for (node, pool, state) in [
            ("gpu-1", "h100", "Assigned"),
            ("gpu-2", "h100", "Draining"),
            ("gpu-3", "h100", "Scrubbing"),
            ("cpu-1", "cpu", "Cordoned"),
        ] {
            let metadata = json!({
                "name": node, "labels": {labels::TENANT: id.slug(), labels::NODE_STATE: state, labels::POOL: pool},
                "annotations": {labels::OWNER_UID: UID, labels::NODE_STATE: state, labels::POOL: pool},
            });
            let path = format!("/api/v1/nodes/{node}");
            fixture.host.insert(&path, json!({"metadata": metadata}));
        }
        let pod = |tenant: &str, node: &str, gpus: u64| Workload {
            tenant: tenant.into(),
            amounts: [("nvidia.com/gpu".to_owned(), gpus)].into(),
            scheduling: SchedulingState::Bound(node.into()),
            ..Workload::default()
        };
        let gpu_class = serde_json::from_value(json!({"extendedResourceName": "nvidia.com/gpu"})).unwrap();
        fixture
            .context
            .stores
            .devices
            .put_class("gpu.nvidia.com", Some(DeviceClass::read(gpu_class)));
        let by_claim = |resource: &str| Workload {
            amounts: [(resource.to_owned(), 1)].into(),
            ..pod(id.slug(), "gpu-1", 0)
        };
        for (name, pod) in [
            ("by a claim", by_claim("dra:gpu.nvidia.com")),
            (
                "by the name of a class",
                by_claim("deviceclass.resource.kubernetes.io/gpu.nvidia.com"),
            ),
            ("a", pod(id.slug(), "gpu-1", 4)),
            ("b", pod(id.slug(), "gpu-1", 2)),
            ("of another tenant", pod("other", "gpu-1", 1)),
            ("on a node that is drained", pod(id.slug(), "gpu-2", 8)),
            ("on a node that is given back", pod(id.slug(), "gpu-3", 8)),
            ("c", pod(id.slug(), "cpu-1", 0)),
            ("d", pod(id.slug(), "cpu-1", 0)),
        ] {
            fixture.context.stores.workloads.put(name, Some(pod));
        }
        let used = fixture.measure().await.unwrap().gpus;
        let expected = [("cpu".to_owned(), 1), ("h100".to_owned(), 16)];
        assert_eq!(used, expected.into());
    }
}
