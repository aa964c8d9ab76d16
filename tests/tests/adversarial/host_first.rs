//! A team that changes its `TenantCluster` all the time: no rule of the platform waits until it has finished.

use berth_api::{LIMITS_NAME, SleepState, TENANT_SCHEDULE, TenantCluster, TenantSchedule};
use berth_tests::{
    objects::apply,
    sleep::until_state,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const NAME: &str = "restless";

/// Changes the object of the tenant fifty times a second, for ever.
async fn change_all_the_time(tenants: Api<TenantCluster>) {
    for number in 0_u64.. {
        let note = json!({"metadata": {"annotations": {"team.example.com/note": number.to_string()}}});
        // One that fails is not missed.
        let _ = tenants.patch(NAME, &PatchParams::default(), &Patch::Merge(&note)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn stop(namespace: &str) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "SchedulePolicy", "metadata": {"name": NAME},
        "spec": {
            "timeZone": "UTC", "targets": [{"kind": "TenantCluster", "namespace": namespace, "name": NAME}],
            "windows": [{"name": "always", "action": "Stop", "schedule": "0 0 * * *", "duration": "24h"}],
        },
    })
}

/// The team asks for sleep at the same time: each state of it is recorded before anything is done for it.
pub(crate) async fn a_team_that_changes_its_object_all_the_time_keeps_no_rule_away(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "adv-restless", &cluster(NAME, &[])).await;
    let changes = tokio::spawn(change_all_the_time(host.tenants(&tenant.namespace)));
    let set_mode = async |mode: &str| {
        let spec = json!({"sleep": {"mode": mode}});
        host.patch_tenant(&tenant.namespace, NAME, &spec).await;
    };
    set_mode("Asleep").await;
    apply(&host.client, "", &stop(&tenant.namespace)).await.unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    until_true("the host lets no pod start", SOON, async || {
        let quota = quotas.get(LIMITS_NAME).await.ok();
        let hard = quota.and_then(|quota| quota.spec?.hard);
        hard.is_some_and(|hard| hard.get("count/pods").is_some_and(|pods| pods.0 == "0"))
    })
    .await;
    let schedules: Api<TenantSchedule> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    until_true("the stop of the policy is published", SOON, async || {
        let schedule = schedules.get(TENANT_SCHEDULE).await.ok();
        let periods = schedule.map(|schedule| schedule.spec.tenant).unwrap_or_default();
        periods.iter().any(|period| period.policy_name.as_deref() == Some(NAME))
    })
    .await;
    until_state(&host, &tenant, SleepState::Sleeping).await;
    set_mode("Awake").await;
    until_state(&host, &tenant, SleepState::Awake).await;
    changes.abort();
    let policies: Api<berth_api::SchedulePolicy> = Api::all(host.client.clone());
    policies.delete(NAME, &DeleteParams::default()).await.unwrap();
    tenant.delete(&host).await;
}
