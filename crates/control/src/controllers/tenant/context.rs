//! What the tenant controller works with.

use super::{access::WithoutClass, connection::Remote, memory::Tenants};
use crate::{
    clock::Clock,
    control_plane::HostInput,
    controllers::{schedule_policy::Schedules, tenant_class::KnownKinds},
    datastore::{TenantContents, TenantDatastore},
    events::EventRecorder,
    key::Key,
    metrics::{ResultLabels, SleepMetrics},
    network::{AdministrativeTier, HostAddresses, NetworkConfig, NetworkContext},
    quota_ledger::QuotaLedger,
    runtime::ControlPlaneRuntime,
    stores::Stores,
};
use berth_api::TenantCluster;
use berth_runtime::{queue::Queue, watched::Watched};
use berth_snapshots::Store;
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::{counter::Counter, family::Family};
use std::sync::Arc;

/// What the tenant controller works with. One per process.
pub struct TenantContext {
    /// The host's API server.
    pub client: Client,
    /// The host's objects, as watches know them.
    pub stores: Stores,
    /// The time.
    pub clock: Clock,
    /// Settings of the host's network, from flags and the platform's settings.
    pub network_config: NetworkConfig,
    /// What a TenantCluster without a class gets.
    pub without_class: WithoutClass,
    /// Whether Berth's admission policies are installed on the host. Without them no class gives capabilities.
    pub has_admission_policies: bool,
    /// Namespace of the platform's Argo CD, if tenants may be registered there.
    pub argo_cd_namespace: Option<String>,
    /// Which cluster-wide network policies the host serves.
    pub administrative_tier: AdministrativeTier,
    /// Which addresses of the host's nodes and API servers count.
    pub host_addresses: HostAddresses,
    /// How syncers reach the host.
    pub syncer_host: HostInput,
    /// The tenants' shared etcd.
    pub datastore: Arc<dyn TenantDatastore>,
    /// The same, for restores.
    pub contents: Arc<dyn TenantContents>,
    /// The object store of snapshots, if there is one.
    pub snapshot_store: Option<Store>,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// How control reaches what runs for a tenant.
    pub remote: Arc<dyn Remote>,
    /// Which further kinds can be synced.
    pub kinds: Arc<KnownKinds>,
    /// What control remembers of each tenant; all of it can be read again.
    pub tenants: Arc<Tenants>,
    /// What schedules let tenants do.
    pub schedules: Arc<Schedules>,
    /// What the quotas give each tenant.
    pub quotas: Arc<QuotaLedger>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counts wakes.
    pub metrics: SleepMetrics,
    /// Counts rotations of credentials that are complete.
    pub rotations: Counter,
    /// Counts restores by how they ended.
    pub restores: Family<ResultLabels, Counter>,
    /// Counts EndpointSlices that were deleted because the syncer of their tenant did not work.
    pub own_slices_deleted: Counter,
    /// Writes Events.
    pub recorder: EventRecorder,
}

impl TenantContext {
    /// The TenantClusters beside a tenant's.
    pub(super) fn clusters_beside(&self, cluster: &TenantCluster) -> Api<Watched<TenantCluster>> {
        Api::namespaced(self.client.clone(), &cluster.namespace().unwrap_or_default())
    }

    /// What network policies need of this.
    pub(super) fn network(&self) -> NetworkContext<'_> {
        NetworkContext {
            client: &self.client,
            host_server: &self.syncer_host.server,
            nodes: &self.stores.nodes,
            host_addresses: &self.host_addresses,
            network_policies: &self.stores.network_policies,
            config: &self.network_config,
            tier: &self.administrative_tier,
        }
    }
}
