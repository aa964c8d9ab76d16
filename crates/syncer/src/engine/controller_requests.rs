//! Lets claims, snapshots and pods with claims wait for their turn: controllers of the host make requests because of them. How many is said by the
//! [rules of the kind](berth_sync_rules::model::ToHost::controller_requests). Services that change [wait](super::endpoint_changes) as well.

use super::{
    Outcome, QUOTA_EXCEEDED,
    recorder::Level,
    to_host::ObjectSync,
    turns::{self, Turn},
    update::{FULL_WAIT, REFUSED},
};
use berth_sync_rules::{model::KindId, translation::quota::QuotaExceeded};
use serde_json::Value;

/// What a write waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// Bytes of Events about the tenant's objects, for a pod that is made.
    Events(Turn),
    /// Requests of the host's controllers.
    Requests(Turn),
    /// Bytes.
    Bytes(Turn),
    /// Changes of endpoints.
    Endpoints,
    /// [Bytes](super::host_bytes) that others have on the host.
    Room,
}

impl ObjectSync<'_> {
    /// Asks whether it is the turn of a write of `bytes` that makes the host object, or changes it, to `desired`. Returns what it waits for if it
    /// is not.
    pub(super) fn ask_to_write(&self, desired: &Value, is_new: bool, bytes: u64) -> Option<Wait> {
        if is_new && self.id == KindId::Pod {
            // Before the requests: a pod that keeps those for long would keep others from theirs.
            let turn = self.engine.turns.ask_for_events(&self.key());
            if turn != Turn::Now {
                return Some(Wait::Events(turn));
            }
        }
        let requests = self.kind.controller_requests(desired, is_new);
        let turn = self.engine.turns.ask_for_requests(&self.key(), requests);
        if turn != Turn::Now {
            return Some(Wait::Requests(turn));
        }
        let changes_service = !is_new && self.id == KindId::Service;
        if changes_service && !self.engine.cache.endpoint_changes().may_write(self.name) {
            return Some(Wait::Endpoints);
        }
        let turn = self.engine.ask_to_write(&self.key(), bytes);
        if turn != Turn::Now {
            if changes_service {
                self.engine.cache.endpoint_changes().wait_elsewhere(self.name);
            }
            return Some(Wait::Bytes(turn));
        }
        if !is_new {
            self.count_service_change();
        }
        None
    }

    /// Counts a change of a Service that is about to be written, whether or not it has waited: no Service is closed because of it.
    pub(super) fn count_service_change(&self) {
        if self.id == KindId::Service {
            self.engine.cache.endpoint_changes().begin_write(self.name);
        }
    }

    /// Says in the tenant that an object waits, if it does for long, and returns what to do. What happens on the host comes before: the tenant's
    /// API server may not answer.
    pub(super) async fn report_wait(&self, wait: Wait) -> Outcome {
        match wait {
            Wait::Requests(Turn::Later { takes_long: true }) => self.record_wait_for_controllers().await,
            Wait::Events(Turn::Later { takes_long: true }) => self.record_wait_for_events().await,
            Wait::Requests(_) | Wait::Events(_) => {}
            Wait::Bytes(turn) => self.engine.report_wait(&self.key(), turn).await,
            Wait::Endpoints => return self.wait_to_change_endpoints().await,
            Wait::Room => return self.wait_for_bytes().await,
        }
        Outcome::new(turns::WAITS).comparing_again()
    }

    /// Says in the tenant that it has as many bytes on the host as it may have, and returns what to do.
    async fn wait_for_bytes(&self) -> Outcome {
        let exceeded = QuotaExceeded::of_host_bytes(self.engine.cache.tenant.host_limits.bytes);
        self.engine
            .record_event(&self.key(), Level::Warning, QUOTA_EXCEEDED, &exceeded.to_string())
            .await;
        Outcome::requeue(REFUSED, FULL_WAIT)
    }

    /// The write that asked for requests has reached the host.
    pub(super) fn count_requests(&self) {
        let requests = self.engine.turns.spend(&self.key());
        self.engine.metrics.host_writes.controller_requests.inc_by(requests);
    }

    async fn record_wait_for_events(&self) {
        let rate = self.engine.cache.tenant.host_limits.write_bytes_per_second / turns::EVENTS_PART;
        let message = format!(
            "The pod waits for its turn to be made on the host cluster: more than {rate} bytes of Events a second are written there about objects of \
             this cluster. Look for pods that fail and are made again and again, or ask the platform team to raise spec.limits.hostWriteBytesPerSecond \
             of the class."
        );
        self.engine
            .record_event(&self.key(), Level::Normal, turns::DELAYED, &message)
            .await;
    }

    async fn record_wait_for_controllers(&self) {
        let rate = self.engine.cache.tenant.host_limits.controller_requests_per_second;
        let message = format!(
            "The object waits for its turn to be written to the host cluster: controllers there make no more than {rate} requests a second for this \
             cluster. Make fewer claims and pods with claims at a time, or ask the platform team to raise spec.limits.controllerRequestsPerSecond of the \
             class."
        );
        self.engine
            .record_event(&self.key(), Level::Normal, turns::DELAYED, &message)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{
        Engine, lock,
        queued_key::QueuedKey,
        test_engine::{engine_of, tenant},
        turns::{LineKind, Turn},
    };
    use berth_api::{SyncPolicy, labels};
    use berth_runtime::queue::Taken;
    use berth_sync_rules::model::{
        KindId,
        resource::{Key, Name},
        store::Stored,
    };
    use serde_json::{Value, json};
    use std::{sync::Arc, time::Duration};

    /// An engine of a tenant of whose requests so many are left, and which gets one more each second.
    async fn engine_with(left: u64) -> Arc<Engine> {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.controller_requests_per_second = 1;
        let engine = engine_of(tenant);
        tokio::time::advance(Duration::from_mins(10)).await;
        let others = KindId::Pod.key(Name::new("team", "others"));
        let turn = engine.turns.ask_for_requests(&others, 600 - left);
        assert_eq!((turn, engine.turns.spend(&others)), (Turn::Now, 600 - left));
        engine
    }

    /// A pod of the tenant with so many claims, in its store.
    fn put_pod(engine: &Engine, name: &str, claims: u32) -> Key {
        let claims: Vec<Value> = (0..claims)
            .map(|number| json!({"name": format!("gpu-{number}"), "resourceClaimName": "shared"}))
            .collect();
        let pod = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "main", "image": "train:1"}], "resourceClaims": claims},
        });
        let name = Name::new("team", name);
        let pods = engine.cache.stores.tenant(KindId::Pod);
        pods.written(name.clone(), Stored::new(&pod));
        KindId::Pod.key(name)
    }

    /// Reconciles an object. Returns whether that has failed: there is no API server, so what is written fails.
    async fn tries_to_write(engine: &Arc<Engine>, key: &Key) -> bool {
        engine.compare_later(key);
        let taken = Taken {
            key: QueuedKey(key.clone()),
            queued_for: Duration::ZERO,
        };
        Arc::clone(engine).work(taken).await;
        lock(&engine.failures).contains_key(key)
    }

    #[tokio::test(start_paused = true)]
    async fn pods_with_many_claims_wait_and_others_do_not() {
        let engine = engine_with(20).await;
        let (full, plain) = (put_pod(&engine, "full", 32), put_pod(&engine, "plain", 0));
        assert!(!tries_to_write(&engine, &full).await, "it costs 33 requests");
        assert_eq!(engine.turns.waiting(LineKind::Requests), 1);
        assert!(tries_to_write(&engine, &plain).await, "it costs none");
        engine.publish_host_bytes();
        assert_eq!(engine.metrics.host_writes.controller_requests_waiting.get(), 1);
        let turns = tokio::spawn(Arc::clone(&engine).take_turns(LineKind::Requests));
        let next = loop {
            let taken = engine.queue_of(KindId::Pod).take().await;
            if taken.key.0 == full {
                break taken.key.0;
            }
        };
        turns.abort();
        // The host fails, and the pod is tried again and again.
        for _ in 0..3 {
            assert!(tries_to_write(&engine, &next).await);
        }
        assert_eq!(engine.turns.waiting(LineKind::Requests), 0);
        assert_eq!(engine.turns.spend(&next), 33, "they were taken once");
    }

    #[tokio::test(start_paused = true)]
    async fn new_pods_wait_while_too_many_events_are_written_and_those_on_the_host_do_not() {
        let engine = engine_with(0).await;
        engine.turns.take_event(1 << 30);
        let (new, running) = (put_pod(&engine, "new", 0), put_pod(&engine, "runs", 0));
        put_on_host(&engine, &running);
        assert!(!tries_to_write(&engine, &new).await, "it is not made");
        assert!(tries_to_write(&engine, &running).await, "it is changed");
        assert_eq!(engine.turns.waiting(LineKind::Events), 1);
        engine.publish_host_bytes();
        assert_eq!(engine.metrics.host_writes.pods_waiting_for_events.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_on_the_host_when_the_syncer_starts_takes_nothing() {
        let engine = engine_with(0).await;
        let pod = put_pod(&engine, "runs", 32);
        put_on_host(&engine, &pod);
        assert!(tries_to_write(&engine, &pod).await, "it is changed");
        assert_eq!(
            (engine.turns.waiting(LineKind::Requests), engine.turns.spend(&pod)),
            (0, 0)
        );
    }

    /// The host has the pod `runs`, as it was before.
    fn put_on_host(engine: &Engine, pod: &Key) {
        let annotations = json!({labels::ORIGIN_UID: "runs"});
        let host = json!({
            "metadata": {"name": "runs-x", "uid": "h", "resourceVersion": "2", "annotations": annotations},
            "spec": {"nodeName": "gpu-1"},
        });
        let on_host = engine.cache.stores.host(KindId::Pod);
        on_host.watched(pod.name.clone(), Stored::new(&host));
    }
}
