//! What the host cluster contains from the beginning: the simulated nodes and kwok's permissions.

use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::{Error, NodePlan};

/// Field manager of the objects that are applied here.
const MANAGER: &str = "berth-local";
/// User name of kwok.
pub(crate) const KWOK_USER: &str = "berth-kwok";
/// Concurrent requests.
const CONCURRENCY: usize = 16;

/// Gives kwok what kubelets need, and no more. It reports pods in the place of kubelets without being one, so it bypasses Berth's admission policies.
pub(crate) async fn apply_kwok_role(client: &Client) -> Result<(), Error> {
    let params = PatchParams::apply(MANAGER).force();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": KWOK_USER},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "update"]},
            {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "update", "delete"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
             "verbs": ["create", "get", "list", "watch", "patch", "update"]},
            {"apiGroups": ["berth.dev"], "resources": ["admissionpolicies"], "verbs": ["bypass"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": KWOK_USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": KWOK_USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KWOK_USER}],
    });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles
        .patch(KWOK_USER, &params, &Patch::Apply(role))
        .await
        .map_err(Error::api("apply kwok's role"))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings
        .patch(KWOK_USER, &params, &Patch::Apply(binding))
        .await
        .map_err(Error::api("bind kwok's role"))?;
    Ok(())
}

/// Creates the nodes that do not exist yet. Existing ones may belong to a tenant and are not touched.
pub(crate) async fn create_nodes(client: &Client, nodes: Vec<Node>) -> Result<(), Error> {
    let api: Api<Node> = Api::all(client.clone());
    let existing: Vec<String> = api
        .list_metadata(&ListParams::default())
        .await
        .map_err(Error::api("list nodes"))?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let missing = nodes.into_iter().filter(|node| !existing.contains(&node.name_any()));
    stream::iter(missing.map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |node| {
            let api = api.clone();
            async move {
                match api.create(&PostParams::default(), &node).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                    Err(error) => Err(Error::api(format!("create node {}", node.name_any()))(error)),
                    Ok(_) => Ok(()),
                }
            }
        })
        .await
}

/// Names of nodes of the plan that are not Ready.
pub(crate) async fn nodes_not_ready(client: &Client, plan: &NodePlan) -> Result<Vec<String>, Error> {
    let api: Api<Node> = Api::all(client.clone());
    let nodes = api
        .list(&ListParams::default())
        .await
        .map_err(Error::api("list nodes"))?;
    let ready = |node: &Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let ready: Vec<String> = nodes
        .iter()
        .filter(|node| ready(node))
        .map(ResourceExt::name_any)
        .collect();
    Ok(plan.names().into_iter().filter(|name| !ready.contains(name)).collect())
}

/// Whether pods can be created in the default namespace, which needs the controller manager.
pub(crate) async fn default_service_account_exists(client: &Client) -> Result<bool, Error> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    Ok(api
        .get_opt("default")
        .await
        .map_err(Error::api("get the default service account"))?
        .is_some())
}
