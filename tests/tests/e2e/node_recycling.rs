//! A tenant leaves nothing on a node for the next one.

use crate::pods::SOON;
use berth_api::labels;
use berth_tests::{
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::{fs, sync::Arc};

/// Folder of a pod whose volumes the kubelet could not remove: it is left on the node.
const ORPHAN: &str = "11111111-2222-4333-8444-555555555555";

pub(crate) async fn a_node_is_clean_when_the_next_tenant_gets_it(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "recycling", &cluster("leaver", &[("own", "l40s", 1)])).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let own = ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.id.slug()));
    let node = nodes.list(&own).await.unwrap().items.remove(0).name_any();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let writer = json!({
        "metadata": {"name": "writer"},
        "spec": {
            "containers": [{
                "name": "writer", "image": crate::pods::IMAGE,
                "command": ["sh", "-c", "echo secret | tee /scratch/weights; sleep 3600"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(writer).unwrap())
        .await
        .unwrap();
    until("the pod runs", SOON, async || {
        let pod = pods.get("writer").await.map_err(|error| error.to_string())?;
        if crate::pods::is_ready(&pod) {
            Ok(())
        } else {
            Err(format!("{:?}", pod.status))
        }
    })
    .await;
    let folder = host.home().root().join("nodes").join(&node);
    let orphan = folder.join("kubelet/pods").join(ORPHAN);
    let scratch = orphan.join("volumes/kubernetes.io~empty-dir/scratch");
    fs::create_dir_all(&scratch).unwrap();
    fs::write(scratch.join("weights"), "secret").unwrap();
    let logs = || -> Vec<String> {
        let listed = fs::read_dir(folder.join("pods-log")).unwrap();
        let names = listed.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("leaver")).collect()
    };
    assert!(!logs().is_empty(), "the node has logs of the tenant");

    let tenants = host.tenants("recycling");
    tenants.delete("leaver", &DeleteParams::default()).await.unwrap();
    until_gone(&host, "recycling", "leaver").await;
    until("the node is free", SOON, async || {
        let node = nodes.get(&node).await.map_err(|error| error.to_string())?;
        match node.labels().get(labels::NODE_STATE) {
            None => Ok(()),
            Some(state) => Err(format!("{state}: {:?}", node.annotations())),
        }
    })
    .await;
    assert!(!orphan.exists(), "what the kubelet left is gone");
    assert!(logs().is_empty(), "{:?}", logs());
}
