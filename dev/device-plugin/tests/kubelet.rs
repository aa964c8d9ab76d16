//! The plugin and a kubelet's side of the API, over sockets as on a node. (Real kubelets allocate its devices in the
//! end-to-end tests.)

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use berth_device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use berth_device_plugin::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, Empty, ListAndWatchResponse, RegisterRequest,
};
use berth_device_plugin::{KUBELET_SOCKET, Options, VISIBLE_DEVICES, run};
use clap::Parser as _;
use futures::stream;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// Only ends tests that hang.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The kubelet's registration service.
struct Kubelet {
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    server: JoinHandle<()>,
}

struct Recorder(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Recorder {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

impl Kubelet {
    /// Does what a kubelet does when it starts: removes all sockets and creates its own.
    fn start(directory: &Path) -> Self {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                std::fs::remove_file(path).unwrap();
            }
        }
        let listener = UnixListener::bind(directory.join(KUBELET_SOCKET)).unwrap();
        let connections = stream::unfold(listener, |listener| async {
            let connection = listener.accept().await.map(|(connection, _)| connection);
            Some((connection, listener))
        });
        let (sender, registrations) = mpsc::unbounded_channel();
        let server = tokio::spawn(async {
            let service = RegistrationServer::new(Recorder(sender));
            Server::builder()
                .add_service(service)
                .serve_with_incoming(connections)
                .await
                .unwrap();
        });
        Self { registrations, server }
    }

    async fn registration(&mut self) -> RegisterRequest {
        tokio::time::timeout(TIMEOUT, self.registrations.recv())
            .await
            .expect("a registration")
            .unwrap()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Node {
    directory: TempDir,
    shutdown: CancellationToken,
    plugin: JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let unhealthy = format!("--unhealthy={path}/unhealthy");
        let options = Options::parse_from([
            "berth-device-plugin",
            "--node=gpu-h100-01",
            "--count=4",
            "--directory",
            path,
            &unhealthy,
        ]);
        let shutdown = CancellationToken::new();
        let plugin = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { run(&options, shutdown).await }
        });
        Self {
            directory,
            shutdown,
            plugin,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn connect(&self, registration: &RegisterRequest) -> DevicePluginClient<Channel> {
        let address = format!("unix://{}", self.path(&registration.endpoint).display());
        DevicePluginClient::new(Endpoint::from_shared(address).unwrap().connect().await.unwrap())
    }
}

async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> Vec<(String, String)> {
    let list = tokio::time::timeout(TIMEOUT, lists.message())
        .await
        .expect("a list")
        .unwrap()
        .expect("no end");
    list.devices
        .into_iter()
        .map(|device| (device.id, device.health))
        .collect()
}

fn healths(devices: &[(String, String)]) -> Vec<&str> {
    devices.iter().map(|(_, health)| health.as_str()).collect()
}

#[tokio::test]
async fn devices_are_listed_allocated_and_fail() {
    let node = Node::start();
    let mut kubelet = Kubelet::start(node.directory.path());
    let registration = kubelet.registration().await;
    assert_eq!(
        (registration.version.as_str(), registration.resource_name.as_str()),
        ("v1beta1", "nvidia.com/gpu")
    );

    let mut client = node.connect(&registration).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let devices = next(&mut lists).await;
    assert_eq!(healths(&devices), ["Healthy"; 4]);

    let wanted = vec![devices[3].0.clone(), devices[0].0.clone()];
    let request = |ids: Vec<String>| AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids: ids }],
    };
    let response = client.allocate(request(wanted.clone())).await.unwrap().into_inner();
    assert_eq!(response.container_responses[0].envs[VISIBLE_DEVICES], wanted.join(","));
    let refused = client
        .allocate(request(vec!["GPU-of-another-node".into()]))
        .await
        .unwrap_err();
    assert_eq!(refused.message(), "this node has no device GPU-of-another-node");

    std::fs::write(node.path("unhealthy"), &devices[1].0).unwrap();
    assert_eq!(
        healths(&next(&mut lists).await),
        ["Healthy", "Unhealthy", "Healthy", "Healthy"]
    );
    std::fs::remove_file(node.path("unhealthy")).unwrap();
    assert_eq!(healths(&next(&mut lists).await), ["Healthy"; 4]);
}

#[tokio::test]
async fn a_kubelet_that_restarts_gets_the_same_devices_again() {
    let node = Node::start();
    let mut first = Kubelet::start(node.directory.path());
    let registration = first.registration().await;
    let mut lists = node
        .connect(&registration)
        .await
        .list_and_watch(Empty {})
        .await
        .unwrap()
        .into_inner();
    let before = next(&mut lists).await;
    drop(first);

    let mut second = Kubelet::start(node.directory.path());
    let registration = second.registration().await;
    let mut lists = node
        .connect(&registration)
        .await
        .list_and_watch(Empty {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(next(&mut lists).await, before);
}

#[tokio::test]
async fn a_plugin_that_ends_leaves_nothing() {
    let node = Node::start();
    let mut kubelet = Kubelet::start(node.directory.path());
    let registration = kubelet.registration().await;
    let mut lists = node
        .connect(&registration)
        .await
        .list_and_watch(Empty {})
        .await
        .unwrap()
        .into_inner();
    next(&mut lists).await;

    node.shutdown.cancel();
    tokio::time::timeout(TIMEOUT, node.plugin)
        .await
        .expect("an end")
        .unwrap();
    assert!(
        lists.message().await.unwrap().is_none(),
        "the stream ends, so that the kubelet notices"
    );
    let left: Vec<_> = std::fs::read_dir(node.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, [KUBELET_SOCKET]);
}
