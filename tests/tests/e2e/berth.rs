//! Effects on teams when parts of Berth fail or move, as in `docs/operations/failures.md`.

use crate::{
    pods::{IMAGE, SOON, Space, only, script, server},
    teams::vision,
};
use berth_api::is_pod_ready;
use berth_control::control_plane::{API_SERVER, CONTROLLER_MANAGER, SYNCER};
use berth_tests::{
    tenant::{Tenant, cluster, patient, until_gone},
    test_cluster::TestCluster,
    wait::until,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Namespace of Berth's own programs.
pub(crate) const BERTH: &str = "berth-system";

/// Pods of one program of Berth or of a tenant's control plane.
#[derive(Clone)]
pub(crate) struct Part {
    pods: Api<Pod>,
    selector: ListParams,
    name: &'static str,
}

impl Part {
    pub(crate) fn of_berth(host: &TestCluster, name: &'static str) -> Self {
        Self::new(Api::namespaced(host.client.clone(), BERTH), name)
    }

    pub(crate) fn of_tenant(host: &TestCluster, tenant: &Tenant, name: &'static str) -> Self {
        let namespace = tenant.id.control_plane_namespace();
        Self::new(Api::namespaced(host.client.clone(), &namespace), name)
    }

    fn new(pods: Api<Pod>, name: &'static str) -> Self {
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
        Self { pods, selector, name }
    }

    pub(crate) async fn list(&self) -> Vec<Pod> {
        self.pods.list(&self.selector).await.unwrap().items
    }

    /// Its pods and the endpoints of its Service now, for the message of a failure.
    async fn seen_by(&self, slices: &Api<EndpointSlice>) -> String {
        let pods: Vec<String> = self.list().await.iter().map(brief).collect();
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", self.name));
        let endpoints: Vec<_> = match slices.list(&of_service).await {
            Ok(slices) => slices
                .items
                .into_iter()
                .filter_map(|slice| slice.endpoints)
                .flatten()
                .collect(),
            Err(error) => return format!("{}: pods {pods:?}, no endpoints: {error}", Timestamp::now()),
        };
        let endpoints: Vec<_> = endpoints.iter().map(|one| (&one.addresses, &one.conditions)).collect();
        format!("{}: pods {pods:?}, endpoints {endpoints:?}", Timestamp::now())
    }

    /// Deletes its pods at once, as if their node had lost them.
    pub(crate) async fn kill(&self) {
        let before = self.list().await;
        assert!(!before.is_empty(), "{} has no pods", self.name);
        for pod in &before {
            let now = DeleteParams::default().grace_period(0);
            self.pods.delete(&pod.name_any(), &now).await.unwrap();
        }
        self.until_replaced(&before).await;
    }

    /// Evicts its pods, as `kubectl drain` does.
    async fn evict(&self) {
        let before = self.list().await;
        assert!(!before.is_empty(), "{} has no pods", self.name);
        for pod in &before {
            let name = pod.name_any();
            // Refused as long as the disruption budget does not know the pod.
            until(&format!("{name} may be evicted"), SOON, async || {
                match self.pods.evict(&name, &EvictParams::default()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    other => other.map(drop),
                }
            })
            .await;
        }
        self.until_replaced(&before).await;
    }

    async fn until_replaced(&self, before: &[Pod]) {
        let old: BTreeSet<_> = before.iter().filter_map(ResourceExt::uid).collect();
        until(&format!("{} runs again", self.name), SOON, async || {
            let pods = self.list().await;
            let new = pods
                .iter()
                .filter(|pod| !pod.uid().is_some_and(|uid| old.contains(&uid)));
            let ready = new.filter(|pod| is_pod_ready(pod)).count();
            if ready == before.len() { Ok(()) } else { Err(ready) }
        })
        .await;
    }
}

/// A pod in few words: its name, whether it is ready, and since when it is being deleted.
fn brief(pod: &Pod) -> String {
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.to_string());
    format!("{} ready={} ends={deleted:?}", pod.name_any(), is_pod_ready(pod))
}

/// A pod that calls a Service of its team without pause and counts how often it gets no answer.
struct Caller<'a> {
    space: &'a Space,
}

impl<'a> Caller<'a> {
    async fn start(space: &'a Space, service: &str) -> Self {
        let services: Api<Service> = space.api();
        let service = services.get(service).await.unwrap().spec.unwrap();
        let address = service.cluster_ip.unwrap();
        // A failure counts only when all nodes on the path know both pods: ten successful calls in a row reach both.
        let calls = format!(
            "n=0
            while [ $n -lt 10 ]; do
              if /agnhost connect {address}:8080 --timeout=5s; then n=$((n + 1)); else n=0; sleep 0.2; fi
            done
            touch /tmp/answered /tmp/failed
            while true; do
              if /agnhost connect {address}:8080 --timeout=5s; then echo >> /tmp/answered; else echo >> /tmp/failed; fi
              sleep 0.2
            done"
        );
        let container = json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", calls]});
        space.create("caller", only(container)).await;
        let caller = Self { space };
        caller.until_answered_more_than(0).await;
        caller
    }

    async fn count(&self, file: &str) -> Result<usize, String> {
        let said = self
            .space
            .kubectl()
            .run(&["exec", "-n", self.space.name, "caller", "--", "wc", "-l", file])
            .await;
        let number = said
            .out
            .split_whitespace()
            .next()
            .and_then(|number| number.parse().ok());
        number.ok_or(said.err)
    }

    async fn until_answered_more_than(&self, times: usize) {
        until("the team's Service answers", SOON, async || {
            match self.count("/tmp/answered").await {
                Ok(count) if count > times => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }

    /// Nothing failed so far, and calls go on.
    async fn assert_undisturbed(&self, while_what: &str) {
        let before = until("the caller's count is read", SOON, async || {
            self.count("/tmp/answered").await
        })
        .await;
        self.until_answered_more_than(before).await;
        let failed = until("the caller's count is read", SOON, async || {
            self.count("/tmp/failed").await
        })
        .await;
        assert_eq!(failed, 0, "calls failed while {while_what}");
    }
}

/// A new pod of the team runs and its end is reported.
pub(crate) async fn new_pods_run(space: &Space, name: &str) {
    until("the API server accepts a pod", SOON, async || {
        let pod = serde_json::from_value(crate::pods::pod(name, only(script("echo new")))).unwrap();
        match space.pods.create(&kube::api::PostParams::default(), &pod).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    })
    .await;
    assert_eq!(space.ended(name).await.said(), "new");
}

pub(crate) async fn a_team_is_served_while_its_control_plane_moves(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "berth-parts").await;
    let labels = json!({"app": "web"});
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 2, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": only(server())}}}),
        )
        .await;
    space
        .apply(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 8080}]}}),
        )
        .await;
    let deployments: Api<Deployment> = space.api();
    until("both pods are available", SOON, async || {
        let web = deployments.get("web").await.map_err(|error| error.to_string())?;
        let status = web.status.unwrap_or_default();
        if status.available_replicas == Some(2) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    let caller = Caller::start(&space, "web").await;

    Part::of_tenant(&host, tenant, API_SERVER).evict().await;
    caller.assert_undisturbed("the API server moved").await;
    new_pods_run(&space, "after-api-server").await;

    Part::of_tenant(&host, tenant, SYNCER).kill().await;
    caller.assert_undisturbed("the syncer was killed").await;
    new_pods_run(&space, "after-syncer").await;

    Part::of_tenant(&host, tenant, CONTROLLER_MANAGER).kill().await;
    Part::of_berth(&host, "berth-etcd").kill().await;
    caller.assert_undisturbed("the datastore was killed").await;
    new_pods_run(&space, "after-datastore").await;

    // The pods from before still run: none was created again or restarted.
    let pods = space.pods.list(&ListParams::default().labels("app=web")).await.unwrap();
    let restarts: i32 = pods
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.container_statuses.clone())
        .flatten()
        .map(|status| status.restart_count)
        .sum();
    assert_eq!((pods.items.len(), restarts), (2, 0));
}

/// A changed certificate makes the API server restart: a second one is up before the first one ends.
pub(crate) async fn a_rollout_refuses_no_request(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "berth-rollout", &cluster("rolled", &[])).await;
    let server = Part::of_tenant(&host, &tenant, API_SERVER);
    // A second one that is still ending would be waited for below as well.
    let before = until("there is one API server", SOON, async || match server.list().await {
        pods if pods.len() == 1 => Ok(pods),
        pods => Err(pods.len()),
    })
    .await;
    let stop = CancellationToken::new();
    let requests = tokio::spawn({
        let (stop, kubeconfig) = (stop.clone(), tenant.kubeconfig.clone());
        let server = server.clone();
        let slices = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
        async move {
            let mut answered = 0;
            while !stop.is_cancelled() {
                // A new connection each time: an open one would not notice. It may take long: slow is not refused.
                let client = patient(&kubeconfig).await;
                if let Err(error) = client.apiserver_version().await {
                    // Which servers there were at that moment says whose connection it was.
                    return Err(format!(
                        "{error:?} after {answered} answers; {}",
                        server.seen_by(&slices).await
                    ));
                }
                answered += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<usize, String>(answered)
        }
    });
    let name = json!({"controlPlane": {"service": {"hostnames": ["rolled.example.com"]}}});
    host.patch_tenant(&tenant.namespace, &tenant.name, &name).await;
    server.until_replaced(&before).await;
    let old: BTreeSet<_> = before.iter().map(ResourceExt::name_any).collect();
    until("the old one is gone", SOON, async || {
        let pods = server.list().await;
        if pods.iter().any(|pod| old.contains(&pod.name_any())) {
            Err(())
        } else {
            Ok(())
        }
    })
    .await;
    stop.cancel();
    assert!(requests.await.unwrap().expect("no request is refused") > 0);
    tenant.delete(&host).await;
}

pub(crate) async fn a_tenant_is_created_and_deleted_while_control_is_killed(host: Arc<TestCluster>) {
    let control = Part::of_berth(&host, "berth-control");
    berth_tests::tenant::ensure_namespace(&host.client, "berth-moves").await;
    let tenants = host.tenants("berth-moves");
    tenants
        .create(&kube::api::PostParams::default(), &cluster("moving", &[]))
        .await
        .unwrap();
    control.kill().await;
    let tenant = Tenant::ready(&host, "berth-moves", "moving").await;
    assert!(tenant.client.apiserver_version().await.is_ok());
    tenants.delete("moving", &DeleteParams::default()).await.unwrap();
    control.kill().await;
    until_gone(&host, "berth-moves", "moving").await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(host.client.clone());
    for namespace in [tenant.id.control_plane_namespace(), tenant.id.workload_namespace()] {
        assert!(
            namespaces.get_opt(&namespace).await.unwrap().is_none(),
            "{namespace} is left"
        );
    }
}
