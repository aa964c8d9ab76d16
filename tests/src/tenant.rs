//! A tenant of a test: made by its `TenantCluster`, used through its own kubeconfig.

use crate::{
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use berth_api::{NodeGroup, TenantCluster, TenantClusterSpec, conditions, names::TenantId};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::fs::{FlockOperation, flock};
use std::{fs::File, time::Duration};

/// Time within which a tenant must be ready on a loaded machine.
pub const READY_WITHIN: Duration = Duration::from_secs(300);

/// A tenant that was ready once.
pub struct Tenant {
    /// Its namespace on the host.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its id, from which the names of its objects follow.
    pub id: TenantId,
    /// The team's kubeconfig.
    pub kubeconfig: String,
    /// cluster-admin inside the tenant.
    pub client: Client,
}

/// A `TenantCluster` with groups of (name, pool, count).
pub fn cluster(name: &str, groups: &[(&str, &str, u32)]) -> TenantCluster {
    let nodes = groups
        .iter()
        .map(|(name, pool, count)| NodeGroup::private(name, pool, *count));
    TenantCluster::new(
        name,
        TenantClusterSpec {
            version: Some(berth_kubernetes_versions::KUBERNETES_DEFAULT.into()),
            node_groups: nodes.collect(),
            ..TenantClusterSpec::default()
        },
    )
}

/// Creates a namespace unless it exists.
pub async fn ensure_namespace(client: &Client, name: &str) {
    let namespace = Namespace {
        metadata: kube::api::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        ..Namespace::default()
    };
    match Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
    {
        Err(error) if !berth_control::apply::is_status(&error, 409) => panic!("{error}"),
        _ => {}
    }
}

impl Tenant {
    /// Creates a tenant and waits until it is ready.
    pub async fn create(host: &TestCluster, namespace: &str, cluster: &TenantCluster) -> Self {
        ensure_namespace(&host.client, namespace).await;
        host.tenants(namespace)
            .create(&PostParams::default(), cluster)
            .await
            .unwrap();
        Self::ready(host, namespace, &cluster.name_any()).await
    }

    /// A tenant that tests share: the first of them that needs it creates it.
    pub async fn shared(host: &TestCluster, namespace: &str, cluster: &TenantCluster) -> Self {
        let lock = host.home().run().join(format!("shared-tenant-{}", cluster.name_any()));
        let lock = File::create(lock).unwrap();
        // Another process may be creating it.
        until_true("no other process creates the tenant", READY_WITHIN, async || {
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        })
        .await;
        if host
            .tenants(namespace)
            .get_opt(&cluster.name_any())
            .await
            .unwrap()
            .is_none()
        {
            return Self::create(host, namespace, cluster).await;
        }
        Self::ready(host, namespace, &cluster.name_any()).await
    }

    /// Waits until an existing tenant is ready.
    pub async fn ready(host: &TestCluster, namespace: &str, name: &str) -> Self {
        Self::ready_on(&host.client, namespace, name).await
    }

    /// The same on any host cluster.
    pub async fn ready_on(host: &Client, namespace: &str, name: &str) -> Self {
        let tenants: Api<TenantCluster> = Api::namespaced(host.clone(), namespace);
        let cluster = until(&format!("{namespace}/{name} is ready"), READY_WITHIN, async || {
            let cluster = tenants.get(name).await.map_err(|error| error.to_string())?;
            let status = cluster.status.clone().unwrap_or_default();
            let current = status.observed_generation == cluster.metadata.generation;
            if current && conditions::is_true(&status.conditions, conditions::READY) {
                Ok(cluster)
            } else {
                Err(format!(
                    "{:?}",
                    status
                        .conditions
                        .iter()
                        .filter(|c| c.status != "True")
                        .collect::<Vec<_>>()
                ))
            }
        })
        .await;
        let secrets: Api<Secret> = Api::namespaced(host.clone(), namespace);
        let secret = cluster
            .status
            .as_ref()
            .and_then(|status| status.kubeconfig_secret_ref.clone())
            .unwrap();
        let data = secrets.get(&secret.name).await.unwrap().data.unwrap();
        let kubeconfig = String::from_utf8(data["kubeconfig"].0.clone()).unwrap();
        let client = patient(&kubeconfig).await;
        let id = TenantId::new(name, &cluster.uid().unwrap());
        Self {
            namespace: namespace.into(),
            name: name.into(),
            id,
            kubeconfig,
            client,
        }
    }

    /// Deletes the tenant and waits until its object is gone.
    pub async fn delete(&self, host: &TestCluster) {
        let tenants = host.tenants(&self.namespace);
        tenants.delete(&self.name, &DeleteParams::default()).await.unwrap();
        until_gone(host, &self.namespace, &self.name).await;
    }
}

/// A client like a user's. It waits longer for a busy API server than Berth's own clients, which retry later.
pub async fn patient(kubeconfig: &str) -> Client {
    patient_with(Kubeconfig::from_yaml(kubeconfig).unwrap()).await
}

/// The same with a kubeconfig that was changed.
pub async fn patient_with(kubeconfig: Kubeconfig) -> Client {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    // A test must see every answer.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// Waits until a `TenantCluster` is gone.
pub async fn until_gone(host: &TestCluster, namespace: &str, name: &str) {
    let tenants = host.tenants(namespace);
    until(
        &format!("{namespace}/{name} is gone"),
        READY_WITHIN,
        async || match tenants.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(cluster)) => Err(format!("{:?}", cluster.status.map(|status| status.conditions))),
            Err(error) => Err(error.to_string()),
        },
    )
    .await;
}
