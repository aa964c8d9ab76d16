//! Pods that follow what administrators of the tenant change: those that wait for a node follow the tenant's Nodes, and those with projections of trust
//! bundles follow these.
//!
//! One change concerns all such pods, and costs its author nothing. So they are reconciled at a bounded pace: changes that come faster are followed
//! together.

use super::{Engine, lock};
use berth_sync_rules::{
    admission::writes::Pace,
    kinds::pod::{placement, trust},
    model::{KindId, resource::Name},
};
use tokio::time::Instant;

/// The work of how many pods may be done at once because of such changes.
const AT_ONCE: u64 = 15_000;
/// The same in a second, in the long run.
const RATE: u64 = 500;
/// Host pods that are as much work to look through, for those that wait, as one is to reconcile.
const LOOKED_THROUGH_LIKE_A_POD: usize = 256;

/// What is to be followed, and how fast. The [cache](berth_sync_rules::model::Cache::trust_followers) knows whether trust bundles have changed.
pub(super) struct Followers {
    pace: Pace,
    /// Whether Nodes have changed since the pods followed them.
    nodes_have_changed: bool,
    /// Whether Nodes were followed last, and not trust bundles.
    nodes_were_last: bool,
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            pace: Pace::with_allowance(AT_ONCE, RATE, now()),
            nodes_have_changed: false,
            nodes_were_last: false,
        }
    }
}

impl Followers {
    /// Whether earlier work is made up for.
    fn may_go_on(&self) -> bool {
        self.pace.has(1, now())
    }

    /// Counts the work of so many pods.
    fn count(&mut self, pods: u64) {
        self.pace.reserve(1 + pods, now());
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Engine {
    /// Notes that something about Nodes has changed that decides which pods may run there.
    pub(super) fn note_changed_nodes(&self) {
        let is_known = std::mem::replace(&mut lock(&self.followers).nodes_have_changed, true);
        if !is_known {
            self.follow_changes();
        }
    }

    /// Puts the pods into the queue that have something to follow, unless it is too early.
    pub(super) fn follow_changes(&self) {
        let mut followers = lock(&self.followers);
        // In turns: neither may use up the pace for ever.
        if followers.nodes_were_last {
            self.follow_trust_bundles(&mut followers);
            self.follow_nodes(&mut followers);
        } else {
            self.follow_nodes(&mut followers);
            self.follow_trust_bundles(&mut followers);
        }
    }

    fn follow_nodes(&self, followers: &mut Followers) {
        if !followers.nodes_have_changed || !followers.may_go_on() {
            return;
        }
        followers.nodes_have_changed = false;
        followers.nodes_were_last = true;
        let looked_through = self.cache.stores.host(KindId::Pod).len() / LOOKED_THROUGH_LIKE_A_POD;
        let waiting = self.pods_without_node();
        followers.count((waiting.len() + looked_through) as u64);
        for pod in waiting {
            self.add(KindId::Pod.key(pod));
        }
    }

    fn follow_trust_bundles(&self, followers: &mut Followers) {
        if !self.cache.trust_followers().has_changed || !followers.may_go_on() {
            return;
        }
        followers.nodes_were_last = false;
        followers.count(trust::cost_of_following(&self.cache));
        let mut trusting = self.cache.trust_followers();
        trusting.has_changed = false;
        for pod in trusting.pods() {
            self.add(KindId::PodToken.key(pod.clone()));
        }
    }

    /// The pods that wait on the host for a node.
    fn pods_without_node(&self) -> Vec<Name> {
        let pods = self.cache.stores.host(KindId::Pod).all().into_iter();
        pods.filter(|(_, host)| placement::waits(host))
            .map(|(pod, _)| pod)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        nodes,
        scripted::Scripted,
        test_engine::{engine, tenant},
        test_pods::put_host_pod,
    };
    use super::*;
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::resource::Side;
    use serde_json::json;
    use std::time::Duration;

    /// Takes all keys out of the queue of a kind. Returns how many there were.
    async fn take_all(engine: &Engine, id: KindId) -> usize {
        let queue = engine.queue_of(id);
        let mut count = 0;
        while !queue.is_empty() {
            let taken = queue.take().await;
            queue.done(&taken.key);
            count += 1;
        }
        count
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_of_the_tenants_own_are_not_followed() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let engine = &scripted.engine;
        let (pod, own) = (Name::new("team", "waits"), Name::new("", "own"));
        scripted.put(Side::Host, KindId::Pod, &pod, json!({"spec": {}}));
        scripted.put(
            Side::Tenant,
            KindId::Node,
            &own,
            json!({"spec": {"unschedulable": true}}),
        );
        let reconcile = async || nodes::reconcile(engine, &own, std::time::Instant::now()).await;
        assert!(reconcile().await.is_ok());
        assert_eq!(scripted.calls("tenant DELETE", "/nodes/own").len(), 1);
        assert_eq!(take_all(engine, KindId::Pod).await, 0);
        scripted.put(
            Side::Host,
            KindId::Node,
            &own,
            json!({"spec": {"nodeName": "own", "unschedulable": true}}),
        );
        assert!(reconcile().await.is_ok());
        assert_eq!(
            take_all(engine, KindId::Pod).await,
            1,
            "the platform has a node of this name now"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_nodes_that_come_fast_are_followed_together() {
        let engine = engine();
        put_host_pod(&engine, "waits", &json!({}), &json!({}));
        put_host_pod(&engine, "runs", &json!({"nodeName": "gpu-1"}), &json!({}));
        lock(&engine.followers).pace = Pace::with_allowance(4, 1, now());
        let mut followed = 0;
        for _ in 0..10 {
            engine.note_changed_nodes();
            followed += take_all(&engine, KindId::Pod).await;
        }
        assert_eq!(followed, 2, "each time the one that waits");
        engine.follow_changes();
        assert_eq!(take_all(&engine, KindId::Pod).await, 0, "too early");
        tokio::time::advance(Duration::from_secs(1)).await;
        engine.follow_changes();
        assert_eq!(take_all(&engine, KindId::Pod).await, 1, "the last change is not lost");
        tokio::time::advance(Duration::from_mins(1)).await;
        engine.follow_changes();
        assert_eq!(take_all(&engine, KindId::Pod).await, 0, "nothing has changed since");
    }

    #[tokio::test(start_paused = true)]
    async fn to_look_through_many_pods_is_work_also_if_none_waits() {
        let engine = engine();
        for number in 0..2 * LOOKED_THROUGH_LIKE_A_POD {
            put_host_pod(&engine, &number.to_string(), &json!({"nodeName": "gpu-1"}), &json!({}));
        }
        lock(&engine.followers).pace = Pace::with_allowance(6, 1, now());
        let mut followed = 0;
        for _ in 0..10 {
            engine.note_changed_nodes();
            followed += usize::from(!lock(&engine.followers).nodes_have_changed);
        }
        assert_eq!(followed, 2, "each takes three");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_change_all_the_time_leave_turns_to_trust_bundles() {
        let engine = engine();
        put_host_pod(&engine, "waits", &json!({}), &json!({}));
        engine.cache.trust_followers().set(&Name::new("team", "trusts"), true);
        lock(&engine.followers).pace = Pace::with_allowance(2, 1, now());
        engine.note_changed_nodes();
        engine.add_dependents(Side::Tenant, KindId::ClusterTrustBundle, &Name::new("", "ours"));
        let (mut nodes, mut trust) = (0, 0);
        for _ in 0..40 {
            engine.note_changed_nodes();
            engine.cache.trust_followers().has_changed = true;
            tokio::time::advance(Duration::from_secs(1)).await;
            engine.follow_changes();
            nodes += take_all(&engine, KindId::Pod).await;
            trust += take_all(&engine, KindId::PodToken).await;
        }
        assert!(nodes >= 5 && trust >= 5, "{nodes} and {trust}");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_trust_bundles_that_come_fast_are_followed_together() {
        let engine = engine();
        let bundle = Name::new("", "ours");
        for pod in ["one", "two"] {
            engine.cache.trust_followers().set(&Name::new("team", pod), true);
        }
        lock(&engine.followers).pace = Pace::with_allowance(6, 1, now());
        let mut followed = 0;
        for _ in 0..10 {
            engine.add_dependents(Side::Tenant, KindId::ClusterTrustBundle, &bundle);
            followed += take_all(&engine, KindId::PodToken).await;
        }
        assert_eq!(followed, 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        engine.follow_changes();
        assert_eq!(take_all(&engine, KindId::PodToken).await, 2);
    }
}
