//! Events about host objects, copied to the tenant.
//!
//! | field | rule |
//! |---|---|
//! | `involvedObject` | the tenant's object; Events about other objects are not copied |
//! | `message` | host names mapped back |
//! | `type`, `reason`, `count`, `series`, times, `source`, `reporting…`, `action` | copied |
//! | name | derived from the host Event's, so that repetitions update the same object |
//!
//! Events are not kept: once copied, they are forgotten. A syncer that starts reads from the tenant which of the host's recent Events have a
//! copy, see [`TenantEvent::is_repeated_by`].

use crate::{
    model::{
        Cache, Direction, HostNamespace, Kind, KindId, QueuePriority, json,
        resource::{self, Name},
        store::WatchSpec,
    },
    translation::host_text::{self, generated_claim_name},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// The kind.
pub const KIND: Kind = Kind::new(Direction::Events)
    .watch_host(HostNamespace::Workloads, WatchSpec::own(resource::EVENT))
    .with_tenant_rights(&[("events", &["create", "list", "patch"])])
    .with_priority(QueuePriority::Low)
    .essential();

/// Events older than this are not copied: after a restart, the host's last hour is listed again.
const STALE: SignedDuration = SignedDuration::from_mins(2);

const COPIED: &[&str] = &[
    "action",
    "count",
    "eventTime",
    "firstTimestamp",
    "lastTimestamp",
    "reason",
    "reportingComponent",
    "reportingInstance",
    "series",
    "source",
    "type",
];

/// What changes when an Event happens again.
const REPETITION: &[&str] = &["count", "eventTime", "lastTimestamp", "series"];

/// An Event for the tenant.
#[derive(Debug, PartialEq)]
pub struct TenantEvent {
    /// The object that it is about.
    pub about: Name,
    /// Name of the Event in the tenant.
    pub name: String,
    /// The Event.
    pub event: Value,
}

impl TenantEvent {
    /// Whether an Event of the tenant with the same name is this copy, as it would be written now.
    pub fn is_repeated_by(&self, existing: &Value) -> bool {
        let same_object =
            json::text(existing, &["involvedObject", "uid"]) == json::text(&self.event, &["involvedObject", "uid"]);
        same_object
            && REPETITION
                .iter()
                // An absent field and null are the same: API servers write some times as null.
                .all(|field| {
                    existing.get(*field).unwrap_or(&Value::Null) == self.event.get(*field).unwrap_or(&Value::Null)
                })
    }
}

/// The Event for the tenant about a host Event, if there is any.
pub fn translate(cache: &Cache, event: &Value, now: Timestamp) -> Option<TenantEvent> {
    let involved = event.get("involvedObject")?;
    let (kind, resource) = cache.find_kind_to_host(
        json::text(involved, &["apiVersion"]).unwrap_or("v1"),
        json::text(involved, &["kind"])?,
    )?;
    if last_seen(event).is_some_and(|seen| now.duration_since(seen) > STALE) {
        return None;
    }
    let host_name = json::text(involved, &["name"])?;
    let (kind, about) = match cache.stores.host(kind).tenant_name(host_name) {
        Some(about) => (kind, about),
        // A claim that the host made itself is of another kind in the tenant.
        None if kind == KindId::ResourceClaim => (KindId::GeneratedClaim, generated_claim_name(cache, host_name)?),
        None => return None,
    };
    let origin = cache.stores.tenant(kind).get(&about)?;
    let mut copied: Map<String, Value> = COPIED
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), event.get(*field)?.clone())))
        .collect();
    let own_name = json::text(event, &["metadata", "name"])?;
    let name = event_name(&about, &berth_api::names::hash(&["Event", own_name]));
    copied.insert("apiVersion".into(), "v1".into());
    copied.insert("kind".into(), "Event".into());
    copied.insert("metadata".into(), json!({"name": name, "namespace": &*about.namespace}));
    let mut about_object = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "namespace": &*about.namespace, "name": &*about.name, "uid": origin.uid,
    });
    if let Some(field) = involved.get("fieldPath") {
        about_object["fieldPath"] = field.clone();
    }
    copied.insert("involvedObject".into(), about_object);
    let message = json::text(event, &["message"]).unwrap_or_default();
    copied.insert(
        "message".into(),
        host_text::to_tenant_names(cache, &about, message).into(),
    );
    Some(TenantEvent {
        about,
        name,
        event: copied.into(),
    })
}

/// Name of an Event about an object.
pub fn event_name(about: &Name, hash: &str) -> String {
    let prefix = &about.name[..about.name.floor_char_boundary(200)];
    format!("{prefix}.{hash}")
}

fn last_seen(event: &Value) -> Option<Timestamp> {
    [
        &["series", "lastObservedTime"][..],
        &["lastTimestamp"],
        &["eventTime"],
        &["metadata", "creationTimestamp"],
    ]
    .iter()
    .find_map(|path| json::text(event, path))
    .and_then(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::host_name, store::Stored, tenant::test_tenant};
    use crate::registry;

    fn cache(name: &Name) -> Cache {
        let cache = registry::new_cache(test_tenant());
        let host = json!({"metadata": {"name": host_name(KindId::Pod, name), "resourceVersion": "1"}});
        cache.stores.host(KindId::Pod).written(name.clone(), Stored::new(&host));
        let tenant = json!({"metadata": {"name": &*name.name, "uid": "tenant-uid", "resourceVersion": "1"}});
        cache
            .stores
            .tenant(KindId::Pod)
            .written(name.clone(), Stored::new(&tenant));
        cache
    }

    fn event(kind: &str, host_name: &str) -> Value {
        json!({"metadata": {"name": "e.1", "creationTimestamp": "2026-11-20T10:00:00Z"}, "reason": "Scheduled", "type": "Normal",
            "involvedObject": {"kind": kind, "namespace": "berth-vision-aaaaaaaaaaaaa", "name": host_name, "uid": "host-uid",
            "fieldPath": "spec.containers{main}"}, "source": {"component": "default-scheduler"}, "count": 2, "firstTimestamp": null,
            "message": format!("Successfully assigned berth-vision-aaaaaaaaaaaaa/{host_name} to gpu-1")})
    }

    #[test]
    fn events_speak_of_the_tenants_object() {
        let name = Name::new("research", "train-0");
        let now = "2026-11-20T10:00:30Z".parse().unwrap();
        let translated = translate(&cache(&name), &event("Pod", &host_name(KindId::Pod, &name)), now).unwrap();
        insta::assert_yaml_snapshot!(translated.event);
    }

    #[test]
    fn a_copy_is_recognised_until_the_event_happens_again() {
        let name = Name::new("research", "train-0");
        let now = "2026-11-20T10:00:30Z".parse().unwrap();
        let host = event("Pod", &host_name(KindId::Pod, &name));
        let copy = translate(&cache(&name), &host, now).unwrap();
        let mut stored = copy.event.clone();
        stored["metadata"]["resourceVersion"] = "7".into();
        stored["eventTime"] = Value::Null;
        assert!(copy.is_repeated_by(&stored));
        for (field, other) in [
            ("count", json!(1)),
            ("lastTimestamp", json!("2026-11-20T09:59:00Z")),
            ("series", json!({"count": 3})),
            ("involvedObject", json!({"uid": "an earlier pod of that name"})),
        ] {
            let mut changed = stored.clone();
            changed[field] = other;
            assert!(!copy.is_repeated_by(&changed), "{field}");
        }
    }

    #[test]
    fn events_about_generated_claims_are_copied() {
        let pod = Name::new("research", "train-0");
        let cache = cache(&pod);
        let host = "train-0-abcdefghijklm-gpu-12345";
        let mirrored = Name::new("research", "train-0-gpu-12345");
        let keys = [Name::new("", host), mirrored.clone()].map(|name| KindId::GeneratedClaim.key(name));
        cache.mirror_sources().set(&keys[0], vec![keys[1].clone()]);
        let claim = json!({"metadata": {"name": &*mirrored.name, "uid": "claim-uid", "resourceVersion": "1"}});
        cache
            .stores
            .tenant(KindId::GeneratedClaim)
            .written(mirrored.clone(), Stored::new(&claim));
        let mut event = event("ResourceClaim", host);
        event["involvedObject"]["apiVersion"] = "resource.k8s.io/v1".into();
        let translated = translate(&cache, &event, "2026-11-20T10:00:30Z".parse().unwrap()).unwrap();
        assert_eq!(
            (translated.about, &translated.event["involvedObject"]["uid"]),
            (mirrored, &json!("claim-uid"))
        );
    }

    #[test]
    fn old_and_unrelated_events_are_not_copied() {
        let name = Name::new("research", "train-0");
        let cache = cache(&name);
        let now = "2026-11-20T10:00:30Z".parse().unwrap();
        let later = "2026-11-20T11:00:00Z".parse().unwrap();
        assert_eq!(translate(&cache, &event("Pod", "other-aaaaaaaaaaaaa"), now), None);
        assert_eq!(
            translate(&cache, &event("Secret", &host_name(KindId::Pod, &name)), now),
            None
        );
        assert_eq!(
            translate(&cache, &event("Pod", &host_name(KindId::Pod, &name)), later),
            None
        );
    }
}
