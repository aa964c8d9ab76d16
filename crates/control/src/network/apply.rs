//! Reads the host's network, and applies and deletes policies.

use super::{
    HostNetwork, NetworkIsolation, build_policies,
    cluster_policy::{self, Generation},
    host_addresses::HostAddresses,
    host_network,
};
use crate::{
    apply::{Applier, ApplyError, delete_same, is_status, optional},
    control_plane::GatewayConfig,
    error::{FirstError, ReconcileError, api},
};
use berth_api::{labels, names::TenantId};
use berth_runtime::locks::lock;
use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::Node,
    discovery::v1::EndpointSlice,
    networking::v1::{NetworkPolicy, NetworkPolicyPeer},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    runtime::reflector::{ObjectRef, Store},
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

/// Age after which discovery of the host's policy APIs is repeated.
const REFRESH: Duration = Duration::from_secs(60);

/// What flags and settings say about the host's network.
#[derive(Clone, Debug, Default)]
pub struct NetworkConfig {
    /// Ranges that are blocked for every tenant, besides those that the host's API shows.
    pub blocked: Vec<IpNet>,
    /// Networks of nodes, which are blocked as well. If there are some, a node has no addresses elsewhere, whatever it reports.
    pub node_networks: Vec<IpNet>,
    /// Namespaces of the host whose pods may connect to the API servers of all tenants.
    pub api_server_clients: Vec<String>,
    /// Who may read the metrics of syncers besides Berth, as peers of a policy in Berth's namespace.
    pub metrics_from: Vec<NetworkPolicyPeer>,
    /// Where teams reach the gateway; none: there is no gateway.
    pub gateway: Option<GatewayConfig>,
}

impl NetworkConfig {
    /// The ranges that flags block for every tenant.
    pub fn blocked_by_flags(&self) -> Vec<IpNet> {
        self.blocked.iter().chain(&self.node_networks).copied().collect()
    }

    /// Whether a node can have an address.
    pub fn may_be_of_node(&self, address: IpAddr) -> bool {
        let mut networks = self.node_networks.iter();
        self.node_networks.is_empty() || networks.any(|network| network.contains(&address))
    }
}

/// What [`apply_policies`] and [`read_host_network`] work with.
#[derive(Clone, Copy)]
pub struct NetworkContext<'a> {
    /// The host's API server.
    pub client: &'a Client,
    /// URL of the host's API server, as syncers use it.
    pub host_server: &'a str,
    /// Nodes of the host.
    pub nodes: &'a Store<Node>,
    /// Which addresses of them and of API servers count.
    pub host_addresses: &'a HostAddresses,
    /// NetworkPolicies that control made.
    pub network_policies: &'a Store<NetworkPolicy>,
    /// Settings of the platform.
    pub config: &'a NetworkConfig,
    /// Which cluster-wide policies the host serves.
    pub tier: &'a AdministrativeTier,
}

/// Which cluster-wide policies, in the tier of administrators, the host serves; remembered for [`REFRESH`].
#[derive(Debug, Default)]
pub struct AdministrativeTier(Mutex<Option<(Instant, Vec<ServedKind>)>>);

/// A kind of cluster-wide policies that the host serves.
#[derive(Clone, Copy, Debug)]
struct ServedKind {
    generation: Generation,
    /// Whether its rules can contain CIDRs.
    networks: bool,
}

impl AdministrativeTier {
    fn recall(&self) -> Option<Vec<ServedKind>> {
        let known = lock(&self.0);
        let (until, served) = known.as_ref()?;
        (Instant::now() < *until).then(|| served.clone())
    }

    fn remember(&self, served: Vec<ServedKind>) {
        let mut known = lock(&self.0);
        *known = Some((Instant::now() + REFRESH, served));
    }

    /// Remembers that the rules of a kind cannot contain CIDRs.
    fn remember_without_networks(&self, generation: Generation) {
        let mut known = lock(&self.0);
        let served = known.iter_mut().flat_map(|(_, served)| served);
        for kind in served.filter(|kind| kind.generation == generation) {
            kind.networks = false;
        }
    }
}

/// Reads the host's network. `service_ranges` are the host's own.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn read_host_network(
    context: NetworkContext<'_>,
    service_ranges: impl IntoIterator<Item = &str>,
) -> Result<HostNetwork, ReconcileError> {
    let slices: Api<EndpointSlice> = Api::namespaced(context.client.clone(), "default");
    let params = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = slices.list(&params).await.map_err(api("find the host's API servers"))?;
    let found = host_network::api_servers(&slices.items);
    let found = found.into_iter().chain(parse_address(context.host_server));
    let servers = context.host_addresses.observe_api_servers(found);
    let nodes = context.nodes.state();
    let nodes = nodes.iter().map(Arc::as_ref);
    let mut addresses = context.host_addresses.observe_nodes(nodes.clone());
    addresses.retain(|address| context.config.may_be_of_node(*address));
    Ok(host_network::collect_with_addresses(
        (nodes, addresses),
        service_ranges,
        servers,
        &context.config.blocked_by_flags(),
    ))
}

/// The address in a URL; None if its host is a name.
fn parse_address(url: &str) -> Option<SocketAddr> {
    let uri: http::Uri = url.parse().ok()?;
    let address: IpAddr = uri.host()?.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(address, uri.port_u16().unwrap_or(443)))
}

/// Applies the policies of a tenant, and deletes those that control made earlier and that are no longer needed. `host` applies
/// objects of this tenant to the host. One that fails keeps no other from being tried: each may be what closes something.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn apply_policies(
    context: NetworkContext<'_>,
    host: &Applier,
    isolation: &NetworkIsolation<'_>,
) -> Result<(), ReconcileError> {
    let desired = build_policies(isolation);
    let mut failed = FirstError::<ReconcileError>::default();
    for policy in &desired {
        failed.note(apply_policy(context, host, policy).await);
    }
    failed.note(apply_cluster_policies(context, host, isolation).await);
    let namespaces = [
        isolation.tenant.workload_namespace(),
        isolation.tenant.control_plane_namespace(),
    ];
    let names: BTreeSet<_> = desired
        .iter()
        .map(|policy| (policy.namespace(), policy.name_any()))
        .collect();
    for known in context.network_policies.state() {
        let place = (known.namespace(), known.name_any());
        if namespaces.iter().any(|namespace| place.0.as_ref() == Some(namespace)) && !names.contains(&place) {
            failed.note(delete_policy(context, &known).await);
        }
    }
    failed.into_result()
}

async fn apply_policy(
    context: NetworkContext<'_>,
    host: &Applier,
    policy: &NetworkPolicy,
) -> Result<(), ReconcileError> {
    match context.network_policies.get(&ObjectRef::from_obj(policy)) {
        Some(known) if is_up_to_date(&known, policy) => Ok(()),
        // An apply would keep fields that another field manager added.
        Some(known) => replace_policy(context, &known, policy).await,
        None => Ok(host.apply_again(policy).await?),
    }
}

/// Whether an object has the desired spec and labels; it may have further labels.
fn is_up_to_date(known: &NetworkPolicy, desired: &NetworkPolicy) -> bool {
    let has = |(key, value): (&String, &String)| known.labels().get(key) == Some(value);
    known.spec == desired.spec && desired.labels().iter().all(has)
}

async fn replace_policy(
    context: NetworkContext<'_>,
    known: &NetworkPolicy,
    desired: &NetworkPolicy,
) -> Result<(), ReconcileError> {
    let namespace = desired.namespace().unwrap_or_default();
    let policies: Api<NetworkPolicy> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(labels::CONTROL_MANAGER.into()),
        ..PostParams::default()
    };
    let mut policy = desired.clone();
    policy.metadata.uid = known.uid();
    policy.metadata.resource_version = known.resource_version();
    let replaced = policies.replace(&desired.name_any(), &params, &policy).await;
    replaced.map_err(api("replace a NetworkPolicy"))?;
    Ok(())
}

async fn delete_policy(context: NetworkContext<'_>, policy: &NetworkPolicy) -> Result<(), ReconcileError> {
    let namespace = policy.namespace().unwrap_or_default();
    let policies: Api<NetworkPolicy> = Api::namespaced(context.client.clone(), &namespace);
    let deleted = delete_same(&policies, &policy.metadata, None).await;
    deleted.map(drop).map_err(api("delete a NetworkPolicy"))
}

/// Applies a policy of each kind that the host serves: which of them its network plug-in enforces is not known, and one that is left behind would be
/// enforced as it was.
async fn apply_cluster_policies(
    context: NetworkContext<'_>,
    host: &Applier,
    isolation: &NetworkIsolation<'_>,
) -> Result<(), ReconcileError> {
    let mut failed = FirstError::<ReconcileError>::default();
    for kind in discover_policies(context).await? {
        failed.note(apply_cluster_policy(context, host, isolation, kind).await);
    }
    failed.into_result()
}

async fn apply_cluster_policy(
    context: NetworkContext<'_>,
    host: &Applier,
    isolation: &NetworkIsolation<'_>,
    kind: ServedKind,
) -> Result<(), ReconcileError> {
    let ServedKind { generation, networks } = kind;
    let resource = generation.api_resource();
    let policy = cluster_policy::build_cluster_policy(isolation, generation, networks);
    let (source, object) = match host.apply_dynamic(&resource, &policy).await {
        Err(ApplyError { source, object }) if networks && is_invalid(&source) => (source, object),
        other => return Ok(other?),
    };
    // The admission policy for NetworkPolicies restricts networks all the same. What is wrong with the policy of one tenant takes nothing from others.
    if takes_networks(context, generation).await? {
        tracing::warn!(object, error = %source, "the host takes a cluster-wide network policy only without CIDRs");
    } else {
        tracing::warn!(object, error = %source, "the host's cluster-wide network policies do not support CIDRs");
        context.tier.remember_without_networks(generation);
    }
    let policy = cluster_policy::build_cluster_policy(isolation, generation, false);
    Ok(host.apply_dynamic(&resource, &policy).await?)
}

/// Whether the host's definition of a kind has CIDRs, by a policy that is not stored.
async fn takes_networks(context: NetworkContext<'_>, generation: Generation) -> Result<bool, ReconcileError> {
    let policies: Api<DynamicObject> = Api::all_with(context.client.clone(), &generation.api_resource());
    let probe = cluster_policy::build_probe(generation);
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force().dry_run();
    match policies.patch(&probe.name_any(), &params, &Patch::Apply(&probe)).await {
        Ok(_) => Ok(true),
        Err(error) if is_invalid(&error) => Ok(false),
        Err(error) => Err(api("try a cluster-wide network policy")(error)),
    }
}

fn is_invalid(error: &kube::Error) -> bool {
    is_status(error, 422) || is_status(error, 400)
}

/// The kinds of policies that the host serves, from discovery or from memory.
async fn discover_policies(context: NetworkContext<'_>) -> Result<Vec<ServedKind>, ReconcileError> {
    if let Some(served) = context.tier.recall() {
        return Ok(served);
    }
    let mut served = Vec::new();
    for generation in Generation::ALL {
        let (version, plural) = generation.api_resource_name();
        let is_served = match context.client.list_api_group_resources(&version).await {
            Ok(list) => list.resources.iter().any(|resource| resource.name == plural),
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(error) => return Err(api("discover the host's policy APIs")(error)),
        };
        if is_served {
            served.push(ServedKind {
                generation,
                networks: true,
            });
        }
    }
    context.tier.remember(served.clone());
    Ok(served)
}

/// Deletes a tenant's cluster-wide policies. The others are deleted with their namespaces.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn delete_cluster_policy(client: &Client, tenant: &TenantId) -> Result<(), ReconcileError> {
    for generation in Generation::ALL {
        let policies: Api<DynamicObject> = Api::all_with(client.clone(), &generation.api_resource());
        optional(
            policies
                .delete(&cluster_policy::policy_name(tenant), &DeleteParams::default())
                .await,
        )
        .map_err(api("delete a tenant's policy"))?;
    }
    Ok(())
}
