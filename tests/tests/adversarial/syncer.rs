//! A syncer that is taken over: its host identity ends at its own namespaces, and the host itself refuses what would
//! leave a container.

use crate::shared::attacker;
use berth_api::{Organization, Project, TenantCluster, labels};
use berth_control::control_plane::SYNCER;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster, patient_with},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    batch::v1::Job,
    core::v1::{ConfigMap, LimitRange, Namespace, Node, Pod, ResourceQuota, Secret, Service, ServiceAccount},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, sync::Arc};

/// The ResourceQuota and the LimitRange of a workload namespace.
const LIMITS: &str = "berth-limits";
/// The platform's own namespace.
const SYSTEM: &str = "berth-system";

/// A client with the syncer's own kubeconfig and token.
pub(crate) async fn as_syncer(host: &TestCluster, tenant: &Tenant) -> Client {
    let file = host
        .home()
        .tenants()
        .join(tenant.id.hash())
        .join(SYNCER)
        .join("host.kubeconfig");
    patient_with(Kubeconfig::read_from(&file).unwrap()).await
}

fn forbidden<T>(what: &str, result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(error) => panic!("{what}: not refused as forbidden but: {error}"),
        Ok(_) => panic!("{what} was allowed"),
    }
}

async fn list<K>(api: Api<K>) -> kube::Result<usize>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    Ok(api.list(&ListParams::default()).await?.items.len())
}

pub(crate) async fn a_stolen_syncer_identity_ends_at_its_namespaces(host: Arc<TestCluster>) {
    let (ca, cb) = (cluster("syn-a", &[("a", "h100", 1)]), cluster("syn-b", &[]));
    let (a, b) = tokio::join!(
        Tenant::create(&host, "adv-syn", &ca),
        Tenant::create(&host, "adv-syn", &cb)
    );
    let client = as_syncer(&host, &a).await;
    let own = a.id.workload_namespace();
    assert!(
        list(Api::<Pod>::namespaced(client.clone(), &own)).await.is_ok(),
        "its own workloads are open to it"
    );

    for namespace in [
        b.id.workload_namespace(),
        b.id.control_plane_namespace(),
        "kube-system".into(),
        "default".into(),
        "adv-syn".into(),
    ] {
        forbidden(
            &format!("pods of {namespace}"),
            list(Api::<Pod>::namespaced(client.clone(), &namespace)).await,
        );
        forbidden(
            &format!("secrets of {namespace}"),
            list(Api::<Secret>::namespaced(client.clone(), &namespace)).await,
        );
    }
    let home = a.id.control_plane_namespace();
    forbidden(
        "its own tenant's keys",
        Api::<Secret>::namespaced(client.clone(), &home).get("pki").await,
    );
    forbidden(
        "config of the control plane",
        list(Api::<ConfigMap>::namespaced(client.clone(), &home)).await,
    );
    forbidden("all pods", list(Api::<Pod>::all(client.clone())).await);
    forbidden("all secrets", list(Api::<Secret>::all(client.clone())).await);
    forbidden("nodes", list(Api::<Node>::all(client.clone())).await);
    forbidden("namespaces", list(Api::<Namespace>::all(client.clone())).await);
    forbidden("tenants", list(Api::<TenantCluster>::all(client.clone())).await);
    let label = json!({"metadata": {"labels": {"berth.dev/tenant": a.id.slug()}}});
    let nodes: Api<Node> = Api::all(client.clone());
    forbidden(
        "a label on a node",
        nodes
            .patch("gpu-h100-01", &PatchParams::default(), &Patch::Merge(&label))
            .await,
    );
    changes_nothing_of_a_recycling(&host, &client, &a).await;
    changes_nothing_of_quotas(&host, &client, &a).await;
    let nodes: Api<berth_api::TenantNode> = Api::namespaced(client.clone(), &home);
    let made_up: berth_api::TenantNode = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantNode", "metadata": {"name": "x"},
        "spec": {"nodeName": "gpu-l40s-01", "poolName": "l40s", "nodeGroupName": "a"},
    }))
    .unwrap();
    forbidden(
        "a node of its own making",
        nodes.create(&PostParams::default(), &made_up).await,
    );
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &own);
    forbidden(
        "a token",
        accounts
            .create_token_request("default", &PostParams::default(), &TokenRequest::default())
            .await,
    );
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "more"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": SYNCER, "namespace": home}],
    });
    forbidden("more rights", apply(&client, &own, &role).await);
    // B's API server does not authenticate a token of the host.
    let at_b = b.kubeconfig.clone();
    let mut kubeconfig = Kubeconfig::from_yaml(&at_b).unwrap();
    let token = std::fs::read_to_string(host.home().tenants().join(a.id.hash()).join(SYNCER).join("token")).unwrap();
    kubeconfig.auth_infos[0].auth_info = Some(serde_json::from_value(json!({"token": token})).unwrap());
    let client = patient_with(kubeconfig).await;
    match list(Api::<Namespace>::all(client)).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 401),
        other => panic!("{other:?}"),
    }
    tokio::join!(a.delete(&host), b.delete(&host));
}

/// What says how much the tenant may have: its reservation, the quotas of its Project, its labels and the limits of its namespace.
async fn changes_nothing_of_quotas(host: &TestCluster, client: &Client, a: &Tenant) {
    let params = PatchParams::default();
    let merge = |body: &Value| Patch::Merge(body.clone());
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), &a.namespace);
    let more = json!({"status": {"quota": {"projectName": "p", "reserved": {"pods": 100_000}}}});
    forbidden(
        "a reservation",
        tenants.patch_status(&a.name, &params, &merge(&more)).await,
    );
    let class = json!({"spec": {"className": "default"}});
    forbidden("another class", tenants.patch(&a.name, &params, &merge(&class)).await);
    let label = json!({"metadata": {"labels": {labels::TENANT: "another"}}});
    forbidden(
        "a label of its TenantCluster",
        tenants.patch(&a.name, &params, &merge(&label)).await,
    );
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let own = a.id.workload_namespace();
    for key in [labels::TENANT, labels::TENANT_NAMESPACE, labels::TENANT_NAME] {
        let label = json!({"metadata": {"labels": {key: "another"}}});
        forbidden(
            "a label of its namespace",
            namespaces.patch(&own, &params, &merge(&label)).await,
        );
    }

    let project = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "adv-syn"},
        "spec": {"namespaces": ["adv-syn-none"], "quotas": [{"resource": "tenantclusters", "nominalQuota": 1}]}});
    apply(&host.client, "", &project).await.unwrap();
    let projects: Api<Project> = Api::all(client.clone());
    let quotas = json!({"spec": {"quotas": []}});
    forbidden(
        "a Project without quotas",
        projects.patch("adv-syn", &params, &merge(&quotas)).await,
    );
    let used = json!({"status": {"quotas": []}});
    forbidden(
        "a Project that uses nothing",
        projects.patch_status("adv-syn", &params, &merge(&used)).await,
    );
    forbidden("Projects", list(projects).await);
    forbidden("Organizations", list(Api::<Organization>::all(client.clone())).await);
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete("adv-syn", &DeleteParams::default()).await.unwrap();

    let by_admin: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &own);
    let before = by_admin.get(LIMITS).await.unwrap().spec;
    let limits: Api<ResourceQuota> = Api::namespaced(client.clone(), &own);
    let wide = json!({"spec": {"hard": {"count/pods": "1000000"}}});
    forbidden("more pods", limits.patch(LIMITS, &params, &merge(&wide)).await);
    let unused = json!({"status": {"used": {"count/pods": "0"}}});
    forbidden(
        "pods that do not count",
        limits.patch_status(LIMITS, &params, &merge(&unused)).await,
    );
    let at_once = DeleteParams::default();
    forbidden("no limits", limits.delete(LIMITS, &at_once).await.map(drop));
    let all = limits.delete_collection(&at_once, &ListParams::default()).await;
    forbidden("no limits at all", all.map(drop));
    let ranges: Api<LimitRange> = Api::namespaced(client.clone(), &own);
    forbidden("no limit of a volume", ranges.delete(LIMITS, &at_once).await.map(drop));
    assert_eq!(by_admin.get(LIMITS).await.unwrap().spec, before);
}

/// The assignment of a node, and the Jobs and markers that say whether it is clean.
async fn changes_nothing_of_a_recycling(host: &TestCluster, client: &Client, a: &Tenant) {
    let params = PatchParams::default();
    let nodes: Api<Node> = Api::all(client.clone());
    for (what, body) in [
        (
            "an owner",
            json!({"metadata": {"annotations": {"berth.dev/owner-uid": "stolen"}}}),
        ),
        ("a state", json!({"metadata": {"labels": {"berth.dev/state": null}}})),
        (
            "a release from quarantine",
            json!({"metadata": {"annotations": {"berth.dev/release-quarantine": "yes"}}}),
        ),
        ("no taint", json!({"spec": {"taints": null}})),
        ("no cordon", json!({"spec": {"unschedulable": null}})),
    ] {
        for node in ["gpu-h100-01", "gpu-l40s-01"] {
            forbidden(what, nodes.patch(node, &params, &Patch::Merge(&body)).await);
            forbidden(what, nodes.patch_status(node, &params, &Patch::Merge(&body)).await);
        }
    }
    forbidden(
        "a node's end",
        nodes.delete("gpu-l40s-01", &DeleteParams::default()).await.map(drop),
    );

    // A Job that cleans a node, and the in-use marker, which says that the node is not clean.
    let meta = |label: &str, value: &str| json!({"name": "adv-recycling", "labels": {label: value}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta("berth.dev/node-job", "scrub"),
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i"}]}}}});
    let mark = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("berth.dev/in-use-marker", "true")});
    for object in [&job, &mark] {
        apply(&host.client, SYSTEM, object).await.unwrap();
    }
    let jobs: Api<Job> = Api::namespaced(client.clone(), SYSTEM);
    let done = json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}});
    forbidden("Jobs of nodes", list(jobs.clone()).await);
    forbidden(
        "a Job that is done",
        jobs.patch_status("adv-recycling", &params, &Patch::Merge(&done)).await,
    );
    forbidden(
        "another Job",
        jobs.patch(
            "adv-recycling",
            &params,
            &Patch::Merge(json!({"spec": {"suspend": false}})),
        )
        .await,
    );
    forbidden(
        "no Job",
        jobs.delete("adv-recycling", &DeleteParams::default()).await.map(drop),
    );
    let own: Job = serde_json::from_value(job.clone()).unwrap();
    forbidden("a Job of its own", jobs.create(&PostParams::default(), &own).await);
    let marks: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM);
    forbidden("markers of nodes", list(marks.clone()).await);
    forbidden(
        "no marker",
        marks.delete("adv-recycling", &DeleteParams::default()).await.map(drop),
    );
    forbidden(
        "another marker",
        marks
            .patch("adv-recycling", &params, &Patch::Merge(json!({"data": {}})))
            .await,
    );
    let all_jobs: Api<Job> = Api::namespaced(host.client.clone(), SYSTEM);
    let all_marks: Api<ConfigMap> = Api::namespaced(host.client.clone(), SYSTEM);
    all_jobs
        .delete("adv-recycling", &DeleteParams::background())
        .await
        .unwrap();
    all_marks
        .delete("adv-recycling", &DeleteParams::default())
        .await
        .unwrap();

    reaches_no_other_node(client, a).await;
}

/// A pod as a syncer creates it, with these fields in its spec instead.
fn pod(tenant: &Tenant, name: &str, fields: &Value) -> Pod {
    let slug = tenant.id.slug();
    let mut spec = json!({
        "containers": [{"name": "c", "image": "i"}], "nodeSelector": {"berth.dev/tenant": slug},
        "automountServiceAccountToken": false, "enableServiceLinks": false, "dnsPolicy": "Default",
    });
    for (key, value) in fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let metadata = json!({"name": name,
        "labels": {"berth.dev/tenant": slug, "berth.dev/managed-by": "syncer"},
        "annotations": {"berth.dev/origin-namespace": "default", "berth.dev/origin-name": name}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// Pods on nodes of another tenant or of none: by name, by selector, by toleration of the taints.
async fn reaches_no_other_node(client: &Client, a: &Tenant) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &a.id.workload_namespace());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // What is denied below is denied for its node alone.
    let on_its_own = pods.create(&dry_run, &pod(a, "elsewhere", &json!({}))).await;
    assert!(on_its_own.is_ok(), "every pod is denied: {on_its_own:?}");
    let tolerates = |value: &str| {
        json!({"tolerations": [
        {"key": "berth.dev/tenant", "operator": "Equal", "value": value, "effect": "NoExecute"}]})
    };
    for (what, more) in [
        ("by name", json!({"nodeName": "gpu-l40s-01"})),
        (
            "by no selector",
            json!({"nodeSelector": {"kubernetes.io/hostname": "gpu-l40s-01"}}),
        ),
        (
            "by another's selector",
            json!({"nodeSelector": {"berth.dev/tenant": "another"}}),
        ),
        ("by its pool", json!({"nodeSelector": {"berth.dev/pool": "l40s"}})),
        ("while it is cleaned", tolerates("recycling")),
        ("of another", tolerates("another")),
        (
            "of any tenant",
            json!({"tolerations": [{"key": "berth.dev/tenant", "operator": "Exists"}]}),
        ),
        ("of any taint", json!({"tolerations": [{"operator": "Exists"}]})),
    ] {
        forbidden(what, pods.create(&dry_run, &pod(a, "elsewhere", &more)).await);
    }
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "any"},
        "target": {"kind": "Node", "name": "gpu-l40s-01"}});
    let bound: kube::Result<Value> = pods
        .create_subresource("binding", "any", &PostParams::default(), &binding)
        .await;
    forbidden("a pod bound to a node", bound);
}

pub(crate) async fn the_host_refuses_pods_that_leave_their_container(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let client = as_syncer(&host, &tenant).await;
    let pods: Api<Pod> = Api::namespaced(client, &tenant.id.workload_namespace());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let container = |context: Value| json!({"containers": [{"name": "c", "image": "i", "securityContext": context}]});
    for (name, spec) in [
        ("host-network", json!({"hostNetwork": true})),
        ("host-pid", json!({"hostPID": true})),
        ("host-ipc", json!({"hostIPC": true})),
        (
            "host-path",
            json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}),
        ),
        ("privileged", container(json!({"privileged": true}))),
        ("capability", container(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))),
        ("raw-sockets", container(json!({"capabilities": {"add": ["NET_RAW"]}}))),
        (
            "unconfined",
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        ),
        (
            "host-port",
            json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}]}),
        ),
        (
            "sysctl",
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
        ),
    ] {
        forbidden(name, pods.create(&dry_run, &pod(&tenant, name, &spec)).await);
    }
    let harmless = pods.create(&dry_run, &pod(&tenant, "harmless", &json!({}))).await;
    assert!(harmless.is_ok(), "the check refuses everything: {harmless:?}");
}

/// A Service that names one of the tenant's and is not the syncer's: it would lead traffic elsewhere for as long as it exists.
pub(crate) async fn a_second_object_beside_one_of_the_syncers_is_deleted(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let spec = json!({"selector": {"app": "twin"}, "ports": [{"port": 80}]});
    let own = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "twin"}, "spec": spec});
    apply(&tenant.client, "default", &own).await.unwrap();
    let services: Api<Service> = Api::namespaced(as_syncer(&host, &tenant).await, &tenant.id.workload_namespace());
    let on_host = async || {
        let all = services.list(&ListParams::default()).await.unwrap().items;
        let is_named = |service: &Service| {
            service
                .annotations()
                .get(labels::ORIGIN_NAME)
                .is_some_and(|name| name == "twin")
        };
        all.into_iter()
            .find(|service| is_named(service) && service.name_any() != "second")
    };
    until_true("the Service is on the host", SOON, async || on_host().await.is_some()).await;
    let before = on_host().await.unwrap().uid();

    let second = json!({"metadata": {"name": "second",
        "labels": {labels::TENANT: tenant.id.slug(), labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
        "annotations": {labels::ORIGIN_NAMESPACE: "default", labels::ORIGIN_NAME: "twin"}}, "spec": spec});
    let second: Service = serde_json::from_value(second).unwrap();
    services.create(&PostParams::default(), &second).await.unwrap();
    until_true("the second one is deleted", SOON, async || {
        services.get_opt("second").await.unwrap().is_none()
    })
    .await;
    assert_eq!(on_host().await.unwrap().uid(), before, "the syncer's stays");

    let own: Api<Service> = Api::namespaced(tenant.client.clone(), "default");
    own.delete("twin", &DeleteParams::default()).await.unwrap();
    until_true("the syncer deletes its own with the tenant's", SOON, async || {
        on_host().await.is_none()
    })
    .await;
}
