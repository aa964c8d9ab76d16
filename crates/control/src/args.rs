//! Command line of `berth-control`.

use berth_api::GatewayDomain;
use berth_control::{
    control_plane::GatewayConfig,
    controllers::{USAGE_RETENTION_MONTHS, tenant::WithoutClass},
};
use berth_idle_reclaim::query::QuerySettings;
use berth_prometheus::PrometheusConfig;
use berth_runtime::telemetry::LogFormat;
use clap::{Parser, ValueEnum};
use std::{net::SocketAddr, path::PathBuf};

/// Berth's operator: turns TenantClusters into control planes, syncers and assigned nodes.
// The chart passes flags, and `control.extraArgs` follow: the last one counts.
#[derive(Debug, Parser)]
#[command(version, about, args_override_self = true)]
pub(crate) struct Args {
    /// Kubeconfig of the host cluster. Syncers reach the host at the address it names. Without one, this is a pod of the
    /// host cluster with a service account.
    #[arg(long, env = "KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Where control planes run.
    #[arg(long, value_enum, default_value_t = RuntimeKind::Process)]
    pub(crate) runtime: RuntimeKind,
    /// JSON file with images, versions, placement and resources of control planes that are pods, and who collects their metrics.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_settings: Option<PathBuf>,
    /// URL at which syncers that are pods reach the host [default: as the kubeconfig says, or as in pods].
    #[arg(long, value_name = "URL")]
    pub(crate) host_server: Option<String>,
    /// Folder of the process runtime's state.
    #[arg(long, value_name = "DIR", required_if_eq("runtime", "process"))]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Folder for the logs of tenants' components [default: <runtime-dir>/logs].
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Folder into which the kubeconfig of each tenant is written as <namespace>.<name>.yaml.
    #[arg(long, value_name = "DIR")]
    pub(crate) kubeconfig_dir: Option<PathBuf>,
    /// Endpoint of the tenants' shared etcd; may be given several times.
    #[arg(long, value_name = "URL", required_unless_present = "datastore_service")]
    pub(crate) datastore_endpoint: Vec<String>,
    /// Service of the tenants' shared etcd on the host, as namespace/name, instead of endpoints: its address is asked for at
    /// the start, so that no control plane depends on the host's DNS.
    #[arg(long, value_name = "SERVICE", conflicts_with = "datastore_endpoint")]
    pub(crate) datastore_service: Option<String>,
    /// Certificate of the CA of the datastore's servers and clients.
    #[arg(long, value_name = "FILE")]
    pub(crate) datastore_ca: PathBuf,
    /// Key of that CA: tenants' client certificates are signed with it.
    #[arg(long, value_name = "FILE")]
    pub(crate) datastore_ca_key: PathBuf,
    /// The syncer's executable [default: berth-syncer beside this program].
    #[arg(long, value_name = "FILE")]
    pub(crate) syncer_binary: Option<PathBuf>,
    /// DNS domain of the host cluster: no name in it is ever looked up for a tenant.
    #[arg(
        long,
        value_name = "DOMAIN",
        env = "BERTH_HOST_CLUSTER_DOMAIN",
        default_value = "cluster.local"
    )]
    pub(crate) host_cluster_domain: String,
    /// Network that no tenant may reach, besides the pods, Services, nodes and API servers that the host's API tells of; may be
    /// given several times.
    #[arg(long, value_name = "CIDR", env = "BERTH_BLOCKED_CIDRS", value_delimiter = ',', value_parser = berth_api::ranges::parse)]
    pub(crate) blocked_cidr: Vec<ipnet::IpNet>,
    /// Network of nodes, all of which no tenant may reach; may be given several times. Then addresses elsewhere that a node reports do not count:
    /// root on a node of a tenant can report any. Without it, each address counts.
    #[arg(long, value_name = "CIDR", env = "BERTH_NODE_CIDRS", value_delimiter = ',', value_parser = berth_api::ranges::parse)]
    pub(crate) node_cidr: Vec<ipnet::IpNet>,
    /// What a TenantCluster gets that names no class while there is no class `default`.
    #[arg(long, value_name = "POLICY", value_enum, env = "BERTH_WITHOUT_CLASS", default_value_t = WithoutClassArg::Deny)]
    pub(crate) without_class: WithoutClassArg,
    /// Berth's ValidatingAdmissionPolicies are not installed on the host. Then no class gives capabilities: the host enforces the Pod Security level
    /// `baseline` for all tenants.
    #[arg(long)]
    pub(crate) without_admission_policies: bool,
    /// Domain of the gateway, if berth-gateway serves the API servers of all tenants at one address: the certificate of each is valid for
    /// `<tenant>.<namespace>.<domain>`, and that name stands in the kubeconfig of teams that ask for nothing else.
    #[arg(long, value_name = "DOMAIN", env = "BERTH_GATEWAY_DOMAIN")]
    pub(crate) gateway_domain: Option<GatewayDomain>,
    /// Port at which teams reach the gateway.
    #[arg(long, value_name = "PORT", env = "BERTH_GATEWAY_PORT", default_value_t = 443, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) gateway_port: u16,
    /// Namespace of the platform's Argo CD: Berth writes Secrets there for tenants that their class lets be clusters of it, and pods there
    /// may connect to the API servers of these tenants.
    #[arg(long, value_name = "NAMESPACE", env = "BERTH_ARGO_CD_NAMESPACE")]
    pub(crate) argo_cd_namespace: Option<String>,
    /// Namespace of the host whose pods may connect to the API servers of all tenants, such as that of Flux; may be given several times.
    #[arg(
        long = "api-server-client-namespace",
        value_name = "NAMESPACE",
        env = "BERTH_API_SERVER_CLIENT_NAMESPACES",
        value_delimiter = ','
    )]
    pub(crate) api_server_client: Vec<String>,
    /// Image of the program that cleans and checks nodes between two tenants.
    #[arg(long, value_name = "IMAGE", env = "BERTH_SCRUB_IMAGE", default_value = concat!("ghcr.io/berth-dev/berth-scrub:", env!("CARGO_PKG_VERSION")))]
    pub(crate) scrub_image: String,
    /// When that image is pulled [default: as Kubernetes decides].
    #[arg(long, value_name = "POLICY")]
    pub(crate) scrub_image_pull_policy: Option<String>,
    /// Secret in Berth's namespace to pull it with; may be given several times.
    #[arg(long, value_name = "SECRET")]
    pub(crate) scrub_image_pull_secret: Vec<String>,
    /// Image of the pods that show to autoscalers what tenants wait for: a program that does nothing. It is pulled with the same
    /// secrets.
    #[arg(
        long,
        value_name = "IMAGE",
        env = "BERTH_PLACEHOLDER_IMAGE",
        default_value = "registry.k8s.io/pause:3.10.1"
    )]
    pub(crate) placeholder_image: String,
    /// URL of a Prometheus server, or of one with the same API, that has the metrics of NVIDIA's DCGM exporter. Classes with
    /// spec.idleReclaim need it.
    #[arg(long, value_name = "URL")]
    pub(crate) prometheus_url: Option<http::Uri>,
    /// Certificates of the authorities that signed that server's [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "prometheus_url")]
    pub(crate) prometheus_ca: Option<PathBuf>,
    /// File with the bearer token for that server. It is read again when it changes. The URL must begin with https:// then, unless the
    /// server is on this machine.
    #[arg(long, value_name = "FILE", requires = "prometheus_url")]
    pub(crate) prometheus_token: Option<PathBuf>,
    /// Send the token to an http:// URL too. Everybody on the way can read it.
    #[arg(long, requires = "prometheus_token")]
    pub(crate) prometheus_allow_insecure_token: bool,
    /// Matchers that select the series of the DCGM exporter, for example job="dcgm-exporter". Without them, a tenant whose pods that
    /// server scrapes can add series of its own.
    #[arg(long, value_name = "MATCHERS", default_value = "")]
    pub(crate) prometheus_matchers: String,
    /// Seconds in each of which there is a sample of every GPU: twice the scrape interval.
    #[arg(long, value_name = "SECONDS", default_value_t = QuerySettings::default().sample_interval)]
    pub(crate) prometheus_sample_interval: i64,
    /// Months for which records of what tenants used are kept, besides the current one. 0: nothing is recorded, and records that exist stay.
    #[arg(long, value_name = "MONTHS", env = "BERTH_USAGE_RETENTION_MONTHS", default_value_t = USAGE_RETENTION_MONTHS, value_parser = clap::value_parser!(u32).range(..=120))]
    pub(crate) usage_retention_months: u32,
    /// Object store for snapshots of what tenants store: s3://BUCKET/PREFIX, or file:///FOLDER on this machine. The credentials and the endpoint of a bucket are
    /// the environment variables AWS_*. Without it there are no snapshots.
    #[arg(long, value_name = "URL", env = "BERTH_SNAPSHOT_STORE")]
    pub(crate) snapshot_store: Option<String>,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) admin_address: SocketAddr,
    /// Name of this replica in leader election; unique among replicas [default: <host name>-<process id>].
    #[arg(long)]
    pub(crate) identity: Option<String>,
    /// Format of log lines: text or json.
    #[arg(long, default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Where control planes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeKind {
    /// As supervised child processes of this machine.
    Process,
    /// As pods of the host cluster.
    Cluster,
}

/// What a TenantCluster without a class gets, with the words of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WithoutClassArg {
    /// Nothing: it is not accepted.
    #[value(name = "Deny")]
    Deny,
    /// Berth's built-in defaults: an empty class.
    #[value(name = "BuiltInDefaults")]
    BuiltInDefaults,
}

impl From<WithoutClassArg> for WithoutClass {
    fn from(policy: WithoutClassArg) -> Self {
        match policy {
            WithoutClassArg::Deny => Self::Deny,
            WithoutClassArg::BuiltInDefaults => Self::BuiltInDefaults,
        }
    }
}

impl Args {
    /// Name of this replica.
    pub(crate) fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}-{}", host.trim(), std::process::id())
        })
    }

    /// Where the metrics of GPUs are.
    pub(crate) fn prometheus(&self) -> Option<PrometheusConfig> {
        Some(PrometheusConfig {
            ca_file: self.prometheus_ca.clone(),
            token_file: self.prometheus_token.clone(),
            allow_insecure_token: self.prometheus_allow_insecure_token,
            ..PrometheusConfig::new(self.prometheus_url.clone()?)
        })
    }

    /// How these metrics are stored.
    pub(crate) fn query_settings(&self) -> QuerySettings {
        QuerySettings {
            matchers: self.prometheus_matchers.clone(),
            sample_interval: self.prometheus_sample_interval,
        }
    }

    /// Where teams reach the gateway, if there is one.
    pub(crate) fn gateway(&self) -> Option<GatewayConfig> {
        Some(GatewayConfig {
            domain: self.gateway_domain.clone()?,
            port: self.gateway_port,
        })
    }

    /// The syncer's executable.
    pub(crate) fn syncer(&self) -> std::io::Result<PathBuf> {
        match &self.syncer_binary {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("berth-syncer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_last_of_equal_flags_counts_and_lists_are_added() {
        let args = Args::try_parse_from([
            "berth-control",
            "--runtime=cluster",
            "--datastore-service=berth-system/berth-etcd",
            "--datastore-ca=ca.crt",
            "--datastore-ca-key=ca.key",
            "--gateway-port=443",
            "--blocked-cidr=10.0.0.0/8",
            "--gateway-port=8443",
            "--blocked-cidr=fd00::/8",
            "--node-cidr=192.168.4.0/22,fd01::/64",
        ])
        .unwrap();
        assert_eq!(args.gateway_port, 8443);
        assert_eq!((args.blocked_cidr.len(), args.node_cidr.len()), (2, 2));
    }
}
