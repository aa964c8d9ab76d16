use super::*;
use crate::engine::{scripted::Scripted, test_engine::tenant};
use berth_api::SyncPolicy;
use berth_sync_rules::model::resource::Side;

#[tokio::test]
async fn no_more_than_two_keys_are_made_at_a_time_and_others_are_made_later() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    let engine = &scripted.engine;
    let name = Name::new("team", "train");
    let certificate =
        json!({"signerName": "example.com/ca", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"});
    let volume = json!({"name": "tls", "projected": {"sources": [{"podCertificate": certificate}]}});
    let spec = json!({"nodeName": "gpu-1", "volumes": [volume]});
    let pod = scripted.put(Side::Tenant, KindId::Pod, &name, json!({"spec": spec}));
    scripted.put(Side::Tenant, KindId::Node, &Name::new("", "gpu-1"), json!({}));
    let requests = || scripted.calls("tenant POST", "/podcertificaterequests").len();

    let turns = engine.key_turns.try_acquire_many(2).unwrap();
    let found = collect(engine, &name, &pod, &pod.object(), &json!({})).await.unwrap();
    assert!(found.look_again.is_some());
    assert_eq!(requests(), 0);
    drop(turns);
    collect(engine, &name, &pod, &pod.object(), &json!({})).await.unwrap();
    assert_eq!(requests(), 1);
    assert_eq!(engine.key_turns.available_permits(), KEYS_AT_A_TIME);
}

#[tokio::test]
async fn the_secret_says_how_large_the_certificates_of_a_signer_are() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    let engine = &scripted.engine;
    let name = Name::new("team", "train");
    let certificate = json!({"signerName": "example.com/ca", "certificateChainPath": "chain.pem"});
    let volume = json!({"name": "tls", "projected": {"sources": [{"podCertificate": certificate}]}});
    let spec = json!({"nodeName": "gpu-1", "volumes": [volume]});
    let pod = scripted.put(Side::Tenant, KindId::Pod, &name, json!({"spec": spec}));
    let text = "x".repeat(300_000);
    let status = json!({
        "conditions": [{"type": "Issued", "status": "True"}],
        "beginRefreshAt": "2026-05-01T10:00:00Z",
        "certificateChain": format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
    });
    let request = Name::new("team", "req-1");
    scripted.put(
        Side::Tenant,
        KindId::PodCertificateRequest,
        &request,
        json!({"status": status}),
    );
    let waiting = Requested::Waiting {
        name: "req-1".into(),
        key_pem: "key".into(),
        at: Timestamp::now(),
    };
    lock(&engine.certificates).set(&name, &pod.uid, "0-0", Some(waiting));
    let found = collect(engine, &name, &pod, &pod.object(), &json!({})).await.unwrap();
    let patch = found.patch.unwrap();
    let annotations = &patch["metadata"]["annotations"];
    let bytes: usize = json::text(annotations, &[labels::BYTES]).unwrap().parse().unwrap();
    assert!(bytes > 400_000, "in base64: {bytes}");
    let secret = json!({"metadata": {"annotations": annotations}});
    assert_eq!(certificate::sizes(&secret)["0-0"], bytes);
    let bundles = trust::Bundles::default();
    let expected = secret_size::secret_bytes(&pod.object(), &bundles, &certificate::sizes(&secret));
    assert_eq!(expected, bytes, "other writes count the same");
}
