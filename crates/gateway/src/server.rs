//! Accepts connections and passes each to the API server of the tenant that it asks for.

use crate::{
    client_hello::{self, ClientHello, HelloError},
    hold::{HoldError, HoldLimits, Holder, PROBE_TIMEOUT},
    limits::{SourceSlot, Sources},
    metrics::{Metrics, Refusal},
    proxy_protocol, relay,
    routes::{RoutingTable, Tenant, TenantSlot},
    sleep_state::Activity,
    wake::RequestWake,
};
use berth_runtime::sockets;
use ipnet::IpNet;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Pause after a connection could not be accepted, because there are too many open files for example.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for an alert to be written.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two checks whether a client has hung up that has sent more than its ClientHello.
const HANG_UP_CHECK: Duration = Duration::from_secs(1);

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All connections.
    pub connections: usize,
    /// Those to one API server.
    pub of_tenant: usize,
    /// Those from one source.
    pub of_source: usize,
    /// Those that are held.
    pub held: HoldLimits,
}

/// Limits of time.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the acceptance until the ClientHello is complete.
    pub handshake: Duration,
    /// Until the API server has accepted the connection and taken the ClientHello.
    pub connect: Duration,
    /// How long an API server without an address is waited for.
    pub backend: Duration,
    /// How long connections are held for a tenant that wakes.
    pub wake: Duration,
    /// How long connections go on after the last one was accepted.
    pub drain: Duration,
}

/// What passes connections on.
pub struct Gateway {
    limits: Limits,
    timeouts: Timeouts,
    proxies: Vec<IpNet>,
    table: Arc<RoutingTable>,
    sources: Arc<Sources>,
    holder: Holder,
    metrics: Metrics,
}

/// A connection that was passed on.
struct Connection {
    client: TcpStream,
    backend: TcpStream,
    slot: TenantSlot,
    _source: SourceSlot,
}

/// A refused connection: what is counted, what is logged, and what the client gets.
struct Refused {
    reason: Refusal,
    tenant: Option<Arc<Tenant>>,
    message: String,
    alert: Vec<u8>,
}

/// Why an API server was not reached at once.
enum Unreached {
    /// The connection is refused.
    Refused(Refused),
    /// The tenant sleeps, or may sleep, in which case this is what connecting to its API server gave.
    Asleep(Option<String>),
}

impl Refused {
    /// One of an unknown tenant, which gets no answer.
    fn new(reason: Refusal, message: impl Into<String>) -> Self {
        Self {
            reason,
            tenant: None,
            message: message.into(),
            alert: Vec::new(),
        }
    }

    fn with_alert(mut self, description: u8) -> Self {
        self.alert = client_hello::alert(description).to_vec();
        self
    }

    /// One of a tenant, which gets the alert internal_error: the client did nothing wrong in TLS.
    fn of_tenant(tenant: &Arc<Tenant>, reason: Refusal, message: impl Into<String>) -> Self {
        Self {
            tenant: Some(Arc::clone(tenant)),
            ..Self::new(reason, message).with_alert(client_hello::INTERNAL_ERROR)
        }
    }
}

impl Gateway {
    /// What passes connections to the tenants in `table`, and asks `requests` to wake those that sleep. Connections from `proxies` begin
    /// with a header of the PROXY protocol.
    pub fn new(
        limits: Limits,
        timeouts: Timeouts,
        proxies: Vec<IpNet>,
        table: Arc<RoutingTable>,
        metrics: Metrics,
        requests: Arc<dyn RequestWake>,
    ) -> Self {
        Self {
            limits,
            timeouts,
            proxies,
            holder: Holder::new(limits.held, timeouts.wake, table.backends(), requests),
            table,
            sources: Sources::new(limits.of_source),
            metrics,
        }
    }

    /// Accepts connections until `stop`. Then those that are open go on until the time for draining is over; `closed` is cancelled
    /// then, which ends them. Returns when there is none left.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken, closed: CancellationToken) {
        let tracker = TaskTracker::new();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.accept(&listener, &tracker, &closed) => {}
        }
        drop(listener);
        tracker.close();
        tracing::info!(connections = tracker.len(), "no connections are accepted any more");
        if timeout(self.timeouts.drain, tracker.wait()).await.is_err() {
            tracing::info!(connections = tracker.len(), "closing connections");
            closed.cancel();
            tracker.wait().await;
        }
    }

    /// Accepts connections, as many at the same time as there may be.
    async fn accept(self: &Arc<Self>, listener: &TcpListener, tracker: &TaskTracker, closed: &CancellationToken) {
        let permits = Arc::new(Semaphore::new(self.limits.connections));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let (gateway, closed) = (Arc::clone(self), closed.clone());
            tracker.spawn(async move {
                // What opening needs is freed before the connection becomes idle.
                let opened = Box::pin(gateway.open(stream, peer, closed)).await;
                if let Some(connection) = opened {
                    carry(connection, peer).await;
                }
                drop(permit);
            });
        }
    }

    /// Passes a connection on, or refuses it.
    async fn open(&self, mut client: TcpStream, peer: SocketAddr, closed: CancellationToken) -> Option<Connection> {
        let accepted_at = Instant::now();
        sockets::tune(&client);
        let opened = tokio::select! {
            () = closed.cancelled() => return None,
            opened = self.connect(&mut client, peer.ip(), accepted_at) => opened,
        };
        match opened {
            Ok((backend, slot, source)) => Some(Connection {
                client,
                backend,
                slot,
                _source: source,
            }),
            Err(refused) => {
                self.refuse(client, peer, &refused).await;
                None
            }
        }
    }

    /// Finds the tenant of a connection and connects to its API server.
    async fn connect(
        &self,
        client: &mut TcpStream,
        peer: IpAddr,
        accepted_at: Instant,
    ) -> Result<(TcpStream, TenantSlot, SourceSlot), Refused> {
        let deadline = accepted_at + self.timeouts.handshake;
        let late = |_| Refused::new(Refusal::HandshakeTimeout, "no ClientHello in time");
        let (source, hello) = timeout_at(deadline, self.read_hello(client, peer))
            .await
            .map_err(late)??;
        let name = hello.server_name.as_deref().ok_or_else(|| {
            Refused::new(Refusal::NoServerName, "the client names no host (SNI)")
                .with_alert(client_hello::UNRECOGNIZED_NAME)
        })?;
        let tenant = self.table.find_tenant(name).ok_or_else(|| {
            Refused::new(
                Refusal::UnknownServerName,
                format!("no tenant has the host name {name}"),
            )
            .with_alert(client_hello::UNRECOGNIZED_NAME)
        })?;
        let refuse = |reason, message: &str| Refused::of_tenant(&tenant, reason, message);
        let slot = tenant
            .take_connection(self.limits.of_tenant)
            .ok_or_else(|| refuse(Refusal::TenantLimit, "the tenant has too many connections"))?;
        let backend = match self.reach(&tenant, &hello).await {
            Ok(backend) => {
                self.metrics.open_seconds.observe(accepted_at.elapsed().as_secs_f64());
                backend
            }
            Err(Unreached::Refused(refused)) => return Err(refused),
            Err(Unreached::Asleep(message)) => self.hold(client, &tenant, &source, message, &hello).await?,
        };
        slot.tenant.metrics.opened.inc();
        slot.tenant.metrics.received.inc_by(hello.bytes.len() as u64);
        Ok((backend, slot, source))
    }

    /// Connects to the API server of a tenant, if that may run.
    async fn reach(&self, tenant: &Arc<Tenant>, hello: &ClientHello) -> Result<TcpStream, Unreached> {
        if tenant.hold.sleep_state().activity.is_asleep() {
            return Err(Unreached::Asleep(None));
        }
        let refuse = |reason, message: &str| Unreached::Refused(Refused::of_tenant(tenant, reason, message));
        let address = self.table.find_backend(tenant, self.timeouts.backend).await;
        let address =
            address.ok_or_else(|| refuse(Refusal::BackendPending, "the tenant's API server has no address yet"))?;
        let dialed = dial(address, hello, self.timeouts.connect).await;
        dialed.map_err(|message| {
            // It may have been stopped this moment.
            match tenant.hold.sleep_state().activity {
                Activity::Other | Activity::Ending => refuse(Refusal::BackendUnavailable, &message),
                Activity::Running | Activity::Sleeping | Activity::Kept | Activity::Waking => {
                    Unreached::Asleep(Some(message))
                }
            }
        })
    }

    /// Holds a connection until the API server of its tenant is there. `refused` is why it was not reached before.
    async fn hold(
        &self,
        client: &TcpStream,
        tenant: &Arc<Tenant>,
        source: &SourceSlot,
        refused: Option<String>,
        hello: &ClientHello,
    ) -> Result<TcpStream, Refused> {
        let held_at = Instant::now();
        let limit = self.timeouts.connect.min(PROBE_TIMEOUT);
        let attempt = || async {
            let address = self.table.find_backend(tenant, Duration::ZERO).await;
            let address = address.ok_or("the tenant's API server has no address")?;
            dial(address, hello, limit).await
        };
        let was_refused = refused.clone();
        let held = self
            .holder
            .hold(tenant, source.address(), refused, hung_up(client), attempt);
        let error = match held.await {
            Ok(backend) => {
                self.metrics.hold_seconds.observe(held_at.elapsed().as_secs_f64());
                return Ok(backend);
            }
            Err(error) => error,
        };
        let refuse = |reason, message: String| Refused::of_tenant(tenant, reason, message);
        Err(match (error, was_refused) {
            (HoldError::Limit, None) => refuse(
                Refusal::HoldLimit,
                "too many connections are held for tenants that sleep".into(),
            ),
            (HoldError::Limit, Some(message)) | (HoldError::Unavailable(message), _) => {
                refuse(Refusal::BackendUnavailable, message)
            }
            (HoldError::NotAwake(message), _) => refuse(
                Refusal::WakeTimeout,
                format!("the tenant did not wake in time: {message}"),
            ),
            (HoldError::HungUp, _) => Refused {
                alert: Vec::new(),
                ..refuse(
                    Refusal::Closed,
                    "the client closed the connection while it was held".into(),
                )
            },
            (HoldError::Kept, _) => refuse(
                Refusal::KeptAsleep,
                "the tenant sleeps, and spec.sleep.mode is Asleep: nothing but another mode wakes it".into(),
            ),
            (HoldError::Deleted, _) => refuse(Refusal::TenantDeleted, "the tenant was deleted".into())
                .with_alert(client_hello::UNRECOGNIZED_NAME),
        })
    }

    /// Reads what comes before the first byte for the API server, and counts the connection for its source.
    async fn read_hello(&self, client: &mut TcpStream, peer: IpAddr) -> Result<(SourceSlot, ClientHello), Refused> {
        let mut source = peer.to_canonical();
        if self.proxies.iter().any(|network| network.contains(&source)) {
            let read = proxy_protocol::read(client).await;
            let named = read.map_err(|error| Refused::new(Refusal::InvalidProxyHeader, error.to_string()))?;
            source = named.unwrap_or(source);
        }
        let slot = self
            .sources
            .take(source)
            .ok_or_else(|| Refused::new(Refusal::SourceLimit, format!("{source} has too many connections")))?;
        let hello = client_hello::read(client).await.map_err(|error| {
            let message = error.to_string();
            match error {
                HelloError::Closed | HelloError::Io(_) => Refused::new(Refusal::Closed, message),
                HelloError::TooLong => {
                    Refused::new(Refusal::InvalidClientHello, message).with_alert(client_hello::DECODE_ERROR)
                }
                HelloError::Invalid { alert, .. } => Refused {
                    alert,
                    ..Refused::new(Refusal::InvalidClientHello, message)
                },
            }
        })?;
        Ok((slot, hello))
    }

    /// Counts a refused connection, and answers with an alert if there is one.
    async fn refuse(&self, mut client: TcpStream, peer: SocketAddr, refused: &Refused) {
        let Refused {
            reason,
            tenant,
            message,
            alert,
        } = refused;
        // Those of a tenant that is gone would never be removed.
        let known = tenant.as_ref().filter(|tenant| !tenant.deleted.is_cancelled());
        let labels = known.map(|tenant| tenant.metrics.labels.clone()).unwrap_or_default();
        self.metrics.count_refusal(*reason, &labels);
        tracing::debug!(%peer, reason = reason.as_str(), namespace = labels.tenant_namespace, tenant = labels.tenant, "{message}");
        if !alert.is_empty() {
            let answer = async {
                client.write_all(alert).await?;
                client.shutdown().await
            };
            // The client may be gone.
            let _ = timeout(ALERT_TIMEOUT, answer).await;
        }
    }
}

/// Completes when the client has closed the connection, or only its side, before TLS has begun. What it sends is left where it is.
async fn hung_up(client: &TcpStream) {
    loop {
        match client.peek(&mut [0]).await {
            // The end may be behind what it has sent.
            Ok(1..) => sleep(HANG_UP_CHECK).await,
            Ok(0) | Err(_) => return,
        }
        if !matches!(client.ready(Interest::READABLE).await, Ok(ready) if !ready.is_read_closed()) {
            return;
        }
    }
}

/// Connects to an API server and sends it the ClientHello, within a time. The error is for people.
async fn dial(address: SocketAddr, hello: &ClientHello, limit: Duration) -> Result<TcpStream, String> {
    let connected = async {
        let mut backend = TcpStream::connect(address).await?;
        sockets::tune(&backend);
        backend.write_all(&hello.bytes).await?;
        Ok::<_, std::io::Error>(backend)
    };
    match timeout(limit, connected).await {
        Ok(Ok(backend)) => Ok(backend),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server does not accept in time".into()),
    }
}

/// Copies bytes until the connection ends or its tenant is deleted.
async fn carry(connection: Connection, peer: SocketAddr) {
    let Connection {
        client,
        backend,
        slot,
        _source,
    } = connection;
    let metrics = &slot.tenant.metrics;
    tokio::select! {
        () = slot.tenant.deleted.cancelled() => {}
        ended = relay::relay(&client, &backend, &metrics.received, &metrics.sent) => {
            if let Err(error) = ended {
                tracing::debug!(%peer, tenant = metrics.labels.tenant, %error, "a connection broke");
            }
        }
    }
}
