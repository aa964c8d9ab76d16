//! Claims of devices of users with limits: a pod gets the claim that was counted, and no larger one of the same name.

use crate::user_quotas::{PODS, is_gated, pod, project, request, until_pods_can_be_created};
use berth_api::{Project, TenantClass, conditions::USER_LIMIT_EXCEEDED};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAME: &str = "user-claims";
const CLASS: &str = "gpu.example.com";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

fn claim(devices: i64) -> Value {
    let exactly = json!({"deviceClassName": CLASS, "count": devices});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "devices"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    })
}

/// What the host has of the only pod and the only claim of a tenant.
struct Seen {
    /// Whether the pod has its gate.
    is_gated: Option<bool>,
    devices: Option<i64>,
}

async fn look(host: &Client, namespace: &str) -> Seen {
    let pods: Api<Pod> = Api::namespaced(host.clone(), namespace);
    let claims: Api<ResourceClaim> = Api::namespaced(host.clone(), namespace);
    // The claim first: what is found afterwards of the pod was not better before.
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let count = |claim: &ResourceClaim| {
        let requests = claim.spec.as_ref()?.devices.as_ref()?.requests.as_ref()?;
        requests.first()?.exactly.as_ref()?.count
    };
    Seen {
        is_gated: pods.first().map(is_gated),
        devices: claims.first().and_then(count),
    }
}

pub(crate) async fn a_claim_that_is_replaced_by_a_larger_one_counts_before_its_pod_starts(host: Arc<TestCluster>) {
    let resource = format!("{CLASS}.deviceclass.resource.k8s.io/devices");
    let limits = json!([{"user": "*", "limits": [{"resource": resource, "limit": 2}]}]);
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"sync": {"devices": {"classes": [CLASS]}}}});
    for object in [&project(NAME, &limits), &class] {
        apply(&host.client, "", object).await.unwrap();
    }
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAME, &wanted).await;
    until_pods_can_be_created(&tenant).await;
    let (client, namespace) = (&tenant.client, tenant.id.workload_namespace());

    // Without nodes it waits for the scheduler.
    let mut with_claim = pod("train");
    with_claim["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimName": "devices"}]);
    request(client, "alice", "POST", CLAIMS, &claim(1)).await.unwrap();
    request(client, "alice", "POST", PODS, &with_claim).await.unwrap();
    until_true("the pod may start", SOON, async || {
        let seen = look(&host.client, &namespace).await;
        seen.is_gated == Some(false) && seen.devices == Some(1)
    })
    .await;

    let path = format!("{CLAIMS}/devices");
    request(client, "alice", "DELETE", &path, &json!({})).await.unwrap();
    request(client, "alice", "POST", CLAIMS, &claim(8)).await.unwrap();
    until_true("the pod waits with the new claim", SOON, async || {
        let seen = look(&host.client, &namespace).await;
        assert!(
            seen.devices != Some(8) || seen.is_gated != Some(false),
            "the pod may start with a claim that was not counted"
        );
        seen.devices == Some(8) && seen.is_gated == Some(true)
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until_true("the pod says why", SOON, async || {
        let status = pods.get("train").await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == USER_LIMIT_EXCEEDED && condition.status == "True")
    })
    .await;

    // One that fits lets it start.
    request(client, "alice", "DELETE", &path, &json!({})).await.unwrap();
    request(client, "alice", "POST", CLAIMS, &claim(2)).await.unwrap();
    until_true("the pod may start again", SOON, async || {
        let seen = look(&host.client, &namespace).await;
        seen.is_gated == Some(false) && seen.devices == Some(2)
    })
    .await;

    tenant.delete(&host).await;
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(NAME, &DeleteParams::default()).await.unwrap();
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}
