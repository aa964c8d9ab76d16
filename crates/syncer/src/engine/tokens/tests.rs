use super::super::test_engine::{engine, tenant};
use super::*;
use crate::{engine::api::Api, metrics::Metrics};
use berth_api::SyncPolicy;
use berth_sync_rules::registry;
use std::sync::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Puts the Secret of the pod with the UID `p` into the store. Its host pod `h` owns it.
fn put_secret(engine: &Engine, name: &Name) {
    let secret = json!({"metadata": {"name": "train-x", "uid": "s", "resourceVersion": "7",
        "annotations": {labels::ORIGIN_UID: "p"}, "ownerReferences": token::owner_references("train-x", "h")}});
    let secrets = engine.cache.stores.host(KindId::PodToken);
    secrets.watched(name.clone(), Stored::new(&secret));
}

/// The host pod of the pod with the UID `p`.
fn host_pod() -> Value {
    let annotations = json!({labels::ORIGIN_UID: "p"});
    json!({"metadata": {"name": "train-x", "uid": "h", "resourceVersion": "8", "annotations": annotations}})
}

/// Puts a pod of the tenant into the store.
fn put_pod(engine: &Engine, name: &Name, metadata: &Value) {
    let pods = engine.cache.stores.tenant(KindId::Pod);
    pods.watched(name.clone(), Stored::new(&json!({ "metadata": metadata })));
}

#[tokio::test(start_paused = true)]
async fn a_secret_whose_host_pod_may_come_stays_for_a_while_however_often_it_is_looked_at() {
    let engine = engine();
    let name = Name::new("team", "train");
    put_pod(
        &engine,
        &name,
        &json!({"name": "train", "uid": "p", "resourceVersion": "1"}),
    );
    put_secret(&engine, &name);
    for _ in 0..3 {
        assert_eq!(reconcile(&engine, &name).await.unwrap().result, "waiting");
        tokio::time::advance(ORPHAN_GRACE / 4).await;
    }
    let host_pods = engine.cache.stores.host(KindId::Pod);
    host_pods.watched(name.clone(), Stored::new(&host_pod()));
    assert_eq!(reconcile(&engine, &name).await.unwrap().result, "nothing");
    host_pods.deleted(&name, Stored::new(&host_pod()));
    assert_eq!(
        reconcile(&engine, &name).await.unwrap().requeue_after,
        Some(ORPHAN_GRACE),
        "the time begins anew"
    );
    tokio::time::advance(ORPHAN_GRACE).await;
    // There is no API server.
    assert!(reconcile(&engine, &name).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_periodic_scan_counts_a_secret_only_if_it_is_not_deleted_for_long() {
    let (engine, name) = (engine(), Name::new("team", "train"));
    put_secret(&engine, &name);
    // There is no API server.
    assert!(reconcile(&engine, &name).await.is_err());
    assert!(!engine.is_orphan(KindId::PodToken, &name));
    tokio::time::advance(ORPHAN_GRACE).await;
    assert!(engine.is_orphan(KindId::PodToken, &name));
}

/// Reads a request with a body in JSON.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    loop {
        let mut part = [0; 4096];
        let length = stream.read(&mut part).await.unwrap_or_default();
        text.push_str(&String::from_utf8_lossy(&part[..length]));
        if length == 0 || text.ends_with('}') {
            return text;
        }
    }
}

/// An engine whose API servers answer each request with this status, and what they were asked.
async fn engine_answered_with(code: u16) -> (Arc<Engine>, Arc<Mutex<Vec<String>>>) {
    berth_runtime::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let requests = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let request = read_request(&mut stream).await;
            requests.lock().unwrap().push(request);
            let status = if code == 200 { "Success" } else { "Failure" };
            let body = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": status, "message": "as the test says",
                "code": code});
            let head = "Content-Type: application/json\r\nConnection: close";
            let answer = format!("HTTP/1.1 {code} Answered\r\n{head}\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    let client = berth_runtime::client::from_config(config).unwrap();
    let metrics = Metrics::default();
    let api = |side| Api::new(client.clone(), side, metrics.clone());
    let (of_tenant, host) = (api(Side::Tenant), api(Side::Host));
    let cache = registry::new_cache(tenant(SyncPolicy::default()));
    (Engine::new(cache, of_tenant, host, metrics), asked)
}

#[tokio::test]
async fn a_secret_is_deleted_as_soon_as_its_host_pod_is_gone_and_no_other_can_come() {
    let alive = json!({"name": "train", "uid": "p", "resourceVersion": "1"});
    let mut ending = alive.clone();
    ending["deletionTimestamp"] = "2026-05-01T10:00:00Z".into();
    let made_again = json!({"name": "train", "uid": "later", "resourceVersion": "1"});
    let name = Name::new("team", "train");
    for (pod, result) in [
        (Some(alive), "waiting"),
        (Some(ending), "deleted"),
        (Some(made_again), "deleted"),
        (None, "deleted"),
    ] {
        let (engine, asked) = engine_answered_with(200).await;
        put_secret(&engine, &name);
        if let Some(pod) = &pod {
            put_pod(&engine, &name, pod);
        }
        let host_pods = engine.cache.stores.host(KindId::Pod);
        host_pods.watched(name.clone(), Stored::new(&host_pod()));
        assert_eq!(reconcile(&engine, &name).await.unwrap().result, "nothing");
        host_pods.deleted(&name, Stored::new(&host_pod()));
        assert_eq!(reconcile(&engine, &name).await.unwrap().result, result, "{pod:?}");
        // The watch has not said yet that it is gone.
        let again = if result == "deleted" { "ending" } else { result };
        assert_eq!(reconcile(&engine, &name).await.unwrap().result, again, "{pod:?}");
        let asked = asked.lock().unwrap();
        if result == "waiting" {
            assert!(asked.is_empty(), "{asked:?}");
            continue;
        }
        let [request] = &asked[..] else {
            panic!("{asked:?}");
        };
        let path = "/api/v1/namespaces/berth-vision-aaaaaaaaaaaaa/secrets/train-x";
        assert!(request.starts_with(&format!("DELETE {path}")), "{request}");
        // No other Secret of the name, and not if a new host pod has got it.
        for condition in ["\"uid\":\"s\"", "\"resourceVersion\":\"7\""] {
            assert!(request.contains(condition), "{request}");
        }
    }
}

#[tokio::test]
async fn a_secret_that_the_garbage_collector_deleted_first_is_no_failure_nor_one_that_has_changed() {
    let name = Name::new("team", "train");
    for (code, outcome) in [
        (404, Outcome::new("deleted")),
        (409, Outcome::requeue("vanished", AFTER_CONFLICT)),
    ] {
        let (engine, _asked) = engine_answered_with(code).await;
        put_secret(&engine, &name);
        assert_eq!(reconcile(&engine, &name).await.unwrap(), outcome);
    }
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
