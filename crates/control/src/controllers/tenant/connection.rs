//! The one connection control has to a tenant's API server.
//!
//! Nobody else makes clients for tenants. Whoever needs one asks here and is told "not yet" until a probe of `/readyz`
//! succeeds; the change puts the tenant back into the queue.

use crate::{
    apply::Applier,
    context::Key,
    control_plane::{Authorities, CertificateError},
};
use berth_runtime::{client, queue::Queue};
use http::Request;
use kube::Client;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Pause between probes of a server that does not answer yet.
const PROBE_STARTING: Duration = Duration::from_millis(50);
/// Pause between probes of a server that answers.
const PROBE_READY: Duration = Duration::from_secs(5);
/// Time a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Age at which the client is made anew: control's certificate is valid for an hour.
const CLIENT_AGE: Duration = Duration::from_secs(1800);

/// Why there is no connection to be had at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Control's own certificate cannot be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No client can be built.
    #[error(transparent)]
    Client(#[from] client::ConnectError),
}

/// A connection that may be up or down.
#[derive(Default)]
pub struct Connection(Mutex<State>);

#[derive(Default)]
struct State {
    server: String,
    since: Option<Instant>,
    applier: Option<Arc<Applier>>,
    probe: Option<Probe>,
}

/// A task that probes; it ends when this is dropped.
struct Probe {
    task: tokio::task::JoinHandle<()>,
    ready: tokio::sync::watch::Receiver<bool>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// An applier for the tenant's API server at `server`, if it is ready now. If not, `key` is put into the queue as
    /// soon as it is, and whenever that changes.
    ///
    /// # Errors
    /// No client can be made from the tenant's keys.
    pub async fn ready(
        &self,
        server: &str,
        authorities: &Authorities,
        queue: &Queue<Key>,
        key: &Key,
    ) -> Result<Option<Arc<Applier>>, ConnectionError> {
        if !self.is_current(server) {
            let client = client::from_text(&authorities.control_kubeconfig(server)?).await?;
            let (sender, ready) = tokio::sync::watch::channel(false);
            let task = tokio::spawn(probe(client.clone(), sender, queue.clone(), key.clone()));
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State {
                server: server.to_owned(),
                since: Some(Instant::now()),
                applier: Some(Arc::new(Applier::new(client))),
                probe: Some(Probe { task, ready }),
            };
        }
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ready = state.probe.as_ref().is_some_and(|probe| *probe.ready.borrow());
        Ok(state.applier.clone().filter(|_| is_ready))
    }

    fn is_current(&self, server: &str) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.server == server && state.since.is_some_and(|since| since.elapsed() < CLIENT_AGE)
    }
}

async fn probe(client: Client, sender: tokio::sync::watch::Sender<bool>, queue: Queue<Key>, key: Key) {
    loop {
        let is_ready = is_ready(&client).await;
        let changed = sender.send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
        if changed {
            queue.add(key.clone());
        }
        tokio::time::sleep(if is_ready { PROBE_READY } else { PROBE_STARTING }).await;
    }
}

async fn is_ready(client: &Client) -> bool {
    let Ok(request) = Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    matches!(
        tokio::time::timeout(PROBE_TIMEOUT, client.request_text(request)).await,
        Ok(Ok(_))
    )
}
