//! What claims cost that wait on the host for their volume: see [`without_volume`].

use super::Engine;
use berth_sync_rules::{kinds::storage::without_volume, model::KindId, translation::quota::QuotaExceeded};
use jiff::Timestamp;
use std::sync::Arc;

impl Engine {
    /// Why no claim of a volume can be created on the host, if as many wait there as may.
    pub(super) fn refuse_claim(&self, id: KindId) -> Option<QuotaExceeded> {
        let most = without_volume::most(&self.cache);
        let is_full = id == KindId::PersistentVolumeClaim && without_volume::count(&self.cache) >= most;
        is_full.then(|| QuotaExceeded::of_claims_without_volume(most))
    }

    /// Takes the Events about claims that wait from the requests that the tenant's objects may cost, for ever.
    pub(super) async fn charge_claims_that_wait(self: Arc<Self>) {
        loop {
            tokio::time::sleep(without_volume::LOOKS_EVERY).await;
            let events = without_volume::count_events(&self.cache, Timestamp::now());
            self.turns.take_requests(events);
            self.metrics.host_writes.controller_requests.inc_by(events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        test_engine::{engine_of, sync_of_kind, tenant},
        turns::Turn,
    };
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::{resource::Name, store::Stored};
    use serde_json::json;
    use std::time::Duration;

    const CLAIM: KindId = KindId::PersistentVolumeClaim;

    /// An engine of a tenant whose objects may cost a request a second, and which has so many claims without a volume.
    fn engine_with(claims: usize) -> Arc<Engine> {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.controller_requests_per_second = 1;
        let engine = engine_of(tenant);
        for number in 0..claims {
            put(&engine, number, "");
        }
        engine
    }

    fn put(engine: &Engine, number: usize, volume: &str) {
        let name = format!("c{number}");
        let version = if volume.is_empty() { "1" } else { "2" };
        let claim = json!({"metadata": {"name": name, "uid": name, "resourceVersion": version,
            "creationTimestamp": Timestamp::now().to_string()}, "spec": {"volumeName": volume}});
        let claims = engine.cache.stores.host(CLAIM);
        claims.watched(Name::new("team", &name), Stored::new(&claim));
    }

    #[tokio::test]
    async fn a_claim_waits_in_the_tenant_while_as_many_as_may_wait_on_the_host() {
        let engine = engine_with(40);
        let name = Name::new("team", "more");
        let claim = json!({"metadata": {"name": "more", "uid": "u", "resourceVersion": "1"}, "spec": {}});
        let stored = Stored::new(&claim);
        let refused = sync_of_kind(&engine, CLAIM, &name).create(&stored, &claim).await;
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("spec.limits.controllerRequestsPerSecond"), "{why}");
        assert_eq!(engine.refuse_claim(KindId::Pod), None);
        put(&engine, 0, "pvc-0");
        assert_eq!(engine.refuse_claim(CLAIM), None);
    }

    #[tokio::test(start_paused = true)]
    async fn claims_that_wait_use_up_the_allowance() {
        let engine = engine_with(40);
        let pod = KindId::Pod.key(Name::new("team", "pod"));
        tokio::time::advance(Duration::from_mins(10)).await;
        let charge = tokio::spawn(Arc::clone(&engine).charge_claims_that_wait());
        // 40 in 15 s, and one a second comes back.
        tokio::time::sleep(Duration::from_secs(15 * 10 + 1)).await;
        charge.abort();
        assert_eq!(engine.metrics.host_writes.controller_requests.get(), 400);
        assert_ne!(engine.turns.ask_for_requests(&pod, 600), Turn::Now);
        let engine = engine_with(0);
        tokio::time::advance(Duration::from_mins(10)).await;
        assert_eq!(engine.turns.ask_for_requests(&pod, 600), Turn::Now);
    }
}
