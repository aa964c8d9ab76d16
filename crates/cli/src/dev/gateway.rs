//! The gateway of the local host cluster: a process on this machine, so that the names of tenants lead to it, whatever the nodes are.

use std::path::Path;
use std::time::Duration;

use berth_api::system;
use berth_control::install::install_gateway;
use berth_local::{HostCluster, Ports};
use berth_process::ProcessSpec;

use super::options::Options;
use super::supervise::{find_beside, modified_at, wait_until_ready};
use crate::error::Error;

/// The gateway among the supervised processes, and its program.
pub(super) const GATEWAY: &str = system::GATEWAY;
/// Names below it are this machine (RFC 6761).
const DOMAIN: &str = "localhost";
/// How long the gateway may take to get ready.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Flags with which control gives each tenant a name at the gateway.
pub(super) fn control_flags(ports: Ports) -> [String; 2] {
    [
        format!("--gateway-domain={DOMAIN}"),
        format!("--gateway-port={}", ports.gateway),
    ]
}

/// The URL of a tenant, for people.
pub(super) fn url_of_tenants(ports: Ports) -> String {
    format!("https://<tenant>.<namespace>.{DOMAIN}:{}", ports.gateway)
}

/// Starts the gateway, and waits until it is ready.
pub(super) async fn start(cluster: &HostCluster, options: &Options) -> Result<(), Error> {
    install_gateway(&cluster.client().await?).await?;
    let home = cluster.home();
    let kubeconfig = home.gateway_kubeconfig();
    cluster.ensure_kubeconfig(&kubeconfig, system::GATEWAY_USER, &[])?;
    let program = find_beside(GATEWAY)?;
    let mut spec = ProcessSpec::new(GATEWAY, &program, home.log(GATEWAY));
    spec.args = arguments(&kubeconfig, cluster.ports(), options.real_nodes);
    spec.env = std::env::var("RUST_LOG")
        .map(|filter| ("RUST_LOG".to_owned(), filter))
        .into_iter()
        .collect();
    spec.revision = format!("{} {}", modified_at(&program), modified_at(&kubeconfig));
    cluster.supervisor().ensure(spec).await?;
    wait_until_ready(cluster, GATEWAY, cluster.ports().gateway_admin, TIMEOUT).await
}

fn arguments(kubeconfig: &Path, ports: Ports, real_nodes: bool) -> Vec<String> {
    // Where the nodes are real, control planes are pods, and this machine reaches their Services.
    let runtime = if real_nodes { "cluster" } else { "process" };
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--domain={DOMAIN}"),
        format!("--runtime={runtime}"),
        format!("--listen-address=127.0.0.1:{}", ports.gateway),
        format!("--admin-address=127.0.0.1:{}", ports.gateway_admin),
        // Connections that are open need not be waited for: it ends with the cluster, or is started again at once.
        "--drain-timeout=1".into(),
    ]
}
