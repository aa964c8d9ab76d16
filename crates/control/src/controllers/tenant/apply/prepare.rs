//! What must exist before anything of a tenant runs.

use super::{
    super::{
        build::{host_objects, limits},
        context::TenantContext,
        error::{TenantError, in_step},
        fetch::{self, HostRanges, ObservedNodes},
        settings::Settings,
        target::Tenant,
        withdrawn_kinds,
    },
    Accepted, absent_syncer, argo_cd, encryption,
    endpoint::{self, PublicState},
    keys, restore,
};
use crate::{
    control_plane::{Authorities, Endpoints, ServiceRange},
    error::{FirstError, ReconcileError, api},
    network::{self, HostNetwork, NetworkIsolation, NodePortAccess},
};
use berth_api::{NetworkLimits, dns_server, policy_annotations, ranges};
use ipnet::IpNet;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A tenant whose namespaces, keys, datastore identity, addresses and NetworkPolicies exist. Only [`prepare`] makes one.
pub(crate) struct Prepared<'a> {
    pub(in super::super) accepted: &'a Accepted,
    pub(super) authorities: Arc<Authorities>,
    /// The host's Service ranges.
    pub(super) host_ranges: HostRanges,
    /// Every range that stays blocked even if the spec lists it.
    pub(super) blocked: Vec<IpNet>,
    /// The network limits that the syncer enforces.
    pub(super) limits: NetworkLimits,
    pub(super) service_range: ServiceRange,
    pub(crate) endpoints: Endpoints,
    /// Where the team reaches the API server; none where control planes are processes.
    pub(crate) public: Option<PublicState>,
    /// Whether the host has accepted the Service through which the team reaches it from outside. Nothing else depends on that: its annotations are
    /// the team's.
    pub(super) external: Result<(), TenantError>,
    /// Whether the objects of kinds were deleted that the class does not list any more. Nothing else depends on that.
    pub(super) withdrawn_kinds: Result<(), TenantError>,
}

/// Creates what must exist before anything of the tenant runs, and before its syncer may create pods. Once the namespaces exist, a step that fails
/// keeps no other from being tried.
pub(super) async fn prepare<'a>(
    context: &TenantContext,
    accepted: &'a Accepted,
    nodes: &ObservedNodes,
) -> Result<Prepared<'a>, TenantError> {
    let (tenant, settings) = (&accepted.tenant, &accepted.settings);
    let host_ranges = fetch::read_service_ranges(&context.client)
        .await
        .map_err(in_step(TenantError::HostNetwork))?;
    let host_network = network::read_host_network(context.network(), host_ranges.all())
        .await
        .map_err(in_step(TenantError::HostNetwork))?;
    let class_network = settings.authentication.open_hosts(&settings.class_network);
    let blocked = host_network.blocked_with(&ranges::blocking(&settings.class_network.blocked_cidrs));
    let blocked = network::close_behind_nat64(&settings.network, &class_network, blocked);
    let limits = network::network_limits(&settings.network, &class_network, &host_network, &blocked);
    let closed_to_endpoints = network::closed_to_endpoints(&host_network, &settings.class_network);
    apply_namespaces(context, accepted, &limits, &closed_to_endpoints).await?;
    let keys_and_datastore = async {
        let authorities = keys::load_authorities(context, tenant).await;
        let known = authorities.as_deref().ok();
        let identity = restore::prepare_datastore(context, accepted, known, &limits).await;
        (authorities, identity)
    };
    // None of these needs another one.
    let (limited, recorded, (authorities, identity), network) = futures::join!(
        apply_limits(context, accepted),
        withdrawn_kinds::record_and_delete(context, tenant, settings),
        keys_and_datastore,
        prepare_network(
            context,
            accepted,
            nodes,
            (&host_ranges, &host_network, blocked.as_slice())
        ),
    );
    if let Ok(network) = &network {
        let syncer = &network.endpoints.syncer_admin;
        Box::pin(absent_syncer::delete_own_endpoints(context, tenant, syncer, &limits)).await;
    }
    limited.map_err(in_step(TenantError::Limits))?;
    let withdrawn_kinds = recorded.map_err(in_step(TenantError::Settings))?;
    let authorities = authorities.map_err(in_step(TenantError::Authorities))?;
    identity.map_err(in_step(TenantError::Datastore))?;
    let authorities = Box::pin(encryption::prepare_encryption(context, accepted, authorities))
        .await
        .map_err(in_step(TenantError::Encryption))?;
    let PreparedNetwork {
        endpoints,
        service_range,
        public,
        external,
    } = network?;
    Ok(Prepared {
        accepted,
        authorities,
        host_ranges,
        blocked,
        limits,
        service_range,
        endpoints,
        public,
        external,
        withdrawn_kinds: withdrawn_kinds.map_err(in_step(TenantError::WithdrawnKinds)),
    })
}

/// Addresses of a tenant whose NetworkPolicies exist.
struct PreparedNetwork {
    endpoints: Endpoints,
    service_range: ServiceRange,
    public: Option<PublicState>,
    external: Result<(), TenantError>,
}

/// Reserves the addresses and applies the NetworkPolicies, which need no public endpoint. That comes last.
async fn prepare_network(
    context: &TenantContext,
    accepted: &Accepted,
    nodes: &ObservedNodes,
    (host_ranges, host_network, blocked): (&HostRanges, &HostNetwork, &[IpNet]),
) -> Result<PreparedNetwork, TenantError> {
    let Accepted {
        tenant,
        settings,
        schedule: _,
        ceilings: _,
    } = accepted;
    let class_network = settings.authentication.open_hosts(&settings.class_network);
    let (mut endpoints, service_range) = endpoint::reserve_address(context, tenant, host_ranges)
        .await
        .map_err(in_step(TenantError::Address))?;
    let isolation = NetworkIsolation {
        tenant: &tenant.id,
        labels: tenant.labels.clone(),
        allowed: &settings.network,
        host: host_network,
        blocked,
        node_ports: node_ports(context, accepted, nodes),
        uses_pods: context.runtime.uses_pods(),
        endpoints: &endpoints,
        dns_servers: settings
            .dns
            .upstreams
            .iter()
            .filter_map(|text| dns_server(text))
            .collect(),
        webhook_hosts: &class_network.api_server_egress.hosts,
        datastore: context.datastore.endpoints(),
        api_server_clients: api_server_clients(context, settings),
        metrics_from: &context.network_config.metrics_from,
    };
    network::apply_policies(context.network(), &tenant.memory.host, &isolation)
        .await
        .map_err(in_step(TenantError::NetworkPolicies))?;
    let (public, external) = endpoint::apply_public_endpoint(context, tenant, settings, &mut endpoints)
        .await
        .map_err(in_step(TenantError::ExternalService))?;
    Ok(PreparedNetwork {
        endpoints,
        service_range,
        public,
        external: external.map_err(in_step(TenantError::ExternalService)),
    })
}

/// Namespaces of the host whose pods may connect to the tenant's API server: that of Argo CD only if it works in the tenant
/// without the gateway.
fn api_server_clients<'a>(context: &'a TenantContext, settings: &Settings) -> Vec<&'a str> {
    let of_all = &context.network_config.api_server_clients;
    let is_open = argo_cd::connects_directly(context, settings);
    let argo_cd = context.argo_cd_namespace.iter().filter(|_| is_open);
    let further = argo_cd.filter(|namespace| !of_all.contains(namespace));
    of_all.iter().chain(further).map(String::as_str).collect()
}

/// The node ports of the tenant's Services, if its class allows some.
fn node_ports(context: &TenantContext, accepted: &Accepted, nodes: &ObservedNodes) -> NodePortAccess {
    let Accepted {
        tenant,
        settings,
        schedule: _,
        ceilings: _,
    } = accepted;
    let services = &settings.sync.services;
    if !services.node_ports && !services.load_balancers {
        return NodePortAccess::default();
    }
    let ports = context.stores.node_ports.of(&tenant.id.workload_namespace());
    let mut access = NodePortAccess::new(ports, nodes.running());
    access
        .nodes
        .retain(|node| context.network_config.may_be_of_node(node.addr()));
    access
}

/// Applies the two namespaces, with the annotations that the admission policies of the host read.
async fn apply_namespaces(
    context: &TenantContext,
    Accepted {
        tenant,
        settings,
        schedule: _,
        ceilings: _,
    }: &Accepted,
    network: &NetworkLimits,
    closed_to_endpoints: &[String],
) -> Result<(), TenantError> {
    let priorities = context.stores.priority_classes.state();
    let default_priority = priorities.iter().find(|class| class.global_default == Some(true));
    let mut annotations = policy_annotations::annotations(
        &settings.sync,
        settings.class_name(),
        default_priority.map(|class| class.name_any()).as_deref(),
    );
    if !context.has_admission_policies {
        // The level of the namespace follows: see `host_objects::namespaces`.
        annotations.remove(policy_annotations::CAPABILITIES);
    }
    annotations.extend(policy_annotations::of_network(network));
    annotations.extend(policy_annotations::of_endpoints(closed_to_endpoints));
    if context.stores.limits_users(&tenant.cluster) {
        let limited = policy_annotations::USER_QUOTAS_LIMITED;
        annotations.insert(policy_annotations::USER_QUOTAS.into(), limited.into());
    }
    for namespace in host_objects::namespaces(&tenant.cluster, &tenant.id, &annotations) {
        let applied = tenant.memory.host.apply_and_look(&namespace).await;
        if let Some(found) = applied.map_err(in_step(TenantError::Namespaces))? {
            let withdrawn = withdraw_rules(context, tenant, &namespace.metadata, &found).await;
            withdrawn.map_err(in_step(TenantError::Namespaces))?;
        }
    }
    Ok(())
}

/// Takes rules from a namespace that the class does not give any more. An apply leaves those that somebody else owns as well. Everybody can own them who
/// has rights on namespaces and applies what is there already: that changes nothing, so that no policy denies it.
async fn withdraw_rules(
    context: &TenantContext,
    tenant: &Tenant,
    wanted: &ObjectMeta,
    found: &ObjectMeta,
) -> Result<(), ReconcileError> {
    let (Some(wanted), Some(annotations)) = (&wanted.annotations, &found.annotations) else {
        return Ok(());
    };
    let surplus = policy_annotations::find_surplus(wanted, annotations);
    let surplus: Map<String, Value> = surplus.map(|key| (key.to_owned(), Value::Null)).collect();
    if surplus.is_empty() {
        return Ok(());
    }
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"uid": found.uid, "annotations": surplus}}));
    let name = found.name.as_deref().unwrap_or_default();
    let patched = namespaces.patch(name, &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| {
        // Else it would be looked at again minutes later.
        tenant.memory.host.forget_kind("Namespace");
        api("take a rule of the class from a namespace")(error)
    })
}

/// Applies the limits of what the tenant may create on the host. Before quotas are decided, they stay as they are.
async fn apply_limits(
    context: &TenantContext,
    Accepted {
        tenant,
        settings,
        schedule,
        ceilings,
    }: &Accepted,
) -> Result<(), ReconcileError> {
    let Some(ceilings) = ceilings else { return Ok(()) };
    let host = &tenant.memory.host;
    let mut failed = FirstError::<ReconcileError>::default();
    // A quota of CPU or memory rejects pods for whose containers the range has no default requests.
    let range = limits::limit_range(&tenant.cluster, &tenant.id, &settings.limits, ceilings);
    failed.note(host.apply(&range).await);
    let limits = (&settings.limits, settings.sync.kinds.as_slice());
    let mut quota = limits::resource_quota(&tenant.cluster, &tenant.id, limits, *schedule, ceilings);
    let excess = context.stores.storage_claims.excess(&tenant.id.workload_namespace());
    limits::count_excess(&mut quota, &excess);
    failed.note(host.apply(&quota).await);
    failed.into_result()
}
