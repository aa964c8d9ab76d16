//! What control knows of nodes that are not Ready, in pools that repair their nodes.

use super::PoolLabels;
use crate::gauges::Gauges;
use berth_planner::PoolHealth;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// How many nodes of these pools are not Ready, and whether those may be taken from their tenants.
#[derive(Clone, Debug, Default)]
pub struct RepairMetrics {
    /// Nodes that are not Ready.
    pub not_ready_nodes: Gauges<PoolLabels>,
    /// Whether no more of them are not Ready than may be.
    pub repair_allowed: Gauges<PoolLabels>,
}

impl RepairMetrics {
    /// Sets what a plan says of the pools that repair their nodes, by name. All others have no value.
    pub fn record(&self, pools: &BTreeMap<String, PoolHealth>) {
        let gauges = |value: fn(&PoolHealth) -> i64| {
            let of_pool =
                move |(pool, health): (&String, &PoolHealth)| (PoolLabels { pool: pool.clone() }, value(health));
            pools.iter().map(of_pool)
        };
        self.not_ready_nodes
            .set_all(gauges(|health| i64::from(health.not_ready)));
        self.repair_allowed
            .set_all(gauges(|health| i64::from(health.allows_repair())));
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "not_ready_nodes",
            "Nodes that are not Ready, without those that are too new to be Ready; of pools with spec.repair",
            self.not_ready_nodes.family.clone(),
        );
        registry.register(
            "repair_allowed",
            "1 if no more nodes are not Ready than spec.repair.maxUnhealthy of the pool, otherwise 0: then none is taken from its tenant; of pools with spec.repair",
            self.repair_allowed.family.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pools_that_repair_their_nodes_have_values() {
        let metrics = RepairMetrics::default();
        let labels = PoolLabels { pool: "h100".into() };
        let record = |not_ready: Option<u32>| {
            let health = not_ready.map(|not_ready| PoolHealth {
                not_ready,
                max_unhealthy: 2,
                without_replacement: 0,
            });
            let pools = health.map(|health| ("h100".to_owned(), health));
            metrics.record(&pools.into_iter().collect());
            [&metrics.not_ready_nodes, &metrics.repair_allowed]
                .map(|gauges| gauges.family.get(&labels).map(|gauge| gauge.get()))
        };
        assert_eq!(record(Some(2)), [Some(2), Some(1)]);
        assert_eq!(record(Some(3)), [Some(3), Some(0)]);
        assert_eq!(record(None), [None, None]);
    }
}
