//! Issuers with which no API server starts, on a tenant whose control plane is pods: the class is followed all the same.

use crate::TEAMS;
use berth_api::{TenantCluster, conditions::AUTHENTICATION_APPLIED, is_pod_ready};
use berth_control::{control_plane::API_SERVER, runtime::cluster::APP_NAME};
use berth_tests::{
    objects::apply,
    tenant::Tenant,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// The class of the tenant.
const CLASS: &str = "strict";
/// An expression that no API server compiles.
const BROKEN: &str = "claims.(";

pub(crate) async fn a_broken_issuer_keeps_no_change_of_the_class_from_being_rolled_out(host: &Client, tenant: &Tenant) {
    let rollouts = Rollouts { host, tenant };
    rollouts.set_limit(100).await;
    rollouts.change(&json!({"className": CLASS})).await;
    rollouts.until_only_ready_with(100).await;
    let issuer = |name: &str, username: &str| {
        json!({
            "issuer": {"url": format!("https://{name}.default.svc"), "audiences": ["vision"]},
            "claimMappings": {"username": {"expression": username}},
        })
    };
    let (good, broken) = (issuer("a", "'a:' + claims.sub"), issuer("b", BROKEN));
    let authentication = |jwt: &[&Value]| json!({"authentication": {"jwt": jwt}});
    rollouts.change(&authentication(&[&good])).await;
    rollouts.until_applied().await;
    rollouts.change(&authentication(&[&good, &broken])).await;
    rollouts.until_one_ends_by_itself().await;
    rollouts.set_limit(200).await;
    rollouts.until_only_ready_with(200).await;
    // It is tried again.
    rollouts.until_one_ends_by_itself().await;
    assert!(tenant.client.apiserver_version().await.is_ok());
    rollouts
        .change(&authentication(&[&good, &issuer("b", "'b:' + claims.sub")]))
        .await;
    rollouts.until_applied().await;
    let maps: Api<ConfigMap> = Api::namespaced(host.clone(), &tenant.id.control_plane_namespace());
    let recorded = maps.get("issuers").await.unwrap().data.unwrap()["jwt.json"].clone();
    let recorded: Vec<Value> = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded.len(), 2);
}

/// The API servers of a tenant, as the host has them.
struct Rollouts<'a> {
    host: &'a Client,
    tenant: &'a Tenant,
}

impl Rollouts<'_> {
    /// Changes the class, or makes it.
    async fn set_limit(&self, requests: u32) {
        let class = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": CLASS},
            "spec": {"limits": {"maxRequestsInFlight": requests}},
        });
        apply(self.host, "", &class).await.unwrap();
    }

    async fn change(&self, spec: &Value) {
        let tenants: Api<TenantCluster> = Api::namespaced(self.host.clone(), TEAMS);
        let patch = Patch::Merge(json!({ "spec": spec }));
        tenants
            .patch(&self.tenant.name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn pods(&self) -> Result<Vec<Pod>, String> {
        let pods: Api<Pod> = Api::namespaced(self.host.clone(), &self.tenant.id.control_plane_namespace());
        let servers = ListParams::default().labels(&format!("{APP_NAME}={API_SERVER}"));
        let listed = pods.list(&servers).await.map_err(|error| error.to_string())?;
        Ok(listed.items)
    }

    /// Waits until there is an API server that is ready, and each that is ready and not ending has this limit.
    async fn until_only_ready_with(&self, requests: u32) {
        let flag = format!("--max-requests-inflight={requests}");
        until(&format!("only API servers with {flag} serve"), SOON, async || {
            let pods = self.pods().await?;
            let ready: Vec<&Pod> = { pods.iter() }
                .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_pod_ready(pod))
                .collect();
            let has_flag = |pod: &&&Pod| serde_json::to_string(&pod.spec).is_ok_and(|spec| spec.contains(&flag));
            let with_flag = ready.iter().filter(has_flag).count();
            if with_flag > 0 && with_flag == ready.len() {
                Ok(())
            } else {
                Err(format!("{with_flag} of {}", ready.len()))
            }
        })
        .await;
    }

    /// Waits until an API server has ended by itself, and says why.
    async fn until_one_ends_by_itself(&self) {
        until("an API server ends by itself", SOON, async || {
            let pods = self.pods().await?;
            let statuses: Vec<String> = { pods.iter() }
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
                .map(|pod| serde_json::to_string(&pod.status).unwrap())
                .collect();
            let is_named = |status: &&String| status.contains("jwt[1].claimMappings.username.expression");
            if statuses.iter().any(|status| is_named(&status)) {
                Ok(())
            } else {
                Err(statuses.join(" "))
            }
        })
        .await;
    }

    async fn until_applied(&self) {
        let tenants: Api<TenantCluster> = Api::namespaced(self.host.clone(), TEAMS);
        until("the API server has the issuers", SOON, async || {
            let cluster = tenants
                .get(&self.tenant.name)
                .await
                .map_err(|error| error.to_string())?;
            let generation = cluster.metadata.generation;
            let conditions = cluster.status.map(|status| status.conditions).unwrap_or_default();
            let applied = { conditions.iter() }.find(|condition| condition.type_ == AUTHENTICATION_APPLIED);
            let is_now =
                applied.is_some_and(|applied| applied.status == "True" && applied.observed_generation == generation);
            if is_now { Ok(()) } else { Err(format!("{applied:?}")) }
        })
        .await;
    }
}
