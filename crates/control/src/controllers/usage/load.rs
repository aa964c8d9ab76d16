//! The stored records with which counting begins.

use super::{capacity::owner_of, context::UsageContext};
use crate::error::{ReconcileError, api};
use berth_api::{TenantCluster, UsageRecord, labels, names::TenantId};
use berth_metering::{Month, day_of};
use berth_runtime::watched::{Watched, for_each};
use jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams, core::PartialObjectMeta};
use std::collections::{BTreeMap, BTreeSet};

/// Reads the records at which counting goes on, unless that is done: those of this month and of the last one, and the latest one of each tenant and pool that
/// exists.
/// Of all others only the names and labels are read.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(super) async fn load_records(context: &UsageContext) -> Result<(), ReconcileError> {
    if context.state.lock().is_loaded {
        return Ok(());
    }
    let slugs = slugs_of_owners(context);
    let all: Api<Watched<PartialObjectMeta<UsageRecord>>> = Api::all(context.client.clone());
    let mut latest: BTreeMap<String, String> = BTreeMap::new();
    for_each(&all, ListParams::default(), |record| {
        let Some(record) = record.readable() else { return };
        let label = |key: &str| record.labels().get(key).cloned();
        // Of tenants that are gone there may be many more.
        let tenant = label(labels::USAGE_TENANT).filter(|tenant| slugs.contains(tenant));
        if let Some((tenant, month)) = tenant.zip(label(labels::USAGE_MONTH)) {
            let of_tenant = latest.entry(tenant).or_default();
            if *of_tenant < month {
                *of_tenant = month;
            }
        }
    })
    .await
    .map_err(api("list what tenants used"))?;
    let records: Api<Watched<UsageRecord>> = Api::all(context.client.clone());
    let mut loaded = Vec::new();
    for month in needed_months(latest, context.clock.now()) {
        let of_month = ListParams::default().labels(&format!("{}={month}", labels::USAGE_MONTH));
        for_each(&records, of_month, |record| loaded.extend(record.readable()))
            .await
            .map_err(api("list what tenants used"))?;
    }
    tracing::info!(records = loaded.len(), "usage is counted from where the records end");
    let mut state = context.state.lock();
    for record in loaded {
        if !record.spec.tenant.is_pool() {
            state.memory.remember(&record);
        }
        state.meter.load(record);
    }
    state.is_loaded = true;
    Ok(())
}

/// The slugs of the tenants and pools that exist.
fn slugs_of_owners(context: &UsageContext) -> BTreeSet<String> {
    let tenants = context.stores.tenants.state();
    let slug_of = |tenant: &TenantCluster| Some(TenantId::new(&tenant.name_any(), &tenant.uid()?).slug().to_owned());
    let pools = context.stores.pools.state();
    let of_pools = pools.iter().filter_map(|pool| Some(owner_of(pool)?.slug));
    tenants
        .iter()
        .filter_map(|tenant| slug_of(tenant))
        .chain(of_pools)
        .collect()
}

/// The months whose records are needed. `latest` is the latest month of each tenant that exists, by its slug.
fn needed_months(latest: BTreeMap<String, String>, now: Timestamp) -> BTreeSet<String> {
    let this = Month::of(day_of(now));
    let last = this.first_day().yesterday().map_or(this, Month::of);
    let current = [this, last].map(|month| month.to_string());
    latest.into_values().chain(current).collect()
}
