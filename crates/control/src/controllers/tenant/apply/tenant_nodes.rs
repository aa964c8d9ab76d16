//! Publishing `TenantNodes`.

use super::{
    super::{
        build::{
            host_objects::tenant_labels,
            tenant_nodes::{Source, tenant_view},
        },
        context::TenantContext,
        fetch::ObservedNodes,
        target::Tenant,
    },
    Accepted,
};
use crate::{
    apply::{is_status, is_too_large, optional},
    error::{FirstError, ReconcileError, api},
    published_nodes::{Digest, PublishedNode},
};
use berth_api::{NodeMode, TenantNode, TenantNodeSpec, labels};
use berth_node_lifecycle::{
    Assignment,
    devices::Slice,
    node,
    pod_requests::{self, Requests},
};
use berth_runtime::watched::Watched;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// The status of a `TenantNode` ([`TenantNodeStatus`](berth_api::TenantNodeStatus)), with the slices as the text that drivers wrote.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PublishedStatus {
    #[serde(skip_serializing_if = "Value::is_null")]
    node: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resource_slices: Vec<PublishedSlice>,
}

#[derive(Debug, Serialize)]
struct PublishedSlice {
    name: String,
    #[serde(serialize_with = "serialize_spec")]
    spec: Arc<Slice>,
}

fn serialize_spec<S: Serializer>(slice: &Slice, serializer: S) -> Result<S::Ok, S::Error> {
    let spec: &RawValue = serde_json::from_str(slice.spec()).map_err(S::Error::custom)?;
    spec.serialize(serializer)
}

/// What is applied as the status of a `TenantNode`. As a tree of JSON it would take fifty times as much.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusPatch<'a> {
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
    metadata: NamedObject<'a>,
    status: &'a PublishedStatus,
}

#[derive(Debug, Serialize)]
struct NamedObject<'a> {
    name: &'a str,
}

/// Updates the `TenantNodes` in the control-plane namespace from the host's nodes, and deletes those of nodes that are no
/// longer the tenant's. Writes only what differs.
///
/// # Errors
/// The host refuses or does not answer. A node that is too large to be published keeps no other one back.
pub(super) async fn publish_nodes(
    context: &TenantContext,
    accepted: &Accepted,
    nodes: &ObservedNodes,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let namespace = tenant.id.control_plane_namespace();
    // The answers are as large as the objects, and are not parsed.
    let published: Api<Watched<TenantNode>> = Api::namespaced(context.client.clone(), &namespace);
    let all = context.stores.tenant_nodes.state().into_iter();
    let mut current: BTreeMap<String, Arc<PublishedNode>> = all
        .filter(|node| node.namespace().as_deref() == Some(&namespace))
        .map(|node| (node.name_any(), node))
        .collect();
    let mut too_large = FirstError::<ReconcileError>::default();
    for (node, source) in visible_nodes(context, accepted, nodes) {
        let name = node.name_any();
        let (spec, status) = build_view(context, &node, &source);
        let before = current.remove(&name);
        match apply_node(&published, tenant, &name, before.as_deref(), spec, &status).await {
            Err(blocked @ ReconcileError::Blocked { .. }) => {
                too_large.note(Err::<(), _>(blocked));
            }
            applied => applied?,
        }
    }
    for name in current.keys() {
        match optional(published.delete(name, &DeleteParams::default()).await) {
            Err(error) if !is_status(&error, 409) => return Err(api("delete a TenantNode")(error)),
            _ => {}
        }
    }
    too_large.into_result()
}

/// The nodes that serve the tenant alone, and the shared ones of its groups.
fn visible_nodes(context: &TenantContext, accepted: &Accepted, nodes: &ObservedNodes) -> Vec<(Arc<Node>, Source)> {
    let own = nodes.owned.iter().filter_map(|node| {
        let record = Assignment::read(node).filter(|record| record.state.runs_tenant_pods())?;
        Some((Arc::clone(node), Source::Owned(Box::new(record))))
    });
    let pools = &accepted.settings.sync.shared_nodes.pools;
    let groups = &accepted.tenant.cluster.spec.node_groups;
    let shared = context.stores.nodes.state().into_iter().filter_map(|node| {
        let pool = node::shared_pool_of(&node).filter(|pool| pools.contains(pool))?.clone();
        let group = groups
            .iter()
            .find(|group| group.mode == NodeMode::Shared && group.pool_name == pool);
        let group = group.map_or_else(|| pool.clone(), |group| group.name.clone());
        Some((node, Source::Shared { pool, group }))
    });
    own.chain(shared).collect()
}

/// What the tenant sees of a node, without the resources that the platform's own pods use.
fn build_view(context: &TenantContext, node: &Node, source: &Source) -> (TenantNodeSpec, PublishedStatus) {
    let pools = context.stores.pools.state();
    let pool = pools.iter().find(|pool| pool.name_any() == source.pool());
    let topology_key = pool.and_then(|pool| pool.spec.topology_key.as_deref());
    let name = node.name_any();
    let mut used = Requests::new();
    for pod in context.stores.usage.of(&name).values() {
        pod_requests::add(&mut used, &pod.requests);
    }
    let slices = match source {
        Source::Owned(_) => context.stores.slices.of(&name),
        Source::Shared { .. } => BTreeMap::new(),
    };
    let slices = slices.into_iter().map(|(name, spec)| PublishedSlice { name, spec });
    let (spec, mut status) = tenant_view(node, source, topology_key);
    pod_requests::subtract(&mut status.node, &used);
    let published = PublishedStatus {
        node: status.node,
        resource_slices: slices.collect(),
    };
    (spec, published)
}

/// Why the status of a node is not published. Drivers decide how many devices it has, in objects of 1.5 MiB each, which are one here.
fn describe_too_large(name: &str, status: &PublishedStatus) -> ReconcileError {
    ReconcileError::Blocked {
        reason: "NodeTooLarge",
        message: format!(
            "the host's API server does not store what the tenant would see of node {name}, because it is too large: the status of the Node, \
             and {} ResourceSlices that drivers publish for it. The tenant sees the node as it was published last. Let the drivers publish \
             fewer devices or attributes of devices for it",
            status.resource_slices.len()
        ),
    }
}

/// Applies spec and status of a `TenantNode` where they differ from `before`. The error is [`ReconcileError::Blocked`] if its status is too large.
async fn apply_node(
    published: &Api<Watched<TenantNode>>,
    tenant: &Tenant,
    name: &str,
    before: Option<&PublishedNode>,
    spec: TenantNodeSpec,
    status: &PublishedStatus,
) -> Result<(), ReconcileError> {
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    if before.is_none_or(|before| before.spec != spec) {
        let mut wanted = TenantNode::new(name, spec);
        wanted.metadata.labels = Some(tenant_labels(&tenant.cluster, &tenant.id));
        published
            .patch(name, &params, &Patch::Apply(&wanted))
            .await
            .map_err(api("publish a node"))?;
    }
    let digest = Digest::of(status).map_err(|error| api("publish a node's status")(kube::Error::SerdeError(error)))?;
    if before.and_then(|before| before.status) != Some(digest) {
        let body = StatusPatch {
            api_version: TenantNode::api_version(&()),
            kind: TenantNode::kind(&()),
            metadata: NamedObject { name },
            status,
        };
        published
            .patch_status(name, &params, &Patch::Apply(&body))
            .await
            .map_err(|error| {
                if is_too_large(&error) {
                    describe_too_large(name, status)
                } else {
                    api("publish a node's status")(error)
                }
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{NodeResourceSlice, TenantNodeStatus};
    use serde_json::json;

    #[test]
    fn what_is_published_is_the_status_of_the_api() {
        let spec = json!({"driver": "gpu.example.com", "nodeName": "n1", "future": {"b": 1, "a": [null, "<"]}});
        let (_, slice) = Slice::read(&spec.to_string()).unwrap();
        let node = json!({"capacity": {"cpu": "8"}});
        let published = PublishedStatus {
            node: node.clone(),
            resource_slices: vec![PublishedSlice {
                name: "s".into(),
                spec: Arc::new(slice),
            }],
        };
        let expected = TenantNodeStatus {
            node,
            resource_slices: vec![NodeResourceSlice { name: "s".into(), spec }],
        };
        let text = serde_json::to_string(&published).unwrap();
        assert_eq!(serde_json::from_str::<TenantNodeStatus>(&text).unwrap(), expected);
        assert_eq!(Digest::of(&published).unwrap(), Digest::of(&expected).unwrap());
        let empty = PublishedStatus {
            node: Value::Null,
            resource_slices: Vec::new(),
        };
        assert_eq!(serde_json::to_string(&empty).unwrap(), "{}");
    }
}
