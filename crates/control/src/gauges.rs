//! Gauges of objects that come and go.

use berth_runtime::locks::lock;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use std::{
    collections::HashSet,
    hash::Hash,
    sync::{Arc, Mutex},
};

/// A family of gauges of which all are set at once. Only those without a value are removed: a scrape meanwhile finds all others.
#[derive(Clone, Debug)]
pub struct Gauges<L> {
    /// The gauges.
    pub family: Family<L, Gauge>,
    known: Arc<Mutex<HashSet<L>>>,
}

impl<L: Clone + Eq + Hash> Default for Gauges<L> {
    fn default() -> Self {
        Self {
            family: Family::default(),
            known: Arc::default(),
        }
    }
}

impl<L: EncodeLabelSet + Clone + Eq + Hash> Gauges<L> {
    /// Sets all gauges. Those that have no value any more are removed.
    pub fn set_all(&self, values: impl IntoIterator<Item = (L, i64)>) {
        let mut known = lock(&self.known);
        let mut set = HashSet::new();
        for (labels, value) in values {
            self.family.get_or_create(&labels).set(value);
            set.insert(labels);
        }
        for gone in known.difference(&set) {
            self.family.remove(gone);
        }
        *known = set;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::PoolLabels;

    #[test]
    fn a_gauge_that_has_a_value_again_is_never_removed() {
        let gauges = Gauges::default();
        let labels = |pool: &str| PoolLabels { pool: pool.into() };
        let value = |pool: &str| gauges.family.get(&labels(pool)).map(|gauge| gauge.get());
        gauges.set_all([(labels("stays"), 1), (labels("goes"), 1)]);
        let before = gauges.family.get_or_create(&labels("stays")).clone();
        gauges.set_all([(labels("stays"), 2), (labels("comes"), 2)]);
        assert_eq!(before.get(), 2, "it is another one");
        assert_eq!(
            (value("stays"), value("goes"), value("comes")),
            (Some(2), None, Some(2))
        );
    }
}
