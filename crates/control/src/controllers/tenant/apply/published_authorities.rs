//! The authorities of client certificates that API servers publish for other servers in the tenant, after a rotation.
//!
//! An API server adds the authorities that it trusts to a ConfigMap of the tenant. By that, aggregated API servers decide whose certificates they accept,
//! and ask the API server only what such a user may do. An API server takes none away before it expires, as another API server may have added it. So
//! control takes away those that a rotation revoked, once no API server trusts them any more.

use super::super::target::Tenant;
use crate::{
    apply::{delete_same, optional},
    error::{ReconcileError, api},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

/// Namespace of the ConfigMap.
const NAMESPACE: &str = "kube-system";
/// Its name.
const NAME: &str = "extension-apiserver-authentication";
/// Its key with the authorities of client certificates.
const KEY: &str = "client-ca-file";
/// Time for all requests.
const LIMIT: Duration = Duration::from_secs(5);

/// Takes the authorities away that are not among those `trusted`, which are those of all API servers of the tenant.
///
/// # Errors
/// The tenant's API server refuses or does not answer, or the ConfigMap was changed at the same time.
pub(super) async fn withdraw_revoked(
    tenant: &Tenant,
    api_server: &Client,
    trusted: &str,
) -> Result<(), ReconcileError> {
    let late = || ReconcileError::Blocked {
        reason: "APIServerSlow",
        message: format!("the tenant's API server did not answer about ConfigMap {NAMESPACE}/{NAME} in time"),
    };
    let withdrawn = tenant.slot.lend(LIMIT, Box::pin(withdraw(api_server, trusted))).await;
    withdrawn.unwrap_or_else(|| Err(late()))
}

async fn withdraw(api_server: &Client, trusted: &str) -> Result<(), ReconcileError> {
    let maps: Api<ConfigMap> = Api::namespaced(api_server.clone(), NAMESPACE);
    let found =
        optional(maps.get(NAME).await).map_err(api("read which authorities the tenant's API server publishes"))?;
    // An API server makes a new one.
    let Some(map) = found else { return Ok(()) };
    let published = map.data.as_ref().and_then(|data| data.get(KEY));
    let published = published.map(String::as_str).unwrap_or_default();
    if find_certificates(published).is_subset(&find_certificates(trusted)) {
        return Ok(());
    }
    let withdrawn = if map.immutable == Some(true) {
        // Nobody can change it. An API server makes a new one.
        delete_same(&maps, &map.metadata, None).await.map(drop)
    } else {
        let metadata = json!({"uid": map.uid(), "resourceVersion": map.resource_version()});
        let patch = Patch::Merge(json!({"metadata": metadata, "data": {KEY: trusted}}));
        maps.patch(NAME, &PatchParams::default(), &patch).await.map(drop)
    };
    withdrawn.map_err(api(
        "take revoked authorities out of what the tenant's API server publishes",
    ))
}

/// The certificates of a bundle, without white space: API servers write them with line breaks of their own.
fn find_certificates(bundle: &str) -> BTreeSet<String> {
    bundle
        .split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split_once("-----END CERTIFICATE-----"))
        .map(|(certificate, _)| certificate.split_whitespace().collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};
    use serde_json::Value;

    const PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

    fn certificate(text: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    /// What is published after authorities are withdrawn of which `published` were there and `trusted` are to stay; none: the ConfigMap is gone. And the
    /// calls that change something.
    async fn publish(map: Value, trusted: &str) -> (Option<Value>, usize) {
        let script = Script::default();
        let tenant = ScriptedApi::new("tenant", &script);
        tenant.insert(PATH, map);
        withdraw(&tenant.client(), trusted).await.unwrap();
        let calls = script.calls();
        let writes = calls.iter().filter(|call| !call.text.contains("GET")).count();
        (tenant.get(PATH).map(|map| map["data"].clone()), writes)
    }

    fn map(authorities: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": {KEY: authorities, "requestheader-client-ca-file": "front-proxy"},
        })
    }

    #[tokio::test]
    async fn only_trusted_authorities_stay_published() {
        let (old, new) = (certificate("b2xk"), certificate("bmV3"));
        let (data, writes) = publish(map(&format!("{old}{new}")), &new).await;
        let expected = json!({KEY: new, "requestheader-client-ca-file": "front-proxy"});
        assert_eq!((data, writes), (Some(expected.clone()), 1));
        // With other line breaks, it is the same.
        let broken = certificate("bm\r\nV3");
        let (data, writes) = publish(map(&broken), &new).await;
        assert_eq!((data.unwrap()[KEY].as_str(), writes), (Some(broken.as_str()), 0));
        // One that is not published yet is the API server's to add.
        let (data, writes) = publish(map(&new), &format!("{old}{new}")).await;
        assert_eq!((data, writes), (Some(expected), 0));
    }

    #[tokio::test]
    async fn an_immutable_one_is_made_again() {
        let mut immutable = map(&certificate("b2xk"));
        immutable["immutable"] = true.into();
        assert_eq!(publish(immutable, &certificate("bmV3")).await, (None, 1));
    }

    #[tokio::test]
    async fn nothing_is_written_where_nothing_is_published() {
        let script = Script::default();
        let tenant = ScriptedApi::new("tenant", &script);
        withdraw(&tenant.client(), &certificate("bmV3")).await.unwrap();
        assert!(tenant.paths().is_empty());
        let mut empty = map("");
        empty["data"] = Value::Null;
        assert_eq!(publish(empty, &certificate("bmV3")).await.1, 0);
    }

    #[tokio::test]
    async fn a_change_at_the_same_time_is_an_error_and_stays() {
        let tenant = ScriptedApi::new("tenant", &Script::default());
        let old = map(&certificate("b2xk"));
        tenant.insert(PATH, old.clone());
        tenant.change_before_writes(NAME, 1);
        let trusted = certificate("bmV3");
        assert!(withdraw(&tenant.client(), &trusted).await.unwrap_err().is_status(409));
        assert_eq!(tenant.get(PATH).unwrap()["data"], old["data"]);
        withdraw(&tenant.client(), &trusted).await.unwrap();
        assert_eq!(tenant.get(PATH).unwrap()["data"][KEY], trusted);
    }
}
