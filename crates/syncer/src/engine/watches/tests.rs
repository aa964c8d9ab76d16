//! Tests of what is watched, and of what the start waits for.

use super::*;
use crate::engine::test_engine::{engine, engine_of, tenant};
use berth_sync_rules::model::store::Stored;
use serde_json::{Value, json};
use std::time::Instant;

/// An engine for a class that lists a kind of its own.
fn engine_with_widgets() -> (Arc<Engine>, KindId) {
    let reference = json!({"path": "spec.secretName", "kind": "Secret"});
    let kind = json!({"group": "example.com", "version": "v1", "kind": "Widget", "resource": "widgets", "fields": ["spec"],
        "references": [reference]});
    let engine = engine_of(tenant(serde_json::from_value(json!({"kinds": [kind]})).unwrap()));
    let widget = engine.cache.find_kind_by_name("Widget.example.com").unwrap();
    (engine, widget)
}

/// Lists everything but one kind in the tenant.
fn list_all_but(engine: &Engine, id: KindId) {
    for kind in engine.cache.kinds.iter().copied() {
        for side in [Side::Tenant, Side::Host] {
            if (side, kind) != (Side::Tenant, id) {
                engine.cache.stores.of(side, kind).set_listed();
            }
        }
    }
}

/// Ends the first list of a kind in the tenant, with one object.
fn list(engine: &Engine, id: KindId, name: &Name, object: Value) {
    let store = engine.cache.stores.tenant(id);
    store.list_begins();
    store.watched(name.clone(), Stored::from(object));
    engine.add_dependents(Side::Tenant, id, name);
    store.list_ends();
    store.set_unavailable(None);
}

fn host_object(uid: &str, origin: &str) -> Value {
    let annotations =
        json!({"berth.dev/origin-namespace": "team", "berth.dev/origin-name": "a", "berth.dev/origin-uid": origin});
    json!({"metadata": {"name": "a-x", "uid": uid, "resourceVersion": "7", "annotations": annotations}})
}

#[tokio::test(start_paused = true)]
async fn the_start_waits_for_built_in_kinds_and_only_for_a_short_time_for_extensions() {
    let (engine, widget) = engine_with_widgets();
    list_all_but(&engine, KindId::NetworkPolicy);
    let listed = tokio::time::timeout(Duration::from_mins(10), engine.listed()).await;
    assert!(
        listed.is_err(),
        "without policies pods would be more open than they may"
    );

    let (engine, _) = engine_with_widgets();
    list_all_but(&engine, widget);
    let start = tokio::time::Instant::now();
    engine.listed().await;
    let waited = start.elapsed();
    assert!((EXTENSION_WAIT..EXTENSION_WAIT * 2).contains(&waited), "{waited:?}");
    let unlisted = Some((Side::Tenant, Unavailable::NotListed));
    assert_eq!(engine.find_unavailable_side(widget), unlisted);
    engine.publish_unlisted();
    assert_eq!(engine.metrics.unlisted_kinds.get(), 1);
    assert_eq!(
        engine.unavailable_kinds(),
        ["Widget.example.com (the tenant's API server has not listed its objects yet)"]
    );

    list(
        &engine,
        widget,
        &Name::new("team", "a"),
        json!({"metadata": {"name": "a", "uid": "w", "resourceVersion": "5"}}),
    );
    assert_eq!(engine.find_unavailable_side(widget), None);
    engine.publish_unlisted();
    assert_eq!(engine.metrics.unlisted_kinds.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn extensions_on_the_host_are_waited_for() {
    let engine = engine();
    list_all_but(&engine, KindId::Pod);
    let (extensions, others) = (engine.lists(true), engine.lists(false));
    assert!(extensions.contains(&(Side::Tenant, KindId::HttpRoute)));
    assert!(others.contains(&(Side::Host, KindId::HttpRoute)));
    assert!(extensions.iter().all(|(side, _)| *side == Side::Tenant));
}

#[tokio::test]
async fn nothing_of_a_kind_that_is_not_listed_is_deleted_on_the_host() {
    // No API server answers the engine: whatever it writes fails.
    let (engine, widget) = engine_with_widgets();
    list_all_but(&engine, widget);
    engine.go_on_without(&[(Side::Tenant, widget)]);
    let name = Name::new("team", "a");
    let stores = &engine.cache.stores;
    stores
        .host(widget)
        .watched(name.clone(), Stored::from(host_object("h1", "w")));
    // Only the widget uses it.
    stores
        .host(KindId::Secret)
        .watched(name.clone(), Stored::from(host_object("h2", "s")));
    let secret = json!({"metadata": {"name": "a", "namespace": "team", "uid": "s", "resourceVersion": "5"}});
    stores
        .tenant(KindId::Secret)
        .watched(name.clone(), Stored::from(secret));

    let reconcile = async |id: KindId| {
        let result = engine.reconcile(&id.key(name.clone()), Instant::now(), true).await;
        result.map(|outcome| outcome.result)
    };
    assert_eq!(reconcile(widget).await.unwrap(), "unavailable");
    assert!(!engine.is_orphan(widget, &name));
    assert!(reconcile(KindId::Secret).await.is_ok(), "nothing is written");

    // A Secret that is gone in the tenant is gone on the host, whatever used it.
    stores.tenant(KindId::Secret).forget(&name);
    assert!(reconcile(KindId::Secret).await.is_err(), "it is deleted");

    // Once the list has ended without the widget, its object is deleted.
    list(
        &engine,
        widget,
        &Name::new("team", "b"),
        json!({"metadata": {"name": "b", "uid": "v", "resourceVersion": "5"}}),
    );
    assert!(reconcile(widget).await.is_err(), "it is deleted");
}

#[tokio::test]
async fn a_kind_that_the_tenant_stops_serving_counts_while_the_host_has_objects_of_it() {
    let (engine, widget) = engine_with_widgets();
    let stores = &engine.cache.stores;
    let name = Name::new("team", "a");
    // What the host offers is in its stores as well, whether or not the tenant serves it.
    for id in [widget, KindId::GatewayClass] {
        stores.tenant(id).set_unavailable(Some(Unavailable::NotServed));
    }
    let class = json!({"metadata": {"name": "shared", "uid": "c", "resourceVersion": "3"}});
    stores
        .host(KindId::GatewayClass)
        .watched(Name::new("", "shared"), Stored::from(class));
    let unlisted = || {
        engine.publish_unlisted();
        engine.metrics.unlisted_kinds.get()
    };
    assert_eq!((unlisted(), engine.cache.knows_all_users()), (0, true));
    assert!(engine.unavailable_kinds().is_empty(), "the team may install it or not");

    stores
        .host(widget)
        .watched(name.clone(), Stored::from(host_object("h1", "w")));
    for (why, said) in [
        (Unavailable::NotServed, "does not serve this kind"),
        (Unavailable::Forbidden, "does not let this kind be read"),
    ] {
        stores.tenant(widget).set_unavailable(Some(why));
        assert_eq!((unlisted(), engine.cache.knows_all_users()), (1, false), "{why:?}");
        let expected = format!(
            "Widget.example.com (the tenant's API server {said}, and its objects on the host stay as they are)"
        );
        assert_eq!(engine.unavailable_kinds(), [expected]);
    }
    stores.host(widget).gone(&name, 9);
    assert_eq!((unlisted(), engine.cache.knows_all_users()), (0, true));
}

#[tokio::test]
async fn only_extensions_wait_for_what_they_depend_on() {
    let (engine, widget) = engine_with_widgets();
    engine.go_on_without(&[(Side::Tenant, KindId::ReferenceGrant), (Side::Tenant, widget)]);
    let mut off: Vec<&str> = engine
        .cache
        .kinds
        .iter()
        .copied()
        .filter(|id| engine.find_unavailable_side(*id).is_some())
        .map(KindId::label)
        .collect();
    off.sort_unstable();
    assert_eq!(
        off,
        [
            "GrpcRoute",
            "HttpRoute",
            "ReferenceGrant",
            "TlsRoute",
            "Widget.example.com"
        ]
    );
}

#[tokio::test]
async fn an_idle_tenant_costs_the_host_few_watches() {
    let engine = engine();
    let cache = &engine.cache;
    let always = cache
        .kinds
        .iter()
        .copied()
        .filter(|id| cache.kind(*id).host_watch == HostWatch::Always && engine.watched(Side::Host, *id).is_some());
    let always: Vec<&str> = always.map(KindId::label).collect();
    assert_eq!(
        always,
        ["Pod", "Node", "TenantSchedule", "Event"],
        "classes that nobody may use are not watched"
    );
}

#[tokio::test]
async fn only_pods_of_the_tenant_are_compared_without_their_status() {
    let engine = engine();
    let cache = &engine.cache;
    for id in cache.kinds.iter().copied() {
        let kind = cache.kind(id);
        assert!(differs_in_status(Side::Host, kind).is_some(), "{}", id.label());
        assert_eq!(
            differs_in_status(Side::Tenant, kind).is_some(),
            id == KindId::Pod,
            "{}",
            id.label()
        );
    }
}

#[tokio::test]
async fn what_is_kept_of_extensions_is_counted_together() {
    let (engine, widget) = engine_with_widgets();
    let stores = &engine.cache.stores;
    for id in [widget, KindId::HttpRoute, KindId::Secret] {
        let object = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5"}});
        stores
            .tenant(id)
            .watched(Name::new("team", "a"), Stored::from(object).of_bytes(1000));
    }
    assert_eq!(engine.extension_bytes(), 2 * (1000 + MEMORY_OF_OBJECT));
}
