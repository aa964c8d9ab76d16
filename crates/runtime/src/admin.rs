//! The admin server: `/healthz`, `/readyz` and `/metrics` (OpenMetrics text).

use crate::{
    http,
    locks::lock,
    places::{Place, Places},
    sockets,
};
use axum::{Router, extract, http::StatusCode, response::IntoResponse, routing::get};
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Connections at a time. For further ones the oldest end: a client that opens many keeps neither the kubelet's probes out, which would
/// restart the program, nor Prometheus.
const MAX_CONNECTIONS: usize = 32;
/// How long a client may read nothing of its answer.
const STALLED: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Conditions that must hold before the process is ready. Cheap to clone; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    needs: BTreeMap<&'static str, bool>,
    /// What is missing of needs.
    details: BTreeMap<&'static str, String>,
    remarks: Vec<String>,
}

impl Readiness {
    /// Readiness that requires all of `needs`.
    pub fn new(needs: &[&'static str]) -> Self {
        Self(Arc::new(Mutex::new(State {
            needs: needs.iter().map(|need| (*need, false)).collect(),
            ..State::default()
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Sets whether one of the needs is met now.
    pub fn set(&self, need: &'static str, met: bool) {
        self.state().needs.insert(need, met);
    }

    /// Says what is missing of one of the needs, for the answer of `/readyz` while it is not met.
    pub fn explain(&self, need: &'static str, detail: String) {
        self.state().details.insert(need, detail);
    }

    /// Sets remarks about what works only in part although the process is ready: one line each in the answer of `/readyz`.
    pub fn remark(&self, remarks: &[String]) {
        self.state().remarks = remarks.to_vec();
    }

    /// Needs that are not met.
    pub fn missing(&self) -> Vec<&'static str> {
        let state = self.state();
        state
            .needs
            .iter()
            .filter(|(_, met)| !**met)
            .map(|(need, _)| *need)
            .collect()
    }

    /// The same, with what is missing of each.
    fn missing_in_words(&self) -> Vec<String> {
        let missing = self.missing().into_iter();
        let state = self.state();
        let describe = |need: &str| match state.details.get(need) {
            Some(detail) => format!("{need} ({detail})"),
            None => need.to_owned(),
        };
        missing.map(describe).collect()
    }

    fn remarks(&self) -> Vec<String> {
        self.state().remarks.clone()
    }
}

#[derive(Clone)]
struct AdminState {
    registry: Arc<Registry>,
    readiness: Readiness,
}

/// Serves the admin endpoints on `address` until `stop`. `/healthz` answers as long as the event loop of the
/// process runs; `/readyz` answers 503 with the missing needs until all are met.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    registry: Registry,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let router = routes(registry, readiness);
    tokio::select! {
        () = stop.cancelled() => {}
        () = accept(listener, router) => {}
    }
    Ok(())
}

fn routes(registry: Registry, readiness: Readiness) -> Router {
    let state = AdminState {
        registry: Arc::new(registry),
        readiness,
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(state)
}

/// Accepts connections for ever. Ends them all when it is dropped.
async fn accept(listener: TcpListener, router: Router) {
    let places = Places::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, places.take(), router.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the admin server");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, mut place: Place, router: Router) {
    sockets::tune(&stream);
    sockets::limit_stall(&stream, STALLED);
    tokio::select! {
        () = http::serve_routes(stream, router) => {}
        () = place.displaced() => {}
    }
}

async fn readyz(extract::State(state): extract::State<AdminState>) -> impl IntoResponse {
    match state.readiness.missing_in_words().as_slice() {
        [] => {
            let lines = state
                .readiness
                .remarks()
                .into_iter()
                .map(|remark| format!("without {remark}\n"));
            (
                StatusCode::OK,
                std::iter::once("ok\n".to_owned()).chain(lines).collect(),
            )
        }
        missing => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("waiting for: {}\n", missing.join(", ")),
        ),
    }
}

async fn metrics(extract::State(state): extract::State<AdminState>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &state.registry) {
        Ok(()) => (
            StatusCode::OK,
            [(
                "content-type",
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [("content-type", "text/plain; charset=utf-8")],
            error.to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[test]
    fn ready_when_every_need_is_met() {
        let readiness = Readiness::new(&["host", "tenant"]);
        assert_eq!(readiness.missing(), ["host", "tenant"]);
        readiness.set("host", true);
        readiness.set("tenant", true);
        assert!(readiness.missing().is_empty());
        readiness.set("tenant", false);
        assert_eq!(readiness.missing(), ["tenant"]);
    }

    #[tokio::test]
    async fn the_answer_names_what_is_missing_and_what_is_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let readiness = Readiness::new(&["lists", "host"]);
        let server = tokio::spawn(accept(listener, routes(Registry::default(), readiness.clone())));
        let answer = async || {
            let answer = http::get("127.0.0.1", port, "/readyz", Duration::from_secs(10)).await;
            answer.unwrap()
        };
        readiness.explain("lists", "Pod of the host".into());
        let waiting = "waiting for: host, lists (Pod of the host)\n".to_owned();
        assert_eq!(answer().await, (StatusCode::SERVICE_UNAVAILABLE, waiting));
        readiness.set("lists", true);
        readiness.set("host", true);
        // What is left out keeps nothing back.
        readiness.remark(&["Widget (it has too much)".to_owned()]);
        let ready = "ok\nwithout Widget (it has too much)\n".to_owned();
        assert_eq!(answer().await, (StatusCode::OK, ready));
        server.abort();
    }

    #[tokio::test]
    async fn many_silent_connections_do_not_keep_probes_out() {
        const SOON: Duration = Duration::from_secs(10);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = routes(Registry::default(), Readiness::new(&[]));
        let server = tokio::spawn(accept(listener, router));
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let (status, _) = http::get("127.0.0.1", address.port(), "/healthz", SOON).await.unwrap();
        assert_eq!(status, StatusCode::OK);
        // The oldest were closed, and the newest were not.
        let mut byte = [0];
        let first = tokio::time::timeout(SOON, silent[0].read(&mut byte)).await;
        assert!(first.is_ok());
        let newest = silent.last_mut().unwrap().try_read(&mut byte);
        assert_eq!(newest.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        server.abort();
    }
}
