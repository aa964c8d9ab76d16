//! Tenants that are gone while there is a pause for them that the other tenants of their Project share. The pause outlasts them: otherwise a team
//! would end it by deleting one tenant and creating another one. Pure.
//!
//! Kept in memory alone. A control that starts knows nothing of tenants that are gone.

use berth_planner::{Fleet, Tenant, UnusedNodes, UnusedNodesByTenant};
use std::collections::BTreeSet;

/// The tenants of a fleet for which there is a pause that others share, as a fleet has them once they are gone: without node groups.
/// `unused` is what is known of nodes that tenants did not use after the plan for this fleet.
pub(super) fn list_in_shared_pause(fleet: &Fleet, unused: &UnusedNodesByTenant) -> Vec<Tenant> {
    let sharing = fleet.quotas.iter().filter(|quota| quota.shares_pauses);
    let sharing: BTreeSet<&str> = sharing.map(|quota| quota.name.as_str()).collect();
    let is_in_pause = |unused: &UnusedNodes| unused.paused_until().is_some_and(|until| fleet.now < until);
    let in_pause = fleet.tenants.iter().filter_map(|tenant| {
        let quota = tenant.quota.as_deref().filter(|quota| sharing.contains(quota))?;
        let unused = unused.get(&tenant.uid)?;
        unused.values().any(is_in_pause).then(|| Tenant {
            uid: tenant.uid.clone(),
            name: tenant.name.clone(),
            created: tenant.created,
            quota: Some(quota.to_owned()),
            terminated: true,
            unused: unused.clone(),
            ..Tenant::default()
        })
    });
    in_pause.collect()
}

/// Adds those of these tenants to a fleet that it does not have any more.
pub(super) fn add_gone(fleet: &mut Fleet, in_shared_pause: Vec<Tenant>) {
    let known: BTreeSet<String> = fleet.tenants.iter().map(|tenant| tenant.uid.clone()).collect();
    let gone = in_shared_pause
        .into_iter()
        .filter(|tenant| !known.contains(&tenant.uid));
    fleet.tenants.extend(gone);
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_planner::{Quota, Seconds, WaitingTime, plan};
    use std::collections::BTreeMap;

    const RELEASED: Seconds = 43_200;

    fn tenant(uid: &str, quota: &str, times: u32) -> Tenant {
        let unused = UnusedNodes {
            began_at: RELEASED,
            released_at: RELEASED,
            nodes: 8,
            times,
            kept_since: None,
            waiting: WaitingTime::default(),
        };
        Tenant {
            uid: uid.into(),
            quota: Some(quota.into()),
            weight: 1,
            unused: BTreeMap::from([("h100".to_owned(), unused)]),
            ..Tenant::default()
        }
    }

    /// Tenants of a Project and of a class.
    fn fleet(now: Seconds) -> Fleet {
        let quota = |name: &str, shares_pauses| Quota {
            name: name.into(),
            shares_pauses,
            ..Quota::default()
        };
        Fleet {
            now,
            tenants: vec![
                tenant("paused", "project/vision", 3),
                tenant("spared", "project/vision", 1),
                tenant("of-class", "gold", 3),
            ],
            quotas: vec![quota("project/vision", true), quota("gold", false)],
            ..Fleet::default()
        }
    }

    fn list(fleet: &Fleet) -> Vec<Tenant> {
        list_in_shared_pause(fleet, &plan(fleet).unused_nodes)
    }

    #[test]
    fn a_tenant_that_is_gone_stays_until_its_pause_is_over() {
        let mut in_pause = list(&fleet(RELEASED));
        assert_eq!(in_pause.len(), 1);
        for (now, expected) in [(RELEASED + 1, 1), (RELEASED + 599, 1), (RELEASED + 600, 0)] {
            let mut next = fleet(now);
            next.tenants.remove(0);
            add_gone(&mut next, in_pause);
            let gone = next.tenants.iter().find(|tenant| tenant.uid == "paused");
            assert!(gone.is_some_and(|gone| gone.terminated), "{now}");
            in_pause = list(&next);
            assert_eq!(in_pause.len(), expected, "{now}");
        }
    }

    #[test]
    fn a_tenant_that_exists_is_what_it_is() {
        let mut fleet = fleet(RELEASED);
        let in_pause = list(&fleet);
        let before = fleet.clone();
        add_gone(&mut fleet, in_pause);
        assert_eq!(fleet, before);
    }
}
