//! Quotas of Projects: what exceeds them is not created, however many ask at once and whenever control ends.

use berth_api::{Organization, Project, TenantCluster, conditions, labels};
use berth_tests::{
    objects::{apply, expect_rejected},
    tenant::{cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// Tenants for which there is quota. Each runs programs of its own.
const QUOTA: usize = 2;
/// Tenants that are created at the same time.
const AT_ONCE: usize = 200;

fn project(name: &str, namespaces: &[&str], tenants: usize) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
        "spec": {
            "namespaces": namespaces,
            "quotas": [{"resource": "tenantclusters", "nominalQuota": tenants, "borrowingLimit": 0}],
        },
    })
}

fn with_quota(mut project: Value, quota: &Value) -> Value {
    project["spec"]["quotas"] = json!([quota]);
    project
}

pub(crate) async fn schemas_reject_invalid_quotas(host: Arc<TestCluster>) {
    let valid = project("q", &["a"], 1);
    for (object, expected) in [
        (project("1st", &["a"], 1), "starts with a letter"),
        (project("q", &["A"], 1), "spec.namespaces[0]"),
        (
            with_quota(valid.clone(), &json!({"resource": "gold", "nominalQuota": 1})),
            "spec.quotas[0].resource",
        ),
        (
            with_quota(valid.clone(), &json!({"resource": "gpus", "nominalQuota": 1})),
            "gpus of several pools need borrowingLimit",
        ),
        (
            with_quota(
                valid.clone(),
                &json!({"resource": "gpus", "nominalQuota": 1, "borrowingLimit": 0, "lendingLimit": 0}),
            ),
            "gpus of several pools have no lendingLimit",
        ),
        (
            with_quota(
                valid.clone(),
                &json!({"resource": "gpus", "poolName": "h100", "gpuProduct": "H100", "nominalQuota": 1}),
            ),
            "poolName and gpuProduct exclude each other",
        ),
        (
            with_quota(
                valid.clone(),
                &json!({"resource": "pods", "gpuProduct": "H100", "nominalQuota": 1}),
            ),
            "only the resource gpus has gpuProduct",
        ),
        (
            with_quota(
                valid.clone(),
                &json!({"resource": "pods", "poolName": "h100", "nominalQuota": 1}),
            ),
            "only the resource gpus has poolName",
        ),
        (
            with_quota(valid.clone(), &json!({"resource": "pods", "nominalQuota": "many"})),
            "spec.quotas[0].nominalQuota",
        ),
        (
            with_quota(valid.clone(), &json!({"resource": "pods"})),
            "spec.quotas[0].nominalQuota",
        ),
    ] {
        expect_rejected(&host.client, "", &object, expected).await;
    }
}

pub(crate) async fn the_examples_of_quotas_are_valid(host: Arc<TestCluster>) {
    let params = PatchParams::apply("berth-tests").dry_run();
    let path = "quotas/organization.yaml";
    let (mut organizations, mut projects) = (0, 0);
    let text = std::fs::read_to_string(format!("{}/../examples/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for document in berth_tests::files::documents(&text) {
        let name = document["metadata"]["name"].as_str().unwrap().to_owned();
        if document["kind"] == "Organization" {
            let wanted: Organization = serde_json::from_value(document).unwrap();
            let all: Api<Organization> = Api::all(host.client.clone());
            let stored = all.patch(&name, &params, &Patch::Apply(&wanted)).await.unwrap();
            assert_eq!(stored.spec, wanted.spec, "nothing was pruned or defaulted");
            assert_eq!(berth_quota::validate_organization(&stored), Ok(()));
            organizations += 1;
        } else {
            let wanted: Project = serde_json::from_value(document).unwrap();
            let all: Api<Project> = Api::all(host.client.clone());
            let stored = all.patch(&name, &params, &Patch::Apply(&wanted)).await.unwrap();
            assert_eq!(stored.spec, wanted.spec, "nothing was pruned or defaulted");
            projects += 1;
        }
    }
    assert_eq!((organizations, projects), (1, 3));
}

/// The tenants of a namespace. An API server that has just learned of a kind rejects lists for a moment.
async fn list_tenants(host: &TestCluster, namespace: &str) -> Vec<TenantCluster> {
    let tenants = host.tenants(namespace);
    until("the tenants are listed", SOON, async || {
        let list = tenants.list(&ListParams::default()).await;
        list.map(|list| list.items).map_err(|error| error.to_string())
    })
    .await
}

/// Names of the tenants in a namespace that have a reservation.
async fn reserved(host: &TestCluster, namespace: &str) -> BTreeSet<String> {
    let tenants = list_tenants(host, namespace).await;
    let reserved = tenants.into_iter().filter(|cluster| {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| status.quota.is_some())
    });
    reserved.map(|cluster| cluster.name_any()).collect()
}

/// Names of the tenants of a namespace for which something exists on the host.
async fn built(host: &TestCluster, namespace: &str) -> BTreeSet<String> {
    let all: Api<Namespace> = Api::all(host.client.clone());
    let ours = ListParams::default().labels(&format!("{}={namespace}", labels::TENANT_NAMESPACE));
    let names = all.list(&ours).await.unwrap().items.into_iter();
    names
        .filter_map(|namespace| namespace.labels().get(labels::TENANT_NAME).cloned())
        .collect()
}

/// The reason of a tenant's condition QuotaReserved.
fn quota_reason(cluster: &TenantCluster) -> Option<String> {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let mut found = conditions.filter(|condition| condition.type_ == conditions::QUOTA_RESERVED);
    found.next().map(|condition| condition.reason.clone())
}

/// Waits until every tenant of a namespace has a decision; then as many as the quota allows have it, and the others say why not.
async fn until_decided(host: &TestCluster, namespace: &str) -> BTreeSet<String> {
    until("every tenant has a decision", SOON, async || {
        let tenants = list_tenants(host, namespace).await;
        let waiting = tenants
            .iter()
            .filter(|cluster| quota_reason(cluster).as_deref() == Some("QuotaExceeded"));
        let waiting = waiting.count();
        let reserved = reserved(host, namespace).await;
        // Never more, at no time.
        assert!(reserved.len() <= QUOTA, "{reserved:?}");
        if waiting == tenants.len() - QUOTA && reserved.len() == QUOTA {
            Ok(reserved)
        } else {
            Err(format!("{waiting} of {} wait, {reserved:?} do not", tenants.len()))
        }
    })
    .await
}

async fn until_reserved(host: &TestCluster, name: &str, reserved: u64, waiting: u32) {
    let projects: Api<Project> = Api::all(host.client.clone());
    until(&format!("Project {name} has reserved {reserved}"), SOON, async || {
        let project = projects.get(name).await.map_err(|error| error.to_string())?;
        let status = project.status.unwrap_or_default();
        let is_as_expected = status.quotas.first().map(|quota| quota.reserved) == Some(reserved)
            && status.waiting_tenants == Some(waiting)
            && status.observed_generation == project.metadata.generation;
        if is_as_expected {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
}

/// Waits until control has recorded that these tenants of a namespace exist.
async fn until_built(host: &TestCluster, namespace: &str, names: &BTreeSet<String>) {
    let tenants = host.tenants(namespace);
    for name in names {
        until_true(&format!("{name} exists"), SOON, async || {
            let status = tenants.get_status(name).await.ok().and_then(|cluster| cluster.status);
            status.is_some_and(|status| status.control_plane_namespace.is_some())
        })
        .await;
    }
}

/// Waits until as many tenants of a namespace wait for their next Project.
async fn until_left(host: &TestCluster, namespace: &str, count: usize) {
    until("tenants wait for their next Project", SOON, async || {
        let tenants = list_tenants(host, namespace).await;
        let waiting = tenants
            .iter()
            .filter(|cluster| quota_reason(cluster).as_deref() == Some("LeftProject"));
        let waiting = waiting.count();
        if waiting == count {
            Ok(())
        } else {
            Err(format!("{waiting} of {}", tenants.len()))
        }
    })
    .await;
}

async fn create_at_once(host: &TestCluster, namespace: &str, count: usize) {
    let tenants = host.tenants(namespace);
    let created = (0..count).map(|number| {
        let tenants = tenants.clone();
        let tenant = cluster(&format!("t{number}"), &[]);
        async move { tenants.create(&PostParams::default(), &tenant).await }
    });
    for result in join_all(created).await {
        result.unwrap();
    }
}

pub(crate) async fn many_tenants_at_once_and_another_leader_do_not_exceed_the_quota(host: Arc<TestCluster>) {
    let (first, second) = ("quota-a", "quota-b");
    for namespace in [first, second] {
        ensure_namespace(&host.client, namespace).await;
    }
    for project in [project(first, &[first], QUOTA), project(second, &[second], 0)] {
        apply(&host.client, "", &project).await.unwrap();
    }
    // Another control waits for the lease. The leader is killed in the middle, and the other decides.
    host.start_control("second").await;
    let change_leader = async {
        until_true("a tenant has a reservation", SOON, async || {
            !reserved(&host, first).await.is_empty()
        })
        .await;
        host.stop_control("first").await;
    };
    tokio::join!(create_at_once(&host, first, AT_ONCE), change_leader);
    create_at_once(&host, second, 1).await;
    let running = until_decided(&host, first).await;
    until_reserved(&host, second, 0, 1).await;
    let (built_in_first, built_in_second) = (built(&host, first).await, built(&host, second).await);
    assert!(built_in_first.is_subset(&running), "{built_in_first:?} {running:?}");
    assert!(built_in_second.is_empty(), "{built_in_second:?}");
    // The next leader reads the reservations of both before it.
    host.start_control("first").await;
    host.stop_control("second").await;

    // The namespace goes to the other Project. Those that run count there, and leave no room. In between no Project names it, and none of
    // those that wait gets through.
    until_built(&host, first, &running).await;
    apply(&host.client, "", &project(first, &[], QUOTA)).await.unwrap();
    let waiting = u32::try_from(AT_ONCE - QUOTA).unwrap();
    until_left(&host, first, AT_ONCE - QUOTA).await;
    until_reserved(&host, first, 0, 0).await;
    let moved = project(second, &[second, first], QUOTA);
    apply(&host.client, "", &moved).await.unwrap();
    until_reserved(&host, second, QUOTA as u64, 1 + waiting).await;
    assert_eq!(until_decided(&host, first).await, running);
    let (built_in_first, built_in_second) = (built(&host, first).await, built(&host, second).await);
    assert!(built_in_first.is_subset(&running), "{built_in_first:?} {running:?}");
    assert!(built_in_second.is_empty(), "{built_in_second:?}");

    // Those that wait must not get what the others leave.
    delete_others(&host, first, &running).await;
    clean_up(&host, &[first, second]).await;
}

/// Deletes the tenants of a namespace that are not in `kept`.
async fn delete_others(host: &TestCluster, namespace: &str, kept: &BTreeSet<String>) {
    let tenants = host.tenants(namespace);
    for cluster in list_tenants(host, namespace).await {
        if !kept.contains(&cluster.name_any()) {
            tenants
                .delete(&cluster.name_any(), &DeleteParams::default())
                .await
                .unwrap();
        }
    }
}

/// Deletes all tenants of the namespaces, and then the Projects of the same names.
async fn clean_up(host: &TestCluster, names: &[&str]) {
    // The one that waits must not get what the others leave.
    for name in names.iter().rev() {
        let left: Vec<String> = list_tenants(host, name)
            .await
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        delete_others(host, name, &BTreeSet::new()).await;
        for tenant in left {
            until_gone(host, name, &tenant).await;
        }
    }
    let projects: Api<Project> = Api::all(host.client.clone());
    for name in names {
        projects.delete(name, &DeleteParams::default()).await.unwrap();
    }
}
