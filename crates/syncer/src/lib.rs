//! The syncer: Berth's agent for one tenant.
//!
//! It maps what the tenant creates in its own API server onto the host cluster, into one workload namespace, and
//! reports back what happens there. The tenant is the source of truth for specs, the host for status.
//!
//! - [`admission`] answers the tenant's API server about Services that are about to be stored.
//! - [`engine`] has the queue and is the only part that writes.
//! - [`kinds`] has the rules of each kind: pure functions from objects to objects.
//! - [`store`] keeps what both sides look like.
//! - [`permissions`] says what the syncer may do, for whoever grants it.

pub mod admission;
pub mod config;
pub mod engine;
pub mod json;
pub mod kinds;
pub mod metrics;
pub mod permissions;
pub mod resource;
pub mod store;
pub mod usage;
pub mod world;

pub use config::{Options, Tenant};

use admission::{Admission, server::Identity};
use berth_runtime::{
    admin::{self, Readiness},
    client::{self, ConnectError},
    shutdown,
};
use engine::{Engine, api::Api};
use kube::Client;
use metrics::Metrics;
use prometheus_client::registry::Registry;
use resource::Side;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use world::World;

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
    /// The tenant's API server cannot be answered.
    #[error("admission server: {0}")]
    Admission(#[from] admission::AdmissionError),
    /// A file that a flag names cannot be read.
    #[error("{0}: {1}")]
    File(std::path::PathBuf, #[source] std::io::Error),
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Name of the need that readiness waits for.
const LISTED: &str = "first lists of both sides";

/// Runs the syncer until SIGTERM or SIGINT.
///
/// # Errors
/// As [`Error`] says. API servers that do not answer are no error: the syncer waits for them.
pub async fn run(options: Options) -> Result<(), Error> {
    let stop = shutdown::signals().map_err(Error::Signals)?;
    let settings = Tenant::try_from(&options)?;
    let connect = async |side: Side, path| {
        client::from_file(path)
            .await
            .map_err(|error| Error::Connect(side.name(), error))
    };
    let host = connect(Side::Host, &options.host_kubeconfig).await?;
    let tenant = connect(Side::Tenant, &options.tenant_kubeconfig).await?;
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
    let admission = listen(options.admission.as_ref()).await?;
    let work = sync(
        settings,
        host,
        tenant,
        admission,
        metrics,
        stop.clone(),
        move |without: &[String]| {
            readiness.set(LISTED, true);
            readiness.remark(without);
        },
    );
    tokio::select! {
        () = work => Ok(()),
        ended = admin => match ended {
            Ok(Err(error)) => Err(Error::Admin(error)),
            _ => Ok(()),
        },
    }
}

async fn listen(options: Option<&config::AdmissionOptions>) -> Result<Option<Admission>, Error> {
    let Some(options) = options else { return Ok(None) };
    let read =
        |path: &std::path::PathBuf| std::fs::read_to_string(path).map_err(|error| Error::File(path.clone(), error));
    let (certificate, key) = (read(&options.admission_cert)?, read(&options.admission_key)?);
    let identity = Identity {
        certificate: &certificate,
        key: &key,
        authority: &read(&options.admission_ca)?,
    };
    let authority = options.admission_authority.as_deref();
    Ok(Some(
        Admission::listen(options.admission_address, authority, identity).await?,
    ))
}

/// Syncs one tenant until `stop`; `ready` is called once both sides are listed, and again whenever the kinds change that
/// cannot be synced, with those and the reasons. For embedding, as tests do.
pub async fn sync(
    tenant: Tenant,
    host: Client,
    tenant_client: Client,
    admission: Option<Admission>,
    metrics: Metrics,
    stop: CancellationToken,
    mut ready: impl FnMut(&[String]) + Send,
) {
    tracing::info!(tenant = tenant.slug, namespace = tenant.workload_namespace, "syncing");
    let tenant_api = Api::new(tenant_client, Side::Tenant, metrics.clone());
    let host_api = Api::new(host, Side::Host, metrics.clone());
    let engine = Engine::new(World::new(tenant), tenant_api.clone(), host_api, metrics);
    let answers = async {
        match admission {
            Some(admission) => admission.serve(Arc::clone(&engine), tenant_api).await,
            None => std::future::pending().await,
        }
    };
    let announce = |without: &[String]| {
        tracing::info!(?without, "both sides are listed");
        ready(without);
    };
    tokio::select! {
        () = Arc::clone(&engine).run(stop, announce) => {}
        () = answers => {}
    }
}
