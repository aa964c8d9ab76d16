//! Pods on a node: listing, evicting and deleting them.

use crate::{
    apply::is_status,
    controllers::pod_deletion::{DeletionStep, delete_pod, evict_pod, is_held, next_step, release_pod},
    error::{ReconcileError, api},
    tenant_pods::{MIRROR, is_of_tenant},
};
use berth_node_lifecycle::{
    evicted_pods::{is_evicted, may_run},
    platform_pods::{is_in_the_way, is_of_daemon_set},
};
use berth_runtime::watched::{Watched, for_each};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

/// The pods on a node, listed by the API server itself: a view that lags could free a node too early. Of each only a part is kept: who is root on a
/// node makes any number of static pods there.
#[derive(Default)]
pub(super) struct PodsOnNode {
    /// Pods that syncers made ([`is_of_tenant`]), as far as [`reduce`] keeps them.
    pub(super) of_tenants: Vec<Pod>,
    /// Pods that the taint of a node between two tenants evicts ([`is_evicted`]), as far as [`reduce`] keeps them.
    evicted: Vec<Pod>,
    /// UIDs of the other pods, and the kubelet's IDs of static pods.
    pub(super) platform: Vec<String>,
    /// `namespace/name` of those of the other pods that keep the node from being assigned ([`is_in_the_way`]).
    pub(super) in_the_way: Vec<String>,
    /// Those of the other pods that DaemonSets made.
    pub(super) of_daemon_sets: Vec<Pod>,
}

impl PodsOnNode {
    pub(super) async fn list(client: &Client, node: &str) -> Result<Self, ReconcileError> {
        let pods: Api<Watched<Pod>> = Api::all(client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut found = Self::default();
        let mut unreadable = None;
        let listed = for_each(&pods, params, |pod| {
            let name = full_name(&pod);
            match pod.readable() {
                Some(pod) => found.add(pod),
                None => unreadable = Some(name),
            }
        });
        listed.await.map_err(api("list the pods of a node"))?;
        match unreadable {
            None => Ok(found),
            // It may be a tenant's, and keep the node.
            Some(name) => Err(ReconcileError::Blocked {
                reason: "UnreadablePod",
                message: format!("the pod {name} on node {node} cannot be read: delete it, and look who wrote it"),
            }),
        }
    }

    fn add(&mut self, pod: Pod) {
        if is_evicted(&pod) {
            self.evicted.push(reduce(&pod));
        }
        if !is_of_tenant(&pod) {
            self.platform.extend(ids_on_node(&pod));
            if is_in_the_way(&pod) {
                self.in_the_way.push(full_name(&pod));
            }
            if is_of_daemon_set(&pod) {
                self.of_daemon_sets.push(pod);
            }
            return;
        }
        self.of_tenants.push(reduce(&pod));
    }

    /// `namespace/name` of the tenants' pods.
    pub(super) fn names(&self) -> Vec<String> {
        self.of_tenants.iter().map(full_name).collect()
    }

    /// The same of those that finalizers alone hold.
    pub(super) fn held_names(&self, now: Timestamp) -> Vec<String> {
        let held = self.of_tenants.iter().filter(|pod| is_held(&pod.metadata, now));
        held.map(full_name).collect()
    }

    /// Pods that have to end before a tenant gets the node, which has had its taint since `tainted` or longer.
    fn list_evicted(&self, tainted: Option<Timestamp>) -> Vec<&Pod> {
        self.evicted.iter().filter(|pod| may_run(pod, tainted)).collect()
    }

    /// `namespace/name` of these pods.
    pub(super) fn evicted_names(&self, tainted: Option<Timestamp>) -> Vec<String> {
        self.list_evicted(tainted).into_iter().map(full_name).collect()
    }

    /// Deletes these pods, or gives them less time to end. Without `deletes_running` those are left whose deletion has not begun. None is removed
    /// before its kubelet reports its end.
    pub(super) async fn end_evicted(
        &self,
        client: &Client,
        tainted: Option<Timestamp>,
        deletes_running: bool,
        limits: DeletionLimits,
    ) -> Result<(), ReconcileError> {
        let mut failed = Ok(());
        for pod in self.list_evicted(tainted) {
            if pod.metadata.deletion_timestamp.is_none() && !deletes_running {
                continue;
            }
            let own = own_grace_seconds(pod);
            let step = next_step(&pod.metadata, own, limits.max_grace_seconds, limits.now);
            if let DeletionStep::Delete { grace_seconds } = step {
                let namespace = pod.namespace().unwrap_or_default();
                tracing::info!(
                    namespace,
                    pod = pod.name_any(),
                    grace_seconds,
                    "pod does not tolerate the taint of its node, which a tenant gets, and is deleted"
                );
                failed = failed.and(delete_pod(&api_of(client, pod), &pod.metadata, grace_seconds).await);
            }
        }
        failed
    }

    /// Evicts the tenants' pods, as `kubectl drain` does. Disruption budgets may say "not yet" (429). A pod that cannot be
    /// evicted, for example because two budgets select it, does not keep the others.
    pub(super) async fn evict(&self, client: &Client) -> Result<(), ReconcileError> {
        let mut failed = Ok(());
        let running = self
            .of_tenants
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        for pod in running {
            match evict_pod(&api_of(client, pod), &pod.name_any(), pod.uid()).await {
                Ok(()) => {}
                Err(error) if [429, 404, 409].iter().any(|code| is_status(&error, *code)) => {}
                Err(error) => failed = failed.and(Err(api("evict a pod")(error))),
            }
        }
        failed
    }

    /// Deletes the tenants' pods, whatever budgets say.
    pub(super) async fn delete(&self, client: &Client, limits: DeletionLimits) -> Result<(), ReconcileError> {
        let mut failed = Ok(());
        for pod in &self.of_tenants {
            let own = own_grace_seconds(pod);
            let grace_seconds = match next_step(&pod.metadata, own, limits.max_grace_seconds, limits.now) {
                DeletionStep::Delete { grace_seconds } => grace_seconds,
                DeletionStep::Remove if limits.removes_overdue => {
                    let namespace = pod.namespace().unwrap_or_default();
                    tracing::warn!(
                        namespace,
                        pod = pod.name_any(),
                        "pod did not end in time and is removed"
                    );
                    0
                }
                DeletionStep::Release if limits.removes_overdue => {
                    failed = failed.and(release_pod(&api_of(client, pod), &pod.metadata).await);
                    continue;
                }
                DeletionStep::Remove | DeletionStep::Wait | DeletionStep::Held | DeletionStep::Release => continue,
            };
            failed = failed.and(delete_pod(&api_of(client, pod), &pod.metadata, grace_seconds).await);
        }
        failed
    }
}

/// What is kept of a pod that is to be deleted: of its spec the grace period, and of its status when its kubelet has taken it.
fn reduce(pod: &Pod) -> Pod {
    let metadata = &pod.metadata;
    let status = pod.status.as_ref();
    Pod {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            creation_timestamp: metadata.creation_timestamp.clone(),
            deletion_timestamp: metadata.deletion_timestamp.clone(),
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            finalizers: metadata.finalizers.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            termination_grace_period_seconds: own_grace_seconds(pod),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            start_time: status.and_then(|status| status.start_time.clone()),
            ..PodStatus::default()
        }),
    }
}

/// The grace period of a pod, in seconds, if it names one.
fn own_grace_seconds(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.termination_grace_period_seconds
}

/// By what a pod of the platform is known on its node: its UID and, if it is static, the kubelet's ID.
///
/// Who may create pods somewhere on the host writes that ID as well, for example the UID of a tenant's pod, whose processes and files the scrub
/// would leave. UIDs have hyphens, and the hashes that kubelets make for static pods have none. A static pod whose manifest has a UID with hyphens
/// is known by its namespace alone.
fn ids_on_node(pod: &Pod) -> impl Iterator<Item = String> {
    let of_kubelet = pod.annotations().get(MIRROR).filter(|id| !id.contains('-'));
    [pod.uid(), of_kubelet.cloned()].into_iter().flatten()
}

/// How long pods may take to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeletionLimits {
    pub(super) max_grace_seconds: i64,
    /// Whether pods that are overdue are removed although their kubelet has not reported their end.
    pub(super) removes_overdue: bool,
    pub(super) now: Timestamp,
}

fn full_name(pod: &impl ResourceExt) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

fn api_of(client: &Client, pod: &Pod) -> Api<Pod> {
    Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ids(mirror: Option<&str>) -> Vec<String> {
        let annotations = mirror.map_or_else(|| json!({}), |id| json!({(MIRROR): id}));
        let metadata = json!({"name": "p", "namespace": "team", "uid": "u-1", "annotations": annotations});
        let pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        ids_on_node(&pod).collect()
    }

    #[test]
    fn a_pod_cannot_name_another_pod_as_its_static_one() {
        assert_eq!(ids(None), ["u-1"]);
        assert_eq!(
            ids(Some("0f2c7ad9b1e44d0c8f3a5b6c7d8e9f01")),
            ["u-1", "0f2c7ad9b1e44d0c8f3a5b6c7d8e9f01"]
        );
        assert_eq!(ids(Some("6f2c7ad9-b1e4-4d0c-8f3a-5b6c7d8e9f01")), ["u-1"]);
    }
}
