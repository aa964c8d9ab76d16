//! An observer that watches a cluster from outside: it checks Nodes, tenants' pods and the Jobs that clean nodes, in
//! the order in which they changed, against [rules] of its own.
//!
//! Resource versions of one etcd say in which order objects of different kinds changed. A change is checked once
//! all watches have passed it.

pub mod rules;

use crate::wait::until;
use futures::TryStreamExt;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use rules::{Change, JobView, NodeView, PodView, Rules};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;

/// How long one watch lasts. Before it ends, a bookmark says how far it is, even if nothing changed.
const WATCH_SECONDS: u32 = 4;
/// How long the watches may take to catch up with the cluster.
const SOON: Duration = Duration::from_secs(120);

/// The watches, and the changes that they brought.
pub struct Observer {
    client: Client,
    log: Arc<Mutex<Log>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The changes that were not checked yet.
struct Log {
    rules: Rules,
    /// By resource version.
    pending: BTreeMap<u64, Vec<Change>>,
    /// The resource version that each watch has passed.
    passed: [u64; 3],
    /// Changes by hand whose resource version is not known yet.
    in_hand: usize,
}

impl Log {
    /// Checks every change that all watches have passed.
    fn settle(&mut self) {
        if self.in_hand > 0 {
            return;
        }
        let all_passed = self.passed.into_iter().min().unwrap_or_default();
        let later = self.pending.split_off(&(all_passed + 1));
        for (version, changes) in std::mem::replace(&mut self.pending, later) {
            for change in changes {
                self.rules.apply(version, change);
            }
        }
    }
}

impl Observer {
    /// Starts to watch. With `must_clean`, pools clean their nodes.
    pub fn start(client: &Client, must_clean: bool) -> Self {
        let log = Arc::new(Mutex::new(Log {
            rules: Rules::new(must_clean),
            pending: BTreeMap::new(),
            passed: [0; 3],
            in_hand: 0,
        }));
        let nodes = follow(Api::<Node>::all(client.clone()), "", 0, Arc::clone(&log), |node| {
            Change::Node(node.name_any(), Some(read_node(node)))
        });
        let pods = follow(
            Api::<Pod>::all(client.clone()),
            "berth.dev/managed-by=syncer",
            1,
            Arc::clone(&log),
            |pod| Change::Pod(name(pod), read_pod(pod)),
        );
        let jobs = follow(
            Api::<Job>::namespaced(client.clone(), "berth-system"),
            "berth.dev/node-job=scrub",
            2,
            Arc::clone(&log),
            |job| Change::Job(name(job), Some(read_job(job))),
        );
        Self {
            client: client.clone(),
            log,
            tasks: vec![tokio::spawn(nodes), tokio::spawn(pods), tokio::spawn(jobs)],
        }
    }

    /// Changes a node by hand, so that its labels, annotations and taints disagree until control has corrected them.
    pub async fn by_hand(&self, change: impl Future<Output = kube::Result<Node>>) {
        self.log.lock().unwrap().in_hand += 1;
        let changed = change.await;
        let mut log = self.log.lock().unwrap();
        log.in_hand -= 1;
        if let Ok(version) = changed.map(|node| version(node.resource_version())) {
            log.rules.note_by_hand(version);
        }
    }

    /// Fails if a rule was violated.
    pub fn assert_clean(&self) {
        let mut log = self.log.lock().unwrap();
        log.settle();
        assert!(log.rules.violations.is_empty(), "{:#?}", log.rules.violations);
    }

    /// Checks everything up to now. Fails if a rule was violated, or if a change by hand was not corrected. Returns how
    /// often a node went to another tenant, and how many pods came to a node that their tenant had just lost.
    pub async fn finish(self) -> (u32, u32) {
        let params = ListParams::default();
        let now = [
            list_version(&Api::<Node>::all(self.client.clone()), &params).await,
            list_version(&Api::<Pod>::all(self.client.clone()), &params).await,
            list_version(&Api::<Job>::all(self.client.clone()), &params).await,
        ];
        let now = now.into_iter().max().unwrap();
        until("all watches have caught up with the cluster", SOON, async || {
            // A list makes the API server's cache catch up, even where nothing changes.
            list_version(&Api::<Node>::all(self.client.clone()), &params).await;
            list_version(&Api::<Pod>::all(self.client.clone()), &params).await;
            list_version(&Api::<Job>::all(self.client.clone()), &params).await;
            let passed = self.log.lock().unwrap().passed;
            if passed.iter().all(|passed| *passed >= now) {
                Ok(())
            } else {
                Err(format!("{passed:?} of {now}"))
            }
        })
        .await;
        self.assert_clean();
        let log = self.log.lock().unwrap();
        assert!(log.rules.not_corrected().is_empty(), "{:?}", log.rules.not_corrected());
        (log.rules.recyclings, log.rules.late)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn version(text: Option<String>) -> u64 {
    text.and_then(|text| text.parse().ok()).expect("a resource version")
}

fn name<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

async fn list_version<K>(api: &Api<K>, params: &ListParams) -> u64
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = api.list_metadata(params).await.unwrap();
    version(list.metadata.resource_version)
}

/// Adds every change of one kind to the log, in order and without a gap.
async fn follow<K>(api: Api<K>, selector: &str, index: usize, log: Arc<Mutex<Log>>, read: fn(&K) -> Change)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let record = |at: u64, change: Change| {
        log.lock().unwrap().pending.entry(at).or_default().push(change);
    };
    let passed = |at: u64| {
        let mut log = log.lock().unwrap();
        log.passed[index] = log.passed[index].max(at);
    };
    let list = loop {
        match api.list(&ListParams::default().labels(selector)).await {
            Ok(list) => break list,
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    };
    for object in &list.items {
        record(version(object.resource_version()), read(object));
    }
    let mut at = version(list.metadata.resource_version);
    passed(at);
    loop {
        let params = WatchParams::default().labels(selector).timeout(WATCH_SECONDS);
        let Ok(stream) = api.watch(&params, &at.to_string()).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let mut stream = Box::pin(stream);
        while let Ok(Some(event)) = stream.try_next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    at = version(object.resource_version());
                    record(at, read(&object));
                }
                WatchEvent::Deleted(object) => {
                    at = version(object.resource_version());
                    let gone = match read(&object) {
                        Change::Node(name, _) => Change::Node(name, None),
                        Change::Pod(name, _) => Change::Pod(name, None),
                        Change::Job(name, _) => Change::Job(name, None),
                    };
                    record(at, gone);
                }
                WatchEvent::Bookmark(bookmark) => at = version(Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(error) => {
                    let lost = format!("the observer has a gap: {error:?}");
                    log.lock().unwrap().rules.violations.push(lost);
                    return;
                }
            }
            passed(at);
        }
    }
}

fn read_node(node: &Node) -> NodeView {
    let label = |key: &str| node.labels().get(key).cloned();
    let annotation = |key: &str| node.annotations().get(key).cloned();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    NodeView {
        tenant: label("berth.dev/tenant"),
        state_label: label("berth.dev/state"),
        state: annotation("berth.dev/state"),
        owner: annotation("berth.dev/owner-uid"),
        group: label("berth.dev/node-group"),
        recycling: annotation("berth.dev/recycling-id"),
        reserved_with: annotation("berth.dev/reserved-with").and_then(|text| text.parse().ok()),
        taints: taints
            .filter(|taint| taint.key == "berth.dev/tenant")
            .map(|taint| (taint.value.clone().unwrap_or_default(), taint.effect.clone()))
            .collect(),
        is_shared: node.labels().contains_key("berth.dev/shared-pool"),
    }
}

fn read_pod(pod: &Pod) -> Option<PodView> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    Some(PodView {
        node: pod.spec.as_ref()?.node_name.clone()?,
        tenant: pod.labels().get("berth.dev/tenant").cloned().unwrap_or_default(),
    })
}

fn read_job(job: &Job) -> JobView {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let annotation = |key: &str| job.annotations().get(key).cloned().unwrap_or_default();
    JobView {
        node: annotation("berth.dev/node"),
        recycling: annotation("berth.dev/recycling-id"),
        is_complete: conditions
            .into_iter()
            .any(|condition| condition.type_ == "Complete" && condition.status == "True"),
    }
}
