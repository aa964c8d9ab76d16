//! Pods on a node: listing, evicting and deleting them.

use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use berth_api::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Preconditions},
};

/// Annotation of a mirror pod with the kubelet's ID of the static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods on a node, listed by the API server itself: a view that lags could free a node too early.
pub(super) struct PodsOnNode {
    /// Pods that syncers made.
    pub(super) of_tenants: Vec<Pod>,
    /// UIDs of the other pods, and the kubelet's IDs of static pods.
    pub(super) platform: Vec<String>,
}

impl PodsOnNode {
    pub(super) async fn list(client: &Client, node: &str) -> Result<Self, ReconcileError> {
        let pods: Api<Pod> = Api::all(client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let all = pods.list(&params).await.map_err(api("list the pods of a node"))?.items;
        let (of_tenants, others): (Vec<Pod>, Vec<Pod>) = all.into_iter().partition(|pod| {
            pod.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_SYNCER)
        });
        let platform = others
            .iter()
            .flat_map(|pod| [pod.uid(), pod.annotations().get(MIRROR).cloned()])
            .flatten()
            .collect();
        Ok(Self { of_tenants, platform })
    }

    /// `namespace/name` of the tenants' pods.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        self.of_tenants.iter().map(name).collect()
    }

    /// Evicts the tenants' pods, as `kubectl drain` does. Disruption budgets may say "not yet" (429).
    pub(super) async fn evict(&self, client: &Client) -> Result<(), ReconcileError> {
        for pod in self.not_terminating() {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            match pods.evict(&pod.name_any(), &EvictParams::default()).await {
                Ok(_) => {}
                Err(error) if [429, 404, 409].iter().any(|code| is_status(&error, *code)) => {}
                Err(error) => return Err(api("evict a pod")(error)),
            }
        }
        Ok(())
    }

    /// Deletes the tenants' pods: their tenant is gone, so no budget protects them.
    pub(super) async fn delete(&self, client: &Client) -> Result<(), ReconcileError> {
        for pod in self.not_terminating() {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: pod.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match pods.delete(&pod.name_any(), &params).await {
                Ok(_) => {}
                Err(error) if [404, 409].iter().any(|code| is_status(&error, *code)) => {}
                Err(error) => return Err(api("delete a pod")(error)),
            }
        }
        Ok(())
    }

    fn not_terminating(&self) -> impl Iterator<Item = &Pod> {
        self.of_tenants
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
    }
}
