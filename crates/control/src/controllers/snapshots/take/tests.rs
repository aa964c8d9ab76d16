use super::*;
use crate::testing::MemoryContents;
use futures::TryStreamExt;

const LOCATION: &str = "team/vision/77aa";

fn database() -> MemoryContents {
    MemoryContents::with(&[
        ("configmaps/team/a", "a"),
        ("namespaces/kube-system", "identity"),
        ("secrets/team/a", "k8s:enc:secretbox:v1:encryption-key-one:content"),
        ("secrets/team/b", "k8s:enc:secretbox:v1:encryption-key-two:content"),
        ("zz", "last"),
    ])
}

struct Case {
    memory: MemoryContents,
    contents: Arc<dyn TenantContents>,
    store: Store,
    tenant: TenantId,
    // Deleted with this.
    _folder: tempfile::TempDir,
}

impl Case {
    fn new(memory: MemoryContents) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::from_url(&format!("file://{}", folder.path().display()), []).unwrap();
        Self {
            contents: Arc::new(memory.clone()),
            memory,
            store,
            tenant: TenantId::new("vision", "6f2c"),
            _folder: folder,
        }
    }

    async fn take(&self) -> Result<Taken, TakeError> {
        take(&self.contents, &self.store, &self.tenant, ("a", LOCATION)).await
    }

    /// The keys in the store.
    async fn keys(&self, taken: &Taken) -> Vec<String> {
        let entries: Vec<Entry> = self.store.read(LOCATION, &taken.written).try_collect().await.unwrap();
        entries
            .into_iter()
            .map(|entry| String::from_utf8(entry.key).unwrap())
            .collect()
    }
}

#[tokio::test]
async fn everything_is_taken_but_what_ends_by_itself() {
    let memory = database();
    memory.put("events/team/a", "an event", true);
    memory.put("masterleases/10.0.0.1", "an API server", true);
    let case = Case::new(memory);
    let taken = case.take().await.unwrap();
    assert_eq!(
        case.keys(&taken).await,
        [
            "configmaps/team/a",
            "namespaces/kube-system",
            "secrets/team/a",
            "secrets/team/b",
            "zz"
        ]
    );
    assert_eq!(taken.written.objects, 5);
    assert_eq!(
        taken.encryption_keys,
        BTreeSet::from(["encryption-key-one".to_owned(), "encryption-key-two".to_owned()])
    );
    assert_eq!(taken.revision, 7);
}

#[tokio::test]
async fn what_changes_meanwhile_is_not_in_the_snapshot() {
    let memory = database();
    let case = Case::new(memory.clone());
    let first = case.contents.read_contents(&case.tenant, None, None).await.unwrap();
    memory.put("secrets/team/c", "later", false);
    let at = Some(first.revision);
    let mut next = first.next;
    let mut keys = Vec::new();
    while let Some(start) = next {
        let page = case
            .contents
            .read_contents(&case.tenant, Some(&start), at)
            .await
            .unwrap();
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        next = page.next;
    }
    assert!(!keys.contains(&b"secrets/team/c".to_vec()));
}

#[tokio::test]
async fn a_revision_that_is_gone_is_another_try_and_not_for_ever() {
    let case = Case::new(database());
    case.memory.compact_for(2);
    assert_eq!(case.take().await.unwrap().written.objects, 5);
    case.memory.compact_for(100);
    let error = case.take().await.unwrap_err();
    assert_eq!(error.reason(), "HistoryCompacted");
    assert!(error.is_temporary());
}

#[tokio::test]
async fn what_is_no_database_is_not_taken() {
    let case = Case::new(MemoryContents::with(&[("configmaps/team/a", "a")]));
    let error = case.take().await.unwrap_err();
    assert_eq!((error.reason(), error.is_temporary()), ("TenantNotStarted", false));
    let empty = Case::new(MemoryContents::default());
    assert!(empty.take().await.is_err());
}

#[tokio::test]
async fn nothing_is_taken_while_a_restore_replaces_the_objects() {
    let case = Case::new(database());
    let mut record = RestoreRecord {
        snapshot_name: "nightly".into(),
        snapshot_uid: "11bb".into(),
        location: "team/vision/11bb".into(),
        objects: 1,
        bytes: 1,
        stored_bytes: 1,
        checksum: String::new(),
        encryption_keys: Vec::new(),
        saved_as: Some("a".into()),
        saved_after: None,
        started_at: jiff::Timestamp::UNIX_EPOCH,
        phase: RestorePhase::Saving,
        attempts: 1,
        identity: None,
    };
    let write = async |record: &RestoreRecord, expected| {
        let written = case
            .contents
            .write_restore(&case.tenant, record.to_text(), expected)
            .await;
        written.unwrap()
    };
    // This one is what the restore waits for.
    let revision = write(&record, None).await;
    assert!(case.take().await.is_ok());
    record.saved_as = Some("another".into());
    let revision = write(&record, Some(revision)).await;
    assert_eq!(case.take().await.unwrap_err().reason(), "Restoring");
    record.saved_as = Some("a".into());
    record.phase = RestorePhase::Replacing;
    write(&record, Some(revision)).await;
    let error = case.take().await.unwrap_err();
    assert_eq!((error.reason(), error.is_temporary()), ("Restoring", true));
}

#[tokio::test]
async fn each_call_that_fails_leaves_no_snapshot() {
    let calls = {
        let case = Case::new(database());
        case.take().await.unwrap();
        case.memory.calls()
    };
    assert!(calls > 3);
    for number in 0..calls {
        let case = Case::new(database());
        case.memory.fail_call(Some(number));
        let error = case.take().await.unwrap_err();
        assert_eq!(error.reason(), "DatastoreError", "{number}");
        case.memory.fail_call(None);
        let taken = case.take().await.unwrap();
        assert_eq!(case.keys(&taken).await.len(), 5);
    }
}

#[tokio::test]
async fn no_more_keys_are_remembered_than_the_status_may_list() {
    let memory = MemoryContents::with(&[("namespaces/kube-system", "identity")]);
    for number in 0..MOST_KEYS {
        let value = format!("k8s:enc:secretbox:v1:key-{number}:content");
        memory.put(&format!("secrets/team/s{number}"), &value, false);
    }
    let case = Case::new(memory);
    assert_eq!(case.take().await.unwrap().encryption_keys.len(), MOST_KEYS);
    case.memory
        .put("secrets/team/t", "k8s:enc:secretbox:v1:another:content", false);
    let error = case.take().await.unwrap_err();
    assert_eq!((error.reason(), error.is_temporary()), ("Unstorable", false));
}
