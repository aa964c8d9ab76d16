//! Where the tenant's API server is reached, by its components and by the team.

use super::super::{
    build::{external_service as external, service_range as range},
    context::TenantContext,
    fetch::HostRanges,
    settings::Settings,
    target::Tenant,
};
use crate::{
    apply::{is_status, optional},
    control_plane::{API_SERVER, EXTERNAL_SERVICE, Endpoints, Ports, ServiceRange},
    error::{ReconcileError, api},
};
use berth_api::{
    ControlPlaneServiceType,
    conditions::{ConditionUpdate, ENDPOINT_READY},
};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use std::hash::{BuildHasher, RandomState};

/// How many ranges are tried before the next reconcile tries others.
const ATTEMPTS: usize = 64;

/// Where the tenant's components listen and its Service range, as recorded on the host; records them first if this
/// is a new tenant.
///
/// # Errors
/// The host refuses or does not answer; no free range is left.
pub(super) async fn reserve_address(
    context: &TenantContext,
    tenant: &Tenant,
    host: &HostRanges,
) -> Result<(Endpoints, ServiceRange), ReconcileError> {
    let (ports, mut range) = load_or_reserve_range(context, tenant, host).await?;
    range.secondary = host.all().find_map(|cidr| range::secondary_range(cidr, range.first));
    let endpoints = context.runtime.find_endpoints(tenant.owner(), &ports, &range).await?;
    Ok((endpoints, range))
}

async fn load_or_reserve_range(
    context: &TenantContext,
    tenant: &Tenant,
    host: &HostRanges,
) -> Result<(Ports, ServiceRange), ReconcileError> {
    let services: Api<Service> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let existing = optional(services.get(API_SERVER).await).map_err(api("read the Service of the API server"))?;
    let uses_pods = context.runtime.uses_pods();
    // Recorded ports are read first: every allocation gives new ones.
    let known = existing.as_ref().filter(|_| !uses_pods);
    if let Some(recorded) = known.and_then(range::read_ports_and_range) {
        return Ok(recorded);
    }
    let fresh = context.runtime.allocate_ports(&tenant.id)?;
    if let Some(service) = existing {
        if uses_pods && let Some(range) = range::read_range(&service) {
            return Ok((fresh, range));
        }
        // Recorded by an earlier version, which knew fewer ports.
        if let Some(completed) = range::add_missing_ports(service, &fresh) {
            let stored = services.replace(API_SERVER, &PostParams::default(), &completed).await;
            let stored = stored.map_err(api("record the tenant's ports"))?;
            if let Some(recorded) = range::read_ports_and_range(&stored) {
                return Ok(recorded);
            }
        }
    }
    // Random, as teams take addresses of the same ranges: with an order that can be foreseen they could keep a tenant from ever starting.
    let random = RandomState::new().hash_one(tenant.id.hash());
    let candidates = range::candidates(host.all(), random, ATTEMPTS);
    if candidates.is_empty() {
        return Err(ReconcileError::Blocked {
            reason: "NoServiceRange",
            message: "the host cluster has no IPv4 Service range of /24 or larger to take the tenant's from".into(),
        });
    }
    let tried = candidates.len();
    for range in candidates {
        let service = range::api_server_service(&tenant.cluster, &tenant.id, &fresh, &range, uses_pods);
        match services.create(&PostParams::default(), &service).await {
            Ok(_) => return Ok((fresh, range)),
            // 422: the address is taken. 409: another control made the Service; the next reconcile reads it.
            Err(error) if is_status(&error, 422) => {}
            Err(error) => return Err(api("record the tenant's Service range")(error)),
        }
    }
    Err(ReconcileError::Blocked {
        reason: "NoServiceRange",
        message: format!(
            "{tried} ranges of eight Service addresses of the host were tried and the first address of each was taken; Berth goes on with \
             others. Free Services or add a ServiceCIDR"
        ),
    })
}

/// Whether the team can reach the API server at its public address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicState {
    /// At this URL.
    Reachable(String),
    /// Not yet, as the condition says.
    Pending(ConditionUpdate),
}

impl PublicState {
    pub(crate) fn is_reachable(&self) -> bool {
        matches!(self, Self::Reachable(_))
    }

    pub(crate) fn condition(&self) -> ConditionUpdate {
        match self {
            Self::Reachable(url) => ConditionUpdate::mark_true(ENDPOINT_READY, "Reachable", url),
            Self::Pending(condition) => condition.clone(),
        }
    }
}

/// Where the team reaches the API server, none where control planes are processes, and why the host rejects the Service that the spec asks for.
pub(super) type PublicEndpointState = (Option<PublicState>, Result<(), ReconcileError>);

/// Makes the API server reachable as the spec asks and at the gateway, if there is one, and sets its public endpoint in `endpoints`.
///
/// # Errors
/// The host fails or does not answer.
pub(super) async fn apply_public_endpoint(
    context: &TenantContext,
    tenant: &Tenant,
    settings: &Settings,
    endpoints: &mut Endpoints,
) -> Result<PublicEndpointState, ReconcileError> {
    let (state, accepted) = apply_external_service(context, tenant, settings, endpoints).await?;
    let Some(gateway) = &context.network_config.gateway else {
        return Ok((state, accepted));
    };
    endpoints.gateway = Some(gateway.url(&tenant.cluster));
    external::add_gateway(&mut endpoints.public, gateway, &tenant.cluster, &settings.endpoint);
    let state = state.map(|state| match state {
        PublicState::Reachable(_) => PublicState::Reachable(endpoints.public.url.clone()),
        pending @ PublicState::Pending(_) => pending,
    });
    Ok((state, accepted))
}

/// Makes the API server reachable as the spec asks; otherwise as [`apply_public_endpoint`].
async fn apply_external_service(
    context: &TenantContext,
    tenant: &Tenant,
    settings: &Settings,
    endpoints: &mut Endpoints,
) -> Result<PublicEndpointState, ReconcileError> {
    let spec = &settings.endpoint;
    endpoints.public.hosts.clone_from(&spec.hostnames);
    if !context.runtime.uses_pods() {
        return Ok((None, Ok(())));
    }
    let services: Api<Service> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    if spec.kind == ControlPlaneServiceType::ClusterIp {
        let left = optional(services.get_metadata(EXTERNAL_SERVICE).await).map_err(api("get the external Service"))?;
        if left.is_some() {
            let deleted = services.delete(EXTERNAL_SERVICE, &DeleteParams::default()).await;
            optional(deleted).map_err(api("delete the external Service"))?;
        }
        let host = spec.hostnames.first().unwrap_or(&endpoints.api_server.host);
        endpoints.public.url = external::url(host, external::PORT);
        return Ok((Some(PublicState::Reachable(endpoints.public.url.clone())), Ok(())));
    }
    let service = external::external_service(tenant.owner(), spec, endpoints.api_server.listen.port());
    let accepted = tenant.memory.host.apply(&service).await;
    // One that was accepted earlier goes on, and the kubeconfig with it.
    let made = optional(services.get(EXTERNAL_SERVICE).await).map_err(api("read the external Service"))?;
    let earlier = tenant.cluster.status.as_ref();
    let earlier = earlier.and_then(|status| status.endpoint.as_deref());
    let made = made.unwrap_or_default();
    let found = match spec.kind {
        ControlPlaneServiceType::NodePort => {
            external::endpoint_at_node(spec, &made, &context.stores.nodes.state(), earlier)
        }
        _ => external::endpoint_at_load_balancer(spec, &made),
    };
    let state = match found {
        Ok(public) => {
            endpoints.public = public;
            PublicState::Reachable(endpoints.public.url.clone())
        }
        Err(pending) => PublicState::Pending(pending),
    };
    Ok((Some(state), accepted.map_err(Into::into)))
}
