//! IngressClasses of the host that the tenant's class lists, shown to the tenant.
//!
//! | field | rule |
//! |---|---|
//! | the annotation that makes it the default class | shown, so that the tenant's API server fills the class into Ingresses without one |
//! | `spec.controller` | shown |
//! | anything else | not shown: parameters name objects of the host |

use super::is_listed;
use crate::{
    json,
    kinds::{Flow, HostNamespace, Kind, Rights, View, fields::Findings, hostnames},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::SyncPolicy;
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses");
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

const WATCH: WatchSpec = WatchSpec::own(RESOURCE);

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WATCH),
    host: Some((HostNamespace::Cluster, WATCH)),
    flow: Flow::View(&Classes),
    rights: Rights {
        tenant: &[("ingressclasses", &["create", "update", "delete"])],
        host: &[],
    },
};

struct Classes;

impl View for Classes {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn offers(&self, policy: &SyncPolicy) -> bool {
        !policy.ingress.classes.is_empty()
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        let class = world.stores.host(KindId::IngressClass).get(name)?.object();
        is_listed(world, &name.name).then(|| {
            let mut shown = json!({"metadata": {}, "spec": {"controller": class["spec"]["controller"]}});
            if let Some(default) = json::text(&class, &["metadata", "annotations", DEFAULT]) {
                shown["metadata"]["annotations"][DEFAULT] = default.into();
            }
            shown
        })
    }
}

/// The class of an Ingress, if it can be had.
pub fn chosen<'a>(world: &World, named: Option<&'a str>, findings: &mut Findings) -> Option<&'a str> {
    let on_host = world.stores.host(KindId::IngressClass);
    let field = "spec.ingressClassName";
    if let Some(class) = named
        && is_listed(world, class)
        && on_host.contains(&Name::new("", class))
    {
        return Some(class);
    }
    let names = on_host.names().into_iter().filter(|name| is_listed(world, &name.name));
    let mut offered: Vec<String> = names.map(|name| name.name.to_string()).collect();
    offered.sort();
    let offered = hostnames::offered(&offered);
    match named {
        Some(class) => findings.refuse(field, format!("there is no IngressClass {class}; {offered}")),
        None => findings.refuse(
            field,
            format!("name an IngressClass, for there is no default one; {offered}"),
        ),
    }
    None
}
