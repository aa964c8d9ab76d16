//! What counts as the use of a tenant, by the numbers of its real API server: requests of people do, those of the control plane do not.

use berth_api::{SchedulingMode, SleepSpec};
use berth_sleep::activity::{ANONYMOUS_SCHEMA, WATCHES_SCHEMA, counts_requests, counts_use};
use berth_tests::{
    kubectl::Kubectl,
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    token,
    wait::{SOON, until, until_true},
};
use futures::StreamExt;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap, flowcontrol::v1::FlowSchema};
use kube::{Api, Client, api::WatchParams};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const NAMESPACE: &str = "sleep-use";
/// Time in which nothing but its own components talks to the tenant.
const QUIET: Duration = Duration::from_secs(75);

/// Numbers of requests by FlowSchema.
pub(crate) type Counts = BTreeMap<String, f64>;

/// Requests that are use, and all others.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) used: Counts,
    pub(crate) others: Counts,
}

/// Reads the numbers as control does: as a member of system:masters, whose requests are no use.
pub(crate) async fn count(tenant: &Tenant) -> Requests {
    let request = http::Request::get("/metrics")
        .header("Impersonate-User", "reader")
        .header("Impersonate-Group", "system:masters")
        .body(Vec::new())
        .unwrap();
    let metrics = tenant.client.request_text(request).await.unwrap();
    let mut requests = Requests::default();
    let lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    for (name, value) in lines.filter(|(name, _)| counts_requests(name)) {
        let counts = if counts_use(name) {
            &mut requests.used
        } else {
            &mut requests.others
        };
        counts.insert(name.to_owned(), value.parse().unwrap());
    }
    requests
}

/// A tenant with a scheduler of its own, whose use is counted, and in which a Deployment runs.
async fn create(host: &TestCluster) -> Tenant {
    let mut wanted = cluster("used", &[("train", "l40s", 1)]);
    wanted.spec.scheduling_mode = Some(SchedulingMode::Tenant);
    wanted.spec.sleep = Some(SleepSpec {
        after_idle: Some("30m".into()),
        ..SleepSpec::default()
    });
    let tenant = Tenant::create(host, NAMESPACE, &wanted).await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}});
    apply(&tenant.client, "default", &web).await.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [{"port": 80}]}});
    apply(&tenant.client, "default", &service).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), "default");
    until_true("the Deployment is available", SOON, async || {
        let web = deployments.get("web").await;
        web.is_ok_and(|web| web.status.is_some_and(|status| status.available_replicas == Some(2)))
    })
    .await;
    let schemas: Api<FlowSchema> = Api::all(tenant.client.clone());
    until("its use is counted", SOON, async || schemas.get(WATCHES_SCHEMA).await).await;
    tenant
}

pub(crate) async fn requests_of_people_are_use_and_those_of_the_control_plane_are_not(host: Arc<TestCluster>) {
    let tenant = create(&host).await;
    // The API server follows a new FlowSchema some time after it is stored.
    let watches = format!("flow_schema=\"{WATCHES_SCHEMA}\"");
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    until("a watch is counted apart", SOON, async || {
        watch(&maps).await;
        let requests = count(&tenant).await;
        if requests.others.keys().any(|name| name.contains(&watches)) {
            Ok(())
        } else {
            Err(requests)
        }
    })
    .await;

    let anonymous = token::client(&tenant.kubeconfig, "").await;
    let schema = format!("flow_schema=\"{ANONYMOUS_SCHEMA}\"");
    until("anonymous requests are counted apart", SOON, async || {
        ask_without_credentials(&anonymous).await;
        let requests = count(&tenant).await;
        if requests.others.keys().any(|name| name.contains(&schema)) {
            Ok(())
        } else {
            Err(requests)
        }
    })
    .await;

    let before = count(&tenant).await;
    watch(&maps).await;
    ask_without_credentials(&anonymous).await;
    tokio::time::sleep(QUIET).await;
    let after = count(&tenant).await;
    assert_eq!(before.used, after.used, "only the tenant's own components have used it");
    // They were there all the time.
    for component in ["kube-controller-manager", "kube-scheduler", "berth-platform", "exempt"] {
        let sum = |counts: &Counts| -> f64 {
            let own = format!("flow_schema=\"{component}\"");
            let own = counts.iter().filter(|(name, _)| name.contains(&own));
            own.map(|(_, count)| count).sum()
        };
        let (earlier, later) = (sum(&before.others), sum(&after.others));
        assert!(later > 0.0, "{component} was never there: {after:?}");
        // A scheduler with nothing to do renews its Lease, which has another FlowSchema.
        assert!(later >= earlier, "{component}: {earlier} {later}");
    }
    let all = |counts: &Counts| -> f64 { counts.values().sum() };
    assert!(all(&after.others) > all(&before.others) + 20.0, "{before:?} {after:?}");

    let namespaces = Kubectl::of(&tenant).output(&["get", "namespaces", "-o", "name"]).await;
    assert!(namespaces.contains("namespace/kube-system"), "{namespaces}");
    let used = count(&tenant).await.used;
    assert_ne!(used, after.used, "kubectl has used it");
    tenant.delete(&host).await;
}

/// Sends requests that anybody may send. One is no probe and denied, and one is not even authenticated.
async fn ask_without_credentials(anonymous: &Client) {
    for (method, path) in [("GET", "/readyz"), ("POST", "/livez"), ("GET", "/version")] {
        let request = http::Request::builder().method(method).uri(path);
        // Whatever the answer is.
        let _ = anonymous.request_text(request.body(Vec::new()).unwrap()).await;
    }
}

/// Opens a watch, as a dashboard does again and again, and closes it.
async fn watch(maps: &Api<ConfigMap>) {
    let params = WatchParams::default().timeout(5);
    let events = maps.watch(&params, "0").await.unwrap();
    drop(events.boxed().next().await);
}
