//! What is reserved for tenants stays reserved while it exists: when a class gets smaller, and when a Project is deleted.

use berth_api::{Project, QuotaReservation, conditions, labels};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{ResourceQuota, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use std::{ops::RangeInclusive, sync::Arc};

/// The name of the host's ResourceQuota for Services.
const SERVICES: &str = "count/services";

fn project(name: &str, resource: &str, amount: u32) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
        "spec": {
            "namespaces": [name],
            "quotas": [{"resource": resource, "nominalQuota": amount, "borrowingLimit": 0}],
        },
    })
}

async fn set_service_limit(host: &TestCluster, class: &str, services: u64) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": class},
        "spec": {"limits": {"services": services}}});
    apply(&host.client, "", &class).await.unwrap();
}

/// Services that the host counts for a tenant, once they are so many.
async fn until_counted(quotas: &Api<ResourceQuota>, at_least: u64) -> u64 {
    until(&format!("the host counts {at_least} Services"), SOON, async || {
        let quota = quotas.get("berth-limits").await.map_err(|error| error.to_string())?;
        let used = quota.status.and_then(|status| status.used).unwrap_or_default();
        let count = used.get(SERVICES).and_then(|count| count.0.parse::<u64>().ok());
        count
            .filter(|count| *count >= at_least)
            .ok_or_else(|| format!("{used:?}"))
    })
    .await
}

/// Waits until the host lets a tenant have so many Services.
async fn until_limited(quotas: &Api<ResourceQuota>, expected: RangeInclusive<u64>) {
    until(&format!("the host allows {expected:?} Services"), SOON, async || {
        let quota = quotas.get("berth-limits").await.map_err(|error| error.to_string())?;
        let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
        let limit = hard.get(SERVICES).and_then(|limit| limit.0.parse::<u64>().ok());
        if limit.is_some_and(|limit| expected.contains(&limit)) {
            Ok(())
        } else {
            Err(format!("{hard:?}"))
        }
    })
    .await;
}

/// Waits until this many Services are reserved for a tenant, and this many of them above its limit.
async fn until_reserved(host: &TestCluster, name: &str, reserved: u64, above: Option<u64>) {
    until(&format!("{reserved} Services are reserved"), SOON, async || {
        let cluster = host.tenants(name).get(name).await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        let QuotaReservation {
            project_name: _,
            reserved: amounts,
            above_limits,
            uncounted: _,
        } = status.quota.unwrap_or_default();
        let found = (amounts.get("services").copied(), above_limits.get("services").copied());
        if found == (Some(reserved), above) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

pub(crate) async fn what_exists_stays_reserved_when_a_class_gets_smaller(host: Arc<TestCluster>) {
    let name = "quota-kept";
    set_service_limit(&host, name, 8).await;
    apply(&host.client, "", &project(name, "services", 8)).await.unwrap();
    let mut wanted = cluster(name, &[]);
    wanted.spec.class_name = Some(name.into());
    let tenant = Tenant::create(&host, name, &wanted).await;
    until_reserved(&host, name, 8, None).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let before = until_counted(&quotas, 0).await;
    let services: Api<Service> = Api::namespaced(tenant.client.clone(), "default");
    let names: Vec<String> = (0..3).map(|number| format!("s{number}")).collect();
    for name in &names {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}});
        let service: Service = serde_json::from_value(service).unwrap();
        services.create(&PostParams::default(), &service).await.unwrap();
    }
    let exist = until_counted(&quotas, before + 3).await;
    a_lowered_quota_stops_growth(&host, name, &quotas, &services, exist).await;

    // The smaller class lets the tenant have one more than without them.
    let limit = before + 1;
    set_service_limit(&host, name, limit).await;
    until_reserved(&host, name, exist, Some(exist - limit)).await;
    until_quota_reason(&host, name, name, "AboveLimits").await;
    for name in &names {
        services.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until_reserved(&host, name, limit, None).await;

    tenant.delete(&host).await;
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(name, &DeleteParams::default()).await.unwrap();
}

/// A quota below what the tenant uses: what exists stays, and nothing is added until the quota is raised again.
async fn a_lowered_quota_stops_growth(
    host: &TestCluster,
    name: &str,
    quotas: &Api<ResourceQuota>,
    services: &Api<Service>,
    exist: u64,
) {
    until_limited(quotas, 8..=8).await;
    apply(&host.client, "", &project(name, "services", 1)).await.unwrap();
    until_limited(quotas, 0..=exist).await;
    until_quota_reason(host, name, name, "OverQuota").await;
    let service = json!({"metadata": {"name": "more"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}});
    let service: Service = serde_json::from_value(service).unwrap();
    let denied = services.create(&PostParams::default(), &service).await;
    denied.expect_err("it has as many as it may");
    assert_eq!(until_counted(quotas, exist).await, exist);
    apply(&host.client, "", &project(name, "services", 8)).await.unwrap();
    until_limited(quotas, 8..=8).await;
}

pub(crate) async fn a_project_is_deleted_after_its_tenants(host: Arc<TestCluster>) {
    let name = "quota-deleted";
    ensure_namespace(&host.client, name).await;
    apply(&host.client, "", &project(name, "tenantclusters", 1))
        .await
        .unwrap();
    let tenants = host.tenants(name);
    for tenant in ["first", "second"] {
        tenants
            .create(&PostParams::default(), &cluster(tenant, &[]))
            .await
            .unwrap();
        let reason = if tenant == "first" { "Reserved" } else { "QuotaExceeded" };
        until_quota_reason(&host, name, tenant, reason).await;
    }
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(name, &DeleteParams::default()).await.unwrap();
    let waiting = until("the deletion waits", SOON, async || {
        let project = projects.get(name).await.map_err(|error| error.to_string())?;
        let all = project.status.clone().unwrap_or_default().conditions;
        let deleting = all.iter().find(|condition| condition.type_ == conditions::DELETING);
        let message = deleting.map(|condition| condition.message.clone());
        message
            .map(|message| (project, message))
            .ok_or_else(|| format!("{all:?}"))
    })
    .await;
    let (project, message) = waiting;
    assert!(
        message.contains("quota-deleted/first, quota-deleted/second"),
        "{message}"
    );
    assert!(project.finalizers().iter().any(|name| name == labels::QUOTA_FINALIZER));

    // Its quota applies: the one that waits gets nothing.
    until_quota_reason(&host, name, "second", "QuotaExceeded").await;
    let second = tenants.get("second").await.unwrap();
    assert_eq!(second.status.and_then(|status| status.quota), None);
    for tenant in ["second", "first"] {
        tenants.delete(tenant, &DeleteParams::default()).await.unwrap();
        until_gone(&host, name, tenant).await;
    }
    until("the Project is gone", SOON, async || {
        match projects.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(project)) => Err(format!("{project:?}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}

/// Waits until the condition QuotaReserved of a tenant has a reason.
async fn until_quota_reason(host: &TestCluster, namespace: &str, name: &str, expected: &str) {
    until(&format!("{name} has the reason {expected}"), SOON, async || {
        let cluster = host.tenants(namespace).get(name).await;
        let status = cluster.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let mut reasons = status
            .conditions
            .into_iter()
            .filter(|condition| condition.type_ == conditions::QUOTA_RESERVED)
            .map(|condition| condition.reason);
        match reasons.next() {
            Some(reason) if reason == expected => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
