//! The whole controller against a host in memory, an etcd in memory and a store in a folder.

mod deletions;
mod of_teams;

use super::{
    deletions::{MOST_OF_NAMESPACE, TURN},
    tries::{DELETED_WITHIN, RETRY},
    *,
};
use crate::{
    clock::Clock,
    controllers::tenant::Tenants,
    datastore::{RestoreEnd, TenantContents},
    events::EventRecorder,
    metrics::SnapshotMetrics,
    testing::{MemoryContents, Script, ScriptedApi, StoreWriters, options_of_bucket},
};
use berth_api::labels;
use berth_runtime::queue::Queue;
use berth_snapshots::Store;
use serde_json::{Value, json};

const SNAPSHOTS: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantsnapshots";
const UID: &str = "6f2c";

struct Case {
    context: SnapshotsContext,
    host: ScriptedApi,
    writers: StoreWriters,
    memory: MemoryContents,
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let host = ScriptedApi::new("host", &Script::default());
        let (stores, writers) = StoreWriters::new();
        let memory = MemoryContents::with(&[("namespaces/kube-system", "identity"), ("secrets/team/a", "a")]);
        let folder = tempfile::tempdir().unwrap();
        let store = Store::from_url(&format!("file://{}", folder.path().display()), []).unwrap();
        let context = SnapshotsContext {
            client: host.client(),
            stores,
            clock: Clock::at("2026-11-30T12:00:00Z".parse().unwrap()),
            store: Some(store),
            contents: Arc::new(memory.clone()),
            tenants: Arc::new(Tenants::default()),
            queue: Queue::new(),
            metrics: SnapshotMetrics::default(),
            recorder: EventRecorder::new(host.client()),
            runs: Arc::default(),
            pauses: Arc::default(),
            deletions: Arc::default(),
        };
        let case = Self {
            context,
            host,
            writers,
            memory,
            folder,
        };
        case.host.insert(
            "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision",
            json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": "vision", "namespace": "team", "uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {}, "status": {"version": "v1.37.1", "className": "gold"},
            }),
        );
        case
    }

    fn set_class(&self, snapshots: &Value) {
        let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "gold", "uid": "gold"},
            "spec": {"snapshots": snapshots}});
        self.host.insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    }

    fn create(&self, name: &str) {
        let snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "creationTimestamp": "2026-11-30T11:00:00Z"},
            "spec": {"tenantClusterName": "vision"},
        });
        self.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
    }

    fn get(&self, name: &str) -> Option<Value> {
        self.host.get(&format!("{SNAPSHOTS}/{name}"))
    }

    fn phase(&self, name: &str) -> Value {
        self.get(name).unwrap()["status"]["phase"].clone()
    }

    async fn pass(&mut self) {
        self.writers.update(&self.host);
        let _ = reconcile(&self.context).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// A pass after the pause in which nothing is done about what could not be deleted.
    async fn pass_later(&mut self) {
        tokio::time::sleep(RETRY).await;
        self.pass().await;
    }

    /// Passes until a snapshot is in this phase.
    async fn pass_until(&mut self, name: &str, phase: &str) {
        for _ in 0..400 {
            self.pass().await;
            if self.phase(name) == phase {
                return;
            }
        }
        panic!("not {phase}: {:#}", self.get(name).unwrap());
    }

    /// Where the first attempt writes a snapshot.
    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("team/vision/uid-{name}-1"))
    }

    /// Everything in the store that is a file.
    fn files(&self) -> Vec<String> {
        let folder = self.folder.path().join("team/vision");
        let Ok(files) = std::fs::read_dir(folder) else {
            return Vec::new();
        };
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn delete(&self, name: &str) {
        let mut deleted = self.get(name).unwrap();
        deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
        self.host.insert(&format!("{SNAPSHOTS}/{name}"), deleted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_and_deleted_with_its_file() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let snapshot = case.get("a").unwrap();
    assert_eq!(snapshot["status"]["objects"], 2);
    assert_eq!(snapshot["status"]["tenantUID"], UID);
    assert_eq!(snapshot["status"]["version"], "v1.37.1");
    assert_eq!(snapshot["status"]["location"], "team/vision/uid-a-1");
    assert_eq!(snapshot["metadata"]["finalizers"], json!([labels::SNAPSHOT_FINALIZER]));
    assert!(case.file("a").exists());
    let mut deleted = snapshot;
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    case.host.insert(&format!("{SNAPSHOTS}/a"), deleted);
    case.pass().await;
    assert!(!case.file("a").exists());
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_late_begins_nothing_again() {
    let mut case = Case::new();
    case.create("a");
    case.pass().await;
    case.writers.update(&case.host);
    // The watch shows nothing of what comes.
    for _ in 0..20 {
        let _ = reconcile(&case.context).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(case.phase("a"), "Completed");
    assert_eq!(case.get("a").unwrap()["status"]["attempts"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_control_that_is_killed_leaves_no_completed_snapshot_and_the_next_one_begins_anew() {
    let mut case = Case::new();
    case.create("a");
    case.memory.end_before_call(Some(1));
    for _ in 0..5 {
        case.pass().await;
    }
    assert_eq!(case.phase("a"), "Running");
    assert!(!case.file("a").exists());
    case.context.runs = Arc::default();
    case.memory.end_before_call(None);
    case.pass_until("a", "Completed").await;
    assert_eq!(case.get("a").unwrap()["status"]["attempts"], 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_control_has_sent_changes_no_snapshot_that_another_one_has_completed() {
    let mut case = Case::new();
    case.create("a");
    case.memory.end_before_call(Some(1));
    for _ in 0..5 {
        case.pass().await;
    }
    let begun: TenantSnapshot = serde_json::from_value(case.get("a").unwrap()).unwrap();
    case.context.runs = Arc::default();
    case.memory.end_before_call(None);
    case.pass_until("a", "Completed").await;
    // The store carries out only now what the first one has sent.
    let store = case.context.store.clone().unwrap();
    let late = berth_snapshots::Entry {
        key: b"namespaces/kube-system".to_vec(),
        value: b"late".to_vec(),
    };
    let entries = futures::stream::iter([Ok::<_, std::convert::Infallible>(late)]);
    store.write(&begun.location(), entries).await.unwrap();
    let completed: TenantSnapshot = serde_json::from_value(case.get("a").unwrap()).unwrap();
    let status = completed.status.clone().unwrap();
    assert_eq!(status.location, Some(completed.location()));
    let written = berth_snapshots::Written {
        objects: status.objects.unwrap(),
        bytes: status.bytes.unwrap(),
        stored_bytes: status.stored_bytes.unwrap(),
        checksum: status.checksum.unwrap(),
    };
    store.verify(&completed.location(), &written).await.unwrap();
    // Both go with the object.
    assert_eq!(case.files(), ["uid-a-1", "uid-a-2"]);
    case.delete("a");
    case.pass().await;
    assert_eq!(case.files(), [""; 0]);
    // More may arrive of what the first one has sent.
    assert!(case.get("a").is_some());
    case.pass_later().await;
    case.pass_later().await;
    assert_eq!(case.get("a"), None);
}

#[tokio::test]
async fn how_an_attempt_ended_is_not_written_once_another_control_has_begun_it_again() {
    let case = Case::new();
    case.create("a");
    let begun = |attempts: u32| {
        let mut snapshot = case.get("a").unwrap();
        snapshot["status"] = json!({"phase": "Running", "attempts": attempts});
        snapshot
    };
    case.host.insert(&format!("{SNAPSHOTS}/a"), begun(2));
    let end = |attempts: u32| {
        let snapshot: TenantSnapshot = serde_json::from_value(begun(attempts)).unwrap();
        let condition = ConditionUpdate::mark_true(COMPLETED, "Completed", String::new());
        let status = next_status(
            &snapshot,
            SnapshotPhase::Completed,
            &condition,
            case.context.clock.now(),
        );
        (snapshot, status)
    };
    let (earlier, status) = end(1);
    assert!(!begin::write_end(&case.context, &earlier, &status).await.unwrap());
    assert_eq!(case.phase("a"), "Running");
    let (same, status) = end(2);
    assert!(begin::write_end(&case.context, &same, &status).await.unwrap());
    assert_eq!(case.phase("a"), "Completed");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_written_is_tried_again_and_not_for_ever() {
    let mut case = Case::new();
    std::fs::remove_dir(case.folder.path()).unwrap();
    case.create("a");
    case.pass_until("a", "Failed").await;
    let status = case.get("a").unwrap()["status"].clone();
    assert_eq!(status["attempts"], 5);
    assert_eq!(status["conditions"][0]["reason"], "StoreError");
    // For the folder to be deleted at the end.
    std::fs::create_dir(case.folder.path()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_everything_is_not_asked_for_all_snapshots_at_once() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut case = Case::new();
    std::fs::remove_dir(case.folder.path()).unwrap();
    for name in names {
        case.create(name);
    }
    let attempts = |case: &Case| -> u64 {
        let all = { names.iter() }.filter_map(|name| case.get(name).unwrap()["status"]["attempts"].as_u64());
        all.sum()
    };
    for _ in 0..20 {
        case.pass().await;
        if attempts(&case) == 4 {
            break;
        }
    }
    case.pass().await;
    let said = |case: &Case, name: &str| {
        let snapshot = case.get(name).unwrap();
        let condition = &snapshot["status"]["conditions"][0];
        let text = condition["message"].to_string();
        assert_eq!(condition["reason"], "StoreError", "{snapshot:#}");
        (snapshot["metadata"]["resourceVersion"].clone(), text)
    };
    assert!(said(&case, "d").1.contains("the store does not exist"));
    let waits = ["e", "f"].map(|name| said(&case, name));
    for (_, message) in &waits {
        assert!(message.contains("has refused other snapshots"), "{message}");
    }
    // It is said once, and nothing is tried.
    for _ in 0..10 {
        case.pass().await;
    }
    assert_eq!(attempts(&case), 4);
    assert_eq!(["e", "f"].map(|name| said(&case, name)), waits);
    std::fs::create_dir(case.folder.path()).unwrap();
    for name in names {
        case.pass_until(name, "Completed").await;
    }
}

/// Else a team could hold up the snapshots of all others.
#[tokio::test(start_paused = true)]
async fn what_fails_because_of_a_tenant_holds_up_no_other_snapshot() {
    let mut case = Case::new();
    case.memory.clear();
    for name in ["a", "b", "c", "d", "e"] {
        case.create(name);
        case.pass_until(name, "Failed").await;
        let failed = case.get(name).unwrap();
        assert_eq!(failed["status"]["conditions"][0]["reason"], "TenantNotStarted");
    }
    assert_eq!(case.context.pauses.postponed(Instant::now()), None);
    // Nor does it say that the store works again.
    for _ in 0..4 {
        case.context.pauses.note_store(Some(tries::Failure::Silent));
    }
    case.create("f");
    case.pass().await;
    assert_eq!(
        case.get("f").unwrap()["status"]["conditions"][0]["reason"],
        "StoreError"
    );
    case.pass_until("f", "Failed").await;
    assert_eq!(
        case.get("f").unwrap()["status"]["conditions"][0]["reason"],
        "TenantNotStarted"
    );
    case.context.pauses.note_store(Some(tries::Failure::Silent));
    assert!(case.context.pauses.postponed(Instant::now()).is_some());
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_berth_has_completed_gets_its_size_for_people() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let mut earlier = case.get("a").unwrap();
    earlier["status"]["bytes"] = 3000.into();
    earlier["status"].as_object_mut().unwrap().remove("size").unwrap();
    case.host.insert(&format!("{SNAPSHOTS}/a"), earlier);
    case.pass().await;
    let described = case.get("a").unwrap();
    assert_eq!(described["status"]["size"], "3Ki");
    case.pass().await;
    assert_eq!(case.get("a").unwrap(), described);
}

#[tokio::test(start_paused = true)]
async fn the_schedule_of_the_class_makes_snapshots() {
    let mut case = Case::new();
    case.set_class(&json!({"schedule": {"cron": "0 2 * * *"}}));
    case.pass().await;
    let name = "vision-20261130-0200";
    let created = case.get(name).unwrap();
    assert_eq!(created["metadata"]["labels"][labels::SNAPSHOT_TRIGGER], "schedule");
    assert_eq!(created["metadata"]["labels"][labels::SNAPSHOT_TENANT], "vision");
    case.pass_until(name, "Completed").await;
    let all = case.host.find(SNAPSHOTS).len();
    case.pass().await;
    assert_eq!(case.host.find(SNAPSHOTS).len(), all);
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_tenant_gets_another_snapshot_of_its_schedule_once_it_was_set_back() {
    let path = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
    for (completed_at, is_new) in [("2026-11-20T00:00:00Z", false), ("2026-11-29T12:00:00Z", true)] {
        let mut case = Case::new();
        case.set_class(&json!({"schedule": {"cron": "0 2 * * *"}}));
        let mut cluster = case.host.get(path).unwrap();
        cluster["status"]["sleep"] = json!({"state": "Sleeping", "since": "2026-11-28T00:00:00Z"});
        cluster["status"]["restore"] =
            json!({"snapshotName": "weekly", "startedAt": "2026-11-20T00:00:00Z", "completedAt": completed_at});
        case.host.insert(path, cluster);
        case.create("last");
        let mut last = case.get("last").unwrap();
        last["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "schedule"});
        last["metadata"]["creationTimestamp"] = "2026-11-29T02:00:00Z".into();
        last["status"] = json!({"phase": "Completed", "tenantUID": UID, "startedAt": "2026-11-29T02:00:00Z"});
        case.host.insert(&format!("{SNAPSHOTS}/last"), last);
        case.pass().await;
        assert_eq!(case.get("vision-20261130-0200").is_some(), is_new, "{completed_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_snapshots_cost_few_writes_at_a_time() {
    let mut case = Case::new();
    case.set_class(&json!({"max": 0}));
    for number in 0..100 {
        case.create(&format!("n{number:03}"));
    }
    let failed = |case: &Case| {
        let all = case.host.find(SNAPSHOTS);
        all.iter()
            .filter(|snapshot| snapshot["status"]["phase"] == "Failed")
            .count()
    };
    case.pass().await;
    assert_eq!(failed(&case), MOST_WRITES_OF_NAMESPACE);
    for _ in 0..10 {
        case.pass().await;
    }
    assert_eq!(failed(&case), 100);
    assert_eq!(case.memory.calls(), 0, "nothing of the tenant is read");
}

/// A store that takes connections and never answers, as long as the listener is there.
fn silent_store() -> (Store, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let store = Store::from_url("s3://snapshots/berth", options_of_bucket(&endpoint)).unwrap();
    (store, listener)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_fails_a_snapshot_in_bounded_time() {
    let mut case = Case::new();
    let (silent, _listener) = silent_store();
    case.context.store = Some(silent);
    case.create("a");
    let begun = Instant::now();
    while case.get("a").unwrap()["status"]["phase"] != "Failed" {
        case.pass().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(
            begun.elapsed() < Duration::from_hours(1),
            "{:#}",
            case.get("a").unwrap()
        );
    }
    let status = case.get("a").unwrap()["status"].clone();
    assert_eq!(status["attempts"], 5);
    assert_eq!(status["conditions"][0]["reason"], "StoreError");
    let message = status["conditions"][0]["message"].to_string();
    assert!(message.contains("the store cannot be used"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_is_taken_and_nothing_waits() {
    let mut case = Case::new();
    case.context.store = None;
    case.create("a");
    case.pass().await;
    let status = case.get("a").unwrap()["status"].clone();
    assert_eq!(
        (&status["phase"], &status["conditions"][0]["reason"]),
        (&json!("Failed"), &json!("NoSnapshotStore"))
    );
    // Its object can be deleted also if it may have a file.
    let mut deleted = case.get("a").unwrap();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    deleted["metadata"]["finalizers"] = json!([labels::SNAPSHOT_FINALIZER]);
    case.host.insert(&format!("{SNAPSHOTS}/a"), deleted);
    case.pass().await;
    assert_eq!(case.get("a"), None);
}
