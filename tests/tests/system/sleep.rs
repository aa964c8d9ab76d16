//! Tenants that sleep and wake: nothing of them runs meanwhile, and everything that they store stays.

use berth_api::{SleepState, labels};
use berth_control::control_plane::{API_SERVER, CONTROLLER_MANAGER, COREDNS, SYNCER};
use berth_process::ProcessState;
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    processes::{find, kill, until_replaced},
    sleep::{fall_asleep, processes, request, status, until_nothing_runs, until_state},
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::CronJob,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Namespace, Secret, Service},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Objects of every kind of the tests in the tenant.
const MAPS: usize = 20;

/// The Services of the control plane with their addresses.
async fn services(host: &TestCluster, tenant: &Tenant) -> BTreeMap<String, Option<String>> {
    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let listed = services.list(&ListParams::default()).await.unwrap();
    let address = |service: &Service| service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone());
    listed
        .iter()
        .map(|service| (service.name_any(), address(service)))
        .collect()
}

async fn fill(tenant: &Tenant) {
    for number in 0..MAPS {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")},
            "data": {"number": number.to_string()}});
        apply(&tenant.client, "default", &map).await.unwrap();
    }
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}});
    apply(&tenant.client, "default", &deployment).await.unwrap();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "mine"},
        "spec": {"holderIdentity": "somebody"}});
    apply(&tenant.client, "default", &lease).await.unwrap();
    let job =
        json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "job", "image": "job"}]}}});
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "yearly"},
        "spec": {"schedule": "0 0 1 1 *", "timeZone": "UTC", "jobTemplate": {"spec": job}}});
    apply(&tenant.client, "default", &cron).await.unwrap();
}

async fn assert_everything_is_there(tenant: &Tenant) {
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    for number in 0..MAPS {
        let data = maps.get(&format!("map-{number}")).await.unwrap().data.unwrap();
        assert_eq!(data["number"], number.to_string());
    }
    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), "default");
    assert_eq!(deployments.get("web").await.unwrap().spec.replicas, Some(0));
    let leases: Api<Lease> = Api::namespaced(tenant.client.clone(), "default");
    let holder = leases.get("mine").await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(holder.as_deref(), Some("somebody"));
    let jobs: Api<CronJob> = Api::namespaced(tenant.client.clone(), "default");
    jobs.get("yearly").await.unwrap();
}

/// How often Events say that the tenant is woken.
pub(crate) async fn count_wakes(host: &TestCluster, tenant: &Tenant) -> i32 {
    let events: Api<Event> = Api::namespaced(host.client.clone(), &tenant.namespace);
    let events = events.list(&ListParams::default()).await.unwrap();
    let wakes = events.iter().filter(|event| {
        event.reason.as_deref() == Some("Waking") && event.involved_object.name.as_deref() == Some(&tenant.name)
    });
    let count = |event: &Event| event.series.as_ref().and_then(|series| series.count).unwrap_or(1);
    wakes.map(count).sum()
}

pub(crate) async fn a_tenant_sleeps_and_many_requests_wake_it_once(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "sleep", &cluster("sleeper", &[("train", "h100", 1)])).await;
    fill(&tenant).await;
    let (before, addresses) = (status(&host, &tenant).await.unwrap(), services(&host, &tenant).await);
    fall_asleep(&host, &tenant).await;
    until_true("its node is given back", SOON, async || {
        nodes_of_tenant(&host.client, tenant.id.slug()).await.is_empty()
    })
    .await;
    let asleep = status(&host, &tenant).await.unwrap();
    assert_eq!(asleep.endpoint, before.endpoint);
    let wakes_at = asleep
        .sleep
        .unwrap()
        .wakes_at
        .expect("the CronJob wakes it")
        .0
        .to_string();
    assert!(wakes_at.ends_with("-12-31T23:59:00Z"), "{wakes_at}");
    assert_eq!(services(&host, &tenant).await, addresses);
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), "sleep");
    let kubeconfig = secrets.get("sleeper-kubeconfig").await.unwrap().data.unwrap();
    assert_eq!(kubeconfig["kubeconfig"].0, tenant.kubeconfig.as_bytes());
    assert!(tenant.client.apiserver_version().await.is_err());

    let requests = (0..100).map(|_| request(&host, &tenant, labels::WAKE_REQUESTED_AT));
    futures::future::join_all(requests).await;
    until_state(&host, &tenant, SleepState::Awake).await;
    let woken = Tenant::ready(&host, "sleep", "sleeper").await;
    assert_everything_is_there(&woken).await;
    assert_eq!(
        processes(&host, &woken),
        [COREDNS, API_SERVER, CONTROLLER_MANAGER, SYNCER]
    );
    assert_eq!(services(&host, &woken).await, addresses);
    assert_eq!(count_wakes(&host, &woken).await, 1);
    woken.delete(&host).await;
}

pub(crate) async fn a_tenant_is_deleted_while_it_sleeps_and_while_it_wakes(host: Arc<TestCluster>) {
    for (name, wakes) in [("asleep", false), ("waking", true)] {
        let tenant = Tenant::create(&host, "sleep-delete", &cluster(name, &[])).await;
        fall_asleep(&host, &tenant).await;
        if wakes {
            request(&host, &tenant, labels::WAKE_REQUESTED_AT).await;
            until("it is woken", SOON, async || {
                let sleep = status(&host, &tenant).await?.sleep.unwrap_or_default();
                if sleep.state == SleepState::Sleeping {
                    Err(format!("{sleep:?}"))
                } else {
                    Ok(())
                }
            })
            .await;
        }
        let tenants = host.tenants("sleep-delete");
        tenants.delete(name, &DeleteParams::default()).await.unwrap();
        until_gone(&host, "sleep-delete", name).await;
        assert!(processes(&host, &tenant).is_empty());
        let namespaces: Api<Namespace> = Api::all(host.client.clone());
        let own = ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.id.slug()));
        assert!(namespaces.list(&own).await.unwrap().items.is_empty());
    }
}

/// Kills control after each of these times, in milliseconds, and waits until it runs again.
pub(crate) async fn kill_control(host: &TestCluster, after: &[u64]) {
    for milliseconds in after {
        tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
        let control = find(&host.control_records(), "berth-control-first").unwrap();
        if control.state == ProcessState::Running {
            kill(&control);
        }
        until_replaced(&host.control_records(), &control).await;
    }
}

pub(crate) async fn control_is_killed_while_a_tenant_falls_asleep_and_wakes(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "sleep-kill", &cluster("killed", &[])).await;
    fill(&tenant).await;
    request(&host, &tenant, labels::SLEEP_REQUESTED_AT).await;
    kill_control(&host, &[20, 150, 600, 1500]).await;
    until_nothing_runs(&host, &tenant).await;
    request(&host, &tenant, labels::WAKE_REQUESTED_AT).await;
    kill_control(&host, &[20, 150, 600, 1500]).await;
    until_state(&host, &tenant, SleepState::Awake).await;
    let woken = Tenant::ready(&host, "sleep-kill", "killed").await;
    assert_everything_is_there(&woken).await;
    assert_eq!(
        processes(&host, &woken),
        [COREDNS, API_SERVER, CONTROLLER_MANAGER, SYNCER]
    );
    woken.delete(&host).await;
}

/// Creates a namespace in the tenant, as a user whose only rights are those of `spec.access`.
pub(crate) async fn create_namespace_as_eve(tenant: &Tenant, name: &str) -> kube::Result<Value> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let request = http::Request::post("/api/v1/namespaces")
        .header("content-type", "application/json")
        .header("Impersonate-User", "eve")
        .body(namespace.to_string().into_bytes())
        .unwrap();
    tenant.client.request(request).await
}

pub(crate) async fn an_admin_removed_in_a_sleep_has_no_right_when_the_tenant_wakes(host: Arc<TestCluster>) {
    let mut wanted = cluster("removing", &[]);
    wanted.spec.access = serde_json::from_value(json!({"admins": [{"kind": "User", "name": "eve"}]})).unwrap();
    let tenant = Tenant::create(&host, "sleep-access", &wanted).await;
    until("eve is an admin", SOON, async || {
        create_namespace_as_eve(&tenant, "before").await
    })
    .await;
    fall_asleep(&host, &tenant).await;
    host.patch_tenant("sleep-access", "removing", &json!({"access": {"admins": []}}))
        .await;
    request(&host, &tenant, labels::WAKE_REQUESTED_AT).await;
    // Before control has written anything in the tenant, too.
    let stays_admin = async {
        while create_namespace_as_eve(&tenant, "after").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = until_state(&host, &tenant, SleepState::Awake) => {}
        () = stays_admin => panic!("eve is an admin of the tenant that wakes"),
    }
    match create_namespace_as_eve(&tenant, "after").await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status:?}"),
        other => panic!("{other:?}"),
    }
    tenant.delete(&host).await;
}
