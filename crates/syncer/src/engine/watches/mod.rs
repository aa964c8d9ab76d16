//! Which stores are filled by which watch, and from when on.
//!
//! Host objects of a kind are watched from the moment there are any: an idle tenant costs the host's API server few
//! watches. A kind that an API server does not serve, or that the syncer may not read there, is off: the syncer tries
//! it again from time to time, an Event says so on the objects that use it, and all other kinds are synced.
//!
//! A kind that a tenant may serve by a definition of its own (`Kind::is_extension`) holds nothing else up: with a conversion webhook that never
//! answers, its list would never end, and an administrator of the tenant could so keep the syncer from enforcing anything. If it is not listed
//! soon after the others, it is off until its list has succeeded, and so it is if the syncer has no memory for its objects. What the tenant has of
//! it is not known till then, so nothing of it, and nothing that it may use, is changed or deleted on the host. A kind that has objects on the host and
//! that the tenant's API server does not serve any more counts in the same way: a server of the tenant's own can say so.

use super::{Engine, api::CallError};
use crate::{
    metrics::SideLabels,
    store::{self, Bounds, Hooks},
};
use berth_api::SyncPolicy;
use berth_sync_rules::model::{
    Dependency, Direction, HostNamespace, HostWatch, Kind, KindId,
    resource::{Key, Name, Side},
    store::{Stored, Unavailable, WatchSpec},
};
use std::{sync::Arc, time::Duration};

/// Interval of checks whether the first lists are complete.
const LIST_POLL: Duration = Duration::from_millis(10);
/// How long the others wait for kinds that the tenant may serve by definitions of its own, after these others are listed.
const EXTENSION_WAIT: Duration = Duration::from_secs(10);
/// Wait after a failed check whether there is anything to watch.
const RETRY: Duration = Duration::from_millis(500);

/// How often it is looked which lists the start still waits for.
const MISSING_CHECK: Duration = Duration::from_secs(5);
/// Such lists that are named at most.
const MOST_NAMED: usize = 8;

/// Bytes that an object of an extension counts besides its text: for what is kept of it otherwise.
const MEMORY_OF_OBJECT: u64 = 2 << 10;

/// How far the lists of both sides are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists<'a> {
    /// The start waits for these, of which the first ones are named.
    Missing(&'a [String]),
    /// The start waits for none. Nothing of the kinds in `without` is synced, for the reasons that are named.
    Complete {
        /// Kinds with reasons.
        without: &'a [String],
    },
}

/// Whether a tenant may serve a kind there by itself.
fn is_extension(side: Side, kind: &Kind) -> bool {
    side == Side::Tenant && kind.is_extension
}

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
        let is_extension = is_extension(side, self.cache.kind(id));
        let client = match side {
            Side::Tenant if is_extension => self.extensions.clone(),
            Side::Tenant => self.tenant.client(),
            Side::Host => self.host.client(),
        };
        let kept = || self.extension_bytes();
        let bounds = Bounds {
            bytes: berth_api::extension_bytes(self.cache.tenant.host_limits.bytes),
            kept: &kept,
        };
        let hooks = Hooks {
            side,
            keeps_last: side == Side::Host && self.cache.rules_to_host(id).is_some(),
            differs_in_status: differs_in_status(side, self.cache.kind(id)),
            is_stray: &|name: &Name, object: &Stored| side == Side::Host && self.is_stray(id, name, object),
            changed: &|name: Name, only_status: bool| {
                if matches!(self.cache.kind(id).direction, Direction::Events) {
                    self.count_event(&name);
                    if self.forget_surplus_event(&name) {
                        return;
                    }
                }
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
            availability: &|before| {
                let was_unknown = before.is_some_and(Unavailable::is_unlisted)
                    || before.is_some() && !self.cache.stores.host(id).is_empty();
                if was_unknown {
                    // What its objects use, and what depends on them, was left as it was.
                    self.add_all();
                } else {
                    self.add_all_of(id);
                }
                self.availability.notify_one();
            },
            bounds: is_extension.then_some(bounds),
        };
        self.metrics
            .watches
            .get_or_create(&SideLabels { side: side.name() })
            .inc();
        store::watch(client, spec, namespace, store, hooks).await;
    }

    /// Bytes that are kept of all that the tenant may serve by itself.
    fn extension_bytes(&self) -> u64 {
        let kinds = self.cache.kinds.iter().copied();
        let stores = kinds
            .filter(|id| self.cache.kind(*id).is_extension)
            .map(|id| self.cache.stores.tenant(id));
        stores
            .map(|store| store.bytes() + MEMORY_OF_OBJECT * store.len() as u64)
            .sum()
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

    /// Waits until every watched kind is listed or known to be off; for the tenant's extensions only for a short time.
    pub(super) async fn listed(&self) {
        self.until_listed(&self.lists(false)).await;
        let extensions = self.lists(true);
        let until_listed = self.until_listed(&extensions);
        if tokio::time::timeout(EXTENSION_WAIT, until_listed).await.is_err() {
            self.go_on_without(&extensions);
        }
    }

    /// What is listed at the start: extensions in the tenant, or all the rest. The host is the platform's, and is waited for.
    fn lists(&self, extensions: bool) -> Vec<(Side, KindId)> {
        let kinds = self.cache.kinds.iter().copied();
        kinds
            .flat_map(|id| [Side::Tenant, Side::Host].map(|side| (side, id)))
            .filter(|(side, id)| self.watched(*side, *id).is_some())
            .filter(|(side, id)| extensions == is_extension(*side, self.cache.kind(*id)))
            .collect()
    }

    async fn until_listed(&self, lists: &[(Side, KindId)]) {
        for (side, id) in lists.iter().copied() {
            while self.is_awaited(side, id) {
                tokio::time::sleep(LIST_POLL).await;
            }
        }
    }

    /// Whether a list has not ended, and the kind is not known to be off either.
    fn is_awaited(&self, side: Side, id: KindId) -> bool {
        let store = self.cache.stores.of(side, id);
        !store.is_listed() && (self.cache.kind(id).is_essential || store.unavailable().is_none())
    }

    /// The lists for which the start waits as long as it takes.
    fn missing_lists(&self) -> Vec<String> {
        let mut lists = self.lists(false);
        lists.retain(|(side, id)| self.is_awaited(*side, *id));
        let name = |(side, id): &(Side, KindId)| format!("{} of the {}", id.label(), side.name());
        let mut names: Vec<String> = lists.iter().take(MOST_NAMED).map(name).collect();
        if lists.len() > names.len() {
            names.push(format!("{} more", lists.len() - names.len()));
        }
        names
    }

    /// Reports which lists the start waits for whenever these are others than before, for ever. A start without trouble is over before.
    pub(super) async fn report_missing(&self, mut report: impl FnMut(&[String])) {
        let mut before = Vec::new();
        loop {
            tokio::time::sleep(MISSING_CHECK).await;
            let missing = self.missing_lists();
            if missing != before {
                report(&missing);
                before = missing;
            }
        }
    }

    /// Takes those that are not listed for unavailable until they are.
    fn go_on_without(&self, lists: &[(Side, KindId)]) {
        for (side, id) in lists.iter().copied() {
            if self.cache.stores.of(side, id).stop_waiting_for_list() {
                tracing::warn!(
                    kind = id.label(),
                    side = side.name(),
                    waited = ?EXTENSION_WAIT,
                    "objects cannot be listed: going on without this kind until they can; its objects on the host stay as they are"
                );
            }
        }
    }

    /// Whether a kind is off, and why.
    pub(super) fn find_unavailable_side(&self, id: KindId) -> Option<(Side, Unavailable)> {
        let kind = self.cache.kind(id);
        if kind.is_essential {
            return None;
        }
        [Side::Tenant, Side::Host]
            .into_iter()
            .find_map(|side| Some((side, self.cache.stores.of(side, id).unavailable()?)))
            .or_else(|| {
                self.depends_on_unlisted(kind)
                    .then_some((Side::Tenant, Unavailable::NotListed))
            })
    }

    /// Whether an extension depends on objects that are not listed, as routes do on permissions. Other kinds do not wait for extensions.
    fn depends_on_unlisted(&self, kind: &Kind) -> bool {
        let on_tenant = |on: &&Dependency| on.side == Side::Tenant;
        let mut needed = kind.depends_on.iter().filter(on_tenant);
        kind.is_extension && needed.any(|on| self.cache.is_unlisted(on.kind))
    }

    /// Publishes of how many kinds the tenant may have objects that are not known.
    pub(super) fn publish_unlisted(&self) {
        let kinds = self.cache.kinds.iter().copied();
        let unlisted = kinds.filter(|id| self.cache.may_have_unknown(*id)).count();
        self.metrics
            .unlisted_kinds
            .set(i64::try_from(unlisted).unwrap_or(i64::MAX));
    }

    /// The kinds that cannot be synced because of the host, or because the tenant does not list them although it serves them or some are on the
    /// host. Other kinds that a tenant does not serve are not included: it may install them or not.
    pub(super) fn unavailable_kinds(&self) -> Vec<String> {
        let kinds = self.cache.kinds.iter().copied();
        let unavailable = kinds.filter_map(|id| Some((id, self.find_unavailable_side(id)?)));
        let to_name = unavailable
            .filter(|(id, (side, why))| *side == Side::Host || why.is_unlisted() || self.cache.may_have_unknown(*id));
        to_name
            .map(|(id, (side, why))| format!("{} ({})", id.label(), describe_unavailable(side, why)))
            .collect()
    }

    /// The message about an object whose kind is unavailable on the host.
    pub(super) fn unavailable_message(key: &Key, why: Unavailable) -> String {
        format!(
            "{} objects have no effect here: {}. The platform team can change that.",
            key.kind.label(),
            describe_unavailable(Side::Host, why)
        )
    }
}

fn describe_unavailable(side: Side, why: Unavailable) -> &'static str {
    match (side, why) {
        (Side::Host, Unavailable::NotServed) => "the host cluster does not serve this kind",
        (Side::Host, Unavailable::Forbidden) => "the host cluster does not allow this kind",
        (Side::Host, Unavailable::NotListed) => "the host cluster has not listed its objects yet",
        (Side::Tenant, Unavailable::NotServed) => {
            "the tenant's API server does not serve this kind, and its objects on the host stay as they are"
        }
        (Side::Tenant, Unavailable::Forbidden) => {
            "the tenant's API server does not let this kind be read, and its objects on the host stay as they are"
        }
        (Side::Host, Unavailable::TooMuch) => "the host has more or larger objects of it than the syncer keeps",
        (Side::Tenant, Unavailable::TooMuch) => "the tenant has more or larger objects of it than the syncer keeps",
        (Side::Tenant, Unavailable::NotListed) => "the tenant's API server has not listed its objects yet",
    }
}

#[cfg(test)]
mod tests;
