//! Events about host objects, told in the tenant.
//!
//! | field | rule |
//! |---|---|
//! | `involvedObject` | the tenant's object; Events about anything else are not told |
//! | `message` | host names mapped back |
//! | `type`, `reason`, `count`, `series`, times, `source`, `reporting…`, `action` | copied |
//! | name | derived from the host Event's, so that repetitions update the same object |
//!
//! Events are not kept: once told, they are forgotten.

use crate::{
    json,
    kinds::{Flow, HostNamespace, Kind, KindId, Rights, devices, text},
    resource::{self, Name},
    store::WatchSpec,
    world::World,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// The kind.
pub const KIND: Kind = Kind {
    tenant: None,
    host: Some((HostNamespace::Workloads, WatchSpec::own(resource::EVENT))),
    flow: Flow::Events,
    rights: Rights {
        tenant: &[("events", &["create", "patch"])],
        host: &[],
    },
};

/// Events older than this are not told: after a restart, the host's last hour is listed again.
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

/// An Event for the tenant.
#[derive(Debug, PartialEq)]
pub struct Told {
    /// Whom it is about.
    pub about: Name,
    /// Name of the Event in the tenant.
    pub name: String,
    /// The Event.
    pub event: Value,
}

/// What to tell the tenant of a host Event, if anything.
pub fn translate(world: &World, event: &Value, now: Timestamp) -> Option<Told> {
    let involved = event.get("involvedObject")?;
    let (kind, resource) = world.down_kind(
        json::text(involved, &["apiVersion"]).unwrap_or("v1"),
        json::text(involved, &["kind"])?,
    )?;
    if last_seen(event).is_some_and(|seen| now.duration_since(seen) > STALE) {
        return None;
    }
    let host_name = json::text(involved, &["name"])?;
    let (kind, about) = match world.stores.host(kind).tenant_name(host_name) {
        Some(about) => (kind, about),
        // Claims that the host made itself are of another kind here.
        None if kind == KindId::ResourceClaim => (
            KindId::GeneratedClaim,
            devices::generated::tenant_name(world, host_name)?,
        ),
        None => return None,
    };
    let origin = world.stores.tenant(kind).get(&about)?;
    let mut told: Map<String, Value> = COPIED
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), event.get(*field)?.clone())))
        .collect();
    let own_name = json::text(event, &["metadata", "name"])?;
    let name = event_name(&about, &berth_api::names::hash(&["Event", own_name]));
    told.insert("apiVersion".into(), "v1".into());
    told.insert("kind".into(), "Event".into());
    told.insert("metadata".into(), json!({"name": name, "namespace": &*about.namespace}));
    let mut about_object = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "namespace": &*about.namespace, "name": &*about.name, "uid": origin.uid,
    });
    if let Some(field) = involved.get("fieldPath") {
        about_object["fieldPath"] = field.clone();
    }
    told.insert("involvedObject".into(), about_object);
    let message = json::text(event, &["message"]).unwrap_or_default();
    told.insert("message".into(), text::back(world, &about, message).into());
    Some(Told {
        about,
        name,
        event: told.into(),
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
    use crate::{resource::host_name, store::Stored, tenant::test_tenant};

    fn world(name: &Name) -> World {
        let world = World::new(test_tenant());
        let host = json!({"metadata": {"name": host_name(KindId::Pod, name), "resourceVersion": "1"}});
        world.stores.host(KindId::Pod).written(name.clone(), Stored::new(&host));
        let tenant = json!({"metadata": {"name": &*name.name, "uid": "tenant-uid", "resourceVersion": "1"}});
        world
            .stores
            .tenant(KindId::Pod)
            .written(name.clone(), Stored::new(&tenant));
        world
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
        let told = translate(&world(&name), &event("Pod", &host_name(KindId::Pod, &name)), now).unwrap();
        insta::assert_yaml_snapshot!(told.event);
    }

    #[test]
    fn events_about_claims_that_the_host_made_are_told() {
        let pod = Name::new("research", "train-0");
        let world = world(&pod);
        let host = "train-0-abcdefghijklm-gpu-12345";
        let shown = Name::new("research", "train-0-gpu-12345");
        let keys = [Name::new("", host), shown.clone()].map(|name| KindId::GeneratedClaim.key(name));
        world.shown().set(&keys[0], vec![keys[1].clone()]);
        let claim = json!({"metadata": {"name": &*shown.name, "uid": "claim-uid", "resourceVersion": "1"}});
        world
            .stores
            .tenant(KindId::GeneratedClaim)
            .written(shown.clone(), Stored::new(&claim));
        let mut event = event("ResourceClaim", host);
        event["involvedObject"]["apiVersion"] = "resource.k8s.io/v1".into();
        let told = translate(&world, &event, "2026-11-20T10:00:30Z".parse().unwrap()).unwrap();
        assert_eq!(
            (told.about, &told.event["involvedObject"]["uid"]),
            (shown, &json!("claim-uid"))
        );
    }

    #[test]
    fn events_about_anything_else_and_old_ones_are_not_told() {
        let name = Name::new("research", "train-0");
        let world = world(&name);
        let now = "2026-11-20T10:00:30Z".parse().unwrap();
        let later = "2026-11-20T11:00:00Z".parse().unwrap();
        assert_eq!(translate(&world, &event("Pod", "other-aaaaaaaaaaaaa"), now), None);
        assert_eq!(
            translate(&world, &event("Secret", &host_name(KindId::Pod, &name)), now),
            None
        );
        assert_eq!(
            translate(&world, &event("Pod", &host_name(KindId::Pod, &name)), later),
            None
        );
    }
}
