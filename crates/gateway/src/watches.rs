//! Watches of the host cluster that keep the routing table current.

use crate::{
    routes::{API_SERVER, Key, RoutingTable},
    sleep_state::SleepState,
};
use berth_api::{TenantCluster, labels};
use berth_runtime::watched::{Watched, watch};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject},
    runtime::watcher::{Config, Event},
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug, pin::pin};
use tokio::sync::oneshot;

/// Keeps what is needed of objects of one kind.
trait Index<K> {
    /// An object was created or changed.
    fn put(&self, key: Key, object: &K);
    /// An object was deleted.
    fn delete(&self, key: &Key);
    /// Removes all objects but these.
    fn retain(&self, listed: &HashSet<Key>);
}

impl Index<DynamicObject> for RoutingTable {
    fn put(&self, key: Key, object: &DynamicObject) {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        self.put_tenant(key, uid, SleepState::of(object));
    }

    fn delete(&self, key: &Key) {
        self.delete_tenant(key);
    }

    fn retain(&self, listed: &HashSet<Key>) {
        self.retain_tenants(listed);
    }
}

impl Index<Service> for RoutingTable {
    fn put(&self, (namespace, _): Key, object: &Service) {
        self.put_service(&namespace, object);
    }

    fn delete(&self, (namespace, _): &Key) {
        self.delete_service(namespace);
    }

    fn retain(&self, listed: &HashSet<Key>) {
        self.retain_services(listed);
    }
}

/// Follows all TenantClusters. Their status is read without its type, so that nothing in it can break the watch. Sends to `listed` when the
/// first list is complete. Ends only if the watch ends.
pub async fn follow_tenants(client: Client, table: &RoutingTable, listed: oneshot::Sender<()>) {
    let api: Api<Watched<DynamicObject>> = Api::all_with(client, &ApiResource::erase::<TenantCluster>(&()));
    follow(api, Config::default(), table, listed).await;
}

/// Follows the Services of API servers; otherwise as [`follow_tenants`]. The selector is a single name, so that a role can allow
/// the watch for Services of this name only.
pub async fn follow_services(client: Client, table: &RoutingTable, listed: oneshot::Sender<()>) {
    let api: Api<Watched<Service>> = Api::all(client);
    let config = Config::default()
        .fields(&format!("metadata.name={API_SERVER}"))
        .labels(labels::TENANT);
    follow(api, config, table, listed).await;
}

async fn follow<K>(api: Api<Watched<K>>, config: Config, index: &impl Index<K>, listed: oneshot::Sender<()>)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut listed = Some(listed);
    let mut seen = HashSet::new();
    let mut stream = pin!(watch(api, config));
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    loop {
        match stream.try_next().await {
            Ok(Some(Event::Init)) => seen.clear(),
            Ok(Some(Event::InitApply(object))) => {
                seen.insert(key(&object));
                index.put(key(&object), &object);
            }
            Ok(Some(Event::InitDone)) => {
                index.retain(&seen);
                seen.clear();
                if let Some(listed) = listed.take() {
                    // Without a receiver the gateway is ending.
                    let _ = listed.send(());
                }
            }
            Ok(Some(Event::Apply(object))) => index.put(key(&object), &object),
            Ok(Some(Event::Delete(object))) => index.delete(&key(&object)),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watch interrupted; trying again"),
        }
    }
}
