//! Keeps the plugin registered: with a kubelet that has not started yet, that restarts, or that forgets its plugins.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream;
use tokio::fs;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};

use crate::plugin::Plugin;
use crate::v1beta1::RegisterRequest;
use crate::v1beta1::device_plugin_server::DevicePluginServer;
use crate::v1beta1::registration_client::RegistrationClient;
use crate::{DeviceList, Options};

/// The file name of the kubelet's socket.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// The version of the API.
const VERSION: &str = "v1beta1";
/// How often the sockets and the file of failed devices are checked. It costs three file lookups.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long the kubelet may take to register; it connects to the plugin meanwhile.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a session with a kubelet could not start.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot listen at {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot reach the kubelet: {0}")]
    Connect(#[from] tonic::transport::Error),
    #[error("the kubelet refuses: {0}")]
    Refused(#[from] tonic::Status),
    #[error("the kubelet does not answer")]
    Timeout,
}

/// Serves devices until `shutdown`, to one kubelet after the other. Failures are logged and retried.
pub async fn run(options: &Options, shutdown: CancellationToken) {
    let devices = DeviceList::new(&options.node, &options.resource, options.count);
    let (changes, current) = watch::channel(devices);
    let kubelet = options.directory.join(KUBELET_SOCKET);
    let health = follow_health(options, &changes);
    let sessions = async {
        loop {
            // Read before registering: a kubelet that restarts meanwhile has another identity.
            if let Some(identity) = read_identity(&kubelet).await
                && let Err(error) = run_session(options, &current, identity, &shutdown).await
            {
                tracing::warn!(%error, "not registered; trying again");
            }
            if shutdown.is_cancelled() {
                return;
            }
            tokio::select! { () = sleep(POLL_INTERVAL) => {}, () = shutdown.cancelled() => return }
        }
    };
    tokio::select! { () = sessions => {}, () = health => {} }
}

/// Registers with the kubelet and serves it until its socket is replaced or the plugin's own is removed.
async fn run_session(
    options: &Options,
    devices: &watch::Receiver<DeviceList>,
    kubelet: Identity,
    shutdown: &CancellationToken,
) -> Result<(), Failure> {
    let own = options.directory.join(options.socket_name());
    let listener = listen(&own).await?;
    let end = shutdown.child_token();
    let server = tokio::spawn(serve(listener, devices.clone(), end.clone()));
    let registered = timeout(REGISTER_TIMEOUT, register(options))
        .await
        .unwrap_or(Err(Failure::Timeout));
    if registered.is_ok() {
        tracing::info!(resource = options.resource, count = options.count, "registered");
        wait_for_other_kubelet(options, kubelet, &own, shutdown).await;
    }
    end.cancel();
    match server.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the server ended"),
        Err(error) => tracing::warn!(%error, "the server ended"),
    }
    // The kubelet may have removed it already.
    let _ = fs::remove_file(&own).await;
    registered
}

/// A listener at a path where an earlier process may have left its socket.
async fn listen(path: &Path) -> Result<UnixListener, Failure> {
    // If this fails, `bind` reports it.
    let _ = fs::remove_file(path).await;
    UnixListener::bind(path).map_err(|source| Failure::Listen {
        path: path.to_owned(),
        source,
    })
}

async fn serve(
    listener: UnixListener,
    devices: watch::Receiver<DeviceList>,
    end: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let plugin = Plugin {
        devices,
        end: end.clone(),
    };
    let connections = stream::unfold(listener, |listener| async {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    Server::builder()
        .add_service(DevicePluginServer::new(plugin))
        .serve_with_incoming_shutdown(connections, end.cancelled_owned())
        .await
}

async fn register(options: &Options) -> Result<(), Failure> {
    let address = format!("unix://{}", options.directory.join(KUBELET_SOCKET).display());
    let channel = Endpoint::from_shared(address)?.connect().await?;
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: options.socket_name(),
        resource_name: options.resource.clone(),
        options: None,
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// Waits until the kubelet's socket is replaced, a starting kubelet has removed the plugin's socket, or shutdown.
async fn wait_for_other_kubelet(options: &Options, kubelet: Identity, own: &Path, shutdown: &CancellationToken) {
    let socket = options.directory.join(KUBELET_SOCKET);
    loop {
        tokio::select! { () = sleep(POLL_INTERVAL) => {}, () = shutdown.cancelled() => return }
        if read_identity(&socket).await != Some(kubelet) || read_identity(own).await.is_none() {
            tracing::info!("the kubelet is gone or restarting");
            return;
        }
    }
}

/// Distinguishes a file from one that is created later at the same path.
type Identity = (u64, u64, i64, i64);

async fn read_identity(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).await.ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// Updates the health of the devices from the file. Never returns.
async fn follow_health(options: &Options, changes: &watch::Sender<DeviceList>) {
    let Some(file) = &options.unhealthy else {
        return std::future::pending().await;
    };
    loop {
        let text = fs::read_to_string(file).await.unwrap_or_default();
        changes.send_if_modified(|devices| {
            let next = devices.with_failed(&text);
            let changed = *devices != next;
            *devices = next;
            changed
        });
        sleep(POLL_INTERVAL).await;
    }
}
