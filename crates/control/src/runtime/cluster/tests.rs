use super::*;
use crate::{
    apply::Applier,
    control_plane::{API_SERVER, Health, Program, SYNCER},
    testing::{Script, ScriptedApi},
};
use k8s_openapi::api::core::v1::Toleration;
use serde_json::json;

/// A client that is never used.
fn client() -> Client {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    berth_runtime::client::from_config(config).unwrap()
}

struct Fixture {
    tenant: TenantId,
    labels: BTreeMap<String, String>,
    host: Applier,
}

impl Fixture {
    fn new() -> Self {
        let tenant = TenantId::new("vision", "6f2c");
        Self {
            labels: BTreeMap::from([(labels::TENANT.into(), tenant.slug().into())]),
            tenant,
            host: Applier::new(client()),
        }
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            tenant: &self.tenant,
            labels: &self.labels,
            host: &self.host,
        }
    }
}

fn api_server(replicas: u32) -> Component {
    Component {
        name: API_SERVER,
        program: Program::Kubernetes {
            version: "v1.37.1".into(),
        },
        args: vec!["--tls-cert-file=$(FILES)/tls.crt".into()],
        env: BTreeMap::from([("GOGC".into(), "50".into())]),
        files: BTreeMap::from([
            ("tls.crt".into(), "certificate".into()),
            (
                "admission.json".into(),
                "{\"kubeConfigFile\": \"$(FILES)/webhooks.kubeconfig\"}".into(),
            ),
        ]),
        host_service_account: None,
        memory_limit: None,
        replicas,
        overlaps: true,
        health: Some(Health {
            port: 6443,
            tls: true,
            live: "/livez",
            ready: "/readyz",
        }),
    }
}

fn syncer() -> Component {
    Component {
        name: SYNCER,
        program: Program::Syncer,
        args: vec!["--host-kubeconfig=$(FILES)/host.kubeconfig".into()],
        env: BTreeMap::new(),
        files: BTreeMap::from([("host.kubeconfig".into(), "token: $(FILES)/token".into())]),
        host_service_account: Some(SYNCER),
        memory_limit: None,
        replicas: 1,
        overlaps: false,
        health: Some(Health {
            port: 8080,
            tls: false,
            live: "/healthz",
            ready: "/readyz",
        }),
    }
}

#[tokio::test]
async fn components_become_deployments() {
    berth_runtime::install_crypto();
    let fixture = Fixture::new();
    let settings = ClusterSettings::default();
    let files = build::files(fixture.owner(), &api_server(1));
    insta::assert_yaml_snapshot!("api-server-files", files);
    let one = build::deployment(fixture.owner(), &api_server(1), &settings, &files.name_any());
    insta::assert_yaml_snapshot!("api-server", one);
    insta::assert_yaml_snapshot!(
        "syncer",
        build::deployment(fixture.owner(), &syncer(), &settings, "syncer-files-x")
    );
    insta::assert_yaml_snapshot!("service", build::service(fixture.owner(), &PORTS));
}

#[tokio::test]
async fn replicas_are_spread_and_kept() {
    berth_runtime::install_crypto();
    let fixture = Fixture::new();
    let settings = ClusterSettings {
        kubernetes_registry: "mirror.example/k8s".into(),
        image_pull_secrets: vec!["mirror".into()],
        priority_class_name: Some("control-planes".into()),
        node_selector: BTreeMap::from([("role".into(), "infra".into())]),
        tolerations: vec![Toleration {
            key: Some("infra".into()),
            operator: Some("Exists".into()),
            ..Toleration::default()
        }],
        ..ClusterSettings::default()
    };
    let three = build::deployment(fixture.owner(), &api_server(3), &settings, "kube-apiserver-files-x");
    insta::assert_yaml_snapshot!("api-server-of-three", three);
    insta::assert_yaml_snapshot!("budget", build::disruption_budget(fixture.owner(), &api_server(3)));
}

#[tokio::test(start_paused = true)]
async fn the_host_may_start_what_it_has_not_scaled_down() {
    berth_runtime::install_crypto();
    let (fixture, host) = (Fixture::new(), ScriptedApi::new("host", &Script::default()));
    let namespace = fixture.tenant.control_plane_namespace();
    let deployment = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{API_SERVER}");
    let pod = format!("/api/v1/namespaces/{namespace}/pods/{API_SERVER}-1");
    let set = |generation: i64, replicas: i32, status: serde_json::Value| {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": API_SERVER, "namespace": namespace, "labels": fixture.labels, "generation": generation},
            "spec": {"replicas": replicas, "selector": {}, "template": {}}, "status": status});
        host.insert(&deployment, object);
    };
    let create_pod = || {
        let object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{API_SERVER}-1"), "namespace": namespace, "labels": fixture.labels},
            "spec": {"containers": []}});
        host.insert(&pod, object);
    };
    let runtime = ClusterRuntime::new(ClusterSettings::default(), host.client());
    let check = async || match runtime.check_stopped(&fixture.tenant).await {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    set(1, 1, json!({"observedGeneration": 1, "replicas": 1}));
    create_pod();
    runtime.stop_components(&fixture.tenant).await.unwrap();
    assert!(host.get(&pod).is_none());
    assert_eq!(host.get(&deployment).unwrap()["spec"]["replicas"], 0);
    // The host has not seen that, as its status says.
    let is_unscaled = |text: &str| text.contains("has not scaled down") && text.ends_with(API_SERVER);
    let found = check().await;
    assert!(is_unscaled(&found), "{found}");
    set(2, 0, json!({"observedGeneration": 1}));
    let found = check().await;
    assert!(is_unscaled(&found), "{found}");
    // It has created another pod before that.
    set(2, 0, json!({"observedGeneration": 2}));
    create_pod();
    let found = check().await;
    assert!(found.ends_with(&format!("Berth stops them: {API_SERVER}-1")), "{found}");
    runtime.stop_components(&fixture.tenant).await.unwrap();
    assert_eq!(check().await, "");
}

#[tokio::test]
async fn other_files_are_another_secret() {
    berth_runtime::install_crypto();
    let fixture = Fixture::new();
    let name = |component: &Component| build::files(fixture.owner(), component).name_any();
    let mut renewed = api_server(1);
    renewed.files.insert("tls.crt".into(), "another certificate".into());
    assert_eq!(name(&api_server(1)), name(&api_server(1)));
    assert_ne!(name(&api_server(1)), name(&renewed));
}

#[tokio::test]
async fn a_file_in_a_folder_has_a_key_without_one() {
    berth_runtime::install_crypto();
    let fixture = Fixture::new();
    let mut component = api_server(1);
    component
        .files
        .insert("mutating/created-by.yaml".into(), "policies".into());
    let secret = build::files(fixture.owner(), &component);
    assert!(secret.data.unwrap().contains_key("mutating_created-by.yaml"));
    let deployment = build::deployment(fixture.owner(), &component, &ClusterSettings::default(), "files");
    let text = serde_json::to_string(&deployment).unwrap();
    assert!(
        text.contains(r#""key":"mutating_created-by.yaml","path":"mutating/created-by.yaml""#),
        "{text}"
    );
}

/// What a Deployment says that is rolled out.
fn rolled_out() -> serde_json::Value {
    json!({"updatedReplicas": 1, "replicas": 1, "availableReplicas": 1})
}

/// A runtime, and the host to which it applies.
struct Changes {
    host: ScriptedApi,
    fixture: Fixture,
    runtime: ClusterRuntime,
}

impl Changes {
    fn new() -> Self {
        berth_runtime::install_crypto();
        let host = ScriptedApi::new("host", &Script::default());
        Self {
            fixture: Fixture {
                host: Applier::new(host.client()),
                ..Fixture::new()
            },
            runtime: ClusterRuntime::new(ClusterSettings::default(), host.client()),
            host,
        }
    }

    async fn apply(&self, component: &Component) {
        let owner = self.fixture.owner();
        self.runtime.apply_component(owner, component).await.unwrap();
    }

    async fn is_rolled_out(&self, component: &Component) -> bool {
        let owner = self.fixture.owner();
        self.runtime.is_rolled_out(owner, component).await.unwrap()
    }

    fn path(&self, of: &str) -> String {
        let namespace = self.fixture.tenant.control_plane_namespace();
        of.replace("NAMESPACE", &namespace)
    }

    fn deployment(&self, component: &str) -> String {
        self.path(&format!("/apis/apps/v1/namespaces/NAMESPACE/deployments/{component}"))
    }

    fn set_status(&self, component: &str, status: serde_json::Value) {
        let path = self.deployment(component);
        let mut object = self.host.get(&path).unwrap();
        object["status"] = status;
        self.host.insert(&path, object);
    }

    fn files_of(&self, component: &Component) -> String {
        build::files(self.fixture.owner(), component).name_any()
    }

    /// Whether the host has the Secret with the files of a component.
    fn has_files_of(&self, component: &Component) -> bool {
        let path = self.path(&format!(
            "/api/v1/namespaces/NAMESPACE/secrets/{}",
            self.files_of(component)
        ));
        self.host.get(&path).is_some()
    }
}

/// A component with other files, for each number.
fn changed(mut component: Component, number: usize) -> Component {
    component.files.insert("policy.json".into(), number.to_string());
    component
}

#[tokio::test]
async fn files_of_changes_that_are_never_rolled_out_are_deleted() {
    let changes = Changes::new();
    let component = |number: usize| changed(syncer(), number);
    let used = changes.files_of(&component(0));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "syncer-1", "labels": pod_selector(&changes.fixture.tenant, SYNCER)},
        "spec": {"containers": [], "volumes": [{"name": "files", "projected": {"sources": [{"secret": {"name": used}}]}}]},
    });
    let path = changes.path("/api/v1/namespaces/NAMESPACE/pods/syncer-1");
    changes.host.insert(&path, pod);
    for number in 0..30 {
        changes.apply(&component(number)).await;
        let files = changes.host.find(&format!("/secrets/{SYNCER}-files-"));
        assert!(files.len() <= 8, "{number}: {}", files.len());
        assert!(changes.has_files_of(&component(number)), "{number}");
    }
    assert!(changes.has_files_of(&component(0)), "a pod has it");
    assert!(!changes.has_files_of(&component(1)));
    // It is made again if it is wanted again.
    changes.apply(&component(1)).await;
    assert!(changes.has_files_of(&component(1)));
}

#[tokio::test]
async fn replica_sets_of_changes_that_are_never_rolled_out_are_deleted() {
    let changes = Changes::new();
    for number in 1..=30 {
        changes.apply(&changed(syncer(), number)).await;
        // The host makes one for each change.
        let mut labels = pod_selector(&changes.fixture.tenant, SYNCER);
        labels.insert("pod-template-hash".into(), number.to_string());
        let annotations = json!({"deployment.kubernetes.io/revision": number.to_string()});
        let set = json!({
            "metadata": {"name": format!("syncer-{number}"), "uid": number.to_string(), "labels": labels, "annotations": annotations},
            "spec": {"replicas": 0, "selector": {}}, "status": {"replicas": 0},
        });
        let path = changes.path(&format!(
            "/apis/apps/v1/namespaces/NAMESPACE/replicasets/syncer-{number}"
        ));
        changes.host.insert(&path, set);
        let left = changes.host.find("/replicasets/");
        assert!(left.len() <= 9, "{number}: {}", left.len());
        assert!(changes.host.get(&path).is_some());
    }
}

#[tokio::test]
async fn files_of_the_last_rollout_stay_while_its_pod_is_replaced() {
    let changes = Changes::new();
    let component = |number: usize| changed(syncer(), number);
    changes.apply(&component(0)).await;
    changes.set_status(SYNCER, rolled_out());
    changes.apply(&component(0)).await;
    changes.set_status(SYNCER, json!({}));
    for number in 1..30 {
        changes.apply(&component(number)).await;
    }
    assert!(changes.has_files_of(&component(0)) && changes.has_files_of(&component(29)));
    assert!(!changes.has_files_of(&component(1)));
}

#[tokio::test(start_paused = true)]
async fn a_component_whose_changes_are_not_rolled_out_is_changed_at_a_bounded_pace() {
    let changes = Changes::new();
    let applies = async |component: Component| {
        changes.apply(&component).await;
        let deployment = changes.host.get(&changes.deployment(API_SERVER)).unwrap();
        deployment.to_string().contains(&changes.files_of(&component))
    };
    let change = |number: usize| changed(api_server(1), number);
    // The first one, and as many as may follow at once.
    for number in 0..9 {
        assert!(applies(change(number)).await, "{number}");
    }
    assert!(!applies(change(9)).await);
    for _ in 0..20 {
        assert!(applies(change(8)).await, "nothing has changed");
    }
    assert!(!applies(change(9)).await);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(applies(change(9)).await);
    assert!(!applies(change(10)).await);
    changes.set_status(API_SERVER, rolled_out());
    assert!(applies(change(10)).await, "the last change was rolled out");
    changes.set_status(API_SERVER, json!({}));
    assert!(!applies(change(11)).await);
    let mut urgent = change(11);
    urgent.overlaps = false;
    assert!(applies(urgent).await, "what runs must not go on");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_waits_is_not_rolled_out() {
    let changes = Changes::new();
    // Other flags need no other files.
    let with_flag = |number: usize| {
        let mut component = api_server(1);
        component.args.push(format!("--v={number}"));
        component
    };
    for number in 0..10 {
        changes.apply(&with_flag(number)).await;
    }
    // The change before is rolled out a moment later.
    changes.set_status(API_SERVER, rolled_out());
    assert!(changes.is_rolled_out(&with_flag(8)).await);
    assert!(!changes.is_rolled_out(&with_flag(9)).await);
    changes.apply(&with_flag(9)).await;
    assert!(changes.is_rolled_out(&with_flag(9)).await);
}

/// A host on which the platform has image pull Secrets of these names.
fn host_with_pull_secrets(names: &[&str]) -> ScriptedApi {
    let host = ScriptedApi::new("host", &Script::default());
    for name in names {
        let secret = json!({"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}});
        host.insert(&format!("/api/v1/namespaces/berth-system/secrets/{name}"), secret);
    }
    host
}

/// A runtime with settings that name these image pull Secrets.
fn runtime_with_pull_secrets(host: &ScriptedApi, names: &[&str]) -> ClusterRuntime {
    let settings = ClusterSettings {
        image_pull_secrets: names.iter().map(ToString::to_string).collect(),
        ..ClusterSettings::default()
    };
    ClusterRuntime::new(settings, host.client())
}

#[tokio::test]
async fn a_pull_secret_that_the_platform_does_not_name_any_more_does_not_stay_with_tenants() {
    berth_runtime::install_crypto();
    let host = host_with_pull_secrets(&["old", "new"]);
    let fixture = Fixture {
        host: Applier::new(host.client()),
        ..Fixture::new()
    };
    let namespace = fixture.tenant.control_plane_namespace();
    let path = |name: &str| format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let keys = json!({"metadata": {"name": "pki", "namespace": namespace, "labels": fixture.labels}});
    host.insert(&path("pki"), keys);
    // Copies of an earlier control, which gave them no label of their own. The platform may have put others there.
    for (name, labels) in [
        ("earlier", json!(fixture.labels)),
        ("new", json!(fixture.labels)),
        ("own", json!({})),
    ] {
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        let copy = json!({"metadata": metadata, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}});
        host.insert(&path(name), copy);
    }
    let component = api_server(1);
    for names in [["old"], ["new"]] {
        // Other settings are another process.
        let runtime = runtime_with_pull_secrets(&host, &names);
        runtime.copy_pull_secrets(fixture.owner()).await.unwrap();
        assert!(host.get(&path(names[0])).is_some());
        runtime
            .delete_outdated_objects(fixture.owner(), &component, "files")
            .await
            .unwrap();
    }
    for gone in ["old", "earlier"] {
        assert!(host.get(&path(gone)).is_none(), "{gone}");
    }
    for kept in ["new", "pki", "own"] {
        assert!(host.get(&path(kept)).is_some(), "{kept}");
    }
}

#[tokio::test]
async fn the_copy_of_a_pull_secret_that_cannot_be_changed_is_made_again() {
    berth_runtime::install_crypto();
    let host = host_with_pull_secrets(&["mirror"]);
    let fixture = Fixture {
        host: Applier::new(host.client()),
        ..Fixture::new()
    };
    let path = format!(
        "/api/v1/namespaces/{}/secrets/mirror",
        fixture.tenant.control_plane_namespace()
    );
    let of_another_type = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "e30="}});
    let immutable =
        json!({"type": "kubernetes.io/dockerconfigjson", "immutable": true, "data": {".dockerconfigjson": "e30K"}});
    for mut before in [of_another_type, immutable] {
        before["metadata"] = json!({"name": "mirror"});
        host.insert(&path, before);
        fixture.host.forget();
        let runtime = runtime_with_pull_secrets(&host, &["mirror"]);
        runtime.copy_pull_secrets(fixture.owner()).await.unwrap();
        let copy = host.get(&path).unwrap();
        assert_eq!(copy["type"], "kubernetes.io/dockerconfigjson");
        assert_eq!(copy["data"], json!({".dockerconfigjson": "e30="}));
    }
}
