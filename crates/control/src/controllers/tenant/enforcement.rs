//! Whether the objects of a tenant on the host follow the rules of its class. Its syncer sees to that, and nothing does while the tenant sleeps: so a tenant
//! sleeps only once it is done, and the rules are recorded that hold then. docs/adr/0060 says why.

use super::{connection::Remote, context::TenantContext, memory::TenantMemory, target::Tenant};
use crate::{control_plane::Endpoint, controllers::slots::Slot, key::Key, syncer_report::has_compared_everything};
use berth_api::{SleepState, SleepStatus, SyncPolicy, names};
use berth_sleep::{Enforcement, Turn};
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// Time for an answer of the syncer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// A hash of the rules for objects that have an effect on the host while no pod of the tenant runs. Those of Services and Ingresses lead traffic, and those of
/// further kinds are of controllers of the host. Another version of Berth may enforce the same rules in another way.
pub(super) fn rules_hash(policy: &SyncPolicy) -> String {
    let SyncPolicy {
        services,
        ingress,
        kinds,
        // Of these nothing is left, or what is left has no effect: claims and snapshots stay in any case.
        pods: _,
        storage: _,
        devices: _,
        shared_nodes: _,
        service_accounts: _,
    } = policy;
    let texts = [to_text(services), to_text(ingress), to_text(kinds)];
    names::hash(&[env!("CARGO_PKG_VERSION"), &texts[0], &texts[1], &texts[2]])
}

/// Serialization cannot fail: there are only texts, numbers and lists.
fn to_text(rules: &impl Serialize) -> String {
    serde_json::to_string(rules).unwrap_or_default()
}

/// Which rules of its class the objects of a tenant follow, of which the hash of the present ones is `rules`. One that sleeps and follows earlier ones asks for
/// a place, once nothing of it runs, and one that needs none leaves it. One that has run for its class for too long runs no more until a pause is over.
pub(super) fn find(
    context: &TenantContext,
    tenant: &Tenant,
    recorded: Option<&SleepStatus>,
    rules: &str,
) -> Enforcement {
    let (state, places) = (tenant.cluster.sleep_state(), &context.tenants.enforcement_places);
    let (key, now) = (tenant.key(), Instant::now());
    let follows = if state == SleepState::Sleeping {
        recorded.and_then(|recorded| recorded.enforced_rules.as_deref()) == Some(rules)
    } else {
        tenant.memory.follows(rules)
    };
    tenant.memory.note_outdated(state.is_asleep() && !follows);
    let turn = match state {
        // Its controllers may still run, and would go on beside the syncer: control may have ended just before it has stopped them.
        SleepState::Sleeping if !follows && !tenant.memory.is_stopped() => places.find_turn(&key, rules, now),
        SleepState::Sleeping if !follows => places.ask(&key, rules, now),
        SleepState::Enforcing => places.note_started(&key, rules, now),
        _ => {
            leave_place(context, &key);
            Turn::Later
        }
    };
    if follows {
        Enforcement::Present
    } else {
        Enforcement::Earlier(turn)
    }
}

/// Gives back the place of a tenant that needs none, and lets those ask that get one then.
pub(super) fn leave_place(context: &TenantContext, tenant: &Key) {
    for next in context.tenants.enforcement_places.leave(tenant, Instant::now()) {
        context.queue.add(next);
    }
}

/// Notes that the objects of a tenant follow the rules with this hash, if its syncer says so. The syncer is ready and has these rules.
pub(super) async fn observe(remote: &dyn Remote, slot: &Slot, syncer: &Endpoint, memory: &TenantMemory, rules: &str) {
    match slot.lend(ANSWER_LIMIT, remote.read_syncer_metrics(syncer)).await {
        Some(Ok(metrics)) => {
            memory.note_syncer_metrics(&metrics);
            if has_compared_everything(&metrics) {
                memory.note_enforced(rules);
            }
        }
        Some(Err(error)) => tracing::debug!(%error, "cannot read whether a class is enforced"),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::sync_policy::SyncedKind;

    #[test]
    fn the_rules_of_what_leads_traffic_are_others_and_those_of_pods_are_not() {
        let hash_with = |change: fn(&mut SyncPolicy)| {
            let mut policy = SyncPolicy::default();
            policy.ingress.hostnames = vec!["app.example.com".into()];
            change(&mut policy);
            rules_hash(&policy)
        };
        let before = hash_with(|_| ());
        let changes: [fn(&mut SyncPolicy); 6] = [
            |policy| policy.ingress.hostnames.clear(),
            |policy| policy.ingress.classes = vec!["nginx".into()],
            |policy| policy.services.node_ports = true,
            |policy| policy.services.load_balancers = true,
            |policy| policy.services.annotations = vec!["example.com/a".into()],
            |policy| policy.kinds = vec![SyncedKind::default()],
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_ne!(hash_with(change), before, "{number}");
        }
        let of_pods = hash_with(|policy| policy.pods.runtime_classes = vec!["kata".into()]);
        assert_eq!(of_pods, before);
    }
}
