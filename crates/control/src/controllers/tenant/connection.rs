//! How control reaches what runs for a tenant: its API server and its syncer.
//!
//! A [`Connection`] is the one connection to a tenant's API server. It has an applier only while a probe says that the server serves. When that
//! changes, or when a new server has written its default roles, the tenant is put back into the queue.

use crate::{
    apply::Applier,
    control_plane::{Authorities, COMPLETE, CertificateError, Endpoint, SERVES},
    key::Key,
};
use async_trait::async_trait;
use berth_runtime::{client, locks::lock, long_answers::LongAnswers, queue::Queue};
use http::{Request, header::CONNECTION};
use http_body_util::{BodyExt, Limited};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::Client;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

/// Pause between probes of a server that is starting.
const PROBE_STARTING: Duration = Duration::from_millis(50);
/// Pause between probes of a server that has started.
const PROBE_READY: Duration = Duration::from_secs(5);
/// Time a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Age at which the client is replaced: control's certificate is valid for an hour.
const CLIENT_AGE: Duration = Duration::from_secs(1800);

/// Time the syncer may take to answer a probe.
const SYNCER_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of its answer to a probe that are read. It has a line of at most 500 bytes for each kind that is not synced, and a class has up to 32
/// kinds of its own: an answer that is not read would make a syncer look as if it did not answer.
const LONGEST_ANSWER: usize = 64 << 10;
/// Bytes of its metrics that are read.
const LONGEST_METRICS: usize = 4 << 20;

/// Answers of the API servers of all tenants that are long at the same time. While one is collected and parsed it is in memory several times: the
/// longest take 112 MiB.
const LONG_ANSWERS: usize = 3;
/// How long one of them may take. The longest takes a second at 16 MiB/s.
const LONG_ANSWER_TIME: Duration = Duration::from_secs(5);

/// Why no connection can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Control's own certificate cannot be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No client can be built.
    #[error(transparent)]
    Client(#[from] client::ConnectError),
}

/// Makes connections to what runs for a tenant.
#[async_trait]
pub trait Remote: Send + Sync {
    /// A client for a tenant's API server.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    async fn connect(&self, kubeconfig: &str) -> Result<Client, client::ConnectError>;

    /// The answer of a syncer's `/readyz`.
    ///
    /// # Errors
    /// It does not answer.
    async fn probe_syncer(&self, admin: &Endpoint) -> Result<ProbeAnswer, ProbeError>;

    /// The metrics of a syncer.
    ///
    /// # Errors
    /// It does not answer.
    async fn read_syncer_metrics(&self, admin: &Endpoint) -> Result<String, ProbeError>;
}

/// The answer of a syncer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Whether it is ready.
    pub is_ready: bool,
    /// What it waits for if it is not.
    pub text: String,
}

/// A syncer does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the syncer does not answer: {0}")]
pub struct ProbeError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Connections over the network.
#[derive(Clone, Debug)]
pub struct NetworkRemote {
    syncers: HttpClient<HttpConnector, String>,
    /// Those of all tenants.
    long_answers: LongAnswers,
}

impl Default for NetworkRemote {
    fn default() -> Self {
        Self {
            syncers: HttpClient::builder(TokioExecutor::new()).build_http(),
            long_answers: LongAnswers::new(LONG_ANSWERS, LONG_ANSWER_TIME),
        }
    }
}

#[async_trait]
impl Remote for NetworkRemote {
    async fn connect(&self, kubeconfig: &str) -> Result<Client, client::ConnectError> {
        client::for_tenant(kubeconfig, &self.long_answers).await
    }

    async fn probe_syncer(&self, admin: &Endpoint) -> Result<ProbeAnswer, ProbeError> {
        let (is_ready, text) = self.read(admin, "/readyz", LONGEST_ANSWER).await?;
        Ok(ProbeAnswer {
            is_ready,
            text: text.trim().to_owned(),
        })
    }

    async fn read_syncer_metrics(&self, admin: &Endpoint) -> Result<String, ProbeError> {
        match self.read(admin, "/metrics", LONGEST_METRICS).await? {
            (true, metrics) => Ok(metrics),
            (false, text) => Err(ProbeError(text.into())),
        }
    }
}

impl NetworkRemote {
    /// Whether a syncer answers a request with success, and the text of the answer, of `longest` bytes at most.
    async fn read(&self, admin: &Endpoint, path: &str, longest: usize) -> Result<(bool, String), ProbeError> {
        let url = format!("http://{}{path}", admin.authority());
        let read = async {
            let request = Request::get(url).header(CONNECTION, "close").body(String::new())?;
            let answer = self.syncers.request(request).await?;
            let is_success = answer.status().is_success();
            let body = Limited::new(answer.into_body(), longest).collect().await?;
            Ok((is_success, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
        };
        match tokio::time::timeout(SYNCER_PROBE_TIMEOUT, read).await {
            Ok(answer) => answer.map_err(ProbeError),
            Err(late) => Err(ProbeError(late.into())),
        }
    }
}

/// How far an API server has come with its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It does not serve.
    Down,
    /// It serves, but has not written its default roles and priority classes yet.
    Serves,
    /// It serves, and they exist.
    Complete,
}

/// An API server that serves now.
pub struct Connected {
    /// Writes to it.
    pub applier: Arc<Applier>,
    /// Whether its default roles and priority classes exist.
    pub is_complete: bool,
}

/// A connection that may be up or down.
#[derive(Default)]
pub struct Connection(Mutex<State>);

#[derive(Default)]
struct State {
    server: String,
    /// The authority (PEM) of control's certificate.
    authority: String,
    since: Option<Instant>,
    applier: Option<Arc<Applier>>,
    probe: Option<Probe>,
}

/// A task that probes; it ends when this is dropped.
struct Probe {
    task: tokio::task::JoinHandle<()>,
    progress: tokio::sync::watch::Receiver<Progress>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// The API server, if it serves now.
    fn connected(&self) -> Option<Connected> {
        let progress = *self.probe.as_ref()?.progress.borrow();
        let applier = self.applier.clone().filter(|_| progress != Progress::Down)?;
        Some(Connected {
            applier,
            is_complete: progress == Progress::Complete,
        })
    }
}

impl Connection {
    /// The tenant's API server at `server`, if it serves now. `key` is put into the queue whenever that changes, and once it is complete.
    /// `has_defaults` says whether its default roles and priority classes are known to exist: then it is complete as soon as it serves.
    ///
    /// # Errors
    /// No client can be made from the tenant's keys.
    pub async fn ready(
        &self,
        remote: &dyn Remote,
        server: &str,
        authorities: &Authorities,
        has_defaults: bool,
        (queue, key): (&Queue<Key>, &Key),
    ) -> Result<Option<Connected>, ConnectionError> {
        if !self.is_current(server, authorities) {
            let client = remote.connect(&authorities.control_kubeconfig(server)?).await?;
            let (sender, progress) = tokio::sync::watch::channel(Progress::Down);
            let task = tokio::spawn(probe(client.clone(), has_defaults, sender, queue.clone(), key.clone()));
            let mut state = lock(&self.0);
            *state = State {
                server: server.to_owned(),
                authority: authorities.client.cert_pem().to_owned(),
                since: Some(Instant::now()),
                applier: Some(Arc::new(Applier::new(client))),
                probe: Some(Probe { task, progress }),
            };
        }
        Ok(lock(&self.0).connected())
    }

    /// A client for the tenant's API server, if it answers now.
    pub fn client(&self) -> Option<Client> {
        Some(self.applier()?.client().clone())
    }

    /// An applier for the tenant's API server, if it answers now.
    pub fn applier(&self) -> Option<Arc<Applier>> {
        let state = lock(&self.0);
        Some(state.connected()?.applier)
    }

    /// Forgets the connection: the API server does not run. The next [`Connection::ready`] makes another.
    pub fn close(&self) {
        *lock(&self.0) = State::default();
    }

    /// Lets [`Connection::client`] be this one, or none, as if a probe had succeeded or failed.
    #[cfg(test)]
    pub(crate) fn set_client(&self, client: Option<Client>) {
        let progress = if client.is_some() {
            Progress::Complete
        } else {
            Progress::Down
        };
        let (_, progress) = tokio::sync::watch::channel(progress);
        let task = tokio::spawn(std::future::ready(()));
        *lock(&self.0) = State {
            server: String::new(),
            authority: String::new(),
            since: None,
            applier: client.map(|client| Arc::new(Applier::new(client))),
            probe: Some(Probe { task, progress }),
        };
    }

    /// Whether the connection leads to this server with a certificate of the authority that signs now.
    fn is_current(&self, server: &str, authorities: &Authorities) -> bool {
        let state = lock(&self.0);
        state.server == server
            && state.authority == authorities.client.cert_pem()
            && state.since.is_some_and(|since| since.elapsed() < CLIENT_AGE)
    }
}

async fn probe(
    client: Client,
    mut has_defaults: bool,
    sender: tokio::sync::watch::Sender<Progress>,
    queue: Queue<Key>,
    key: Key,
) {
    loop {
        let serves = answers(&client, SERVES).await;
        // Once they exist, they stay: they are in its datastore.
        has_defaults = has_defaults || serves && answers(&client, COMPLETE).await;
        let now = match (serves, has_defaults) {
            (false, _) => Progress::Down,
            (true, false) => Progress::Serves,
            (true, true) => Progress::Complete,
        };
        let changed = sender.send_if_modified(|progress| std::mem::replace(progress, now) != now);
        if changed {
            queue.add(key.clone());
        }
        let has_started = now == Progress::Complete;
        tokio::time::sleep(if has_started { PROBE_READY } else { PROBE_STARTING }).await;
    }
}

async fn answers(client: &Client, readiness: &str) -> bool {
    let Ok(request) = Request::get(readiness).body(Vec::new()) else {
        return false;
    };
    matches!(
        tokio::time::timeout(PROBE_TIMEOUT, client.request_text(request)).await,
        Ok(Ok(_))
    )
}
