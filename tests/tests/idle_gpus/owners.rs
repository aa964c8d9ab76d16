//! The last step for an owner, on real API servers: a host, a tenant with its own control plane and syncer, and simulated nodes. The
//! window is at least half an hour, so the clock of control is ahead, and Prometheus is one in this process, whose samples follow
//! that clock.

use crate::hostile_owners::{a_pod_of_a_fake_owner_is_evicted, pods_are_evicted};
use berth_api::{
    IdleLastStep, IdleReclaim, IdleReclaimMode, TenantClass, TenantClassSpec, labels,
    network::{ApiServerEgress, ClassNetwork},
};
use berth_control::{
    clock::Clock,
    controllers::idle_gpus::GpuMetricsSource,
    runtime::{ProcessRuntime, ProcessRuntimeConfig},
};
use berth_runtime::telemetry::{self, LogFormat};
use berth_tests::{
    files::binary,
    gpu_metrics::StandIn,
    hostile_api::HostileApi,
    in_process::{Control, Parts},
    tenant::{READY_WITHIN, Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};

const NAMESPACE: &str = "idle-owners";
const NAME: &str = "vision";

/// Runs the tenants' processes, for all controls.
async fn open_runtime(host: &TestCluster) -> Arc<ProcessRuntime> {
    let home = host.home();
    let config = ProcessRuntimeConfig {
        dir: home.tenants(),
        log_dir: home.logs(),
        kubeconfig_dir: Some(home.kubeconfigs()),
        syncer: binary("berth-syncer"),
        die_with_parent: true,
    };
    Arc::new(ProcessRuntime::open(config, host.client.clone()).await.unwrap())
}

fn start(host: &TestCluster, clock: &Clock, runtime: &Arc<ProcessRuntime>, gpu_metrics: GpuMetricsSource) -> Control {
    let parts = Parts {
        runtime: Arc::clone(runtime) as Arc<_>,
        clock: clock.clone(),
        gpu_metrics: Some(gpu_metrics),
        ..Parts::default()
    };
    Control::start(host, parts)
}

/// A class whose tenants' API servers reach a server of the team's.
fn class(server: SocketAddr) -> TenantClass {
    let spec = TenantClassSpec {
        network: ClassNetwork {
            api_server_egress: ApiServerEgress {
                hosts: vec![server.to_string()],
            },
            ..ClassNetwork::default()
        },
        idle_reclaim: IdleReclaim {
            mode: IdleReclaimMode::Enforce,
            last_step: IdleLastStep::StopOwner,
            window: "30m".into(),
            grace_period: "0s".into(),
            checkpoint_period: "0s".into(),
            startup_grace_period: "0s".into(),
            minimum_runtime: "0s".into(),
            ..IdleReclaim::default()
        },
        ..TenantClassSpec::default()
    };
    TenantClass::new("stop-owners", spec)
}

fn deployment() -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [{"name": "main", "image": "serve:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        }},
    }))
    .unwrap()
}

/// The tenant's running host pod whose name in the tenant begins like this.
pub(crate) async fn until_running(pods: &Api<Pod>, prefix: &str) -> Pod {
    until(&format!("a pod {prefix} runs on the host"), READY_WITHIN, async || {
        let list = pods
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let is_running = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let name = pod.annotations().get(labels::ORIGIN_NAME);
            phase == Some("Running") && name.is_some_and(|name| name.starts_with(prefix))
        };
        list.iter()
            .find(is_running)
            .cloned()
            .ok_or_else(|| format!("{} pods", list.items.len()))
    })
    .await
}

/// Waits until the Deployment has so many replicas, and a record or none.
async fn until_replicas(deployments: &Api<Deployment>, replicas: i32, has_record: bool) -> Deployment {
    let what = format!("the Deployment has {replicas} replicas, and a record: {has_record}");
    until(&what, READY_WITHIN, async || {
        let found = deployments.get("web").await.map_err(|error| error.to_string())?;
        let wanted = found.spec.replicas;
        let is_recorded = found.annotations().contains_key(labels::STOPPED);
        if (wanted, is_recorded) == (Some(replicas), has_record) {
            Ok(found)
        } else {
            Err(format!("{wanted:?}, {:?}", found.annotations()))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_owner_is_stopped_and_restored_once_in_a_real_tenant() {
    berth_runtime::install_crypto();
    telemetry::init(LogFormat::Text);
    let host = TestCluster::without_control("h100=1,cpu=1").await;
    let clock = Clock::default();
    let hostile = HostileApi::start().await;
    let idle = StandIn::default();
    let source = idle.serve().await;
    let runtime = open_runtime(&host).await;
    let control = start(&host, &clock, &runtime, source.clone());
    let params = PostParams::default();
    Api::<TenantClass>::all(host.client.clone())
        .create(&params, &class(hostile.address))
        .await
        .unwrap();
    ensure_namespace(&host.client, NAMESPACE).await;
    let mut spec = cluster(NAME, &[("train", "h100", 1)]);
    spec.spec.class_name = Some("stop-owners".into());
    let tenant = Tenant::create(&host, NAMESPACE, &spec).await;
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    // All pods have run for longer than the window, by the clock of control.
    clock.set_ahead(7200);
    let tenants = host.tenants(NAMESPACE);
    pods_are_evicted(&tenants, &tenant, &pods, &idle, &hostile).await;
    a_pod_of_a_fake_owner_is_evicted(&tenants, &tenant, &pods, &idle, (&clock, 7200)).await;

    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), "default");
    deployments.create(&params, &deployment()).await.unwrap();
    let pod = until_running(&pods, "web-").await;
    idle.set_pod(Some((tenant.id.workload_namespace(), pod.name_any())));
    let stopped = until_replicas(&deployments, 0, true).await;
    let record: Value = serde_json::from_str(&stopped.annotations()[labels::STOPPED]).unwrap();
    assert_eq!(
        (&record["replicas"], &record["class"]),
        (&json!(1), &json!("stop-owners"))
    );
    idle.set_pod(None);
    until("its pod is gone", READY_WITHIN, async || {
        let pod = pods.get_opt(&pod.name_any()).await.map_err(|error| error.to_string())?;
        pod.map_or(Ok(()), |_| Err("it is there".to_owned()))
    })
    .await;
    let idle_status = tenants.get(NAME).await.unwrap().status.unwrap().idle.unwrap();
    assert_eq!(idle_status.stopped_owners[0].path(), "Deployment/default/web");

    // Another control restores what this one has stopped: it is on the Deployment. This one ends at any point.
    control.kill();
    let wanted = json!({"metadata": {"annotations": {labels::RESTORE: labels::RESTORE_WANTED}}});
    let merge = PatchParams::default();
    deployments.patch("web", &merge, &Patch::Merge(&wanted)).await.unwrap();
    let second = start(&host, &clock, &runtime, source);
    let restored = until_replicas(&deployments, 1, false).await;
    assert!(
        !restored.annotations().contains_key(labels::RESTORE),
        "{:?}",
        restored.annotations()
    );

    // It is the team's own again, also if it asks on the host for what is not stopped.
    deployments
        .patch("web", &merge, &Patch::Merge(&json!({"spec": {"replicas": 0}})))
        .await
        .unwrap();
    let request = json!({"metadata": {"annotations": {labels::RESTORE: "*"}}});
    tenants.patch(NAME, &merge, &Patch::Merge(&request)).await.unwrap();
    until("the request is done", READY_WITHIN, async || {
        let cluster = tenants.get(NAME).await.map_err(|error| error.to_string())?;
        let is_done = !cluster.annotations().contains_key(labels::RESTORE);
        is_done.then_some(()).ok_or_else(|| "it is there".to_owned())
    })
    .await;
    until_replicas(&deployments, 0, false).await;
    clock.set_ahead(0);
    tenant.delete(&host).await;
    second.finish().await;
}
