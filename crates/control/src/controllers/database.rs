//! Watches the tenants' shared etcd as a whole: compares what tenants may store with its quota, and drops history before that fills it.

use super::tenant_class::class_of;
use crate::{
    datastore::{Datastore, DatastoreError, History},
    metrics::Metrics,
    stores::Stores,
};
use berth_api::TenantLimits;
use kube::runtime::reflector::ObjectRef;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two looks at etcd.
const INTERVAL: Duration = Duration::from_secs(10);

/// Watches etcd until `stop`.
pub(crate) async fn watch(datastore: Arc<Datastore>, stores: Stores, metrics: Metrics, stop: CancellationToken) {
    let mut history = History::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        metrics.datastore_limits.set(as_gauge(sum_of_limits(&stores)));
        if let Err(error) = check(&datastore, &metrics, &mut history).await {
            tracing::warn!(%error, "cannot watch the size of the datastore; trying again");
        }
    }
}

async fn check(datastore: &Datastore, metrics: &Metrics, history: &mut History) -> Result<(), DatastoreError> {
    let state = datastore.read_state().await?;
    metrics.datastore_quota.set(as_gauge(state.quota.unwrap_or_default()));
    if history.is_replaced(&state) {
        tracing::warn!(
            revision = state.revision,
            "the datastore has another database; users and roles of tenants are created again"
        );
        datastore.reconnect().await?;
    }
    if let Some(revision) = history.observe(Instant::now(), &state) {
        datastore.compact(revision).await?;
        history.record_compaction(Instant::now(), revision);
        metrics.datastore_compactions.inc();
        tracing::info!(
            revision,
            bytes_in_use = state.bytes_in_use,
            "dropped the history of the datastore"
        );
    }
    Ok(())
}

/// Bytes that all tenants together may store.
fn sum_of_limits(stores: &Stores) -> u64 {
    let class = |name: &str| stores.classes.get(&ObjectRef::new(name));
    let tenants = stores.tenants.state();
    let limits = tenants.iter().map(|tenant| {
        let class = class_of(tenant, |name| class(name).is_some()).and_then(|name| class(&name));
        class.map_or_else(
            || TenantLimits::default().datastore_size(),
            |class| class.spec.limits.datastore_size(),
        )
    });
    limits.fold(0, u64::saturating_add)
}

fn as_gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi, StoreWriters};
    use berth_api::{TenantClass, TenantClassSpec, TenantCluster, TenantClusterSpec};

    #[test]
    fn each_tenant_counts_with_the_limit_of_its_class() {
        let host = ScriptedApi::new("host", &Script::default());
        let mut spec = TenantClassSpec::default();
        spec.limits.datastore_bytes = "1Gi".into();
        let class = TenantClass::new("gold", spec);
        let path = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
        host.insert(path, serde_json::to_value(class).unwrap());
        for (name, class) in [("a", Some("gold")), ("b", Some("gold")), ("c", None)] {
            let spec = TenantClusterSpec {
                class_name: class.map(Into::into),
                ..TenantClusterSpec::default()
            };
            let mut cluster = TenantCluster::new(name, spec);
            cluster.metadata.namespace = Some("team".into());
            let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/{name}");
            host.insert(&path, serde_json::to_value(cluster).unwrap());
        }
        let (stores, mut writers) = StoreWriters::new();
        writers.update(&host);
        assert_eq!(sum_of_limits(&stores), (2 << 30) + (512 << 20));
    }
}
