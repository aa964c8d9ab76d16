//! What is declared for a tenant: what it asks for itself, as far as its class allows, or what its class gives to tenants
//! that ask for nothing.

use berth_api::{
    TenantNetwork,
    network::{ClassEgress, ClassIngress, ClassNetwork, EgressRule, IngressRule},
    ranges,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What passes the border of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Declared {
    /// What its pods may reach.
    pub egress: Vec<EgressRule>,
    /// Who may reach its pods.
    pub ingress: Vec<IngressRule>,
}

/// What is declared for a tenant with this spec and class. `blocked` is what no class can open.
///
/// # Errors
/// What the class does not allow, in words for the condition Accepted.
pub fn declared(network: &TenantNetwork, class: &ClassNetwork, blocked: &[IpNet]) -> Result<Declared, String> {
    let TenantNetwork { egress, ingress } = network;
    let egress = match egress {
        None => class.egress.default.clone(),
        Some(rules) => {
            for (index, rule) in rules.allow.iter().enumerate() {
                may_open(rule, &class.egress, blocked)
                    .map_err(|why| format!("spec.network.egress.allow[{index}]: {why}"))?;
            }
            rules.allow.clone()
        }
    };
    let ingress = match ingress {
        None => class.ingress.default.clone(),
        Some(rules) => {
            for (index, rule) in rules.allow.iter().enumerate() {
                may_let_in(rule, &class.ingress)
                    .map_err(|why| format!("spec.network.ingress.allow[{index}]: {why}"))?;
            }
            rules.allow.clone()
        }
    };
    Ok(Declared { egress, ingress })
}

fn may_open(rule: &EgressRule, class: &ClassEgress, blocked: &[IpNet]) -> Result<(), String> {
    let cidr = within(&rule.cidr, &class.allowed_cidrs)?;
    match blocked.iter().find(|range| range.contains(&cidr)) {
        Some(_) => Err(format!("{cidr} is the platform's own and is never opened; remove it")),
        None => Ok(()),
    }
}

fn may_let_in(rule: &IngressRule, class: &ClassIngress) -> Result<(), String> {
    match (&rule.cidr, &rule.namespace) {
        (Some(cidr), None) => within(cidr, &class.allowed_cidrs).map(|_| ()),
        (None, Some(namespace)) if class.allowed_namespaces.contains(namespace) => Ok(()),
        (None, Some(namespace)) => Err(format!(
            "the class lets nobody of the host's namespace {namespace} in; use {}",
            any_of(&class.allowed_namespaces)
        )),
        _ => Err("exactly one of cidr and namespace must be given".into()),
    }
}

/// The range, if the class allows it.
fn within(cidr: &str, allowed: &[String]) -> Result<IpNet, String> {
    let range = ranges::parse(cidr)?;
    let contains = |text: &&String| ranges::parse(text).is_ok_and(|network| network.contains(&range));
    match allowed.iter().find(contains) {
        Some(_) => Ok(range),
        None => Err(format!(
            "the class does not allow {cidr}; stay within {}",
            any_of(allowed)
        )),
    }
}

fn any_of(list: &[String]) -> String {
    if list.is_empty() {
        "nothing: it allows none".into()
    } else {
        list.join(", ")
    }
}

/// What is wrong with the defaults of a class and where, if anything is.
pub fn fault(class: &ClassNetwork) -> Option<String> {
    let ClassNetwork {
        egress,
        ingress,
        // Checked with the lists of the class that are like them.
        api_server_egress: _,
        endpoint_cidrs: _,
        blocked_cidrs: _,
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
    fn a_tenant_that_asks_for_nothing_has_what_its_class_gives() {
        let given = declared(&TenantNetwork::default(), &class(), &[]).unwrap();
        assert_eq!((given.egress[0].cidr.as_str(), given.ingress.len()), ("10.1.0.0/16", 0));
        let none = declared(&TenantNetwork::default(), &ClassNetwork::default(), &[]).unwrap();
        assert_eq!(none, Declared::default());
        let closed = TenantNetwork {
            egress: Some(EgressRules::default()),
            ..TenantNetwork::default()
        };
        assert_eq!(
            declared(&closed, &class(), &[]).unwrap(),
            Declared::default(),
            "an empty list is a word as well"
        );
    }

    #[test]
    fn what_the_class_allows_is_given() {
        assert_eq!(
            declared(&to("10.20.0.0/16"), &class(), &[]).unwrap().egress[0].ports,
            [443]
        );
        assert!(declared(&from(Some("192.0.2.16/28"), None), &class(), &[]).is_ok());
        assert!(declared(&from(None, Some("ingress-nginx")), &class(), &[]).is_ok());
    }

    #[test]
    fn what_it_does_not_allow_is_refused_in_words() {
        let refusal = |network: TenantNetwork, class: &ClassNetwork| {
            let blocked = [ranges::parse("10.96.0.0/16").unwrap()];
            declared(&network, class, &blocked).unwrap_err()
        };
        let words = refusal(to("fd00::/8"), &class());
        assert_eq!(
            words,
            "spec.network.egress.allow[0]: the class does not allow fd00::/8; stay within 10.0.0.0/8, 0.0.0.0/0"
        );
        let words = refusal(to("10.20.0.0/16"), &ClassNetwork::default());
        assert!(words.ends_with("stay within nothing: it allows none"), "{words}");
        let words = refusal(to("10.96.4.0/24"), &class());
        assert!(words.contains("is never opened"), "{words}");
        let words = refusal(from(Some("0.0.0.0/0"), None), &class());
        assert!(
            words.starts_with("spec.network.ingress.allow[0]: the class does not allow 0.0.0.0/0"),
            "{words}"
        );
        let words = refusal(from(None, Some("kube-system")), &class());
        assert!(words.contains("namespace kube-system in; use ingress-nginx"), "{words}");
        let words = refusal(from(None, None), &class());
        assert!(words.contains("exactly one"), "{words}");
    }

    #[test]
    fn faults_of_a_class_name_the_field() {
        assert_eq!(fault(&class()), None);
        let mut bad = class();
        bad.egress.default[0].cidr = "10.0.0.0/99".into();
        assert!(fault(&bad).unwrap().starts_with("spec.network.egress.default: "));
        let mut bad = class();
        bad.ingress.allowed_cidrs = vec!["x".into()];
        assert!(fault(&bad).unwrap().starts_with("spec.network.ingress.allowedCIDRs: "));
    }
}
