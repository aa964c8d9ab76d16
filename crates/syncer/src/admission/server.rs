//! The server for admission requests of the tenant's API server. A client without a certificate of the tenant's own
//! authority for this purpose does not get past the handshake.

use super::{
    configuration,
    room::{Refusal, Room},
    services,
    writes::Turns,
};
use crate::{
    engine::{Engine, reserve::Connections},
    metrics::{AdmissionLabels, WriteLabels},
    serve,
    tls::{Acceptor, IdentityFiles, TlsError},
};
use axum::{Json, Router, body::Body, extract::State, http::HeaderMap, routing::post};
use berth_runtime::tree::Tree;
use berth_sync_rules::admission::{
    configuration::{PATH, configuration},
    review::{Denial, Review, Verdict},
    writes::{self, Write},
};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use serde_json::Value;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

/// Connections at a time: after a burst, each of three API servers keeps 25 idle ones for each of the two paths (the limit of client-go), and
/// needs new ones even so.
const CONNECTIONS: usize = 256;
/// Time limit of an answer: less than the API server waits, so that the tenant gets the reason.
const ANSWER: Duration = Duration::from_secs(8);
/// Largest request about a Service, in bytes: it and its earlier state, each up to what etcd stores (1.5 MiB) and somewhat longer as text.
const LARGEST_SERVICE: u64 = 4 << 20;
/// Largest request about a large write: the same for any object, custom resources among them, whose requests may have 3 MiB.
const LARGEST_WRITE: u64 = 8 << 20;

/// Why there is no admission server.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// An admission server that listens and does not answer yet.
pub struct Admission {
    listener: std::net::TcpListener,
    acceptor: Acceptor,
    authority: String,
    configuration: MutatingWebhookConfiguration,
    write_rate: u64,
}

impl Admission {
    /// Listens on `address`. The API server connects to `authority` (`host:port`), or to the address. Large writes wait when they are more
    /// than `write_rate` bytes a second.
    ///
    /// # Errors
    /// As [`AdmissionError`] says.
    pub async fn listen(
        address: SocketAddr,
        authority: Option<&str>,
        identity: IdentityFiles,
        write_rate: u64,
    ) -> Result<Self, AdmissionError> {
        let acceptor = Acceptor::new(identity)?;
        let fail = |error| AdmissionError::Listen(address, error);
        let listener = serve::listen(address).await.map_err(fail)?;
        let authority = match authority {
            Some(authority) => authority.to_owned(),
            None => listener.local_addr().map_err(fail)?.to_string(),
        };
        Ok(Self {
            listener,
            configuration: configuration(&authority, &acceptor.authority()),
            acceptor,
            authority,
            write_rate,
        })
    }

    /// `host:port` that the API server connects to, and the address that the server listens on.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn reached_at(&self) -> std::io::Result<(&str, SocketAddr)> {
        Ok((&self.authority, self.listener.local_addr()?))
    }

    /// Answers requests, and keeps the tenant's webhook configuration as it should be, until it is dropped. `connections` are
    /// of the runtime that calls this.
    pub(crate) async fn serve(self, engine: Arc<Engine>, connections: Connections) -> std::io::Result<()> {
        let Self {
            listener,
            acceptor,
            authority: _,
            configuration,
            write_rate,
        } = self;
        let listener = TcpListener::from_std(listener)?;
        let tenant = connections.tenant.clone();
        let answers = Arc::new(Answers {
            engine,
            connections,
            turns: Turns::new(write_rate),
            room: Room::new(),
        });
        let (acceptor, router) = (Arc::new(acceptor), router(answers));
        let serving = serve::accept(listener, CONNECTIONS, |stream| {
            let (acceptor, router) = (Arc::clone(&acceptor), router.clone());
            async move {
                if let Some(stream) = acceptor.accept(stream).await {
                    berth_runtime::http::serve_routes(stream, router).await;
                }
            }
        });
        tokio::join!(serving, configuration::keep(tenant, &configuration));
        Ok(())
    }
}

/// What answers are made with.
struct Answers {
    engine: Arc<Engine>,
    connections: Connections,
    turns: Turns,
    room: Room,
}

fn router(answers: Arc<Answers>) -> Router {
    Router::new()
        .route(PATH, post(answer_service))
        .route(writes::PATH, post(answer_write))
        .with_state(answers)
}

async fn answer_service(
    State(answers): State<Arc<Answers>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let Answers {
        engine,
        connections,
        room,
        ..
    } = &*answers;
    let start = Instant::now();
    let held = room.read(LARGEST_SERVICE, &headers, body).await?;
    let review = Review::read(&held.review).map_err(Refusal::unreadable)?;
    // Held until the end.
    let trees: u64 = review.objects().map(|text| Tree::of(text.as_bytes()).bytes()).sum();
    let tree = room.for_tree(trees).await;
    let _tree = tree.map_err(|denial| Refusal::Denied(review.uid().to_owned(), denial))?;
    let request = review.request().map_err(Refusal::unreadable)?;
    drop(held);
    let answer = tokio::time::timeout(
        ANSWER.saturating_sub(start.elapsed()),
        services::answer(engine, connections, &request),
    )
    .await;
    let verdict = answer.unwrap_or_else(|_| {
        Verdict::Deny(Denial::unavailable(
            "the platform did not give an address in time; try again",
        ))
    });
    engine.metrics().admission(
        &AdmissionLabels {
            operation: request.operation.name(),
            result: verdict.name(),
        },
        start.elapsed(),
    );
    Ok(Json(verdict.answer(&request.uid)))
}

/// The content is dropped before the write waits: only its size matters.
async fn answer_write(
    State(answers): State<Arc<Answers>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let held = answers.room.read(LARGEST_WRITE, &headers, body).await?;
    let write = Write::read(&held.review).map_err(Refusal::unreadable)?;
    drop(held);
    let start = Instant::now();
    let verdict = answers.turns.answer(&write).await;
    let labels = WriteLabels { result: verdict.name() };
    answers
        .engine
        .metrics()
        .large_write(&labels, write.bytes, start.elapsed());
    Ok(Json(verdict.answer(&write.uid)))
}
