//! An operator that runs: its pods on simulated nodes run no containers, so the test runs its program itself.
//!
//! The program gets what its container would: the arguments of its Deployment, the configuration and the certificate
//! that the pod mounts, and a token of its `ServiceAccount` from the TokenRequest API. What differs is where it
//! listens: the ports of a machine are shared with others, so it gets free ones, and its webhooks' configurations
//! name a URL on loopback instead of the Service, behind which nothing listens.

use crate::chart::Chart;
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use berth_process::{ProcessSpec, Supervisor, SupervisorConfig, free_port};
use berth_tests::{
    tenant::Tenant,
    wait::{until, until_true},
    world::World,
};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::Deployment,
    authentication::v1::TokenRequest,
    coordination::v1::Lease,
    core::v1::{ConfigMap, PodSpec, Secret, ServiceAccount},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    fmt::Debug,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SOON: Duration = Duration::from_secs(60);
/// Where every one of these charts mounts the operator's configuration.
const CONFIGURATION: &str = "/controller_manager_config.yaml";
/// Where every one of them mounts the certificate of its webhooks.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";

/// An operator's running program. It ends with the value, or with [`Operator::stop`].
pub struct Operator {
    supervisor: Supervisor,
    name: String,
    marker: Option<PathBuf>,
    folder: TempDir,
}

impl Operator {
    /// Starts the program of an installed chart and waits until it leads and its webhooks answer.
    pub async fn start(world: &World, tenant: &Tenant, chart: &Chart) -> Self {
        let folder = TempDir::new().unwrap();
        let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), chart.namespace);
        let deployment = deployments.get(chart.deployment).await.unwrap();
        let pod = deployment.spec.template.spec.unwrap();
        let (webhooks, health) = (free_port().unwrap(), free_port().unwrap());

        let config = configuration(tenant, chart, &pod, folder.path(), webhooks, health).await;
        let kubeconfig = kubeconfig(tenant, chart, &pod).await;
        std::fs::write(folder.path().join("configuration"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        std::fs::create_dir(folder.path().join("certificates")).unwrap();
        let marker = chart.waits_for.map(PathBuf::from).filter(|path| !path.exists());
        if let Some(marker) = &marker {
            std::fs::create_dir_all(marker.parent().unwrap()).unwrap();
            std::fs::write(marker, "").unwrap();
        }
        answer_on_loopback(&tenant.client, chart, webhooks).await;

        let supervisor = Supervisor::open(SupervisorConfig {
            dir: world.host.home().root().join(format!("{}-{}", tenant.name, chart.name)),
            die_with_parent: true,
        });
        let name = format!("operator-{}", chart.name);
        let mut spec = ProcessSpec::new(&name, chart.program(), world.host.home().log(&name));
        let own = format!("--config={}", folder.path().join("configuration").display());
        let args = pod.containers[0].args.clone().unwrap_or_default();
        spec.args = args
            .into_iter()
            .map(|arg| {
                if arg == format!("--config={CONFIGURATION}") {
                    own.clone()
                } else {
                    arg
                }
            })
            .chain(chart.further_args.iter().map(ToString::to_string))
            .collect();
        spec.env.insert(
            "KUBECONFIG".into(),
            folder.path().join("kubeconfig").display().to_string(),
        );
        let operator = Self {
            supervisor: supervisor.await.unwrap(),
            name,
            marker,
            folder,
        };
        operator.supervisor.ensure(spec).await.unwrap();

        mount_certificate(tenant, chart, &pod, operator.folder.path()).await;
        until_true(&format!("{} is ready", chart.name), SOON, async || {
            // Not every operator waits for its webhooks before it calls itself ready.
            is_ready(health).await && TcpStream::connect((Ipv4Addr::LOCALHOST, webhooks)).await.is_ok()
        })
        .await;
        until_leading(tenant, chart).await;
        operator
    }

    /// Stops the program.
    pub async fn stop(self) {
        self.supervisor.stop(&self.name, None).await.unwrap();
        if let Some(marker) = &self.marker {
            let _ = std::fs::remove_file(marker);
        }
    }
}

/// The configuration that the pod mounts, with free ports.
async fn configuration(
    tenant: &Tenant,
    chart: &Chart,
    pod: &PodSpec,
    folder: &Path,
    webhooks: u16,
    health: u16,
) -> Value {
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), chart.namespace);
    let volume = volume_at(pod, CONFIGURATION);
    let name = volume["configMap"]["name"].as_str().unwrap();
    let text = maps.get(name).await.unwrap().data.unwrap()[CONFIGURATION.trim_start_matches('/')].clone();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap();
    config["webhook"] = json!({
        "host": Ipv4Addr::LOCALHOST, "port": webhooks, "certDir": folder.join("certificates"),
    });
    config["health"] = json!({"healthProbeBindAddress": format!("{}:{health}", Ipv4Addr::LOCALHOST)});
    config["metrics"] = json!({"bindAddress": "0"});
    config["leaderElection"]["resourceNamespace"] = chart.namespace.into();
    config
}

/// A kubeconfig with a token of the pod's account, as the kubelet gets one for it.
async fn kubeconfig(tenant: &Tenant, chart: &Chart, pod: &PodSpec) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(tenant.client.clone(), chart.namespace);
    let account = pod.service_account_name.as_deref().unwrap();
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &TokenRequest::default())
        .await
        .unwrap();
    let mut kubeconfig = serde_json::to_value(Kubeconfig::from_yaml(&tenant.kubeconfig).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    kubeconfig.to_string()
}

/// The volume mounted at a path of the first container.
fn volume_at(pod: &PodSpec, path: &str) -> Value {
    let mounts = pod.containers[0].volume_mounts.iter().flatten();
    let mount = mounts.into_iter().find(|mount| mount.mount_path == path).unwrap();
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name);
    serde_json::to_value(volume.unwrap()).unwrap()
}

/// Waits until the operator has made its authority and puts a certificate where the program looks for it.
///
/// The kubelet would put the Secret's own there. That one is for the name of the Service; ours is for loopback, and
/// the API server trusts it for the same reason: the operator's authority has signed it.
async fn mount_certificate(tenant: &Tenant, chart: &Chart, pod: &PodSpec, folder: &Path) {
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), chart.namespace);
    let volume = volume_at(pod, CERTIFICATES);
    let name = volume["secret"]["secretName"].as_str().unwrap();
    let authority = until(&format!("{} has an authority", chart.name), SOON, async || {
        let data = secrets
            .get(name)
            .await
            .map_err(|error| error.to_string())?
            .data
            .unwrap_or_default();
        let text = |key: &str| String::from_utf8(data.get(key).ok_or("none yet")?.0.clone()).map_err(|e| e.to_string());
        CertificateAuthority::from_pem(&text("ca.crt")?, &text("ca.key")?).map_err(|error| error.to_string())
    })
    .await;
    let leaf = LeafRequest {
        common_name: chart.name.into(),
        ip_addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        ..LeafRequest::new(Usage::Server, Duration::from_secs(3600))
    };
    let leaf = authority.issue(&leaf).unwrap();
    let folder = folder.join("certificates");
    // The key first: the program looks for the certificate.
    std::fs::write(folder.join("tls.key"), leaf.key_pem).unwrap();
    std::fs::write(folder.join("tls.new"), leaf.cert_pem).unwrap();
    std::fs::rename(folder.join("tls.new"), folder.join("tls.crt")).unwrap();
}

async fn is_ready(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with("HTTP/1.0 200"))
    };
    ask.await.unwrap_or(false)
}

async fn until_leading(tenant: &Tenant, chart: &Chart) {
    let leases: Api<Lease> = Api::namespaced(tenant.client.clone(), chart.namespace);
    until_true(&format!("{} leads", chart.name), SOON, async || {
        leases.list(&ListParams::default()).await.is_ok_and(|list| {
            list.iter()
                .any(|lease| lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.is_some()))
        })
    })
    .await;
}

/// Makes the API server call the operator's webhooks and conversions on loopback. The rest of their configurations,
/// such as the authority that the operator writes into them, stays as it is.
async fn answer_on_loopback(client: &Client, chart: &Chart, port: u16) {
    redirect::<MutatingWebhookConfiguration>(client, chart, port).await;
    redirect::<ValidatingWebhookConfiguration>(client, chart, port).await;
    redirect::<CustomResourceDefinition>(client, chart, port).await;
}

async fn redirect<K>(client: &Client, chart: &Chart, port: u16)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    for object in api.list(&ListParams::default()).await.unwrap() {
        let value = serde_json::to_value(&object).unwrap();
        let webhooks = value["webhooks"].as_array().into_iter().flatten().enumerate();
        let mut found: Vec<(String, &Value)> = webhooks
            .map(|(index, webhook)| (format!("/webhooks/{index}/clientConfig"), &webhook["clientConfig"]))
            .collect();
        found.push((
            "/spec/conversion/webhook/clientConfig".into(),
            &value["spec"]["conversion"]["webhook"]["clientConfig"],
        ));
        let operations: Vec<Value> = found
            .into_iter()
            .filter(|(_, config)| config["service"]["namespace"] == chart.namespace)
            .flat_map(|(path, config)| {
                let called = config["service"]["path"].as_str().unwrap_or_default();
                let url = format!("https://{}:{port}{called}", Ipv4Addr::LOCALHOST);
                [
                    json!({"op": "remove", "path": format!("{path}/service")}),
                    json!({"op": "add", "path": format!("{path}/url"), "value": url}),
                ]
            })
            .collect();
        if !operations.is_empty() {
            let patch = Patch::<K>::Json(serde_json::from_value(operations.into()).unwrap());
            api.patch(&object.name_any(), &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
    }
}
