//! Events about objects of the host.

use berth_api::{names, text::event_note};
use berth_sync_rules::{kinds::event::event_name, model::resource::Name};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event as HostEvent, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::events::{Event, EventType},
};
use serde_json::json;

/// Name of the controller in Events.
const CONTROLLER: &str = "berth-control";
/// Namespace of Events about cluster-scoped objects, as in Kubernetes' own components.
const CLUSTER_SCOPED: &str = "default";

/// Writes Events. The same message about the same object counts up; another message is another Event. The recorder of
/// kube-runtime goes by the reason alone and keeps the first message: a node would be "Reserved" for the tenant before.
#[derive(Clone)]
pub struct EventRecorder {
    client: Client,
}

impl EventRecorder {
    /// A recorder that writes with `client`.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Publishes an Event about `regarding`. A failure is only logged: what an Event says is also in a status.
    pub async fn publish(&self, event: &Event, regarding: &ObjectReference) {
        let event = host_event(event, regarding, Timestamp::now());
        if let Err(error) = self.write(&event).await {
            tracing::debug!(%error, reason = event.reason, "event not written");
        }
    }

    async fn write(&self, event: &HostEvent) -> kube::Result<()> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or(CLUSTER_SCOPED);
        let events: Api<HostEvent> = Api::namespaced(self.client.clone(), namespace);
        match events.create(&PostParams::default(), event).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            written => return written.map(drop),
        }
        let name = event.name_any();
        let before = events.get(&name).await?;
        // In the namespace of a team others may have written it.
        let series = EventSeries {
            count: before.series.map_or(1, |series| series.count).saturating_add(1),
            last_observed_time: MicroTime(Timestamp::now()),
        };
        let series = Patch::Merge(json!({"series": series}));
        events.patch(&name, &PatchParams::default(), &series).await.map(drop)
    }
}

/// The Event to create. Its name follows from the object and the message.
fn host_event(event: &Event, regarding: &ObjectReference, now: Timestamp) -> HostEvent {
    let type_ = match event.type_ {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    let note = event.note.as_deref().map(event_note);
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let namespace = regarding.namespace.as_deref().unwrap_or(CLUSTER_SCOPED);
    let about = Name::new(namespace, regarding.name.as_deref().unwrap_or(CONTROLLER));
    let hash = names::hash(&[
        uid,
        type_,
        &event.action,
        &event.reason,
        note.as_deref().unwrap_or_default(),
    ]);
    HostEvent {
        metadata: ObjectMeta {
            name: Some(event_name(&about, &hash)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(event.action.clone()),
        reason: Some(event.reason.clone()),
        note,
        type_: Some(type_.to_owned()),
        event_time: Some(MicroTime(now)),
        regarding: Some(regarding.clone()),
        related: event.secondary.clone(),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(CONTROLLER.to_owned()),
        ..HostEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};

    #[tokio::test]
    async fn an_event_counts_up_only_with_the_same_message() {
        let host = ScriptedApi::new("host", &Script::default());
        let recorder = EventRecorder::new(host.client());
        let node = ObjectReference {
            kind: Some("Node".into()),
            name: Some("gpu-1".into()),
            uid: Some("1".into()),
            ..ObjectReference::default()
        };
        let reserved = |note: &str| Event {
            type_: EventType::Normal,
            reason: "Reserved".into(),
            note: Some(note.into()),
            action: "Recycle".into(),
            secondary: None,
        };
        for note in ["for vision", "for speech", "for vision", "for vision"] {
            recorder.publish(&reserved(note), &node).await;
        }
        let mut events: Vec<_> = host
            .find("/apis/events.k8s.io/v1/namespaces/default/events/gpu-1.")
            .iter()
            .map(|event| (event["note"].clone(), event["series"]["count"].clone()))
            .collect();
        events.sort_by_key(|(note, _)| note.to_string());
        assert_eq!(
            events,
            [(json!("for speech"), json!(null)), (json!("for vision"), json!(3))]
        );
    }

    #[tokio::test]
    async fn an_event_in_which_somebody_wrote_the_largest_count_keeps_it() {
        let host = ScriptedApi::new("host", &Script::default());
        let recorder = EventRecorder::new(host.client());
        let tenant = ObjectReference {
            kind: Some("TenantCluster".into()),
            name: Some("vision".into()),
            namespace: Some("team".into()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Normal,
            reason: "Ready".into(),
            note: None,
            action: "Ready".into(),
            secondary: None,
        };
        recorder.publish(&event, &tenant).await;
        let name = host_event(&event, &tenant, Timestamp::UNIX_EPOCH).name_any();
        let path = format!("/apis/events.k8s.io/v1/namespaces/team/events/{name}");
        let mut written = host.get(&path).unwrap();
        written["series"] = json!({"count": i32::MAX, "lastObservedTime": MicroTime(Timestamp::UNIX_EPOCH)});
        host.insert(&path, written);
        recorder.publish(&event, &tenant).await;
        assert_eq!(host.get(&path).unwrap()["series"]["count"], i32::MAX);
    }

    #[test]
    fn a_note_has_no_more_bytes_than_an_api_server_accepts() {
        let event = Event {
            type_: EventType::Warning,
            reason: "ManifestsApplied".into(),
            note: Some("é".repeat(1000)),
            action: "ManifestsApplied".into(),
            secondary: None,
        };
        let written = host_event(&event, &ObjectReference::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(written.note, Some("é".repeat(512)));
    }
}
