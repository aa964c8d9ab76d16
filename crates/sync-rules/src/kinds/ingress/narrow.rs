//! What a change of an Ingress takes away: its owner may close it, and the change may have to wait, or have no room.
//!
//! | what | when it is gone at once |
//! |---|---|
//! | a Service | if nothing of the Ingress leads to it any more, see [`backend::narrowed`] |
//! | networks whose clients ingress-nginx serves | those that are not within the new ones, or are denied now. If that cannot be said by what was there, or by all that is new, the Ingress leads nowhere |

use super::{
    SERVICES,
    settings::{DENIED_SOURCES, SOURCES},
};
use crate::{
    model::json,
    translation::{backend, metadata, sources},
};
use serde_json::Value;

/// The host's Ingress `live` without what `desired` does not have, if there is something.
pub(super) fn narrowed(desired: &Value, live: &Value) -> Option<Value> {
    let (Some(served), Some(denied)) = (still_served(desired, live), denied_now(desired, live)) else {
        return backend::narrowed(&Value::Null, live, &SERVICES);
    };
    let lost = backend::narrowed(desired, live, &SERVICES);
    let changes = [(SOURCES, served), (DENIED_SOURCES, denied)];
    let changes: Vec<(&str, Vec<Value>)> = changes
        .into_iter()
        .filter(|(key, networks)| *networks != listed(live, key))
        .collect();
    if changes.is_empty() {
        return lost;
    }
    let unchanged = || {
        let spec = live.get("spec")?.clone();
        Some(json::object([("metadata", metadata::unchanged(live)), ("spec", spec)]))
    };
    let mut narrowed = lost.or_else(unchanged)?;
    for (key, networks) in changes {
        let texts: Vec<&str> = networks.iter().filter_map(Value::as_str).collect();
        narrowed["metadata"]["annotations"][key] = texts.join(",").into();
    }
    Some(narrowed)
}

/// The networks whose clients are served until the change has its turn; empty for all, `None` for nobody.
fn still_served(desired: &Value, live: &Value) -> Option<Vec<Value>> {
    sources::remaining(&listed(desired, SOURCES), &listed(live, SOURCES))
}

/// The networks whose clients are denied until then; `None` if neither the old ones nor the new ones have all that are denied.
fn denied_now(desired: &Value, live: &Value) -> Option<Vec<Value>> {
    let (wanted, present) = (listed(desired, DENIED_SOURCES), listed(live, DENIED_SOURCES));
    if sources::hold(&present, &wanted) {
        Some(present)
    } else {
        sources::hold(&wanted, &present).then_some(wanted)
    }
}

/// The networks in an annotation.
fn listed(ingress: &Value, key: &str) -> Vec<Value> {
    let text = json::text(ingress, &["metadata", "annotations", key]).unwrap_or_default();
    let networks = text.split(',').map(str::trim).filter(|network| !network.is_empty());
    networks.map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An Ingress with a Service, whose clients are in these networks.
    fn ingress(service: &str, served: &str, denied: &str) -> Value {
        let mut annotations = json!({"nginx.ingress.kubernetes.io/proxy-body-size": "8m"});
        for (key, networks) in [(SOURCES, served), (DENIED_SOURCES, denied)] {
            if !networks.is_empty() {
                annotations[key] = networks.into();
            }
        }
        let paths = json!([{"path": "/", "backend": {"service": {"name": service}}}]);
        json!({
            "metadata": {"labels": {}, "annotations": annotations},
            "spec": {"rules": [{"host": "a.example.com", "http": {"paths": paths}}]},
        })
    }

    #[test]
    fn networks_that_are_closed_do_not_wait() {
        for (before, after, written) in [
            (("", ""), ("10.0.0.0/8", ""), ("10.0.0.0/8", "")),
            (
                ("10.0.0.0/8", ""),
                ("10.1.0.0/16, 10.2.0.7", ""),
                ("10.1.0.0/16,10.2.0.7", ""),
            ),
            (
                ("10.0.0.0/8,192.0.2.0/24", ""),
                ("192.0.2.0/24,198.51.100.0/24", ""),
                ("192.0.2.0/24", ""),
            ),
            (("", ""), ("", "192.0.2.0/24"), ("", "192.0.2.0/24")),
            (
                ("", "192.0.2.7"),
                ("", "192.0.2.0/24,10.0.0.0/8"),
                ("", "192.0.2.0/24,10.0.0.0/8"),
            ),
        ] {
            let of = |(served, denied)| ingress("web", served, denied);
            let narrowed = narrowed(&of(after), &of(before)).unwrap();
            assert_eq!(narrowed, of(written), "{before:?} {after:?}");
            assert_eq!(super::narrowed(&of(after), &narrowed), None, "the rest waits");
        }
    }

    #[test]
    fn an_ingress_whose_networks_are_all_others_leads_nowhere() {
        let nowhere = backend::nowhere_at_all();
        for (before, after) in [
            (("10.0.0.0/8", ""), ("192.0.2.0/24", "")),
            (("", "10.0.0.0/8"), ("", "192.0.2.0/24")),
        ] {
            let live = ingress("web", before.0, before.1);
            let desired = ingress("web", after.0, after.1);
            let narrowed = narrowed(&desired, &live).unwrap();
            assert_eq!(narrowed, ingress(&nowhere, before.0, before.1));
            assert_eq!(super::narrowed(&desired, &narrowed), None, "the rest waits");
        }
    }

    #[test]
    fn what_opens_or_says_the_same_waits() {
        let live = ingress("web", "10.0.0.0/8, 192.0.2.0/24", "10.0.0.7");
        for (served, denied) in [
            ("", "10.0.0.7"),
            ("192.0.2.0/24,10.0.0.0/8", "10.0.0.7/32"),
            ("10.0.0.0/8,192.0.2.0/24,198.51.100.0/24", ""),
        ] {
            assert_eq!(
                narrowed(&ingress("web", served, denied), &live),
                None,
                "{served} {denied}"
            );
        }
    }

    #[test]
    fn a_service_and_networks_are_lost_together() {
        let live = ingress("web", "", "");
        let narrowed = narrowed(&ingress("other", "10.0.0.0/8", ""), &live);
        assert_eq!(narrowed, Some(ingress(&backend::nowhere_at_all(), "10.0.0.0/8", "")));
    }
}
