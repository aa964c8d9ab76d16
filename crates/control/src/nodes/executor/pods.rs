//! Pods on a node: who is left, and asking them to leave.

use crate::{
    apply::is_status,
    context::Context,
    error::{ReconcileError, api},
};
use berth_api::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Preconditions},
};

/// Annotation by which a static pod's mirror names what the kubelet calls the pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods on a node, asked of the API server itself: a view that lags could free a node too early.
pub(super) struct PodsOnNode {
    /// Those that syncers made.
    pub(super) of_tenants: Vec<Pod>,
    /// What the kubelet calls the others.
    pub(super) platform: Vec<String>,
}

impl PodsOnNode {
    /// Lists them.
    pub(super) async fn list(context: &Context, node: &str) -> Result<Self, ReconcileError> {
        let pods: Api<Pod> = Api::all(context.client.clone());
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

    /// Asks the tenants' pods to leave, as `kubectl drain` does. Disruption budgets may say "not yet" (429).
    pub(super) async fn evict(&self, context: &Context) -> Result<(), ReconcileError> {
        for pod in self.staying() {
            let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
            match pods.evict(&pod.name_any(), &EvictParams::default()).await {
                Ok(_) => {}
                Err(error) if [429, 404, 409].iter().any(|code| is_status(&error, *code)) => {}
                Err(error) => return Err(api("evict a pod")(error)),
            }
        }
        Ok(())
    }

    /// Deletes the tenants' pods: their tenant is gone, and nobody's budget protects them.
    pub(super) async fn delete(&self, context: &Context) -> Result<(), ReconcileError> {
        for pod in self.staying() {
            let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
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

    fn staying(&self) -> impl Iterator<Item = &Pod> {
        self.of_tenants
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
    }
}
