//! The servers for the tenant's API server. They run on a thread of their own.
//!
//! The engine's thread translates objects, one after the other, and looks at connections only in between. People wait at a
//! terminal for exec, logs, port-forward and `kubectl top`: that must not wait for translations. The bytes of a stream are
//! encrypted here, and that must not delay objects.
//!
//! Admission is on this thread, too: the tenant's API server keeps a request open until it has the answer, and gives up
//! after some seconds. An answer takes the translation of one Service and a few requests to the host. What it shares with
//! the engine (stores, reservations, queues, metrics) is behind locks, which are held for single look-ups and changes.
//!
//! Clients are not shared: their connections are served by the runtime in which they were made.

use crate::{
    Error,
    admission::Admission,
    egress::Egress,
    engine::{Engine, api::Api, reserve::Connections},
    metrics::Metrics,
    usage,
};
use berth_runtime::{client, thread::Thread};
use berth_sync_rules::{
    model::resource::Side,
    usage::{DNS_NAME, HOST},
};
use kube::{Client, Config};
use std::sync::Arc;

/// Name of the thread.
const THREAD: &str = "streams";

/// The API servers of both sides, and as whom they are called.
#[derive(Clone)]
pub struct ApiServers {
    /// The host's.
    pub host: Config,
    /// The tenant's.
    pub tenant: Config,
}

impl ApiServers {
    /// A client whose connections are served by the runtime that calls this.
    pub(crate) fn client(&self, side: Side) -> Result<Client, Error> {
        let client = match side {
            Side::Host => client::from_config(self.host.clone()),
            Side::Tenant => client::from_config_of_tenant(self.tenant.clone()),
        };
        client.map_err(|error| Error::Connect(side.name(), error))
    }

    /// The same, with calls that are counted.
    pub(crate) fn api(&self, side: Side, metrics: &Metrics) -> Result<Api, Error> {
        Ok(Api::new(self.client(side)?, side, metrics.clone()))
    }
}

/// The servers for the tenant's API server, besides the work of syncing.
#[derive(Default)]
pub struct Servers {
    /// Answers requests about Services that are about to be stored.
    pub admission: Option<Admission>,
    /// Makes the connections that it asks for.
    pub egress: Option<Egress>,
}

impl Servers {
    /// Both; the API server reaches the admission server through the broker, too.
    pub fn new(admission: Option<Admission>, mut egress: Option<Egress>) -> Self {
        let reached_at = admission.as_ref().map(Admission::reached_at);
        if let (Some(egress), Some(Ok((authority, address)))) = (&mut egress, reached_at) {
            egress.add_server_route(authority, address);
        }
        Self { admission, egress }
    }

    /// Starts the thread that serves; none if there is nothing to serve.
    pub(crate) fn start(
        self,
        engine: Arc<Engine>,
        api_servers: ApiServers,
    ) -> Result<Option<Thread<Result<(), Error>>>, Error> {
        if self.admission.is_none() && self.egress.is_none() {
            return Ok(None);
        }
        let work = move || async move { Box::pin(self.serve(engine, &api_servers)).await };
        Thread::start(THREAD, work).map(Some).map_err(Error::Servers)
    }

    /// Serves for ever.
    async fn serve(self, engine: Arc<Engine>, api_servers: &ApiServers) -> Result<(), Error> {
        let admission = async {
            if let Some(admission) = self.admission {
                let connections = Connections {
                    tenant: api_servers.api(Side::Tenant, engine.metrics())?,
                    host: api_servers.api(Side::Host, engine.metrics())?,
                };
                let serving = admission.serve(Arc::clone(&engine), connections);
                serving.await.map_err(Error::Servers)?;
            }
            Ok::<(), Error>(())
        };
        let egress = async {
            if let Some(mut egress) = self.egress {
                let metrics = usage::router(Arc::clone(&engine), api_servers.client(Side::Host)?);
                egress.serve_locally(HOST, DNS_NAME, metrics);
                let host =
                    client::for_streams(&api_servers.host).map_err(|error| Error::Connect(Side::Host.name(), error))?;
                egress.serve(Arc::clone(&engine), host).await.map_err(Error::Servers)?;
            }
            Ok::<(), Error>(())
        };
        tokio::try_join!(admission, egress)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        egress::Settings,
        engine::{Lists, test_engine::tenant},
        sync,
        tls::{
            IdentityFiles,
            tests::{DAY, client, issue},
        },
    };
    use berth_api::SyncPolicy;
    use berth_pki::{CertificateAuthority, Usage};
    use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
        path::Path,
        time::Duration,
    };
    use tokio_util::sync::CancellationToken;

    const MESSAGE: &[u8; 5] = b"hello";

    /// A server in a thread of its own, which returns one message.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = *MESSAGE;
            stream.read_exact(&mut message).unwrap();
            stream.write_all(&message).unwrap();
        });
        address
    }

    /// A broker that leads to `echo`, and its address.
    async fn broker(dir: &Path, authority: &CertificateAuthority, echo: SocketAddr) -> (Egress, SocketAddr) {
        let server = issue(authority, Usage::Server);
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, berth_process::free_port().unwrap()));
        let settings = Settings {
            address,
            identity: IdentityFiles {
                certificate: write("tls.crt", &server.cert_pem),
                key: write("tls.key", &server.key_pem),
                authority: write("ca.crt", authority.cert_pem()),
            },
            authority: CertificateAuthority::create("kubelet", DAY).unwrap(),
            platform: "127.0.0.1".into(),
        };
        let mut egress = Egress::listen(settings).await.unwrap();
        egress.add_server_route("echo.test:443", echo);
        (egress, address)
    }

    /// Sends the message through the broker and waits until it is back, without any runtime.
    fn exchange(broker: SocketAddr, config: ClientConfig) {
        let stream = TcpStream::connect(broker).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(session, stream);
        let connect = "CONNECT echo.test:443 HTTP/1.1\r\nHost: echo.test:443\r\n\r\n";
        stream.write_all(connect.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        stream.write_all(MESSAGE).unwrap();
        let mut back = [0; MESSAGE.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, MESSAGE);
    }

    #[test]
    fn streams_go_on_while_the_engine_is_busy() {
        berth_runtime::install_crypto();
        let dir = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::create("egress", DAY).unwrap();
        let config = client(&authority, Some(&issue(&authority, Usage::Client)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let address = runtime.block_on(async {
            let (egress, address) = broker(dir.path(), &authority, echo()).await;
            let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
            let api_servers = ApiServers {
                host: nowhere.clone(),
                tenant: nowhere,
            };
            let syncing = sync(
                tenant(SyncPolicy::default()),
                api_servers,
                Servers::new(None, Some(egress)),
                Metrics::default(),
                CancellationToken::new(),
                |_: Lists<'_>| {},
            );
            // This thread, which is the engine's, does nothing else until the message is back.
            let busy = async { exchange(address, config) };
            tokio::select! {
                biased;
                ended = Box::pin(syncing) => panic!("{ended:?}"),
                () = busy => address,
            }
        });
        // It ends with the engine: the address is free for the next one.
        TcpListener::bind(address).unwrap();
    }
}
