//! Looks at everything from time to time, in case a change was missed.

use super::{Engine, tokens};
use crate::metrics::KindLabels;
use berth_sync_rules::model::{
    Direction, KindId,
    resource::{Name, Side},
};
use std::{sync::Arc, time::Duration};

/// Time between full scans of both sides.
const RESYNC: Duration = Duration::from_mins(5);

impl Engine {
    /// Scans both sides from time to time, in case a change was missed. There should be none.
    pub(super) async fn resync(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESYNC).await;
            let left_out = self.cache.references().left_out();
            for key in left_out {
                self.add_dependents(Side::Tenant, key.kind, &key.name);
            }
            for id in self.cache.kinds.iter().copied() {
                for name in self.cache.stores.names(id) {
                    if self.is_orphan(id, &name) {
                        tracing::warn!(kind = id.label(), %name, "found a host object without a tenant object");
                        self.metrics
                            .orphans
                            .get_or_create(&KindLabels { kind: id.label() })
                            .inc();
                    }
                    self.add(id.key(name));
                }
            }
        }
    }

    /// Whether nothing in the tenant stands for a host object.
    pub(super) fn is_orphan(&self, id: KindId, name: &Name) -> bool {
        let stores = &self.cache.stores;
        let settled = stores
            .host(id)
            .get(name)
            .is_some_and(|host| host.deletion.is_none() && host.reserved_at.is_none());
        let origin = match self.cache.kind(id).direction {
            Direction::Tokens => {
                stores.host(KindId::Pod).contains(name)
                    || stores.tenant(KindId::Pod).contains(name)
                    || tokens::waits_for_its_pod(self, name)
            }
            Direction::ToHost(_) => self.find_unavailable_side(id).is_some() || stores.tenant(id).contains(name),
            Direction::Nodes | Direction::Schedule | Direction::Events | Direction::Mirror(_) | Direction::ReadOnly => {
                true
            }
        };
        settled && !origin
    }
}
