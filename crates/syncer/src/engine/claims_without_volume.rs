//! What claims cost that wait on the host for their volume: see [`without_volume`].
//!
//! They pay by time, from the requests that the tenant's objects may cost. They take at most half of these: what is written next gets the other half,
//! however many claims wait. Otherwise a gang whose pods each have a new volume could wait for ever for the claims and pods that would end the wait of
//! those that are there.

use super::{Engine, turns::requests_at_once};
use berth_sync_rules::{kinds::storage::without_volume, model::HostLimits};
use jiff::Timestamp;
use std::sync::Arc;

/// Requests that claims have cost and not paid yet.
#[derive(Debug)]
struct Debt {
    requests: u64,
    /// It does not grow beyond this.
    most: u64,
    /// What is paid of it at a time.
    part: u64,
}

impl Debt {
    fn new(limits: &HostLimits) -> Self {
        let rate = u64::from(limits.controller_requests_per_second);
        Self {
            requests: 0,
            most: requests_at_once(limits),
            part: rate * without_volume::LOOKS_EVERY.as_secs() / 2,
        }
    }

    /// So many requests more. Returns how many to take now.
    fn pay(&mut self, more: u64) -> u64 {
        self.requests = self.requests.saturating_add(more).min(self.most);
        let paid = self.requests.min(self.part);
        self.requests -= paid;
        paid
    }
}

impl Engine {
    /// Takes the Events about claims that wait from the requests that the tenant's objects may cost, for ever.
    pub(super) async fn charge_claims_that_wait(self: Arc<Self>) {
        let mut debt = Debt::new(&self.cache.tenant.host_limits);
        loop {
            tokio::time::sleep(without_volume::LOOKS_EVERY).await;
            let events = without_volume::count_events(&self.cache, Timestamp::now());
            self.turns.take_requests(debt.pay(events));
            self.metrics.host_writes.controller_requests.inc_by(events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        test_engine::{engine_of, tenant},
        turns::{LineKind, Turn},
    };
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::{
        KindId,
        resource::{Key, Name},
        store::Stored,
    };
    use serde_json::json;
    use std::time::Duration;

    /// An engine of a tenant whose objects may cost a request a second, of which it has saved ten minutes, and which has so many claims without a
    /// volume.
    async fn engine_with(claims: usize) -> Arc<Engine> {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.controller_requests_per_second = 1;
        let engine = engine_of(tenant);
        for number in 0..claims {
            let name = format!("c{number}");
            let claim = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1",
                "creationTimestamp": Timestamp::now().to_string()}, "spec": {}});
            let claims = engine.cache.stores.host(KindId::PersistentVolumeClaim);
            claims.watched(Name::new("team", &name), Stored::new(&claim));
        }
        tokio::time::advance(Duration::from_mins(10)).await;
        engine
    }

    fn pod(number: u32) -> Key {
        KindId::Pod.key(Name::new("team", &number.to_string()))
    }

    #[test]
    fn a_debt_is_paid_in_parts_and_does_not_grow_for_ever() {
        let mut debt = Debt::new(&HostLimits {
            controller_requests_per_second: 2,
            ..HostLimits::default()
        });
        assert_eq!([debt.pay(10), debt.pay(20), debt.pay(0), debt.pay(0)], [10, 15, 5, 0]);
        for _ in 0..1000 {
            assert_eq!(debt.pay(2000), 15);
        }
        let rest = std::iter::repeat_with(|| debt.pay(0)).take_while(|paid| *paid > 0);
        assert_eq!(rest.sum::<u64>(), 1200 - 15, "one allowance");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_that_wait_take_from_the_allowance() {
        let engine = engine_with(40).await;
        assert_eq!(engine.turns.ask_for_requests(&pod(0), 600), Turn::Now);
        engine.turns.spend(&pod(0));
        let charge = tokio::spawn(Arc::clone(&engine).charge_claims_that_wait());
        tokio::time::sleep(Duration::from_secs(15 * 10 + 1)).await;
        charge.abort();
        assert_eq!(engine.metrics.host_writes.controller_requests.get(), 400);
        // 151 came back, and seven were taken each time.
        assert_ne!(engine.turns.ask_for_requests(&pod(1), 82), Turn::Now);
        let engine = engine_with(0).await;
        assert_eq!(engine.turns.ask_for_requests(&pod(0), 600), Turn::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_moves_at_half_the_rate_however_many_claims_wait() {
        let engine = engine_with(2000).await;
        assert_eq!(engine.turns.ask_for_requests(&pod(0), 600), Turn::Now);
        engine.turns.spend(&pod(0));
        for number in 1..=100 {
            assert_ne!(engine.turns.ask_for_requests(&pod(number), 3), Turn::Now);
        }
        let charge = tokio::spawn(Arc::clone(&engine).charge_claims_that_wait());
        let turns = tokio::spawn(Arc::clone(&engine).take_turns(LineKind::Requests));
        // 300 requests, at half of one a second.
        tokio::time::sleep(Duration::from_secs(620)).await;
        assert_eq!(engine.turns.waiting(LineKind::Requests), 0);
        charge.abort();
        turns.abort();
    }
}
