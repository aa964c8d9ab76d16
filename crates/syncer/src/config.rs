//! Command-line flags, and what the rest of the syncer knows about its tenant.

use berth_api::{SchedulingMode, StorageOffer, TenantLimits};
use berth_runtime::telemetry::LogFormat;
use berth_sync_rules::model::{HostLimits, Tenant, UserRules};
use clap::Parser;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Flags of `berth-syncer`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "berth-syncer",
    version,
    about = "Maps one tenant's objects onto the host cluster and reports back"
)]
pub struct Options {
    /// Kubeconfig of the host cluster, with the rights of the tenant's syncer only.
    #[arg(long, env = "BERTH_HOST_KUBECONFIG")]
    pub host_kubeconfig: PathBuf,
    /// Kubeconfig of the tenant's API server.
    #[arg(long, env = "BERTH_TENANT_KUBECONFIG")]
    pub tenant_kubeconfig: PathBuf,
    /// The tenant's slug: value of its label and taint on host nodes.
    #[arg(long, env = "BERTH_TENANT_ID")]
    pub tenant_id: String,
    /// Host namespace for everything the syncer creates.
    #[arg(long, env = "BERTH_WORKLOAD_NAMESPACE")]
    pub workload_namespace: String,
    /// Host namespace in which the tenant's nodes are published.
    #[arg(long, env = "BERTH_CONTROL_PLANE_NAMESPACE")]
    pub control_plane_namespace: String,
    /// Host of the tenant's API server as pods reach it.
    #[arg(long, env = "BERTH_API_SERVER_HOST")]
    pub api_server_host: String,
    /// Port of the tenant's API server as pods reach it.
    #[arg(long, env = "BERTH_API_SERVER_PORT", default_value_t = 443)]
    pub api_server_port: u16,
    /// Address of the tenant's DNS server. Without one, pods use their node's resolver.
    #[arg(long, env = "BERTH_DNS_ADDRESS")]
    pub dns_address: Option<std::net::IpAddr>,
    /// DNS domain of the tenant's cluster.
    #[arg(long, env = "BERTH_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// File with the rules of the tenant's class (JSON). Without it, nothing that needs permission is allowed.
    #[arg(long, env = "BERTH_POLICY")]
    pub policy: Option<PathBuf>,
    /// File with the networks outside the tenant that are open to it (JSON). Without it, none is.
    #[arg(long, env = "BERTH_NETWORK")]
    pub network: Option<PathBuf>,
    /// Name of the tenant's class, which is part of the names of its priority classes on the host.
    #[arg(long, env = "BERTH_CLASS_NAME", default_value = berth_api::DEFAULT_CLASS)]
    pub class_name: String,
    /// Scheduler of the tenant's pods: the scheduler of the host, or schedulers in the tenant.
    #[arg(long, env = "BERTH_SCHEDULING", value_enum, default_value = "host")]
    pub scheduling: SchedulingOption,
    /// What holds for users who create pods: stamped, if the tenant's API server stamps them, and limited, if their Project limits what they
    /// have; then pods wait on the host until control lets them start.
    #[arg(long, env = "BERTH_USERS", value_enum, value_delimiter = ',')]
    pub users: Vec<UsersOption>,
    /// Storage that the class no longer offers and whose grace period is over, as Kind/name (StorageClass, VolumeAttributesClass, CSIDriver): pods
    /// that use it end. The claims stay.
    #[arg(long, env = "BERTH_WITHDRAWN_STORAGE", value_delimiter = ',', value_name = "NAMES")]
    pub withdrawn_storage: Vec<StorageOffer>,
    /// Bytes that all objects of the tenant may have on the host. Above, nothing is created there, and nothing grows.
    #[arg(long, env = "BERTH_HOST_BYTES", value_name = "BYTES", default_value_t = TenantLimits::default().host_size())]
    pub host_bytes: u64,
    /// Bytes a second that are written on the host in large objects, and as much in small ones. More wait.
    #[arg(long, env = "BERTH_HOST_WRITE_BYTES_PER_SECOND", value_name = "BYTES", default_value_t = TenantLimits::default().host_write_rate())]
    pub host_write_bytes_per_second: u64,
    /// Pods without a node that are on the host. More wait in the tenant.
    #[arg(long, env = "BERTH_WAITING_PODS", value_name = "PODS", value_parser = clap::value_parser!(u32).range(1..),
        default_value_t = TenantLimits::default().waiting_pods)]
    pub waiting_pods: u32,
    /// Pods of one user with limits that are on the host until control lets them start. More wait in the tenant.
    #[arg(long, env = "BERTH_WAITING_PODS_OF_USER", value_name = "PODS", value_parser = clap::value_parser!(u32).range(1..),
        default_value_t = TenantLimits::default().waiting_pods_of_user())]
    pub waiting_pods_of_user: u32,
    /// Services whose endpoints may change in a second, in the long run. Above, those that change most have no endpoints on the host for a while.
    #[arg(long, env = "BERTH_ENDPOINT_CHANGES_PER_SECOND", value_name = "SERVICES", value_parser = clap::value_parser!(u32).range(1..),
        default_value_t = TenantLimits::default().endpoint_changes_per_second)]
    pub endpoint_changes_per_second: u32,
    /// Requests a second that what is written on the host may cost controllers there, in the long run. What is above waits.
    #[arg(long, env = "BERTH_CONTROLLER_REQUESTS_PER_SECOND", value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..),
        default_value_t = TenantLimits::default().controller_requests_per_second)]
    pub controller_requests_per_second: u32,
    /// Claims of devices that the tenant may have on the host, with those that are made there from templates. Pods that need more wait in the tenant.
    #[arg(long, env = "BERTH_RESOURCE_CLAIMS", value_name = "CLAIMS", default_value_t = TenantLimits::default().resource_claims)]
    pub resource_claims: u32,
    /// Networks in which the tenant may choose no address for a Service, because the host keeps these addresses for its own.
    #[arg(
        long,
        env = "BERTH_RESERVED_SERVICE_ADDRESSES",
        value_delimiter = ',',
        value_name = "CIDRS"
    )]
    pub reserved_service_addresses: Vec<IpNet>,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "BERTH_ADMIN_ADDRESS", default_value = "127.0.0.1:0")]
    pub admin_address: SocketAddr,
    /// How the tenant's API server is answered. Without it Services get their address on the host only if it is free there.
    #[command(flatten)]
    pub admission: Option<AdmissionOptions>,
    /// How the tenant's API server reaches the tenant's pods, Services and nodes. Without it, it does not.
    #[command(flatten)]
    pub egress: Option<EgressOptions>,
    /// Format of log lines: text or json.
    #[arg(long, env = "BERTH_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Flags of the admission server; all of them or none.
#[derive(Clone, Debug, clap::Args)]
pub struct AdmissionOptions {
    /// Address on which the tenant's API server asks about Services.
    #[arg(long, env = "BERTH_ADMISSION_ADDRESS", required = false)]
    pub admission_address: SocketAddr,
    /// Host and port at which the API server reaches it, for example syncer.example.svc:8443 [default: the address].
    #[arg(long, env = "BERTH_ADMISSION_AUTHORITY", value_name = "HOST:PORT")]
    pub admission_authority: Option<String>,
    /// Certificate for that host.
    #[arg(long, env = "BERTH_ADMISSION_CERT", required = false)]
    pub admission_cert: PathBuf,
    /// Key of the certificate.
    #[arg(long, env = "BERTH_ADMISSION_KEY", required = false)]
    pub admission_key: PathBuf,
    /// Authority that signed the certificates of both ends.
    #[arg(long, env = "BERTH_ADMISSION_CA", required = false)]
    pub admission_ca: PathBuf,
    /// Bytes a second that the tenant may write in large objects. More wait, and are rejected after a while.
    #[arg(long, env = "BERTH_WRITE_BYTES_PER_SECOND", value_name = "BYTES", default_value_t = TenantLimits::default().write_rate())]
    pub write_bytes_per_second: u64,
}

/// Flags of the egress broker; all of them or none.
#[derive(Clone, Debug, clap::Args)]
pub struct EgressOptions {
    /// Address on which the tenant's API server asks for connections (HTTP CONNECT).
    #[arg(long, env = "BERTH_EGRESS_ADDRESS", required = false)]
    pub egress_address: SocketAddr,
    /// Certificate for the host at which the API server reaches it.
    #[arg(long, env = "BERTH_EGRESS_CERT", required = false)]
    pub egress_cert: PathBuf,
    /// Key of the certificate.
    #[arg(long, env = "BERTH_EGRESS_KEY", required = false)]
    pub egress_key: PathBuf,
    /// Authority that signed the certificates of both ends.
    #[arg(long, env = "BERTH_EGRESS_CA", required = false)]
    pub egress_ca: PathBuf,
    /// Authority that the API server trusts for kubelets, and that its certificate for kubelets is signed by.
    #[arg(long, env = "BERTH_KUBELET_CA", required = false)]
    pub kubelet_ca: PathBuf,
    /// Key of that authority: certificates for the tenant's nodes are signed with it.
    #[arg(long, env = "BERTH_KUBELET_CA_KEY", required = false)]
    pub kubelet_ca_key: PathBuf,
}

/// [`SchedulingMode`] as a flag.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SchedulingOption {
    /// The host's scheduler.
    Host,
    /// Schedulers in the tenant.
    Tenant,
}

/// [`UserRules`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum UsersOption {
    /// The tenant's API server stamps who creates pods.
    Stamped,
    /// The Project of the tenant limits its users.
    Limited,
}

/// Why a file that the flags name cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is not a policy.
    #[error("{0} is not a policy: {1}")]
    Parse(PathBuf, #[source] serde_json::Error),
}

impl TryFrom<&Options> for Tenant {
    type Error = PolicyError;

    fn try_from(options: &Options) -> Result<Self, PolicyError> {
        Ok(Self {
            slug: options.tenant_id.clone(),
            workload_namespace: options.workload_namespace.clone(),
            control_plane_namespace: options.control_plane_namespace.clone(),
            api_server_host: options.api_server_host.clone(),
            api_server_port: options.api_server_port,
            dns_address: options.dns_address.map(|address| address.to_string()),
            cluster_domain: options.cluster_domain.clone(),
            policy: Arc::new(from_file(options.policy.as_deref())?),
            network: Arc::new(from_file(options.network.as_deref())?),
            class_name: options.class_name.clone(),
            scheduling: match options.scheduling {
                SchedulingOption::Host => SchedulingMode::Host,
                SchedulingOption::Tenant => SchedulingMode::Tenant,
            },
            users: UserRules {
                are_stamped: options.users.contains(&UsersOption::Stamped),
                are_limited: options.users.contains(&UsersOption::Limited),
            },
            withdrawn_storage: options.withdrawn_storage.iter().cloned().collect(),
            host_limits: HostLimits {
                waiting_pods: options.waiting_pods,
                waiting_pods_of_user: options.waiting_pods_of_user,
                bytes: options.host_bytes,
                write_bytes_per_second: options.host_write_bytes_per_second,
                endpoint_changes_per_second: options.endpoint_changes_per_second,
                controller_requests_per_second: options.controller_requests_per_second,
                resource_claims: options.resource_claims,
            },
            reserved_service_addresses: options.reserved_service_addresses.clone(),
            // It is in the token, see `host_account`.
            host_account: String::new(),
        })
    }
}

/// The content of a JSON file; the default if there is none.
fn from_file<T: DeserializeOwned + Default>(path: Option<&Path>) -> Result<T, PolicyError> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = std::fs::read(path).map_err(|error| PolicyError::Read(path.into(), error))?;
    serde_json::from_slice(&text).map_err(|error| PolicyError::Parse(path.into(), error))
}
