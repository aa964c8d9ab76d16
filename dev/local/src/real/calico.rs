//! What Calico needs in the host cluster: its definitions, a few objects, and the rights of its two programs.

use std::fs;
use std::path::Path;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Error;

/// Field manager of the objects that are applied here.
const MANAGER: &str = "berth-local";
/// User name of Felix, the agent on each node.
pub(super) const FELIX_USER: &str = "calico-felix";
/// User name of the network plugin.
pub(super) const CNI_USER: &str = "calico-cni";
/// Concurrent requests.
const CONCURRENCY: usize = 8;

/// Applies the definitions in `crds` (a folder of YAML files), and the objects without which Felix does not start.
pub(super) async fn apply(client: &Client, crds: &Path) -> Result<(), Error> {
    let definitions = read(crds)?;
    let names: Vec<String> = definitions
        .iter()
        .filter_map(|definition| definition["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    apply_all(client, definitions).await?;
    for name in &names {
        wait_until_established(client, name).await?;
    }
    apply_all(client, objects()).await
}

fn read(dir: &Path) -> Result<Vec<Value>, Error> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    };
    let entries = fs::read_dir(dir).map_err(failed("list", dir))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| Error::File {
            action: "parse",
            path: path.clone(),
            source: std::io::Error::other(error.to_string()),
        })?;
        all.extend(documents.into_iter().filter(Value::is_object));
    }
    Ok(all)
}

/// Applies objects of any kind, several at a time.
pub(super) async fn apply_all(client: &Client, objects: Vec<Value>) -> Result<(), Error> {
    stream::iter(objects)
        .map(|object| apply_one(client, object))
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}

async fn apply_one(client: &Client, object: Value) -> Result<(), Error> {
    let failed = |source| Error::api("apply an object of Calico")(kube::Error::SerdeError(source));
    let mut object: DynamicObject = serde_json::from_value(object).map_err(failed)?;
    // Files of a release may contain one.
    object.metadata.creation_timestamp = None;
    let (name, types) = (object.name_any(), object.types.clone().unwrap_or_default());
    let resource = GroupVersionKind::try_from(&types)
        .map(|kind| ApiResource::from_gvk(&kind))
        .map_err(|error| Error::Kubeconfig(error.to_string()))?;
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
        .await
        .map_err(Error::api(format!("apply {} {name}", types.kind)))?;
    Ok(())
}

/// Waits until the API server serves a definition.
async fn wait_until_established(client: &Client, name: &str) -> Result<(), Error> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for _ in 0..600 {
        let definition = api
            .get(name)
            .await
            .map_err(Error::api(format!("get definition {name}")))?;
        let conditions = definition
            .status
            .into_iter()
            .flat_map(|status| status.conditions.unwrap_or_default());
        if conditions
            .into_iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
        {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Err(Error::Node {
        line: format!("serve {name}"),
        why: "the API server does not serve it half a minute after it was applied".into(),
    })
}

fn objects() -> Vec<Value> {
    let calico = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let tier = |name: &str, order: Option<u32>, action: &str| {
        calico("Tier", name, json!({"order": order, "defaultAction": action}))
    };
    let mut objects = vec![
        calico(
            "ClusterInformation",
            "default",
            json!({"datastoreReady": true, "clusterType": "k8s", "calicoVersion": "v3.31.0"}),
        ),
        // In this order: policies of the platform, of namespaces, and the default ones.
        tier("adminnetworkpolicy", Some(1_000), "Pass"),
        tier("default", Some(1_000_000), "Deny"),
        tier("baselineadminnetworkpolicy", Some(10_000_000), "Pass"),
    ];
    let calico_group = "crd.projectcalico.org";
    let read = ["get", "list", "watch"];
    objects.extend(role(
        FELIX_USER,
        &json!([
            {"apiGroups": [""], "resources": ["pods", "namespaces", "serviceaccounts", "nodes", "services"], "verbs": read},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch", "update"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
            {"apiGroups": ["policy.networking.k8s.io"], "resources": ["*"], "verbs": read},
            {"apiGroups": [calico_group], "resources": ["*"], "verbs": read},
            {"apiGroups": [calico_group],
             "resources": ["tiers", "clusterinformations", "felixconfigurations", "caliconodestatuses"],
             "verbs": ["create", "update"]},
        ]),
    ));
    objects.extend(role(
        CNI_USER,
        &json!([
            {"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
            {"apiGroups": [calico_group], "resources": ["*"], "verbs": ["get", "list"]},
        ]),
    ));
    objects
}

/// A ClusterRole and its binding to the user of the same name.
pub(super) fn role(user: &str, rules: &Value) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules,
        }),
        bind(user, user),
    ]
}

/// Binds a ClusterRole to a user.
pub(super) fn bind(user: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    })
}
