//! Endpoints that the tenant has made itself go from the host when its syncer is stopped, and those of the host's controllers stay.

use super::{
    deletion::fixture_with_stubborn_pod,
    fixture::Fixture,
    sleep::{WAKE, fall_asleep, reconcile_until, request},
};
use crate::testing::make_unreadable;
use berth_sync_rules::kinds::endpoint_slice::{MANAGED_BY, SYNCER};
use jiff::Timestamp;
use serde_json::{Value, json};

/// An address of a pod of the host, which other tenants may have by now.
pub(super) const POD: &str = "10.244.1.7";
/// An address of a machine in a network that the class offers for endpoints.
pub(super) const MACHINE: &str = "192.168.7.1";
/// The manager of slices that the host makes of selectors.
pub(super) const HOST: &str = "endpointslice-controller.k8s.io";

fn path(fixture: &Fixture, name: &str) -> String {
    let namespace = fixture.id.workload_namespace();
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}")
}

pub(super) fn insert(fixture: &Fixture, name: &str, manager: &str, addresses: &[&str]) {
    let slice = json!({
        "metadata": {"name": name, "namespace": fixture.id.workload_namespace(), "labels": {MANAGED_BY: manager}},
        "addressType": "IPv4", "endpoints": [{"addresses": addresses}],
    });
    fixture.host.insert(&path(fixture, name), slice);
}

/// Somebody holds a slice with a finalizer: it stays when it is deleted.
pub(super) fn hold(fixture: &Fixture, name: &str) {
    let mut held = fixture.host.get(&path(fixture, name)).unwrap();
    held["metadata"]["finalizers"] = json!(["a.example.com/f"]);
    fixture.host.insert(&path(fixture, name), held);
}

/// Gives the tenant a class that offers the network of [`MACHINE`].
pub(super) fn offer_machines(fixture: &Fixture) {
    fixture.give_class(&json!({"network": {"endpointCIDRs": ["192.168.7.0/24"]}}));
}

/// Names of the slices of the tenant.
pub(super) fn names(fixture: &Fixture) -> Vec<Value> {
    let slices = fixture.host.find(&path(fixture, ""));
    slices.iter().map(|slice| slice["metadata"]["name"].clone()).collect()
}

fn position(fixture: &Fixture, text: &str) -> usize {
    let calls = fixture.script.calls();
    let found = calls.iter().position(|call| call.text.contains(text) && !call.failed);
    found.unwrap_or_else(|| panic!("no call: {text}"))
}

/// Asks for the deletion of the tenant.
fn delete(fixture: &Fixture) {
    fixture.change_tenant(|cluster| cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
}

#[tokio::test]
async fn endpoints_go_before_the_first_pod_of_a_tenant_that_is_deleted() {
    let mut fixture = Box::pin(fixture_with_stubborn_pod()).await;
    for number in 0..1000 {
        insert(&fixture, &format!("ghost-{number}"), SYNCER, &[POD]);
    }
    insert(&fixture, "web", HOST, &[POD]);
    delete(&fixture);
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["web"]);
    let namespace = fixture.id.workload_namespace();
    let rights = format!("host DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/syncer");
    let steps = [
        "runtime stop everything",
        &rights,
        "host DELETE /apis/discovery.k8s.io",
        "/endpointslices/ghost-999",
        &format!("host DELETE /api/v1/namespaces/{namespace}/pods"),
    ];
    let positions = steps.map(|step| position(&fixture, step));
    assert!(positions.is_sorted(), "{positions:?}");
}

#[tokio::test]
async fn endpoints_of_a_tenant_that_is_deleted_go_although_a_component_does_not_stop() {
    let stop = "runtime stop everything";
    let mut healthy = Box::pin(fixture_with_stubborn_pod()).await;
    delete(&healthy);
    Box::pin(healthy.reconcile()).await.unwrap();
    let mut fixture = Box::pin(fixture_with_stubborn_pod()).await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    delete(&fixture);
    fixture.script.fail_call(position(&healthy, stop));
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    assert_eq!(fixture.script.failed().as_deref(), Some(stop));
    assert!(names(&fixture).is_empty());
}

#[tokio::test]
async fn what_somebody_holds_is_not_deleted_again_and_again() {
    let mut fixture = Box::pin(fixture_with_stubborn_pod()).await;
    insert(&fixture, "held", SYNCER, &[POD]);
    hold(&fixture, "held");
    insert(&fixture, "other", SYNCER, &[POD]);
    delete(&fixture);
    for _ in 0..3 {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert!(!names(&fixture).contains(&json!("other")));
    let delete = format!("host DELETE {}", path(&fixture, "held"));
    let calls = fixture.script.calls().into_iter();
    assert_eq!(calls.filter(|call| call.text == delete).count(), 1);
}

#[tokio::test]
async fn each_call_may_fail_once_and_no_pod_goes_before_the_endpoints() {
    let (from, to) = {
        let mut fixture = Box::pin(fixture_with_stubborn_pod()).await;
        let from = fixture.count_calls();
        Box::pin(fixture.delete()).await;
        (from, fixture.count_calls())
    };
    for number in from..to {
        let mut fixture = Box::pin(fixture_with_stubborn_pod()).await;
        insert(&fixture, "ghost", SYNCER, &[POD]);
        fixture.script.fail_call(number);
        Box::pin(fixture.delete()).await;
        let failed = fixture.script.failed();
        let pods = format!(
            "host DELETE /api/v1/namespaces/{}/pods",
            fixture.id.workload_namespace()
        );
        let slices = position(&fixture, "host DELETE /apis/discovery.k8s.io");
        assert!(slices < position(&fixture, &pods), "{failed:?}");
    }
}

#[tokio::test]
async fn a_tenant_that_sleeps_has_no_endpoints_of_its_own() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    insert(&fixture, "machine", SYNCER, &[MACHINE]);
    insert(&fixture, "web", HOST, &[]);
    Box::pin(fall_asleep(&mut fixture)).await;
    assert_eq!(names(&fixture), ["web"]);
    // A syncer whose last request took its time.
    insert(&fixture, "late", SYNCER, &[POD]);
    fixture.reconcile().await.unwrap();
    assert_eq!(names(&fixture), ["web"]);
    // What a tenant that is awake has is its syncer's.
    request(&fixture, WAKE, Timestamp::now());
    Box::pin(reconcile_until(&mut fixture, "Awake", |_| {})).await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    fixture.reconcile().await.unwrap();
    assert_eq!(names(&fixture), ["ghost", "web"]);
}

/// Its pods run on, and so does what they reach outside of the cluster.
#[tokio::test]
async fn a_tenant_whose_database_is_gone_keeps_only_endpoints_outside_of_the_cluster() {
    let mut fixture = Fixture::new();
    offer_machines(&fixture);
    super::databases::store_database(&fixture, Some("a"));
    fixture.reconcile_until_ready().await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    insert(&fixture, "mixed", SYNCER, &[MACHINE, POD]);
    insert(&fixture, "machine", SYNCER, &[MACHINE]);
    insert(&fixture, "web", HOST, &[POD]);
    // Written by somebody who has stolen the credential of the syncer.
    insert(&fixture, "odd", SYNCER, &[POD]);
    let mut odd = fixture.host.get(&path(&fixture, "odd")).unwrap();
    make_unreadable(&mut odd);
    fixture.host.insert(&path(&fixture, "odd"), odd);
    super::databases::store_database(&fixture, None);
    for _ in 0..3 {
        let _ = Box::pin(fixture.reconcile()).await;
    }
    assert_eq!(
        fixture.condition("DatastoreReady").unwrap()["reason"],
        "DatastoreReplaced"
    );
    assert_eq!(names(&fixture), ["machine", "web"]);
}
