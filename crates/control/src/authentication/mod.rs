//! Which OIDC issuers a tenant's API server may trust: pure.
//!
//! An API server connects to the issuers that it trusts, so a team that lists an issuer decides on a connection. It goes through the syncer's
//! egress broker, like every other: to hosts that the class lists, and to the tenant's own Services. [`resolve`] rejects
//! issuers that the broker would not connect to, and what the API server would not start with. The schemas reject most of that earlier.

mod narrow;
mod proven;
mod published;
mod validate;

use berth_api::{
    ClassAuthentication, Issuer, JwtAuthenticator, TenantAuthentication, TenantClassSpec, network::ClassNetwork,
};
use berth_sync_rules::egress::target::{Host, Target};
use serde::{Deserialize, Serialize};

use crate::control_plane::CLUSTER_DOMAIN;
pub use narrow::narrow_to_spec;
pub use proven::{are_proven, keep_proven};
pub use published::publish_kubeconfig;
pub use validate::{check_service_account_issuer, find_error, find_unusable_issuer};

/// What a tenant has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResolvedAuthentication {
    /// The issuers.
    pub rules: TenantAuthentication,
    /// Whether they are those of its class.
    pub from_class: bool,
}

/// What a tenant had that an earlier version recorded: nothing of its own.
impl Default for ResolvedAuthentication {
    fn default() -> Self {
        Self::of_class(&ClassAuthentication::default())
    }
}

impl ResolvedAuthentication {
    /// What a tenant has that sets nothing.
    pub fn of_class(class: &ClassAuthentication) -> Self {
        Self {
            rules: class.default.clone(),
            from_class: true,
        }
    }

    /// The network rules of a class, with the hosts that these issuers' discovery documents come from among those that API servers may
    /// reach.
    pub fn open_hosts(&self, class: &ClassNetwork) -> ClassNetwork {
        let mut network = class.clone();
        let hosts = &mut network.api_server_egress.hosts;
        for target in self.rules.jwt.iter().filter_map(|jwt| discovery_host(&jwt.issuer).ok()) {
            let host = target.to_string();
            if !is_in_tenant(&target) && !is_listed(hosts, &target) {
                hosts.push(host);
            }
        }
        network
    }
}

/// What a tenant gets that sets `own`.
///
/// # Errors
/// Why the class or Berth does not allow it, and what to do.
pub fn resolve(own: Option<&TenantAuthentication>, class: &TenantClassSpec) -> Result<ResolvedAuthentication, String> {
    let Some(own) = own else {
        return Ok(ResolvedAuthentication::of_class(&class.authentication));
    };
    check(own, class)?;
    Ok(ResolvedAuthentication {
        rules: own.clone(),
        from_class: false,
    })
}

/// Whether a class allows what a tenant sets.
///
/// # Errors
/// Why not, and what to do.
pub fn check(own: &TenantAuthentication, class: &TenantClassSpec) -> Result<(), String> {
    let rules = &class.authentication;
    if rules.locked {
        return Err("the class does not let tenants set spec.authentication; remove it".into());
    }
    if let Some(error) = find_error(own) {
        return Err(format!("spec.authentication.{error}"));
    }
    for (index, JwtAuthenticator { issuer, .. }) in own.jwt.iter().enumerate() {
        let url = &issuer.url;
        let field = format!("spec.authentication.jwt[{index}].issuer");
        if !rules.allowed_issuers.is_empty() && !rules.allowed_issuers.contains(url) {
            return Err(format!(
                "{field}.url: the class does not allow the issuer {url}; use one of {}, or ask the platform team to list it in the class's \
                 spec.authentication.allowedIssuers",
                rules.allowed_issuers.join(", ")
            ));
        }
        let target = discovery_host(issuer).map_err(|error| format!("{field}.{error}"))?;
        // What serves the keys decides who signs in, so it must be the issuer that the class lists.
        if !rules.allowed_issuers.is_empty() && !is_served_by_issuer(issuer, &target, class) {
            return Err(format!(
                "{field}.discoveryURL: the class lists the issuer {url}, not another host that serves its keys; remove the field, or ask the \
                 platform team to list the issuer with this discoveryURL in the class's spec.authentication.default"
            ));
        }
        let is_own = rules.allowed_issuers.is_empty() && is_in_tenant(&target);
        if !is_own && !may_reach(&target, class) {
            return Err(format!(
                "{field}: API servers of this class may not connect to {target}; ask the platform team to list the issuer in the class's \
                 spec.authentication.allowedIssuers, or the host in its spec.network.apiServerEgress.hosts"
            ));
        }
    }
    Ok(())
}

/// Where the API server gets the discovery document of an issuer.
///
/// # Errors
/// The field and why it names no host.
fn discovery_host(issuer: &Issuer) -> Result<Target, String> {
    let (field, url) = match &issuer.discovery_url {
        Some(url) => ("discoveryURL", url),
        None => ("url", &issuer.url),
    };
    validate::host_of(url).map_err(|error| format!("{field}: {url:?} {error}"))
}

/// Whether the discovery document of an issuer comes from the host of its URL, or from where the class itself says.
fn is_served_by_issuer(issuer: &Issuer, target: &Target, class: &TenantClassSpec) -> bool {
    let is_own = validate::host_of(&issuer.url).is_ok_and(|own| own == *target);
    let of_class = |jwt: &JwtAuthenticator| {
        jwt.issuer.url == issuer.url
            && jwt.issuer.discovery_url == issuer.discovery_url
            && jwt.issuer.certificate_authority == issuer.certificate_authority
    };
    is_own || class.authentication.default.jwt.iter().any(of_class)
}

/// Whether a class lets API servers connect to a host: as a host of webhooks, of an issuer that it lists, or of its default.
fn may_reach(target: &Target, class: &TenantClassSpec) -> bool {
    let rules = &class.authentication;
    let listed = rules
        .allowed_issuers
        .iter()
        .filter_map(|url| validate::host_of(url).ok());
    let default = rules
        .default
        .jwt
        .iter()
        .filter_map(|jwt| discovery_host(&jwt.issuer).ok());
    is_listed(&class.network.api_server_egress.hosts, target) || listed.chain(default).any(|known| known == *target)
}

/// Whether a list of hosts, in which `host` means port 443, has the target. As the syncer reads it.
fn is_listed(hosts: &[String], target: &Target) -> bool {
    let mut read = hosts.iter().filter_map(|text| {
        Target::parse(text)
            .or_else(|_| Target::parse(&format!("{text}:443")))
            .ok()
    });
    read.any(|listed| listed == *target)
}

/// Whether the host is a Service of the tenant. The broker connects to its pods without asking the class.
fn is_in_tenant(target: &Target) -> bool {
    let Host::Name(name) = &target.host else { return false };
    let name = name.strip_suffix(&format!(".{CLUSTER_DOMAIN}")).unwrap_or(name);
    name.rsplit_once('.').is_some_and(|(_, last)| last == "svc")
}

#[cfg(test)]
mod tests;
