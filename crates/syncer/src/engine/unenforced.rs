//! What the syncer cannot bring to the host, in metrics: what the class takes away of it may stay there, and somebody has to look.

use super::{Engine, lock};
use crate::metrics::KindLabels;
use berth_sync_rules::model::KindId;
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use std::collections::HashMap;

impl Engine {
    /// Publishes of how many kinds the tenant may have objects that are not known, how many objects were not compared since the start, which keys keep
    /// failing, and which objects cannot be read.
    pub(super) fn publish_unenforced(&self) {
        self.publish_unlisted();
        self.publish_uncompared();
        self.publish_by_kind(&self.metrics.failing_keys, &self.failing_keys());
        self.publish_by_kind(&self.metrics.unreadable_objects, &self.unreadable_objects());
    }

    /// Objects on the host whose keys keep failing. What never came there does no harm, and its Events say why.
    fn failing_keys(&self) -> HashMap<KindId, usize> {
        let mut failing: HashMap<KindId, usize> = HashMap::new();
        for (key, failures) in lock(&self.failures).iter() {
            let is_on_host = || self.cache.stores.host(key.kind).contains(&key.name);
            if failures.are_persistent() && self.cache.rules_to_host(key.kind).is_some() && is_on_host() {
                *failing.entry(key.kind).or_default() += 1;
            }
        }
        failing
    }

    fn unreadable_objects(&self) -> HashMap<KindId, usize> {
        let kinds = self.cache.kinds.iter().copied();
        kinds.map(|id| (id, self.cache.stores.unreadable(id))).collect()
    }

    /// Publishes numbers of kinds. Kinds that never had one have no series.
    fn publish_by_kind(&self, family: &Family<KindLabels, Gauge>, counts: &HashMap<KindId, usize>) {
        for id in self.cache.kinds.iter().copied() {
            let labels = KindLabels { kind: id.label() };
            let count = counts.get(&id).copied().unwrap_or_default();
            if count > 0 || family.get(&labels).is_some() {
                family
                    .get_or_create(&labels)
                    .set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{api::CallError, test_engine::engine};
    use berth_sync_rules::{
        model::{
            resource::{Key, Name},
            store::Stored,
        },
        translation::quota::QuotaExceeded,
    };
    use serde_json::json;

    fn fail(engine: &Engine, key: &Key, error: &CallError) {
        for _ in 0..10 {
            engine.wait_after(key, error);
        }
    }

    fn failing(engine: &Engine, kind: &'static str) -> Option<i64> {
        engine.publish_unenforced();
        let gauge = engine.metrics.failing_keys.get(&KindLabels { kind });
        gauge.map(|gauge| gauge.get())
    }

    #[tokio::test]
    async fn objects_on_the_host_that_keep_failing_are_counted() {
        let engine = engine();
        let rejected = CallError::Rejected("no".into());
        let key = KindId::Ingress.key(Name::new("team", "a"));
        fail(&engine, &key, &rejected);
        assert_eq!(failing(&engine, "Ingress"), None, "it never came there");
        let host = json!({"metadata": {"name": "a-x", "uid": "h", "resourceVersion": "7"}});
        let store = engine.cache.stores.host(KindId::Ingress);
        store.watched(key.name.clone(), Stored::from(host));
        assert_eq!(failing(&engine, "Ingress"), Some(1));
        let another = KindId::Ingress.key(Name::new("team", "b"));
        engine.wait_after(&another, &rejected);
        assert_eq!(failing(&engine, "Ingress"), Some(1), "it may pass");
        store.gone(&key.name, 9);
        assert_eq!(failing(&engine, "Ingress"), Some(0));
        assert_eq!(failing(&engine, "Pod"), None);
    }

    #[tokio::test]
    async fn a_limit_of_the_tenant_is_no_failure_that_somebody_has_to_look_at() {
        let engine = engine();
        let key = KindId::Pod.key(Name::new("team", "a"));
        let host = json!({"metadata": {"name": "a-x", "uid": "h", "resourceVersion": "7"}});
        let store = engine.cache.stores.host(KindId::Pod);
        store.watched(key.name.clone(), Stored::from(host));
        let message = "pods \"a\" is forbidden: exceeded quota: a, requested: count/pods=1, used: count/pods=1, limited: count/pods=1";
        let exceeded = CallError::QuotaExceeded(QuotaExceeded::parse(message).unwrap());
        fail(&engine, &key, &exceeded);
        assert_eq!(failing(&engine, "Pod"), None);
        engine.wait_after(&key, &CallError::Rejected("no".into()));
        assert_eq!(failing(&engine, "Pod"), Some(1));
    }

    #[tokio::test]
    async fn objects_that_cannot_be_read_are_counted() {
        let engine = engine();
        let store = engine.cache.stores.tenant(KindId::ResourceClaim);
        store.note_unreadable("u");
        let unreadable = || {
            engine.publish_unenforced();
            let labels = KindLabels { kind: "ResourceClaim" };
            engine.metrics.unreadable_objects.get(&labels).map(|gauge| gauge.get())
        };
        assert_eq!(unreadable(), Some(1));
        store.note_gone("u");
        assert_eq!(unreadable(), Some(0));
    }
}
