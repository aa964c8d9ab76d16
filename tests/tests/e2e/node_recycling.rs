//! A tenant leaves nothing on a node for the next one.

use crate::pods::SOON;
use berth_api::labels;
use berth_local::images::{Image, catalog};
use berth_process::binaries::{self, Binary};
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
use std::{collections::BTreeSet, fs, sync::Arc};

/// Folder of a pod whose volumes the kubelet could not remove: it is left on the node.
const ORPHAN: &str = "11111111-2222-4333-8444-555555555555";

/// Name of an image that only the tenant has.
const MODEL: &str = "registry.example.com/leaver/model:1";

/// The lines that containerd's client prints.
fn containerd(host: &TestCluster, node: &str, arguments: &[&str]) -> BTreeSet<String> {
    let output = host.ctr(node, arguments).unwrap();
    output.lines().map(|line| line.trim().to_owned()).collect()
}

/// The image as the node's container runtime has it.
struct Model {
    /// The digest of its manifest.
    digest: String,
    /// Its ID, by which containerd has a second record of it.
    id: String,
    /// What came with it into containerd's content store.
    blobs: BTreeSet<String>,
}

impl Model {
    /// Brings it onto the node, where the kubelet would have pulled it: there is no registry.
    async fn import(host: &TestCluster, node: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pause = binaries::find_pinned(Binary::Pause).unwrap();
        let mut image = Image::new(MODEL, &pause, "/pause");
        image.files.insert("/weights".into(), b"secret".to_vec());
        let archive = image.archive_in(folder.path()).unwrap();
        let before = containerd(host, node, &["content", "ls", "-q"]);
        let path = archive.path.display().to_string();
        host.ctr(node, &["images", "import", &path]).unwrap();
        let id = until("containerd has the image by its ID", SOON, async || {
            let listed = containerd(host, node, &["images", "ls"]);
            let mut names = listed
                .iter()
                .filter(|line| line.contains(&archive.digest))
                .filter_map(|line| line.split_whitespace().next());
            let id = names.find(|name| name.starts_with("sha256:")).map(str::to_owned);
            id.ok_or(listed)
        })
        .await;
        let after = containerd(host, node, &["content", "ls", "-q"]);
        Self {
            digest: archive.digest,
            id,
            blobs: after.difference(&before).cloned().collect(),
        }
    }

    /// Asserts that nothing of it is on the node, and that what the platform needs there is.
    fn assert_gone(&self, host: &TestCluster, node: &str) {
        assert!(!self.blobs.is_empty());
        let images = host.ctr(node, &["images", "ls"]).unwrap();
        for gone in [MODEL, self.id.as_str(), self.digest.as_str()] {
            assert!(!images.contains(gone), "{gone} is left: {images}");
        }
        for stays in [catalog::PAUSE, catalog::AGNHOST] {
            assert!(images.contains(stays), "{stays} is gone: {images}");
        }
        let blobs = containerd(host, node, &["content", "ls", "-q"]);
        let left: Vec<&String> = self.blobs.intersection(&blobs).collect();
        assert!(left.is_empty(), "content is left: {left:?}");
    }
}

pub(crate) async fn a_node_is_clean_when_the_next_tenant_gets_it(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "recycling", &cluster("leaver", &[("own", "l40s", 1)])).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let own = ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.id.slug()));
    let node = nodes.list(&own).await.unwrap().items.remove(0).name_any();
    let model = Model::import(&host, &node).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let writer = json!({
        "metadata": {"name": "writer"},
        "spec": {
            "containers": [{
                "name": "writer", "image": crate::pods::IMAGE,
                "command": ["sh", "-c", "echo secret | tee /scratch/weights; sleep 3600"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }, {"name": "by-name", "image": MODEL}, {"name": "by-id", "image": model.id}],
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
    model.assert_gone(&host, &node);
}
