//! Looks again and again whether the object store can be used: credentials expire, and buckets are deleted. Otherwise this would be noticed when the next
//! snapshot fails, or a restore.

use crate::{events::EventRecorder, metrics::SnapshotMetrics};
use berth_api::system;
use berth_snapshots::Store;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two checks of a store that can be used. Each writes a small file.
const INTERVAL: Duration = Duration::from_hours(1);
/// The same for one that cannot.
const RECHECK: Duration = Duration::from_mins(5);
/// Time for one check. Each request to the store has a shorter one.
const CHECKED_WITHIN: Duration = Duration::from_mins(5);

/// What is checked, and where the result is written.
pub struct StoreCheck {
    /// The object store.
    pub store: Store,
    /// Counters.
    pub metrics: SnapshotMetrics,
    /// Writes Events.
    pub recorder: EventRecorder,
}

impl StoreCheck {
    /// Checks the store until `stop`. Nobody waits for it: tenants run without a store.
    pub async fn watch(self, stop: CancellationToken) {
        let mut was_usable = None;
        loop {
            let checked = tokio::select! {
                () = stop.cancelled() => return,
                checked = self.check(was_usable) => checked,
            };
            was_usable = Some(checked);
            let pause = if checked { INTERVAL } else { RECHECK };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Writes, reads and deletes a file, and says how that ended. `was_usable` is the result of the last check. Returns whether the store can be used.
    async fn check(&self, was_usable: Option<bool>) -> bool {
        let failed = match tokio::time::timeout(CHECKED_WITHIN, self.store.check()).await {
            Ok(checked) => checked.err().map(|error| error.to_string()),
            Err(_) => Some(format!("it took longer than {} s", CHECKED_WITHIN.as_secs())),
        };
        self.metrics.store_failing.set(i64::from(failed.is_some()));
        match failed {
            None => {
                tracing::info!("the store of snapshots can be written, read and deleted from");
                if was_usable == Some(false) {
                    let note = "the object store of snapshots can be written, read and deleted from again";
                    self.publish(EventType::Normal, "SnapshotStoreUsable", note).await;
                }
                true
            }
            Some(error) => {
                tracing::error!(error, "the store of snapshots cannot be used");
                let note = format!(
                    "the object store of snapshots cannot be used: {error}. No tenant gets a snapshot, and none can be set back to one. Look at \
                     snapshots.url in the values of the chart, and at the credentials and what they may do"
                );
                self.publish(EventType::Warning, "SnapshotStoreUnusable", &note).await;
                false
            }
        }
    }

    /// Publishes an Event about control, whose settings name the store.
    async fn publish(&self, type_: EventType, reason: &str, note: &str) {
        let regarding = ObjectReference {
            api_version: Some("apps/v1".into()),
            kind: Some("Deployment".into()),
            namespace: Some(system::NAMESPACE.into()),
            name: Some(system::CONTROL.into()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_,
            reason: reason.into(),
            note: Some(note.into()),
            action: "CheckSnapshotStore".into(),
            secondary: None,
        };
        self.recorder.publish(&event, &regarding).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};
    use serde_json::Value;

    fn check(host: &ScriptedApi, url: &str, options: Vec<(String, String)>) -> StoreCheck {
        StoreCheck {
            store: Store::from_url(url, options).unwrap(),
            metrics: SnapshotMetrics::default(),
            recorder: EventRecorder::new(host.client()),
        }
    }

    fn events(host: &ScriptedApi) -> Vec<Value> {
        host.find("/apis/events.k8s.io/v1/namespaces/berth-system/events/berth-control.")
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_cannot_be_used_has_a_metric_and_an_event_until_it_can() {
        let host = ScriptedApi::new("host", &Script::default());
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("snapshots");
        let check = check(&host, &format!("file://{}", root.display()), Vec::new());
        let (failing, stop) = (check.metrics.store_failing.clone(), CancellationToken::new());
        let watch = tokio::spawn(check.watch(stop.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(failing.get(), 1);
        let found = events(&host);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&found[0]["type"], &found[0]["reason"]),
            (&"Warning".into(), &"SnapshotStoreUnusable".into())
        );
        assert!(found[0]["note"].to_string().contains("snapshots.url"), "{found:?}");
        std::fs::create_dir(&root).unwrap();
        tokio::time::sleep(RECHECK).await;
        assert_eq!(failing.get(), 0);
        assert!(
            events(&host)
                .iter()
                .any(|event| event["reason"] == "SnapshotStoreUsable")
        );
        // It is looked at again.
        std::fs::remove_dir_all(&root).unwrap();
        tokio::time::sleep(INTERVAL + RECHECK).await;
        assert_eq!(failing.get(), 1);
        stop.cancel();
        watch.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_answers_is_found_in_time() {
        let host = ScriptedApi::new("host", &Script::default());
        // Connections wait to be accepted for ever.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let options = crate::testing::options_of_bucket(&format!("http://{}", listener.local_addr().unwrap()));
        let check = check(&host, "s3://snapshots/berth", options);
        let begun = tokio::time::Instant::now();
        assert!(!check.check(None).await);
        assert!(begun.elapsed() <= CHECKED_WITHIN, "{:?}", begun.elapsed());
        assert_eq!(check.metrics.store_failing.get(), 1);
        assert_eq!(events(&host).len(), 1);
    }
}
