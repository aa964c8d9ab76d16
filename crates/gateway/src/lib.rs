//! The gateway: one address for the API servers of all tenants.
//!
//! A client asks for a host name when it begins TLS (SNI). The gateway reads that name, connects to the API server of the tenant that has
//! it, and copies bytes. It has no certificate and no key of any tenant: TLS, and with it every right, is between the client and the API
//! server.
//!
//! - `client_hello` reads the name, and `proxy_protocol` the address of the client behind a load balancer.
//! - [`routes`] has the tenants and where their API servers are. `watches` fills it from the host.
//! - [`server`] accepts connections, within `limits`, and `relay` copies their bytes. [`places`](berth_runtime::places) bounds how many are still silent, and of
//!   how many the reader takes nothing; `refused` has those that are not passed on.
//! - [`sleep_state`] knows whether a tenant sleeps, [`wake`] asks control to wake it, and [`hold`] holds its connections meanwhile.

mod client_hello;
pub mod hold;
mod limits;
pub mod metrics;
mod options;
mod proxy_protocol;
mod refused;
mod relay;
pub mod routes;
pub mod server;
pub mod sleep_state;
pub mod wake;
mod watches;

pub use options::Options;

use berth_runtime::{
    admin::{self, Readiness},
    client::{self, ConnectError},
    shutdown,
};
use metrics::Metrics;
use prometheus_client::registry::Registry;
use routes::RoutingTable;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::Gateway;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::{JoinError, JoinSet},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use wake::HostRequests;

/// Files that are open besides those of connections, at most: logs, watches, the admin server.
const OTHER_FILES: u64 = 64;
/// Needs of readiness: first lists of the host, and that connections are accepted.
const LISTED: &str = "first lists of TenantClusters and Services";
const ACCEPTING: &str = "accepting connections";

/// Why the gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host's API server cannot be used.
    #[error("host API server: {0}")]
    Connect(#[from] ConnectError),
    /// The address for clients cannot be listened on.
    #[error("cannot listen on {0}: {1}; choose another --listen-address")]
    Listen(SocketAddr, #[source] io::Error),
    /// The admin address cannot be listened on.
    #[error("admin server: {0}")]
    Admin(#[source] io::Error),
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(#[source] io::Error),
    /// A watch has ended by itself.
    #[error("a watch of the host has ended")]
    Watch,
    /// A task has panicked.
    #[error("a task has ended: {0}")]
    Task(#[from] JoinError),
}

/// Runs the gateway until SIGTERM or SIGINT, and until its connections have ended after that.
///
/// # Errors
/// As [`Error`] says. A host that does not answer is no error: the gateway waits for it, and what it knows stays valid.
pub async fn run(options: Options) -> Result<(), Error> {
    let stop = shutdown::signals().map_err(Error::Signals)?;
    raise_file_limit(options.max_connections);
    let client = match &options.kubeconfig {
        Some(file) => client::from_file(file).await?,
        None => client::in_cluster()?,
    };
    // Before anything is known: clients of a gateway that starts again wait instead of being refused.
    let listener = TcpListener::bind(options.listen_address)
        .await
        .map_err(|error| Error::Listen(options.listen_address, error))?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let readiness = Readiness::new(&[LISTED, ACCEPTING]);
    // The admin server answers until the last connection has ended.
    let (ended, closed) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let admin = admin::serve(options.admin_address, registry, readiness.clone(), ended.clone());
    tasks.spawn(async move { admin.await.map_err(Error::Admin) });
    let table = Arc::new(RoutingTable::new(
        options.domain.clone(),
        options.runtime.into(),
        metrics.clone(),
        closed.clone(),
    ));
    let listed = start_watches(&client, &table, &mut tasks);
    let gateway = Arc::new(Gateway::new(
        options.limits(),
        options.timeouts(),
        options.proxy_protocol_from.clone(),
        table,
        metrics,
        Arc::new(HostRequests(client)),
    ));
    let delay = Duration::from_secs(options.shutdown_delay.into());
    let serving = async {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            listed = listed => listed?,
        }
        tracing::info!(domain = %options.domain, address = %options.listen_address, "accepting connections");
        readiness.set(LISTED, true);
        readiness.set(ACCEPTING, true);
        let refuse = CancellationToken::new();
        tokio::join!(
            gateway.serve(listener, refuse.clone(), closed),
            stop_accepting(&stop, delay, &readiness, &refuse),
        );
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        Some(task) = tasks.join_next() => task?,
    };
    ended.cancel();
    outcome
}

/// Ends the acceptance of connections `delay` after SIGTERM. Until then the gateway is ready: a host sends no connections to a pod that ends and
/// is not ready, but load balancers still send them to its node.
async fn stop_accepting(stop: &CancellationToken, delay: Duration, readiness: &Readiness, refuse: &CancellationToken) {
    stop.cancelled().await;
    sleep(delay).await;
    readiness.set(ACCEPTING, false);
    refuse.cancel();
}

/// Starts the watches. The result completes when both have listed what there is.
fn start_watches(
    client: &kube::Client,
    table: &Arc<RoutingTable>,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> impl Future<Output = Result<(), Error>> + use<> {
    let (tenants, tenants_listed) = oneshot::channel();
    let (services, services_listed) = oneshot::channel();
    let (of_client, of_table) = (client.clone(), Arc::clone(table));
    tasks.spawn(async move {
        watches::follow_tenants(of_client, &of_table, tenants).await;
        Err(Error::Watch)
    });
    let (of_client, of_table) = (client.clone(), Arc::clone(table));
    tasks.spawn(async move {
        watches::follow_services(of_client, &of_table, services).await;
        Err(Error::Watch)
    });
    async move {
        tenants_listed.await.map_err(|_| Error::Watch)?;
        services_listed.await.map_err(|_| Error::Watch)
    }
}

/// Raises the limit of open files to what the process may have. Each connection needs two.
fn raise_file_limit(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let needed = 2 * connections as u64 + OTHER_FILES;
    // Without a number there is no limit.
    if let Some(files) = getrlimit(Resource::Nofile).current.filter(|files| *files < needed) {
        tracing::warn!(
            files,
            needed,
            "open files are limited to fewer than --max-connections needs: raise the limit (ulimit -n), or lower the flag"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_gateway_is_ready_for_as_long_as_it_accepts() {
        let (stop, refuse) = (CancellationToken::new(), CancellationToken::new());
        let readiness = Readiness::new(&[ACCEPTING]);
        readiness.set(ACCEPTING, true);
        let state = || (readiness.missing().is_empty(), refuse.is_cancelled());
        let seconds = Duration::from_secs;
        let watched = async {
            sleep(seconds(30)).await;
            stop.cancel();
            sleep(seconds(29)).await;
            assert_eq!(state(), (true, false), "29 seconds after SIGTERM");
            sleep(seconds(2)).await;
            assert_eq!(state(), (false, true), "31 seconds after SIGTERM");
        };
        tokio::join!(stop_accepting(&stop, seconds(30), &readiness, &refuse), watched);
    }
}
