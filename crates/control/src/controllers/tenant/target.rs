//! The tenant that a reconcile works on.

use super::{super::slots::Slot, build::host_objects, context::TenantContext, memory::TenantMemory};
use crate::{error::ReconcileError, key::Key, runtime::Owner};
use berth_api::{TenantCluster, names::TenantId};
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time for the writes of one step in the tenant. A webhook may take 30 s; what was applied is remembered, and the next reconcile
/// does the rest.
const WRITE_LIMIT: Duration = Duration::from_secs(32);
/// Time for the writes of a later step when the steps before it have used up [`WRITE_LIMIT`]: a webhook for other kinds, which does not answer, keeps
/// no step from being done.
const LEAST_LIMIT: Duration = Duration::from_secs(5);

/// The tenant that a reconcile works on.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(super) cluster: Arc<TenantCluster>,
    pub(super) id: TenantId,
    pub(super) memory: Arc<TenantMemory>,
    /// Labels of everything on the host that belongs to it.
    pub(super) labels: BTreeMap<String, String>,
    /// For calls that end when the tenant lets them end.
    pub(super) slot: Arc<Slot>,
}

impl Tenant {
    pub(super) fn new(context: &TenantContext, cluster: Arc<TenantCluster>, uid: &str, slot: &Arc<Slot>) -> Self {
        let id = TenantId::new(&cluster.name_any(), uid);
        Self {
            labels: host_objects::tenant_labels(&cluster, &id),
            memory: context.tenants.of(uid, &context.client),
            cluster,
            id,
            slot: Arc::clone(slot),
        }
    }

    /// Writes to the tenant's API server, within [`WRITE_LIMIT`] and without a slot: webhooks of the tenant see the requests.
    ///
    /// # Errors
    /// The API server refuses, or does not answer in time.
    pub(super) async fn write(
        &self,
        writes: impl Future<Output = Result<(), ReconcileError>>,
    ) -> Result<(), ReconcileError> {
        self.write_within(WRITE_LIMIT, writes).await
    }

    /// As [`Tenant::write`], in what is left of the time since `begun`, and at least [`LEAST_LIMIT`]: a reconcile that waits as long for each of its
    /// steps would not end in time.
    ///
    /// # Errors
    /// The API server refuses, or does not answer in time.
    pub(super) async fn write_in_rest(
        &self,
        begun: Instant,
        writes: impl Future<Output = Result<(), ReconcileError>>,
    ) -> Result<(), ReconcileError> {
        let rest = WRITE_LIMIT.saturating_sub(begun.elapsed());
        self.write_within(rest.max(LEAST_LIMIT), writes).await
    }

    async fn write_within(
        &self,
        limit: Duration,
        writes: impl Future<Output = Result<(), ReconcileError>>,
    ) -> Result<(), ReconcileError> {
        let limit = self.slot.shorten(limit);
        let late = || ReconcileError::Blocked {
            reason: "APIServerSlow",
            message: format!(
                "the tenant's API server did not accept the objects that every tenant has within {} s; look for webhooks in the \
                 tenant that do not answer, and remove them or give them a short timeoutSeconds",
                limit.as_secs()
            ),
        };
        self.slot.lend(limit, writes).await.unwrap_or_else(|| Err(late()))
    }

    pub(super) fn key(&self) -> Key {
        Key::of_tenant(&self.cluster)
    }

    pub(super) fn owner(&self) -> Owner<'_> {
        Owner {
            tenant: &self.id,
            labels: &self.labels,
            host: &self.memory.host,
        }
    }
}
