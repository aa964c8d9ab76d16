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
        resource::{self, Name, Resource},
        store::WatchSpec,
    },
    translation::host_text::{self, generated_claim_name},
};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The kind.
pub const KIND: Kind = Kind::new(Direction::Events)
    .watch_host(HostNamespace::Workloads, WatchSpec::own(resource::EVENT))
    .with_tenant_rights(&[("events", &["create", "list", "patch"])])
    .with_priority(QueuePriority::Low)
    .essential();

/// Events older than this are not copied: after a restart, the host's last hour is listed again. It is more than what a busy syncer may be
/// late.
const STALE: SignedDuration = SignedDuration::from_mins(10);

/// For so long an Event waits for the object that it is about. Each kind has a watch of its own, and any of them may be late: that of the
/// object, that of its counterpart in the tenant, and the answer to the request that created it.
const UNKNOWN: SignedDuration = SignedDuration::from_secs(30);

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
    pub fn is_repeated_by(&self, existing: &ExistingEvent) -> bool {
        let ExistingEvent {
            metadata: _,
            involved_object,
            count,
            event_time,
            last_timestamp,
            series,
        } = existing;
        let is_same = |(field, existing): (&str, &Value)| self.event.get(field).unwrap_or(&Value::Null) == existing;
        involved_object.uid.as_deref() == json::text(&self.event, &["involvedObject", "uid"])
            // What changes when an Event happens again.
            && [
                ("count", count),
                ("eventTime", event_time),
                ("lastTimestamp", last_timestamp),
                ("series", series),
            ]
            .into_iter()
            .all(is_same)
    }
}

/// An Event that the tenant has, as far as it matters whether it is a copy. The rest is not read: the tenant can make it as large as etcd
/// allows. An absent field and null are the same: API servers write some times as null.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExistingEvent {
    /// Its name.
    pub metadata: ExistingName,
    #[serde(default)]
    involved_object: InvolvedObject,
    #[serde(default)]
    count: Value,
    #[serde(default)]
    event_time: Value,
    #[serde(default)]
    last_timestamp: Value,
    #[serde(default)]
    series: Value,
}

/// The name of an Event that the tenant has.
#[derive(Debug, Deserialize)]
pub struct ExistingName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
struct InvolvedObject {
    uid: Option<String>,
}

/// What becomes of a host Event.
#[derive(Debug, PartialEq)]
pub enum Translation {
    /// The tenant gets this Event.
    Copy(TenantEvent),
    /// The object that it is about is not known, perhaps not yet.
    Wait,
    /// It is not for the tenant, or too old.
    Ignore,
}

/// Translates a host Event for the tenant.
pub fn translate(cache: &Cache, event: &Value, now: Timestamp) -> Translation {
    if is_stale(event, now) {
        return Translation::Ignore;
    }
    let age = last_seen(event).map(|seen| now.duration_since(seen));
    let involved = &event["involvedObject"];
    let kind = cache.find_kind_to_host(
        json::text(involved, &["apiVersion"]).unwrap_or("v1"),
        json::text(involved, &["kind"]).unwrap_or_default(),
    );
    let Some((kind, resource)) = kind else {
        return Translation::Ignore;
    };
    match copy(cache, event, kind, resource) {
        Some(copy) => Translation::Copy(copy),
        // The clock of a node may be wrong either way.
        None if age.is_none_or(|age| age.abs() > UNKNOWN) => Translation::Ignore,
        None => Translation::Wait,
    }
}

/// The Event for the tenant about an object of this kind, if the tenant has the object.
fn copy(cache: &Cache, event: &Value, kind: KindId, resource: Resource) -> Option<TenantEvent> {
    let involved = &event["involvedObject"];
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

/// Whether a host Event is too old to be copied.
pub fn is_stale(event: &Value, now: Timestamp) -> bool {
    last_seen(event).is_some_and(|seen| now.duration_since(seen) > STALE)
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

    fn copy_of(cache: &Cache, event: &Value, now: &str) -> TenantEvent {
        match translate(cache, event, now.parse().unwrap()) {
            Translation::Copy(copy) => copy,
            other => panic!("{other:?}"),
        }
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
        let host = event("Pod", &host_name(KindId::Pod, &name));
        let translated = copy_of(&cache(&name), &host, "2026-11-20T10:00:30Z");
        insta::assert_yaml_snapshot!(translated.event);
    }

    #[test]
    fn a_copy_is_recognised_until_the_event_happens_again() {
        let name = Name::new("research", "train-0");
        let host = event("Pod", &host_name(KindId::Pod, &name));
        let copy = copy_of(&cache(&name), &host, "2026-11-20T10:00:30Z");
        let existing = |event: &Value| serde_json::from_value(event.clone()).unwrap();
        let mut stored = copy.event.clone();
        stored["metadata"]["resourceVersion"] = "7".into();
        stored["eventTime"] = Value::Null;
        assert!(copy.is_repeated_by(&existing(&stored)));
        for (field, other) in [
            ("count", json!(1)),
            ("lastTimestamp", json!("2026-11-20T09:59:00Z")),
            ("series", json!({"count": 3})),
            ("involvedObject", json!({"uid": "an earlier pod of that name"})),
        ] {
            let mut changed = stored.clone();
            changed[field] = other;
            assert!(!copy.is_repeated_by(&existing(&changed)), "{field}");
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
        let translated = copy_of(&cache, &event, "2026-11-20T10:00:30Z");
        assert_eq!(
            (translated.about, &translated.event["involvedObject"]["uid"]),
            (mirrored, &json!("claim-uid"))
        );
    }

    #[test]
    fn old_and_unrelated_events_are_not_copied() {
        let name = Name::new("research", "train-0");
        let cache = cache(&name);
        let pod = event("Pod", &host_name(KindId::Pod, &name));
        copy_of(&cache, &pod, "2026-11-20T10:09:59Z");
        for (event, now) in [
            (pod, "2026-11-20T10:11:00Z"),
            (event("Secret", &host_name(KindId::Pod, &name)), "2026-11-20T10:00:31Z"),
            (event("Node", "gpu-1"), "2026-11-20T10:00:05Z"),
            (json!({"metadata": {"name": "e.1"}}), "2026-11-20T10:00:05Z"),
        ] {
            let translated = translate(&cache, &event, now.parse().unwrap());
            assert_eq!(translated, Translation::Ignore, "{event} {now}");
        }
    }

    #[test]
    fn an_event_waits_for_its_object_but_not_for_long() {
        let (known, unknown) = (Name::new("research", "train-0"), Name::new("research", "train-1"));
        let cache = cache(&known);
        let event = event("Pod", &host_name(KindId::Pod, &unknown));
        for (now, expected) in [
            ("2026-11-20T10:00:30Z", Translation::Wait),
            ("2026-11-20T10:00:31Z", Translation::Ignore),
            ("2026-11-20T09:59:30Z", Translation::Wait),
            ("2026-11-20T09:00:00Z", Translation::Ignore),
        ] {
            assert_eq!(translate(&cache, &event, now.parse().unwrap()), expected, "{now}");
        }
        let timeless = json!({"involvedObject": event["involvedObject"]});
        let now = "2026-11-20T10:00:30Z".parse().unwrap();
        assert_eq!(
            translate(&cache, &timeless, now),
            Translation::Ignore,
            "it would wait for ever"
        );
        // The host's side is known, the tenant's is not yet.
        let host = json!({"metadata": {"name": host_name(KindId::Pod, &unknown), "resourceVersion": "2"}});
        cache
            .stores
            .host(KindId::Pod)
            .written(unknown.clone(), Stored::new(&host));
        let now = "2026-11-20T10:00:30Z";
        assert_eq!(translate(&cache, &event, now.parse().unwrap()), Translation::Wait);
        let tenant = json!({"metadata": {"name": &*unknown.name, "uid": "tenant-uid", "resourceVersion": "3"}});
        cache
            .stores
            .tenant(KindId::Pod)
            .written(unknown.clone(), Stored::new(&tenant));
        assert_eq!(copy_of(&cache, &event, now).about, unknown);
    }
}
