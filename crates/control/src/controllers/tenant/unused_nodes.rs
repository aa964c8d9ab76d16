//! Nodes that a tenant got for its pods and that none of them used: what the planner knows of them, in the status. Pure.

use berth_api::{TenantCluster, UnusedNodesStatus};
use berth_planner::{Seconds, UnusedNodes, WaitingTime};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// What the status says, by pool. A new control continues with it.
pub(super) fn recorded(cluster: &TenantCluster) -> BTreeMap<String, UnusedNodes> {
    let recorded = cluster.status.iter().flat_map(|status| &status.unused_nodes);
    let unused = recorded.map(|recorded| {
        let began_at = recorded.began_at.as_ref().unwrap_or(&recorded.released_at);
        let unused = UnusedNodes {
            kept_since: None,
            waiting: WaitingTime::default(),
            began_at: began_at.0.as_second(),
            released_at: recorded.released_at.0.as_second(),
            nodes: recorded.nodes,
            times: recorded.times,
        };
        (recorded.pool_name.clone(), unused)
    });
    unused.collect()
}

/// What belongs into the status. Nodes that pods may still use do not.
pub(super) fn statuses(unused: &BTreeMap<String, UnusedNodes>) -> Vec<UnusedNodesStatus> {
    let time = |seconds: Seconds| Time(Timestamp::from_second(seconds).unwrap_or_default());
    let released = unused.iter().filter(|(_, unused)| unused.times > 0);
    let statuses = released.map(|(pool, unused)| UnusedNodesStatus {
        pool_name: pool.clone(),
        nodes: unused.nodes,
        times: unused.times,
        began_at: Some(unused.began_at)
            .filter(|began| *began != unused.released_at)
            .map(time),
        released_at: time(unused.released_at),
        paused_until: unused.paused_until().map(time),
    });
    statuses.collect()
}

/// The messages of the Events for pauses that begin.
pub(super) fn messages(before: &[UnusedNodesStatus], after: &[UnusedNodesStatus]) -> Vec<String> {
    let is_new = |unused: &&UnusedNodesStatus| {
        let is_same = |before: &UnusedNodesStatus| before.pool_name == unused.pool_name && before.times == unused.times;
        !before.iter().any(is_same)
    };
    let begin = after.iter().filter(is_new).filter_map(|unused| {
        let until = unused.paused_until.as_ref()?;
        Some(format!(
            "{} nodes of pool {} were ready for pods of the tenant that did not use them; until {} other tenants are served first there, and no \
             nodes are reclaimed for this one. The Events of the pods say why they do not start",
            unused.nodes, unused.pool_name, until.0
        ))
    });
    begin.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{TenantClusterSpec, TenantClusterStatus};

    fn unused(times: u32, kept_since: Option<Seconds>) -> BTreeMap<String, UnusedNodes> {
        let unused = UnusedNodes {
            kept_since,
            waiting: WaitingTime::default(),
            began_at: 43_100,
            released_at: 43_200,
            nodes: 8,
            times,
        };
        [("h100".to_owned(), unused)].into()
    }

    #[test]
    fn a_new_control_continues_with_what_the_status_says() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        assert_eq!(recorded(&cluster), BTreeMap::new());
        cluster.status = Some(TenantClusterStatus {
            unused_nodes: statuses(&unused(4, None)),
            ..TenantClusterStatus::default()
        });
        assert_eq!(recorded(&cluster), unused(4, None));
        cluster.status.as_mut().unwrap().unused_nodes[0].began_at = None;
        assert_eq!(recorded(&cluster)["h100"].began_at, 43_200);
        assert_eq!(
            statuses(&unused(0, Some(43_200))),
            [],
            "its pods may start at any moment"
        );
    }

    #[test]
    fn each_pause_has_one_event() {
        let of = |times| statuses(&unused(times, None));
        assert_eq!(messages(&[], &of(1)), Vec::<String>::new(), "it was spared");
        let first = messages(&of(2), &of(3));
        assert!(
            first.len() == 1 && first[0].contains("until 1970-01-01T12:10:00Z"),
            "{first:?}"
        );
        assert!(messages(&of(3), &of(3)).is_empty());
        assert_eq!(messages(&of(3), &of(4)).len(), 1);
    }
}
