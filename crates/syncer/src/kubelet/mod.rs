//! The kubelets of the tenant's nodes, as the tenant's API server sees them. For each request, the syncer makes the
//! same request to the host's API server, for the tenant's pod on the host.
//!
//! ```text
//!  tenant's API server ── TLS, both ends with certificates of the tenant's kubelet authority ──► here
//!     GET /exec/{namespace}/{pod}/{container}?…                                                   │ the pod by the syncer's
//!                                                                                                 │ own index
//!  host's API server  ◄── GET …/namespaces/{workloads}/pods/{host pod}/exec?… ────────────────────┘
//! ```
//!
//! - [`request`] reads requests and translates them for the host.
//! - [`certificates`] makes a certificate for each node, for the names by which its API server addresses it.
//! - `shares` divides what may be open among pods and namespaces, and `rate` limits how many requests the host gets.
//!
//! Each connection is for one request: one that is idle would keep a place from others, and API servers would keep up to 25 of them for each node.
//!
//! After an upgrade the bytes go through as they are, whatever protocol they are. The pod is identified by its name in
//! the tenant and by the UID that its host pod was made for, and by nothing else in the request.

pub mod certificates;
mod counted_body;
mod rate;
pub mod request;
mod shares;
#[cfg(test)]
mod tests;

use crate::{
    engine::Engine,
    serve::{self, Answer},
    tls,
};
use axum::{
    body::Body,
    http::{HeaderMap, Method, Request, Response, StatusCode, header},
};
use berth_sync_rules::{
    model::{
        Cache, KindId, json,
        own_containers::{self, NamedContainer},
        resource::{Name, POD},
        store::is_origin,
    },
    translation::host_text,
};
use certificates::{Certificates, Subject};
use counted_body::CountedBody;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use kube::Client;
use rate::Rate;
use request::{Action, Denial};
use serde_json::Value;
use shares::{Share, Shares};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::io::{AsyncRead, AsyncWrite};

/// Connections of the API server at a time. The broker refuses further ones.
pub(crate) const CONNECTIONS: usize = 384;
/// How long a connection may lie idle before its request. The API server sends it at once.
const IDLE: Duration = Duration::from_mins(2);
/// Time in which the host must agree to an upgrade.
const UPGRADE: Duration = Duration::from_secs(30);
/// Longest error of the host that is read.
const LARGEST_ERROR: usize = 64 << 10;

/// The kubelets of all nodes of the tenant.
pub struct Kubelet {
    /// The host's API server: a client that lets connections be silent for as long as they like.
    host: Client,
    certificates: Arc<Certificates>,
    shares: Shares,
    rate: Rate,
}

impl Kubelet {
    /// Kubelets that forward requests to `host` and have certificates of `certificates`.
    pub fn new(host: Client, certificates: Arc<Certificates>) -> Self {
        Self {
            host,
            certificates,
            shares: Shares::default(),
            rate: Rate::new(Instant::now()),
        }
    }

    /// Answers on one connection to the kubelet of `node` until it ends.
    pub async fn serve<S>(&self, engine: &Engine, node: &Name, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let cache = engine.cache();
        let config = match self.certificates.server(subject(cache, node)) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(%node, %error, "cannot answer as a node's kubelet");
                return;
            }
        };
        let Some(stream) = tls::accept(config, stream).await else {
            return;
        };
        let handle = |request| self.answer(cache, node, request);
        if let Some((mut tenant, (upgrading, _share))) = serve::http(stream, IDLE, handle).await {
            match upgrading.await {
                Ok(host) => serve::tunnel(&mut tenant, &mut TokioIo::new(host)).await,
                Err(error) => tracing::debug!(%error, "the host gave no upgraded connection"),
            }
        }
    }

    async fn answer(&self, cache: &Cache, node: &Name, request: Request<Incoming>) -> Answer<(OnUpgrade, Share)> {
        let (method, uri) = (request.method(), request.uri());
        let asked = request::read(method, uri.path(), uri.query(), request.headers());
        let result = match asked {
            Ok(asked) => self.ask_host(cache, node, &asked, method, request.headers()).await,
            Err(denied) => Err(denied),
        };
        let answer = result.unwrap_or_else(|denied| {
            tracing::debug!(%node, status = %denied.status, reason = denied.message, "a kubelet request was denied");
            Answer::Response(text_response(denied.status, denied.message))
        });
        match answer {
            Answer::Response(response) => Answer::Response(closing(response)),
            upgrade @ Answer::Upgrade(..) => upgrade,
        }
    }

    async fn ask_host(
        &self,
        cache: &Cache,
        node: &Name,
        asked: &request::Request,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Answer<(OnUpgrade, Share)>, Denial> {
        // First, so that what there are too many of takes nothing from others.
        let share = self.shares.take(&asked.pod, asked.action)?;
        // Before the pod is looked up: it may be another one afterwards.
        let wait = self.rate.take(&asked.pod.namespace, asked.action, Instant::now())?;
        tokio::time::sleep(wait).await;
        let pod = host_pod(cache, node, asked)?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri(cache, &pod, asked))
            .body(kube::client::Body::empty())
            .map_err(|error| Denial::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        *request.headers_mut() = request::forwarded(headers);
        let sent = self.host.send(request);
        // A log may be silent for as long as its container is, even before its first line.
        let limit = if asked.action.is_stream() {
            UPGRADE
        } else {
            Duration::MAX
        };
        let response = match tokio::time::timeout(limit, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the host does not answer for a kubelet");
                return Err(no_answer());
            }
            Err(_) => return Err(no_answer()),
        };
        match (response.status(), asked.action) {
            (StatusCode::SWITCHING_PROTOCOLS, action) if action.is_stream() => Ok(upgrade(response, share)),
            (status, Action::Log) if status.is_success() => Ok(Answer::Response(log(response, share))),
            (status, _) if status.is_success() || status.is_informational() => Err(no_answer()),
            (status, _) => Err(host_error(cache, asked, status, response.into_body()).await),
        }
    }
}

fn subject(cache: &Cache, node: &Name) -> Subject {
    let object = cache.stores.host(KindId::Node).get(node).map(|node| node.object());
    let addresses = object
        .as_ref()
        .map(|node| json::items(node, &["status", "node", "addresses"]));
    let addresses = addresses.unwrap_or_default().iter();
    Subject::Kubelet {
        node: node.name.to_string(),
        addresses: addresses
            .filter_map(|address| json::text(address, &["address"])?.parse().ok())
            .collect(),
    }
}

/// Name of the host pod that a request is about.
fn host_pod(cache: &Cache, node: &Name, asked: &request::Request) -> Result<String, Denial> {
    let name = &asked.pod;
    let absent = || Denial::new(StatusCode::NOT_FOUND, format!("pod {name} does not run on node {node}"));
    let tenant = cache.stores.tenant(KindId::Pod).get(name).ok_or_else(absent)?;
    let host = cache.stores.host(KindId::Pod).get(name).ok_or_else(absent)?;
    let runs_here = json::text(&host.object(), &["spec", "nodeName"]) == Some(&*node.name);
    if !is_origin(&tenant, &host) || !runs_here {
        return Err(absent());
    }
    if let Some(container) = &asked.container {
        match own_containers::find(&tenant.object(), &host.object(), container) {
            NamedContainer::Own => {}
            NamedContainer::Unreported => return Err(not_started(asked, container)),
            NamedContainer::Foreign => {
                let message = format!("container {container} not found in pod {name}");
                return Err(Denial::new(StatusCode::NOT_FOUND, message));
            }
        }
    }
    Ok(host.name.to_string())
}

/// What a kubelet answers as long as it has not started a container. Clients know these messages.
fn not_started(asked: &request::Request, container: &str) -> Denial {
    if asked.action.is_stream() {
        let message = format!("container not found ({container:?})");
        return Denial::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    }
    let pod = &asked.pod.name;
    let message = format!("container {container:?} in pod \"{pod}\" is waiting to start: ContainerCreating");
    Denial::new(StatusCode::BAD_REQUEST, message)
}

fn uri(cache: &Cache, pod: &str, asked: &request::Request) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(&asked.query);
    let pods = POD.path(&cache.tenant.workload_namespace);
    format!("{pods}/{pod}/{}?{}", asked.action.subresource(), query.finish())
}

fn no_answer() -> Denial {
    Denial::new(StatusCode::BAD_GATEWAY, "the host cluster does not answer; try again")
}

fn text_response(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(Body::from(message));
    *response.status_mut() = status;
    let text = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

/// A response after which the connection is closed.
fn closing(mut response: Response<Body>) -> Response<Body> {
    let close = header::HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

fn upgrade(mut response: Response<kube::client::Body>, share: Share) -> Answer<(OnUpgrade, Share)> {
    let upgrading = hyper::upgrade::on(&mut response);
    let mut switching = Response::new(Body::empty());
    *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switching.headers_mut() = request::returned(response.headers());
    Answer::Upgrade(switching, (upgrading, share))
}

fn log(response: Response<kube::client::Body>, share: Share) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let mut log = Response::new(Body::new(CountedBody::new(Body::new(body), share)));
    *log.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        log.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    log
}

/// An error of the host, as a message for the tenant.
async fn host_error(cache: &Cache, asked: &request::Request, status: StatusCode, body: kube::client::Body) -> Denial {
    let bytes = axum::body::to_bytes(Body::new(body), LARGEST_ERROR)
        .await
        .unwrap_or_default();
    let message = match serde_json::from_slice::<Value>(&bytes) {
        Ok(object) => json::text(&object, &["message"]).unwrap_or_default().to_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
    };
    tracing::debug!(pod = %asked.pod, %status, reason = message, "the host denied a kubelet request");
    // If the host rejects the syncer itself, that is no error of the caller.
    let status = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => StatusCode::BAD_GATEWAY,
        status if status.is_client_error() || status.is_server_error() => status,
        _ => StatusCode::BAD_GATEWAY,
    };
    Denial::new(status, host_text::sanitize_error(cache, &asked.pod, &message))
}
