//! Tenants that fall asleep and wake.

use crate::{
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use berth_api::{SleepState, TenantClusterStatus, labels};
use berth_process::MARKER;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::fs;

/// Sets an annotation of a `TenantCluster` to the present time.
pub async fn request(host: &TestCluster, tenant: &Tenant, annotation: &str) {
    let patch = json!({"metadata": {"annotations": {annotation: Timestamp::now().to_string()}}});
    let tenants = host.tenants(&tenant.namespace);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    // Of a hundred at once, an API server that is busy gives up some.
    until("a request is accepted", SOON, async || {
        tenants.patch(&tenant.name, &params, &patch).await
    })
    .await;
}

/// Asks a tenant to sleep. A request of the second in which it was woken would be void.
pub async fn request_sleep(host: &TestCluster, tenant: &Tenant) {
    let sleep = status(host, tenant).await.unwrap().sleep;
    let woken_at = sleep.and_then(|sleep| sleep.since).map(|since| since.0.as_second());
    until_true("a second has passed since the last wake", SOON, async || {
        woken_at.is_none_or(|woken_at| Timestamp::now().as_second() > woken_at)
    })
    .await;
    request(host, tenant, labels::SLEEP_REQUESTED_AT).await;
}

/// The status of a tenant.
///
/// # Errors
/// The `TenantCluster` cannot be read.
pub async fn status(host: &TestCluster, tenant: &Tenant) -> Result<TenantClusterStatus, String> {
    let cluster = host.tenants(&tenant.namespace).get(&tenant.name).await;
    let cluster = cluster.map_err(|error| error.to_string())?;
    Ok(cluster.status.unwrap_or_default())
}

/// Waits until a tenant is in a state.
pub async fn until_state(host: &TestCluster, tenant: &Tenant, expected: SleepState) -> TenantClusterStatus {
    until(&format!("{} is {}", tenant.name, expected.name()), SOON, async || {
        let status = status(host, tenant).await?;
        match &status.sleep {
            Some(sleep) if sleep.state == expected => Ok(status),
            other => Err(format!("{other:?}, {:?}", status.conditions)),
        }
    })
    .await
}

/// Names of the tenant's processes that control keeps, without its slug.
pub fn processes(host: &TestCluster, tenant: &Tenant) -> Vec<String> {
    let records = berth_process::statuses(&host.tenant_records());
    let own = records.iter().filter_map(|record| {
        let name = record.name.strip_prefix(tenant.id.slug())?.strip_prefix('.')?;
        Some(name.to_owned())
    });
    let mut own: Vec<String> = own.collect();
    own.sort_unstable();
    own
}

/// Ids of all processes of this machine that were started for a tenant, whether or not there is a record of them.
pub fn process_ids(host: &TestCluster, tenant: &Tenant) -> Vec<u32> {
    let record = host.tenant_records().join(format!("{}.", tenant.id.slug()));
    let marker = format!("{MARKER}={}", record.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        // Processes end meanwhile, and those of other users cannot be read.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable.starts_with(marker.as_bytes()))
    })
    .collect()
}

/// Waits until a tenant sleeps and has no process.
pub async fn until_nothing_runs(host: &TestCluster, tenant: &Tenant) {
    until_state(host, tenant, SleepState::Sleeping).await;
    until("no process of the tenant is left", SOON, async || {
        let left = processes(host, tenant);
        let ids = process_ids(host, tenant);
        if left.is_empty() && ids.is_empty() {
            Ok(())
        } else {
            Err((left, ids))
        }
    })
    .await;
}

/// Asks a tenant to sleep, and waits until it has no process.
pub async fn fall_asleep(host: &TestCluster, tenant: &Tenant) {
    request_sleep(host, tenant).await;
    until_nothing_runs(host, tenant).await;
}
