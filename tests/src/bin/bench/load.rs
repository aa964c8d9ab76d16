//! Pods that run as soon as a kubelet has them, created in any number and followed until they run.
//!
//! Simulated kubelets ask for no tokens. In a tenant the syncer does that for them; on the host a [`Place`] with tokens does.

use crate::moments::Moments;
use berth_tests::{
    objects::{gpu_pod, phase},
    token,
};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Time within which everything must run.
const LIMIT: Duration = Duration::from_secs(600);

/// Where pods are made: the API server and the namespace, and a node selector if they must keep to some nodes.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) pods: Api<Pod>,
    /// Fields that the place adds to the spec.
    pub(crate) spec: serde_json::Value,
    /// The accounts of the namespace, if a token is requested for each pod as its kubelet would.
    accounts: Option<Api<ServiceAccount>>,
}

impl Place {
    /// A namespace of a tenant.
    pub(crate) fn in_tenant(client: &Client) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), "default"),
            spec: serde_json::json!({}),
            accounts: None,
        }
    }

    /// A namespace of the host, whose pods run on tenants' nodes, too: they tolerate all taints.
    pub(crate) fn on_host(client: &Client) -> Self {
        let spec = serde_json::json!({"tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false});
        Self {
            pods: Api::namespaced(client.clone(), "default"),
            spec,
            accounts: None,
        }
    }

    /// The same tenant, whose pods have a token or none.
    pub(crate) fn in_tenant_with(client: &Client, tokens: bool) -> Self {
        let mut place = Self::in_tenant(client);
        place.spec["automountServiceAccountToken"] = tokens.into();
        place
    }

    /// The same on the host, where a token is requested for each pod that has one.
    pub(crate) fn on_host_with(client: &Client, tokens: bool) -> Self {
        let mut place = Self::on_host(client);
        place.spec["automountServiceAccountToken"] = tokens.into();
        place.accounts = tokens.then(|| Api::namespaced(client.clone(), "default"));
        place
    }

    fn pod(&self, name: &str) -> Pod {
        let mut pod = serde_json::to_value(gpu_pod(name, 0)).unwrap();
        for (field, value) in self.spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    /// Makes a pod.
    pub(crate) async fn create(&self, name: &str) {
        let pod = self.pods.create(&PostParams::default(), &self.pod(name)).await.unwrap();
        if let Some(accounts) = &self.accounts {
            let request = token::request_of(&pod);
            accounts
                .create_token_request("default", &PostParams::default(), &request)
                .await
                .unwrap();
        }
    }

    /// Removes all pods whose names begin with `prefix` and waits until they are gone.
    pub(crate) async fn clear(&self, prefix: &str) {
        let mine = async || {
            let list = self.pods.list_metadata(&ListParams::default()).await.unwrap();
            list.into_iter()
                .map(|pod| pod.name_any())
                .filter(|name| name.starts_with(prefix))
                .collect::<Vec<_>>()
        };
        futures::stream::iter(mine().await)
            .for_each_concurrent(8, async |name| {
                drop(self.pods.delete(&name, &DeleteParams::default().grace_period(1)).await);
            })
            .await;
        let begun = Instant::now();
        while !mine().await.is_empty() {
            assert!(begun.elapsed() < LIMIT, "the pods are not gone");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// When each pod was first seen to run.
pub(crate) struct Running(Moments);

impl Running {
    /// Starts to watch.
    pub(crate) fn follow(place: &Place) -> Self {
        let running = |pod: &Pod| (phase(pod) == "Running").then(|| pod.name_any());
        Self(Moments::follow(place.pods.clone(), running))
    }

    /// When a pod was first seen to run.
    pub(crate) fn at(&self, name: &str) -> Option<Instant> {
        self.0.at(name)
    }

    /// Waits until every one of `names` was seen to run.
    pub(crate) async fn until_all(&self, names: &BTreeSet<String>) {
        let begun = Instant::now();
        loop {
            let seen = self.0.all();
            let missing = names.iter().filter(|name| !seen.contains_key(*name)).count();
            if missing == 0 {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{missing} of {} do not run", names.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
