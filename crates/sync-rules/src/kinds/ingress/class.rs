//! IngressClasses of the host that the tenant's class lists, mirrored to the tenant.
//!
//! | field | rule |
//! |---|---|
//! | the annotation that makes it the default class | mirrored, so that the tenant's API server fills the class into Ingresses without one |
//! | `spec.controller` | mirrored |
//! | anything else | not mirrored: parameters name objects of the host |

use super::is_listed;
use crate::{
    model::{
        Cache, Kind, KindId,
        resource::{Name, Resource},
    },
    translation::{
        fields::FieldIssues,
        hostnames,
        mirrored_class::{MirroredClass, MirroredMetadata},
    },
};

/// The kind.
pub const KIND: Kind = MirroredClass::kind(&MirroredClass {
    id: KindId::IngressClass,
    resource: Resource::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses"),
    listed: |policy| &policy.ingress.classes,
    fields: &["spec.controller"],
    metadata: MirroredMetadata::Annotations(&["ingressclass.kubernetes.io/is-default-class"]),
    has_status: false,
    needs_host_scheduler: false,
    unmanaged_message: None,
});

/// The class of an Ingress, if it is offered.
pub fn chosen<'a>(cache: &Cache, named: Option<&'a str>, issues: &mut FieldIssues) -> Option<&'a str> {
    let on_host = cache.stores.host(KindId::IngressClass);
    let field = "spec.ingressClassName";
    if let Some(class) = named
        && is_listed(cache, class)
        && on_host.contains(&Name::new("", class))
    {
        return Some(class);
    }
    let names = on_host.names().into_iter().filter(|name| is_listed(cache, &name.name));
    let mut offered: Vec<String> = names.map(|name| name.name.to_string()).collect();
    offered.sort();
    let offered = hostnames::offered(&offered);
    match named {
        Some(class) => issues.deny(field, format!("there is no IngressClass {class}; {offered}")),
        None => issues.deny(
            field,
            format!("required, because there is no default IngressClass; {offered}"),
        ),
    }
    None
}
