//! GatewayClasses of the host that the tenant's class lists, mirrored to the tenant.
//!
//! | field | rule |
//! |---|---|
//! | `spec.controllerName`, `spec.description` | mirrored |
//! | `spec.parametersRef`, labels, annotations | not mirrored: they are the host's |
//! | status | mirrored, without generations |

use super::resource;
use crate::{
    model::{Kind, KindId},
    translation::mirrored_class::{MirroredClass, MirroredMetadata},
};

/// The kind.
pub const KIND: Kind = MirroredClass::kind(&MirroredClass {
    id: KindId::GatewayClass,
    resource: resource("v1", "GatewayClass", "gatewayclasses"),
    listed: |policy| &policy.ingress.gateway_classes,
    fields: &["spec.controllerName", "spec.description"],
    metadata: MirroredMetadata::Annotations(&[]),
    has_status: true,
    needs_host_scheduler: false,
    unmanaged_message: None,
})
.with_tenant_rights(&[("gatewayclasses/status", &["patch"])])
.extension();
