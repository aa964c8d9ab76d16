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
    let found = collect(engine, &name, &pod, &json!({})).await.unwrap();
    assert!(found.look_again.is_some());
    assert_eq!(requests(), 0);
    drop(turns);
    collect(engine, &name, &pod, &json!({})).await.unwrap();
    assert_eq!(requests(), 1);
    assert_eq!(engine.key_turns.available_permits(), KEYS_AT_A_TIME);
}
