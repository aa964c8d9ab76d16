//! TenantClusters of a user who may use every class and pool: the admission policies allow them in the same namespaces as
//! [`AllowedNamespaces::allows`], by which control decides.

use super::{
    dry_run, expect_denied,
    tenant_clusters::{USER, grant, request, rule},
};
use berth_api::{AllowedNamespaces, HostNodePool, TenantClass, TenantCluster};
use berth_tests::{
    objects::apply,
    tenant::patient,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const CLASS_DENIED: &str = "spec.className: the class (default if empty) does not allow this namespace";
const POOL_DENIED: &str = "spec.nodeGroups[].poolName: a pool does not allow this namespace";

/// The class and the pool that every namespace may use.
const OPEN: &str = "ns-open";
/// Those that none may use. They are created last.
const CLOSED: &str = "ns-closed";

/// Rules by the name of a class and of a pool.
fn cases() -> Vec<(&'static str, Value)> {
    let selecting = |selector: Value| json!({"from": "Selector", "selector": selector});
    let requiring = |requirement: Value| selecting(json!({"matchExpressions": [requirement]}));
    vec![
        (OPEN, json!({"from": "All"})),
        ("ns-defaulted", json!({})),
        ("ns-empty", selecting(json!({}))),
        ("ns-labels", selecting(json!({"matchLabels": {"team": "vision"}}))),
        (
            "ns-two-labels",
            selecting(json!({"matchLabels": {"team": "vision", "stage": "test"}})),
        ),
        (
            "ns-in",
            requiring(json!({"key": "team", "operator": "In", "values": ["vision", "speech"]})),
        ),
        (
            "ns-not-in",
            requiring(json!({"key": "team", "operator": "NotIn", "values": ["vision"]})),
        ),
        ("ns-exists", requiring(json!({"key": "stage", "operator": "Exists"}))),
        (
            "ns-does-not-exist",
            requiring(json!({"key": "stage", "operator": "DoesNotExist"})),
        ),
        (
            "ns-both",
            selecting(json!({
                "matchLabels": {"team": "vision"},
                "matchExpressions": [
                    {"key": "stage", "operator": "Exists"},
                    {"key": "stage", "operator": "NotIn", "values": ["test"]},
                ],
            })),
        ),
        (
            "ns-by-name",
            selecting(json!({"matchLabels": {"kubernetes.io/metadata.name": "adv-ns-bare"}})),
        ),
        (CLOSED, json!({"from": "None"})),
    ]
}

fn namespaces() -> [(&'static str, Value); 4] {
    [
        ("adv-ns-vision", json!({"team": "vision", "stage": "test"})),
        ("adv-ns-prod", json!({"team": "vision", "stage": "production"})),
        ("adv-ns-speech", json!({"team": "speech"})),
        ("adv-ns-bare", json!({})),
    ]
}

/// Creates a class and a pool for each case.
async fn create_rules(admin: &Client) {
    for (name, rule) in cases() {
        let object = |kind: &str, spec: Value| json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let class = object("TenantClass", json!({"allowedNamespaces": rule}));
        let pool = json!({"nodeSelector": {"example.com/pool": name}, "allowedNamespaces": rule});
        for object in [class, object("HostNodePool", pool)] {
            apply(admin, "", &object).await.unwrap();
        }
    }
}

/// Creates the namespaces, with rights on everything. Returns their labels as the API server stores them.
async fn create_namespaces(admin: &Client) -> BTreeMap<&'static str, BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (name, labels) in namespaces() {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        apply(admin, "", &namespace).await.unwrap();
        let rules = json!([
            rule("tenantclusters", "*", &[]),
            rule("tenantclasses", "use", &[]),
            rule("hostnodepools", "use", &[]),
        ]);
        grant(admin, name, "everything", &rules).await;
        let namespaces: Api<Namespace> = Api::all(admin.clone());
        found.insert(name, namespaces.get(name).await.unwrap().labels().clone());
    }
    found
}

pub(crate) async fn classes_and_pools_are_named_only_in_namespaces_that_they_allow(host: Arc<TestCluster>) {
    let admin = &host.client;
    let labels = create_namespaces(admin).await;
    create_rules(admin).await;
    let client = patient(&host.kubeconfig_for(USER, &[]).unwrap()).await;
    let of = |namespace: &str| Api::<TenantCluster>::namespaced(client.clone(), namespace);
    let create = async |namespace: &str, class: &str, pools: &[&str]| {
        of(namespace)
            .create(&dry_run(), &request("new", Some(class), pools))
            .await
    };
    // The API server compiles policies and reads their parameters some time after they were created, in order.
    until(
        "the user may create, and the policies know the last rules",
        SOON,
        async || {
            create("adv-ns-bare", OPEN, &[OPEN])
                .await
                .map_err(|error| error.to_string())?;
            for (class, pools) in [(CLOSED, &[][..]), (OPEN, &[CLOSED][..])] {
                if create("adv-ns-bare", class, pools).await.is_ok() {
                    return Err("what allows no namespace was allowed".to_owned());
                }
            }
            Ok(())
        },
    )
    .await;

    for (name, rule) in cases() {
        let rule: AllowedNamespaces = serde_json::from_value(rule).unwrap();
        for (&namespace, labels) in &labels {
            let by_class = create(namespace, name, &[]).await;
            let by_pool = create(namespace, OPEN, &[OPEN, name]).await;
            if rule.allows(Some(labels)) == Some(true) {
                assert!(
                    by_class.is_ok() && by_pool.is_ok(),
                    "{name} in {namespace}: {by_class:?} {by_pool:?}"
                );
            } else {
                expect_denied(CLASS_DENIED, by_class);
                expect_denied(POOL_DENIED, by_pool);
            }
        }
    }
    // What does not exist forbids nothing here. Control reports it.
    create("adv-ns-bare", "ns-nowhere", &["ns-nowhere"]).await.unwrap();

    changes(&host, &of("adv-ns-bare")).await;
    let classes: Api<TenantClass> = Api::all(admin.clone());
    let pools: Api<HostNodePool> = Api::all(admin.clone());
    for (name, _) in cases() {
        classes.delete(name, &DeleteParams::default()).await.unwrap();
        pools.delete(name, &DeleteParams::default()).await.unwrap();
    }
    for (namespace, _) in namespaces() {
        let api: Api<k8s_openapi::api::rbac::v1::RoleBinding> = Api::namespaced(admin.clone(), namespace);
        api.delete("everything", &DeleteParams::default()).await.unwrap();
    }
}

/// What the platform gave may be changed by the team; what it names anew must allow the namespace.
async fn changes(host: &TestCluster, clusters: &Api<TenantCluster>) {
    let by_admin = host.tenants("adv-ns-bare");
    let given = request("given", Some("ns-labels"), &["ns-labels"]);
    by_admin.create(&PostParams::default(), &given).await.unwrap();
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |patch: &Value| clusters.patch("given", &params, &Patch::Merge(patch)).await;
    let groups = |pools: &[&str]| json!({"spec": {"nodeGroups": request("given", None, pools).spec.node_groups}});
    for allowed in [
        json!({"metadata": {"labels": {"team": "a"}}}),
        json!({"spec": {"className": OPEN}}),
        groups(&["ns-labels", "ns-labels", OPEN]),
    ] {
        change(&allowed).await.unwrap();
    }
    expect_denied(CLASS_DENIED, change(&json!({"spec": {"className": CLOSED}})).await);
    expect_denied(POOL_DENIED, change(&groups(&["ns-labels", CLOSED])).await);
    by_admin.delete("given", &DeleteParams::default()).await.unwrap();
}
