//! The whole controller against a host in memory, an etcd in memory and a store in a folder.

use super::*;
use crate::{
    clock::Clock,
    controllers::tenant::Tenants,
    datastore::TenantContents,
    events::EventRecorder,
    metrics::SnapshotMetrics,
    testing::{MemoryContents, Script, ScriptedApi, StoreWriters},
};
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

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("team/vision/uid-{name}"))
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
    assert_eq!(snapshot["status"]["location"], "team/vision/uid-a");
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

/// Who may create snapshots, and not delete them, must not keep those of the schedule from being there.
#[tokio::test(start_paused = true)]
async fn a_name_that_somebody_has_taken_keeps_no_snapshot_of_the_schedule_back() {
    for tenant in ["vision", "other"] {
        let mut case = Case::new();
        case.set_class(&json!({"schedule": {"cron": "0 2 * * *"}}));
        let name = "vision-20261130-0200";
        case.create(name);
        let mut taken = case.get(name).unwrap();
        taken["spec"]["tenantClusterName"] = tenant.into();
        case.host.insert(&format!("{SNAPSHOTS}/{name}"), taken);
        for _ in 0..3 {
            case.pass().await;
        }
        let mut all = case.host.find(SNAPSHOTS);
        all.retain(|snapshot| snapshot["metadata"]["labels"][labels::SNAPSHOT_TRIGGER] == "schedule");
        let names: Vec<&str> = { all.iter() }
            .filter_map(|snapshot| snapshot["metadata"]["name"].as_str())
            .collect();
        let [other] = names[..] else {
            panic!("{tenant}: {names:?}")
        };
        assert!(other.starts_with("vision-20261130-0200-"), "{other}");
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

#[tokio::test(start_paused = true)]
async fn a_label_puts_no_snapshot_before_one_that_waits_for_longer() {
    let mut case = Case::new();
    case.create("a");
    let folder = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters";
    let cluster = case.host.get(&format!("{folder}/vision")).unwrap();
    let mut snapshot = case.get("a").unwrap();
    snapshot["metadata"]["finalizers"] = json!([labels::SNAPSHOT_FINALIZER]);
    case.host.insert(&format!("{SNAPSHOTS}/a"), snapshot.clone());
    // As many as are taken at the same time.
    for tenant in ["speech", "text"] {
        let mut other = cluster.clone();
        other["metadata"]["name"] = tenant.into();
        other["metadata"]["uid"] = format!("uid-of-{tenant}").into();
        case.host.insert(&format!("{folder}/{tenant}"), other);
        let mut labelled = snapshot.clone();
        labelled["metadata"]["name"] = tenant.into();
        labelled["metadata"]["uid"] = format!("uid-{tenant}").into();
        labelled["metadata"]["creationTimestamp"] = "2026-11-30T11:30:00Z".into();
        labelled["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "before-restore"});
        labelled["spec"]["tenantClusterName"] = tenant.into();
        case.host.insert(&format!("{SNAPSHOTS}/{tenant}"), labelled);
    }
    case.pass().await;
    assert_eq!(case.get("a").unwrap()["status"]["attempts"], 1);
}

#[test]
fn what_a_restore_waits_for_comes_first_and_then_what_waits_for_the_longest_time() {
    let created = |at: &str, status: Value| -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "a", "namespace": "team", "creationTimestamp": at},
            "spec": {"tenantClusterName": "vision"}, "status": status,
        }))
        .unwrap()
    };
    let (first, last) = ("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z");
    assert!(turn(&created(last, json!({})), true) < turn(&created(first, json!({})), false));
    assert!(turn(&created(first, json!({})), false) < turn(&created(last, json!({})), false));
    // One that was tried waits since then: those that others create all the time do not keep it back.
    let tried = json!({"attempts": 1, "startedAt": "2026-11-30T10:30:00Z"});
    assert!(turn(&created(first, tried.clone()), false) < turn(&created(last, json!({})), false));
    assert!(turn(&created("2026-11-30T10:15:00Z", json!({})), false) < turn(&created(first, tried), false));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_not_deleted_while_its_tenant_is_set_back_to_it() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let record = json!({
        "snapshotName": "a", "snapshotUID": "uid-a", "location": "team/vision/uid-a", "objects": 2, "bytes": 1, "storedBytes": 1,
        "checksum": "", "startedAt": "2026-11-30T12:00:00Z", "phase": "Replacing", "attempts": 1,
    });
    let id = TenantId::new("vision", UID);
    let text = record.to_string().into_bytes();
    let revision = case.memory.write_restore(&id, text, None).await.unwrap();
    let mut deleted = case.get("a").unwrap();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    case.host.insert(&format!("{SNAPSHOTS}/a"), deleted);
    case.pass().await;
    assert!(case.file("a").exists());
    case.memory.delete_restore(&id, revision).await.unwrap();
    case.pass().await;
    assert!(!case.file("a").exists());
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_tenant_stored_before_a_restore_is_not_deleted_during_it() {
    let mut case = Case::new();
    case.create("saved");
    case.pass_until("saved", "Completed").await;
    let record = json!({
        "snapshotName": "other", "snapshotUID": "uid-other", "location": "team/vision/uid-other", "objects": 2, "bytes": 1, "storedBytes": 1,
        "checksum": "", "savedAs": "saved", "startedAt": "2026-11-30T12:00:00Z", "phase": "Replacing", "attempts": 1,
    });
    let id = TenantId::new("vision", UID);
    let text = record.to_string().into_bytes();
    case.memory.write_restore(&id, text, None).await.unwrap();
    let mut deleted = case.get("saved").unwrap();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    case.host.insert(&format!("{SNAPSHOTS}/saved"), deleted);
    case.pass().await;
    assert!(case.file("saved").exists());
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
