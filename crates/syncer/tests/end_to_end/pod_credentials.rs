//! What pods are given to prove who they are and whom they trust: tokens, and certificates of trust bundles.

use crate::{
    objects::{create, events, eventually, is_phase, pod},
    setup::Clusters,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

/// Tokens for several audiences, renewed in place when they are due.
pub async fn tokens_are_renewed_in_place(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let source = |audience: &str| json!({"serviceAccountToken": {"audience": audience, "expirationSeconds": 600, "path": audience}});
    let volume = json!({"name": "tokens", "projected": {"sources": [source("vault"), source("mesh")]}});
    let secrets = clusters.host_api::<Secret>();
    let before = secrets.list(&ListParams::default().limit(1)).await.unwrap();
    create(&pods, pod("audiences", &json!({"volumes": [volume]}))).await;
    let found = async || {
        let all = secrets
            .list(&ListParams::default().labels("berth.dev/pod-token"))
            .await
            .unwrap();
        all.into_iter().find(|secret| {
            let annotations = secret.metadata.annotations.as_ref().unwrap();
            annotations["berth.dev/origin-name"] == "audiences"
        })
    };
    eventually("its tokens are on the host, and name its node", async || {
        let annotations = found().await.and_then(|secret| secret.metadata.annotations);
        annotations.is_some_and(|annotations| annotations.contains_key("berth.dev/token-node"))
    })
    .await;
    let first = found().await.unwrap();
    assert_eq!(
        writes(&secrets, &before.metadata.resource_version.unwrap(), &first).await,
        2,
        "one before the pod has a node, and one with its node and its owner"
    );
    let data = first.data.as_ref().unwrap();
    let node = pods.get("audiences").await.unwrap().spec.unwrap().node_name;
    for token in data.values() {
        let payload = std::str::from_utf8(&token.0)
            .unwrap()
            .split('.')
            .nth(1)
            .unwrap()
            .to_owned();
        let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
        assert_eq!(claims["kubernetes.io"]["node"]["name"], json!(node));
    }
    let tokens: Vec<&str> = data
        .values()
        .map(|token| std::str::from_utf8(&token.0).unwrap())
        .collect();
    assert_eq!(
        tokens.len(),
        3,
        "one for the API server, which every pod gets, and two that were asked for"
    );
    let name = first.metadata.name.as_ref().unwrap();
    let past = json!({"metadata": {"annotations": {"berth.dev/token-renew-at": "2020-01-01T00:00:00Z"}}});
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(past))
        .await
        .unwrap();
    eventually("every token is a new one, in the same Secret", async || {
        let now = found().await.unwrap();
        let renewed = now
            .data
            .as_ref()
            .unwrap()
            .iter()
            .all(|(key, token)| data.get(key).is_some_and(|old| old != token));
        assert_eq!(now.metadata.uid, first.metadata.uid);
        renewed && now.data.as_ref().unwrap().len() == 3
    })
    .await;
    pods.delete("audiences", &DeleteParams::default()).await.unwrap();
}

/// How often a Secret was written since that version.
async fn writes(secrets: &Api<Secret>, since: &str, secret: &Secret) -> usize {
    let one_second = WatchParams::default().labels("berth.dev/pod-token").timeout(1);
    let events = secrets.watch(&one_second, since).await.unwrap();
    events
        .try_filter(|event| {
            let written = match event {
                WatchEvent::Added(written) | WatchEvent::Modified(written) => {
                    written.metadata.uid == secret.metadata.uid
                }
                _ => false,
            };
            std::future::ready(written)
        })
        .count()
        .await
}

/// Certificates of the tenant's trust bundles reach its pods: a missing one is reported, and changes follow.
pub async fn trust_bundles_reach_pods(clusters: &Clusters) {
    let tenant = &clusters.tenant_admin;
    let served = tenant.list_api_group_resources("certificates.k8s.io/v1").await.unwrap();
    if !served
        .resources
        .iter()
        .any(|resource| resource.name == "clustertrustbundles")
    {
        return;
    }
    let pods = clusters.tenant_api::<Pod>();
    let projection = json!({"clusterTrustBundle": {"name": "our-ca", "path": "ca.pem"}});
    let volume = json!({"name": "trust", "projected": {"sources": [projection]}});
    create(&pods, pod("trusting", &json!({"volumes": [volume]}))).await;
    let files = async || {
        let secrets = clusters.host_api::<Secret>();
        let labelled = ListParams::default().labels("berth.dev/pod-token");
        let all = secrets.list(&labelled).await.unwrap();
        let secret = all
            .into_iter()
            .find(|secret| secret.metadata.annotations.as_ref().unwrap()["berth.dev/origin-name"] == "trusting");
        secret.and_then(|secret| secret.data)
    };
    eventually("an Event names the missing bundle", async || {
        let messages = events(clusters, "trusting", "TrustBundleMissing").await;
        messages.iter().any(|message| message.contains("our-ca"))
    })
    .await;
    eventually("its Secret is there, without the file", async || {
        files().await.is_some_and(|data| !data.contains_key("trust-0-0"))
    })
    .await;
    let kind = GroupVersionKind::gvk("certificates.k8s.io", "v1", "ClusterTrustBundle");
    let resource = ApiResource::from_gvk_with_plural(&kind, "clustertrustbundles");
    let bundles: Api<DynamicObject> = Api::all_with(tenant.clone(), &resource);
    let certificate = || {
        let authority = berth_pki::CertificateAuthority::create("our-ca", Duration::from_hours(1)).unwrap();
        authority.cert_pem().trim().to_owned() + "\n"
    };
    let first = certificate();
    let mut bundle = DynamicObject::new("our-ca", &resource);
    bundle.data = json!({"spec": {"trustBundle": first}});
    bundles.create(&PostParams::default(), &bundle).await.unwrap();
    // The first volume is the test's; the API server adds that of the token behind it.
    let is_on_host = async |expected: &str| {
        let data = files().await.unwrap();
        data.get("trust-0-0").is_some_and(|text| text.0 == expected.as_bytes())
    };
    eventually("the pod runs", async || is_phase(&pods, "trusting", "Running").await).await;
    eventually("the certificates are in its Secret", async || is_on_host(&first).await).await;
    let second = certificate();
    let patch = Patch::Merge(json!({"spec": {"trustBundle": second}}));
    bundles.patch("our-ca", &PatchParams::default(), &patch).await.unwrap();
    eventually("the running pod gets the new certificate", async || {
        is_on_host(&second).await
    })
    .await;
    pods.delete("trusting", &DeleteParams::default()).await.unwrap();
}
