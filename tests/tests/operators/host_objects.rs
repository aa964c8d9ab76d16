//! A tenant's objects on the host.

use berth_api::labels;
use berth_tests::{
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::{Api, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, fmt::Debug};

/// Host objects of one kind by the namespace and name they have in the tenant.
async fn objects<K>(host: &TestCluster, tenant: &Tenant) -> BTreeMap<(String, String), K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let ours = ListParams::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER));
    let list = api.list(&ours).await.unwrap();
    list.into_iter()
        .map(|object| {
            let origin = |key: &str| object.annotations().get(key).cloned().unwrap_or_default();
            ((origin(labels::ORIGIN_NAMESPACE), origin(labels::ORIGIN_NAME)), object)
        })
        .collect()
}

/// Host pods by the names they have in a namespace of the tenant, without what a controller appends to names.
pub async fn pods(host: &TestCluster, tenant: &Tenant, namespace: &str) -> BTreeMap<String, Pod> {
    objects::<Pod>(host, tenant)
        .await
        .into_iter()
        .filter(|((space, _), _)| space == namespace)
        .map(|((_, name), pod)| (name, pod))
        .collect()
}

/// The host Service of a tenant's Service; it comes on its own, perhaps after the pods.
pub async fn service(host: &TestCluster, tenant: &Tenant, namespace: &str, name: &str) -> Service {
    let key = (namespace.to_owned(), name.to_owned());
    until(&format!("the host has the Service {name}"), SOON, async || {
        objects(host, tenant).await.remove(&key).ok_or("none")
    })
    .await
}

/// Waits until the host has nothing of the tenant's any more.
pub async fn until_nothing_is_left(host: &TestCluster, tenant: &Tenant) {
    until("nothing is left on the host", SOON, async || {
        let mut left: Vec<String> = Vec::new();
        left.extend(
            objects::<Pod>(host, tenant)
                .await
                .keys()
                .map(|key| format!("pod {key:?}")),
        );
        left.extend(
            objects::<Service>(host, tenant)
                .await
                .keys()
                .map(|key| format!("service {key:?}")),
        );
        left.extend(
            objects::<ConfigMap>(host, tenant)
                .await
                .keys()
                .map(|key| format!("config map {key:?}")),
        );
        left.extend(
            objects::<Secret>(host, tenant)
                .await
                .keys()
                .map(|key| format!("secret {key:?}")),
        );
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}
