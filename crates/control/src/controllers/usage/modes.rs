//! In which mode a tenant has nodes. Prices depend on it, so it is that of a spec that was accepted, and never of one that is only wanted: a tenant whose spec is
//! not accepted keeps its nodes.

use super::memory::Facts;
use berth_api::{NodeMode, UsageRecord};
use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
};

/// The modes in which tenants had nodes, as the stored records say, by slug and pool.
#[derive(Debug, Default)]
pub(super) struct RecordedModes(HashMap<String, HashMap<String, LastModes>>);

/// In which modes a tenant had nodes of a pool on the last day on which it had some.
#[derive(Debug, Default)]
struct LastModes {
    /// The month, and the position of the day in it.
    day: (String, usize),
    modes: BTreeSet<NodeMode>,
}

impl RecordedModes {
    /// Takes what a stored record says. The order of the records does not matter.
    pub(super) fn remember(&mut self, record: &UsageRecord) {
        let of_tenant = self.0.entry(record.spec.tenant.slug.clone()).or_default();
        for line in &record.spec.lines {
            let (Some(pool), Some(mode)) = (&line.pool_name, line.mode) else {
                continue;
            };
            let last = line.daily.iter().rposition(|amount| *amount > 0);
            if let Some(day) = last.filter(|_| mode != NodeMode::Shared) {
                let of_pool = of_tenant.entry(pool.clone()).or_default();
                of_pool.add((record.spec.month.clone(), day), mode);
            }
        }
    }

    /// Forgets tenants that are not among these.
    pub(super) fn retain(&mut self, tenants: &HashMap<String, Facts>) {
        self.0.retain(|slug, _| tenants.contains_key(slug));
    }

    /// The mode in which a tenant had nodes of a pool; of several the one that its spec has for the group, or else the one of nodes that are not guaranteed: these are
    /// what a tenant loses.
    pub(super) fn find(&self, slug: &str, pool: &str, in_spec: Option<NodeMode>) -> Option<NodeMode> {
        let modes = &self.0.get(slug)?.get(pool)?.modes;
        let named = in_spec.filter(|mode| modes.contains(mode));
        named.or_else(|| modes.last().copied())
    }
}

impl LastModes {
    fn add(&mut self, day: (String, usize), mode: NodeMode) {
        match day.cmp(&self.day) {
            Ordering::Less => {}
            Ordering::Equal => {
                self.modes.insert(mode);
            }
            Ordering::Greater => {
                *self = Self {
                    day,
                    modes: BTreeSet::from([mode]),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SLUG: &str = "vision-aaaaaaaaaaaaa";

    fn record(month: &str, lines: &[Value]) -> UsageRecord {
        let tenant = json!({"namespace": "team", "name": "vision", "uid": "u1", "slug": SLUG});
        let through = format!("{month}-28T00:00:00Z");
        let spec =
            json!({"month": month, "tenant": tenant, "meteredThrough": through, "gpuHours": "0.0", "lines": lines});
        serde_json::from_value(json!({"metadata": {"name": month}, "spec": spec})).unwrap()
    }

    fn line(pool: &str, mode: &str, daily: &[i64]) -> Value {
        json!({"resource": "Node", "poolName": pool, "mode": mode, "daily": daily})
    }

    fn find(records: &[UsageRecord], in_spec: Option<NodeMode>) -> Option<NodeMode> {
        let mut modes = RecordedModes::default();
        for record in records {
            modes.remember(record);
        }
        modes.find(SLUG, "h100", in_spec)
    }

    #[test]
    fn the_last_mode_of_a_pool_counts_whatever_the_spec_says() {
        let both = [
            record("2026-10", &[line("h100", "Private", &[0, 0, 0, 0, 5])]),
            record(
                "2026-11",
                &[
                    line("h100", "Private", &[5, 5, 0]),
                    line("h100", "Dynamic", &[0, 5, 5]),
                    line("h100", "Shared", &[5, 5, 5, 5]),
                    line("b200", "Private", &[5, 5, 5, 5]),
                ],
            ),
        ];
        let mut reversed = both.clone();
        reversed.reverse();
        for records in [&both, &reversed] {
            for in_spec in [None, Some(NodeMode::Private), Some(NodeMode::Shared)] {
                assert_eq!(find(records, in_spec), Some(NodeMode::Dynamic), "{in_spec:?}");
            }
        }
        assert_eq!(find(&both[..1], Some(NodeMode::Dynamic)), Some(NodeMode::Private));
        assert_eq!(find(&[], Some(NodeMode::Dynamic)), None);
        let unused = record("2026-11", &[line("h100", "Private", &[0])]);
        assert_eq!(find(&[unused], None), None);
    }

    #[test]
    fn of_two_modes_on_the_same_day_the_spec_says_which_is_that_of_the_group() {
        let records = [record(
            "2026-11",
            &[line("h100", "Dynamic", &[5]), line("h100", "Private", &[5])],
        )];
        for mode in [NodeMode::Private, NodeMode::Dynamic] {
            assert_eq!(find(&records, Some(mode)), Some(mode));
        }
        for in_spec in [None, Some(NodeMode::Shared)] {
            assert_eq!(find(&records, in_spec), Some(NodeMode::Dynamic), "{in_spec:?}");
        }
    }
}
