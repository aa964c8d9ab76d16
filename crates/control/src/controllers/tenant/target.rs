//! The tenant that a reconcile works on.

use super::{build::host_objects, context::TenantContext, memory::TenantMemory};
use crate::{key::Key, runtime::Owner};
use berth_api::{TenantCluster, names::TenantId};
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};

/// The tenant that a reconcile works on.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(super) cluster: Arc<TenantCluster>,
    pub(super) id: TenantId,
    pub(super) memory: Arc<TenantMemory>,
    /// Labels of everything on the host that belongs to it.
    pub(super) labels: BTreeMap<String, String>,
}

impl Tenant {
    pub(super) fn new(context: &TenantContext, cluster: Arc<TenantCluster>, uid: &str) -> Self {
        let id = TenantId::new(&cluster.name_any(), uid);
        Self {
            labels: host_objects::tenant_labels(&cluster, &id),
            memory: context.tenants.of(uid, &context.client),
            cluster,
            id,
        }
    }

    pub(super) fn key(&self) -> Key {
        Key::Tenant {
            namespace: self.cluster.namespace().unwrap_or_default(),
            name: self.cluster.name_any(),
        }
    }

    pub(super) fn owner(&self) -> Owner<'_> {
        Owner {
            tenant: &self.id,
            labels: &self.labels,
            host: &self.memory.host,
        }
    }
}
