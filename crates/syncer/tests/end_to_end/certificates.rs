//! Certificates of pods: requested by the syncer, issued by a signer of the tenant, which is this test.

use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::Clusters,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SIGNER: &str = "example.com/workloads";

struct Signer {
    requests: Api<DynamicObject>,
    issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    fn new(clusters: &Clusters) -> Self {
        let kind = GroupVersionKind::gvk("certificates.k8s.io", "v1", "PodCertificateRequest");
        let resource = ApiResource::from_gvk_with_plural(&kind, "podcertificaterequests");
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            requests: Api::default_namespaced_with(clusters.tenant_admin.clone(), &resource),
            issuer: Issuer::new(authority, KeyPair::generate().unwrap()),
        }
    }

    /// A request of a pod that has no answer.
    async fn open_request(&self, pod: &str) -> Option<DynamicObject> {
        let all = self.requests.list(&ListParams::default()).await.unwrap();
        all.into_iter().find(|request| {
            request.data["spec"]["podName"] == pod && request.data["status"].get("conditions").is_none()
        })
    }

    /// Waits for the request of a pod, checks it, and issues a certificate. Returns the certificate.
    async fn issue(&self, pod: &Pod) -> String {
        let name = pod.metadata.name.as_deref().unwrap();
        eventually("the pod's certificate is requested", async || {
            self.open_request(name).await.is_some()
        })
        .await;
        let request = self.open_request(name).await.unwrap();
        let spec = &request.data["spec"];
        assert_eq!(spec["podUID"], json!(pod.metadata.uid));
        assert_eq!(spec["serviceAccountName"], "default");
        assert_eq!(spec["unverifiedUserAnnotations"], json!({"example.com/path": "/x"}));
        assert_eq!(request.metadata.owner_references.as_ref().unwrap()[0].name, name);

        let der: k8s_openapi::ByteString = serde_json::from_value(spec["stubPKCS10Request"].clone()).unwrap();
        let mut params = CertificateSigningRequestParams::from_der(&der.0.into()).unwrap();
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
        let after = |minutes| now + SignedDuration::from_mins(minutes);
        let date = |time: Timestamp| time::OffsetDateTime::from_unix_timestamp(time.as_second()).unwrap();
        params.params.not_before = date(now);
        params.params.not_after = date(after(60));
        let certificate = params.signed_by(&self.issuer).unwrap().pem().replace("\r\n", "\n");
        let condition = condition("Issued", "");
        let status = json!({"conditions": [condition], "certificateChain": certificate,
            "notBefore": now, "notAfter": after(60), "beginRefreshAt": after(40)});
        self.answer(&request, &status).await;
        certificate
    }

    async fn answer(&self, request: &DynamicObject, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let name = request.metadata.name.as_deref().unwrap();
        self.requests
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

fn condition(kind: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Test", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn certified_pod(name: &str) -> Value {
    let projection = json!({"signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem",
        "maxExpirationSeconds": 3600, "userAnnotations": {"example.com/path": "/x"}});
    let volume = json!({"name": "tls", "projected": {"sources": [{"podCertificate": projection}]}});
    pod(name, &json!({"volumes": [volume]}))
}

/// The files of a pod in its host Secret.
async fn secret_of(clusters: &Clusters, pod: &str) -> Option<(String, BTreeMap<String, String>)> {
    let labelled = ListParams::default().labels("berth.dev/pod-token");
    let all = clusters.host_api::<Secret>().list(&labelled).await.unwrap();
    let secret = all
        .into_iter()
        .find(|secret| secret.metadata.annotations.as_ref().unwrap()["berth.dev/origin-name"] == pod)?;
    let data = secret.data.unwrap_or_default().into_iter();
    let texts = data.map(|(key, value)| (key, String::from_utf8(value.0).unwrap()));
    Some((secret.metadata.name.unwrap(), texts.collect()))
}

/// A pod's certificate is requested once the pod has a node, reaches the host, and is replaced when it is due. The tokens beside it
/// stay. What a signer denies is reported.
pub async fn signers_of_the_tenant_issue_for_pods(clusters: &Clusters) {
    const KEY: &str = "certificate-0-0-bundle";
    let tenant = &clusters.tenant_admin;
    let served = tenant.list_api_group_resources("certificates.k8s.io/v1").await.unwrap();
    let mut served = served.resources.iter();
    if !served.any(|resource| resource.name == "podcertificaterequests") {
        return;
    }
    let signer = Signer::new(clusters);
    let pods = clusters.tenant_api::<Pod>();
    let created = create(&pods, certified_pod("certified")).await;
    let issued = signer.issue(&created).await;
    let has = async |certificate: &str| {
        let bundle = secret_of(clusters, "certified")
            .await
            .and_then(|(_, mut data)| data.remove(KEY));
        bundle.is_some_and(|text| text.starts_with("-----BEGIN PRIVATE KEY-----") && text.ends_with(certificate))
    };
    eventually("key and certificate are on the host", async || has(&issued).await).await;
    let host_pods = clusters.host_pods().await;
    let host_pod = host_pods.iter().find(|pod| origin(pod) == "certified").unwrap();
    let volumes = json!(host_pod.spec.as_ref().unwrap().volumes);
    let item = &volumes[0]["projected"]["sources"][0]["secret"]["items"][0];
    assert_eq!(*item, json!({"key": KEY, "path": "bundle.pem"}));
    assert!(
        signer.open_request("certified").await.is_none(),
        "one request is enough for one certificate"
    );

    let (name, before) = secret_of(clusters, "certified").await.unwrap();
    let past = json!({"metadata": {"annotations": {"berth.dev/certificates": "{\"0-0\":\"2020-01-01T00:00:00Z\"}"}}});
    let secrets = clusters.host_api::<Secret>();
    secrets
        .patch(&name, &PatchParams::default(), &Patch::Merge(past))
        .await
        .unwrap();
    let refreshed = signer.issue(&created).await;
    eventually("the new certificate is on the host", async || has(&refreshed).await).await;
    let (_, after) = secret_of(clusters, "certified").await.unwrap();
    assert_ne!(before[KEY], after[KEY]);
    assert_eq!(before.len(), after.len(), "the token is kept");
    pods.delete("certified", &DeleteParams::default()).await.unwrap();

    create(&pods, certified_pod("refused")).await;
    eventually("the certificate is requested", async || {
        signer.open_request("refused").await.is_some()
    })
    .await;
    let request = signer.open_request("refused").await.unwrap();
    let denied = json!({"conditions": [condition("Denied", "not for this pod")]});
    signer.answer(&request, &denied).await;
    eventually("an Event says that it was denied", async || {
        let messages = events(clusters, "refused", "CertificateDenied").await;
        messages.iter().any(|message| message.contains("not for this pod"))
    })
    .await;
    assert!(is_phase(&pods, "refused", "Running").await, "KWOK mounts nothing");
    pods.delete("refused", &DeleteParams::default()).await.unwrap();
}
