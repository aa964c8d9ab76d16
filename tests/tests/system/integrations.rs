//! Credentials of a tenant in the forms that Argo CD and tools of Cluster API read. The programs themselves do not run here: clients are
//! built from the Secrets as these programs build theirs. The test starts control anew with the namespace of Argo CD, so it needs the
//! cluster for itself.

use berth_api::{TenantClass, TenantCluster, conditions, labels};
use berth_process::free_port;
use berth_tests::{
    files::example,
    gateway::{Gateway, control_flags, host_name},
    objects::apply,
    tenant::{Tenant, cluster, ensure_namespace, patient, patient_with},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    authentication::v1::{SelfSubjectReview, UserInfo},
    core::v1::{ConfigMap, Namespace, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const NAMESPACE: &str = "sys-integrations";
const ARGO_CD: &str = "sys-argocd";
const NAME: &str = "vision";

fn texts(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.clone().unwrap_or_default().into_iter();
    data.map(|(key, bytes)| (key, String::from_utf8(bytes.0).unwrap()))
        .collect()
}

/// A client as Argo CD makes it: of `server` and `config`, and nothing else.
async fn client_of(secret: &Secret) -> Client {
    patient_with(kubeconfig_of(secret)).await
}

fn kubeconfig_of(secret: &Secret) -> Kubeconfig {
    let texts = texts(secret);
    let config: Value = serde_json::from_str(&texts["config"]).unwrap();
    let tls = &config["tlsClientConfig"];
    assert_eq!(tls["insecure"], false);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": texts["server"], "certificate-authority-data": tls["caData"]}}],
        "users": [{"name": "it", "user": {"client-certificate-data": tls["certData"], "client-key-data": tls["keyData"]}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    Kubeconfig::from_yaml(&kubeconfig.to_string()).unwrap()
}

async fn user_of(client: &Client) -> UserInfo {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    review.unwrap().status.unwrap().user_info.unwrap()
}

async fn patch(host: &TestCluster, spec: &Value) {
    host.patch_tenant(NAMESPACE, NAME, spec).await;
}

/// Waits until a condition has a reason; without one, until there is no such condition.
async fn until_condition(host: &TestCluster, name: &str, kind: &str, reason: Option<&str>) {
    let tenants = host.tenants(NAMESPACE);
    until(&format!("{kind} is {reason:?}"), SOON, async || {
        let cluster: TenantCluster = tenants.get(name).await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        // One from before the last change says nothing about it.
        let is_current = status.observed_generation == cluster.metadata.generation;
        let found = status.conditions.iter().find(|condition| condition.type_ == kind);
        if is_current && found.map(|condition| condition.reason.as_str()) == reason {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// Waits for the Secret until it is as `expected` says.
async fn until_secret(secrets: &Api<Secret>, name: &str, what: &str, expected: impl Fn(&Secret) -> bool) -> Secret {
    until(what, SOON, async || match secrets.get_opt(name).await {
        Ok(Some(secret)) if expected(&secret) => Ok(secret),
        Ok(other) => Err(format!("{:?}", other.map(|secret| secret.metadata))),
        Err(error) => Err(error.to_string()),
    })
    .await
}

async fn until_gone(secrets: &Api<Secret>, name: &str) {
    until_true("the Secret is gone", SOON, async || {
        matches!(secrets.get_opt(name).await, Ok(None))
    })
    .await;
}

pub(crate) async fn a_tenant_is_a_cluster_of_argo_cd_while_it_asks_for_it(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, ARGO_CD).await;
    for class in example::<TenantClass>("gitops/argo-cd.yaml") {
        let class = serde_json::to_value(class).unwrap();
        apply(&host.client, "", &class).await.unwrap();
    }
    host.stop_control("first").await;
    let flag = [format!("--argo-cd-namespace={ARGO_CD}")];
    host.start_control_with("first", &flag).await;

    let mut asking = cluster(NAME, &[]);
    asking.spec.class_name = Some("gitops".into());
    let integrations = json!({"argoCD": {"labels": {"gitops.example.com/stage": "prod"}}});
    asking.spec.integrations = serde_json::from_value(integrations).unwrap();
    let tenant = Tenant::create(&host, NAMESPACE, &asking).await;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), ARGO_CD);
    let name = tenant.id.argo_cd_secret();
    the_kubeconfig_secret_is_as_in_cluster_api(&host, &tenant).await;
    let secret = until_secret(&secrets, &name, "the tenant is registered", |_| true).await;
    argo_cd_works_as_its_own_user(&tenant, &secret).await;
    the_secret_follows_the_spec(&host, &secrets, &name).await;
    a_team_chooses_no_project_of_another(&host, &secrets, &name).await;

    let before = texts(&secrets.get(&name).await.unwrap())["config"].clone();
    // Its certificates are lost while control does not run: it gets another one.
    host.stop_control("first").await;
    let own: Api<Secret> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    own.delete("certificates", &DeleteParams::default()).await.unwrap();
    host.start_control_with("first", &flag).await;
    let renewed = until_secret(&secrets, &name, "the certificate is another one", |secret| {
        texts(secret)["config"] != before
    })
    .await;
    let client = client_of(&renewed).await;
    let namespaces: Api<Namespace> = Api::all(client);
    until_true("the new certificate works", SOON, async || {
        namespaces.list(&ListParams::default()).await.is_ok()
    })
    .await;

    it_leaves_nothing_when_it_no_longer_asks(&host, &secrets, &name, &namespaces).await;
    a_foreign_secret_stays(&host, &secrets, &name).await;

    tenant.delete(&host).await;
    assert!(secrets.get_opt(&name).await.unwrap().is_none());
    host.stop_control("first").await;
    host.start_control("first").await;
}

/// For an Argo CD elsewhere, which gets a copy of the Secret.
pub(crate) async fn argo_cd_elsewhere_goes_through_the_gateway(host: Arc<TestCluster>) {
    const NAME: &str = "elsewhere";
    ensure_namespace(&host.client, ARGO_CD).await;
    let class = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "gitops-elsewhere"},
        "spec": {"integrations": {"argoCD": {"registration": "Always", "server": "Gateway"}}},
    });
    apply(&host.client, "", &class).await.unwrap();
    let port = free_port().unwrap();
    let own = [format!("--argo-cd-namespace={ARGO_CD}")];
    host.stop_control("first").await;
    host.start_control_with("first", &[&own[..], &control_flags(port)].concat())
        .await;
    // The client keeps its connection.
    let gateway = Gateway::start(&host, port, &["--drain-timeout=1"]).await;
    let mut asking = cluster(NAME, &[]);
    asking.spec.class_name = Some("gitops-elsewhere".into());
    let tenant = Tenant::create(&host, NAMESPACE, &asking).await;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), ARGO_CD);
    let name = tenant.id.argo_cd_secret();
    let secret = until_secret(&secrets, &name, "the tenant is registered", |_| true).await;
    let url = format!("https://{}:{port}", host_name(&tenant));
    assert_eq!(texts(&secret)["server"], url);

    // No resolver knows the name here: this is the address that Argo CD's would have. The certificate must be valid for the name.
    let mut kubeconfig = kubeconfig_of(&secret);
    let cluster = kubeconfig.clusters[0].cluster.as_mut().unwrap();
    cluster.server = Some(format!("https://{}", gateway.address()));
    cluster.tls_server_name = Some(host_name(&tenant));
    let namespaces: Api<Namespace> = Api::all(patient_with(kubeconfig.clone()).await);
    until_true("Argo CD reaches the tenant", SOON, async || {
        namespaces.list(&ListParams::default()).await.is_ok()
    })
    .await;
    let user = user_of(&patient_with(kubeconfig).await).await;
    assert_eq!(user.username.as_deref(), Some("berth:argocd"));
    assert!(gateway.metrics().await.contains(&format!("tenant=\"{NAME}\"")));

    // The platform takes its gateway away. The tenant says so, and keeps what it has.
    assert!(gateway.stop().await.success());
    host.stop_control("first").await;
    host.start_control_with("first", &own).await;
    until_condition(
        &host,
        NAME,
        conditions::ARGO_CD_REGISTERED,
        Some("GatewayNotConfigured"),
    )
    .await;
    assert_eq!(texts(&secrets.get(&name).await.unwrap())["server"], url);

    tenant.delete(&host).await;
    assert!(secrets.get_opt(&name).await.unwrap().is_none());
    host.stop_control("first").await;
    host.start_control("first").await;
}

async fn the_kubeconfig_secret_is_as_in_cluster_api(host: &TestCluster, tenant: &Tenant) {
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), NAMESPACE);
    let secret = secrets.get(&format!("{NAME}-kubeconfig")).await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
    assert_eq!(secret.labels()["cluster.x-k8s.io/cluster-name"], NAME);
    let client = patient(&texts(&secret)["value"]).await;
    let user = user_of(&client).await;
    assert!(user.groups.unwrap().contains(&"berth:tenant-admins".into()));
    assert_eq!(texts(&secret)["value"], tenant.kubeconfig);
}

async fn argo_cd_works_as_its_own_user(tenant: &Tenant, secret: &Secret) {
    let found = texts(secret);
    assert_eq!(found["name"], format!("{NAME}.{NAMESPACE}"));
    assert_eq!(found["project"], NAMESPACE);
    let all = secret.labels();
    assert_eq!(all["argocd.argoproj.io/secret-type"], "cluster");
    assert_eq!(all["gitops.example.com/stage"], "prod");
    assert_eq!(all[labels::TENANT], tenant.id.slug());
    assert_eq!(
        (all[labels::TENANT_NAME].as_str(), all[labels::CLASS].as_str()),
        (NAME, "gitops")
    );
    let client = client_of(secret).await;
    let user = user_of(&client).await;
    assert_eq!(user.username.as_deref(), Some("berth:argocd"));
    assert!(!user.groups.unwrap().contains(&"berth:tenant-admins".into()));
    // It is cluster-admin.
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-system");
    let map = serde_json::from_value(json!({"metadata": {"name": "by-argo-cd"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

async fn the_secret_follows_the_spec(host: &TestCluster, secrets: &Api<Secret>, name: &str) {
    patch(host, &json!({"integrations": {"argoCD": {"labels": null}}})).await;
    until_secret(secrets, name, "the label is gone", |secret| {
        !secret.labels().contains_key("gitops.example.com/stage")
    })
    .await;
    // A deleted Secret is written again.
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    patch(
        host,
        &json!({"integrations": {"argoCD": {"labels": {"gitops.example.com/stage": "dev"}}}}),
    )
    .await;
    until_secret(secrets, name, "the Secret is written again", |secret| {
        secret
            .labels()
            .get("gitops.example.com/stage")
            .is_some_and(|stage| stage == "dev")
    })
    .await;
}

async fn a_team_chooses_no_project_of_another(host: &TestCluster, secrets: &Api<Secret>, name: &str) {
    patch(host, &json!({"integrations": {"argoCD": {"project": "another-team"}}})).await;
    until_condition(host, NAME, conditions::ACCEPTED, Some("ArgoCDNotAllowed")).await;
    let secret = secrets.get(name).await.unwrap();
    assert_eq!(texts(&secret)["project"], NAMESPACE);
    let foreign = json!({"gitops.example.com/stage": "dev", "argocd.argoproj.io/secret-type": "repository"});
    patch(
        host,
        &json!({"integrations": {"argoCD": {"project": null, "labels": foreign}}}),
    )
    .await;
    until_condition(host, NAME, conditions::ACCEPTED, Some("ArgoCDNotAllowed")).await;
    patch(host, &json!({"integrations": {"argoCD": {"labels": null}}})).await;
    until_condition(host, NAME, conditions::ACCEPTED, Some("Valid")).await;
}

/// The Secret is gone, and a copy of it gives no rights.
async fn it_leaves_nothing_when_it_no_longer_asks(
    host: &TestCluster,
    secrets: &Api<Secret>,
    name: &str,
    copy: &Api<Namespace>,
) {
    patch(host, &json!({"integrations": null})).await;
    until_gone(secrets, name).await;
    until_true("the copy gives no rights", SOON, async || {
        let listed = copy.list(&ListParams::default()).await;
        matches!(listed, Err(kube::Error::Api(status)) if status.code == 403)
    })
    .await;
    until_condition(host, NAME, conditions::ARGO_CD_REGISTERED, None).await;
}

async fn a_foreign_secret_stays(host: &TestCluster, secrets: &Api<Secret>, name: &str) {
    let foreign =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"name": "theirs"}});
    apply(&host.client, ARGO_CD, &foreign).await.unwrap();
    patch(host, &json!({"integrations": {"argoCD": {}}})).await;
    until_condition(host, NAME, conditions::ARGO_CD_REGISTERED, Some("SecretExists")).await;
    let kept = secrets.get(name).await.unwrap();
    assert_eq!(texts(&kept), BTreeMap::from([("name".to_owned(), "theirs".to_owned())]));
    // Once it is deleted, the tenant is registered by itself.
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    until_condition(host, NAME, conditions::ARGO_CD_REGISTERED, Some("Registered")).await;
    let client = client_of(&secrets.get(name).await.unwrap()).await;
    assert_eq!(user_of(&client).await.username.as_deref(), Some("berth:argocd"));
}
