//! Reads the facts. Each read is apart: one that fails leaves the others.

use std::time::Duration;

use berth_api::{labels, names, system};
use berth_runtime::answers;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};
use kube::client::Body;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::facts::{Certificate, Facts, Read};
use super::network;
use crate::host::answer_within;

/// How long each read may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Secret with the leaf certificates of a tenant, in its control-plane namespace.
const LEAVES: &str = "certificates";

async fn within<T>(read: impl Future<Output = kube::Result<T>>) -> Read<T> {
    answer_within(TIMEOUT, read).await
}

async fn list<K>(client: &Client) -> Read<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let all = Api::<K>::all(client.clone());
    within(all.list(&ListParams::default())).await.map(|list| list.items)
}

/// Those in the namespace of Berth.
async fn list_own<K>(client: &Client) -> Read<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let own = Api::<K>::namespaced(client.clone(), system::NAMESPACE);
    within(own.list(&ListParams::default())).await.map(|list| list.items)
}

async fn get_text(client: &Client, path: &str) -> Read<String> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    within(client.request_text(request)).await
}

/// Sends a request and keeps the answer, whatever its status is.
async fn send(client: &Client, path: &str) -> Read<http::Response<Body>> {
    let request = http::Request::get(path)
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    within(client.send(request)).await
}

/// Whether the API server reaches etcd. One that does not answers with 500, which is no failure of this read.
async fn read_readiness(client: &Client) -> Read<bool> {
    let status = send(client, "/readyz/etcd").await?.status();
    judge_readiness(status)
}

fn judge_readiness(status: http::StatusCode) -> Read<bool> {
    match status {
        status if status.is_success() => Ok(true),
        status if status.is_server_error() => Ok(false),
        http::StatusCode::UNAUTHORIZED | http::StatusCode::FORBIDDEN => Err("/readyz/etcd is forbidden".into()),
        status => Err(format!("/readyz/etcd answers {status}")),
    }
}

/// The time in the header of an answer, whatever the answer is, and the time here when it came: other reads may take longer.
async fn read_time(client: &Client) -> Read<(Timestamp, Timestamp)> {
    let answer = send(client, "/version").await?;
    let now = Timestamp::now();
    let time = answers::read_time(&answer).ok_or("the answer has no time")?;
    Ok((time, now))
}

/// The times of all certificates of Berth. Nothing else of the Secrets is kept.
async fn read_certificates(client: &Client) -> Read<Vec<Certificate>> {
    let all = Api::<Secret>::all(client.clone());
    let own = Api::<Secret>::namespaced(client.clone(), system::NAMESPACE);
    let of_tenants = ListParams::default()
        .labels(labels::TENANT)
        .fields(&format!("metadata.name={LEAVES}"));
    let of_berth = ListParams::default().labels("app.kubernetes.io/part-of=berth");
    let (tenants, berth) = tokio::join!(within(all.list(&of_tenants)), within(own.list(&of_berth)));
    let of_tenants = tenants?.items.into_iter().filter(is_of_control_plane);
    let mut found = Vec::new();
    for secret in of_tenants.chain(berth?.items) {
        let name = format!("{}/{}", secret.namespace().unwrap_or_default(), secret.name_any());
        for (key, value) in secret.data.unwrap_or_default() {
            let Ok(text) = std::str::from_utf8(&value.0) else {
                continue;
            };
            // Keys and other values are no certificates.
            if let (Ok(renew_at), Ok(not_after)) = (berth_pki::renew_at(text), berth_pki::not_after(text)) {
                found.push(Certificate {
                    place: format!("Secret {name}, key {key}"),
                    renew_at,
                    not_after,
                });
            }
        }
    }
    Ok(found)
}

/// Whether a Secret is in a namespace of a tenant. Teams can give Secrets of their own any name and label, and the certificates in them are not Berth's.
fn is_of_control_plane(secret: &Secret) -> bool {
    let namespace = secret.metadata.namespace.as_deref();
    namespace.is_some_and(names::is_like_tenant_namespace)
}

/// Reads everything at the same time.
pub(super) async fn gather(client: &Client) -> Facts {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), system::NAMESPACE);
    let lease: Api<Lease> = Api::namespaced(client.clone(), system::NAMESPACE);
    let basics = async {
        tokio::join!(
            read_time(client),
            within(client.apiserver_version()),
            read_readiness(client),
            get_text(client, "/metrics"),
            within(deployments.get_opt(system::CONTROL)),
            within(lease.get_opt(system::CONTROL)),
            read_certificates(client),
        )
    };
    let installed = async {
        tokio::join!(
            list(client),
            list(client),
            list(client),
            list(client),
            list(client),
            list(client)
        )
    };
    let cron_jobs: Api<CronJob> = Api::namespaced(client.clone(), system::NAMESPACE);
    let rights = async {
        tokio::join!(
            list(client),
            list_own(client),
            list_own(client),
            within(cron_jobs.get_opt(system::CERTIFICATES)),
            within(deployments.get_opt(system::GATEWAY)),
        )
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), network::CILIUM_NAMESPACE);
    let cilium = within(config_maps.get_opt(network::CILIUM_CONFIG));
    let cluster = async {
        tokio::join!(
            list(client),
            cilium,
            list(client),
            list(client),
            list(client),
            list(client)
        )
    };
    let webhooks = async { tokio::join!(list(client), list(client), list(client)) };
    let (basics, installed, rights, cluster, webhooks) = tokio::join!(
        Box::pin(basics),
        Box::pin(installed),
        Box::pin(rights),
        Box::pin(cluster),
        Box::pin(webhooks)
    );
    let (times, version, etcd_ready, metrics, control, lease, certificates) = basics;
    let (definitions, cluster_roles, policies, pools, classes, rate_cards) = installed;
    let (cluster_role_bindings, roles, role_bindings, certificates_job, gateway) = rights;
    let (daemon_sets, cilium, nodes, runtime_classes, storage_classes, volumes) = cluster;
    let (validating, mutating, endpoints) = webhooks;
    Facts {
        now: times.as_ref().map_or_else(|_| Timestamp::now(), |(_, now)| *now),
        host_time: times.map(|(host, _)| host),
        version: version.map(|version| version.git_version),
        etcd_ready,
        metrics,
        definitions,
        cluster_roles,
        cluster_role_bindings,
        roles,
        role_bindings,
        certificates_job,
        policies,
        control,
        gateway,
        lease,
        daemon_sets,
        cilium,
        nodes,
        pools,
        classes,
        rate_cards,
        runtime_classes,
        storage_classes,
        volumes,
        certificates,
        validating,
        mutating,
        endpoints,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_teams_are_not_those_of_berth() {
        let is_berths = |namespace: &str| {
            let mut secret = Secret::default();
            secret.metadata.namespace = Some(namespace.into());
            is_of_control_plane(&secret)
        };
        assert!(is_berths("berth-vision-abcdefghijklm-cp"));
        assert!(!is_berths("team-vision"));
    }

    #[test]
    fn an_api_server_without_etcd_is_not_ready_and_a_refusal_says_nothing_about_it() {
        let judge = |code: u16| judge_readiness(http::StatusCode::from_u16(code).unwrap());
        assert_eq!(judge(200), Ok(true));
        assert_eq!(judge(500), Ok(false));
        for code in [401, 403, 404] {
            assert!(judge(code).is_err(), "{code}");
        }
    }
}
