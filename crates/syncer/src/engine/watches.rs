//! Which stores are filled from where, and from when on.
//!
//! Host objects of a kind are watched from the moment there are any: an idle tenant costs the host's API server few
//! watches. A kind that an API server does not serve, or that the syncer may not read there, is off: it is looked for
//! again from time to time, the tenant is told when it uses it, and everything else goes on.

use super::{Engine, api::CallError};
use crate::{
    metrics::SideLabels,
    store::{self, Hooks},
};
use berth_api::SyncPolicy;
use berth_sync_rules::{
    kinds::{self, Flow, HostNamespace, Kind},
    resource::{Key, KindId, Name, Side},
    store::{Unavailable, WatchSpec},
};
use std::{sync::Arc, time::Duration};

/// Time between looks at whether the first lists are complete.
const LIST_POLL: Duration = Duration::from_millis(10);
/// Wait after a failed look at whether there is anything to watch.
const RETRY: Duration = Duration::from_millis(500);

/// Without these there is no tenant: they are never off.
const fn is_essential(id: KindId) -> bool {
    matches!(
        id,
        KindId::Pod
            | KindId::PodToken
            | KindId::Namespace
            | KindId::ConfigMap
            | KindId::Secret
            | KindId::Service
            | KindId::Node
            | KindId::Event
    )
}

/// Whether the host's objects of a kind are watched only once there are any. They are the syncer's own, or another kind
/// tells of them, so it knows when.
fn is_on_demand(id: KindId) -> bool {
    match kinds::kind(id).flow {
        Flow::Down(_) => id != KindId::Pod,
        Flow::Tokens => true,
        Flow::View(view) => view.on_demand(),
        Flow::Nodes | Flow::Events | Flow::Known => false,
    }
}

/// Whether there may be anything to see on the host. Every watch costs it something.
fn is_offered(kind: &Kind, policy: &SyncPolicy) -> bool {
    match kind.flow {
        Flow::View(view) => view.offers(policy),
        _ => true,
    }
}

impl Engine {
    /// What is watched on a side for a kind: the namespace, empty for all, and the rest.
    fn watched(&self, side: Side, id: KindId) -> Option<(&str, WatchSpec)> {
        let kind = kinds::kind(id);
        match side {
            Side::Tenant => kind.tenant.map(|spec| ("", spec)),
            Side::Host if !is_offered(&kind, &self.world.tenant.policy) => None,
            Side::Host => kind.host.map(|(home, spec)| {
                let namespace = match home {
                    HostNamespace::Workloads => self.world.tenant.workload_namespace.as_str(),
                    HostNamespace::ControlPlane => self.world.tenant.control_plane_namespace.as_str(),
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
        let store = self.world.stores.of(side, id);
        if side == Side::Host && is_on_demand(id) {
            self.until_needed(id, namespace, spec).await;
        }
        let api = match side {
            Side::Tenant => &self.tenant,
            Side::Host => &self.host,
        };
        let hooks = Hooks {
            changed: &|name: Name| {
                self.add_dependents(side, id, &name);
                self.add(id.key(name));
            },
            availability: &|| {
                for name in self.world.stores.names(id) {
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
                Ok(true) | Err(CallError::NotFound | CallError::Refused(_)) => return,
                Err(error) => {
                    tracing::warn!(resource = spec.resource.plural, %error, "cannot look for objects on the host");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.world.stores.host(id).set_listed();
        if let Some(demand) = self.demand.get(&id) {
            demand.notified().await;
        }
    }

    /// Says that host objects of a kind exist from now on.
    pub(super) fn need(&self, id: KindId) {
        if let Some(demand) = self.demand.get(&id) {
            demand.notify_one();
        }
    }

    /// Waits until every watched kind is listed or known to be off.
    pub(super) async fn listed(&self) {
        for id in self.world.kinds.iter().copied() {
            for side in [Side::Tenant, Side::Host] {
                let store = self.world.stores.of(side, id);
                while self.watched(side, id).is_some()
                    && !store.is_listed()
                    && (is_essential(id) || store.unavailable().is_none())
                {
                    tokio::time::sleep(LIST_POLL).await;
                }
            }
        }
    }

    /// Whether a kind is off, and why.
    pub(super) fn off(&self, id: KindId) -> Option<(Side, Unavailable)> {
        if is_essential(id) {
            return None;
        }
        [Side::Tenant, Side::Host]
            .into_iter()
            .find_map(|side| Some((side, self.world.stores.of(side, id).unavailable()?)))
    }

    /// The kinds that the host does not let the syncer sync, in words. Kinds that a tenant does not serve are its own
    /// business: it may install them or not.
    pub(super) fn without(&self) -> Vec<String> {
        let kinds = self.world.kinds.iter().copied();
        kinds
            .filter_map(|id| match self.off(id)? {
                (Side::Host, why) => Some(format!("{} ({})", id.label(), words(why))),
                (Side::Tenant, _) => None,
            })
            .collect()
    }

    /// What the tenant is told about an object whose kind is off.
    pub(super) fn off_words(key: &Key, why: Unavailable) -> String {
        format!(
            "{} objects have no effect here: {}. The platform team can change that.",
            key.kind.label(),
            words(why)
        )
    }
}

fn words(why: Unavailable) -> &'static str {
    match why {
        Unavailable::NotServed => "the host cluster does not serve this kind",
        Unavailable::Forbidden => "the host cluster does not allow this kind",
    }
}
