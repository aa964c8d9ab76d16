//! What must happen on the host comes before anything that the tenant's API server takes long for.
//!
//! Keys for which it takes long have a [second queue](super::slow_queue), in which ten thousand others may be ahead of one. Before a key
//! goes there it is reconciled as always, but without the tenant: each call to the tenant's API server fails at once, with
//! [`CallError::Deferred`](super::api::CallError::Deferred). As nothing on the host depends on what the tenant answers, this deletes, ends, withdraws
//! and narrows all that it should. Only if there was a call does the key wait for a place in which the tenant is asked.
//!
//! Nothing is remembered of it but that key, so it can be repeated at any time: when the object changes, when a schedule wants it, in a full scan, and
//! after a restart.

use super::Engine;
use berth_sync_rules::model::{Direction, KindId, resource::Key};
use std::cell::Cell;

tokio::task_local! {
    /// Whether there was something to ask the tenant's API server in this task, which does not ask.
    static DEFERRED: Cell<bool>;
}

/// The same task, without calls to the tenant's API server.
pub(super) fn without_tenant<T: Future>(task: T) -> impl Future<Output = T::Output> {
    DEFERRED.scope(Cell::default(), task)
}

/// Whether this task does not ask the tenant's API server what it is about to ask. It is then asked later.
pub(super) fn defers() -> bool {
    DEFERRED.try_with(|deferred| deferred.set(true)).is_ok()
}

/// Whether this task has left something for later.
pub(super) fn has_deferred() -> bool {
    DEFERRED.try_with(Cell::get).unwrap_or_default()
}

impl Engine {
    /// Whether a key has anything on the host that may have to be closed or deleted.
    pub(super) fn may_close(&self, key: &Key) -> bool {
        let is_on_host = |kind: KindId| self.cache.stores.host(kind).contains(&key.name);
        match self.cache.kind(key.kind).direction {
            Direction::ToHost(_) => is_on_host(key.kind),
            // The Secret of a pod that is gone. Others are renewed, with what the tenant issues.
            Direction::Tokens => is_on_host(key.kind) && !is_on_host(KindId::Pod),
            Direction::Mirror(_) | Direction::ReadOnly | Direction::Nodes | Direction::Schedule | Direction::Events => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        lock,
        scripted::{Failure, Scripted},
        test_engine::tenant,
        turns::{LineKind, Turn},
    };
    use super::*;
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::resource::{Name, Side};
    use serde_json::json;
    use std::sync::Arc;

    /// An Ingress that is denied, and is on the host.
    fn denied_ingress() -> (Scripted, Key) {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let name = Name::new("team", "a");
        let ingress = json!({
            "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example.com"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
        });
        scripted.put(Side::Tenant, KindId::Ingress, &name, ingress);
        scripted.put(Side::Host, KindId::Ingress, &name, json!({"spec": {}}));
        (scripted, KindId::Ingress.key(name))
    }

    #[tokio::test]
    async fn the_host_comes_first_and_the_second_queue_has_the_rest() {
        let (scripted, key) = denied_ingress();
        let engine = &scripted.engine;
        let (queue, slow) = (engine.queue_of(key.kind), engine.slow_queue_of(key.kind));
        engine.add(key.clone());
        let taken = queue.take().await;
        without_tenant(Arc::clone(engine).work(taken)).await;
        assert_eq!(scripted.calls("host DELETE", "/ingresses/a").len(), 1);
        assert!(scripted.calls("tenant", "").is_empty());
        assert!(lock(&engine.failures).is_empty(), "nothing has failed");
        assert!(queue.is_empty() && slow.has(&key));

        let rest = slow.take().await;
        assert!(queue.claim(&rest.key));
        Arc::clone(engine).work(rest).await;
        assert!(scripted.first("tenant PATCH", "/ingresses/a/status").is_some());
        let event = scripted.first("tenant PATCH /api/v1/namespaces/team/events/", "");
        assert!(event.is_some(), "it was not taken for written before");
        assert!(!slow.has(&key));
    }

    #[tokio::test]
    async fn what_the_host_rejects_is_said_in_the_tenant_when_its_turn_comes() {
        let is_update = |call: &str| call.starts_with("host PATCH") && call.contains("/poddisruptionbudgets/");
        let refuses = move |call: &str| is_update(call).then_some(Failure::Refused(403));
        let scripted = Scripted::new(tenant(SyncPolicy::default()), refuses);
        let (engine, name) = (&scripted.engine, Name::new("team", "web"));
        let id = KindId::PodDisruptionBudget;
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
        scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
        scripted.put(Side::Host, id, &name, json!({"spec": {}}));
        let key = id.key(name);
        let (queue, slow) = (engine.queue_of(id), engine.slow_queue_of(id));
        engine.add(key.clone());
        let taken = queue.take().await;
        without_tenant(Arc::clone(engine).work(taken)).await;
        assert_eq!(scripted.calls("host PATCH", "").len(), 1);
        assert!(scripted.calls("tenant", "").is_empty());
        assert!(lock(&engine.failures).contains_key(&key), "the host is asked again");
        assert!(slow.has(&key));
        let rest = slow.take().await;
        assert!(queue.claim(&rest.key));
        Arc::clone(engine).work(rest).await;
        let events = scripted.calls("tenant PATCH /api/v1/namespaces/team/events/", "");
        assert_eq!(events.len(), 1);
        assert!(!slow.has(&key));
    }

    #[tokio::test]
    async fn a_key_that_waits_for_the_tenant_keeps_its_turns() {
        let (scripted, key) = denied_ingress();
        let engine = &scripted.engine;
        let (queue, slow) = (engine.queue_of(key.kind), engine.slow_queue_of(key.kind));
        engine.turns.keep(&key, 100_000, 0);
        engine.turns.take(1 << 30);
        engine.turns.take_requests(1_000_000);
        assert_ne!(engine.turns.ask_for_requests(&key, 5), Turn::Now);
        engine.add(key.clone());
        let taken = queue.take().await;
        without_tenant(Arc::clone(engine).work(taken)).await;
        assert!(slow.has(&key));
        assert_eq!(engine.turns.waiting(LineKind::Requests), 1, "its place in the line");
        assert_eq!(engine.turns.ask(&key, 100_000), Turn::Now, "what it has got");
        let rest = slow.take().await;
        assert!(queue.claim(&rest.key));
        Arc::clone(engine).work(rest).await;
        assert_eq!(engine.turns.waiting(LineKind::Requests), 0, "it does not need it");
    }

    #[tokio::test]
    async fn a_key_with_nothing_to_ask_takes_no_place_in_the_second_queue() {
        let (scripted, key) = denied_ingress();
        let engine = &scripted.engine;
        engine.cache.stores.tenant(key.kind).forget(&key.name);
        engine.add(key.clone());
        assert!(engine.may_close(&key));
        let taken = engine.queue_of(key.kind).take().await;
        without_tenant(Arc::clone(engine).work(taken)).await;
        assert_eq!(scripted.calls("host DELETE", "/ingresses/a").len(), 1);
        assert_eq!(engine.waiting(), 0);
    }

    #[tokio::test]
    async fn only_what_is_on_the_host_can_be_closed() {
        let (scripted, ingress) = denied_ingress();
        let engine = &scripted.engine;
        let other = KindId::Ingress.key(Name::new("team", "b"));
        let token = KindId::PodToken.key(ingress.name.clone());
        assert!(engine.may_close(&ingress) && !engine.may_close(&other) && !engine.may_close(&token));
        scripted.put(Side::Host, KindId::PodToken, &token.name, json!({}));
        assert!(engine.may_close(&token), "its pod is gone");
        scripted.put(Side::Host, KindId::Pod, &token.name, json!({"spec": {}}));
        assert!(!engine.may_close(&token));
    }

    #[tokio::test]
    async fn other_tasks_defer_nothing() {
        assert!(!defers() && !has_deferred());
        let seen = without_tenant(async { [has_deferred(), defers(), has_deferred()] }).await;
        assert_eq!(seen, [false, true, true]);
        assert!(!has_deferred());
    }
}
