//! A team's workloads on real nodes: a real kubelet carries out every field of a pod's spec, and the tenant's pod gets the
//! status that the kubelet reports.

use crate::{
    pods::{IMAGE, SOON, Space, only, script, server, state, with},
    teams::vision,
};
use berth_api::is_pod_ready;
use berth_tests::{test_cluster::TestCluster, wait::until};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::{Event, Pod},
    resource::v1::ResourceSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) async fn workloads_of_every_kind_run(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-workloads").await;
    let labels = |app: &str| json!({"app": app});
    let template = |app: &str, spec: Value| json!({"metadata": {"labels": labels(app)}, "spec": spec});
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 3, "selector": {"matchLabels": labels("web")}, "template": template("web", only(server()))}}),
        )
        .await;
    space
        .apply(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
            "spec": {"clusterIP": "None", "selector": labels("db"), "ports": [{"port": 8080}]}}),
        )
        .await;
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
            "replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels("db")},
            "template": template("db", only(server()))}}),
        )
        .await;
    let quick = json!({"restartPolicy": "Never", "containers": [script("hostname")]});
    space
        .apply(
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sums"},
            "spec": {"completions": 3, "parallelism": 2, "template": {"spec": quick}}}),
        )
        .await;

    let deployments: Api<Deployment> = space.api();
    until("the Deployment is available", SOON, async || {
        let status = deployments.get("web").await.unwrap().status.unwrap_or_default();
        if status.available_replicas == Some(3) {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;
    let sets: Api<StatefulSet> = space.api();
    until("the StatefulSet is ready", SOON, async || {
        let status = sets.get("db").await.unwrap().status.unwrap_or_default();
        if status.ready_replicas == Some(2) {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;
    let jobs: Api<Job> = space.api();
    until("the Job is complete", SOON, async || {
        let status = jobs.get("sums").await.unwrap().status.unwrap_or_default();
        if status.succeeded == Some(3) {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;

    // A container has the name that its pod has in the tenant, not on the host.
    for pod in space
        .pods
        .list(&ListParams::default().labels("batch.kubernetes.io/job-name=sums"))
        .await
        .unwrap()
    {
        let said = state(&pod, "main").unwrap().terminated.unwrap().message.unwrap();
        assert_eq!(said.trim(), pod.name_any());
    }
    // A new version takes the place of the old one, pod by pod.
    let change = json!({"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}});
    deployments
        .patch("web", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    until("the new version is rolled out", SOON, async || {
        let web = deployments.get("web").await.unwrap();
        let status = web.status.clone().unwrap_or_default();
        let done = status.observed_generation == web.metadata.generation
            && [status.updated_replicas, status.available_replicas, status.replicas] == [Some(3); 3];
        if done { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Ids that a variable like `NVIDIA_VISIBLE_DEVICES=GPU-…,GPU-…` names.
fn ids(text: &str) -> Vec<String> {
    text.trim().split(',').map(str::to_owned).collect()
}

pub(crate) async fn every_pod_has_devices_of_its_own(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "life-devices").await;
    let gpus = json!({"resources": {"limits": {"nvidia.com/gpu": "3"}}});
    // Four at a time are more than fit on one node. Each holds its devices until a file ends it.
    let wait = "echo $NVIDIA_VISIBLE_DEVICES; until [ -e /tmp/end ]; do sleep 0.2; done";
    let spec = json!({"restartPolicy": "Never", "containers": [with(script(wait), gpus)]});
    space
        .apply(
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
            "spec": {"completions": 4, "parallelism": 4, "template": {"spec": spec}}}),
        )
        .await;
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=train");
    let running = until("all run at the same time", SOON, async || {
        let pods = space.pods.list(&of_job).await.unwrap().items;
        let running = pods
            .iter()
            .filter(|pod| state(pod, "main").is_some_and(|state| state.running.is_some()))
            .count();
        if running == 4 { Ok(pods) } else { Err(running) }
    })
    .await;
    let nodes: BTreeSet<_> = running
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    assert_eq!(nodes.len(), 2, "the tenant's nodes are used");
    for pod in &running {
        space.exec(&pod.name_any(), &["touch", "/tmp/end"]).await;
    }
    let mut devices = Vec::new();
    for pod in &running {
        devices.extend(ids(&space.ended(&pod.name_any()).await.said()));
    }
    let distinct: BTreeSet<_> = devices.iter().collect();
    assert_eq!((devices.len(), distinct.len()), (12, 12), "{devices:?}");
    assert!(devices.iter().all(|id| id.starts_with("GPU-")), "{devices:?}");

    // The condition of a pod that requests more than a node has is the scheduler's.
    let too_many = json!({"resources": {"limits": {"nvidia.com/gpu": "9"}}});
    space.create("greedy", only(with(script("true"), too_many))).await;
    space
        .until("greedy", "has the reason why it waits", |pod| {
            // The first reason may be a node that was late to answer.
            scheduled(pod).is_some_and(|(status, why)| status == "False" && why.contains("Insufficient nvidia.com/gpu"))
        })
        .await;
    space.pods.delete("greedy", &DeleteParams::default()).await.unwrap();
}

/// Status and message of a pod's condition PodScheduled.
fn scheduled(pod: &Pod) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    Some((condition.status.clone(), condition.message.clone().unwrap_or_default()))
}

pub(crate) async fn changed_configuration_reaches_volumes(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-configuration").await;
    let objects = |value: &str| {
        [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"rate": value}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"word": value}}),
        ]
    };
    for object in objects("first") {
        space.apply(object).await;
    }
    let waits = "cat /etc/settings/rate /etc/password/word; echo $RATE
        until grep -q second /etc/settings/rate && grep -q second /etc/password/word; do sleep 0.5; done
        cat /etc/settings/rate /etc/password/word; echo $RATE";
    let container = json!({
        "env": [{"name": "RATE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "rate"}}}],
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}, {"name": "password", "mountPath": "/etc/password"}],
    });
    let spec = json!({
        "containers": [with(script(waits), container)],
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "password", "secret": {"secretName": "password"}}],
    });
    space.create("reader", spec).await;
    space
        .until("reader", "runs", |pod| {
            state(pod, "main").is_some_and(|state| state.running.is_some())
        })
        .await;
    for object in objects("second") {
        space.apply(object).await;
    }
    // Files follow, variables do not: as in any cluster.
    assert_eq!(space.ended("reader").await.said(), "firstfirstfirst\nsecondsecondfirst");
}

pub(crate) async fn init_containers_and_sidecars_start_in_order(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-order").await;
    let container = |name: &str, text: &str| {
        let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
        json!({"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", text], "volumeMounts": mounts})
    };
    // Programs may take long to start in a container of a busy machine: that is no failure.
    let probe = json!({"exec": {"command": ["test", "-e", "/shared/logger"]},
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 60});
    let sidecar = with(
        container("logger", "touch /shared/logger; sleep 3600"),
        json!({"restartPolicy": "Always", "startupProbe": probe}),
    );
    let main = container("main", "cd /shared; ls > /dev/termination-log");
    let spec = json!({
        "initContainers": [container("prepare", "echo > /shared/prepared"), sidecar, container("check", "test -e /shared/logger && echo > /shared/checked")],
        "containers": [main],
        "volumes": [{"name": "shared", "emptyDir": {}}],
    });
    let said = space.run("ordered", spec).await.said();
    assert_eq!(
        said.split_whitespace().collect::<Vec<_>>(),
        ["checked", "logger", "prepared"]
    );
    // The sidecar was ended after the main container.
    let ended = space.pods.get("ordered").await.unwrap();
    assert!(state(&ended, "logger").unwrap().terminated.is_some());
    assert_eq!(state(&ended, "prepare").unwrap().terminated.unwrap().exit_code, 0);
}

pub(crate) async fn a_container_that_fails_its_probe_is_restarted(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-probes").await;
    // After the restart, the container has a moment until the last probe fails.
    let probe = |path: &str| {
        let command = json!({"command": ["test", "-e", path]});
        json!({"exec": command, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 3})
    };
    // The probe ends the first run of the container; the second finds a file of the first and stays healthy.
    let text =
        "touch /tmp/ready; if [ -e /shared/second ]; then touch /tmp/alive; fi; touch /shared/second; sleep 3600";
    let container = json!({
        "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", text],
        "livenessProbe": probe("/tmp/alive"), "readinessProbe": probe("/tmp/ready"),
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    });
    let spec =
        json!({"restartPolicy": "Always", "containers": [container], "volumes": [{"name": "shared", "emptyDir": {}}]});
    space.create("probed", spec).await;
    let restarts = |pod: &Pod| {
        pod.status
            .as_ref()?
            .container_statuses
            .as_ref()?
            .first()
            .map(|status| status.restart_count)
    };
    let pod = space
        .until("probed", "is ready after a restart", |pod| {
            restarts(pod) >= Some(1) && is_pod_ready(pod)
        })
        .await;
    let last = pod.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_ne!(last.exit_code, 0);
    let events: Api<Event> = space.api();
    until("an Event reports the probe's failure", SOON, async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.clone()).collect();
        if reasons.iter().any(|reason| reason == "Unhealthy") {
            Ok(())
        } else {
            Err(reasons)
        }
    })
    .await;
    space.pods.delete("probed", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn container_exits_are_reported(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-ends").await;
    let little = json!({"resources": {"limits": {"memory": "24Mi", "cpu": "500m"}}});
    let (failed, greedy) = tokio::join!(
        space.run("failed", only(script("echo no such model; exit 3"))),
        space.run("greedy", only(with(script("exec tail /dev/zero"), little))),
    );
    assert_eq!((failed.code, &*failed.reason, &*failed.phase), (3, "Error", "Failed"));
    assert_eq!(failed.message, "no such model");
    assert_eq!(
        (greedy.code, &*greedy.reason, &*greedy.phase),
        (137, "OOMKilled", "Failed")
    );
}

pub(crate) async fn a_deleted_pod_has_time_to_end(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-deletion").await;
    // Its own clean-up takes a moment, and it ends with a code of its own.
    let text = "trap 'echo saved > /dev/termination-log; sleep 1; exit 7' TERM; touch /tmp/ready; while true; do sleep 0.1; done";
    let container = json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", text],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 10}});
    space
        .create(
            "saver",
            json!({"terminationGracePeriodSeconds": 120, "containers": [container]}),
        )
        .await;
    let pod = space.ready("saver").await;
    let from = WatchParams::default().fields("metadata.name=saver");
    let mut changes = space
        .pods
        .watch(&from, &pod.resource_version().unwrap())
        .await
        .unwrap()
        .boxed();
    space.pods.delete("saver", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(change) = changes.try_next().await.unwrap() {
        match change {
            WatchEvent::Modified(pod) => seen.push(pod),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Deleted(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        seen.iter()
            .any(|pod| state(pod, "main").is_some_and(|state| state.running.is_some())
                && pod.metadata.deletion_timestamp.is_some()),
        "it went on running after its deletion began"
    );
    let end = seen
        .iter()
        .rev()
        .find_map(|pod| state(pod, "main")?.terminated)
        .expect("its end is reported before it is gone");
    assert_eq!(
        (end.exit_code, end.message.as_deref().map(str::trim)),
        (7, Some("saved"))
    );
}

pub(crate) async fn an_ephemeral_container_joins_a_pod(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-debug").await;
    space.create("served", only(server())).await;
    space.ready("served").await;
    let joins = json!({"spec": {"ephemeralContainers": [{
        "name": "debugger", "image": IMAGE, "targetContainerName": "main",
        // The network is the pod's: the server answers at the loopback address.
        "command": ["/agnhost", "connect", "127.0.0.1:8080", "--timeout=5s"],
    }]}});
    space
        .pods
        .patch_subresource(
            "ephemeralcontainers",
            "served",
            &PatchParams::default(),
            &Patch::Strategic(&joins),
        )
        .await
        .unwrap();
    let pod = space
        .until("served", "has run the container", |pod| {
            state(pod, "debugger").is_some_and(|state| state.terminated.is_some())
        })
        .await;
    assert_eq!(state(&pod, "debugger").unwrap().terminated.unwrap().exit_code, 0);
    // As `kubectl debug` does, once the pod reports it.
    let its_log = LogParams {
        container: Some("debugger".into()),
        ..LogParams::default()
    };
    space.pods.logs("served", &its_log).await.unwrap();
    assert!(is_pod_ready(&pod));
    space.pods.delete("served", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn a_claimed_device_is_prepared_on_the_node(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "life-claims").await;
    let slices: Api<ResourceSlice> = Api::all(tenant.client.clone());
    until("the devices of both nodes are seen", SOON, async || {
        let nodes: BTreeSet<_> = slices
            .list(&ListParams::default())
            .await
            .unwrap()
            .into_iter()
            .filter_map(|slice| slice.spec.node_name)
            .collect();
        if nodes.len() == 2 { Ok(()) } else { Err(nodes) }
    })
    .await;
    let request = json!({"devices": {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
    }});
    space
        .apply(
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
            "spec": {"spec": request}}),
        )
        .await;
    let claims = json!({"resources": {"claims": [{"name": "gpu"}]}});
    let spec = json!({
        "containers": [with(script("env | grep ^claim_ | sed 's/=.*//'"), claims)],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    });
    // The driver says by a variable which request the container's device answers.
    let said = space.run("claimer", spec).await.said();
    assert!(said.starts_with("claim_") && said.ends_with("_gpu"), "{said}");
}

pub(crate) async fn a_pod_calls_its_own_api_server(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "life-token").await;
    let container = json!({"name": "main", "image": IMAGE, "args": ["inclusterclient", "--poll-interval=1"]});
    space.create("client", json!({"containers": [container]})).await;
    let kubectl = space.kubectl();
    // It finds the server and the authority as every program in a cluster does, and prints which call fails: an API server is
    // not healthy while the machine stands still.
    until("the pod has called its API server twice", SOON, async || {
        let said = kubectl.run(&["logs", "-n", space.name, "client"]).await;
        let count = |text: &str| said.out.matches(text).count();
        // The last call may not have ended.
        let has_called = count("calling /healthz") > 2 + count("status=failed");
        if has_called { Ok(()) } else { Err(said) }
    })
    .await;
    let token = space
        .exec(
            "client",
            &["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"],
        )
        .await;
    let user = berth_tests::token::user(&tenant.kubeconfig, token.trim()).await;
    assert_eq!(user.as_deref(), Ok("system:serviceaccount:life-token:default"));
    let kubeconfig = host.kubeconfig_for("somebody", &[]).unwrap();
    assert_eq!(
        berth_tests::token::user(&kubeconfig, token.trim()).await,
        Err(401),
        "the host knows no such token"
    );
    space.pods.delete("client", &DeleteParams::default()).await.unwrap();
}
