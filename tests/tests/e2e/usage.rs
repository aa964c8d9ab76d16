//! What pods and nodes use, for people and for autoscalers.

use crate::{
    pods::{Space, pod, script, with},
    teams::vision,
};
use berth_tests::{kubectl::Kubectl, test_cluster::TestCluster, wait::until};
use k8s_openapi::api::{autoscaling::v2::HorizontalPodAutoscaler, core::v1::Namespace};
use kube::{Api, api::DeleteParams};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// metrics-server measures every few seconds, autoscalers read the metrics every fifteen.
const MEASURED: Duration = Duration::from_secs(180);

async fn until_output(kubectl: &Kubectl, arguments: &[&str], is_so: impl Fn(&str) -> bool) -> String {
    until(
        &format!("kubectl {arguments:?} prints the expected output"),
        MEASURED,
        async || {
            let said = kubectl.run(arguments).await;
            if said.success && is_so(&said.out) {
                Ok(said.out)
            } else {
                Err(said)
            }
        },
    )
    .await
}

pub(crate) async fn teams_see_usage_and_scale_by_it(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "usage").await;
    // Busy, within a limit that leaves the machine to others.
    let resources = json!({"requests": {"cpu": "20m", "memory": "8Mi"}, "limits": {"cpu": "60m", "memory": "32Mi"}});
    let busy = with(script("while :; do :; done"), json!({"resources": resources}));
    let template = pod("x", json!({"containers": [busy], "restartPolicy": "Always"}));
    let labels = json!({"app": "busy"});
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "busy"}, "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]}}}),
        )
        .await;
    space
        .apply(
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "busy"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
                "minReplicas": 1, "maxReplicas": 2,
                "metrics": [{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}),
        )
        .await;

    let kubectl = space.kubectl();
    let pods = until_output(&kubectl, &["top", "pod", "-n", space.name], |out| out.contains("busy-")).await;
    assert!(pods.lines().skip(1).all(|line| line.starts_with("busy-")), "{pods}");
    let nodes = until_output(&kubectl, &["top", "node"], |out| out.lines().count() == 3).await;
    assert!(
        nodes.lines().skip(1).all(|line| line.starts_with("gpu-h100-0")),
        "{nodes}"
    );
    // A kubelet that is slow to answer drops out of a round of metrics-server: there is nothing to show until the next.
    until_output(&kubectl, &["get", "podmetrics", "-n", space.name], |out| {
        out.starts_with("NAME") && out.contains("CPU")
    })
    .await;
    let none = until_output(
        &kubectl,
        &["get", "podmetrics", "-n", space.name, "-l", "app=other", "-o", "name"],
        |_| true,
    )
    .await;
    assert_eq!(none.trim(), "");

    let scalers: Api<HorizontalPodAutoscaler> = space.api();
    until("the autoscaler has seen it and scaled", MEASURED, async || {
        let scaler = scalers.get("busy").await.map_err(|error| error.to_string())?;
        let status = scaler.status.unwrap_or_default();
        if status.desired_replicas == 2 {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    namespaces.delete(space.name, &DeleteParams::default()).await.unwrap();
    // The namespace controller tries again ever more slowly while anything is there still, or an API does not answer at once;
    // the status says which one.
    until(
        "the namespace is gone: an API that answers keeps none",
        MEASURED,
        async || match namespaces.get_opt(space.name).await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        },
    )
    .await;
}
