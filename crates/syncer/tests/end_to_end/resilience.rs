//! What holds when the syncer is killed and when an API server cannot be reached.

use crate::{
    objects::{create, eventually, settled},
    setup::{Clusters, Syncer, WORKLOADS},
};
use berth_api::{labels, pod_labels::host_key};
use berth_local::proxy::Proxy;
use berth_sync_rules::model::resource::Side;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    time::Duration,
};

/// Objects of each sort that are created; a third of them is changed, a third deleted.
const EACH: usize = 200;
const KINDS: usize = 3;
/// Time for which an API server cannot be reached: as long as it takes to write forty objects of each sort, one a second.
const CUT: Duration = Duration::from_secs(40);

fn object(sort: usize, index: usize) -> (String, Value) {
    let (name, other) = (format!("o-{index:04}"), format!("o-{:04}", index / 2));
    let object = match sort {
        0 => json!({"metadata": {"name": name}, "data": {"index": index.to_string()}}),
        1 => json!({"metadata": {"name": name}, "spec": {"selector": {"app": name}, "clusterIP": "None",
                    "ports": [{"port": 80}]}}),
        _ => json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {
                    "automountServiceAccountToken": index.is_multiple_of(2),
                    "containers": [{"name": "main", "image": "app:1", "envFrom": [{"configMapRef": {"name": other}}]}]}}),
    };
    (name, object)
}

/// A change that is carried to the host. Labels are only for pods; the host has them under another key.
fn change(sort: usize) -> Value {
    match sort {
        0 => json!({"data": {"changed": "yes"}}),
        1 => json!({"spec": {"ports": [{"port": 80, "name": "changed"}]}}),
        _ => json!({"metadata": {"labels": {"changed": "yes"}}}),
    }
}

/// Whether an object of the tenant or of the host has the [`change`].
fn is_changed(object: &impl Serialize) -> bool {
    let object = serde_json::to_value(object).unwrap();
    let labels = &object["metadata"]["labels"];
    [
        &object["data"]["changed"],
        &object["spec"]["ports"][0]["name"],
        &labels["changed"],
        &labels[&host_key("changed")],
    ]
    .iter()
    .any(|value| value.is_string())
}

/// Changes of a team to its objects: creates all of them, then changes a third and deletes another.
async fn write(tenant: &Client, sort: usize, index: usize, step: usize) {
    async fn act<K>(api: &Api<K>, sort: usize, index: usize, step: usize)
    where
        K: Debug + Clone + DeserializeOwned + Serialize,
    {
        let (name, object) = object(sort, index);
        match (step, index % 3) {
            (0, _) => drop(create(api, object).await),
            (1, 1) => {
                api.patch(&name, &PatchParams::default(), &Patch::Merge(change(sort)))
                    .await
                    .unwrap();
            }
            (1, 2) => drop(api.delete(&name, &DeleteParams::default()).await.unwrap()),
            _ => {}
        }
    }
    match sort {
        0 => act(&Api::<ConfigMap>::default_namespaced(tenant.clone()), sort, index, step).await,
        1 => act(&Api::<Service>::default_namespaced(tenant.clone()), sort, index, step).await,
        _ => act(&Api::<Pod>::default_namespaced(tenant.clone()), sort, index, step).await,
    }
}

/// By name in the tenant: its UID, and whether it [is changed](is_changed).
type HostObjects = BTreeMap<String, (String, bool)>;

async fn in_tenant<K>(clusters: &Clusters) -> BTreeMap<String, K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    let list = Api::<K>::all(clusters.tenant_admin.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    let key = |object: &K| format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    list.into_iter().map(|object| (key(&object), object)).collect()
}

async fn on_host<K>(clusters: &Clusters) -> HostObjects
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    let mine = ListParams::default().labels("berth.dev/managed-by=syncer,!berth.dev/pod-token");
    let list = Api::<K>::namespaced(clusters.host_admin.clone(), WORKLOADS)
        .list(&mine)
        .await
        .unwrap();
    let objects: Vec<K> = list.into_iter().collect();
    let count = objects.len();
    let seen: HostObjects = objects
        .iter()
        .map(|object| {
            let text = |key: &str| object.annotations()[key].clone();
            let name = format!("{}/{}", text(labels::ORIGIN_NAMESPACE), text(labels::ORIGIN_NAME));
            (name, (text(labels::ORIGIN_UID), is_changed(object)))
        })
        .collect();
    assert_eq!(seen.len(), count, "two host objects have the same origin");
    seen
}

/// The first thing in which the two sides differ.
async fn difference<K>(clusters: &Clusters, is_wanted: impl Fn(&str) -> bool) -> Option<String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    let wanted: HostObjects = in_tenant::<K>(clusters)
        .await
        .into_iter()
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, object)| {
            let seen = (object.uid().unwrap(), is_changed(&object));
            (name, seen)
        })
        .collect();
    let host = on_host::<K>(clusters).await;
    let missing = wanted.iter().find(|(name, seen)| host.get(*name) != Some(seen));
    let surplus = host.keys().find(|name| !wanted.contains_key(*name));
    match (missing, surplus) {
        (None, None) => None,
        (Some((name, seen)), _) => Some(format!("{} {name}: {seen:?} and {:?}", K::kind(&()), host.get(name))),
        (_, Some(name)) => Some(format!("{} {name} is on the host only", K::kind(&()))),
    }
}

/// The first difference between both sides: every object, no orphan, no duplicate, every status.
async fn disagreement(clusters: &Clusters) -> Option<String> {
    let pods = in_tenant::<Pod>(clusters).await;
    let tokens = ListParams::default().labels("berth.dev/pod-token");
    let tokens = clusters.host_api::<Secret>().list(&tokens).await.unwrap();
    let with_tokens: BTreeSet<&str> = tokens
        .iter()
        .map(|secret| secret.annotations()[labels::ORIGIN_UID].as_str())
        .collect();
    let mut used: BTreeSet<String> = BTreeSet::new();
    for (name, pod) in &pods {
        let text = serde_json::to_value(pod).unwrap();
        if text["status"]["phase"] != "Running" {
            return Some(format!("{name} is {}", text["status"]["phase"]));
        }
        let config = &text["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
        used.insert(format!("default/{}", config.as_str().unwrap_or_default()));
        if text["spec"]["volumes"].is_array() {
            if !with_tokens.contains(pod.metadata.uid.as_deref().unwrap()) {
                return Some(format!("{name} has no token"));
            }
            used.insert("default/kube-root-ca.crt".into());
        }
    }
    if let Some(difference) = difference::<Pod>(clusters, |_| true).await {
        return Some(difference);
    }
    if let Some(difference) = difference::<Service>(clusters, |name| name != "default/kubernetes").await {
        return Some(difference);
    }
    difference::<ConfigMap>(clusters, |name| used.contains(name)).await
}

/// Waits until both sides agree. Hundreds of pods take their time on a busy machine, so only a difference that stays
/// the same for long is a failure.
async fn agree(clusters: &Clusters) {
    let mut last = disagreement(clusters).await;
    while let Some(difference) = last.take() {
        tracing::info!(difference, "not yet");
        eventually(&format!("both sides agree; now {difference}"), async || {
            last = disagreement(clusters).await;
            last.as_ref() != Some(&difference)
        })
        .await;
    }
}

/// Every host object with its resource version.
async fn host_versions(clusters: &Clusters) -> BTreeMap<String, Option<String>> {
    async fn of<K>(clusters: &Clusters, all: &mut BTreeMap<String, Option<String>>)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
    {
        let list = Api::<K>::namespaced(clusters.host_admin.clone(), WORKLOADS)
            .list(&ListParams::default())
            .await;
        for object in list.unwrap() {
            all.insert(
                format!("{} {}", K::kind(&()), object.name_any()),
                object.resource_version(),
            );
        }
    }
    let mut all = BTreeMap::new();
    of::<Pod>(clusters, &mut all).await;
    of::<Service>(clusters, &mut all).await;
    of::<ConfigMap>(clusters, &mut all).await;
    of::<Secret>(clusters, &mut all).await;
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_syncer_killed_again_and_again_leaves_both_sides_equal() {
    let clusters = Clusters::start().await;
    let mut syncer = clusters.syncer().await;
    let tenant = clusters.tenant_admin.clone();
    let writer = tokio::spawn(async move {
        for step in 0..2 {
            stream::iter(0..EACH * KINDS)
                .for_each_concurrent(8, |index| {
                    let tenant = tenant.clone();
                    async move { write(&tenant, index % KINDS, index / KINDS, step).await }
                })
                .await;
        }
    });
    let mut kills = 0;
    // How much is written before the third kill depends on the machine; there is work left after the last write, too.
    while kills < 3 || !writer.is_finished() {
        tokio::time::sleep(Duration::from_millis(700 + 300 * (kills % 4))).await;
        syncer.kill().await;
        kills += 1;
        syncer = clusters.syncer().await;
    }
    writer.await.unwrap();
    agree(&clusters).await;
    settled("nothing changes on the host", async || host_versions(&clusters).await).await;
    syncer.stop().await;

    // A restart without changes writes nothing.
    let before = host_versions(&clusters).await;
    let syncer = clusters.syncer().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // What the garbage collector removes later is not a change by the syncer.
    let after = host_versions(&clusters).await;
    let written: Vec<_> = after
        .iter()
        .filter(|(name, version)| before.get(*name) != Some(*version))
        .collect();
    assert!(written.is_empty(), "{written:?}");
    assert_eq!(host_writes(&syncer), Vec::<String>::new());
    syncer.stop().await;
}

/// Writes to the host that a syncer has made so far.
fn host_writes(syncer: &Syncer) -> Vec<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    syncer.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let is_write = |line: &&str| {
        line.contains("api_call_seconds_count{side=\"host\"")
            && !["get", "list"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    };
    text.lines().filter(is_write).map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_network_partition_are_synced_afterwards() {
    let clusters = Clusters::start().await;
    let server = |kubeconfig: &str| {
        let line = kubeconfig.lines().find(|line| line.contains("server:")).unwrap();
        line.split_once("https://")
            .unwrap()
            .1
            .trim_matches(['"', ' '])
            .to_owned()
    };
    let kubeconfigs = [&clusters.host, &clusters.tenant].map(|cluster| cluster.kubeconfig_for("x", &[]).unwrap());
    let host = Proxy::to(server(&kubeconfigs[0])).await.unwrap();
    let tenant = Proxy::to(server(&kubeconfigs[1])).await.unwrap();
    let change = |side: Side, kubeconfig: String| {
        let proxy = if side == Side::Host { &host } else { &tenant };
        kubeconfig.replace(&server(&kubeconfig), &proxy.address())
    };
    let syncer = clusters.syncer_by(&change).await;
    for (cut, first) in [(&host, 0), (&tenant, 60)] {
        for index in first..first + 10 {
            for sort in 0..KINDS {
                write(&clusters.tenant_admin, sort, index, 0).await;
            }
        }
        agree(&clusters).await;
        cut.cut(true);
        let until = tokio::time::Instant::now() + CUT;
        let mut index = first + 10;
        while tokio::time::Instant::now() < until {
            for sort in 0..KINDS {
                write(&clusters.tenant_admin, sort, index, 0).await;
                write(&clusters.tenant_admin, sort, index - 10, 1).await;
            }
            index = (index + 1).min(first + 50);
            if index == first + 50 {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // Meanwhile a host pod is evicted, which must be reported to the tenant.
        let victim = format!("default/o-{:04}", first + 3);
        let pods = Api::<Pod>::namespaced(clusters.host_admin.clone(), WORKLOADS);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let text = |key: &str| pod.annotations()[key].clone();
            if format!("{}/{}", text(labels::ORIGIN_NAMESPACE), text(labels::ORIGIN_NAME)) == victim {
                pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
            }
        }
        tokio::time::sleep_until(until).await;
        cut.cut(false);
        let tenants: Api<Pod> = Api::default_namespaced(clusters.tenant_admin.clone());
        let evicted = format!("o-{:04}", first + 3);
        // A syncer that has to list everything anew does not know who removed it.
        eventually("the evicted pod is gone, or has failed", async || {
            match tenants.get_opt(&evicted).await.unwrap() {
                Some(pod) => pod.status.unwrap().phase.as_deref() == Some("Failed"),
                None => true,
            }
        })
        .await;
        // One that does know deletes it, after it has reported that it has failed: that may be now.
        let deleted = tenants.delete(&evicted, &DeleteParams::default()).await;
        assert!(
            deleted.as_ref().map_or_else(
                |error| matches!(error, kube::Error::Api(status) if status.code == 404),
                |_| true
            ),
            "{deleted:?}"
        );
        agree(&clusters).await;
    }
    syncer.stop().await;
}
