use super::super::{
    scripted::{Failure, Scripted},
    test_engine::tenant,
};
use super::*;
use berth_api::SyncPolicy;
use berth_sync_rules::model::{
    KindId,
    resource::{Name, Side},
    store::Unavailable,
};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// An Ingress that the class does not allow, and that is on the host.
fn with_ingress(script: impl Fn(&str) -> Option<Failure> + Send + Sync + 'static) -> (Scripted, Key) {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), script);
    let name = Name::new("team", "a");
    let ingress = json!({"spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example.com"}]}});
    scripted.put(Side::Tenant, KindId::Ingress, &name, ingress);
    scripted.put(Side::Host, KindId::Ingress, &name, json!({"spec": {}}));
    (scripted, KindId::Ingress.key(name))
}

/// Reconciles the key that waits.
async fn work(engine: &Arc<Engine>, key: &Key) {
    let taken = engine.queue_of(key.kind).take().await;
    Arc::clone(engine).work(taken).await;
}

fn left(engine: &Engine) -> i64 {
    engine.metrics.uncompared_objects.get()
}

#[tokio::test]
async fn what_was_on_the_host_before_the_start_is_left_until_it_is_compared() {
    let (scripted, key) = with_ingress(|_| None);
    let engine = &scripted.engine;
    // Nothing of a pod is left once it has ended.
    let pod = Name::new("team", "a");
    scripted.put(Side::Host, KindId::Pod, &pod, json!({"spec": {}}));
    engine.begin_first_comparison();
    assert_eq!(left(engine), 1);
    // Only the status of the host's object has changed.
    engine.add_for_status(key.clone());
    work(engine, &key).await;
    assert_eq!(left(engine), 1);
    engine.add(key.clone());
    work(engine, &key).await;
    // Each time, as no watch says that it is gone.
    assert_eq!(scripted.calls("host DELETE", "/ingresses/a").len(), 2);
    assert_eq!(left(engine), 0);
}

#[tokio::test]
async fn a_tenant_that_refuses_every_write_keeps_nothing_uncompared() {
    for failure in [403, 500] {
        let (scripted, key) = with_ingress(move |call| {
            let is_write = call.starts_with("tenant") && !call.starts_with("tenant GET");
            is_write.then_some(Failure::Refused(failure))
        });
        let engine = &scripted.engine;
        engine.begin_first_comparison();
        engine.add(key.clone());
        work(engine, &key).await;
        assert_eq!(scripted.calls("host DELETE", "/ingresses/a").len(), 1);
        assert_eq!(left(engine), 0, "{failure}");
    }
}

#[tokio::test]
async fn what_the_host_does_not_do_is_left() {
    let (scripted, key) = with_ingress(|call| call.starts_with("host DELETE").then_some(Failure::Refused(500)));
    let engine = &scripted.engine;
    engine.begin_first_comparison();
    engine.add(key.clone());
    work(engine, &key).await;
    assert_eq!(left(engine), 1);
    // It goes by itself.
    engine.cache.stores.host(key.kind).gone(&key.name, 9);
    engine.publish_unenforced();
    assert_eq!(left(engine), 0);
}

#[tokio::test]
async fn what_waits_for_its_turn_is_left() {
    let (scripted, key) = with_ingress(|_| None);
    let engine = &scripted.engine;
    engine.begin_first_comparison();
    let waits = Outcome::new(super::super::turns::WAITS);
    engine.note_comparison(&key, &Ok(waits), false);
    engine.note_comparison(&key, &Ok(Outcome::new(UNAVAILABLE)), false);
    engine.note_comparison(&key, &Ok(Outcome::new("nothing")), true);
    assert_eq!(left(engine), 1);
    engine.note_comparison(&key, &Ok(Outcome::new("nothing")), false);
    assert_eq!(left(engine), 0);
}

/// A team that refuses statuses must not hide so that its Ingress on the host is as it was.
#[tokio::test]
async fn a_change_for_which_there_is_no_room_is_left_although_the_tenant_refuses_the_status() {
    let mut policy = SyncPolicy::default();
    policy.ingress.classes = vec!["nginx".into()];
    policy.ingress.hostnames = vec!["a.example.com".into()];
    let mut tenant = tenant(policy);
    tenant.host_limits.bytes = 1;
    let is_status = |call: &str| call.starts_with("tenant PATCH") && call.ends_with("/ingresses/a/status");
    let scripted = Scripted::new(tenant, move |call| is_status(call).then_some(Failure::Refused(403)));
    let (engine, name) = (&scripted.engine, Name::new("team", "a"));
    scripted.put(Side::Host, KindId::IngressClass, &Name::new("", "nginx"), json!({}));
    let hosts = vec!["a.example.com"; 100];
    let ingress =
        json!({"spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example.com"}], "tls": [{"hosts": hosts}]}});
    scripted.put(Side::Tenant, KindId::Ingress, &name, ingress);
    let served = json!({"spec": {}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    scripted.put(Side::Host, KindId::Ingress, &name, served);
    let key = KindId::Ingress.key(name);
    engine.begin_first_comparison();
    engine.add(key.clone());
    work(engine, &key).await;
    assert_eq!(scripted.calls("tenant PATCH", "/ingresses/a/status").len(), 1);
    assert!(
        scripted.calls("host PATCH", "/ingresses/a").is_empty(),
        "it is as it was"
    );
    assert_eq!(left(engine), 1);
}

#[tokio::test]
async fn a_service_that_was_reduced_because_the_host_refuses_it_is_compared() {
    let mut policy = SyncPolicy::default();
    policy.services.node_ports = true;
    // The host takes the reduced one only.
    let writes = AtomicUsize::new(0);
    let scripted = Scripted::new(tenant(policy), move |call| {
        let is_first = call.starts_with("host PATCH") && writes.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then_some(Failure::Refused(403))
    });
    let (engine, name) = (&scripted.engine, Name::new("team", "a"));
    let spec = json!({"type": "NodePort", "ports": [{"port": 80}]});
    scripted.put(Side::Tenant, KindId::Service, &name, json!({ "spec": spec }));
    scripted.put(
        Side::Host,
        KindId::Service,
        &name,
        json!({"spec": {"type": "NodePort"}}),
    );
    let key = KindId::Service.key(name);
    // It has refused for so long that this is its answer.
    for _ in 0..8 {
        engine.wait_after(&key, &CallError::Rejected("no".into()));
    }
    engine.begin_first_comparison();
    engine.add(key.clone());
    work(engine, &key).await;
    assert_eq!(scripted.calls("host PATCH", "/services/a").len(), 2);
    assert!(
        lock(&engine.failures).contains_key(&key),
        "the whole one is tried again"
    );
    assert_eq!(left(engine), 0);
}

/// A new process has compared nothing, although nothing is left that it knows of.
#[tokio::test]
async fn a_syncer_that_lists_does_not_say_that_it_has_compared_everything() {
    let (scripted, _) = with_ingress(|_| None);
    let engine = &scripted.engine;
    assert_eq!(left(engine), -1);
    engine.publish_unenforced();
    assert_eq!(left(engine), -1);
    engine.begin_first_comparison();
    assert_eq!(left(engine), 1);
}

#[tokio::test]
async fn what_the_tenant_does_not_list_is_left_if_the_host_has_it() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    let (engine, name) = (&scripted.engine, Name::new("team", "a"));
    for (kind, why) in [
        (KindId::HttpRoute, Unavailable::NotListed),
        (KindId::GrpcRoute, Unavailable::NotServed),
        (KindId::TlsRoute, Unavailable::TooMuch),
    ] {
        engine.cache.stores.tenant(kind).set_unavailable(Some(why));
        engine.begin_first_comparison();
        assert_eq!(left(engine), 0, "the host has nothing of {kind:?}");
        scripted.put(Side::Host, kind, &name, json!({"spec": {}}));
        engine.begin_first_comparison();
        let key = kind.key(name.clone());
        engine.add(key.clone());
        work(engine, &key).await;
        assert_eq!(left(engine), 1, "{kind:?}");
        engine.cache.stores.host(kind).gone(&name, 9);
    }
}
