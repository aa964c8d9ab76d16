//! Networks outside a tenant that it may reach and be reached from: those of its spec, as far as its class allows them, or the
//! defaults of its class.

use berth_api::{
    TenantNetwork,
    network::{ClassEgress, ClassIngress, ClassNetwork, EgressRule, IngressRule},
    ranges,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The allowed networks of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedNetworks {
    /// Networks that its pods may reach.
    pub egress: Vec<EgressRule>,
    /// Networks and host namespaces that may reach its pods.
    pub ingress: Vec<IngressRule>,
}

/// The allowed networks of a tenant with this spec and class. No class can allow `blocked` ranges.
///
/// # Errors
/// The class does not allow a network of the spec; the message is for the condition Accepted.
pub fn resolve_allowed_networks(
    network: &TenantNetwork,
    class: &ClassNetwork,
    blocked: &[IpNet],
) -> Result<AllowedNetworks, String> {
    let TenantNetwork { egress, ingress } = network;
    let egress = match egress {
        None => class.egress.default.clone(),
        Some(rules) => {
            for (index, rule) in rules.allow.iter().enumerate() {
                validate_egress(rule, &class.egress, blocked)
                    .map_err(|why| format!("spec.network.egress.allow[{index}]: {why}"))?;
            }
            rules.allow.clone()
        }
    };
    let ingress = match ingress {
        None => class.ingress.default.clone(),
        Some(rules) => {
            for (index, rule) in rules.allow.iter().enumerate() {
                validate_ingress(rule, &class.ingress)
                    .map_err(|why| format!("spec.network.ingress.allow[{index}]: {why}"))?;
            }
            rules.allow.clone()
        }
    };
    Ok(AllowedNetworks { egress, ingress })
}

/// The networks that a class still allows of those that it allowed a tenant earlier: its own defaults, and what lies within its lists.
/// The messages say why it does not allow the others.
pub fn restrict_to_class(allowed: &AllowedNetworks, class: &ClassNetwork) -> (AllowedNetworks, Vec<String>) {
    let AllowedNetworks { egress, ingress } = allowed;
    let mut errors = Vec::new();
    let mut is_allowed = |validated: Result<(), String>| validated.map_err(|why| errors.push(why)).is_ok();
    let egress = egress
        .iter()
        .filter(|rule| class.egress.default.contains(rule) || is_allowed(validate_egress(rule, &class.egress, &[])));
    let egress: Vec<EgressRule> = egress.cloned().collect();
    let ingress = ingress
        .iter()
        .filter(|rule| class.ingress.default.contains(rule) || is_allowed(validate_ingress(rule, &class.ingress)));
    let ingress: Vec<IngressRule> = ingress.cloned().collect();
    (AllowedNetworks { egress, ingress }, errors)
}

fn validate_egress(rule: &EgressRule, class: &ClassEgress, blocked: &[IpNet]) -> Result<(), String> {
    let cidr = parse_allowed(&rule.cidr, &class.allowed_cidrs)?;
    match blocked.iter().find(|range| range.contains(&cidr)) {
        Some(_) => Err(format!(
            "{cidr} belongs to the platform and cannot be allowed; remove it"
        )),
        None => Ok(()),
    }
}

fn validate_ingress(rule: &IngressRule, class: &ClassIngress) -> Result<(), String> {
    match (&rule.cidr, &rule.namespace) {
        (Some(cidr), None) => parse_allowed(cidr, &class.allowed_cidrs).map(|_| ()),
        (None, Some(namespace)) if class.allowed_namespaces.contains(namespace) => Ok(()),
        (None, Some(namespace)) => Err(format!(
            "the class does not allow ingress from the host's namespace {namespace}; {}",
            suggest("use", &class.allowed_namespaces)
        )),
        _ => Err("exactly one of cidr and namespace must be given".into()),
    }
}

/// Parses a CIDR that the class must allow.
fn parse_allowed(cidr: &str, allowed: &[String]) -> Result<IpNet, String> {
    let range = ranges::parse(cidr)?;
    let contains = |text: &&String| ranges::parse(text).is_ok_and(|network| network.contains(&range));
    match allowed.iter().find(contains) {
        Some(_) => Ok(range),
        None => Err(format!(
            "the class does not allow {cidr}; {}",
            suggest("use a range in", allowed)
        )),
    }
}

fn suggest(action: &str, allowed: &[String]) -> String {
    if allowed.is_empty() {
        "the class allows none".into()
    } else {
        format!("{action} {}", allowed.join(", "))
    }
}

/// The first validation error of a class's network settings, with its field.
pub fn validate_class_network(class: &ClassNetwork) -> Option<String> {
    let ClassNetwork {
        egress,
        ingress,
        endpoint_cidrs,
        blocked_cidrs,
        // Checked with the lists of the class that are like it.
        api_server_egress: _,
    } = class;
    let lists = [
        ("egress.allowedCIDRs", &egress.allowed_cidrs),
        ("ingress.allowedCIDRs", &ingress.allowed_cidrs),
    ];
    for (path, list) in lists {
        if let Some(why) = list.iter().find_map(|text| ranges::parse(text).err()) {
            return Some(format!("spec.network.{path}: {why}"));
        }
    }
    if let Some(why) = egress.default.iter().find_map(|rule| ranges::parse(&rule.cidr).err()) {
        return Some(format!("spec.network.egress.default: {why}"));
    }
    if let Some(closed) = find_closed(endpoint_cidrs, blocked_cidrs) {
        return Some(format!(
            "spec.network.endpointCIDRs: {closed} is never open: it lies in spec.network.blockedCIDRs, or its addresses are \
             those of nodes or metadata services; remove it"
        ));
    }
    let why = ingress
        .default
        .iter()
        .find_map(|rule| match (&rule.cidr, &rule.namespace) {
            (Some(cidr), None) => ranges::parse(cidr).err(),
            (None, Some(_)) => None,
            _ => Some("exactly one of cidr and namespace must be given".into()),
        })?;
    Some(format!("spec.network.ingress.default: {why}"))
}

/// A range that lies wholly within what is closed on every host, or within what the class blocks.
fn find_closed(offered: &[String], blocked: &[String]) -> Option<IpNet> {
    let closed: Vec<IpNet> = ranges::never_open().chain(ranges::blocking(blocked)).collect();
    let mut offered = offered.iter().filter_map(|text| ranges::parse(text).ok());
    offered.find(|range| closed.iter().any(|closed| closed.contains(range)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::network::{EgressRules, IngressRules};

    fn class() -> ClassNetwork {
        serde_json::from_value(serde_json::json!({
            "egress": {"allowedCIDRs": ["10.0.0.0/8", "0.0.0.0/0"], "default": [{"cidr": "10.1.0.0/16"}]},
            "ingress": {"allowedCIDRs": ["192.0.2.0/24"], "allowedNamespaces": ["ingress-nginx"]},
        }))
        .unwrap()
    }

    fn to(cidr: &str) -> TenantNetwork {
        let rule = EgressRule {
            cidr: cidr.into(),
            ports: vec![443],
            protocol: None,
        };
        TenantNetwork {
            egress: Some(EgressRules { allow: vec![rule] }),
            ..TenantNetwork::default()
        }
    }

    fn from(cidr: Option<&str>, namespace: Option<&str>) -> TenantNetwork {
        let rule = IngressRule {
            cidr: cidr.map(Into::into),
            namespace: namespace.map(Into::into),
            ports: Vec::new(),
            protocol: None,
        };
        TenantNetwork {
            ingress: Some(IngressRules { allow: vec![rule] }),
            ..TenantNetwork::default()
        }
    }

    #[test]
    fn a_tenant_without_networks_gets_the_defaults_of_its_class() {
        let given = resolve_allowed_networks(&TenantNetwork::default(), &class(), &[]).unwrap();
        assert_eq!((given.egress[0].cidr.as_str(), given.ingress.len()), ("10.1.0.0/16", 0));
        let none = resolve_allowed_networks(&TenantNetwork::default(), &ClassNetwork::default(), &[]).unwrap();
        assert_eq!(none, AllowedNetworks::default());
        let empty = TenantNetwork {
            egress: Some(EgressRules::default()),
            ..TenantNetwork::default()
        };
        assert_eq!(
            resolve_allowed_networks(&empty, &class(), &[]).unwrap(),
            AllowedNetworks::default(),
            "an empty list allows nothing"
        );
    }

    #[test]
    fn networks_that_the_class_allows_are_accepted() {
        assert_eq!(
            resolve_allowed_networks(&to("10.20.0.0/16"), &class(), &[])
                .unwrap()
                .egress[0]
                .ports,
            [443]
        );
        assert!(resolve_allowed_networks(&from(Some("192.0.2.16/28"), None), &class(), &[]).is_ok());
        assert!(resolve_allowed_networks(&from(None, Some("ingress-nginx")), &class(), &[]).is_ok());
    }

    #[test]
    fn networks_that_the_class_does_not_allow_are_rejected_with_a_message() {
        let error = |network: TenantNetwork, class: &ClassNetwork| {
            let blocked = [ranges::parse("10.96.0.0/16").unwrap()];
            resolve_allowed_networks(&network, class, &blocked).unwrap_err()
        };
        let message = error(to("fd00::/8"), &class());
        assert_eq!(
            message,
            "spec.network.egress.allow[0]: the class does not allow fd00::/8; use a range in 10.0.0.0/8, 0.0.0.0/0"
        );
        let message = error(to("10.20.0.0/16"), &ClassNetwork::default());
        assert!(message.ends_with("; the class allows none"), "{message}");
        let message = error(to("10.96.4.0/24"), &class());
        assert!(message.contains("cannot be allowed"), "{message}");
        let message = error(from(Some("0.0.0.0/0"), None), &class());
        assert!(
            message.starts_with("spec.network.ingress.allow[0]: the class does not allow 0.0.0.0/0"),
            "{message}"
        );
        let message = error(from(None, Some("kube-system")), &class());
        assert!(
            message.contains("namespace kube-system; use ingress-nginx"),
            "{message}"
        );
        let message = error(from(None, None), &class());
        assert!(message.contains("exactly one"), "{message}");
    }

    #[test]
    fn what_a_class_no_longer_allows_is_left_out_with_a_message() {
        let declared = |egress: &str, namespace: &str| {
            let network = TenantNetwork {
                egress: to(egress).egress,
                ingress: from(None, Some(namespace)).ingress,
            };
            resolve_allowed_networks(&network, &class(), &[]).unwrap()
        };
        let earlier = declared("10.20.0.0/16", "ingress-nginx");
        assert_eq!(restrict_to_class(&earlier, &class()), (earlier.clone(), Vec::new()));
        let mut narrower = class();
        narrower.egress.allowed_cidrs = vec!["10.20.0.0/24".into()];
        narrower.ingress.allowed_namespaces.clear();
        let (kept, errors) = restrict_to_class(&earlier, &narrower);
        assert_eq!(kept, AllowedNetworks::default());
        assert!(
            errors[0].contains("10.20.0.0/16") && errors[1].contains("ingress-nginx"),
            "{errors:?}"
        );
        let defaults = resolve_allowed_networks(&TenantNetwork::default(), &narrower, &[]).unwrap();
        let (kept, errors) = restrict_to_class(&defaults, &narrower);
        assert_eq!((kept, errors.len()), (defaults, 0), "its own defaults");
    }

    #[test]
    fn validation_errors_of_a_class_name_the_field() {
        assert_eq!(validate_class_network(&class()), None);
        let mut bad = class();
        bad.egress.default[0].cidr = "10.0.0.0/99".into();
        assert!(
            validate_class_network(&bad)
                .unwrap()
                .starts_with("spec.network.egress.default: ")
        );
        let mut bad = class();
        bad.ingress.allowed_cidrs = vec!["x".into()];
        assert!(
            validate_class_network(&bad)
                .unwrap()
                .starts_with("spec.network.ingress.allowedCIDRs: ")
        );
    }

    #[test]
    fn a_class_offers_no_endpoints_in_networks_that_are_closed() {
        let offering = |cidr: &str| {
            let mut class = class();
            class.blocked_cidrs = vec!["10.20.0.0/16".into()];
            class.endpoint_cidrs = vec!["192.0.2.0/24".into(), cidr.into()];
            validate_class_network(&class)
        };
        for closed in [
            "10.20.7.0/24",
            "10.20.0.0/16",
            "169.254.169.254/32",
            "127.0.0.0/8",
            "fe80::/64",
        ] {
            let message = offering(closed).unwrap_or_default();
            let start = format!("spec.network.endpointCIDRs: {closed} is never open: ");
            assert!(message.starts_with(&start), "{message}");
        }
        // What is closed within them stays closed.
        for open in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "10.21.0.0/16"] {
            assert_eq!(offering(open), None, "{open}");
        }
    }
}
