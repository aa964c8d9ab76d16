//! A tenant controller whose calls are all recorded in a script: to the host's and the tenant's API server, etcd, the runtime
//! and the syncer's probe.

use super::super::{
    super::slots::Slots,
    access::WithoutClass,
    connection::{ProbeAnswer, ProbeError, Remote},
    context::TenantContext,
    error::TenantError,
    memory::Tenants,
    reconcile,
};
use crate::{
    clock::Clock,
    control_plane::{Endpoint, HostInput},
    controllers::{schedule_policy::Schedules, tenant_class::KnownKinds},
    datastore::{DatastoreError, HeadPage, IsEnough, KeyRange, SizePage, TenantDatastore},
    events::EventRecorder,
    metrics::SleepMetrics,
    network::{AdministrativeTier, HostAddresses, NetworkConfig},
    quota_ledger::QuotaLedger,
    stores::Stores,
    testing::{MemoryContents, Script, ScriptedApi, ScriptedRuntime, StoreWriters, VERSION},
};
use async_trait::async_trait;
use berth_api::{NodeGroup, TenantCluster, TenantClusterSpec, names::TenantId};
use berth_pki::CertificateAuthority;
use berth_runtime::{client, queue::Queue};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(super) const UID: &str = "6f2c";
pub(super) const TENANT: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
/// The class that tests give the tenant.
pub(super) const CLASS: &str = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
/// The node of the tenant.
pub(super) const NODE: &str = "/api/v1/nodes/gpu-1";

pub(super) struct Fixture {
    pub(super) script: Script,
    pub(super) host: ScriptedApi,
    pub(super) tenant: ScriptedApi,
    pub(super) context: TenantContext,
    pub(super) id: TenantId,
    /// One slot.
    pub(super) slots: Slots,
    pub(super) stored: Stored,
    writers: StoreWriters,
}

/// What etcd has of the tenant.
#[derive(Clone, Default)]
pub(super) struct Stored {
    /// Number of all keys.
    pub(super) keys: Arc<AtomicU64>,
    /// Bytes of the Events.
    pub(super) bytes: Arc<AtomicU64>,
    /// Number of the keys that are no Events.
    pub(super) other_keys: Arc<AtomicU64>,
    /// Their bytes.
    pub(super) other_bytes: Arc<AtomicU64>,
    /// Bytes on the host, as the syncer says.
    pub(super) host_bytes: Arc<AtomicU64>,
    /// Kinds that the syncer does not know, as it says.
    pub(super) unlisted_kinds: Arc<AtomicU64>,
    /// Objects that it has not compared with its rules, as it says.
    pub(super) uncompared_objects: Arc<AtomicU64>,
    /// Seconds for which the host has not answered the syncer, as it says.
    pub(super) host_silent_seconds: Arc<AtomicU64>,
    /// Whether the syncer has ended by itself.
    pub(super) is_syncer_gone: Arc<AtomicBool>,
    /// Whether it waits for a list.
    pub(super) is_syncer_listing: Arc<AtomicBool>,
    /// Whether its metrics cannot be read.
    pub(super) is_syncer_unmeasured: Arc<AtomicBool>,
    /// Values of single keys, by what follows the tenant's prefix.
    pub(super) values: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// All that the tenant stores, for restores.
    pub(super) contents: MemoryContents,
    /// Seconds that it takes to read how a page of them is stored.
    pub(super) head_seconds: Arc<AtomicU64>,
    /// How many of them are in a page; 0 is one.
    pub(super) heads_at_once: Arc<AtomicUsize>,
}

impl Fixture {
    /// A host with one pool, one node that belongs to the tenant, and a tenant that asks for it.
    pub(super) fn new() -> Self {
        let script = Script::default();
        let (host, tenant) = (ScriptedApi::new("host", &script), ScriptedApi::new("tenant", &script));
        let id = TenantId::new("vision", UID);
        insert_host_objects(&host, &id);
        let (stores, writers) = StoreWriters::new();
        let stored = Stored::default();
        let context = context(&script, &host, &tenant, stores, &stored);
        Self {
            script,
            host,
            tenant,
            context,
            id,
            slots: Slots::new(1),
            stored,
            writers,
        }
    }

    /// One reconcile after the watches have seen everything.
    pub(super) async fn reconcile(&mut self) -> Result<Option<Duration>, TenantError> {
        self.writers.update(&self.host);
        let slot = Arc::new(self.slots.take().await);
        let result = reconcile(&self.context, "team", "vision", &slot).await;
        drop(slot);
        // The probe of the tenant's API server is a task.
        tokio::time::sleep(Duration::from_millis(2)).await;
        // The fleet's controller releases the node once no pod of the tenant is left.
        if self.context.tenants.workloads_gone(UID) {
            self.host.remove(NODE);
        }
        result
    }

    /// One reconcile in which the watches have seen nothing new.
    pub(super) async fn reconcile_without_change(&self) -> Result<Option<Duration>, TenantError> {
        let slot = Arc::new(self.slots.take().await);
        reconcile(&self.context, "team", "vision", &slot).await
    }

    /// One reconcile after a change that the watches have not seen yet.
    pub(super) async fn reconcile_after_unseen(
        &mut self,
        change: impl FnOnce(&ScriptedApi),
    ) -> Result<Option<Duration>, TenantError> {
        self.writers.update(&self.host);
        change(&self.host);
        let slot = Arc::new(self.slots.take().await);
        reconcile(&self.context, "team", "vision", &slot).await
    }

    /// Changes the tenant's object on the host.
    pub(super) fn change_tenant(&self, change: impl FnOnce(&mut Value)) {
        let mut cluster = self.host.get(TENANT).unwrap();
        change(&mut cluster);
        self.host.insert(TENANT, cluster);
    }

    /// Makes the class gold with this spec, or changes it.
    pub(super) fn set_class(&self, spec: &Value) {
        let metadata = json!({"name": "gold", "uid": "gold"});
        let class = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": metadata, "spec": spec,
        });
        self.host.insert(CLASS, class);
    }

    /// The same, and gives the tenant this class.
    pub(super) fn give_class(&self, spec: &Value) {
        self.set_class(spec);
        self.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    }

    /// Reconciles until the tenant is Ready. Returns the errors on the way.
    pub(super) async fn reconcile_until_ready(&mut self) -> Vec<TenantError> {
        let mut errors = Vec::new();
        for _ in 0..20 {
            errors.extend(Box::pin(self.reconcile()).await.err());
            if self.condition("Ready").is_some_and(|ready| ready["status"] == "True") {
                return errors;
            }
        }
        panic!("not Ready: {:#}", self.status());
    }

    /// Deletes the tenant, and reconciles until it is gone. Returns the errors on the way.
    pub(super) async fn delete(&mut self) -> Vec<TenantError> {
        let mut cluster = self.host.get(TENANT).unwrap();
        cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        self.host.insert(TENANT, cluster);
        let mut errors = Vec::new();
        for _ in 0..20 {
            errors.extend(self.reconcile().await.err());
            if self.host.get(TENANT).is_none() {
                return errors;
            }
        }
        panic!("not gone: {:#}", self.status());
    }

    pub(super) fn status(&self) -> Value {
        self.host
            .get(TENANT)
            .map(|cluster| cluster["status"].clone())
            .unwrap_or_default()
    }

    pub(super) fn condition(&self, kind: &str) -> Option<Value> {
        let status = self.status();
        let all = status["conditions"].as_array()?;
        all.iter().find(|condition| condition["type"] == kind).cloned()
    }

    /// The status and the reason of a condition; null without it.
    pub(super) fn reason(&self, kind: &str) -> (Value, Value) {
        let condition = self.condition(kind).unwrap_or_default();
        (condition["status"].clone(), condition["reason"].clone())
    }

    /// Number of calls so far.
    pub(super) fn count_calls(&self) -> usize {
        self.script.calls().len()
    }
}

fn insert_host_objects(host: &ScriptedApi, id: &TenantId) {
    let spec = TenantClusterSpec {
        version: Some(VERSION.into()),
        node_groups: vec![NodeGroup::private("train", "h100", 1)],
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new("vision", spec);
    cluster.metadata.namespace = Some("team".into());
    cluster.metadata.uid = Some(UID.into());
    cluster.metadata.generation = Some(1);
    host.insert(TENANT, serde_json::to_value(cluster).unwrap());
    let pool = berth_api::HostNodePool::new(
        "h100",
        berth_api::HostNodePoolSpec {
            node_selector: [("gpu".to_owned(), "h100".to_owned())].into(),
            ..berth_api::HostNodePoolSpec::default()
        },
    );
    host.insert(
        "/apis/berth.dev/v1alpha1/hostnodepools/h100",
        serde_json::to_value(pool).unwrap(),
    );
    host.insert(
        NODE,
        json!({
            "metadata": {
                "name": "gpu-1",
                "labels": {
                    "gpu": "h100", "berth.dev/node-group": "train", "berth.dev/pool": "h100",
                    "berth.dev/state": "Assigned", "berth.dev/tenant": id.slug(),
                },
                "annotations": {"berth.dev/owner-uid": UID, "berth.dev/state": "Assigned"},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    host.insert(
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
        json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}}),
    );
}

fn context(
    script: &Script,
    host: &ScriptedApi,
    tenant: &ScriptedApi,
    stores: Stores,
    stored: &Stored,
) -> TenantContext {
    let ca = CertificateAuthority::create("etcd", Duration::from_secs(3600)).unwrap();
    let clock = Clock::at(Timestamp::now());
    let of_schedules = clock.clone();
    TenantContext {
        client: host.client(),
        network_config: NetworkConfig::default(),
        without_class: WithoutClass::BuiltInDefaults,
        has_admission_policies: true,
        argo_cd_namespace: None,
        administrative_tier: AdministrativeTier::default(),
        host_addresses: HostAddresses::default(),
        stores,
        syncer_host: HostInput {
            server: "https://10.0.0.1:6443".into(),
            ca_pem: ca.cert_pem().into(),
            cluster_domain: "cluster.local".into(),
        },
        datastore: Arc::new(ScriptedDatastore {
            script: script.clone(),
            endpoints: vec!["https://127.0.0.1:2379".into()],
            ca,
            stored: stored.clone(),
        }),
        contents: Arc::new(stored.contents.clone()),
        snapshot_store: None,
        runtime: Arc::new(ScriptedRuntime::new(script)),
        remote: Arc::new(ScriptedRemote {
            script: script.clone(),
            stored: stored.clone(),
            tenant: tenant.clone(),
        }),
        kinds: Arc::new(KnownKinds::new(host.client())),
        tenants: Arc::new(Tenants::default()),
        clock,
        schedules: Arc::new(Schedules::new(move || of_schedules.now())),
        quotas: Arc::new(QuotaLedger::default()),
        queue: Queue::new(),
        metrics: SleepMetrics::default(),
        rotations: prometheus_client::metrics::counter::Counter::default(),
        restores: prometheus_client::metrics::family::Family::default(),
        own_slices_deleted: prometheus_client::metrics::counter::Counter::default(),
        recorder: EventRecorder::new(host.client()),
    }
}

struct ScriptedDatastore {
    script: Script,
    endpoints: Vec<String>,
    ca: CertificateAuthority,
    stored: Stored,
}

impl ScriptedDatastore {
    fn call(&self, what: &str) -> Result<(), DatastoreError> {
        let failed = || DatastoreError::File {
            path: "script".into(),
            source: std::io::Error::other("the script says so"),
        };
        self.script
            .record(format!("datastore {what}"))
            .then_some(())
            .ok_or_else(failed)
    }
}

#[async_trait]
impl TenantDatastore for ScriptedDatastore {
    fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    fn ca_cert(&self) -> &str {
        self.ca.cert_pem()
    }

    fn ca_key(&self) -> &str {
        self.ca.key_pem()
    }

    async fn create_tenant(&self, _: &TenantId) -> Result<(), DatastoreError> {
        self.call("prepare")
    }

    async fn delete_user(&self, _: &TenantId) -> Result<(), DatastoreError> {
        self.call("delete user")
    }

    async fn delete_tenant(&self, _: &TenantId) -> Result<(), DatastoreError> {
        self.call("remove")
    }

    async fn count_keys(&self, _: &TenantId) -> Result<u64, DatastoreError> {
        self.call("count")?;
        Ok(self.stored.keys.load(Ordering::SeqCst))
    }

    /// Two pages of each range, of which the first has all bytes.
    async fn read_sizes(
        &self,
        _: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
    ) -> Result<SizePage, DatastoreError> {
        self.call("read")?;
        let number = |of: &AtomicU64| of.load(Ordering::SeqCst);
        let (keys, bytes) = match range {
            KeyRange::Events => (
                number(&self.stored.keys) - number(&self.stored.other_keys),
                number(&self.stored.bytes),
            ),
            KeyRange::Others => (number(&self.stored.other_keys), number(&self.stored.other_bytes)),
        };
        Ok(match start {
            None => SizePage {
                keys,
                bytes,
                next: Some(b"next".to_vec()),
            },
            Some(_) => SizePage::default(),
        })
    }

    async fn read_key(&self, _: &TenantId, path: &str) -> Result<Option<Vec<u8>>, DatastoreError> {
        self.call(&format!("get {path}"))?;
        Ok(self.stored.values.lock().unwrap().get(path).cloned())
    }

    /// One key at a time, or as many as the test says.
    async fn read_heads(
        &self,
        _: &TenantId,
        folder: &str,
        after: Option<&[u8]>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<HeadPage, DatastoreError> {
        self.call(&format!("read {folder}"))?;
        let seconds = self.stored.head_seconds.load(Ordering::SeqCst);
        if seconds > 0 {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
        let values = self.stored.values.lock().unwrap();
        let mut inside = values.iter().filter_map(|(path, value)| {
            let name = path.strip_prefix(folder)?;
            after
                .is_none_or(|after| name.as_bytes() > after)
                .then(|| (name.as_bytes().to_vec(), value.clone()))
        });
        let most = self.stored.heads_at_once.load(Ordering::SeqCst).max(1);
        let mut heads = Vec::new();
        for (name, head) in inside.by_ref() {
            let is_last = is_enough(&head);
            heads.push((name, head));
            if is_last || heads.len() >= most {
                break;
            }
        }
        Ok(HeadPage {
            heads,
            has_more: inside.next().is_some(),
        })
    }

    async fn delete_key(&self, _: &TenantId, path: &str) -> Result<(), DatastoreError> {
        self.call(&format!("delete {path}"))?;
        self.stored.values.lock().unwrap().remove(path);
        Ok(())
    }
}

struct ScriptedRemote {
    script: Script,
    stored: Stored,
    tenant: ScriptedApi,
}

#[async_trait]
impl Remote for ScriptedRemote {
    async fn connect(&self, _: &str) -> Result<Client, client::ConnectError> {
        Ok(self.tenant.client())
    }

    async fn probe_syncer(&self, _: &Endpoint) -> Result<ProbeAnswer, ProbeError> {
        if !self.script.record("syncer probe".into()) {
            return Err(ProbeError("the script says so".into()));
        }
        if self.script.first("runtime run syncer").is_none() || self.stored.is_syncer_gone.load(Ordering::SeqCst) {
            return Err(ProbeError("it does not run".into()));
        }
        Ok(ProbeAnswer {
            is_ready: !self.stored.is_syncer_listing.load(Ordering::SeqCst),
            text: String::new(),
        })
    }

    async fn read_syncer_metrics(&self, _: &Endpoint) -> Result<String, ProbeError> {
        if !self.script.record("syncer probe of metrics".into()) {
            return Err(ProbeError("the script says so".into()));
        }
        if self.stored.is_syncer_unmeasured.load(Ordering::SeqCst) {
            return Err(ProbeError("its metrics are too long".into()));
        }
        let number = |of: &AtomicU64| of.load(Ordering::SeqCst);
        Ok(format!(
            "berth_syncer_host_bytes {}\nberth_syncer_host_bytes_limit 536870912\nberth_syncer_unlisted_kinds {}\n\
             berth_syncer_uncompared_objects {}\nberth_syncer_host_silent_seconds {}\n",
            number(&self.stored.host_bytes),
            number(&self.stored.unlisted_kinds),
            number(&self.stored.uncompared_objects),
            number(&self.stored.host_silent_seconds),
        ))
    }
}
