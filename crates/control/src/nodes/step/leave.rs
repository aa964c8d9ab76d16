//! On its way back: Cordoned and Draining.

use super::{Facts, Next, Tenant, clean::scrubs, into};
use crate::nodes::record::{NodeRecord, State};

pub(super) fn cordoned(facts: &Facts<'_>) -> Next {
    let Facts { record, now, .. } = facts;
    let left = record
        .cordoned_until
        .map_or(0, |until| until.as_second() - now.as_second());
    if facts.tenant == Tenant::Gone || left <= 0 {
        return into(record.to(State::Draining, *now, &record.reason));
    }
    Next::Look(left)
}

pub(super) fn draining(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.pods.is_empty() {
        if !scrubs(pool) {
            return Next::Free("no pod is left; its pool asks for no cleaning".into());
        }
        return into(record.to_scrubbing(facts.node, *now, &record.reason));
    }
    let limit = pool.timeouts.drain();
    if record.elapsed(*now) >= limit {
        let blocked = blocked(facts.pods, limit);
        if record.reason != blocked {
            // The same state since the same time, with other words.
            return into(NodeRecord {
                reason: blocked,
                ..(*record).clone()
            });
        }
    }
    if facts.tenant == Tenant::Gone {
        Next::DeletePods
    } else {
        Next::Evict
    }
}

/// What keeps a node from being emptied.
fn blocked(pods: &[String], limit: i64) -> String {
    const NAMED: usize = 5;
    let mut named = pods.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if pods.len() > NAMED {
        named = format!("{named} and {} more", pods.len() - NAMED);
    }
    format!("still not empty after {limit} s: {named}; a PodDisruptionBudget may forbid their eviction")
}
