//! Limits of users within a Project: pods beyond a limit wait, however many ask at once, and leave room for those of others.

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
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
/// Pods that one user may have, in all tenants of the Project together.
const LIMIT: usize = 5;
/// Pods that are created at the same time in each of two tenants.
const AT_ONCE: usize = 25;

/// A request in the name of a user who may do everything.
pub(crate) async fn request(
    client: &Client,
    user: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, Error> {
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

pub(crate) fn code<T>(result: &Result<T, Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn pod_spec(image: &str) -> Value {
    json!({"containers": [{"name": "main", "image": image}]})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec("train:1")})
}

/// Pods cannot be created before their ServiceAccount exists.
pub(crate) async fn until_pods_can_be_created(tenant: &Tenant) {
    let accounts: Api<ServiceAccount> = Api::namespaced(tenant.client.clone(), "default");
    until_true("the default ServiceAccount exists", SOON, async || {
        accounts.get_opt("default").await.is_ok_and(|account| account.is_some())
    })
    .await;
}

/// A Project with one namespace of its name.
pub(crate) fn project(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
        "spec": {"namespaces": [name], "userQuotas": limits},
    })
}

/// Limits that let each user have so many pods.
fn limited_pods(limit: usize) -> Value {
    json!([{"user": "*", "limits": [{"resource": "pods", "limit": limit}]}])
}

/// Names of the pods of a user on the host, in all these tenants, and whether they wait. One list has them all, so that they are those of
/// one moment: of two lists, the first may still have a pod whose place the second shows to be another's.
async fn host_pods(host: &TestCluster, tenants: &[&Tenant], user: &str) -> BTreeMap<String, bool> {
    let pods: Api<Pod> = Api::all(host.client.clone());
    let all = ListParams::default().labels(labels::TENANT);
    let mut found = BTreeMap::new();
    for pod in pods.list(&all).await.unwrap() {
        let namespace = pod.namespace().unwrap();
        let Some(tenant) = tenants.iter().find(|it| it.id.workload_namespace() == namespace) else {
            continue;
        };
        let is_users = pod.annotations().get(labels::CREATED_BY).is_some_and(|by| by == user);
        if is_users && pod.metadata.deletion_timestamp.is_none() {
            let name = format!("{}/{}", tenant.name, pod.annotations()[labels::ORIGIN_NAME]);
            found.insert(name, is_gated(&pod));
        }
    }
    found
}

pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == labels::USER_QUOTA_GATE)
}

/// Names of those that may start.
async fn started(host: &TestCluster, tenants: &[&Tenant], user: &str) -> BTreeSet<String> {
    let pods = host_pods(host, tenants, user).await.into_iter();
    pods.filter(|(_, waits)| !waits).map(|(name, _)| name).collect()
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
    let limited = project("user-quotas", &limited_pods(LIMIT));
    apply(&host.client, "", &limited).await.unwrap();
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
    let ended: BTreeSet<String> = running.iter().take(2).cloned().collect();
    for name in &ended {
        let (tenant, pod) = name.split_once('/').unwrap();
        let tenant = if tenant == a.name { &a } else { &b };
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
        pods.delete(pod, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
    until("others start", SOON, async || {
        let now = started(&host, &both, "alice").await;
        assert!(now.len() <= LIMIT, "{now:?}");
        if now.len() == LIMIT && now.is_disjoint(&ended) {
            assert_eq!(now.intersection(&running).count(), LIMIT - ended.len(), "{now:?}");
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    nobody_else_opens_gates(&host, &a).await;

    // Without limits all of them start.
    let unlimited = project("user-quotas", &json!([]));
    apply(&host.client, "", &unlimited).await.unwrap();
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

pub(crate) async fn pods_of_one_user_that_wait_leave_room_for_others(host: Arc<TestCluster>) {
    let name = "user-places";
    set_pods_of_class(&host, name, 30).await;
    let limited = project(name, &limited_pods(1));
    apply(&host.client, "", &limited).await.unwrap();
    let mut cluster = cluster(name, &[]);
    cluster.spec.class_name = Some(name.into());
    let tenant = Tenant::create(&host, name, &cluster).await;
    until_pods_can_be_created(&tenant).await;

    // Alice has more pods than the tenant may have on the host. A tenth of these wait there.
    create_pods(&tenant, "alice", 40).await;
    until_on_host(&host, &tenant, "alice", 1 + 3).await;
    create_pods(&tenant, "bob", 1).await;
    until_started(&host, &[&tenant], "bob", 1).await;
    let running = until_started(&host, &[&tenant], "alice", 1).await;
    until_waiting_pods_say_why(&tenant, &running).await;

    // What ends leaves its place to the next.
    let (_, first) = running.first().unwrap().split_once('/').unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let now = DeleteParams::default().grace_period(0);
    pods.delete(first, &now).await.unwrap();
    until_true("another pod starts", SOON, async || {
        let now = started(&host, &[&tenant], "alice").await;
        now.len() == 1 && now != running
    })
    .await;
    until_on_host(&host, &tenant, "alice", 1 + 3).await;

    // The syncer restarts for another limit, and counts those that wait on the host.
    set_pods_of_class(&host, name, 50).await;
    until_on_host(&host, &tenant, "alice", 1 + 5).await;

    // Without limits all of them start.
    let unlimited = project(name, &json!([]));
    apply(&host.client, "", &unlimited).await.unwrap();
    until_started(&host, &[&tenant], "alice", 39).await;
    tenant.delete(&host).await;
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(name, &DeleteParams::default()).await.unwrap();
}

/// A class whose tenants may have so many pods on the host.
async fn set_pods_of_class(host: &TestCluster, name: &str, pods: usize) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name},
        "spec": {"limits": {"pods": pods}}});
    apply(&host.client, "", &class).await.unwrap();
}

/// Waits until a user has so many pods on the host, and never more.
async fn until_on_host(host: &TestCluster, tenant: &Tenant, user: &str, count: usize) {
    until(&format!("{count} pods of {user} are on the host"), SOON, async || {
        let pods = host_pods(host, &[tenant], user).await;
        assert!(pods.len() <= count, "{pods:?}");
        if pods.len() == count {
            Ok(())
        } else {
            Err(format!("{pods:?}"))
        }
    })
    .await;
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
    let name = list.items.iter().find(|pod| is_gated(pod)).unwrap().name_any();
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
        let error = apply(&host.client, "", &project("user-quotas", &quotas))
            .await
            .expect_err(&quotas.to_string())
            .to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
    let unnamed = json!([{"limits": [{"resource": "nvidia.com/gpu", "limit": 0}]}]);
    let object = project("user-quotas-schema", &unnamed);
    apply(&host.client, "", &object).await.unwrap();
    let projects: Api<Project> = Api::all(host.client.clone());
    let stored = projects.get("user-quotas-schema").await.unwrap();
    assert_eq!(stored.spec.user_quotas[0].user, berth_api::ALL_USERS);
    projects
        .delete("user-quotas-schema", &DeleteParams::default())
        .await
        .unwrap();
}
