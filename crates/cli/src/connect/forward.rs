//! A way to a tenant's API server through the API server of the host: a listener on this machine that forwards each connection to
//! a pod of the tenant's API server.

use std::sync::Arc;
use std::time::Duration;

use berth_api::is_pod_ready;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::error::{Error, failed};
use crate::output::print_note;
use crate::user_config::document::Server;

/// Port of the API server in its pods.
const PORT: u16 = 6443;
/// A name that is in the certificate of every tenant's API server.
pub(super) const TLS_NAME: &str = "kubernetes";
/// Label of a component's pods, and its value on those of the API server.
const SELECTOR: &str = "app.kubernetes.io/name=kube-apiserver";
/// Pause after a failure to accept a connection, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Forwards connections until it is dropped.
pub(super) struct Forward {
    pub(super) server: Server,
    task: JoinHandle<()>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Forward {
    /// Listens on a free port of loopback. `streams` is a client whose answers may stand still: forwarded connections are often silent.
    ///
    /// # Errors
    /// No pod of the API server runs in the namespace, or the user may not list pods there.
    pub(super) async fn start(client: Client, streams: Client, namespace: &str) -> Result<Self, Error> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        find_pod(&pods).await?;
        let streams = Api::namespaced(streams, namespace);
        let fail = |error: std::io::Error| Error::Failed(format!("cannot listen on loopback: {error}"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        Ok(Self {
            server: Server {
                url: format!("https://127.0.0.1:{port}"),
                tls_name: TLS_NAME.into(),
            },
            task: tokio::spawn(accept_all(listener, Arc::new(Pods { all: pods, streams }))),
        })
    }
}

/// The pods of the tenant's control plane.
struct Pods {
    all: Api<Pod>,
    /// The same, for streams.
    streams: Api<Pod>,
}

/// A ready pod of the API server, or else one that runs.
async fn find_pod(pods: &Api<Pod>) -> Result<String, Error> {
    let list = pods.list(&ListParams::default().labels(SELECTOR)).await;
    let all = list.map_err(failed("list the pods of the tenant's API server"))?.items;
    let best = all
        .iter()
        .filter(|pod| is_running(pod))
        .max_by_key(|pod| is_pod_ready(pod));
    best.map(ResourceExt::name_any)
        .ok_or_else(|| Error::Failed("no pod of the tenant's API server runs on the host".into()))
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

async fn accept_all(listener: TcpListener, pods: Arc<Pods>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let pods = Arc::clone(&pods);
        tokio::spawn(async move {
            if let Err(error) = forward(stream, &pods).await {
                print_note(format_args!("a connection was not forwarded: {error}"));
            }
        });
    }
}

/// Copies bytes in both directions until one side closes. A pod that was replaced meanwhile is found again.
async fn forward(mut stream: TcpStream, pods: &Pods) -> Result<(), Error> {
    let pod = find_pod(&pods.all).await?;
    let mut forwarder = pods.streams.portforward(&pod, &[PORT]).await.map_err(failed(
        "forward a port; you need the verbs get and create on pods/portforward",
    ))?;
    if let Some(mut remote) = forwarder.take_stream(PORT) {
        // Either side may close at any time, which is how connections end.
        let _ = copy_bidirectional(&mut stream, &mut remote).await;
    }
    forwarder.abort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_that_ends_is_not_used() {
        let pod = |deleted: bool, phase: &str, ready: &str| -> Pod {
            let mut pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "a"},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap();
            if deleted {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                pod.metadata.deletion_timestamp = Some(now);
            }
            pod
        };
        assert!(is_running(&pod(false, "Running", "True")));
        assert!(!is_running(&pod(true, "Running", "True")));
        assert!(!is_running(&pod(false, "Pending", "False")));
        assert!(is_pod_ready(&pod(false, "Running", "True")) && !is_pod_ready(&pod(false, "Running", "False")));
    }
}
