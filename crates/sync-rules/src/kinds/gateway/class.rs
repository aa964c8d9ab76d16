//! GatewayClasses of the host that the tenant's class lists, shown to the tenant.
//!
//! | field | rule |
//! |---|---|
//! | `spec.controllerName`, `spec.description` | shown |
//! | `spec.parametersRef`, labels, annotations | not shown: they are the host's |
//! | status | shown, without generations |

use super::resource;
use crate::{
    json,
    kinds::{Flow, HostNamespace, Kind, Rights, View},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::sync_policy::{SyncPolicy, allows};
use serde_json::{Value, json};

const RESOURCE: Resource = resource("v1", "GatewayClass", "gatewayclasses");

const WATCH: WatchSpec = WatchSpec::own(RESOURCE);

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WATCH),
    host: Some((HostNamespace::Cluster, WATCH)),
    flow: Flow::View(&Classes),
    rights: Rights {
        tenant: &[
            ("gatewayclasses", &["create", "update", "delete"]),
            ("gatewayclasses/status", &["patch"]),
        ],
        host: &[],
    },
};

struct Classes;

impl View for Classes {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn offers(&self, policy: &SyncPolicy) -> bool {
        !policy.ingress.gateway_classes.is_empty()
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        if !allows(&world.tenant.policy.ingress.gateway_classes, &name.name) {
            return None;
        }
        let class = world.stores.host(KindId::GatewayClass).get(name)?.object();
        let mut shown = json!({"metadata": {}, "spec": {"controllerName": class["spec"]["controllerName"]}});
        if let Some(description) = json::text(&class, &["spec", "description"]) {
            shown["spec"]["description"] = description.into();
        }
        if let Some(status) = class.get("status").filter(|status| status.is_object()) {
            shown["status"] = status.clone();
            json::each_mut(&mut shown, "status.conditions[]", &mut |condition| {
                if let Some(condition) = condition.as_object_mut() {
                    condition.remove("observedGeneration");
                }
            });
        }
        Some(shown)
    }

    fn has_status(&self) -> bool {
        true
    }
}
