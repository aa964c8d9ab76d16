use super::super::test_engine::engine;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_secret_without_a_host_pod_stays_for_a_while_however_often_it_is_looked_at() {
    let engine = engine();
    let name = Name::new("team", "train");
    let secret = json!({"metadata": {"name": "train-x", "uid": "s", "resourceVersion": "7"}});
    let secrets = engine.cache.stores.host(KindId::PodToken);
    secrets.watched(name.clone(), Stored::new(&secret));
    for _ in 0..3 {
        let outcome = reconcile(&engine, &name).await.unwrap();
        assert_eq!(outcome.result, "waiting");
        assert!(
            !engine.is_orphan(KindId::PodToken, &name),
            "the periodic scan counts no Secret that is kept for its pod"
        );
        tokio::time::advance(ORPHAN_GRACE / 4).await;
    }
    let host_pod = json!({"metadata": {"name": "train-x", "uid": "h", "resourceVersion": "8"}});
    let host_pods = engine.cache.stores.host(KindId::Pod);
    host_pods.watched(name.clone(), Stored::new(&host_pod));
    assert_eq!(reconcile(&engine, &name).await.unwrap().result, "nothing");
    host_pods.deleted(&name, Stored::new(&host_pod));
    assert_eq!(
        reconcile(&engine, &name).await.unwrap().requeue_after,
        Some(ORPHAN_GRACE),
        "the time begins anew"
    );
    tokio::time::advance(ORPHAN_GRACE).await;
    assert!(engine.is_orphan(KindId::PodToken, &name));
    // There is no API server.
    assert!(reconcile(&engine, &name).await.is_err());
}

/// An engine that knows a pod on the host, its Secret without certificates, and the trust bundle that it selects.
fn engine_with_bundle(certificates: usize) -> Arc<Engine> {
    let engine = engine();
    let name = Name::new("team", "train");
    let stores = &engine.cache.stores;
    let source = json!({"clusterTrustBundle": {"name": "ours", "path": "ca.pem"}});
    let pod = json!({"metadata": {"name": "train", "uid": "p", "resourceVersion": "1"}, "spec": {"volumes": [
        {"name": "trust", "projected": {"sources": [source]}}]}});
    stores.tenant(KindId::Pod).watched(name.clone(), Stored::new(&pod));
    let host = |uid: &str, more: Value| {
        let mut annotations = json!({labels::ORIGIN_UID: "p"});
        annotations
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"metadata": {"name": "train-x", "uid": uid, "resourceVersion": "2", "annotations": annotations,
            "ownerReferences": token::owner_references("train-x", "h")}})
    };
    stores
        .host(KindId::Pod)
        .watched(name.clone(), Stored::new(&host("h", json!({}))));
    let renew_at = json!({labels::TOKEN_RENEW_AT: Timestamp::MAX.to_string()});
    stores
        .host(KindId::PodToken)
        .watched(name, Stored::new(&host("s", renew_at)));
    let certificate =
        |number: usize| format!("-----BEGIN CERTIFICATE-----\n{number:0>1000}\n-----END CERTIFICATE-----\n");
    let text: String = (0..certificates).map(certificate).collect();
    let bundle = json!({"metadata": {"name": "ours", "resourceVersion": "3"}, "spec": {"trustBundle": text}});
    let bundles = stores.tenant(KindId::ClusterTrustBundle);
    bundles.watched(Name::new("", "ours"), Stored::new(&bundle));
    engine
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_keeps_its_certificates_if_there_are_too_many_and_new_ones_wait_for_their_turn() {
    let name = Name::new("team", "train");
    let too_many = engine_with_bundle(MAX_POD_SECRET_BYTES / 1000);
    assert_eq!(reconcile(&too_many, &name).await.unwrap().result, "nothing");
    let few = engine_with_bundle(100);
    // There is no API server.
    assert!(reconcile(&few, &name).await.is_err());
    few.turns.take(64 << 20);
    assert_eq!(reconcile(&few, &name).await.unwrap().result, turns::WAITS);
}
