//! Which stores are filled by which watch, and from when on.
//!
//! Host objects of a kind are watched from the moment there are any: an idle tenant costs the host's API server few
//! watches. A kind that an API server does not serve, or that the syncer may not read there, is off: the syncer tries
//! it again from time to time, an Event says so on the objects that use it, and all other kinds are synced.

use super::{Engine, api::CallError};
use crate::{
    metrics::SideLabels,
    store::{self, Hooks},
};
use berth_api::SyncPolicy;
use berth_sync_rules::model::{
    Direction, HostNamespace, HostWatch, Kind, KindId,
    resource::{Key, Name, Side},
    store::{Stored, Unavailable, WatchSpec},
};
use std::{sync::Arc, time::Duration};

/// Interval of checks whether the first lists are complete.
const LIST_POLL: Duration = Duration::from_millis(10);
/// Wait after a failed check whether there is anything to watch.
const RETRY: Duration = Duration::from_millis(500);

/// Whether the host may have any objects of the kind. Every watch costs it something.
fn is_offered(kind: &Kind, policy: &SyncPolicy) -> bool {
    match kind.direction {
        Direction::Mirror(rules) => rules.is_offered(policy),
        _ => true,
    }
}

/// How to know that of an object nothing but its status and its node has changed, so that both objects need not be compared as a whole:
/// none if what should be on the host may depend on them.
fn differs_in_status(side: Side, kind: &Kind) -> Option<fn(&Stored, &Stored) -> bool> {
    match (side, kind.direction) {
        (Side::Host, _) => Some(Stored::is_for_the_same),
        (Side::Tenant, Direction::ToHost(rules)) if !rules.follows_own_status() => Some(Stored::requests_the_same),
        (Side::Tenant, _) => None,
    }
}

impl Engine {
    /// What is watched on a side for a kind: the namespace, empty for all, and the rest.
    fn watched(&self, side: Side, id: KindId) -> Option<(&str, WatchSpec)> {
        let kind = self.cache.kind(id);
        match side {
            Side::Tenant => kind.tenant.map(|spec| ("", spec)),
            Side::Host if !is_offered(kind, &self.cache.tenant.policy) => None,
            Side::Host => kind.host.map(|(home, spec)| {
                let namespace = match home {
                    HostNamespace::Workloads => self.cache.tenant.workload_namespace.as_str(),
                    HostNamespace::ControlPlane => self.cache.tenant.control_plane_namespace.as_str(),
                    HostNamespace::Cluster => "",
                };
                (namespace, spec)
            }),
        }
    }

    /// Fills one store for ever.
    pub(super) async fn watch(self: Arc<Self>, side: Side, id: KindId) {
        let Some((namespace, spec)) = self.watched(side, id) else {
            return;
        };
        let store = self.cache.stores.of(side, id);
        if side == Side::Host && self.cache.kind(id).host_watch == HostWatch::OnDemand {
            self.until_needed(id, namespace, spec).await;
        }
        let api = match side {
            Side::Tenant => &self.tenant,
            Side::Host => &self.host,
        };
        let hooks = Hooks {
            side,
            keeps_last: side == Side::Host && self.cache.rules_to_host(id).is_some(),
            differs_in_status: differs_in_status(side, self.cache.kind(id)),
            changed: &|name: Name, only_status: bool| {
                if side == Side::Host && !store.contains(&name) {
                    self.refused_kinds.allow(id);
                }
                self.add_dependents(side, id, &name);
                if only_status {
                    self.add_for_status(id.key(name));
                } else {
                    self.add(id.key(name));
                }
            },
            availability: &|| {
                for name in self.cache.stores.names(id) {
                    self.add(id.key(name));
                }
                self.availability.notify_one();
            },
        };
        self.metrics
            .watches
            .get_or_create(&SideLabels { side: side.name() })
            .inc();
        store::watch(api.client(), spec, namespace, store, hooks).await;
    }

    /// Waits until the host has objects of a kind, which is now or when the first is created.
    async fn until_needed(&self, id: KindId, namespace: &str, spec: WatchSpec) {
        loop {
            match self.host.has_any(spec.resource, namespace, spec.labels).await {
                Ok(false) => break,
                // If it is not served or forbidden, the watch finds out.
                Ok(true) | Err(CallError::NotFound | CallError::Rejected(_)) => return,
                Err(error) => {
                    tracing::warn!(resource = spec.resource.plural, %error, "cannot list objects on the host");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.cache.stores.host(id).set_listed();
        if let Some(demand) = self.demand.get(&id) {
            demand.notified().await;
        }
    }

    /// Starts the watch of a kind on the host, because host objects of it exist from now on.
    pub(super) fn start_host_watch(&self, id: KindId) {
        if let Some(demand) = self.demand.get(&id) {
            demand.notify_one();
        }
    }

    /// Waits until every watched kind is listed or known to be off.
    pub(super) async fn listed(&self) {
        for id in self.cache.kinds.iter().copied() {
            for side in [Side::Tenant, Side::Host] {
                let store = self.cache.stores.of(side, id);
                while self.watched(side, id).is_some()
                    && !store.is_listed()
                    && (self.cache.kind(id).is_essential || store.unavailable().is_none())
                {
                    tokio::time::sleep(LIST_POLL).await;
                }
            }
        }
    }

    /// Whether a kind is off, and why.
    pub(super) fn find_unavailable_side(&self, id: KindId) -> Option<(Side, Unavailable)> {
        if self.cache.kind(id).is_essential {
            return None;
        }
        [Side::Tenant, Side::Host]
            .into_iter()
            .find_map(|side| Some((side, self.cache.stores.of(side, id).unavailable()?)))
    }

    /// The kinds that cannot be synced because of the host. Kinds that a tenant does not serve are not included: it may
    /// install them or not.
    pub(super) fn unavailable_kinds(&self) -> Vec<String> {
        let kinds = self.cache.kinds.iter().copied();
        kinds
            .filter_map(|id| match self.find_unavailable_side(id)? {
                (Side::Host, why) => Some(format!("{} ({})", id.label(), describe_unavailable(why))),
                (Side::Tenant, _) => None,
            })
            .collect()
    }

    /// The message about an object whose kind is unavailable.
    pub(super) fn unavailable_message(key: &Key, why: Unavailable) -> String {
        format!(
            "{} objects have no effect here: {}. The platform team can change that.",
            key.kind.label(),
            describe_unavailable(why)
        )
    }
}

fn describe_unavailable(why: Unavailable) -> &'static str {
    match why {
        Unavailable::NotServed => "the host cluster does not serve this kind",
        Unavailable::Forbidden => "the host cluster does not allow this kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::engine;

    #[tokio::test]
    async fn an_idle_tenant_costs_the_host_few_watches() {
        let engine = engine();
        let cache = &engine.cache;
        let always =
            cache.kinds.iter().copied().filter(|id| {
                cache.kind(*id).host_watch == HostWatch::Always && engine.watched(Side::Host, *id).is_some()
            });
        let always: Vec<&str> = always.map(KindId::label).collect();
        assert_eq!(
            always,
            ["Pod", "Node", "TenantSchedule", "Event"],
            "classes that nobody may use are not watched"
        );
    }

    #[tokio::test]
    async fn only_pods_of_the_tenant_are_compared_without_their_status() {
        let engine = engine();
        let cache = &engine.cache;
        for id in cache.kinds.iter().copied() {
            let kind = cache.kind(id);
            assert!(differs_in_status(Side::Host, kind).is_some(), "{}", id.label());
            assert_eq!(
                differs_in_status(Side::Tenant, kind).is_some(),
                id == KindId::Pod,
                "{}",
                id.label()
            );
        }
    }
}
