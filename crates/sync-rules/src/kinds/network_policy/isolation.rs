//! Which pods the tenant's policies select. The platform's own policies open traffic only for pods with these labels:
//!
//! | label of the host pod | as long as |
//! |---|---|
//! | `net.berth.dev/ingress: open` | no policy of the tenant for ingress selects the pod |
//! | `net.berth.dev/egress: open` | no policy of the tenant for egress selects the pod |
//!
//! A pod that a policy for egress selects may have labels for DNS and the API server, see [`services`](super::services).

use super::services::{self, Service};
use crate::{
    model::{Cache, KindId, json, resource::Name},
    translation::{
        selector,
        sizes::{NETWORK_POLICY_SELECTOR, SizeLimit},
    },
};
use berth_api::labels;
use serde_json::{Map, Value, json};

/// The directions that a policy with this `spec` restricts.
pub fn directions(spec: &Value) -> impl Iterator<Item = &'static str> {
    let types = json::items(spec, &["policyTypes"]);
    let about = |direction: &str| types.iter().any(|known| known == direction);
    // API servers fill in the types; without them, a policy is about egress if it has rules for it.
    let ingress = types.is_empty() || about("Ingress");
    let egress = about("Egress") || (types.is_empty() && !json::items(spec, &["egress"]).is_empty());
    [("Ingress", ingress), ("Egress", egress)]
        .into_iter()
        .filter_map(|(direction, yes)| yes.then_some(direction))
}

/// What a policy means for the pods of its namespace, without its rules: every pod that changes is compared with all policies there. A selector with
/// more than a policy may have is left out, as one that cannot be read: the policy is not on the host, and so it closes all pods.
fn summarize(cache: &Cache, namespace: &str, policy: &Value) -> Value {
    let spec = &policy["spec"];
    let restricts = |direction: &str| !spec.is_object() || directions(spec).any(|known| known == direction);
    let mut summary = json!({"ingress": restricts("Ingress"), "egress": restricts("Egress")});
    let is_small = |limit: &SizeLimit| limit.measure.count(policy) <= limit.in_tenant;
    if NETWORK_POLICY_SELECTOR.iter().all(is_small) {
        summary["podSelector"] = spec["podSelector"].clone();
    }
    for service in Service::ALL {
        summary["opens"][service.label()] = service.is_opened_by(cache, namespace, spec).into();
    }
    summary
}

/// Labels of a host pod that say in which directions no policy of the tenant selects it.
pub fn labels_of(cache: &Cache, name: &Name, pod: &Value) -> Map<String, Value> {
    let (mut ingress, mut egress) = (true, true);
    let mut services = [false; Service::ALL.len()];
    let policies = cache.stores.tenant(KindId::NetworkPolicy);
    if !policies.is_empty() {
        let labels = json::strings(pod, &["metadata", "labels"]);
        let version = services::version_of_dns_namespace(cache);
        for (policy, stored) in policies.all() {
            if policy.namespace != name.namespace {
                continue;
            }
            let policy = stored.extract(version, |object| summarize(cache, &name.namespace, object));
            let selected = &policy["podSelector"];
            // A selector that cannot be parsed might select anything.
            let is_selected = (!selected.is_null())
                .then(|| selector::matches(selected, &labels))
                .flatten();
            if is_selected == Some(false) {
                continue;
            }
            ingress &= policy["ingress"] != true;
            if policy["egress"] != true {
                continue;
            }
            egress = false;
            let opens = is_selected == Some(true);
            for (service, is_open) in Service::ALL.iter().zip(&mut services) {
                *is_open |= opens && policy["opens"][service.label()] == true;
            }
        }
    }
    let services = Service::ALL.iter().zip(services);
    let services = services.map(|(service, is_open)| (service.label(), is_open && !egress));
    [(labels::NETWORK_INGRESS, ingress), (labels::NETWORK_EGRESS, egress)]
        .into_iter()
        .chain(services)
        .filter(|(_, is_open)| *is_open)
        .map(|(label, _)| (label.to_owned(), labels::NETWORK_OPEN.into()))
        .collect()
}
