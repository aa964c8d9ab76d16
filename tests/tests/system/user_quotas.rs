//! Users within a Project: the tenant's API server says who created a pod, and pods beyond a user's limit wait, however many ask at once.

use berth_api::{Project, conditions::USER_LIMIT_EXCEEDED, labels};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// Pods that one user may have, in all tenants of the Project together.
const LIMIT: usize = 5;
/// Pods that are created at the same time in each of two tenants.
const AT_ONCE: usize = 25;

/// A request in the name of a user who may do everything.
async fn request(client: &Client, user: &str, method: &str, path: &str, body: &Value) -> Result<Value, Error> {
    request_as(client, (user, Some("system:masters")), method, path, body).await
}

/// A request in the name of a user, perhaps as a member of a group.
async fn request_as(
    client: &Client,
    (user, group): (&str, Option<&str>),
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, Error> {
    let content_type = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .header("Impersonate-User", user);
    if let Some(group) = group {
        request = request.header("Impersonate-Group", group);
    }
    client
        .request(request.body(body.to_string().into_bytes()).unwrap())
        .await
}

fn code<T>(result: &Result<T, Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

fn pod_spec(image: &str) -> Value {
    json!({"containers": [{"name": "main", "image": image}]})
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec("train:1")})
}

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

/// Pods cannot be created before their ServiceAccount exists.
async fn until_pods_can_be_created(tenant: &Tenant) {
    let accounts: Api<ServiceAccount> = Api::namespaced(tenant.client.clone(), "default");
    until_true("the default ServiceAccount exists", SOON, async || {
        accounts.get_opt("default").await.is_ok_and(|account| account.is_some())
    })
    .await;
}

pub(crate) async fn users_are_stamped_and_nobody_forges_them(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "stamps", &cluster("stamps", &[])).await;
    let client = &tenant.client;
    until_pods_can_be_created(&tenant).await;
    pods_say_who_created_them(client).await;
    templates_say_who_changed_them_last(client).await;
    jobs_keep_who_created_them(client).await;
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

fn project(limits: &Value) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "user-quotas"},
        "spec": {"namespaces": ["user-quotas"], "userQuotas": limits},
    })
}

/// Names of the tenants' pods of a user on the host, in all tenants, that may start.
async fn started(host: &TestCluster, tenants: &[&Tenant], user: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for tenant in tenants {
        let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
            let is_gated = gates.into_iter().any(|gate| gate.name == labels::USER_QUOTA_GATE);
            let is_users = pod.annotations().get(labels::CREATED_BY).is_some_and(|by| by == user);
            if is_users && !is_gated && pod.metadata.deletion_timestamp.is_none() {
                names.insert(format!("{}/{}", tenant.name, pod.annotations()[labels::ORIGIN_NAME]));
            }
        }
    }
    names
}

async fn until_started(host: &TestCluster, tenants: &[&Tenant], user: &str, count: usize) -> BTreeSet<String> {
    until(&format!("{count} pods of {user} start"), SOON, async || {
        let names = started(host, tenants, user).await;
        // Never more, at no time.
        assert!(names.len() <= count, "{names:?}");
        if names.len() == count {
            Ok(names)
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await
}

async fn create_pods(tenant: &Tenant, user: &str, count: usize) {
    let created = (0..count).map(|number| {
        let client = tenant.client.clone();
        async move { request(&client, user, "POST", PODS, &pod(&format!("{user}-{number}"))).await }
    });
    for result in join_all(created).await {
        result.unwrap();
    }
}

pub(crate) async fn many_pods_at_once_do_not_exceed_the_limit_of_their_user(host: Arc<TestCluster>) {
    let limits = json!([{"user": "*", "limits": [{"resource": "pods", "limit": LIMIT}]}]);
    apply(&host.client, "", &project(&limits)).await.unwrap();
    let a = Tenant::create(&host, "user-quotas", &cluster("users-a", &[])).await;
    let b = Tenant::create(&host, "user-quotas", &cluster("users-b", &[])).await;
    let both = [&a, &b];
    for tenant in both {
        until_pods_can_be_created(tenant).await;
    }
    // Control ends in the middle, and decides again when it starts.
    let restart = async {
        until_true("a pod starts", SOON, async || {
            !started(&host, &both, "alice").await.is_empty()
        })
        .await;
        host.stop_control("first").await;
        assert!(started(&host, &both, "alice").await.len() <= LIMIT);
        host.start_control("first").await;
    };
    tokio::join!(
        create_pods(&a, "alice", AT_ONCE),
        create_pods(&b, "alice", AT_ONCE),
        restart
    );
    create_pods(&a, "bob", 1).await;
    until_started(&host, &both, "bob", 1).await;
    let running = until_started(&host, &both, "alice", LIMIT).await;
    until_reported(&host, 2 * AT_ONCE - LIMIT).await;
    until_waiting_pods_say_why(&a, &running).await;

    // Those that end leave their places to others.
    for name in running.iter().take(2) {
        let (tenant, pod) = name.split_once('/').unwrap();
        let tenant = if tenant == a.name { &a } else { &b };
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
        pods.delete(pod, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
    let kept: BTreeSet<String> = running.iter().skip(2).cloned().collect();
    until("others start", SOON, async || {
        let now = started(&host, &both, "alice").await;
        assert!(now.len() <= LIMIT, "{now:?}");
        if now.len() == LIMIT && kept.is_subset(&now) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    nobody_else_opens_gates(&host, &a).await;

    // Without limits all of them start.
    apply(&host.client, "", &project(&json!([]))).await.unwrap();
    until_started(&host, &both, "alice", 2 * AT_ONCE - 2).await;
    for tenant in ["users-a", "users-b"] {
        host.tenants("user-quotas")
            .delete(tenant, &DeleteParams::default())
            .await
            .unwrap();
        until_gone(&host, "user-quotas", tenant).await;
    }
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete("user-quotas", &DeleteParams::default()).await.unwrap();
}

/// Waits until the status of the Project says how many pods of Alice wait.
async fn until_reported(host: &TestCluster, waiting: usize) {
    let projects: Api<Project> = Api::all(host.client.clone());
    until("the Project reports its users", SOON, async || {
        let project = projects.get("user-quotas").await.map_err(|error| error.to_string())?;
        let users = project.status.map(|status| status.users).unwrap_or_default();
        let alice = users.iter().find(|user| user.user == "alice").cloned();
        let is_right = alice.as_ref().is_some_and(|user| {
            usize::try_from(user.waiting_pods) == Ok(waiting) && user.resources[0].used == LIMIT as u64
        });
        if is_right { Ok(()) } else { Err(format!("{users:?}")) }
    })
    .await;
}

/// Each pod that waits says why, in the tenant.
async fn until_waiting_pods_say_why(tenant: &Tenant, running: &BTreeSet<String>) {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let events: Api<Event> = Api::namespaced(tenant.client.clone(), "default");
    until("pods that wait say why", SOON, async || {
        let list = pods
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let waits = |pod: &&Pod| {
            let name = pod.name_any();
            name.starts_with("alice") && !running.contains(&format!("{}/{name}", tenant.name))
        };
        let silent = list.items.iter().filter(waits).filter(|pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut said = conditions.filter(|condition| condition.type_ == USER_LIMIT_EXCEEDED);
            !said.any(|condition| condition.message.as_deref().unwrap_or_default().contains("user alice"))
        });
        let silent: Vec<String> = silent.map(ResourceExt::name_any).collect();
        if silent.is_empty() {
            Ok(())
        } else {
            Err(format!("{silent:?}"))
        }
    })
    .await;
    until_true("an Event says it too", SOON, async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.items
            .iter()
            .any(|event| event.reason.as_deref() == Some("UserLimitExceeded"))
    })
    .await;
}

/// The identity of the syncer cannot let a pod start, nor create one that starts.
async fn nobody_else_opens_gates(host: &TestCluster, tenant: &Tenant) {
    let namespace = tenant.id.workload_namespace();
    let syncer = format!("system:serviceaccount:{}:syncer", tenant.id.control_plane_namespace());
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &namespace);
    let list = pods.list(&ListParams::default()).await.unwrap();
    let gated = |pod: &&Pod| {
        let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        gates.into_iter().any(|gate| gate.name == labels::USER_QUOTA_GATE)
    };
    let name = list.items.iter().find(gated).unwrap().name_any();
    for patch in [
        json!({"spec": {"schedulingGates": []}}),
        json!({"metadata": {"annotations": {(labels::CREATED_BY): "bob"}}}),
    ] {
        let result = request_as(
            &host.client,
            (&syncer, None),
            "PATCH",
            &format!("{path}/{name}"),
            &patch,
        )
        .await;
        assert_eq!(code(&result), 403, "{patch} {result:?}");
    }
    let mut copy = serde_json::to_value(pods.get(&name).await.unwrap()).unwrap();
    let metadata =
        json!({"name": "open", "labels": copy["metadata"]["labels"], "annotations": copy["metadata"]["annotations"]});
    copy["metadata"] = metadata;
    copy["spec"]["schedulingGates"] = json!([]);
    let result = request_as(&host.client, (&syncer, None), "POST", &path, &copy).await;
    assert_eq!(code(&result), 403, "{result:?}");
}

pub(crate) async fn schemas_reject_invalid_limits_of_users(host: Arc<TestCluster>) {
    let entry = |user: &str, resource: &str, limit: i64| json!({"user": user, "limits": [{"resource": resource, "limit": limit}]});
    for (quotas, expected) in [
        (json!([entry("a", "cpu", 1)]), "spec.userQuotas[0].limits[0].resource"),
        (json!([entry("a", "pods", -1)]), "spec.userQuotas[0].limits[0].limit"),
        (json!([{"user": "a", "limits": []}]), "spec.userQuotas[0].limits"),
        (json!([entry("", "pods", 1)]), "spec.userQuotas[0].user"),
        (json!([entry("a", "pods", 1), entry("a", "pods", 2)]), "uplicate"),
    ] {
        let error = apply(&host.client, "", &project(&quotas))
            .await
            .expect_err(&quotas.to_string())
            .to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
    let unnamed = json!([{"limits": [{"resource": "nvidia.com/gpu", "limit": 0}]}]);
    let mut object = project(&unnamed);
    object["metadata"]["name"] = "user-quotas-schema".into();
    object["spec"]["namespaces"] = json!(["nowhere"]);
    apply(&host.client, "", &object).await.unwrap();
    let projects: Api<Project> = Api::all(host.client.clone());
    let stored = projects.get("user-quotas-schema").await.unwrap();
    assert_eq!(stored.spec.user_quotas[0].user, berth_api::ALL_USERS);
    projects
        .delete("user-quotas-schema", &DeleteParams::default())
        .await
        .unwrap();
}
