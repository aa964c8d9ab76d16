//! `berth-control`: Berth's operator.

mod args;
mod commands;

use args::{Args, RuntimeKind};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::system;
use berth_control::{
    ControlConfig,
    clock::Clock,
    control_plane::HostInput,
    controllers::{
        QUOTA_USE_INTERVAL,
        idle_gpus::{self, GpuMetricsSource},
        nodes::jobs::NodeJobs,
    },
    datastore::DatastoreConfig,
    metrics::Metrics,
    network::NetworkConfig,
    runtime::{ClusterRuntime, ControlPlaneRuntime, ProcessRuntime, ProcessRuntimeConfig, cluster::ClusterSettings},
};
use berth_prometheus::Prometheus;
use berth_runtime::{
    admin::{self, Readiness},
    client,
    lease::{self, LeaseRequest},
    shutdown, telemetry,
};
use berth_snapshots::{InvalidStore, Store};
use clap::Parser;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, config::Kubeconfig};
use prometheus_client::registry::Registry;
use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    path::Path,
    process::ExitCode,
    sync::Arc,
};
use tokio::task::JoinSet;

type AnyError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    berth_runtime::install_crypto();
    let outcome = if let Some(job) = commands::Job::from_command_line() {
        telemetry::init(job.log_format());
        job.run().await
    } else {
        let args = Args::parse();
        telemetry::init(args.log_format);
        Box::pin(run(args)).await
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "control failed");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), AnyError> {
    // A replica that waits for the lease is ready, and a rollout ends those before it. One that could not work must not get so far.
    let settings = read_cluster_settings(&args)?;
    open_snapshot_store(&args)?;
    let stop = shutdown::signals()?;
    let readiness = Readiness::new(&["host watches"]);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let mut tasks = JoinSet::new();
    tasks.spawn(admin::serve(
        args.admin_address,
        registry,
        readiness.clone(),
        stop.clone(),
    ));

    let host = match &args.kubeconfig {
        Some(file) => client::config_of(file).await?,
        None => client::config_in_cluster()?,
    };
    let client = client::limited_and_reading_all(host.clone())?;
    let lease = LeaseRequest {
        namespace: system::NAMESPACE.into(),
        name: system::CONTROL.into(),
        identity: args.identity(),
        end_process: lease::exit,
        times: lease::Times::default(),
    };
    let mut outcome = Ok(());
    // A replica that waits for the lease is ready: it could take over at any moment.
    let on_waiting = || {
        readiness.remark(&["the lease, which another replica holds".into()]);
        readiness.set("host watches", true);
    };
    let leading = lease::run_as_leader(host, &lease, &stop, on_waiting, async |stop| {
        readiness.set("host watches", false);
        readiness.remark(&[]);
        outcome = lead(&args, settings, client, metrics, stop.clone(), || {
            readiness.set("host watches", true);
        })
        .await;
    });
    Box::pin(leading).await?;
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    outcome
}

/// Runs as the leader. The runtime is opened only now, because only one replica may supervise the processes.
async fn lead(
    args: &Args,
    settings: ClusterSettings,
    client: kube::Client,
    metrics: Metrics,
    stop: tokio_util::sync::CancellationToken,
    on_ready: impl FnOnce(),
) -> Result<(), AnyError> {
    let metrics_from = settings.metrics_from.clone();
    let runtime = open_runtime(args, settings, &client).await?;
    let endpoints = find_datastore_endpoints(args, &client).await?;
    let snapshot_store = open_snapshot_store(args)?;
    let config = ControlConfig {
        client,
        host: read_host_input(args)?,
        datastore: DatastoreConfig {
            endpoints,
            ca_cert: args.datastore_ca.clone(),
            ca_key: args.datastore_ca_key.clone(),
        },
        network: NetworkConfig {
            blocked: args.blocked_cidr.clone(),
            node_networks: args.node_cidr.clone(),
            api_server_clients: args.api_server_client.clone(),
            metrics_from,
            gateway: args.gateway(),
        },
        without_class: args.without_class.into(),
        has_admission_policies: !args.without_admission_policies,
        argo_cd_namespace: args.argo_cd_namespace.clone(),
        node_jobs: NodeJobs {
            image: args.scrub_image.clone(),
            pull_policy: args.scrub_image_pull_policy.clone(),
            pull_secrets: args.scrub_image_pull_secret.clone(),
            placeholder_image: args.placeholder_image.clone(),
        },
        clock: Clock::default(),
        gpu_metrics: open_gpu_metrics(args)?,
        quota_use_interval: QUOTA_USE_INTERVAL,
        usage_retention_months: args.usage_retention_months,
        snapshot_store,
        runtime,
        metrics,
    };
    Ok(berth_control::run(config, stop, on_ready).await?)
}

/// The Prometheus server with the metrics of GPUs, if there is one.
fn open_gpu_metrics(args: &Args) -> Result<Option<GpuMetricsSource>, AnyError> {
    let Some(config) = args.prometheus() else {
        return Ok(None);
    };
    let settings = args.query_settings();
    let invalid = |why: String| format!("--prometheus-matchers, --prometheus-sample-interval: {why}");
    settings.validate().map_err(invalid)?;
    Ok(Some(GpuMetricsSource {
        prometheus: Prometheus::new(config)?,
        settings,
        interval: idle_gpus::INTERVAL,
    }))
}

/// The object store for snapshots, if there is one, with the credentials of the environment.
fn open_snapshot_store(args: &Args) -> Result<Option<Store>, AnyError> {
    let Some(url) = args.snapshot_store.as_ref().filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    let invalid = |error: InvalidStore| format!("--snapshot-store: {error}");
    // Texts that are not UTF-8 are no options of a store.
    let options =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let of_store = options.filter(|(name, _)| name.starts_with("AWS_"));
    Ok(Some(Store::from_url(url, of_store).map_err(invalid)?))
}

/// Where the datastore is: as the command line says, or the address of a Service on the host.
async fn find_datastore_endpoints(args: &Args, client: &kube::Client) -> Result<Vec<String>, AnyError> {
    /// Where etcd serves clients.
    const PORT: u16 = 2379;
    let Some(named) = &args.datastore_service else {
        return Ok(args.datastore_endpoint.clone());
    };
    let (namespace, name) = named
        .split_once('/')
        .ok_or("--datastore-service must be namespace/name")?;
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let spec = services.get(name).await?.spec.unwrap_or_default();
    let address: IpAddr = spec
        .cluster_ip
        .unwrap_or_default()
        .parse()
        .map_err(|_| format!("the Service {named} has no address"))?;
    Ok(vec![format!("https://{}", SocketAddr::new(address, PORT))])
}

/// The platform's settings of control planes that are pods.
fn read_cluster_settings(args: &Args) -> Result<ClusterSettings, AnyError> {
    match &args.cluster_settings {
        Some(file) => Ok(ClusterSettings::read(file)?),
        None => Ok(ClusterSettings::default()),
    }
}

async fn open_runtime(
    args: &Args,
    settings: ClusterSettings,
    client: &kube::Client,
) -> Result<Arc<dyn ControlPlaneRuntime>, AnyError> {
    if args.runtime == RuntimeKind::Cluster {
        return Ok(Arc::new(ClusterRuntime::new(settings, client.clone())));
    }
    let dir = args.runtime_dir.clone().ok_or("--runtime-dir is needed")?;
    let config = ProcessRuntimeConfig {
        log_dir: args.log_dir.clone().unwrap_or_else(|| dir.join("logs")),
        dir,
        kubeconfig_dir: args.kubeconfig_dir.clone(),
        syncer: args.syncer()?,
        die_with_parent: false,
    };
    Ok(Arc::new(ProcessRuntime::open(config, client.clone()).await?))
}

/// Address and CA of the host for syncers: as control's own kubeconfig names them, or those of its service account.
fn read_host_input(args: &Args) -> Result<HostInput, AnyError> {
    let (server, ca_pem) = match &args.kubeconfig {
        Some(file) => read_kubeconfig(file)?,
        None => read_service_account()?,
    };
    Ok(HostInput {
        server: args.host_server.clone().unwrap_or(server),
        ca_pem,
        cluster_domain: args.host_cluster_domain.clone(),
    })
}

fn read_service_account() -> Result<(String, String), AnyError> {
    let config = kube::Config::incluster()?;
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let file = config
        .root_cert_file
        .ok_or("the service account comes without a certificate authority")?;
    Ok((server, std::fs::read_to_string(file)?))
}

fn read_kubeconfig(file: &Path) -> Result<(String, String), AnyError> {
    let kubeconfig = Kubeconfig::read_from(file)?;
    let cluster = kubeconfig
        .clusters
        .first()
        .and_then(|named| named.cluster.as_ref())
        .ok_or("the kubeconfig names no cluster")?;
    let server = cluster.server.clone().ok_or("the kubeconfig names no server")?;
    let ca = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => STANDARD.decode(data)?,
        (None, Some(file)) => std::fs::read(file)?,
        (None, None) => return Err("the kubeconfig names no certificate authority".into()),
    };
    Ok((server, String::from_utf8(ca)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn settings_that_cannot_be_used_end_control_before_it_waits_for_the_lease() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        std::fs::write(&file, r#"{"metricsFrom": [{"ipBlock": {"cidr": "192.0.2.7"}}]}"#).unwrap();
        let args = Args::try_parse_from([
            "berth-control",
            "--runtime=cluster",
            "--datastore-service=berth-system/berth-etcd",
            "--datastore-ca=ca.crt",
            "--datastore-ca-key=ca.key",
            "--admin-address=127.0.0.1:0",
            &format!("--kubeconfig={}", folder.path().join("none").display()),
            &format!("--cluster-settings={}", file.display()),
        ]);
        let error = Box::pin(run(args.unwrap())).await.unwrap_err();
        assert!(error.to_string().contains("192.0.2.7 is not a range"), "{error}");
    }
}
