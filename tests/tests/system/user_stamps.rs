//! Who created a pod: the tenant's API server says it, and nobody says otherwise.

use crate::user_quotas::{PODS, code, pod, pod_spec, request, until_pods_can_be_created};
use berth_api::labels;
use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn forged(mut object: Value) -> Value {
    object["metadata"]["annotations"] = json!({(labels::CREATED_BY): "forged"});
    object
}

fn created_by(metadata: &Value) -> &str {
    metadata["annotations"][labels::CREATED_BY].as_str().unwrap_or_default()
}

/// Who created the pods with a label, once there are as many.
async fn creators(client: &Client, selector: &str, count: usize) -> BTreeSet<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let params = ListParams::default().labels(selector);
    let list = until(&format!("{count} pods with {selector}"), SOON, async || {
        let list = pods.list(&params).await.map_err(|error| error.to_string())?.items;
        if list.len() == count {
            Ok(list)
        } else {
            Err(format!("{} pods", list.len()))
        }
    })
    .await;
    list.iter()
        .map(|pod| pod.annotations().get(labels::CREATED_BY).cloned().unwrap_or_default())
        .collect()
}

pub(crate) async fn users_are_stamped_and_nobody_forges_them(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "stamps", &cluster("stamps", &[])).await;
    let client = &tenant.client;
    until_pods_can_be_created(&tenant).await;
    pods_say_who_created_them(client).await;
    templates_say_who_changed_them_last(client).await;
    jobs_keep_who_created_them(client).await;
    revisions_name_nobody_else(client).await;
    controllers_are_out_of_reach(client).await;

    // The host knows the same.
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    until("the host pod says who created it", SOON, async || {
        let list = pods
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let is_it = |pod: &&Pod| {
            pod.annotations()
                .get(labels::ORIGIN_NAME)
                .is_some_and(|name| name == "direct")
        };
        let found = list.items.iter().find(is_it).cloned();
        let user = found.and_then(|pod| pod.annotations().get(labels::CREATED_BY).cloned());
        if user.as_deref() == Some("alice") {
            Ok(())
        } else {
            Err(format!("{user:?}"))
        }
    })
    .await;
}

async fn pods_say_who_created_them(client: &Client) {
    let created = request(client, "alice", "POST", PODS, &forged(pod("direct")))
        .await
        .unwrap();
    assert_eq!(created_by(&created["metadata"]), "alice");
    let path = format!("{PODS}/direct");
    for value in [json!("bob"), Value::Null] {
        let patch = json!({"metadata": {"annotations": {(labels::CREATED_BY): value}}});
        for path in [path.clone(), format!("{path}/status")] {
            let result = request(client, "bob", "PATCH", &path, &patch).await;
            let after = request(client, "bob", "GET", &format!("{PODS}/direct"), &Value::Null)
                .await
                .unwrap();
            assert_eq!(created_by(&after["metadata"]), "alice", "{path} {value} {result:?}");
        }
    }
    let account = "system:serviceaccount:default:runner";
    let created = request(client, account, "POST", PODS, &pod("by-account"))
        .await
        .unwrap();
    assert_eq!(created_by(&created["metadata"]), account);
    let mut binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "direct"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "none"}});
    binding = forged(binding);
    let result = request(client, "bob", "POST", &format!("{PODS}/direct/binding"), &binding).await;
    assert_eq!(code(&result), 403, "{result:?}");
}

async fn templates_say_who_changed_them_last(client: &Client) {
    let mut template = forged(json!({"spec": pod_spec("web:1")}));
    template["metadata"]["labels"] = json!({"app": "web"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "Recreate"},
            "template": template,
        },
    });
    let created = request(client, "alice", "POST", DEPLOYMENTS, &deployment)
        .await
        .unwrap();
    assert_eq!(created_by(&created["spec"]["template"]["metadata"]), "alice");
    let alice = BTreeSet::from(["alice".to_owned()]);
    assert_eq!(creators(client, "app=web", 2).await, alice);

    // To scale is no change of the template, and a forged name alone is none either.
    let path = format!("{DEPLOYMENTS}/web");
    let patch =
        json!({"spec": {"replicas": 3, "template": {"metadata": {"annotations": {(labels::CREATED_BY): "carol"}}}}});
    let scaled = request(client, "bob", "PATCH", &path, &patch).await.unwrap();
    assert_eq!(created_by(&scaled["spec"]["template"]["metadata"]), "alice");
    assert_eq!(creators(client, "app=web", 3).await, alice);

    // What Bob runs is Bob's.
    let template = json!({"spec": {"containers": [{"name": "main", "image": "bobs:1"}]}});
    let patch = json!({"spec": {"template": template}});
    let changed = request(client, "bob", "PATCH", &path, &patch).await.unwrap();
    assert_eq!(created_by(&changed["spec"]["template"]["metadata"]), "bob");
    until_true("all pods are Bob's", SOON, async || {
        creators(client, "app=web", 3).await == BTreeSet::from(["bob".to_owned()])
    })
    .await;
}

async fn jobs_keep_who_created_them(client: &Client) {
    let template = || {
        let mut spec = pod_spec("job:1");
        spec["restartPolicy"] = "Never".into();
        json!({"metadata": {"labels": {"app": "job"}}, "spec": spec})
    };
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template()}});
    let created = request(client, "alice", "POST", jobs, &job).await.unwrap();
    assert_eq!(created_by(&created["spec"]["template"]["metadata"]), "alice");
    assert_eq!(
        creators(client, "app=job", 1).await,
        BTreeSet::from(["alice".to_owned()])
    );
    let patch = json!({"metadata": {"annotations": {"a": "b"}}});
    let changed = request(client, "bob", "PATCH", &format!("{jobs}/job"), &patch)
        .await
        .unwrap();
    assert_eq!(created_by(&changed["spec"]["template"]["metadata"]), "alice");

    let cron_jobs = "/apis/batch/v1/namespaces/default/cronjobs";
    let spec = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template()}}});
    let cron_job = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec});
    let at = |object: &Value| created_by(&object["spec"]["jobTemplate"]["spec"]["template"]["metadata"]).to_owned();
    let created = request(client, "alice", "POST", cron_jobs, &cron_job).await.unwrap();
    assert_eq!(at(&created), "alice");
    let path = format!("{cron_jobs}/nightly");
    let changed = request(client, "bob", "PATCH", &path, &json!({"spec": {"suspend": true}}))
        .await
        .unwrap();
    assert_eq!(at(&changed), "alice");
    let containers = json!([{"name": "main", "image": "bobs:1"}]);
    let patch = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": containers}}}}}});
    let changed = request(client, "bob", "PATCH", &path, &patch).await.unwrap();
    assert_eq!(at(&changed), "bob");
}

/// The StatefulSet controller makes pods of the templates in revisions.
async fn revisions_name_nobody_else(client: &Client) {
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let revision = |name: &str, user: &str| {
        let annotations = json!({(labels::CREATED_BY): user});
        let template = json!({"$patch": "replace", "metadata": {"annotations": annotations}, "spec": pod_spec("db:1")});
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": 1,
            "data": {"spec": {"template": template}},
        })
    };
    for user in ["alice", "berth:control"] {
        let result = request(client, "bob", "POST", revisions, &revision("db-forged", user)).await;
        assert_eq!(code(&result), 403, "{result:?}");
    }
    let template = |template: &Value| json!({"spec": {"template": template}});
    let own = json!({"metadata": {"annotations": {(labels::CREATED_BY): "bob"}}, "spec": pod_spec("db:1")});
    let with = |key: &str, value: &Value| {
        let mut template = own.clone();
        template["$patch"] = "replace".into();
        template[key] = value.clone();
        template
    };
    let twice =
        json!({"annotations": own["metadata"]["annotations"], "annotation\u{17f}": {(labels::CREATED_BY): "alice"}});
    for (what, data) in [
        ("it would be merged into Alice's template", template(&own)),
        ("nobody is named", template(&with("metadata", &json!({})))),
        (
            "the annotations are removed",
            template(&json!({"metadata": {"annotations": null}})),
        ),
        ("decoders take keys in any case", json!({"Spec": {"template": own}})),
        ("the same", json!({"\u{17f}pec": {"template": own}})),
        ("the same", json!({"spec": {"Template": own}})),
        ("the same", template(&with("Metadata", &json!({})))),
        ("the same", template(&with("metadata", &twice))),
    ] {
        let mut forged = revision("db-forged", "bob");
        forged["data"] = data;
        let result = request(client, "bob", "POST", revisions, &forged).await;
        assert_eq!(code(&result), 403, "{what}: {result:?}");
    }
    request(client, "bob", "POST", revisions, &revision("db-own", "bob"))
        .await
        .unwrap();
    // Operators keep templates that nobody is named in, and other things.
    let operator = "system:serviceaccount:default:operator";
    for (name, user, data) in [
        ("of-an-operator", operator, template(&with("metadata", &json!({})))),
        ("of-another-kind", "bob", json!({"spec": {"replicas": 3}})),
        ("of-none", "bob", json!({"config": {"a": 1}})),
    ] {
        let mut other = revision(name, "bob");
        other["data"] = data;
        request(client, user, "POST", revisions, &other).await.unwrap();
    }
    let mut merged = revision("db-forged", "bob");
    merged["data"] = template(&json!({"spec": pod_spec("db:1")}));
    let result = request(client, operator, "POST", revisions, &merged).await;
    assert_eq!(code(&result), 403, "{result:?}");

    let stateful_sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": pod_spec("db:1")});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template},
    });
    request(client, "alice", "POST", stateful_sets, &set).await.unwrap();
    // The controller itself makes a revision of Alice's template.
    assert_eq!(
        creators(client, "app=db", 1).await,
        BTreeSet::from(["alice".to_owned()])
    );
}

/// Nobody acts as the controllers whose pods keep what their templates say.
async fn controllers_are_out_of_reach(client: &Client) {
    let controller = "system:serviceaccount:kube-system:replicaset-controller";
    let result = request(client, controller, "POST", PODS, &forged(pod("as-controller"))).await;
    assert_eq!(code(&result), 403, "{result:?}");
    let token = "/api/v1/namespaces/kube-system/serviceaccounts/replicaset-controller/token";
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let result = request(client, "alice", "POST", token, &body).await;
    assert_eq!(code(&result), 403, "{result:?}");
    // The controller manager would fill this one.
    let account = "kubernetes.io/service-account.name";
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "annotations": {(account): "replicaset-controller"}},
    });
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let result = request(client, "alice", "POST", secrets, &secret).await;
    assert_eq!(code(&result), 403, "{result:?}");
    secret["metadata"]["annotations"][account] = "default".into();
    request(client, "alice", "POST", secrets, &secret).await.unwrap();
    let patch = json!({"metadata": {"annotations": {(account): "replicaset-controller"}}});
    let result = request(client, "alice", "PATCH", &format!("{secrets}/token"), &patch).await;
    assert_eq!(code(&result), 403, "{result:?}");
}
