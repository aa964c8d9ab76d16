//! Accepts connections and passes each to the API server of the tenant that it asks for.

use crate::{
    client_hello::{self, ClientHello},
    hold::{HoldLimits, Holder, PROBE_TIMEOUT},
    limits::{SourceSlot, Sources},
    metrics::{Metrics, Refusal},
    proxy_protocol,
    refused::Refused,
    relay::{self, StallLimits},
    routes::{RoutingTable, Tenant, TenantSlot},
    sleep_state::Activity,
    wake::RequestWake,
};
use berth_runtime::{
    places::{Place, Places},
    sockets,
};
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
/// Time between two checks whether a client has hung up that has sent more than its ClientHello.
const HANG_UP_CHECK: Duration = Duration::from_secs(1);

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All connections.
    pub connections: usize,
    /// Those whose ClientHello is not complete.
    pub handshakes: usize,
    /// Those to one API server.
    pub of_tenant: usize,
    /// Those from one source to one API server.
    pub of_tenant_source: usize,
    /// Those from one source.
    pub of_source: usize,
    /// Those whose client or API server takes nothing of what was sent to it. One counts twice if neither does.
    pub stalled: usize,
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
    /// How long what was sent to a client or an API server may make no progress.
    pub stall: Duration,
    /// How long connections go on after the last one was accepted.
    pub drain: Duration,
}

/// What passes connections on.
pub struct Gateway {
    limits: Limits,
    timeouts: Timeouts,
    proxies: Vec<IpNet>,
    table: Arc<RoutingTable>,
    handshakes: Places,
    stalls: Places,
    sources: Sources,
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

/// Why an API server was not reached at once.
enum Unreached {
    /// The connection is refused.
    Refused(Refused),
    /// The tenant sleeps, or may sleep, in which case this is what connecting to its API server gave.
    Asleep(Option<String>),
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
            handshakes: Places::new(limits.handshakes),
            stalls: Places::new(limits.stalled),
            sources: Sources::default(),
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
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            // Where there is no place, one that is silent leaves its own. Else this connection waits, and further ones in the backlog.
            if permits.available_permits() == 0 {
                self.handshakes.displace_oldest();
            }
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let handshake = self.handshakes.take();
            let (gateway, closed) = (Arc::clone(self), closed.clone());
            tracker.spawn(async move {
                // What opening needs is freed before the connection becomes idle.
                let opened = Box::pin(gateway.open(stream, peer, handshake, closed)).await;
                if let Some(connection) = opened {
                    carry(connection, peer, gateway.timeouts.stall, &gateway.stalls).await;
                }
                drop(permit);
            });
        }
    }

    /// Passes a connection on, or refuses it.
    async fn open(
        &self,
        mut client: TcpStream,
        peer: SocketAddr,
        handshake: Place,
        closed: CancellationToken,
    ) -> Option<Connection> {
        let accepted_at = Instant::now();
        sockets::tune(&client);
        sockets::limit_stall(&client, self.timeouts.stall);
        sockets::limit_unsent(&client);
        sockets::limit_unacknowledged(&client);
        let opened = tokio::select! {
            () = closed.cancelled() => return None,
            opened = self.connect(&mut client, peer.ip(), handshake, accepted_at) => opened,
        };
        match opened {
            Ok((backend, slot, source)) => {
                // Not before: the kernel keeps less of a connection of which nothing is read.
                sockets::limit_unread_of_far(&client);
                Some(Connection {
                    client,
                    backend,
                    slot,
                    _source: source,
                })
            }
            Err(refused) => {
                refused.answer(client, peer, &self.metrics).await;
                None
            }
        }
    }

    /// Finds the tenant of a connection and connects to its API server.
    async fn connect(
        &self,
        client: &mut TcpStream,
        peer: IpAddr,
        mut handshake: Place,
        accepted_at: Instant,
    ) -> Result<(TcpStream, TenantSlot, SourceSlot), Refused> {
        let deadline = accepted_at + self.timeouts.handshake;
        let late = |_| Refused::new(Refusal::HandshakeTimeout, "no ClientHello in time");
        let (source, hello) = tokio::select! {
            biased;
            read = timeout_at(deadline, self.read_hello(client, peer)) => read.map_err(late)??,
            () = handshake.displaced() => {
                let message = "no ClientHello before the place was needed for another connection";
                return Err(Refused::new(Refusal::HandshakeLimit, message));
            }
        };
        drop(handshake);
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
        let Limits {
            of_tenant,
            of_tenant_source,
            ..
        } = self.limits;
        let slot = tenant.take_connection(source.address(), of_tenant_source, of_tenant);
        let slot =
            slot.map_err(|reason| Refused::of_tenant(&tenant, reason, "there are too many connections to the tenant"))?;
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
        let unreached = refused.clone();
        let held = self
            .holder
            .hold(tenant, source.address(), refused, hung_up(client), attempt);
        let backend = held.await.map_err(|error| Refused::held(tenant, error, unreached))?;
        self.metrics.hold_seconds.observe(held_at.elapsed().as_secs_f64());
        Ok(backend)
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
            .take(source, self.limits.of_source)
            .ok_or_else(|| Refused::new(Refusal::SourceLimit, format!("{source} has too many connections")))?;
        let hello = client_hello::read(client).await.map_err(Refused::without_hello)?;
        Ok((slot, hello))
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
        sockets::limit_unread(&backend);
        sockets::limit_unsent(&backend);
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
async fn carry(connection: Connection, peer: SocketAddr, stall: Duration, stalls: &Places) {
    let Connection {
        client,
        backend,
        slot,
        _source,
    } = connection;
    let metrics = &slot.tenant.metrics;
    let limits = StallLimits {
        timeout: stall,
        places: stalls,
        displaced: &metrics.displaced,
    };
    tokio::select! {
        () = slot.tenant.deleted.cancelled() => {}
        ended = relay::relay(&client, &backend, &metrics.received, &metrics.sent, limits) => {
            if let Err(error) = ended {
                tracing::debug!(%peer, tenant = metrics.labels.tenant, %error, "a connection broke");
            }
        }
    }
}
