//! The Service through which the team reaches its API server from outside: the team decides what it says, and the host whether it accepts that.

use super::{
    fixture::Fixture,
    schedule::insert_stop,
    sleep::{MAX_RECONCILES, count_runs},
};
use crate::{
    control_plane::{EXTERNAL_SERVICE, Form},
    testing::ScriptedRuntime,
};
use serde_json::json;
use std::sync::Arc;

/// An annotation that the class lets the team set. API servers check its value.
const SOURCES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const KUBECONFIG: &str = "/api/v1/namespaces/team/secrets/vision-kubeconfig";

fn service_path(fixture: &Fixture) -> String {
    let namespace = fixture.id.control_plane_namespace();
    format!("/api/v1/namespaces/{namespace}/services/{EXTERNAL_SERVICE}")
}

fn set_sources(fixture: &Fixture, sources: &str) {
    fixture.change_tenant(|cluster| {
        cluster["spec"]["controlPlane"] = json!({"replicas": 1, "service": {
            "type": "LoadBalancer", "annotations": {SOURCES: sources},
        }});
    });
}

/// A tenant whose API server has a load balancer with an address.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.form = Form::Pods { replicas: 1 };
    fixture.context.runtime = Arc::new(runtime);
    fixture.give_class(&json!({"controlPlane": {"service": {"annotations": [SOURCES]}}}));
    set_sources(&fixture, "192.0.2.0/24");
    fixture.reconcile().await.unwrap();
    let path = service_path(&fixture);
    let mut service = fixture.host.get(&path).expect("the Service");
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    fixture.host.insert(&path, service);
    assert!(fixture.reconcile_until_ready().await.is_empty());
    fixture
}

#[tokio::test]
async fn a_service_that_the_host_rejects_holds_up_nothing_else() {
    let mut fixture = Box::pin(ready()).await;
    assert_eq!(fixture.reason("EndpointReady"), (json!("True"), json!("Reachable")));
    let (endpoint, kubeconfig) = (fixture.status()["endpoint"].clone(), fixture.host.get(KUBECONFIG));
    fixture.host.refuse_writes(Some((
        EXTERNAL_SERVICE,
        422,
        "spec.loadBalancerSourceRanges: Invalid value",
    )));
    set_sources(&fixture, "x");
    insert_stop(&fixture);
    let paths = fixture.host.paths();
    let policy = paths.iter().find(|path| path.contains("/networkpolicies/")).unwrap();
    fixture.host.remove(policy);
    let runs = count_runs(&fixture);
    let error = Box::pin(fixture.reconcile()).await.unwrap_err();
    assert_eq!(error.reason(), "ExternalServiceFailed");
    assert!(fixture.host.get(policy).is_some(), "network policies are applied");
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_eq!(quotas[0]["spec"]["hard"]["count/pods"], "0");
    let schedules = fixture.host.find("/tenantschedules/schedule");
    assert_eq!(schedules[0]["spec"]["tenant"][0]["state"], "Stopped");
    assert!(count_runs(&fixture) > runs, "components are updated");
    assert_eq!(
        fixture.reason("EndpointReady"),
        (json!("False"), json!("ExternalServiceFailed"))
    );
    assert_eq!(fixture.condition("Ready").unwrap()["reason"], "ExternalServiceFailed");
    // What was accepted before goes on.
    assert_eq!(fixture.status()["endpoint"], endpoint);
    assert_eq!(fixture.host.get(KUBECONFIG), kubeconfig);
    set_sources(&fixture, "198.51.100.0/24");
    fixture.host.refuse_writes(None);
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let service = fixture.host.get(&service_path(&fixture)).unwrap();
    assert_eq!(service["metadata"]["annotations"][SOURCES], "198.51.100.0/24");
}

#[tokio::test]
async fn a_service_that_the_host_rejects_lets_nothing_else_be_written_again() {
    let mut fixture = Box::pin(ready()).await;
    fixture.host.refuse_writes(Some((EXTERNAL_SERVICE, 422, "invalid")));
    set_sources(&fixture, "x");
    for _ in 0..2 {
        let _ = Box::pin(fixture.reconcile()).await;
    }
    let before = fixture.count_calls();
    let _ = Box::pin(fixture.reconcile()).await;
    let calls = fixture.script.calls().split_off(before);
    let is_other = |text: &str| {
        let expected = [EXTERNAL_SERVICE, "/networkpolicies/"];
        text.starts_with("host PATCH") && !expected.iter().any(|part| text.contains(part))
    };
    let others = calls.iter().filter(|call| is_other(&call.text));
    assert_eq!(others.count(), 0, "{calls:#?}");
}

#[tokio::test]
async fn a_tenant_whose_service_was_never_accepted_is_built_all_the_same() {
    let mut fixture = Fixture::new();
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.form = Form::Pods { replicas: 1 };
    fixture.context.runtime = Arc::new(runtime);
    fixture.change_tenant(|cluster| {
        cluster["spec"]["controlPlane"] = json!({"replicas": 1, "service": {"type": "NodePort"}});
    });
    fixture.host.refuse_writes(Some((EXTERNAL_SERVICE, 422, "invalid")));
    for _ in 0..MAX_RECONCILES {
        let _ = Box::pin(fixture.reconcile()).await;
    }
    assert_eq!(
        fixture.reason("EndpointReady"),
        (json!("False"), json!("ExternalServiceFailed"))
    );
    assert_eq!(fixture.condition("SyncerReady").unwrap()["status"], "True");
}
