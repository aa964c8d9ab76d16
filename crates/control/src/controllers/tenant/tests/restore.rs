//! A tenant is set back to a snapshot.

use super::{
    super::{build::stored_namespace, memory::Tenants},
    databases::store_database,
    fixture::{Fixture, TENANT, UID},
    upgrade::{self, NEXT, OLD},
};
use crate::{
    control_plane::Form,
    datastore::{RestorePhase, RestoreRecord, TenantContents},
    testing::{MemoryContents, ScriptedApi, ScriptedRuntime, VERSION},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::labels;
use berth_snapshots::{Entry, Store};
use futures::stream;
use serde_json::{Value, json};
use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

pub(super) const SNAPSHOTS: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantsnapshots";
pub(super) const LOCATION: &str = "team/vision/77aa-1";
/// Enough reconciles for a restore, also if it is interrupted.
const MAX_RECONCILES: usize = 60;

pub(super) struct Case {
    pub(super) fixture: Fixture,
    pub(super) memory: MemoryContents,
    store: Store,
    // Deleted with this.
    pub(super) folder: tempfile::TempDir,
    /// The revision of the snapshots that the restore asks for; none: the newest.
    pub(super) saved_at: Option<i64>,
}

/// The namespace `kube-system` of a database, as etcd has it.
fn identity() -> String {
    String::from_utf8(stored_namespace::encode("a")).unwrap()
}

/// What the snapshot has.
pub(super) fn old_objects() -> BTreeMap<String, String> {
    let objects = [
        ("configmaps/team/settings", "old"),
        ("namespaces/team", "team"),
        ("secrets/team/password", "secret"),
    ];
    let mut objects: BTreeMap<String, String> = objects.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    objects.insert(stored_namespace::PATH.to_owned(), identity());
    objects
}

impl Case {
    /// A tenant that runs, and that has changed since its snapshot: an object is gone, one is another, and one is new.
    pub(super) async fn new() -> Self {
        Self::in_form(Form::Process).await
    }

    /// The same with components in this form.
    pub(super) async fn in_form(form: Form) -> Self {
        Self::of_version(form, VERSION).await
    }

    /// The same of this version of Kubernetes.
    pub(super) async fn of_version(form: Form, version: &str) -> Self {
        let mut fixture = Fixture::new();
        let mut runtime = ScriptedRuntime::new(&fixture.script);
        runtime.form = form;
        if version != VERSION {
            runtime.versions = [VERSION, NEXT, OLD].map(Into::into).into();
            upgrade::request(&fixture, version);
        }
        fixture.context.runtime = Arc::new(runtime);
        store_database(&fixture, Some("a"));
        let memory = fixture.stored.contents.clone();
        memory.put("configmaps/team/settings", "new", false);
        memory.put(stored_namespace::PATH, &identity(), false);
        memory.put("events/team/started", "an event", true);
        memory.put("pods/team/new", "a pod", false);
        let folder = tempfile::tempdir().unwrap();
        let store = Store::from_url(&format!("file://{}", folder.path().display()), []).unwrap();
        fixture.context.snapshot_store = Some(store.clone());
        let errors = fixture.reconcile_until_ready().await;
        assert!(version != VERSION || errors.is_empty());
        let case = Self {
            fixture,
            memory,
            store,
            folder,
            saved_at: None,
        };
        case.insert_snapshot("nightly", LOCATION, old_objects()).await;
        case
    }

    /// Stores a snapshot with these objects, and its object.
    pub(super) async fn insert_snapshot(&self, name: &str, location: &str, objects: BTreeMap<String, String>) {
        // That of its first attempt.
        let uid = location.rsplit('/').next().unwrap().strip_suffix("-1").unwrap();
        let entries = objects.into_iter().map(|(key, value)| {
            Ok::<_, Infallible>(Entry {
                key: key.into_bytes(),
                value: value.into_bytes(),
            })
        });
        let written = self.store.write(location, stream::iter(entries)).await.unwrap();
        let snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "spec": {"tenantClusterName": "vision"},
            "status": {"phase": "Completed", "attempts": 1, "tenantUID": UID, "version": "v1.37.1", "objects": written.objects, "bytes": written.bytes,
                "storedBytes": written.stored_bytes, "checksum": written.checksum},
        });
        self.fixture.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
    }

    pub(super) fn change_snapshot(&self, change: impl FnOnce(&mut Value)) {
        let path = format!("{SNAPSHOTS}/nightly");
        let mut snapshot = self.fixture.host.get(&path).unwrap();
        change(&mut snapshot);
        self.fixture.host.insert(&path, snapshot);
    }

    pub(super) fn request(&self, saves: bool) {
        self.request_of("nightly", saves);
    }

    pub(super) fn request_of(&self, name: &str, saves: bool) {
        self.fixture.change_tenant(|cluster| {
            let annotations = &mut cluster["metadata"]["annotations"];
            annotations[labels::RESTORE_SNAPSHOT] = name.into();
            if !saves {
                annotations[labels::RESTORE_WITHOUT_SAVING] = "true".into();
            }
        });
    }

    /// Completes the snapshots that the restore has asked for, as their controller does.
    fn complete_saved(&self) {
        for mut snapshot in self.fixture.host.find(SNAPSHOTS) {
            let name = snapshot["metadata"]["name"].as_str().unwrap().to_owned();
            if snapshot["status"].is_null() {
                let revision = self.saved_at.unwrap_or_else(|| self.memory.revision());
                snapshot["status"] = json!({"phase": "Completed", "tenantUID": UID, "revision": revision});
                self.fixture.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
            }
        }
    }

    /// One reconcile, in which nothing is started if a restore was under way before and after it. Does not wait for what never answers.
    pub(super) async fn reconcile(&mut self) {
        let before = self.memory.record();
        let calls = self.fixture.count_calls();
        let _ = tokio::time::timeout(Duration::from_secs(5), Box::pin(self.fixture.reconcile())).await;
        if before.is_some() || self.memory.record().is_some() {
            let made = self.fixture.script.calls().split_off(calls);
            let started: Vec<_> = made
                .iter()
                .filter(|call| call.text.starts_with("runtime run"))
                .collect();
            assert!(started.is_empty(), "{started:?}");
        }
        self.complete_saved();
        // Tasks go on.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// Reconciles until the condition Restored has this reason and the tenant is Ready.
    pub(super) async fn reconcile_until(&mut self, reason: &str) {
        for _ in 0..MAX_RECONCILES {
            self.reconcile().await;
            let is_ready = self.fixture.reason("Ready").0 == "True";
            if is_ready && self.fixture.reason("Restored").1 == reason {
                return;
            }
        }
        panic!("not {reason}: {:#}", self.fixture.status());
    }

    pub(super) fn annotations(&self) -> Value {
        self.fixture.host.get(TENANT).unwrap()["metadata"]["annotations"].clone()
    }

    /// Leaves the tenant as a control does that was killed in this phase of the restore to `nightly`.
    pub(super) async fn interrupt(&self, phase: RestorePhase) {
        let snapshot = self.fixture.host.get(&format!("{SNAPSHOTS}/nightly")).unwrap();
        let status = &snapshot["status"];
        let number = |field: &str| status[field].as_u64().unwrap();
        let record = RestoreRecord {
            snapshot_name: "nightly".into(),
            snapshot_uid: "77aa".into(),
            location: LOCATION.into(),
            objects: number("objects"),
            bytes: number("bytes"),
            stored_bytes: number("storedBytes"),
            checksum: status["checksum"].as_str().unwrap().into(),
            encryption_keys: Vec::new(),
            saved_as: None,
            saved_after: None,
            started_at: self.fixture.context.clock.now(),
            phase,
            attempts: 1,
            identity: (phase == RestorePhase::Replaced).then(|| STANDARD.encode(identity())),
        };
        let expected = self.memory.record().map(|record| record.revision);
        let id = self.fixture.id.clone();
        let written = self.memory.write_restore(&id, record.to_text(), expected);
        written.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_set_back_and_what_it_stored_before_is_saved() {
    let mut case = Case::new().await;
    case.request(true);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
    assert_eq!(case.memory.record(), None);
    assert!(case.annotations()[labels::RESTORE_SNAPSHOT].is_null());
    let restore = case.fixture.status()["restore"].clone();
    assert_eq!(restore["snapshotName"], "nightly");
    assert!(restore["completedAt"].is_string(), "{restore}");
    let saved = restore["savedAs"].as_str().unwrap();
    let saved = case.fixture.host.get(&format!("{SNAPSHOTS}/{saved}")).unwrap();
    assert_eq!(saved["metadata"]["labels"][labels::SNAPSHOT_TRIGGER], "before-restore");
    // Nothing of the tenant could write meanwhile, and nothing of it ran.
    let first = |part: &str| {
        case.fixture
            .script
            .first(part)
            .unwrap_or_else(|| panic!("no call: {part}"))
    };
    assert!(first("datastore delete user") < first("runtime stop everything"));
    let calls = case.fixture.script.calls();
    let last = |part: &str| calls.iter().rposition(|call| call.text.contains(part)).unwrap();
    assert!(last("runtime stop everything") < last("datastore prepare"));
    assert!(last("datastore prepare") < last("runtime run kube-apiserver"));
    // It is done once.
    let before = case.memory.calls();
    case.memory.put("pods/team/newer", "a pod", false);
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert!(case.memory.objects().contains_key("pods/team/newer"));
    assert!(case.memory.calls() - before <= 10, "one read in each reconcile");
}

/// Kills control before each call to etcd of a restore that `prepare` prepares.
pub(super) async fn kill_anywhere(prepare: impl Fn(&Case)) {
    let (first, last) = {
        let mut case = Case::new().await;
        prepare(&case);
        case.request(true);
        let first = case.memory.calls();
        case.reconcile_until("Restored").await;
        (first, case.memory.calls())
    };
    for number in first..last {
        let mut case = Case::new().await;
        prepare(&case);
        case.request(true);
        case.memory.end_before_call(Some(number));
        for _ in 0..12 {
            case.reconcile().await;
        }
        let was_asked = !case.annotations()[labels::RESTORE_SNAPSHOT].is_null() || case.memory.record().is_some();
        let is_done = case.memory.objects() == old_objects() && case.memory.record().is_none();
        // Killed: what it remembered and its tasks are gone.
        case.fixture.context.tenants = Arc::new(Tenants::default());
        case.memory.end_before_call(None);
        if was_asked || is_done {
            case.reconcile_until("Restored").await;
            assert_eq!(case.memory.objects(), old_objects(), "killed before call {number}");
        } else {
            // The request was taken back, and nothing was recorded: the tenant is as it was.
            for _ in 0..5 {
                case.reconcile().await;
            }
            assert!(
                case.memory.objects().contains_key("pods/team/new"),
                "killed before call {number}"
            );
        }
        assert_eq!(case.memory.record(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_control_that_is_killed_anywhere_leaves_a_tenant_that_is_set_back_in_the_end() {
    kill_anywhere(|_| ()).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_tried_again() {
    let (first, last) = {
        let mut case = Case::new().await;
        case.request(false);
        let first = case.memory.calls();
        case.reconcile_until("Restored").await;
        (first, case.memory.calls())
    };
    for number in first..last {
        let mut case = Case::new().await;
        case.request(false);
        case.memory.fail_call(Some(number));
        for _ in 0..MAX_RECONCILES {
            case.reconcile().await;
        }
        let is_restored = case.memory.objects() == old_objects();
        // Only a request that was taken back before it could be recorded is lost.
        let is_untouched = case.memory.objects().contains_key("pods/team/new");
        assert!(
            is_restored || is_untouched,
            "call {number}: {:?}",
            case.memory.objects()
        );
        assert_eq!(case.memory.record(), None, "call {number}");
        assert_eq!(case.fixture.reason("Ready").0, "True", "call {number}");
    }
}

/// Nothing of the tenant is changed, it runs on, and the request is removed.
async fn check_refused(case: &mut Case, reason: &str) {
    let (before, calls) = (case.memory.objects(), case.fixture.count_calls());
    case.request(true);
    case.reconcile_until(reason).await;
    assert_eq!(case.fixture.reason("Restored").0, "False");
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
    assert!(case.annotations()[labels::RESTORE_SNAPSHOT].is_null());
    let made = case.fixture.script.calls().split_off(calls);
    assert!(
        !made
            .iter()
            .any(|call| call.text == "runtime stop everything" || call.text == "datastore delete user")
    );
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_is_refused_before_anything_is_touched() {
    let mut case = Case::new().await;
    let file = case.folder.path().join(LOCATION);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    check_refused(&mut case, "SnapshotDamaged").await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_gone_is_refused() {
    let mut case = Case::new().await;
    std::fs::remove_file(case.folder.path().join(LOCATION)).unwrap();
    check_refused(&mut case, "SnapshotDamaged").await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_tenant_is_refused() {
    let mut case = Case::new().await;
    case.change_snapshot(|snapshot| snapshot["spec"]["tenantClusterName"] = "speech".into());
    check_refused(&mut case, "OtherTenant").await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_does_not_exist_is_refused() {
    let mut case = Case::new().await;
    case.fixture.host.remove(&format!("{SNAPSHOTS}/nightly"));
    check_refused(&mut case, "SnapshotNotFound").await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_keys_are_gone_is_refused() {
    let mut case = Case::new().await;
    case.change_snapshot(|snapshot| snapshot["status"]["encryptionKeys"] = json!(["encryption-key-old"]));
    check_refused(&mut case, "EncryptionKeyMissing").await;
}

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_is_restored() {
    let mut case = Case::new().await;
    case.fixture.context.snapshot_store = None;
    check_refused(&mut case, "NoSnapshotStore").await;
}

#[tokio::test(start_paused = true)]
async fn a_restore_is_given_up_if_what_is_there_cannot_be_saved() {
    let mut case = Case::new().await;
    case.fixture
        .host
        .refuse_writes(Some(("/tenantsnapshots", 403, "exceeded quota: too many of them")));
    let before = case.memory.objects();
    case.request(true);
    case.reconcile_until("NotSaved").await;
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
    assert!(case.fixture.status()["restore"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_withdrawn_in_time_is_not_carried_out() {
    let mut case = Case::new().await;
    case.request(true);
    let _ = case.fixture.reconcile().await;
    assert_eq!(case.fixture.reason("Restored").1, "Checking");
    case.fixture
        .change_tenant(|cluster| cluster["metadata"]["annotations"] = json!({}));
    case.reconcile_until("RequestWithdrawn").await;
    assert!(case.memory.objects().contains_key("pods/team/new"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_only_a_late_view_shows_is_not_carried_out() {
    let mut case = Case::new().await;
    case.request(false);
    let _ = case.fixture.reconcile().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The snapshot is compared. The watch still shows the request; on the host it is gone by now.
    let withdraw = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["metadata"]["annotations"] = json!({});
        host.insert(TENANT, cluster);
    };
    let _ = case.fixture.reconcile_after_unseen(withdraw).await;
    assert_eq!(case.memory.record(), None);
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.memory.record(), None);
    assert!(case.memory.objects().contains_key("pods/team/new"));
    assert_eq!(case.fixture.reason("Restored").1, "RequestWithdrawn");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_any_more_is_waited_for() {
    let mut case = Case::new().await;
    let (file, kept) = (case.folder.path().join(LOCATION), case.folder.path().join("kept"));
    std::fs::rename(&file, &kept).unwrap();
    case.interrupt(RestorePhase::Replacing).await;
    let before = case.memory.objects();
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(
        case.fixture.reason("Restored"),
        (json!("False"), json!("RestoreFailing"))
    );
    assert_eq!(case.fixture.reason("DatastoreReady").1, "Restoring");
    assert_eq!(case.memory.objects(), before, "nothing more is deleted");
    std::fs::rename(&kept, &file).unwrap();
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_starts_nothing() {
    let mut case = Case::new().await;
    let id = case.fixture.id.clone();
    case.memory.write_restore(&id, b"{}".to_vec(), None).await.unwrap();
    let before = case.memory.objects();
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("DatastoreReady").1, "Restoring");
    assert_eq!(case.memory.objects(), before);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_deleted_is_not_restored_any_more() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Replacing).await;
    case.reconcile().await;
    case.fixture.delete().await;
    assert!(case.fixture.context.tenants.restore_under_way(UID).is_none());
}
