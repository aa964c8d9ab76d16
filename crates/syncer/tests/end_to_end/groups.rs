//! Groups of pods that start together (PodGroup of `scheduling.k8s.io`), on hosts whose scheduler knows them.

use crate::{
    objects::{Objects, both, create, eventually, is_phase, origin, pod},
    pods_of_a_class,
    setup::{Clusters, OLDER_VERSION, Setup},
};
use berth_api::{
    SyncPolicy, labels,
    sync_policy::{PriorityBand, SyncedKind},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

/// The finalizer that API servers put on each group.
const PROTECTION: &str = "scheduling.k8s.io/podgroup-protection";
const GROUP: &str = "ring";

/// The rules of a class with groups of a version, and with a band of priorities.
fn policy(version: &str) -> SyncPolicy {
    let mut policy = SyncPolicy {
        kinds: vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: version.into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            fields: vec!["spec".into()],
            status: true,
            labels: vec!["tier".into()],
            ..SyncedKind::default()
        }],
        ..SyncPolicy::default()
    };
    policy.pods.priority = Some(PriorityBand {
        lowest: 0,
        highest: 1100,
    });
    policy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_starts_together() {
    let setup = Setup {
        policy: policy("v1beta1"),
        ..Setup::default()
    };
    Box::pin(live("v1beta1", setup)).await;
}

/// There, groups have no priorities by default, and only labels and annotations of one can change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_with_older_versions_starts_together() {
    let setup = Setup {
        policy: policy("v1alpha2"),
        host_version: OLDER_VERSION.into(),
        tenant_version: OLDER_VERSION.into(),
        ..Setup::default()
    };
    Box::pin(live("v1alpha2", setup)).await;
}

async fn live(version: &str, setup: Setup) {
    let is_older = setup.host_version == OLDER_VERSION;
    let clusters = Clusters::start_as(setup).await;
    pods_of_a_class::make_priority_classes(&clusters).await;
    let syncer = clusters.syncer().await;
    let (here, there) = both(&clusters, "scheduling.k8s.io", version, "PodGroup");
    let pods = clusters.tenant_api::<Pod>();

    here.create(group(2)).await;
    start(&clusters, &pods, &["a", "b"]).await;
    let on_host = find_on_host(&there).await.unwrap();
    assert_eq!(on_host["metadata"]["finalizers"], json!([PROTECTION]));
    let class = PriorityBand::class_name(berth_api::DEFAULT_CLASS, 1, true);
    let expected = if is_older { Value::Null } else { class.clone().into() };
    assert_eq!(on_host["spec"]["priorityClassName"], expected);
    for pod in clusters.host_pods().await {
        let spec = pod.spec.unwrap();
        assert_eq!(spec.priority_class_name.as_deref(), Some(&*class));
        let named = spec.scheduling_group.and_then(|group| group.pod_group_name);
        assert_eq!(named.as_deref(), on_host["metadata"]["name"].as_str());
    }
    here.until(GROUP, "the scheduler says that it has placed the group", |group| {
        let conditions = group["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|one| one["status"] == "True"))
    })
    .await;

    // What may change reaches the host, although the priority may not.
    let mut change = json!({"metadata": {"labels": {"tier": "gold"}}});
    let mut count = 2;
    if !is_older {
        count = 1;
        change["spec"] = json!({"schedulingPolicy": {"gang": {"minCount": count}}});
    }
    here.patch(GROUP, change).await;
    eventually("the change is on the host", async || {
        let changed = find_on_host(&there).await.unwrap();
        changed["metadata"]["labels"]["tier"] == "gold"
            && changed["spec"]["schedulingPolicy"]["gang"]["minCount"] == count
    })
    .await;
    let changed = find_on_host(&there).await.unwrap();
    assert_eq!(changed["metadata"]["uid"], on_host["metadata"]["uid"]);
    assert_eq!(changed["spec"]["priorityClassName"], expected);

    a_group_that_is_made_again_replaces_the_one_before(&clusters, &here, &there).await;
    end(&pods, &["a"]).await;
    here.delete(GROUP).await;
    here.gone(GROUP).await;
    eventually("the group is gone from the host", async || {
        find_on_host(&there).await.is_none()
    })
    .await;
    syncer.stop().await;
}

/// The host keeps a group while pods name it: those of the new group must not come before it.
async fn a_group_that_is_made_again_replaces_the_one_before(clusters: &Clusters, here: &Objects, there: &Objects) {
    let pods = clusters.tenant_api::<Pod>();
    let before = here.get(GROUP).await.unwrap();
    here.delete(GROUP).await;
    end(&pods, &["a", "b"]).await;
    here.gone(GROUP).await;
    let made = here.create(group(1)).await;
    assert_ne!(made["metadata"]["uid"], before["metadata"]["uid"]);
    start(clusters, &pods, &["a"]).await;
    let on_host = find_on_host(there).await.unwrap();
    assert_eq!(
        on_host["metadata"]["annotations"][labels::ORIGIN_UID],
        made["metadata"]["uid"]
    );
    assert_eq!(on_host["metadata"].get("deletionTimestamp"), None);
}

/// A group of which so many pods must start together.
fn group(count: u32) -> Value {
    json!({"metadata": {"name": GROUP}, "spec": {"schedulingPolicy": {"gang": {"minCount": count}}}})
}

/// Creates pods of the group, and waits until they run on both sides.
async fn start(clusters: &Clusters, pods: &Api<Pod>, names: &[&str]) {
    for name in names {
        let of_group = json!({"schedulingGroup": {"podGroupName": GROUP}});
        create(pods, pod(name, &of_group)).await;
    }
    for name in names {
        eventually(&format!("{name} runs"), async || is_phase(pods, name, "Running").await).await;
        let on_host = clusters.host_pods().await;
        assert!(on_host.iter().any(|pod| origin(pod) == *name), "{name}");
    }
}

async fn end(pods: &Api<Pod>, names: &[&str]) {
    for name in names {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in names {
        eventually(&format!("{name} is gone"), async || {
            pods.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
}

/// The group on the host.
async fn find_on_host(there: &Objects) -> Option<Value> {
    let groups = there.0.list(&ListParams::default()).await.unwrap();
    let is_it = |name: Option<&String>| name.is_some_and(|name| name == GROUP);
    let found = groups
        .into_iter()
        .find(|group| is_it(group.annotations().get(labels::ORIGIN_NAME)));
    found.map(|group| serde_json::to_value(group).unwrap())
}
