//! Opens Services again that were closed because their endpoints changed too often. What is counted, and which are closed, is decided by
//! [`berth_sync_rules::model::endpoint_changes`] when objects change.

use super::Engine;
use berth_sync_rules::model::KindId;
use tokio::time::Instant;

impl Engine {
    /// Says what time it is to what counts the changes. Services whose time is over are written as the tenant has them.
    pub(super) fn open_services(&self) {
        let (open, closed) = {
            let mut changes = self.cache.endpoint_changes();
            (changes.tick(Instant::now().into_std()), changes.count_closed())
        };
        self.metrics
            .closed_services
            .set(i64::try_from(closed).unwrap_or(i64::MAX));
        for service in open {
            self.add(KindId::Service.key(service));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_engine::engine;
    use super::*;
    use berth_sync_rules::model::{
        endpoint_changes::CLOSED,
        resource::{Name, Side},
        store::Stored,
    };
    use serde_json::{Value, json};

    fn put(engine: &Engine, side: Side, kind: KindId, name: &Name, object: Value) {
        engine
            .cache
            .stores
            .of(side, kind)
            .watched(name.clone(), Stored::from(object));
        engine.add_dependents(side, kind, name);
    }

    #[tokio::test(start_paused = true)]
    async fn services_are_closed_while_a_pod_flips_and_opened_again() {
        let engine = engine();
        // The allowance is whole.
        tokio::time::advance(CLOSED).await;
        engine.open_services();
        engine.cache.stores.host(KindId::Pod).set_listed();
        let services: Vec<Name> = (0..3000)
            .map(|number| Name::new("team", &format!("s{number}")))
            .collect();
        for service in &services {
            let object = json!({"metadata": {"name": &*service.name}, "spec": {"selector": {"app": "a"}}});
            put(&engine, Side::Tenant, KindId::Service, service, object);
        }
        let pod = Name::new("team", "a");
        let labels = json!({"metadata": {"name": "a", "uid": "u", "labels": {"app": "a"}}});
        put(&engine, Side::Tenant, KindId::Pod, &pod, labels);
        let waiting = || engine.queue_of(KindId::Service).len();
        let before = waiting();
        let host = json!({"metadata": {"name": "a-x", "annotations": {"berth.dev/origin-uid": "u"}}, "status": {"podIP": "10.0.0.1"}});
        put(&engine, Side::Host, KindId::Pod, &pod, host);
        // The default allows 2400 at once.
        assert_eq!(engine.cache.endpoint_changes().count_closed(), 600);
        assert_eq!(waiting() - before, 600, "they are reconciled");
        engine.open_services();
        assert_eq!(engine.metrics.closed_services.get(), 600);
        tokio::time::advance(CLOSED).await;
        engine.open_services();
        assert_eq!(engine.metrics.closed_services.get(), 0);
    }
}
