//! Opens Services again that were closed because their endpoints changed too often, and lets writes of Services wait if there are too many. What is
//! counted, and which are closed, is decided by [`berth_sync_rules::model::endpoint_changes`] when objects change.

use super::{Engine, Outcome, recorder::Level, to_host::ObjectSync, turns};
use berth_sync_rules::model::{Cache, KindId, json};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which a Service that waits asks again.
const RETRY: Duration = Duration::from_secs(10);

/// Why no Service with a selector is made now.
pub(crate) fn describe_too_many_services(cache: &Cache) -> String {
    format!(
        "this cluster makes more than {} Services with a selector a second on the host cluster. Make fewer at a time, or ask the platform team to raise \
         spec.limits.endpointChangesPerSecond of the class",
        cache.tenant.host_limits.endpoint_changes_per_second
    )
}

/// Why no Service is changed now.
fn describe_too_many_changes(cache: &Cache) -> String {
    format!(
        "the endpoints of more than {} Services in this cluster change in a second, in the long run. Change fewer at a time, or ask the platform team to \
         raise spec.limits.endpointChangesPerSecond of the class",
        cache.tenant.host_limits.endpoint_changes_per_second
    )
}

impl ObjectSync<'_> {
    /// What to do if the host would make endpoints for the host object, and has made too many for the tenant.
    pub(super) async fn wait_to_make_endpoints(&self, desired: &Value) -> Option<Outcome> {
        if self.engine.may_make_endpoints(self.id, desired) {
            return None;
        }
        let why = describe_too_many_services(&self.engine.cache);
        let message = format!("The Service waits until it is made on the host cluster: {why}.");
        Some(self.ask_again(&message).await)
    }

    /// What to do if the change of a Service comes too early.
    pub(super) async fn wait_to_change_endpoints(&self) -> Outcome {
        let why = describe_too_many_changes(&self.engine.cache);
        let message = format!("The Service waits until it is changed on the host cluster: {why}.");
        self.ask_again(&message).await
    }

    /// Says in the tenant why a Service waits.
    async fn ask_again(&self, message: &str) -> Outcome {
        self.engine
            .record_event(&self.key(), Level::Normal, turns::DELAYED, message)
            .await;
        Outcome::requeue(turns::WAITS, RETRY)
    }
}

impl Engine {
    /// Whether a host object may be made now: the host makes endpoints for each Service with a selector.
    pub(super) fn may_make_endpoints(&self, id: KindId, object: &Value) -> bool {
        let selects = id == KindId::Service && !json::strings(object, &["spec", "selector"]).is_empty();
        !selects || self.cache.endpoint_changes().may_create()
    }

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
    use super::super::{
        queued_key::QueuedKey,
        scripted::Scripted,
        test_engine::{engine, make_services, sync_of_kind, tenant},
    };
    use super::*;
    use berth_api::SyncPolicy;
    use berth_runtime::queue::Taken;
    use berth_sync_rules::model::{
        endpoint_changes::CLOSED,
        resource::{Name, Side},
        store::Stored,
    };
    use serde_json::{Value, json};
    use std::sync::Arc;

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
            for (side, key) in [(Side::Tenant, "app"), (Side::Host, "pod.berth.dev/app")] {
                let object = json!({"metadata": {"name": &*service.name}, "spec": {"selector": {key: "a"}}});
                put(&engine, side, KindId::Service, service, object);
            }
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

    #[tokio::test(start_paused = true)]
    async fn services_that_a_release_changes_wait_and_none_is_closed() {
        let engine = engine();
        // The allowance is whole, and their creation does not count any more.
        tokio::time::advance(CLOSED).await;
        engine.open_services();
        make_services(&engine, 0..3000);
        tokio::time::advance(Duration::from_secs(10)).await;
        engine.open_services();
        let names: Vec<Name> = (0..3000)
            .map(|number| Name::new("team", &format!("s{number}")))
            .collect();
        let desired = json!({"spec": {"selector": {"app": "a"}}});
        let written = || {
            let waits = |name: &&Name| {
                let sync = sync_of_kind(&engine, KindId::Service, name);
                sync.ask_to_write(&desired, false, 100)
            };
            names.iter().filter(|name| waits(name).is_none()).count()
        };
        assert_eq!(written(), 2400 - 120, "a part is for pods");
        tokio::time::advance(Duration::from_secs(10)).await;
        engine.open_services();
        assert_eq!(written(), 40, "four a second");
        assert_eq!(engine.metrics.closed_services.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_waits_is_closed_to_the_outside_at_once() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, name) = (&scripted.engine, KindId::Service, Name::new("team", "a"));
        let spec = json!({"type": "LoadBalancer", "clusterIP": "10.96.7.7", "selector": {"pod.berth.dev/app": "a"}, "ports": [{"port": 80}]});
        let live = json!({ "spec": spec });
        scripted.put(Side::Host, id, &name, live.clone());
        scripted.serve("/services/a", live);
        engine.cache.update_dependents(Side::Host, id, &name);
        use_up_changes(engine).await;
        let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"app": "b"}, "ports": [{"port": 80}, {"port": 81}]});
        scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
        let key = id.key(name.clone());
        let outcome = engine.reconcile(&key, std::time::Instant::now(), true).await.unwrap();
        assert_eq!(outcome.result, turns::WAITS);
        let closed = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"pod.berth.dev/app": "a"}, "ports": [{"port": 80}]});
        let written = scripted.sent("host PATCH", "/services/a");
        assert_eq!(
            written.iter().map(|service| &service["spec"]).collect::<Vec<_>>(),
            [&closed]
        );
        assert_eq!(engine.cache.endpoint_changes().count_closed(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_keeps_its_turn_for_bytes_while_it_waits_for_changes_of_endpoints() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, name) = (&scripted.engine, KindId::Service, Name::new("team", "a"));
        let host = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"pod.berth.dev/app": "a"}, "ports": [{"port": 80}]});
        scripted.put(Side::Host, id, &name, json!({ "spec": host }));
        scripted.serve("/services/a", json!({ "spec": host }));
        engine.cache.update_dependents(Side::Host, id, &name);
        use_up_changes(engine).await;
        // It has more ports now, and nothing is taken away.
        let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"app": "a"}, "ports": [{"port": 80}, {"port": 81}]});
        scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
        let key = id.key(name);
        engine.turns.keep(&key, 1, 0);
        for _ in 0..2 {
            engine.compare_later(&key);
            let taken = Taken {
                key: QueuedKey(key.clone()),
                queued_for: Duration::ZERO,
            };
            Arc::clone(engine).work(taken).await;
            assert!(engine.turns.has_turn(&key));
        }
        assert!(scripted.sent("host PATCH", "/services/a").is_empty());
    }

    /// Other Services use up the changes of endpoints.
    async fn use_up_changes(engine: &Arc<Engine>) {
        make_services(engine, 0..1000);
        // Their creation does not count any more.
        tokio::time::advance(Duration::from_secs(11)).await;
        engine.open_services();
        let mut others = (0..1000).map(|number| Name::new("team", &format!("s{number}")));
        let waits = |other: &Name| {
            sync_of_kind(engine, KindId::Service, other)
                .ask_to_write(&json!({}), false, 100)
                .is_some()
        };
        assert!(others.any(|other| waits(&other)), "nothing is left for writes");
    }

    /// A team may change it all the time, by labels that nothing checks.
    #[tokio::test(start_paused = true)]
    async fn what_changes_in_a_service_that_is_closed_waits_for_its_turn() {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.endpoint_changes_per_second = 1;
        let scripted = Scripted::new(tenant, |_| None);
        let (engine, id) = (&scripted.engine, KindId::Service);
        engine.cache.stores.host(KindId::Pod).set_listed();
        // A syncer that starts allows 60 changes.
        let services: Vec<Name> = (0..100)
            .map(|number| Name::new("team", &format!("s{number}")))
            .collect();
        for service in &services {
            let host = json!({"spec": {"selector": {"pod.berth.dev/app": "a"}, "ports": [{"port": 80}]}});
            scripted.put(Side::Host, id, service, host);
            engine.add_dependents(Side::Host, id, service);
        }
        let pod = Name::new("team", "a");
        let labels = json!({"metadata": {"name": "a", "uid": "u", "labels": {"app": "a"}}});
        put(engine, Side::Tenant, KindId::Pod, &pod, labels);
        let host = json!({"metadata": {"name": "a-x", "annotations": {"berth.dev/origin-uid": "u"}}, "status": {"podIP": "10.0.0.1"}});
        put(engine, Side::Host, KindId::Pod, &pod, host);
        let is_closed = |service: &&Name| engine.cache.endpoint_changes().is_closed(service);
        let service = services.iter().find(is_closed).unwrap();
        let path = format!("/services/{}", service.name);
        let change = async |proxy: &str| {
            let labels = json!({"service.kubernetes.io/service-proxy-name": proxy});
            let spec = json!({"selector": {"app": "a"}, "ports": [{"port": 80}]});
            scripted.put(
                Side::Tenant,
                id,
                service,
                json!({"metadata": {"labels": labels}, "spec": spec}),
            );
            let key = id.key(service.clone());
            engine.reconcile(&key, std::time::Instant::now(), true).await.unwrap();
            scripted.calls("host PATCH", &path).len()
        };
        let others = (0..).map(|number: u32| KindId::Pod.key(Name::new("team", &number.to_string())));
        for other in others {
            if engine.turns.ask(&other, 8 << 10) == (turns::Turn::Later { takes_long: true }) {
                break;
            }
        }
        assert_eq!(change("one").await, 1, "it is closed at once");
        assert_eq!(change("two").await, 1);
        assert_eq!(change("three").await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn new_services_with_a_selector_wait_once_too_many_were_made() {
        let engine = engine();
        engine.open_services();
        let (selects, empty) = (json!({"spec": {"selector": {"app": "a"}}}), json!({"spec": {}}));
        let name = Name::new("team", "new");
        let wait = async |object: &Value| {
            let sync = sync_of_kind(&engine, KindId::Service, &name);
            sync.wait_to_make_endpoints(object).await
        };
        assert_eq!(wait(&selects).await, None);
        // The default allows 240 to a syncer that starts.
        make_services(&engine, 0..240);
        let waits = wait(&selects).await.unwrap();
        assert!(waits.waits_for_turn() && waits.requeue_after.is_some());
        assert_eq!(wait(&empty).await, None, "it has no endpoints");
        tokio::time::advance(Duration::from_secs(1)).await;
        engine.open_services();
        assert_eq!(wait(&selects).await, None);
    }
}
