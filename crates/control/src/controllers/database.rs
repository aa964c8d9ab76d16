//! Watches the tenants' shared etcd as a whole: compares what tenants may store with its quota, drops history before that fills it, and deletes
//! users and roles of tenants that are gone.

use super::tenant_class::class_of;
use crate::{
    datastore::{Datastore, DatastoreError, History, Leftovers},
    metrics::Metrics,
    stores::Stores,
};
use berth_api::{TenantLimits, labels, names::TenantId};
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two looks at etcd.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time between two searches for users and roles of tenants that are gone.
const SEARCH_INTERVAL: Duration = Duration::from_mins(10);

/// Watches etcd until `stop`.
pub(crate) async fn watch(datastore: Arc<Datastore>, stores: Stores, metrics: Metrics, stop: CancellationToken) {
    let mut history = History::default();
    let (mut leftovers, mut next_search) = (Leftovers::default(), Instant::now());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        metrics.datastore_limits.set(as_gauge(sum_of_limits(&stores)));
        if let Err(error) = check(&datastore, &metrics, &mut history).await {
            tracing::warn!(%error, "cannot watch the size of the datastore; trying again");
        }
        if Instant::now() < next_search {
            continue;
        }
        next_search = Instant::now() + SEARCH_INTERVAL;
        if let Err(error) = delete_leftovers(&datastore, &stores, &mut leftovers).await {
            tracing::warn!(%error, "cannot look for users of tenants that are gone; trying again");
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

/// Deletes users and roles that have had no tenant since the last search.
async fn delete_leftovers(
    datastore: &Datastore,
    stores: &Stores,
    leftovers: &mut Leftovers,
) -> Result<(), DatastoreError> {
    // Before the tenants: each has been seen here before it gets a user.
    let names = datastore.list_identities().await?;
    for name in leftovers.observe(names, &users_of_tenants(stores)) {
        if datastore.delete_leftover(&name).await? {
            tracing::info!(name, "deleted the user of a tenant that is gone from the datastore");
        } else {
            tracing::warn!(name, "a user of the datastore has keys and no tenant; it stays");
        }
    }
    Ok(())
}

/// Users of all tenants that exist, or of which namespaces are left.
fn users_of_tenants(stores: &Stores) -> HashSet<String> {
    // The user does not depend on the name.
    let user = |uid: &str| TenantId::new("", uid).etcd_user();
    let tenants = stores.tenants.state();
    let tenants = tenants.iter().filter_map(|tenant| Some(user(&tenant.uid()?)));
    let namespaces = stores.namespaces.state();
    let left = namespaces
        .iter()
        .filter_map(|namespace| Some(user(namespace.annotations().get(labels::OWNER_UID)?)));
    tenants.chain(left).collect()
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
    fn tenants_and_namespaces_that_are_left_have_users() {
        let host = ScriptedApi::new("host", &Script::default());
        let mut cluster = TenantCluster::new("a", TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        cluster.metadata.uid = Some("1".into());
        let path = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/a";
        host.insert(path, serde_json::to_value(cluster).unwrap());
        let (gone, unknown) = (TenantId::new("b", "2"), TenantId::new("c", "3"));
        let name = gone.control_plane_namespace();
        let namespace = serde_json::json!({"kind": "Namespace", "metadata": {
            "name": name, "labels": {labels::TENANT: gone.slug()}, "annotations": {labels::OWNER_UID: "2"},
        }});
        host.insert(&format!("/api/v1/namespaces/{name}"), namespace);
        let (stores, mut writers) = StoreWriters::new();
        writers.update(&host);
        let users = users_of_tenants(&stores);
        assert_eq!(users, [TenantId::new("a", "1").etcd_user(), gone.etcd_user()].into());
        assert!(!users.contains(&unknown.etcd_user()));
    }

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
