//! The platform's rules: which class applies, what it allows, and that a class that changes or vanishes takes nothing
//! down.

use berth_api::{Phase, TenantClass, TenantCluster, conditions, labels, sync_policy::PriorityBand};
use berth_control::control_plane::{API_SERVER, SCHEDULER, SYNCER};
use berth_kubernetes_versions::KUBERNETES_PREVIOUS;
use berth_tests::{
    files::example,
    objects::{apply, gpu_pod},
    processes,
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Pod},
    rbac::v1::Role,
    scheduling::v1::PriorityClass,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

fn class(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name}, "spec": spec})
}

fn of_class(name: &str, class: &str) -> TenantCluster {
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
async fn until_class(host: &TestCluster, name: &str, reason: &str, tenants: u32) -> String {
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

pub(crate) async fn schemas_reject_invalid_rules(host: Arc<TestCluster>) {
    let refused = [
        (class("1st", &json!({})), "starts with a letter"),
        (class("c", &json!({"versions": ["1.37.1"]})), "spec.versions[0]"),
        (
            class("c", &json!({"versions": ["v1.37.1", "v1.37.1"]})),
            "duplicate entries",
        ),
        (class("c", &json!({"schedulingMode": "Nobody"})), "schedulingMode"),
        (
            class("c", &json!({"network": {"endpointCIDRs": ["10.0.0.0/33"]}})),
            "must be a network",
        ),
        (
            class("c", &json!({"network": {"blockedCIDRs": ["10.0.0.1"]}})),
            "must be a network",
        ),
        (
            class(
                "c",
                &json!({"sync": {"pods": {"priority": {"lowest": 5, "highest": 5}}}}),
            ),
            "lowest must be less than highest",
        ),
        (
            class("c", &json!({"sync": {"ingress": {"hostnames": ["*.*.example.com"]}}})),
            "spec.sync.ingress.hostnames[0]",
        ),
        (
            class(
                "c",
                &json!({"sync": {"ingress": {"hostnames": ["*.{team}.example.com"]}}}),
            ),
            "placeholders in hostnames are {tenant} and {namespace}",
        ),
        (
            class(
                "c",
                &json!({"sync": {"ingress": {"hostnames": ["app-{tenant}.example.com"]}}}),
            ),
            "placeholders in hostnames are {tenant} and {namespace}",
        ),
        (
            class(
                "c",
                &json!({"idleReclaim": {"lastStep": "StopOwner", "ownerKinds": []}}),
            ),
            "needs at least one kind",
        ),
        (
            class(
                "c",
                &json!({"idleReclaim": {"ownerKinds": [{"group": "apps", "kind": "DaemonSet"}]}}),
            ),
            "can be stopped",
        ),
        (class("c", &json!({"idleReclaim": {"lastStep": "Delete"}})), "lastStep"),
    ];
    for (object, expected) in refused.into_iter().chain(invalid_owner_kinds()) {
        let error = apply(&host.client, "", &object)
            .await
            .expect_err(&object.to_string())
            .to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
}

/// Classes that list kinds of owners in a way that is not valid, and what the message says.
fn invalid_owner_kinds() -> Vec<(Value, &'static str)> {
    vec![
        (
            owner_kind("batch", "Job", &json!({"path": "spec.suspend"})),
            "of Kubernetes itself are stopped is known",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({})),
            "set one of path and annotation",
        ),
        (
            owner_kind(
                "ray.io",
                "RayCluster",
                &json!({"path": "spec.suspend", "annotation": "stop"}),
            ),
            "set one of path and annotation",
        ),
        (
            owner_kind(
                "ray.io",
                "RayCluster",
                &json!({"path": "spec.suspend", "value": "true"}),
            ),
            "is the value of an annotation",
        ),
        (
            owner_kind("ray.io", "RayCluster", &json!({"path": "metadata.labels"})),
            "suspend.path",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({"annotation": "berth.dev/restore"})),
            "are Berth's own",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({"annotation": "a/b/c"})),
            "suspend.annotation",
        ),
    ]
}

/// A class that lists a kind of owners.
fn owner_kind(group: &str, kind: &str, suspend: &Value) -> Value {
    let owner_kind = json!({"group": group, "kind": kind, "suspend": suspend});
    class("c", &json!({"idleReclaim": {"ownerKinds": [owner_kind]}}))
}

pub(crate) async fn the_examples_are_valid(host: Arc<TestCluster>) {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let params = PatchParams::apply("berth-tests").dry_run();
    for file in ["default", "training", "serving", "research"] {
        for class in example::<TenantClass>(&format!("classes/{file}.yaml")) {
            assert_eq!(class.name_any(), file);
            let stored = classes.patch(file, &params, &Patch::Apply(&class)).await.unwrap();
            assert_eq!(stored.spec, class.spec, "nothing was pruned or defaulted");
            assert_eq!(berth_control::controllers::tenant_class::validate(&class.spec), Ok(()));
        }
    }
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
    let other = json!({"spec": {"className": null}});
    host.tenants("class-change")
        .patch("gold", &PatchParams::default(), &Patch::Merge(&other))
        .await
        .unwrap();
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

    let by_host = json!({"spec": {"schedulingMode": "Host"}});
    host.tenants("class-scheduler")
        .patch("own", &PatchParams::default(), &Patch::Merge(&by_host))
        .await
        .unwrap();
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

pub(crate) async fn additional_kinds_need_a_definition_and_permissions(host: Arc<TestCluster>) {
    let kind = |name: &str, group: &str, version: &str, kind: &str, plural: &str| {
        let kinds = json!([{"group": group, "version": version, "kind": kind, "resource": plural}]);
        class(name, &json!({"sync": {"kinds": kinds}}))
    };
    for (object, reason, expected) in [
        (
            kind("gangs", "scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
            "Ready",
            "can use",
        ),
        (
            kind("absent", "scheduling.k8s.io", "v1", "PodGroup", "podgroups"),
            "KindNotServed",
            "tenants run without it",
        ),
        (
            kind(
                "rights",
                "rbac.authorization.k8s.io",
                "v1",
                "RoleBinding",
                "rolebindings",
            ),
            "InvalidRules",
            "decide on rights",
        ),
        (
            kind("denied", "batch", "v1", "CronJob", "cronjobs"),
            "KindNotPermitted",
            "berth.dev/aggregate-to-control",
        ),
    ] {
        apply(&host.client, "", &object).await.unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let message = until_class(&host, name, reason, 0).await;
        assert!(message.contains(expected), "{message}");
    }
    // A class with a kind that cannot be synced does not keep its tenants from running; one that can be is in the role.
    let denied = Tenant::create(&host, "class-kinds", &of_class("denied", "denied")).await;
    let gangs = Tenant::create(&host, "class-kinds", &of_class("gangs", "gangs")).await;
    for (tenant, resource, expected) in [(&denied, "cronjobs", false), (&gangs, "podgroups", true)] {
        let roles: Api<Role> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        let rules = roles.get(SYNCER).await.unwrap().rules.unwrap_or_default();
        let granted = rules
            .iter()
            .any(|rule| rule.resources.iter().flatten().any(|name| name == resource));
        assert_eq!(granted, expected, "{resource}: {rules:?}");
    }
    // The tenant's API server serves groups of pods, too: the scheduler knows them.
    let served = gangs.client.list_api_group_resources("scheduling.k8s.io/v1beta1").await;
    let served = served.unwrap().resources;
    assert!(served.iter().any(|resource| resource.name == "podgroups"), "{served:?}");
    denied.delete(&host).await;
    gangs.delete(&host).await;
}

pub(crate) async fn a_kind_of_the_host_is_defined_in_the_tenant(host: Arc<TestCluster>) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gangs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gangs", "singular": "gang", "kind": "Gang", "listKind": "GangList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    });
    let kinds = json!([{"group": "example.com", "version": "v1", "kind": "Gang", "resource": "gangs"}]);
    apply(&host.client, "", &class("crd", &json!({"sync": {"kinds": kinds}})))
        .await
        .unwrap();
    until_class(&host, "crd", "KindNotPermitted", 0).await;
    let rights = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "gangs-for-tenants", "labels": {"berth.dev/aggregate-to-control": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["gangs", "gangs/status"],
                   "verbs": ["get", "list", "watch", "create", "patch", "delete"]}],
    });
    apply(&host.client, "", &rights).await.unwrap();
    until_class(&host, "crd", "KindNotServed", 0).await;
    let tenant = Tenant::create(&host, "class-crd", &of_class("crd", "crd")).await;
    // From here on everything follows by itself.
    apply(&host.client, "", &definition).await.unwrap();
    until_class(&host, "crd", "Ready", 1).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    until_true("the tenant has the definition", SOON, async || {
        definitions.get_opt("gangs.example.com").await.unwrap().is_some()
    })
    .await;
    let roles: Api<Role> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    until_true("the syncer has the rights", SOON, async || {
        let rules = roles.get(SYNCER).await.unwrap().rules.unwrap_or_default();
        rules
            .iter()
            .any(|rule| rule.resources.iter().flatten().any(|name| name == "gangs"))
    })
    .await;
    let gang =
        json!({"apiVersion": "example.com/v1", "kind": "Gang", "metadata": {"name": "one"}, "spec": {"size": 4}});
    until("the tenant accepts objects of the kind", SOON, async || {
        apply(&tenant.client, "default", &gang).await
    })
    .await;
    tenant.delete(&host).await;
}
