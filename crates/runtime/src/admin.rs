//! The admin server: `/healthz`, `/readyz` and `/metrics` (OpenMetrics text).

use axum::{Router, extract, http::StatusCode, response::IntoResponse, routing::get};
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Conditions that must hold before the process is ready. Cheap to clone; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    needs: BTreeMap<&'static str, bool>,
    remarks: Vec<String>,
}

impl Readiness {
    /// Readiness that requires all of `needs`.
    pub fn new(needs: &[&'static str]) -> Self {
        Self(Arc::new(Mutex::new(State {
            needs: needs.iter().map(|need| (*need, false)).collect(),
            remarks: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether one of the needs is met now.
    pub fn set(&self, need: &'static str, met: bool) {
        self.state().needs.insert(need, met);
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
/// The address cannot be bound, or the listener fails.
pub async fn serve(
    address: SocketAddr,
    registry: Registry,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let state = AdminState {
        registry: Arc::new(registry),
        readiness,
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(state);
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

async fn readyz(extract::State(state): extract::State<AdminState>) -> impl IntoResponse {
    match state.readiness.missing().as_slice() {
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
    use super::Readiness;

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
}
