//! Flux on the host delivers into a tenant. kustomize-controller is the program of upstream. The test has the part of
//! source-controller: it serves what that would have fetched from Git, and writes the status that it would write.

use aws_lc_rs::digest::{SHA256, digest};
use axum::{Router, routing::get};
use berth_tests::{
    files::documents,
    helm::{cache, existing},
    objects::{apply, apply_example, dynamic},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{fmt::Write, fs, fs::File, sync::Arc};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
};

/// Namespace and tenant of `examples/gitops/flux.yaml`, and the names of its source and its Kustomization.
const NAMESPACE: &str = "team-vision";
const NAME: &str = "vision";
const SOURCE: &str = "base";
const KUSTOMIZATION: &str = "base-vision";
/// kustomize-controller in `hack/kubernetes/versions`.
const COMPONENT: &str = "kustomize-controller";
const VERSION: &str = "v1.9.6";
const SOURCE_GROUP: &str = "source.toolkit.fluxcd.io";
const KUSTOMIZE_GROUP: &str = "kustomize.toolkit.fluxcd.io";

pub(crate) async fn the_example_of_flux_is_applied_in_the_tenant(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, NAMESPACE, &cluster(NAME, &[])).await;
    define_kinds(&host).await;
    apply_example(&host.client, NAMESPACE, "gitops/flux.yaml").await;
    let folder = TempDir::new().unwrap();
    let _controller = start_controller(&host, &folder);

    let revisions = [archive(1), archive(2)];
    let address = serve(&revisions).await;
    publish(&host, &address, &revisions, 0).await;
    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), "default");
    until_replicas(&deployments, 1, &folder).await;
    let delivered = deployments.get("web").await.unwrap();
    assert_eq!(delivered.labels()["kustomize.toolkit.fluxcd.io/name"], KUSTOMIZATION);
    let kustomizations = dynamic(&host.client, KUSTOMIZE_GROUP, "v1", "Kustomization", NAMESPACE);
    until("the Kustomization is ready", SOON, async || {
        let found = kustomizations
            .get(KUSTOMIZATION)
            .await
            .map_err(|error| error.to_string())?;
        if is_ready(&found) {
            Ok(())
        } else {
            Err(found.data["status"].to_string())
        }
    })
    .await;
    // It is in the tenant, and not on the host.
    let on_host: Api<Deployment> = Api::namespaced(host.client.clone(), "default");
    assert!(on_host.get_opt("web").await.unwrap().is_none());

    publish(&host, &address, &revisions, 1).await;
    until_replicas(&deployments, 2, &folder).await;

    // What Flux delivered goes with the Kustomization.
    kustomizations
        .delete(KUSTOMIZATION, &DeleteParams::default())
        .await
        .unwrap();
    until_true("the Deployment is pruned", SOON, async || {
        matches!(deployments.get_opt("web").await, Ok(None))
    })
    .await;
    until_true("the Kustomization is gone", SOON, async || {
        matches!(kustomizations.get_opt(KUSTOMIZATION).await, Ok(None))
    })
    .await;
    tenant.delete(&host).await;
}

/// The Kustomization as its module defines it, and the kinds of sources, which kustomize-controller watches, without a schema.
async fn define_kinds(host: &TestCluster) {
    let folder = existing(cache().join("manifests").join(COMPONENT).join(VERSION));
    let text = fs::read_to_string(folder.join("kustomize.toolkit.fluxcd.io_kustomizations.yaml")).unwrap();
    let mut definitions = documents(&text);
    for (kind, plural) in [
        ("GitRepository", "gitrepositories"),
        ("OCIRepository", "ocirepositories"),
        ("Bucket", "buckets"),
        ("ExternalArtifact", "externalartifacts"),
    ] {
        definitions.push(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{SOURCE_GROUP}")},
            "spec": {
                "group": SOURCE_GROUP, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        }));
    }
    for definition in definitions.iter().filter(|definition| definition.is_object()) {
        apply(&host.client, "", definition).await.unwrap();
    }
    for (group, kind) in [
        (SOURCE_GROUP, "Bucket"),
        (SOURCE_GROUP, "GitRepository"),
        (KUSTOMIZE_GROUP, "Kustomization"),
    ] {
        let objects = dynamic(&host.client, group, "v1", kind, NAMESPACE);
        until_true("the kinds of Flux are served", SOON, async || {
            objects.list(&kube::api::ListParams::default()).await.is_ok()
        })
        .await;
    }
}

/// kustomize-controller as a process on this machine, without ports.
fn start_controller(host: &TestCluster, folder: &TempDir) -> Child {
    let program = existing(cache().join("bin").join(COMPONENT).join(VERSION).join(COMPONENT));
    let log = File::create(folder.path().join("log")).unwrap();
    Command::new(program)
        .args([
            "--metrics-addr=0",
            "--health-addr=0",
            "--log-level=debug",
            "--requeue-dependency=1s",
        ])
        .env("KUBECONFIG", host.home().admin_kubeconfig())
        .env("TMPDIR", folder.path())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// What source-controller packs: the folder that the Kustomization names, with a Deployment.
fn archive(replicas: u32) -> Vec<u8> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "registry.example.com/web:1"}]},
        }},
    });
    let text = deployment.to_string();
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "base/web.yaml", text.as_bytes())
        .unwrap();
    builder.into_inner().unwrap().finish().unwrap()
}

fn file_name(revision: usize) -> String {
    format!("{revision}.tar.gz")
}

/// Serves each revision on loopback, and returns the URL of the server.
async fn serve(revisions: &[Vec<u8>]) -> String {
    let mut router = Router::new();
    for (revision, bytes) in revisions.iter().cloned().enumerate() {
        router = router.route(&format!("/{}", file_name(revision)), get(move || async move { bytes }));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// Writes the status of the GitRepository, as source-controller does when it has fetched a revision.
async fn publish(host: &TestCluster, address: &str, revisions: &[Vec<u8>], revision: usize) {
    let bytes = &revisions[revision];
    let mut hex = String::new();
    for byte in digest(&SHA256, bytes).as_ref() {
        write!(hex, "{byte:02x}").unwrap();
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let file = file_name(revision);
    let status = json!({"status": {
        "observedGeneration": 1,
        "artifact": {
            "url": format!("{address}/{file}"), "path": file, "digest": format!("sha256:{hex}"), "size": bytes.len(),
            "revision": format!("main@sha1:{revision:040}"), "lastUpdateTime": now,
        },
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact",
            "lastTransitionTime": now, "observedGeneration": 1,
        }],
    }});
    let sources = dynamic(&host.client, SOURCE_GROUP, "v1", "GitRepository", NAMESPACE);
    let patched = sources
        .patch_status(SOURCE, &PatchParams::default(), &Patch::Merge(&status))
        .await;
    patched.unwrap();
}

fn is_ready(kustomization: &DynamicObject) -> bool {
    let conditions = kustomization.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut ready = conditions.filter(|condition: &&Value| condition["type"] == "Ready");
    ready.any(|condition| condition["status"] == "True")
}

async fn until_replicas(deployments: &Api<Deployment>, replicas: i32, folder: &TempDir) {
    until("the Deployment is in the tenant", SOON, async || {
        let found = deployments.get_opt("web").await.map_err(|error| error.to_string())?;
        if found.is_some_and(|deployment| deployment.spec.replicas == Some(replicas)) {
            return Ok(());
        }
        let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        Err(format!("the log of {COMPONENT} ends with {lines:#?}"))
    })
    .await;
}
