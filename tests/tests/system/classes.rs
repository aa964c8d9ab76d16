//! The platform's rules: which class applies, what it allows, and that a class that changes or vanishes takes nothing
//! down.

use berth_api::{Phase, TenantClass, TenantCluster, conditions, labels, sync_policy::PriorityBand};
use berth_control::control_plane::{API_SERVER, SCHEDULER, SYNCER};
use berth_kubernetes_versions::KUBERNETES_PREVIOUS;
use berth_tests::{
    objects::{apply, gpu_pod},
    processes,
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Pod},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) fn class(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn of_class(name: &str, class: &str) -> TenantCluster {
    let mut cluster = cluster(name, &[]);
    cluster.spec.class_name = Some(class.into());
    cluster
}

/// Waits until a tenant's condition Accepted has a reason; returns its message.
async fn until_accepted(host: &TestCluster, namespace: &str, name: &str, reason: &str) -> (TenantCluster, String) {
    let tenants = host.tenants(namespace);
    until(&format!("{name} has the reason {reason}"), SOON, async || {
        let cluster = tenants.get(name).await.map_err(|error| error.to_string())?;
        let status = cluster.status.clone().unwrap_or_default();
        match status.conditions.iter().find(|c| c.type_ == conditions::ACCEPTED) {
            Some(condition) if condition.reason == reason => Ok((cluster, condition.message.clone())),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until a class's condition Ready has a reason, and it counts its tenants; returns the condition's message.
pub(crate) async fn until_class(host: &TestCluster, name: &str, reason: &str, tenants: u32) -> String {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    until(
        &format!("class {name} is {reason} and has {tenants} tenants"),
        SOON,
        async || {
            let status = classes
                .get(name)
                .await
                .map_err(|error| error.to_string())?
                .status
                .unwrap_or_default();
            match status.conditions.iter().find(|c| c.type_ == conditions::READY) {
                Some(condition) if condition.reason == reason && status.tenants == Some(tenants) => {
                    Ok(condition.message.clone())
                }
                other => Err(format!("{other:?} {:?}", status.tenants)),
            }
        },
    )
    .await
}

fn pid(host: &TestCluster, tenant: &Tenant, component: &str) -> u32 {
    let name = format!("{}.{component}", tenant.id.slug());
    processes::find(&host.tenant_records(), &name).unwrap().pid.unwrap()
}

fn policy(host: &TestCluster, tenant: &Tenant) -> Value {
    let file = host
        .home()
        .tenants()
        .join(tenant.id.hash())
        .join(SYNCER)
        .join("policy.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

pub(crate) async fn spec_that_the_class_forbids_is_reported_and_creates_nothing(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "class-refuse").await;
    apply(
        &host.client,
        "",
        &class("older", &json!({"versions": [KUBERNETES_PREVIOUS]})),
    )
    .await
    .unwrap();
    let tenants = host.tenants("class-refuse");
    for (name, class, reason, expected) in [
        (
            "stray",
            "nowhere",
            "UnknownClass",
            "there is no TenantClass \"nowhere\"",
        ),
        ("newer", "older", "VersionNotAllowed", KUBERNETES_PREVIOUS),
    ] {
        let created = tenants
            .create(&PostParams::default(), &of_class(name, class))
            .await
            .unwrap();
        let (refused, message) = until_accepted(&host, "class-refuse", name, reason).await;
        assert!(message.contains(expected), "{message}");
        assert_eq!(refused.status.unwrap().phase, Some(Phase::Pending));
        let id = berth_api::names::TenantId::new(name, &created.metadata.uid.unwrap());
        let namespaces: Api<Namespace> = Api::all(host.client.clone());
        assert!(
            namespaces
                .get_opt(&id.control_plane_namespace())
                .await
                .unwrap()
                .is_none()
        );
        tenants.delete(name, &DeleteParams::default()).await.unwrap();
    }
    // A class that comes later brings the tenant to life by itself.
    tenants
        .create(&PostParams::default(), &of_class("early", "late"))
        .await
        .unwrap();
    until_accepted(&host, "class-refuse", "early", "UnknownClass").await;
    apply(&host.client, "", &class("late", &json!({}))).await.unwrap();
    let tenant = Tenant::ready(&host, "class-refuse", "early").await;
    until_class(&host, "late", "Ready", 1).await;
    tenant.delete(&host).await;
    until_class(&host, "late", "Ready", 0).await;
}

pub(crate) async fn changed_class_reaches_tenants_and_deleted_class_stops_none(host: Arc<TestCluster>) {
    let rules = |classes: &[&str]| class("gold", &json!({"sync": {"storage": {"classes": classes}}}));
    apply(&host.client, "", &rules(&["fast"])).await.unwrap();
    let tenant = Tenant::create(&host, "class-change", &of_class("gold", "gold")).await;
    assert_eq!(policy(&host, &tenant)["storage"]["classes"], json!(["fast"]));
    let (server, syncer) = (pid(&host, &tenant, API_SERVER), pid(&host, &tenant, SYNCER));

    apply(&host.client, "", &rules(&["fast", "slow"])).await.unwrap();
    until_true("the syncer has the new rules", SOON, async || {
        policy(&host, &tenant)["storage"]["classes"] == json!(["fast", "slow"])
            && processes::find(&host.tenant_records(), &format!("{}.{SYNCER}", tenant.id.slug()))
                .is_some_and(|process| process.pid.is_some_and(|pid| pid != syncer))
    })
    .await;
    assert_eq!(pid(&host, &tenant, API_SERVER), server, "only the syncer starts again");
    let tenant = Tenant::ready(&host, "class-change", "gold").await;

    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete("gold", &DeleteParams::default()).await.unwrap();
    let (orphaned, message) = until_accepted(&host, "class-change", "gold", "UnknownClass").await;
    assert!(message.contains("the tenant keeps its rules"), "{message}");
    assert_eq!(orphaned.status.unwrap().class_name.as_deref(), Some("gold"));
    assert_eq!(pid(&host, &tenant, API_SERVER), server);
    assert_eq!(policy(&host, &tenant)["storage"]["classes"], json!(["fast", "slow"]));
    // Control still maintains the tenant: it renews tokens, for example.
    let token = host.home().tenants().join(tenant.id.hash()).join(SYNCER).join("token");
    std::fs::remove_file(&token).unwrap();
    let touch = json!({"metadata": {"annotations": {"example.com/touched": "yes"}}});
    host.tenants("class-change")
        .patch("gold", &PatchParams::default(), &Patch::Merge(&touch))
        .await
        .unwrap();
    until_true("the syncer's token is there again", SOON, async || token.exists()).await;

    apply(&host.client, "", &rules(&[])).await.unwrap();
    let tenant = Tenant::ready(&host, "class-change", "gold").await;
    assert_eq!(policy(&host, &tenant)["storage"]["classes"], json!([]));
    // A tenant's spec leaves the class.
    host.patch_tenant("class-change", "gold", &json!({"className": null}))
        .await;
    until_class(&host, "gold", "Ready", 0).await;
    tenant.delete(&host).await;
}

pub(crate) async fn scheduler_runs_while_class_and_tenant_want_it(host: Arc<TestCluster>) {
    apply(
        &host.client,
        "",
        &class("own-scheduler", &json!({"schedulingMode": "Tenant"})),
    )
    .await
    .unwrap();
    let tenant = Tenant::create(&host, "class-scheduler", &of_class("own", "own-scheduler")).await;
    let name = format!("{}.{SCHEDULER}", tenant.id.slug());
    let scheduler = processes::find(&host.tenant_records(), &name).expect("a scheduler");
    assert!(scheduler.pid.is_some());
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("waits", 1)).await.unwrap();
    let events: Api<Event> = Api::namespaced(tenant.client.clone(), "default");
    until_true(
        "the tenant's scheduler, which sees no node, writes an Event on the pod",
        SOON,
        async || {
            events.list(&ListParams::default()).await.is_ok_and(|list| {
                let mut texts = list.iter().filter_map(|event| event.message.as_deref());
                texts.any(|text| text.contains("no nodes available"))
            })
        },
    )
    .await;

    host.patch_tenant("class-scheduler", "own", &json!({"schedulingMode": "Host"}))
        .await;
    until_true("the scheduler is stopped", SOON, async || {
        processes::find(&host.tenant_records(), &name).is_none()
    })
    .await;
    let folder = host.home().tenants().join(tenant.id.hash());
    until_true("its files are gone", SOON, async || !folder.join(SCHEDULER).exists()).await;
    let tenant = Tenant::ready(&host, "class-scheduler", "own").await;
    tenant.delete(&host).await;
}

pub(crate) async fn priority_classes_follow_the_band(host: Arc<TestCluster>) {
    let band = |priority: Value| class("band", &json!({"sync": {"pods": {"priority": priority}}}));
    let classes: Api<PriorityClass> = Api::all(host.client.clone());
    let ours = ListParams::default().labels(&format!("{}=band", labels::CLASS));
    let until_values = async |what: &str, wanted: &[i32]| {
        until_true(what, SOON, async || {
            let list = classes.list(&ours).await.unwrap();
            let values: BTreeSet<i32> = list.iter().map(|class| class.value.unwrap_or_default()).collect();
            let count = if wanted.is_empty() { 0 } else { 24 };
            list.items.len() == count && wanted.iter().all(|value| values.contains(value))
        })
        .await;
    };
    apply(&host.client, "", &band(json!({"lowest": 0, "highest": 1100})))
        .await
        .unwrap();
    until_values("there is one for each step", &[0, 100, 1100]).await;
    apply(&host.client, "", &band(json!({"lowest": -10, "highest": 100})))
        .await
        .unwrap();
    until_values("they have the new values", &[-10, 0, 100]).await;
    // One that is deleted by hand comes back.
    let name = PriorityBand::class_name("band", 3, true);
    classes.delete(&name, &DeleteParams::default()).await.unwrap();
    until_values("the deleted one is back", &[-10, 0, 100]).await;

    // As long as a tenant uses the rules, the PriorityClasses stay.
    let tenant = Tenant::create(&host, "class-band", &of_class("band", "band")).await;
    let tenant_classes: Api<TenantClass> = Api::all(host.client.clone());
    tenant_classes.delete("band", &DeleteParams::default()).await.unwrap();
    until_accepted(&host, "class-band", "band", "UnknownClass").await;
    assert_eq!(classes.list(&ours).await.unwrap().items.len(), 24);
    tenant.delete(&host).await;
    until_values("they go with the last tenant", &[]).await;
}
