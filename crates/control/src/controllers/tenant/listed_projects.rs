//! The namespaces of Projects as the API server has them now. A Project that was created just before its first tenant may not be in the
//! watch yet.

use crate::error::{ReconcileError, api};
use berth_api::{ALL_NAMESPACES, Project};
use kube::{Api, Client, api::ListParams};
use std::{collections::BTreeSet, time::Instant};
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

impl ListedProjects {
    /// Whether a Project names a namespace, by a list that was requested after this call.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    pub(super) async fn include(&self, namespace: &str, client: &Client) -> Result<bool, ReconcileError> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        let listed = match last.take().filter(|listed| listed.requested > asked) {
            Some(listed) => listed,
            None => Listed::request(client).await?,
        };
        let is_named = listed.namespaces.contains(namespace) || listed.namespaces.contains(ALL_NAMESPACES);
        *last = Some(listed);
        drop(last);
        Ok(is_named)
    }
}

impl Listed {
    /// Without a resource version the API server answers with what is stored now.
    async fn request(client: &Client) -> Result<Self, ReconcileError> {
        let requested = Instant::now();
        let projects: Api<Project> = Api::all(client.clone());
        let list = projects
            .list(&ListParams::default())
            .await
            .map_err(api("list Projects"))?;
        let namespaces = list.items.into_iter().flat_map(|project| project.spec.namespaces);
        Ok(Self {
            requested,
            namespaces: namespaces.collect(),
        })
    }
}
