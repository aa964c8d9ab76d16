//! The taints of a tenant's Nodes.
//!
//! In a tenant no node lifecycle controller runs: the host's watches the real nodes, and its taints are synced. The
//! tenant's API server taints every new Node as not ready, as in every cluster, and the syncer removes that.
//!
//! | taint | set and removed by |
//! |---|---|
//! | `node.kubernetes.io/` `not-ready`, `unreachable`, `network-unavailable`, `disk-pressure`, `memory-pressure`, `pid-pressure`, `out-of-service` | the host: the tenant's Node has what the host's Node has |
//! | `node.kubernetes.io/unschedulable` | the syncer, with `spec.unschedulable`, which the platform or the tenant sets |
//! | others of the host's Node, such as `nvidia.com/gpu` | the host |
//! | any other | the tenant; it stays |

use crate::model::{
    json,
    taint::{Taint, UNSCHEDULABLE},
};
use berth_api::labels;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The taints of a tenant's Node: those of the host's Node, that of a cordon, and the tenant's own. `live` is the tenant's
/// Node, if it exists.
pub fn desired(host: &[Value], is_cordoned: bool, live: Option<&Value>) -> Vec<Value> {
    let mut taints = host.to_vec();
    if is_cordoned && !taints.iter().any(|taint| taint["key"] == UNSCHEDULABLE) {
        taints.push(json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"}));
    }
    let synced = live.map(synced_before).unwrap_or_default();
    let present = live
        .map(|live| json::items(live, &["spec", "taints"]))
        .unwrap_or_default();
    for taint in present {
        let parsed = Taint::new(taint);
        let is_own =
            !parsed.is_of_kubernetes() && !labels::is_reserved(&parsed.key) && !synced.contains(&identity(&parsed));
        if is_own && !taints.iter().any(|known| Taint::new(known).is_same_as(&parsed)) {
            taints.push(taint.clone());
        }
    }
    taints
}

/// Whether a taint of a tenant's Node is the tenant's own. `host` has the taints of the host's Node.
pub fn is_own(taint: &Taint, host: &[Taint]) -> bool {
    !taint.is_of_kubernetes() && !host.iter().any(|known| known.is_same_as(taint))
}

/// The value of [`labels::HOST_TAINTS`]: which taints of the tenant's Node are the host's. When one of them goes away on the
/// host, this tells it from the tenant's own.
pub fn identities(host: &[Value]) -> String {
    let identities: BTreeSet<String> = host.iter().map(|taint| identity(&Taint::new(taint))).collect();
    identities.into_iter().collect::<Vec<_>>().join(",")
}

fn synced_before(live: &Value) -> BTreeSet<String> {
    let list = json::text(live, &["metadata", "annotations", labels::HOST_TAINTS]).unwrap_or_default();
    list.split(',').map(ToOwned::to_owned).collect()
}

fn identity(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Value {
        json!({"key": key, "effect": effect})
    }

    fn live(synced: &[Value], taints: &[Value]) -> Value {
        json!({"metadata": {"annotations": {labels::HOST_TAINTS: identities(synced)}}, "spec": {"taints": taints}})
    }

    #[test]
    fn a_new_node_is_ready_as_soon_as_the_hosts_is() {
        let not_ready = taint("node.kubernetes.io/not-ready", "NoSchedule");
        let new = live(&[], std::slice::from_ref(&not_ready));
        assert_eq!(desired(&[], false, Some(&new)), [Value::Null; 0]);
        let host = [not_ready];
        assert_eq!(desired(&host, false, Some(&new)), host);
    }

    #[test]
    fn condition_taints_follow_the_host_both_ways() {
        for name in ["not-ready", "unreachable", "disk-pressure", "out-of-service"] {
            let host = [taint(&format!("node.kubernetes.io/{name}"), "NoExecute")];
            assert_eq!(desired(&host, false, None), host);
            assert_eq!(
                desired(&[], false, Some(&live(&host, &host))),
                [Value::Null; 0],
                "{name}"
            );
        }
    }

    #[test]
    fn a_cordon_has_its_taint_once() {
        let cordon = taint(UNSCHEDULABLE, "NoSchedule");
        assert_eq!(desired(&[], true, None), std::slice::from_ref(&cordon));
        let host = [cordon.clone()];
        assert_eq!(desired(&host, true, Some(&live(&host, &host))), host);
        assert_eq!(desired(&[], false, Some(&live(&[], &[cordon]))), [Value::Null; 0]);
    }

    #[test]
    fn taints_of_the_tenant_stay_and_those_of_the_host_leave_with_it() {
        let (gpu, own) = (
            taint("nvidia.com/gpu", "NoSchedule"),
            taint("team/dedicated", "NoExecute"),
        );
        let host = [gpu.clone()];
        let both = live(&host, &[gpu.clone(), own.clone()]);
        assert_eq!(desired(&host, false, Some(&both)), [gpu.clone(), own.clone()]);
        assert_eq!(desired(&[], false, Some(&both)), std::slice::from_ref(&own));
        let other_value = json!({"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "tenant"});
        assert_eq!(
            desired(&host, false, Some(&live(&[], &[other_value]))),
            host,
            "the host's wins"
        );
    }

    #[test]
    fn taints_of_the_platform_cannot_be_imitated() {
        let imitation = taint(labels::TENANT, "NoExecute");
        assert_eq!(desired(&[], false, Some(&live(&[], &[imitation]))), [Value::Null; 0]);
    }
}
