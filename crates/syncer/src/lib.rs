//! The syncer: Berth's agent for one tenant.
//!
//! It maps what the tenant creates in its own API server onto the host cluster, into one workload namespace, and
//! reports back what happens there. The tenant is the source of truth for specs, the host for status.
//!
//! - [`admission`] answers the tenant's API server about Services that are about to be stored, and lets large writes wait.
//! - `egress` connects the tenant's API server to the tenant's pods, Services and nodes, and to nothing else.
//! - `kubelet` answers it in place of the nodes' kubelets.
//! - [`engine`] has the queues and is the only part that writes.
//! - [`Servers`] runs the first three on a thread of their own.
//! - `store` fills the stores with the objects of both sides.
//! - `usage` serves the tenant's metrics API.
//!
//! The rules of each kind, pure functions from objects to objects, are in `berth-sync-rules`.

pub mod admission;
mod config;
mod egress;
pub mod engine;
mod host_account;
mod kubelet;
pub mod metrics;
mod serve;
mod servers;
mod store;
pub mod tls;
mod usage;

pub use config::Options;
pub use servers::{ApiServers, Servers};

use admission::Admission;
use berth_pki::CertificateAuthority;
use berth_runtime::{
    admin::{self, Readiness},
    client::{self, ConnectError},
    shutdown,
};
use berth_sync_rules::{
    model::{Tenant, resource::Side},
    registry,
};
use egress::Egress;
use engine::{Engine, Lists};
use kube::Config;
use metrics::Metrics;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tls::IdentityFiles;
use tokio_util::sync::CancellationToken;

/// Why the syncer could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the API servers cannot be used.
    #[error("{0} API server: {1}")]
    Connect(&'static str, #[source] ConnectError),
    /// The admin address cannot be listened on.
    #[error("admin server: {0}")]
    Admin(#[source] std::io::Error),
    /// The rules of the tenant's class cannot be read.
    #[error(transparent)]
    Policy(#[from] config::PolicyError),
    /// The admission server cannot be started.
    #[error("admission server: {0}")]
    Admission(#[from] admission::AdmissionError),
    /// The egress broker cannot be started.
    #[error("egress broker: {0}")]
    Egress(#[from] egress::EgressError),
    /// The servers for the tenant's API server cannot run.
    #[error("servers for the tenant's API server: {0}")]
    Servers(#[source] std::io::Error),
    /// Their thread has ended by itself.
    #[error("the thread of the servers for the tenant's API server has ended")]
    ServersEnded,
    /// The token for the host cannot be read, or is none of a ServiceAccount.
    #[error("token for the host: {0}")]
    HostToken(#[from] host_account::TokenError),
    /// A file that a flag names cannot be read.
    #[error("{0}: {1}")]
    File(std::path::PathBuf, #[source] std::io::Error),
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Name of the condition that readiness waits for.
const LISTED: &str = "first lists of both sides";

/// Runs the syncer until SIGTERM or SIGINT.
///
/// # Errors
/// As [`Error`] says. API servers that do not answer are no error: the syncer waits for them.
pub async fn run(options: Options) -> Result<(), Error> {
    let stop = shutdown::signals().map_err(Error::Signals)?;
    let mut settings = Tenant::try_from(&options)?;
    let read = async |side: Side, path| {
        client::config_of(path)
            .await
            .map_err(|error| Error::Connect(side.name(), error))
    };
    let api_servers = ApiServers {
        host: read(Side::Host, &options.host_kubeconfig).await?,
        tenant: read(Side::Tenant, &options.tenant_kubeconfig).await?,
    };
    settings.host_account = host_account::read_uid(&api_servers.host.auth_info)?;
    let mut registry = Registry::default();
    let metrics = Metrics::default();
    metrics.register(&mut registry);
    let readiness = Readiness::new(&[LISTED]);
    let admin = tokio::spawn(admin::serve(
        options.admin_address,
        registry,
        readiness.clone(),
        stop.clone(),
    ));
    let servers = listen(&options, &api_servers.host).await?;
    let work = sync(
        settings,
        api_servers,
        servers,
        metrics,
        stop.clone(),
        move |lists: Lists<'_>| match lists {
            Lists::Missing(missing) => readiness.explain(LISTED, missing.join(", ")),
            Lists::Complete { without } => {
                readiness.set(LISTED, true);
                readiness.remark(without);
            }
        },
    );
    tokio::select! {
        ended = work => ended,
        ended = admin => match ended {
            Ok(Err(error)) => Err(Error::Admin(error)),
            _ => Ok(()),
        },
    }
}

async fn listen(options: &Options, host: &Config) -> Result<Servers, Error> {
    let mut admission = None;
    if let Some(options) = &options.admission {
        let files = IdentityFiles {
            certificate: options.admission_cert.clone(),
            key: options.admission_key.clone(),
            authority: options.admission_ca.clone(),
        };
        let authority = options.admission_authority.as_deref();
        let rate = options.write_bytes_per_second;
        admission = Some(Admission::listen(options.admission_address, authority, files, rate).await?);
    }
    let mut egress = None;
    if let Some(flags) = &options.egress {
        egress = Some(broker(flags, host).await?);
    }
    Ok(Servers::new(admission, egress))
}

async fn broker(flags: &config::EgressOptions, host: &Config) -> Result<Egress, Error> {
    let read =
        |path: &std::path::PathBuf| std::fs::read_to_string(path).map_err(|error| Error::File(path.clone(), error));
    let authority = CertificateAuthority::from_pem(&read(&flags.kubelet_ca)?, &read(&flags.kubelet_ca_key)?);
    let settings = egress::Settings {
        address: flags.egress_address,
        identity: IdentityFiles {
            certificate: flags.egress_cert.clone(),
            key: flags.egress_key.clone(),
            authority: flags.egress_ca.clone(),
        },
        authority: authority.map_err(egress::EgressError::from)?,
        platform: host.cluster_url.host().unwrap_or_default().to_owned(),
    };
    Ok(Egress::listen(settings).await?)
}

/// Syncs one tenant until `stop`; `report` is called once both sides are listed, and again whenever the kinds change that
/// cannot be synced, with those and the reasons; and before that if the lists take long, with those that are missing. For embedding, as tests do.
///
/// # Errors
/// There is no client for an API server, or the servers have ended: without them the process must end, too.
pub async fn sync(
    tenant: Tenant,
    api_servers: ApiServers,
    servers: Servers,
    metrics: Metrics,
    stop: CancellationToken,
    mut report: impl FnMut(Lists<'_>) + Send,
) -> Result<(), Error> {
    tracing::info!(tenant = tenant.slug, namespace = tenant.workload_namespace, "syncing");
    let tenant_api = api_servers.api(Side::Tenant, &metrics)?;
    let host_api = api_servers.api(Side::Host, &metrics)?;
    let engine = Engine::new(registry::new_cache(tenant), tenant_api, host_api, metrics);
    let mut streams = servers.start(Arc::clone(&engine), api_servers)?;
    let ended = async {
        match &mut streams {
            Some(thread) => thread.ended().await,
            None => std::future::pending().await,
        }
    };
    let announce = |lists: Lists<'_>| {
        match lists {
            Lists::Missing(missing) => tracing::info!(?missing, "waiting for lists"),
            Lists::Complete { without } => tracing::info!(?without, "both sides are listed"),
        }
        report(lists);
    };
    tokio::select! {
        () = Arc::clone(&engine).run(stop, announce) => Ok(()),
        ended = ended => match ended {
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => Err(Error::ServersEnded),
        },
    }
}
