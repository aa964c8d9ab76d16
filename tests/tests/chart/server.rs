//! A real API server reads what the chart renders.

use crate::render::{find, named, template};
use berth_local::{NodePlan, TestHost};
use berth_tests::{helm::chart, objects::apply, wait::until};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    discovery::{self, Scope},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Applies a document without storing it, unknown fields refused.
async fn dry_run(client: &Client, document: &Value) -> kube::Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    #[expect(
        clippy::disallowed_methods,
        reason = "the test's own API server serves no other groups"
    )]
    let (resource, capabilities) =
        discovery::pinned_kind(client, &GroupVersionKind::gvk(group, version, &kind)).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), &text(&document["metadata"]["namespace"]), &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams {
        dry_run: true,
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply("berth-tests")
    };
    api.patch(&text(&document["metadata"]["name"]), &params, &Patch::Apply(document))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_accepts_everything() {
    berth_runtime::install_crypto();
    let host = TestHost::start(NodePlan::default()).await.unwrap();
    let client = host.client().await.unwrap();
    // Pods of the chart must pass the strictest level, whatever a platform enforces.
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "berth-system", "labels": labels}})).unwrap();
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let external = json!({"endpoints": ["https://e:2379"], "authoritySecret": "ca"});
    for values in [
        json!({}),
        json!({"datastore": {"etcd": {"members": 3, "persistence": {"enabled": false}}}, "imagePullSecrets": ["a"],
            "control": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}},
            "networkPolicies": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}),
        json!({"datastore": {"etcd": {"enabled": false}, "external": external}, "crds": {"keep": false}}),
    ] {
        for document in template(&values).await.unwrap() {
            if document["apiVersion"]
                .as_str()
                .unwrap()
                .starts_with("monitoring.coreos.com/")
            {
                continue;
            }
            let outcome = dry_run(&client, &document).await;
            outcome.unwrap_or_else(|error| panic!("{} {}: {error}", document["kind"], document["metadata"]["name"]));
            // Pod Security rejects pods only: a Deployment just gets a warning.
            let Some(spec) = document.pointer("/spec/template/spec") else {
                continue;
            };
            let mut spec = spec.clone();
            spec.as_object_mut().unwrap().remove("serviceAccountName");
            if spec["restartPolicy"].is_null() {
                spec["restartPolicy"] = "Always".into();
            }
            if document["kind"] == "StatefulSet" {
                let data = json!({"name": "data", "emptyDir": {}});
                let volumes = spec["volumes"].as_array_mut().unwrap();
                if !volumes.iter().any(|volume| volume["name"] == "data") {
                    volumes.push(data);
                }
            }
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "berth-system"}, "spec": spec});
            until("the namespace has its account", Duration::from_secs(60), async || {
                dry_run(&client, &pod).await
            })
            .await;
        }
    }
    // Applied for good, twice: an upgrade that changes nothing.
    for _ in 0..2 {
        for document in template(&json!({})).await.unwrap() {
            if document["kind"] == "CustomResourceDefinition" || document["kind"] == "ValidatingAdmissionPolicy" {
                apply(&client, "", &document).await.unwrap();
            }
        }
    }
    an_upgrade_loses_no_database(&host, &client).await;
}

/// The StatefulSet of etcd with these values of `datastore.etcd`.
async fn etcd(values: &Value) -> Value {
    let all = template(&json!({"datastore": {"etcd": values}})).await;
    let mut all = all.unwrap().into_iter();
    all.find(|document| named(document) == "StatefulSet/berth-etcd")
        .unwrap()
}

/// One member and three are different clusters of etcd. Helm says so, and without Helm the API server does.
async fn an_upgrade_loses_no_database(host: &TestHost, client: &Client) {
    let [one, three] = [json!({"members": 1}), json!({"members": 3})];
    apply(client, "", &etcd(&one).await).await.unwrap();
    dry_run(client, &etcd(&one).await).await.unwrap();
    let refusal = dry_run(client, &etcd(&three).await).await.unwrap_err().to_string();
    assert!(
        refusal.contains("spec.selector") && refusal.contains("immutable"),
        "{refusal}"
    );

    let chart = chart().display().to_string();
    // What Helm says. It also finds objects here that it has not installed.
    let upgrade = async |values: &str| {
        let values = format!("--set=datastore.{values}");
        let rendered = host
            .helm(&["template", "berth", &chart, "--dry-run=server", &values])
            .await;
        rendered.map_or_else(|error| error.to_string(), |_| String::new())
    };
    let message = "cannot change after the installation: set datastore.etcd.members=1,";
    let answer = upgrade("etcd.members=3").await;
    assert!(answer.contains(message), "{answer}");
    let answer = upgrade("etcd.members=1").await;
    assert!(!answer.contains(message), "{answer}");
    let external =
        "etcd.enabled=false,datastore.external.authoritySecret=ca,datastore.external.endpoints={https://e:2379}";
    let answer = upgrade(external).await;
    assert!(answer.contains("set datastore.etcd.persistence.keep=true"), "{answer}");
    // Without volumes nothing of it would stay, and the API server itself sets the policy `Retain`.
    let installed: Api<StatefulSet> = Api::namespaced(client.clone(), "berth-system");
    installed.delete("berth-etcd", &DeleteParams::default()).await.unwrap();
    let without_volumes = etcd(&json!({"persistence": {"enabled": false}})).await;
    apply(client, "", &without_volumes).await.unwrap();
    let answer = upgrade(external).await;
    assert!(answer.contains("which has no volumes"), "{answer}");

    // Without its values, an installation with an etcd of its own would get one of the chart.
    let message = "would give all tenants an empty one";
    let answer = upgrade("etcd.enabled=true").await;
    assert!(!answer.contains(message), "{answer}");
    let own =
        json!({"etcd": {"enabled": false}, "external": {"authoritySecret": "ca", "endpoints": ["https://e:2379"]}});
    let all = template(&json!({"datastore": own})).await.unwrap();
    let control = find(&all, "Deployment/berth-control").unwrap();
    apply(client, "", control).await.unwrap();
    let answer = upgrade("etcd.enabled=true").await;
    assert!(answer.contains(message), "{answer}");
    let answer = upgrade(external).await;
    assert!(!answer.contains(message), "{answer}");
}
