//! Uninstallation. Before the chart is deleted: do objects of tenants remain? Control deletes them; without it, namespaces,
//! nodes and keys of tenants would stay. After the chart was deleted: deletes what it does not list.

use super::{MANAGED_BY, PART_OF};
use crate::{
    apply::{is_status, optional},
    finalizers,
};
use berth_api::{
    Organization, Project, TenantCluster, TenantSnapshot, labels,
    system::{CONTROL, NAMESPACE},
};
use berth_runtime::watched::{Watched, for_each};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Secret},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Names per kind in the message.
const MAX_NAMES: usize = 10;
/// How often objects that are changed meanwhile are read again.
const FINALIZER_TRIES: usize = 5;

/// Objects of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingObjects {
    /// `namespace/name` of TenantClusters.
    pub tenants: Vec<String>,
    /// Nodes that are assigned to a tenant, reserved for one or being recycled.
    pub nodes: Vec<String>,
    /// Namespaces of tenants.
    pub namespaces: Vec<String>,
    /// `namespace/name` of TenantSnapshots that control still has to let go.
    pub snapshots: Vec<String>,
}

impl RemainingObjects {
    /// What remains and what to do; `None` if nothing remains.
    pub fn error_message(&self) -> Option<String> {
        let parts: Vec<String> = [
            ("TenantClusters", &self.tenants),
            ("nodes that are not free (state)", &self.nodes),
            ("namespaces of tenants", &self.namespaces),
            ("TenantSnapshots", &self.snapshots),
        ]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| {
            let more = names.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let listed = names[..names.len().min(MAX_NAMES)].join(", ");
            format!("{} {what}: {listed}{more}", names.len())
        })
        .collect();
        let nodes = if self.nodes.is_empty() {
            String::new()
        } else {
            format!(
                " and every node is clean and free (kubectl get nodes -l {state}; for one in quarantine: kubectl annotate node \
                 NAME {release}=yes)",
                state = labels::NODE_STATE,
                release = labels::RELEASE_QUARANTINE
            )
        };
        let snapshots = if self.snapshots.is_empty() {
            String::new()
        } else {
            format!(
                "; delete every TenantSnapshot with its file (kubectl delete tenantsnapshots --all --all-namespaces), or remove its \
                 finalizer {}, which keeps the file",
                labels::SNAPSHOT_FINALIZER
            )
        };
        (!parts.is_empty()).then(|| {
            format!(
                "Berth is not uninstalled, because objects of tenants remain: {}. Delete every TenantCluster and wait until \
                 it is gone (kubectl delete tenantclusters --all --all-namespaces){nodes}{snapshots}, then uninstall again. To leave \
                 all objects of tenants behind instead, run `helm upgrade --reuse-values --set uninstall.force=true` first",
                parts.join("; ")
            )
        })
    }
}

/// Finds all objects of tenants.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn find_remaining_objects(client: &Client) -> kube::Result<RemainingObjects> {
    let tenants: Api<TenantCluster> = Api::all(client.clone());
    // Without the definition there are no TenantClusters.
    let tenants = optional(tenants.list(&ListParams::default()).await)?;
    let tenants = tenants.into_iter().flatten();
    let names = |list: Vec<String>| {
        let mut list = list;
        list.sort();
        list
    };
    let mut in_use = Vec::new();
    for_each_node(client, |name, node| {
        in_use.extend(describe_in_use(&name, node.as_ref()));
    })
    .await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespaces = namespaces
        .list_metadata(&ListParams::default().labels(&format!("{},{}", labels::ROLE, labels::TENANT)))
        .await?;
    let snapshots: Api<TenantSnapshot> = Api::all(client.clone());
    let snapshots = optional(snapshots.list_metadata(&ListParams::default()).await)?;
    // Without control nothing removes the finalizer. Those that have none are left on purpose, or have no file.
    let snapshots = { snapshots.into_iter().flatten() }
        .filter(|snapshot| finalizers::is_set(snapshot, labels::SNAPSHOT_FINALIZER))
        .map(|snapshot| format!("{}/{}", snapshot.namespace().unwrap_or_default(), snapshot.name_any()));
    Ok(RemainingObjects {
        tenants: names(
            tenants
                .map(|tenant| format!("{}/{}", tenant.namespace().unwrap_or_default(), tenant.name_any()))
                .collect(),
        ),
        nodes: names(in_use),
        namespaces: names(namespaces.iter().map(ResourceExt::name_any).collect()),
        snapshots: names(snapshots.collect()),
    })
}

/// The name of a node with any part of an assignment, and its state: without Berth nothing removes it. One that cannot be read may have an assignment.
fn describe_in_use(name: &str, node: Option<&PartialObjectMeta<Node>>) -> Option<String> {
    let state = node.and_then(state_of);
    let is_in_use = state.is_some() || node.is_none_or(|node| node.labels().contains_key(labels::TENANT));
    is_in_use.then(|| format!("{name} ({})", state.map_or("unknown", String::as_str)))
}

/// The state of a node with an assignment.
fn state_of(node: &PartialObjectMeta<Node>) -> Option<&String> {
    let state = node.annotations().get(labels::NODE_STATE);
    state.or_else(|| node.labels().get(labels::NODE_STATE))
}

/// Removes the finalizer of Organizations and Projects that control would remove now: it may have to do so when it cannot any more, and
/// then the definitions would stay. For a host without tenants.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn remove_quota_finalizers(client: &Client) -> kube::Result<()> {
    remove_finalizers(&Api::<Project>::all(client.clone())).await?;
    remove_finalizers(&Api::<Organization>::all(client.clone())).await
}

async fn remove_finalizers<K>(api: &Api<K>) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    for _ in 0..FINALIZER_TRIES {
        // Without the definition there are none.
        let objects = optional(api.list(&ListParams::default()).await)?;
        let objects = objects.into_iter().flatten();
        let mut is_changed = false;
        for object in objects.filter(|object| finalizers::is_set(object, labels::QUOTA_FINALIZER)) {
            match finalizers::remove(api, &object, labels::QUOTA_FINALIZER).await {
                Err(error) if is_status(&error, 409) => is_changed = true,
                Err(error) if !is_status(&error, 404) => return Err(error),
                _ => {}
            }
        }
        if !is_changed {
            return Ok(());
        }
    }
    // Control changes them, and removes the finalizer itself.
    Ok(())
}

/// Removes what the validation of nodes has found, which stays on free nodes: without Berth nothing renews it. For a host whose nodes are free.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn remove_node_risks(client: &Client) -> kube::Result<()> {
    let has_risks = |node: &PartialObjectMeta<Node>| node.annotations().contains_key(labels::NODE_RISKS);
    change_nodes(client, has_risks, &json!({"annotations": {labels::NODE_RISKS: null}})).await
}

/// Removes the labels and annotations that say that tenants share a node, or have shared it: the pools are deleted, and without Berth nothing else removes
/// them. A node with an assignment stays as it is.
async fn remove_shared_pools(client: &Client) -> kube::Result<()> {
    let is_marked = |node: &PartialObjectMeta<Node>| {
        let (labels, annotations) = (node.labels(), node.annotations());
        let was_shared = annotations.contains_key(labels::PREVIOUS_SHARED_POOL);
        state_of(node).is_none() && (was_shared || labels.contains_key(labels::SHARED_POOL))
    };
    let gone = |keys: &[&str]| -> Value { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
    let without = json!({
        "labels": gone(&[labels::SHARED_POOL, labels::POOL]),
        "annotations": gone(&[labels::PREVIOUS_SHARED_POOL, labels::SHARED_UNTIL, labels::REASON]),
    });
    change_nodes(client, is_marked, &without).await
}

/// Gives each node to `take`: its name, and its metadata if that can be read. The Jobs that call this have little memory, and hosts have thousands of nodes:
/// they are read page by page.
async fn for_each_node(
    client: &Client,
    mut take: impl FnMut(String, Option<PartialObjectMeta<Node>>),
) -> kube::Result<()> {
    let nodes: Api<Watched<PartialObjectMeta<Node>>> = Api::all(client.clone());
    for_each(&nodes, ListParams::default(), |node| {
        take(node.name_any(), node.readable());
    })
    .await
}

/// Changes the metadata of some nodes. One that is gone needs no change.
async fn change_nodes(
    client: &Client,
    is_changed: impl Fn(&PartialObjectMeta<Node>) -> bool,
    metadata: &Value,
) -> kube::Result<()> {
    let mut names = Vec::new();
    let take = |name: String, node: Option<PartialObjectMeta<Node>>| {
        if node.is_some_and(|node| is_changed(&node)) {
            names.push(name);
        }
    };
    for_each_node(client, take).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": metadata}));
    for name in names {
        let patched = nodes.patch_metadata(&name, &PatchParams::default(), &patch).await;
        optional(patched)?;
    }
    Ok(())
}

/// What is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// PriorityClasses of TenantClasses, and labels and annotations of shared nodes, because classes and pools are kept.
    pub classes: bool,
    /// The datastore's certificates, because its volumes are kept.
    pub keys: bool,
}

/// Why objects were not deleted.
#[derive(Debug, thiserror::Error)]
pub enum CleanUpError {
    /// Berth is not being uninstalled.
    #[error(
        "nothing is deleted, because the Deployment {NAMESPACE}/{CONTROL} exists: this is for the end of `helm uninstall`. Who applies what \
         `helm template` renders needs its flag --no-hooks"
    )]
    Installed,
    /// The host refuses or does not answer.
    #[error(transparent)]
    Host(Box<kube::Error>),
}

impl From<kube::Error> for CleanUpError {
    fn from(error: kube::Error) -> Self {
        Self::Host(Box::new(error))
    }
}

/// Whether control is installed and not being deleted, as it is for a while with `helm uninstall --cascade foreground`.
async fn is_installed(client: &Client) -> kube::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let control = optional(deployments.get(CONTROL).await)?;
    Ok(control.is_some_and(|control| control.metadata.deletion_timestamp.is_none()))
}

/// Deletes objects that control and [`certificates`](super::certificates) created and the chart does not list. The Job that calls this is a hook:
/// tools that know no hooks of Helm run it when they install Berth, and would delete the authority of a datastore that is in use.
///
/// # Errors
/// Berth is installed, or the host refuses or does not answer.
pub async fn delete_unlisted_objects(client: &Client, keep: Keep) -> Result<(), CleanUpError> {
    if is_installed(client).await? {
        return Err(CleanUpError::Installed);
    }
    if !keep.keys {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let ours = format!("{}={},{}={}", PART_OF.0, PART_OF.1, MANAGED_BY.0, MANAGED_BY.1);
        secrets
            .delete_collection(&DeleteParams::default(), &ListParams::default().labels(&ours))
            .await?;
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    optional(leases.delete(CONTROL, &DeleteParams::default()).await)?;
    if !keep.classes {
        let priorities: Api<PriorityClass> = Api::all(client.clone());
        let of_classes = ListParams::default().labels(labels::CLASS);
        priorities
            .delete_collection(&DeleteParams::default(), &of_classes)
            .await?;
        remove_shared_pools(client).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LATE, Script, ScriptedApi, make_unreadable};

    const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/berth-system/deployments/berth-control";
    const AUTHORITY: &str = "/api/v1/namespaces/berth-system/secrets/berth-etcd-ca";

    /// A host with the authority of the datastore, and with control if its metadata is given.
    fn host(control: Option<Value>) -> ScriptedApi {
        let host = ScriptedApi::new("host", &Script::default());
        host.insert(AUTHORITY, json!({"metadata": {"name": "berth-etcd-ca"}}));
        if let Some(metadata) = control {
            host.insert(DEPLOYMENT, json!({"metadata": metadata, "spec": {}}));
        }
        host
    }

    /// `helm template | kubectl apply` runs the hooks of the chart as well.
    #[tokio::test]
    async fn nothing_is_deleted_while_control_is_installed() {
        let host = host(Some(json!({"name": "berth-control"})));
        let refusal = delete_unlisted_objects(&host.client(), Keep::default())
            .await
            .unwrap_err();
        assert!(refusal.to_string().contains("--no-hooks"), "{refusal}");
        assert!(host.get(AUTHORITY).is_some());
    }

    #[tokio::test]
    async fn without_control_or_once_it_is_being_deleted_its_objects_are_deleted() {
        let deleted = json!({"name": "berth-control", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        for control in [None, Some(deleted)] {
            let host = host(control);
            delete_unlisted_objects(&host.client(), Keep::default()).await.unwrap();
            assert!(host.get(AUTHORITY).is_none());
        }
    }

    #[tokio::test]
    async fn keys_are_kept_if_the_volumes_are() {
        let host = host(None);
        let keep = Keep {
            keys: true,
            ..Keep::default()
        };
        delete_unlisted_objects(&host.client(), keep).await.unwrap();
        assert!(host.get(AUTHORITY).is_some());
    }

    #[tokio::test]
    async fn risks_that_were_found_do_not_stay_on_nodes() {
        let host = host(None);
        let path = |name: &str| format!("/api/v1/nodes/{name}");
        for (name, annotations) in [
            ("risky", json!({labels::NODE_RISKS: "criu", "example.com/rack": "r1"})),
            ("new", json!({"example.com/rack": "r2"})),
        ] {
            host.insert(
                &path(name),
                json!({"metadata": {"name": name, "annotations": annotations}}),
            );
        }
        remove_node_risks(&host.client()).await.unwrap();
        let annotations = |name: &str| host.get(&path(name)).unwrap()["metadata"]["annotations"].clone();
        assert_eq!(annotations("risky"), json!({"example.com/rack": "r1"}));
        assert_eq!(annotations("new"), json!({"example.com/rack": "r2"}));
    }

    #[tokio::test]
    async fn without_the_definitions_no_node_says_that_tenants_share_it() {
        let path = |name: &str| format!("/api/v1/nodes/{name}");
        let assigned = json!({"berth.dev/state": "Scrubbing", labels::POOL: "h100"});
        let was_shared = json!({labels::PREVIOUS_SHARED_POOL: "cpu", labels::SHARED_UNTIL: "2026-01-01T00:00:00Z", labels::REASON: "r"});
        for classes in [true, false] {
            let host = host(None);
            for (name, labels, annotations) in [
                (
                    "shared",
                    json!({labels::SHARED_POOL: "cpu", labels::POOL: "cpu", "cpu": "yes"}),
                    json!({}),
                ),
                ("left", json!({"cpu": "no"}), was_shared.clone()),
                ("assigned", assigned.clone(), was_shared.clone()),
            ] {
                let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
                host.insert(&path(name), json!({"metadata": metadata}));
            }
            let keep = Keep {
                classes,
                ..Keep::default()
            };
            delete_unlisted_objects(&host.client(), keep).await.unwrap();
            let metadata = |name: &str| host.get(&path(name)).unwrap()["metadata"].clone();
            let is_marked = !metadata("shared")["labels"][labels::SHARED_POOL].is_null();
            assert_eq!(
                is_marked, classes,
                "a later installation goes on with the pools that are kept"
            );
            if !classes {
                assert_eq!(metadata("shared")["labels"], json!({"cpu": "yes"}));
                assert_eq!(metadata("left")["annotations"], json!({}));
            }
            assert_eq!(metadata("left")["labels"], json!({"cpu": "no"}));
            assert_eq!(metadata("assigned")["labels"], assigned);
            assert_eq!(metadata("assigned")["annotations"], was_shared);
        }
    }

    #[test]
    fn without_remaining_objects_there_is_no_message() {
        assert_eq!(RemainingObjects::default().error_message(), None);
    }

    #[test]
    fn the_message_lists_remaining_objects_up_to_a_limit() {
        let remaining = RemainingObjects {
            tenants: (0..12).map(|n| format!("team/t{n}")).collect(),
            nodes: vec!["gpu-1 (Scrubbing)".into()],
            ..RemainingObjects::default()
        };
        let text = remaining.error_message().unwrap();
        assert!(text.contains("12 TenantClusters: team/t0,"), "{text}");
        assert!(
            text.contains("team/t9 and 2 more; 1 nodes that are not free (state): gpu-1 (Scrubbing)."),
            "{text}"
        );
        assert!(text.contains("every node is clean and free"), "{text}");
        assert!(!text.contains("namespaces of tenants"), "{text}");
    }

    #[tokio::test]
    async fn nodes_with_any_part_of_an_assignment_are_named_with_their_state() {
        let host = host(None);
        for (name, labels, annotations) in [
            (
                "both",
                json!({labels::NODE_STATE: "a", labels::TENANT: "t"}),
                json!({labels::NODE_STATE: "Draining"}),
            ),
            ("label", json!({labels::NODE_STATE: "Scrubbing"}), json!({})),
            ("tenant", json!({labels::TENANT: "t"}), json!({})),
            (
                "free",
                json!({"example.com/rack": "r1"}),
                json!({labels::NODE_RISKS: "criu"}),
            ),
        ] {
            let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
            let mut node = json!({"metadata": metadata});
            // A user who is root on a node can write its managed fields.
            make_unreadable(&mut node);
            host.insert(&format!("/api/v1/nodes/{name}"), node);
        }
        // What clients correct is read. Nothing that API servers store today is of another type.
        let late = json!({"name": "late", "deletionTimestamp": LATE});
        host.insert("/api/v1/nodes/late", json!({"metadata": late}));
        let odd = json!({"name": "unreadable", "annotations": "none"});
        host.insert("/api/v1/nodes/unreadable", json!({"metadata": odd}));
        let remaining = find_remaining_objects(&host.client()).await.unwrap();
        let expected = "both (Draining), label (Scrubbing), tenant (unknown), unreadable (unknown)";
        assert_eq!(remaining.nodes.join(", "), expected);
    }

    #[tokio::test]
    async fn snapshots_that_only_control_can_let_go_are_named() {
        let host = host(None);
        let snapshot = |name: &str, finalizers: &[&str]| {
            // All namespaces are one collection.
            let path = format!("/apis/berth.dev/v1alpha1/tenantsnapshots/{name}");
            host.insert(
                &path,
                json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
                    "metadata": {"name": name, "namespace": "team", "finalizers": finalizers},
                    "spec": {"tenantClusterName": "vision"}}),
            );
        };
        snapshot("nightly", &[labels::SNAPSHOT_FINALIZER]);
        snapshot("kept", &[]);
        let remaining = find_remaining_objects(&host.client()).await.unwrap();
        let expected = RemainingObjects {
            snapshots: vec!["team/nightly".into()],
            ..RemainingObjects::default()
        };
        assert_eq!(remaining, expected);
        let text = remaining.error_message().unwrap();
        assert!(
            text.contains("1 TenantSnapshots: team/nightly.")
                && text.contains("kubectl delete tenantsnapshots --all --all-namespaces")
                && text.contains(labels::SNAPSHOT_FINALIZER),
            "{text}"
        );
    }
}
