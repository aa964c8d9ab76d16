//! The `TenantCluster` controller.
//!
//! [`reconcile`] reads the full state each time and does not depend on what triggered it. Every step is idempotent, so that
//! control may be killed between any two instructions. What a reconcile does is in [`apply`], in the order in which a tenant
//! is built up; what it writes into the status follows from the outcome of that ([`status`]).

mod apply;
mod build;
mod cleanup;
mod connection;
mod context;
mod datastore_usage;
mod error;
mod fetch;
mod finalizer;
mod memory;
mod node_groups;
mod quota;
mod recorded_settings;
mod remaining;
mod settings;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod validate;

pub use connection::{NetworkRemote, ProbeAnswer, ProbeError, Remote};
pub use context::TenantContext;
pub use error::TenantError;
pub use memory::{TenantMemory, Tenants};
pub use settings::Settings;
pub use validate::{AvailableCapacity, Validator, validate};

use super::slots::Slot;
use crate::{key::Key, quota_ledger::Verdict};
use apply::{Accepted, Outcome};
use jiff::Timestamp;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
use std::{sync::Arc, time::Duration};
use target::Tenant;

/// Pause before a tenant that is ready is reconciled again: certificates and tokens are renewed in time, drift is corrected,
/// and a component that crashes is reported.
const RESYNC: Duration = Duration::from_secs(60);
/// Longest pause before a tenant that is not ready is reconciled again.
const RECHECK: Duration = Duration::from_secs(5);

/// Makes one tenant match its spec. Returns when to reconcile it again. While it waits for the tenant, it lends `slot` to others.
///
/// # Errors
/// A step failed; the condition of the step says so, and the queue tries again later.
pub async fn reconcile(
    context: &TenantContext,
    namespace: &str,
    name: &str,
    slot: &Arc<Slot>,
) -> Result<Option<Duration>, TenantError> {
    let Some(cluster) = context.stores.tenants.get(&ObjectRef::new(name).within(namespace)) else {
        return Ok(cleanup::delete_orphans(context, namespace, name).await?);
    };
    let Some(uid) = cluster.uid() else { return Ok(None) };
    let tenant = Tenant::new(context, cluster, &uid, slot);
    if tenant.cluster.meta().deletion_timestamp.is_some() {
        return cleanup::delete_tenant(context, &tenant).await;
    }

    let validity =
        Validator::new(&context.stores, context.runtime.as_ref(), &context.network_config).resolve(&tenant.cluster);
    let verdict = context.quotas.verdict(&context.stores, &uid);
    let is_waiting = matches!(verdict, Some(Verdict::Waiting { .. }));
    let settings = match &validity {
        Ok(settings) if !is_waiting => {
            let allowed = verdict.as_ref().filter(|verdict| verdict.allows(&settings.limits));
            let Some(allowed) = allowed else {
                // The decision wakes the tenant.
                context.queue.add(Key::Quotas);
                return Ok(Some(RECHECK));
            };
            if quota::record(context, &tenant.cluster, allowed).await? {
                return Ok(Some(RECHECK));
            }
            finalizer::add(context, &tenant.cluster).await?;
            context.queue.add(Key::Fleet);
            Ok(Some(settings.clone()))
        }
        _ => recorded_settings::load(context, &tenant).await,
    };
    let nodes = fetch::observe_nodes(context, &tenant.cluster);
    let (accepted, unknown) = match settings {
        Ok(settings) => (settings.map(|settings| Accepted::new(&tenant, settings)), None),
        Err(error) => (None, Some(TenantError::Settings(error))),
    };
    let outcome = match (&accepted, unknown) {
        (Some(accepted), _) => apply::apply(context, accepted, &nodes).await,
        (None, Some(error)) => Outcome::SettingsUnknown(error),
        (None, None) => Outcome::NeverAccepted,
    };
    if outcome.errors().into_iter().any(|error| !error.is_of_tenant()) {
        // An object that this process remembers as applied may be missing.
        tenant.memory.host.forget();
    }
    let quota = verdict
        .as_ref()
        .and_then(|verdict| quota::condition(&tenant.cluster, verdict));
    let conditions = status::conditions(validity.as_ref().err(), quota, &outcome, &nodes);
    let settings = accepted.as_ref().map(|accepted| &accepted.settings);
    let mut wanted = status::build(&tenant, settings, &outcome, &nodes, &conditions, Timestamp::now());
    if let Some(verdict) = &verdict {
        wanted.quota = verdict.reservation().cloned();
    }
    status::write(context, &tenant.cluster, &wanted).await?;
    outcome.into_result()?;
    Ok(Some(if status::is_settled(&conditions) {
        RESYNC
    } else {
        RECHECK
    }))
}
