//! Events about an object, as several commands show them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;

use crate::error::{Error, failed};
use crate::output::{format_optional, format_rows, format_time};

/// How many of the newest Events are shown.
const MOST: usize = 10;

/// An Event. Programs read it: fields are only ever added.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    /// When it was seen last.
    at: Option<String>,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: String,
    message: String,
    /// How often it was seen.
    count: i32,
}

/// The newest Events about an object, the oldest of them first. With `uid`, those about an earlier object of the same name are left out.
///
/// # Errors
/// The user may not list Events, or the API server does not answer.
pub(crate) async fn list(
    client: &Client,
    namespace: &str,
    (kind, name): (&str, &str),
    uid: Option<&str>,
) -> Result<Vec<EventView>, Error> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let list = Api::<Event>::namespaced(client.clone(), namespace)
        .list(&ListParams::default().fields(&selector))
        .await
        .map_err(failed("list the Events"))?;
    Ok(find_newest(list.items, uid))
}

fn find_newest(mut events: Vec<Event>, uid: Option<&str>) -> Vec<EventView> {
    events.retain(|event| {
        let about = event.involved_object.uid.as_deref();
        uid.is_none() || about.is_none() || about == uid
    });
    events.sort_by_key(last_seen);
    let newest = events.split_off(events.len().saturating_sub(MOST));
    newest.into_iter().map(view_of).collect()
}

fn view_of(event: Event) -> EventView {
    let at = last_seen(&event).map(format_time);
    let repeated = event.series.and_then(|series| series.count).or(event.count);
    EventView {
        at,
        kind: event.type_,
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        count: repeated.unwrap_or(1).max(1),
    }
}

/// When an Event was seen last. One that is repeated keeps the time at which it was first written.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let times = [
        series.and_then(|series| series.last_observed_time.as_ref().map(|time| time.0)),
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
    ];
    let last = times.into_iter().flatten().max();
    last.or_else(|| event.creation_timestamp().map(|time| time.0))
}

/// A table of Events; none without Events.
pub(crate) fn describe(events: &[EventView]) -> Option<String> {
    let heading = ["EVENT AT", "TYPE", "REASON", "COUNT", "MESSAGE"];
    format_rows(heading, events, |event| {
        let EventView {
            at,
            kind,
            reason,
            message,
            count,
        } = event;
        [
            format_optional(at.as_ref()),
            format_optional(kind.as_ref()),
            reason.clone(),
            count.to_string(),
            message.clone(),
        ]
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// What `list` makes of these Events.
    pub(crate) fn read(events: &Value, uid: Option<&str>) -> Vec<EventView> {
        find_newest(serde_json::from_value(events.clone()).unwrap(), uid)
    }

    fn event(reason: &str, times: &Value) -> Value {
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": reason, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "involvedObject": {"kind": "TenantCluster", "name": "vision", "uid": "u"},
            "type": "Normal", "reason": reason, "message": "it is so",
        });
        for (field, time) in times.as_object().unwrap() {
            event[field] = time.clone();
        }
        event
    }

    #[test]
    fn an_event_that_is_repeated_is_as_new_as_its_last_time() {
        let first = "2026-01-01T01:00:00.000000Z";
        let series = json!({"count": 12, "lastObservedTime": "2026-01-01T09:00:00.000000Z"});
        let events = json!([
            event("Repeated", &json!({"eventTime": first, "series": series})),
            event("Once", &json!({"eventTime": "2026-01-01T02:00:00.000000Z"})),
            event(
                "OfKubelet",
                &json!({"firstTimestamp": "2026-01-01T03:00:00Z", "lastTimestamp": "2026-01-01T04:00:00Z", "count": 3,
                "type": "Warning"})
            ),
            event("New", &json!({})),
        ]);
        let expected = "\
EVENT AT              TYPE     REASON     COUNT  MESSAGE
2026-01-01T00:00:00Z  Normal   New        1      it is so
2026-01-01T02:00:00Z  Normal   Once       1      it is so
2026-01-01T04:00:00Z  Warning  OfKubelet  3      it is so
2026-01-01T09:00:00Z  Normal   Repeated   12     it is so";
        assert_eq!(describe(&read(&events, None)).as_deref(), Some(expected));
        assert_eq!(describe(&[]), None);
    }

    #[test]
    fn only_the_newest_events_are_kept() {
        let written = |minute: usize| json!({"eventTime": format!("2026-01-01T00:{minute:02}:00.000000Z")});
        let mut events: Vec<Value> = (1..=MOST)
            .map(|minute| event(&format!("Event{minute}"), &written(minute)))
            .collect();
        // The oldest one was seen again just now.
        let series = json!({"count": 2, "lastObservedTime": "2026-01-01T01:00:00.000000Z"});
        events.push(event(
            "Again",
            &json!({"eventTime": "2026-01-01T00:00:00.000000Z", "series": series}),
        ));
        let views = read(&json!(events), None);
        assert_eq!(views.len(), MOST);
        assert_eq!(views[0].reason, "Event2");
        assert_eq!(views[MOST - 1].reason, "Again");
    }

    #[test]
    fn events_about_an_earlier_object_of_the_same_name_are_left_out() {
        let of = |uid: Value| {
            let about = json!({"kind": "TenantCluster", "name": "vision", "uid": uid});
            event("Of", &json!({ "involvedObject": about }))
        };
        let events = json!([of(json!("earlier")), of(json!("u")), of(Value::Null)]);
        assert_eq!(read(&events, Some("u")).len(), 2);
        assert_eq!(read(&events, None).len(), 3);
    }
}
