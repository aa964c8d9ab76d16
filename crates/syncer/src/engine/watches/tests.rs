//! Tests of what is watched, and of what the start waits for.

use super::*;
use crate::{
    engine::test_engine::{engine, engine_of, engine_reaching, tenant},
    store::fake_server,
};
use berth_sync_rules::model::{Tenant, store::Stored};
use serde_json::{Value, json};
use std::{sync::Mutex, time::Instant};

/// The tenant of a class that lists a kind of its own.
fn tenant_with_widgets() -> Tenant {
    let reference = json!({"path": "spec.secretName", "kind": "Secret"});
    let kind = json!({"group": "example.com", "version": "v1", "kind": "Widget", "resource": "widgets", "fields": ["spec"],
        "references": [reference]});
    tenant(serde_json::from_value(json!({"kinds": [kind]})).unwrap())
}

/// An engine of this tenant.
fn engine_with_widgets() -> (Arc<Engine>, KindId) {
    let engine = engine_of(tenant_with_widgets());
    let widget = find_widget(&engine);
    (engine, widget)
}

fn find_widget(engine: &Engine) -> KindId {
    engine.cache.find_kind_by_name("Widget.example.com").unwrap()
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
    list_all_but(&engine, KindId::PodDisruptionBudget);
    let listed = tokio::time::timeout(Duration::from_mins(10), engine.listed()).await;
    assert!(listed.is_err(), "what is not known may exist");

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
async fn the_start_waits_for_policies_and_endpoints_also_if_they_are_refused() {
    for id in [KindId::NetworkPolicy, KindId::EndpointSlice] {
        for why in [None, Some(Unavailable::Forbidden), Some(Unavailable::NotServed)] {
            let (engine, _) = engine_with_widgets();
            list_all_but(&engine, id);
            let store = engine.cache.stores.tenant(id);
            store.set_unavailable(why);
            let listed = tokio::time::timeout(Duration::from_mins(1), engine.listed()).await;
            assert!(
                listed.is_err(),
                "{} {why:?}: pods would be more open than they may",
                id.label()
            );
            // What is known of the kind counts although it is refused later.
            store.set_listed();
            engine.listed().await;
            assert_eq!(engine.find_unavailable_side(id), None, "{why:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_start_waits_for_is_named() {
    let (engine, widget) = engine_with_widgets();
    let many = engine.missing_lists();
    assert_eq!(many.len(), MOST_NAMED + 1);
    assert!(many.last().is_some_and(|last| last.ends_with(" more")), "{many:?}");
    list_all_but(&engine, KindId::NetworkPolicy);
    let reports = Mutex::new(Vec::new());
    let reporting = engine.report_missing(|missing| reports.lock().unwrap().push(missing.to_vec()));
    assert!(tokio::time::timeout(Duration::from_mins(1), reporting).await.is_err());
    assert_eq!(*reports.lock().unwrap(), [["NetworkPolicy of the tenant"]]);

    // Of an extension the start does not depend.
    list_all_but(&engine, widget);
    engine.cache.stores.tenant(KindId::NetworkPolicy).set_listed();
    assert!(engine.missing_lists().is_empty());
}

/// Waits until a kind is off in the tenant for this reason, or for none.
async fn until_unavailable(engine: &Engine, id: KindId, why: Option<Unavailable>) {
    let expected = why.map(|why| (Side::Tenant, why));
    let is_so = async {
        while engine.find_unavailable_side(id) != expected {
            tokio::time::sleep(LIST_POLL).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_hours(1), is_so).await;
    assert!(waited.is_ok(), "{:?}", engine.find_unavailable_side(id));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_had_too_much_is_synced_once_it_has_not() {
    let metadata = json!({"name": "a", "namespace": "team", "uid": "w", "resourceVersion": "5"});
    // More structure than the syncer has memory for.
    let large = json!({"metadata": metadata, "spec": vec![json!({}); 100_000]});
    let small = json!({"metadata": metadata, "spec": {"size": 1}});
    let answers = [large, small].map(|object| fake_server::list(&[object]));
    let engine = engine_reaching(tenant_with_widgets(), fake_server::watch_server(answers.into()));
    let widget = find_widget(&engine);
    list_all_but(&engine, widget);
    let start = tokio::time::Instant::now();
    let watching = tokio::spawn(Arc::clone(&engine).watch(Side::Tenant, widget));

    until_unavailable(&engine, widget, Some(Unavailable::TooMuch)).await;
    engine.listed().await;
    assert!(start.elapsed() < EXTENSION_WAIT, "the syncer is ready without it");
    assert_eq!(
        engine.unavailable_kinds(),
        ["Widget.example.com (the tenant has more or larger objects of it than the syncer keeps)"]
    );
    engine.publish_unlisted();
    assert_eq!(engine.metrics.unlisted_kinds.get(), 1);
    let key = widget.key(Name::new("team", "a"));
    let outcome = engine.reconcile(&key, Instant::now(), true).await;
    assert_eq!(outcome.unwrap().result, "unavailable", "nothing of it is changed");

    until_unavailable(&engine, widget, None).await;
    let waited = start.elapsed();
    assert!(
        (Duration::from_mins(5)..Duration::from_mins(6)).contains(&waited),
        "{waited:?}"
    );
    assert!(engine.unavailable_kinds().is_empty());
    assert_eq!(engine.queue_of(widget).len(), 1, "its object waits to be synced");
    // No API server of the host answers.
    let written = engine.reconcile(&key, Instant::now(), true).await;
    assert!(matches!(written, Err(CallError::Unavailable(_))), "{written:?}");
    watching.abort();
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
