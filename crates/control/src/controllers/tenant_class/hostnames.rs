//! Whether each host name of a class belongs to one of its tenants only: pure.

use super::class_of;
use berth_api::{
    TenantCluster,
    conditions::{ConditionUpdate, HOSTNAMES_EXCLUSIVE},
    hostnames,
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Namespace and name of a tenant.
pub(super) type TenantName = (String, String);

/// The tenants that the rules of the class `class` apply to, in a fixed order.
pub(super) fn tenants_of<'a>(
    tenants: impl Iterator<Item = &'a TenantCluster>,
    class: &str,
    exists: impl Fn(&str) -> bool,
) -> Vec<TenantName> {
    let mut names: Vec<TenantName> = tenants
        .filter(|tenant| class_of(tenant, &exists).as_deref() == Some(class))
        .map(|tenant| (tenant.namespace().unwrap_or_default(), tenant.name_any()))
        .collect();
    names.sort();
    names
}

/// The condition HostnamesExclusive of a class with these host names and tenants.
pub(super) fn exclusiveness(templates: &[String], tenants: &[TenantName]) -> ConditionUpdate {
    match find_overlap(templates, tenants) {
        None => ConditionUpdate::mark_true(
            HOSTNAMES_EXCLUSIVE,
            "NoOverlap",
            "no host name is allowed to two tenants of the class",
        ),
        Some(Overlap { hostname, tenants }) => {
            let [one, other] = tenants.map(|(namespace, name)| format!("{namespace}/{name}"));
            ConditionUpdate::mark_false(
                HOSTNAMES_EXCLUSIVE,
                "HostnamesShared",
                format!(
                    "the tenants {one} and {other} may both serve {hostname}: use {{tenant}} and {{namespace}} in \
                     spec.sync.ingress.hostnames, or give each of them a class of its own"
                ),
            )
        }
    }
}

/// A host name that two tenants may serve.
struct Overlap<'a> {
    hostname: String,
    tenants: [&'a TenantName; 2],
}

/// The first host name that two tenants may serve, in a fixed order: the condition must not change while nothing else does.
fn find_overlap<'a>(templates: &[String], tenants: &'a [TenantName]) -> Option<Overlap<'a>> {
    let mut owners: BTreeMap<String, &TenantName> = BTreeMap::new();
    for tenant in tenants {
        let (namespace, name) = tenant;
        for template in templates {
            let hostname = hostnames::expand(template, name, namespace);
            match owners.get(&hostname) {
                Some(owner) if *owner != tenant => {
                    let tenants = [*owner, tenant];
                    return Some(Overlap { hostname, tenants });
                }
                _ => {
                    owners.insert(hostname, tenant);
                }
            }
        }
    }
    owners.iter().find_map(|(hostname, tenant)| {
        let owner = wildcards_above(hostname)
            .filter_map(|wildcard| owners.get(&wildcard))
            .find(|owner| *owner != tenant)?;
        Some(Overlap {
            hostname: hostname.clone(),
            tenants: [*owner, *tenant],
        })
    })
}

/// The wildcards that cover a host name, which may be a wildcard itself.
fn wildcards_above(hostname: &str) -> impl Iterator<Item = String> {
    let domain = hostname.strip_prefix("*.").unwrap_or(hostname);
    let dots = domain
        .match_indices('.')
        .map(move |(dot, _)| format!("*{}", &domain[dot..]));
    let every = (hostname != "*").then(|| "*".to_owned());
    dots.chain(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(templates: &[&str], tenants: &[(&str, &str)]) -> Option<String> {
        let templates: Vec<String> = templates.iter().map(ToString::to_string).collect();
        let tenants: Vec<TenantName> = tenants
            .iter()
            .map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned()))
            .collect();
        find_overlap(&templates, &tenants).map(|overlap| overlap.hostname)
    }

    #[test]
    fn names_without_placeholders_are_shared_by_two_tenants() {
        let both = [("team-a", "vision"), ("team-b", "speech")];
        assert_eq!(overlap(&["*.example.com"], &both[..1]), None);
        assert_eq!(overlap(&[], &both), None);
        assert_eq!(overlap(&["*.example.com"], &both).as_deref(), Some("*.example.com"));
        assert_eq!(overlap(&["*"], &both).as_deref(), Some("*"));
    }

    #[test]
    fn placeholders_tell_tenants_apart_whose_values_differ() {
        let same_name = [("team-a", "vision"), ("team-b", "vision")];
        let same_namespace = [("team-a", "speech"), ("team-a", "vision")];
        let swapped = [("a-b", "c"), ("a", "b-c")];
        let whole = "*.{tenant}.{namespace}.example.com";
        for tenants in [same_name, same_namespace, swapped] {
            assert_eq!(overlap(&[whole], &tenants), None, "{tenants:?}");
        }
        assert!(overlap(&["*.{tenant}.example.com"], &same_name).is_some());
        assert_eq!(overlap(&["*.{tenant}.example.com"], &same_namespace), None);
        assert!(overlap(&["*.{namespace}.example.com"], &same_namespace).is_some());
    }

    #[test]
    fn a_wildcard_covers_names_of_others_below_it() {
        // The tenant `a` has `*.a.example.com`, in which the name of the other in the namespace `a` lies.
        let tenants = [("a", "vision"), ("b", "a")];
        let templates = ["*.{tenant}.example.com", "app.{tenant}.{namespace}.example.com"];
        assert_eq!(
            overlap(&templates, &tenants).as_deref(),
            Some("app.vision.a.example.com")
        );
        assert_eq!(overlap(&templates, &[("a", "vision"), ("b", "c")]), None);
        assert!(overlap(&["*.example.com", "*.{tenant}.example.com"], &tenants).is_some());
    }

    #[test]
    fn the_condition_names_both_tenants_and_what_to_do() {
        let tenants: Vec<TenantName> = vec![("team-a".into(), "vision".into()), ("team-b".into(), "speech".into())];
        let update = exclusiveness(&["*.example.com".into()], &tenants);
        assert_eq!((update.status, update.reason), (Some(false), "HostnamesShared"));
        for part in [
            "team-a/vision",
            "team-b/speech",
            "*.example.com",
            "{tenant} and {namespace}",
        ] {
            assert!(update.message.contains(part), "{part}: {}", update.message);
        }
        assert!(exclusiveness(&[], &tenants).is_true());
    }
}
