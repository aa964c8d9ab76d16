//! What is read of a host, and how policies are written to it: what it refuses of one of them changes nothing of the others.

use super::*;
use crate::{apply::Applier, error::ReconcileError, testing::client_of};
use berth_runtime::locks::lock;
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    client::Body,
    runtime::{reflector, watcher::Event},
};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::runtime::{Builder, Runtime};

/// Whether the host refuses what is written to a path.
type Refuses = fn(&str, &Value) -> bool;

/// A write.
#[derive(Clone, Debug)]
struct Write {
    path: String,
    body: Value,
    is_dry_run: bool,
    is_refused: bool,
}

impl Write {
    fn has_networks(&self) -> bool {
        has_networks(&self.body)
    }
}

fn has_networks(policy: &Value) -> bool {
    policy.to_string().contains(r#""networks""#)
}

/// A host that serves both kinds of cluster-wide policies.
struct Host {
    runtime: Runtime,
    client: Client,
    writes: Arc<Mutex<Vec<Write>>>,
    tier: AdministrativeTier,
}

impl Host {
    fn new(refuses: Refuses) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let writes: Arc<Mutex<Vec<Write>>> = Arc::default();
        let log = Arc::clone(&writes);
        let client = {
            let _entered = runtime.enter();
            client_of(tower::service_fn(move |request: Request<Body>| {
                let log = Arc::clone(&log);
                async move { Ok::<_, Infallible>(answer(request, refuses, &log).await) }
            }))
        };
        Self {
            runtime,
            client,
            writes,
            tier: AdministrativeTier::default(),
        }
    }

    /// Applies the policies of a tenant as control does that has just started.
    fn apply(&self, case: &Case) -> Result<(), ReconcileError> {
        let (nodes, _nodes_writer) = reflector::store::<Node>();
        let (network_policies, _policies_writer) = reflector::store::<NetworkPolicy>();
        let context = NetworkContext {
            client: &self.client,
            host_server: "https://192.168.5.1:6443",
            nodes: &nodes,
            host_addresses: &HostAddresses::default(),
            network_policies: &network_policies,
            config: &NetworkConfig::default(),
            tier: &self.tier,
        };
        let applier = Applier::new(self.client.clone());
        case.with(|isolation| self.runtime.block_on(apply_policies(context, &applier, isolation)))
    }

    /// What was written to paths that contain `part`, since this was called last.
    fn take(&self, part: &str) -> Vec<Write> {
        let mut writes = lock(&self.writes);
        let (taken, left) = writes.drain(..).partition(|write| write.path.contains(part));
        *writes = left;
        taken
    }

    /// The same without what was refused or only tried.
    fn take_stored(&self, part: &str) -> Vec<Write> {
        let mut taken = self.take(part);
        taken.retain(|write| !write.is_refused && !write.is_dry_run);
        taken
    }
}

async fn answer(request: Request<Body>, refuses: Refuses, log: &Mutex<Vec<Write>>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.method == Method::GET {
        return Response::new(Body::from(resources_at(&path).to_string().into_bytes()));
    }
    let bytes = body.collect_bytes().await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let is_refused = refuses(&path, &body);
    let query = parts.uri.query().unwrap_or_default();
    let write = Write {
        path,
        body,
        is_dry_run: query.contains("dryRun=All"),
        is_refused,
    };
    lock(log).push(write);
    if !is_refused {
        return Response::new(Body::from(bytes.to_vec()));
    }
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "it is not valid", "code": 422});
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response
}

/// The resources of an API group and version; nothing where objects are listed.
fn resources_at(path: &str) -> Value {
    if path.ends_with("/endpointslices") {
        return json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {}, "items": []});
    }
    let served = |generation: &Generation| {
        let (version, plural) = generation.api_resource_name();
        (path == format!("/apis/{version}"))
            .then(|| json!({"name": plural, "singularName": "", "namespaced": false, "kind": "", "verbs": []}))
    };
    let resources: Vec<Value> = Generation::ALL.iter().filter_map(served).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path.trim_start_matches("/apis/"), "resources": resources})
}

const CLUSTER_POLICIES: &str = "/apis/policy.networking.k8s.io/";

#[test]
fn a_tenant_has_a_policy_of_each_kind_that_the_host_serves() {
    let host = Host::new(|_, _| false);
    let case = Case::new("vision");
    host.apply(&case).unwrap();
    let written = host.take_stored(CLUSTER_POLICIES);
    let paths: Vec<&str> = written.iter().map(|write| write.path.as_str()).collect();
    let name = cluster_policy::policy_name(&case.tenant);
    assert_eq!(
        paths,
        [
            format!("{CLUSTER_POLICIES}v1alpha2/clusternetworkpolicies/{name}"),
            format!("{CLUSTER_POLICIES}v1alpha1/adminnetworkpolicies/{name}"),
        ]
    );
    assert!(written.iter().all(Write::has_networks));
}

#[test]
fn a_tenant_whose_policy_is_refused_takes_the_networks_of_no_other() {
    let host = Host::new(|path, policy| path.contains("/berth-vision-") && has_networks(policy));
    let [refused, other] = NAMES.map(Case::new);
    host.apply(&refused).unwrap();
    let stored = host.take_stored(CLUSTER_POLICIES);
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert!(!stored.iter().any(Write::has_networks), "the rest of it is written");
    host.apply(&other).unwrap();
    let stored = host.take_stored(CLUSTER_POLICIES);
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert!(stored.iter().all(Write::has_networks), "{stored:?}");
}

#[test]
fn a_host_whose_definitions_have_no_networks_is_tried_once() {
    let host = Host::new(|path, policy| path.contains(CLUSTER_POLICIES) && has_networks(policy));
    let [first, second] = NAMES.map(Case::new);
    host.apply(&first).unwrap();
    let tried = host.take("/clusternetworkpolicies/");
    let outcomes: Vec<(bool, bool)> = { tried.iter() }
        .map(|write| (write.is_dry_run, write.is_refused))
        .collect();
    assert_eq!(outcomes, [(false, true), (true, true), (false, false)], "{tried:?}");
    let probe = tried[1].body.to_string();
    assert!(!probe.contains(first.tenant.slug()), "{probe}");
    host.take(CLUSTER_POLICIES);
    host.apply(&second).unwrap();
    let written = host.take(CLUSTER_POLICIES);
    assert_eq!(written.len(), 2, "{written:?}");
    assert!(written.iter().all(|write| !write.is_refused), "{written:?}");
}

/// What a class takes away is closed by whichever policies can be written.
#[test]
fn a_policy_that_cannot_be_written_keeps_no_other() {
    let host = Host::new(|path, _| path.ends_with("/networkpolicies/berth-baseline"));
    let case = Case::new("vision");
    assert!(host.apply(&case).is_err());
    let stored = host.take_stored("/networkpolicies/");
    let all = case.policies();
    let expected = { all.iter() }.filter(|policy| policy.metadata.name.as_deref() != Some("berth-baseline"));
    assert_eq!(stored.len(), expected.count(), "{stored:?}");
    assert_eq!(host.take_stored(CLUSTER_POLICIES).len(), 2);
}

#[test]
fn a_node_has_no_addresses_outside_of_the_networks_of_nodes() {
    let host = Host::new(|_, _| false);
    let (nodes, mut writer) = reflector::store::<Node>();
    let addresses =
        json!([{"type": "InternalIP", "address": "192.168.5.10"}, {"type": "ExternalIP", "address": "198.51.100.7"}]);
    let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
    writer.apply_watcher_event(&Event::Apply(serde_json::from_value(node).unwrap()));
    let (network_policies, _policies_writer) = reflector::store::<NetworkPolicy>();
    let read = |config: &NetworkConfig| {
        let context = NetworkContext {
            client: &host.client,
            host_server: "https://192.168.4.1:6443",
            nodes: &nodes,
            host_addresses: &HostAddresses::default(),
            network_policies: &network_policies,
            config,
            tier: &host.tier,
        };
        let reading = read_host_network(context, ["10.96.0.0/16"]);
        host.runtime.block_on(reading).unwrap()
    };
    let closes = |network: &HostNetwork, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        network.blocked.iter().any(|range| range.contains(&address))
    };
    let every_address = read(&NetworkConfig::default());
    assert!(closes(&every_address, "198.51.100.7") && closes(&every_address, "192.168.5.10"));
    let config = NetworkConfig {
        node_networks: vec![ranges::parse("192.168.4.0/22").unwrap()],
        ..NetworkConfig::default()
    };
    let within = read(&config);
    assert!(!closes(&within, "198.51.100.7"));
    for closed in ["192.168.5.10", "192.168.7.254", "10.96.0.1"] {
        assert!(closes(&within, closed), "{closed}");
    }
    assert_eq!(within.nodes, [ranges::parse("192.168.5.10/32").unwrap()]);
}
