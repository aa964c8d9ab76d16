//! A TCP proxy on loopback between a client and an API server, which can be cut: bytes then stop, both ways, and the
//! connections stay open, as when a network breaks.

use std::net::SocketAddr;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The proxy. It ends with the value.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    cut: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens on a free port and passes everything on to `target` (`host:port`).
    ///
    /// # Errors
    /// No port can be listened on.
    pub async fn to(target: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (cut, is_cut) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, is_cut) = (target.clone(), is_cut.clone());
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(
                        pass(from_client, to_server, is_cut.clone()),
                        pass(from_server, to_client, is_cut)
                    );
                });
            }
        });
        Ok(Self { address, cut, task })
    }

    /// `host:port` of the proxy.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Stops or passes bytes.
    pub fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut is_cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if is_cut.wait_for(|cut| !cut).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _: std::io::Result<()> = to.shutdown().await;
}
