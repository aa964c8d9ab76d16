//! The egress broker: every connection that the tenant's API server opens towards anything but its datastore comes here
//! as an HTTP CONNECT over mutual TLS (Kubernetes calls it an egress selector), and goes where the tenant may go.
//!
//! ```text
//!  tenant's API server ── CONNECT host:port ──► here ──► the tenant's pods and Services
//!   (webhooks, aggregated APIs, proxies,         │  └───► hosts that the class lists
//!    logs, exec, attach, port-forward)           └──────► kubelet, and servers in this process
//! ```
//!
//! - [`berth_sync_rules::egress`] reads the target of a CONNECT and decides where it goes.
//! - [`local`] has the syncer's own servers.
//! - `places` limits how many connections there are.
//! - `platform` knows the addresses of the host's API server.
//! - `resolver` looks up the names of external hosts.
//!
//! Names are resolved here, once, and the addresses are checked before connecting. An error is in the status line,
//! because the API server repeats only that part.

pub mod local;
mod places;
mod platform;
mod resolver;

use crate::{
    engine::Engine,
    kubelet::{
        Kubelet,
        certificates::{Certificates, Subject},
    },
    metrics::EgressLabels,
    serve::{self, Answer},
    tls::{self, Acceptor, IdentityFiles, TlsError},
};
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, Request, Response, StatusCode, header},
};
use berth_pki::CertificateAuthority;
use berth_runtime::sockets;
use berth_sync_rules::egress::{
    local::Locals,
    policy::{self, ConnectError, Route},
    target::{Host, Target},
};
use berth_sync_rules::model::{
    KindId,
    resource::{Name, Side},
};
use hyper::{body::Incoming, ext::ReasonPhrase, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use kube::Client;
use local::Local;
use places::{Place, Places, TO_METRICS, TUNNELS};
use platform::Platform;
use resolver::Resolver;
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};

/// All connections at a time: some are left for admission, on which the tenant's Services depend.
const CONNECTIONS: usize = TUNNELS + TO_METRICS + 128;
/// Time in which a CONNECT must arrive.
const REQUEST: Duration = Duration::from_secs(10);
/// Time in which an endpoint must take a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long an endpoint may take nothing of what is sent to it: as long as something waits, it is not noticed that the API server has closed the
/// connection. An endpoint whose node is gone is noticed after the same time.
const STALLED: Duration = Duration::from_mins(2);
/// Endpoints of a Service that are tried.
const TRIES: usize = 3;

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The authority for kubelets cannot be used.
    #[error("kubelet authority: {0}")]
    Authority(#[from] berth_pki::Error),
}

/// What the broker needs.
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its certificate, and the authority that signed the API server's.
    pub identity: IdentityFiles,
    /// Signs certificates for kubelets and for the syncer's own servers.
    pub authority: CertificateAuthority,
    /// Name or address of the host's API server.
    pub platform: String,
}

/// A broker that listens and does not answer yet.
pub struct Egress {
    listener: std::net::TcpListener,
    acceptor: Acceptor,
    certificates: Arc<Certificates>,
    locals: Locals<Local>,
    platform: Platform,
}

struct Broker {
    acceptor: Acceptor,
    certificates: Arc<Certificates>,
    kubelet: Kubelet,
    locals: Locals<Local>,
    platform: Platform,
    places: Places,
    resolver: Resolver,
    /// Endpoints take turns.
    turn: AtomicUsize,
}

/// What a connection is for, once it is made.
enum Next {
    Local(Local, Option<Place>),
    Kubelet(Name, Option<Place>),
    Tunnel(TcpStream, Option<Place>),
}

impl Egress {
    /// Listens.
    ///
    /// # Errors
    /// As [`EgressError`] says.
    pub async fn listen(settings: Settings) -> Result<Self, EgressError> {
        let Settings {
            address,
            identity,
            authority,
            platform,
        } = settings;
        let acceptor = Acceptor::new(identity)?;
        let fail = |error| EgressError::Listen(address, error);
        let listener = serve::listen(address).await.map_err(fail)?;
        Ok(Self {
            listener,
            acceptor,
            certificates: Arc::new(Certificates::new(authority)),
            locals: Locals::default(),
            platform: Platform::new(&platform),
        })
    }

    /// Lets the API server reach one of the syncer's own servers, which listens at `address`, at `authority` (`host:port`).
    pub fn add_server_route(&mut self, authority: &str, mut address: SocketAddr) {
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        match Target::parse(authority) {
            Ok(target) => self.locals.add(target, Local::At(address)),
            Err(error) => tracing::warn!(authority, error, "the API server cannot reach a server of the syncer"),
        }
    }

    /// Serves `router` for the API server at `host`, port 443, with a certificate for the DNS name `name`: that of the
    /// Service (`<service>.<namespace>.svc`) whose `externalName` is `host`.
    pub fn serve_locally(&mut self, host: &str, name: &str, router: Router) {
        let target = Target {
            host: Host::Name(host.to_owned()),
            port: 443,
        };
        self.locals.add(target, Local::Routes(name.to_owned(), router));
    }

    /// Answers until it is dropped. `host` is a client for streams, of the runtime that calls this.
    pub(crate) async fn serve(self, engine: Arc<Engine>, host: Client) -> std::io::Result<()> {
        let Self {
            listener,
            acceptor,
            certificates,
            locals,
            platform,
        } = self;
        let listener = TcpListener::from_std(listener)?;
        let broker = Arc::new(Broker {
            acceptor,
            kubelet: Kubelet::new(host, Arc::clone(&certificates)),
            certificates,
            locals,
            platform,
            places: Places::default(),
            resolver: Resolver::default(),
            turn: AtomicUsize::new(0),
        });
        let accepting = serve::accept(listener, CONNECTIONS, |stream| {
            let (broker, engine) = (Arc::clone(&broker), Arc::clone(&engine));
            async move { broker.connection(&engine, stream).await }
        });
        tokio::join!(accepting, broker.platform.keep());
        Ok(())
    }
}

impl Broker {
    async fn connection(&self, engine: &Engine, stream: TcpStream) {
        let Some(stream) = self.acceptor.accept(stream).await else {
            return;
        };
        let connected = serve::http(stream, REQUEST, |request| self.answer(engine, request)).await;
        let Some((mut stream, next)) = connected else {
            return;
        };
        match next {
            Next::Local(local, _place) => self.local(stream, local).await,
            Next::Kubelet(node, _place) => self.kubelet.serve(engine, &node, stream).await,
            Next::Tunnel(mut far, _place) => serve::tunnel(&mut stream, &mut far).await,
        }
    }

    async fn local(&self, mut stream: TokioIo<Upgraded>, local: Local) {
        match local {
            Local::At(address) => match dial(address, STALLED).await {
                Ok(mut far) => serve::tunnel(&mut stream, &mut far).await,
                Err(error) => tracing::warn!(%error, "a server of the syncer does not answer"),
            },
            Local::Routes(name, router) => match self.certificates.server(Subject::Local { name }) {
                Ok(config) => {
                    if let Some(stream) = tls::accept(config, stream).await {
                        berth_runtime::http::serve_routes(stream, router).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "a server of the syncer has no certificate"),
            },
        }
    }

    async fn answer(&self, engine: &Engine, request: Request<Incoming>) -> Answer<Next> {
        let (kind, result) = self.connect(engine, &request).await;
        let answer = match &result {
            Ok(_) => "connected",
            Err(error) if error.status == StatusCode::FORBIDDEN => "denied",
            Err(_) => "failed",
        };
        let labels = EgressLabels {
            target: kind,
            result: answer,
        };
        engine.metrics().egress.get_or_create(&labels).inc();
        match result {
            Ok(next) => Answer::Upgrade(Response::new(Body::empty()), next),
            Err(error) => {
                tracing::debug!(status = %error.status, message = error.message, "a connection was not made");
                Answer::Response(response(error))
            }
        }
    }

    /// The kind of the target, for metrics, and the connection to it.
    async fn connect(
        &self,
        engine: &Engine,
        request: &Request<Incoming>,
    ) -> (&'static str, Result<Next, ConnectError>) {
        let target = match read(request) {
            Ok(target) => target,
            Err(error) => return ("unknown", Err(error)),
        };
        let cache = engine.cache();
        let is_known = [
            (Side::Tenant, KindId::Service),
            (Side::Tenant, KindId::Pod),
            (Side::Host, KindId::Pod),
            (Side::Host, KindId::Node),
        ]
        .into_iter()
        .all(|(side, kind)| cache.stores.of(side, kind).is_listed());
        if !is_known && self.locals.get(&target).is_none() {
            return (
                "unknown",
                Err(ConnectError::unavailable("the platform is starting; try again")),
            );
        }
        match policy::route(cache, &self.locals, &target) {
            Ok(route) => (route.kind(), self.take(engine, &target, route).await),
            Err(error) => ("unknown", Err(error)),
        }
    }

    async fn take(&self, engine: &Engine, target: &Target, route: Route<Local>) -> Result<Next, ConnectError> {
        let namespace = policy::namespace_of_pod(engine.cache(), target);
        let place = self.places.take_for(target, &route, namespace)?;
        Ok(match route {
            Route::Local(local) => Next::Local(local, place),
            Route::Kubelet(node) => Next::Kubelet(node, place),
            Route::Addresses(_, addresses) => {
                let addresses = policy::without_platform(&self.platform.addresses()?, target, addresses)?;
                Next::Tunnel(self.dial_any(target, &addresses).await?, place)
            }
            Route::External(target) => {
                let addresses = self.resolve(engine, &target).await?;
                Next::Tunnel(self.dial_any(&target, &addresses).await?, place)
            }
        })
    }

    /// The addresses of an external host, each of which has been checked.
    async fn resolve(&self, engine: &Engine, target: &Target) -> Result<Vec<SocketAddr>, ConnectError> {
        let addresses: Vec<SocketAddr> = match &target.host {
            Host::Address(address) => vec![SocketAddr::new(*address, target.port)],
            Host::Name(name) => {
                let found = self.resolver.resolve(name, target.port).await;
                found.map_err(|error| ConnectError::unavailable(format!("{target}: {error}")))?
            }
        };
        let platform = self.platform.addresses()?;
        for address in &addresses {
            policy::check_external(engine.cache(), &platform, target, address.ip())?;
        }
        Ok(addresses)
    }

    async fn dial_any(&self, target: &Target, addresses: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = addresses.iter().cycle().skip(turn % addresses.len().max(1));
        let mut why = "no endpoint".to_owned();
        for address in in_turn.take(addresses.len().min(TRIES)) {
            match dial(*address, STALLED).await {
                Ok(stream) => return Ok(stream),
                Err(error) => why = error.kind().to_string(),
            }
        }
        Err(ConnectError {
            status: StatusCode::BAD_GATEWAY,
            message: format!("{target} does not answer: {why}"),
        })
    }
}

/// Connects to an endpoint. The connection breaks once the endpoint has taken nothing of what waits for it for so long.
async fn dial(address: SocketAddr, stalled: Duration) -> std::io::Result<TcpStream> {
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect(address))
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    sockets::tune(&stream);
    sockets::limit_stall(&stream, stalled);
    Ok(stream)
}

/// The target of a request; whatever else it says does not matter.
fn read(request: &Request<Incoming>) -> Result<Target, ConnectError> {
    let bad = |status, message: &str| ConnectError {
        status,
        message: message.to_owned(),
    };
    if request.method() != Method::CONNECT {
        return Err(bad(StatusCode::METHOD_NOT_ALLOWED, "only CONNECT is supported"));
    }
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    Target::parse(authority.unwrap_or_default()).map_err(|why| bad(StatusCode::BAD_REQUEST, why))
}

/// The last answer on its connection. What follows is not read, and another connection can have its place at once.
fn response(error: ConnectError) -> Response<Body> {
    let reason = ReasonPhrase::try_from(error.message.as_bytes());
    let mut response = Response::new(Body::from(error.message));
    *response.status_mut() = error.status;
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    if let Ok(reason) = reason {
        response.extensions_mut().insert(reason);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_connection_that_is_denied_ends_with_the_answer() {
        let (mut client, server) = tokio::io::duplex(4096);
        let deny = |_| async {
            let error = ConnectError {
                status: StatusCode::FORBIDDEN,
                message: "denied".into(),
            };
            Answer::<()>::Response(response(error))
        };
        let serving = tokio::spawn(async move { serve::http(server, REQUEST, deny).await.is_none() });
        let two = "CONNECT a:1 HTTP/1.1\r\n\r\nCONNECT b:1 HTTP/1.1\r\n\r\n";
        client.write_all(two.as_bytes()).await.unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers.matches("HTTP/1.1 403 denied").count(), 1, "{answers}");
        assert!(serving.await.unwrap());
    }

    #[tokio::test]
    async fn a_connection_to_an_endpoint_that_reads_nothing_breaks() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limit = Duration::from_secs(1);
        let (stream, accepted) = tokio::join!(dial(address, limit), listener.accept());
        let (mut read, mut write) = stream.unwrap().into_split();
        let writing = tokio::spawn(async move { while write.write_all(&[1; 16 << 10]).await.is_ok() {} });
        let ended = tokio::time::timeout(30 * limit, read.read(&mut [0])).await;
        assert!(ended.is_ok(), "the connection is kept");
        writing.abort();
        drop(accepted);
    }
}
