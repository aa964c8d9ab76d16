//! The tenant's DNS: upstream CoreDNS, which reads names from the tenant's API server with a client certificate that may do
//! nothing else.
//!
//! Its pods listen on [`Ports::dns`](super::Ports) over UDP and TCP, behind port 53 of the host Service `kube-dns` of the
//! control-plane namespace; 8080 (`/health`), 8181 (`/ready`) and 9153 (`/metrics`) are for the node and for monitoring.
//! They must be reached from the tenant's pods, and must reach the tenant's API server and port 53 of the servers that
//! the class lists: the node's resolver, `dns.upstreams` and `dns.serverCIDRs`.

mod corefile;

use super::{
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::{COREDNS, Component, FILES, Form, Health, Program},
    input::{ControlPlaneInput, DnsInput},
};
use berth_pki::Usage;
use corefile::{EMPTY_ZONE, HOSTS, corefile, empty_zone, hosts};
use std::collections::BTreeMap;

/// User name of CoreDNS in its tenant.
pub const DNS_USER: &str = "berth:coredns";

/// Probes of its pods. Once `/ready` has succeeded, it fails only when the program ends.
const HEALTH: Health = Health {
    port: 8181,
    tls: false,
    live: "/ready",
    ready: "/ready",
};

pub(super) fn render(
    input: &ControlPlaneInput<'_>,
    dns: &DnsInput,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Option<Component>, CertificateError> {
    // Issued in any case: otherwise it would not be stored, and the next one would restart CoreDNS.
    let issued = leaves.issue(&authorities.client, COREDNS, &Leaf::new(DNS_USER, Usage::Client))?;
    let Some(customization) = &dns.customization else {
        return Ok(None);
    };
    let mut files = BTreeMap::new();
    issued.put(&mut files, "client");
    files.insert(
        "kubeconfig".into(),
        authorities.kubeconfig_from_files(&input.endpoints.api_server.https_url())?,
    );
    files.insert(
        "Corefile".into(),
        corefile(input.form, input.endpoints.dns.listen, dns, customization),
    );
    files.insert(HOSTS.into(), hosts(customization));
    files.insert(EMPTY_ZONE.into(), empty_zone());
    Ok(Some(Component {
        name: COREDNS,
        program: Program::CoreDns,
        args: vec!["-conf".into(), format!("{FILES}/Corefile")],
        env: BTreeMap::new(),
        files,
        host_service_account: None,
        memory_limit: None,
        health: (input.form != Form::Process).then_some(HEALTH),
        overlaps: true,
        replicas: input.form.replicas(),
    }))
}
