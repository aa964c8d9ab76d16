//! A tenant's control plane as data: command lines and files, the same for every runtime.
//!
//! [`render_components`] turns a [`ControlPlaneInput`] into [`Component`]s. A runtime decides only where files lie and how a program
//! is started; its arguments are decided here, so that tests run what production runs.

mod admission;
mod api_server;
mod audit;
mod authentication;
mod authorization;
mod certificates;
mod client_authority;
mod component;
mod controller_manager;
mod coredns;
pub mod dns_customization;
mod egress;
pub mod encryption;
mod endpoints;
mod garbage_collection;
mod input;
mod scheduler;
mod syncer;

pub use admission::own_objects::{OwnObject, api_server_objects, served_groups, served_versions};
pub use api_server::{COMPLETE, ISSUER as SERVICE_ACCOUNT_ISSUER, SERVES, has_public_discovery};
pub use audit::find_error as find_audit_error;
pub use authentication::FILE as AUTHENTICATION_FILE;
pub use certificates::{
    ARGO_CD_USER, Authorities, CONTROL_USER, CertificateError, Issued, Leaf, LeafStore, TENANT_USER,
};
pub use client_authority::{Rotation, RotationFacts, RotationStep, due_request, next_step};
pub use component::{
    API_SERVER, COMPONENTS, CONTROLLER_MANAGER, COREDNS, Component, EXTERNAL_SERVICE, FILES, Form, Health, Program,
    SCHEDULER, SYNCER,
};
pub use coredns::DNS_USER;
pub use encryption::{Change, Encryption, EncryptionError, EncryptionState, EncryptionStep, Kept};
pub use endpoints::{Endpoint, Endpoints, GatewayConfig, Ports, PublicEndpoint, authority};
pub use input::{CLUSTER_DOMAIN, ControlPlaneInput, DatastoreInput, DnsInput, HostInput, ServiceRange};

use berth_api::SchedulingMode;

/// Renders every component of a control plane. `leaves` holds certificates of earlier renderings, which are used
/// again as long as they are valid, and takes new ones.
///
/// # Errors
/// A certificate cannot be made.
pub fn render_components(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Vec<Component>, CertificateError> {
    let mut components = vec![
        api_server::render(input, authorities, leaves)?,
        controller_manager::render(input, authorities, leaves)?,
        syncer::render(input, authorities, leaves)?,
    ];
    if input.scheduling == SchedulingMode::Tenant {
        components.push(scheduler::render(input, authorities, leaves)?);
    }
    if let Some(dns) = input.dns {
        components.extend(coredns::render(input, dns, authorities, leaves)?);
    }
    Ok(components)
}

#[cfg(test)]
mod tests;
