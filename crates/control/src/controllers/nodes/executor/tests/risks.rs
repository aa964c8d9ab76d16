//! Risks that the validation of a node reports are on the node once it is free, whichever call fails.

use super::{super::find_image_rules, Fixture, NODES, api::Failing, state_of};
use berth_api::{
    HostNodePoolSpec, TenantClass, TenantClassSpec, TenantCluster, TenantClusterSpec, TenantClusterStatus, labels,
    system,
};
use berth_node_lifecycle::assignment::AssignmentState::{Scrubbing, Validating};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const RISK: &str = "CheckpointRestore: criu is installed";

fn fixture() -> Fixture {
    Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a"])
    }
}

/// What the node has in the annotation.
fn risks(fixture: &Fixture) -> Value {
    fixture.api().objects[&format!("{NODES}/a")]["metadata"]["annotations"][labels::NODE_RISKS].clone()
}

/// The Jobs that there are succeed. The check of the node writes this message.
fn finish_jobs(fixture: &Fixture, message: Option<&str>) {
    let mut api = fixture.api();
    let mut pods = Vec::new();
    for (path, job) in &mut api.objects {
        if path.contains("/jobs/") {
            job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        }
        if path.contains("/jobs/validate-") {
            let name = format!("{}-x", job["metadata"]["name"].as_str().unwrap());
            let ended = json!({"exitCode": 0, "message": message});
            let pod = json!({
                "metadata": {
                    "name": name, "namespace": system::NAMESPACE, "uid": format!("uid-{name}"),
                    "labels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]},
                },
                "spec": {"nodeName": "a", "tolerations": [{"operator": "Exists"}], "containers": []},
                "status": {"phase": "Succeeded", "initContainerStatuses": [
                    {"name": "check", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": ended}},
                ]},
            });
            pods.push((format!("/api/v1/namespaces/{}/pods/{name}", system::NAMESPACE), pod));
        }
    }
    api.objects.extend(pods);
}

/// Scrubs and validates the node. It is not free yet.
async fn validate(fixture: &Fixture, message: Option<&str>) {
    fixture.put_in_state("a", Scrubbing);
    let is_validated = || {
        fixture
            .api()
            .objects
            .keys()
            .any(|path| path.contains("/jobs/validate-"))
    };
    while !is_validated() {
        fixture.execute(&[], Failing::Nothing).await.0.unwrap();
        finish_jobs(fixture, message);
    }
    assert_eq!(state_of(fixture, "a"), Some(Validating));
}

/// Recycles the node until it is free.
async fn recycle(fixture: &Fixture, message: Option<&str>) {
    validate(fixture, message).await;
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(fixture, "a"), None);
}

#[tokio::test]
async fn risks_stay_on_a_node_until_they_are_gone() {
    let fixture = fixture();
    let events = || {
        fixture
            .api()
            .events
            .iter()
            .filter(|reason| *reason == "RisksFound")
            .count()
    };
    recycle(&fixture, Some("no risk")).await;
    assert_eq!((risks(&fixture), events()), (Value::from("none"), 0));
    let reported = format!("risk: {RISK}\nrisk: AdminCredentials: ca.key");
    recycle(&fixture, Some(&reported)).await;
    let both = format!("{RISK}; AdminCredentials: ca.key");
    assert_eq!((risks(&fixture), events()), (Value::from(both.as_str()), 1));
    recycle(&fixture, Some(&reported)).await;
    assert_eq!(
        (risks(&fixture), events()),
        (Value::from(both.as_str()), 1),
        "it is said once"
    );
    // A program that knows no risks says nothing.
    recycle(&fixture, None).await;
    assert_eq!(risks(&fixture), both);
    recycle(&fixture, Some("no risk")).await;
    assert_eq!((risks(&fixture), events()), (Value::from("none"), 1));
}

#[tokio::test]
async fn risks_are_on_a_free_node_whichever_call_fails() {
    for call in 1..=10 {
        let fixture = fixture();
        validate(&fixture, Some(&format!("risk: {RISK}"))).await;
        // The outcome does not matter: what is left is done by the next pass.
        let _ = fixture.execute(&[], Failing::Call(call)).await;
        fixture.execute(&[], Failing::Nothing).await.0.unwrap();
        assert_eq!(
            (state_of(&fixture, "a"), risks(&fixture)),
            (None, Value::from(RISK)),
            "call {call}"
        );
    }
}

#[tokio::test]
async fn only_the_pod_that_has_validated_the_node_counts() {
    for (part, field, value) in [("spec", "nodeName", "b"), ("status", "phase", "Failed")] {
        let fixture = fixture();
        validate(&fixture, Some(&format!("risk: {RISK}"))).await;
        {
            let mut api = fixture.api();
            let mut pods = api.objects.iter().filter(|(path, _)| path.contains("/pods/validate-"));
            let mut other = pods.next().unwrap().1.clone();
            other["metadata"]["name"] = "a".into();
            other[part][field] = value.into();
            other["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] = "no risk".into();
            let path = format!("/api/v1/namespaces/{}/pods/a", system::NAMESPACE);
            api.objects.insert(path, other);
        }
        fixture.execute(&[], Failing::Nothing).await.0.unwrap();
        assert_eq!(
            (state_of(&fixture, "a"), risks(&fixture)),
            (None, Value::from(RISK)),
            "{field}"
        );
    }
}

#[test]
fn a_tenant_that_runs_without_a_class_may_run_every_image() {
    let class = |name: &str| {
        let mut spec = TenantClassSpec::default();
        spec.sync.pods.images = Some(vec!["docker.io/*".into()]);
        Arc::new(TenantClass::new(name, spec))
    };
    let tenant = |named: Option<&str>, running: Option<&str>, is_created: bool| {
        let spec = TenantClusterSpec {
            class_name: named.map(ToOwned::to_owned),
            ..TenantClusterSpec::default()
        };
        let mut cluster = TenantCluster::new("vision", spec);
        cluster.status = Some(TenantClusterStatus {
            class_name: running.map(ToOwned::to_owned),
            control_plane_namespace: is_created.then(|| "berth-cp".to_owned()),
            ..TenantClusterStatus::default()
        });
        Arc::new(cluster)
    };
    let all_are_allowed = |name: &str, tenant: &Arc<TenantCluster>| {
        let rules = find_image_rules(&[class(name)], std::slice::from_ref(tenant));
        assert!(rules.some_are_listed);
        rules.all_are_allowed
    };
    let without = tenant(None, None, true);
    assert!(all_are_allowed("gold", &without));
    assert!(!all_are_allowed("default", &without), "it gets this one");
    assert!(
        !all_are_allowed("gold", &tenant(None, None, false)),
        "it is not accepted"
    );
    assert!(!all_are_allowed("gold", &tenant(None, Some("gold"), true)));
    assert!(!all_are_allowed("gold", &tenant(Some("gold"), None, true)));
}
