//! The Projects as the API server has them, read once for each new tenant: a Project that was created just before its first tenant may
//! not be in the watch yet, and without it no quota would apply to that tenant.

use super::{context::TenantContext, error::TenantError, target::Tenant};
use crate::error::api;
use berth_api::{ALL_NAMESPACES, Project};
use kube::{Api, ResourceExt, api::ListParams};
use std::{collections::BTreeSet, sync::atomic::Ordering, time::Instant};
use tokio::sync::Mutex;

/// The last list of Projects. Tenants that are created at the same time share one.
#[derive(Default)]
pub(super) struct ListedProjects(Mutex<Option<Listed>>);

struct Listed {
    /// When the list was requested: it has all that was created before.
    requested: Instant,
    /// The namespaces that Projects name, with [`ALL_NAMESPACES`].
    namespaces: BTreeSet<String>,
}

impl Listed {
    fn has(&self, namespace: &str) -> bool {
        self.namespaces.contains(namespace) || self.namespaces.contains(ALL_NAMESPACES)
    }
}

/// Whether a Project names the namespace of a tenant that is about to be created without quota: then the watch is behind. Each tenant is
/// asked for once, and none that runs already.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn has_unseen_project(context: &TenantContext, tenant: &Tenant) -> Result<bool, TenantError> {
    let status = tenant.cluster.status.as_ref();
    let runs = status.is_some_and(|status| status.control_plane_namespace.is_some());
    if runs || tenant.memory.is_without_project.load(Ordering::Relaxed) {
        return Ok(false);
    }
    // The watch has shown the tenant already, so that a list that is requested from now on has all Projects that are older.
    let asked = Instant::now();
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    let mut last = context.tenants.listed_projects.0.lock().await;
    let listed = match last.take().filter(|listed| listed.requested > asked) {
        Some(listed) => listed,
        None => request(context).await?,
    };
    let has_project = listed.has(&namespace);
    *last = Some(listed);
    drop(last);
    if !has_project {
        tenant.memory.is_without_project.store(true, Ordering::Relaxed);
    }
    Ok(has_project)
}

/// Without a resource version the API server answers with what is stored now.
async fn request(context: &TenantContext) -> Result<Listed, TenantError> {
    let requested = Instant::now();
    let projects: Api<Project> = Api::all(context.client.clone());
    let list = projects.list(&ListParams::default()).await;
    let list = list.map_err(|error| TenantError::Quota(api("list Projects")(error)))?;
    let namespaces = list.items.into_iter().flat_map(|project| project.spec.namespaces);
    Ok(Listed {
        requested,
        namespaces: namespaces.collect(),
    })
}
