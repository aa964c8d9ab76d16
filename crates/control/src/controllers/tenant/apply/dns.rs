//! The tenant's DNS: its address, and its customization by the teams.
//!
//! The address is that of the host Service `kube-dns`, the next one after `default/kubernetes` if it is free. Running pods
//! hold it, so it is also recorded beside the tenant's ports: a Service that is deleted by hand gets it again.

use super::{
    super::{
        build::{
            dns::{
                CUSTOMIZATION, NAMESPACE, SERVICE, candidate_addresses, cluster_ip, error_event, host_dns_service,
                tenant_dns_service,
            },
            host_objects,
        },
        context::TenantContext,
        target::Tenant,
    },
    Prepared,
};
use crate::{
    apply::{Applier, is_status, optional},
    control_plane::{
        API_SERVER, CLUSTER_DOMAIN, COREDNS, DnsInput, ServiceRange,
        dns_customization::{self, Limits},
    },
    error::{ReconcileError, api},
    runtime::cluster::pod_selector,
};
use berth_api::labels;
use berth_runtime::locks::lock;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Event, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, ResourceExt, api::PostParams};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

/// Time for a call to the tenant's API server without which a reconcile goes on.
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// The input of the tenant's DNS; none if the runtime has no DNS server. `connection` is the tenant's API server, if it
/// answers.
///
/// # Errors
/// The host refuses or does not answer; the address is in use.
pub(super) async fn prepare_dns(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    connection: Option<&Arc<Applier>>,
) -> Result<Option<DnsInput>, ReconcileError> {
    if !context.runtime.has_dns() {
        return Ok(None);
    }
    let (tenant, settings) = (&prepared.accepted.tenant, &prepared.accepted.settings);
    let port = prepared.endpoints.dns.listen.port();
    let address = reserve_dns_address(context, tenant, port, &prepared.service_range).await?;
    let mut blocked_domains = settings.dns.blocked_domains.clone();
    if context.syncer_host.cluster_domain != CLUSTER_DOMAIN {
        blocked_domains.push(context.syncer_host.cluster_domain.clone());
    }
    let limits = Limits {
        policy: &settings.dns,
        cluster_domain: CLUSTER_DOMAIN,
        blocked_domains: &blocked_domains,
        blocked_cidrs: &prepared.blocked,
    };
    let customization = match read_customization(tenant, connection).await {
        None => None,
        Some(data) => {
            let (customization, errors) = dns_customization::parse_customization(&data, &limits);
            if let Some(connection) = connection.filter(|_| !errors.is_empty()) {
                write_error_event(tenant, connection, &errors).await;
            }
            Some(customization)
        }
    };
    Ok(Some(DnsInput {
        address,
        policy: settings.dns.clone(),
        blocked_domains,
        customization,
    }))
}

/// The address of the tenant's DNS, as recorded; one is chosen and recorded first if this is a new tenant.
async fn reserve_dns_address(
    context: &TenantContext,
    tenant: &Tenant,
    port: u16,
    range: &ServiceRange,
) -> Result<IpAddr, ReconcileError> {
    let (cluster, id) = (&tenant.cluster, &tenant.id);
    let services: Api<Service> = Api::namespaced(context.client.clone(), &id.control_plane_namespace());
    let selector = context.runtime.uses_pods().then(|| pod_selector(id, COREDNS));
    let build_service = |address| host_dns_service(cluster, id, address, port, selector.clone());
    let live = optional(services.get(SERVICE).await).map_err(api("read the Service of the tenant's DNS"))?;
    let address = match live.as_ref().and_then(cluster_ip) {
        Some(address) => address,
        None => create_dns_service(&services, range, build_service).await?,
    };
    let record = Service {
        metadata: ObjectMeta {
            annotations: Some(BTreeMap::from([(labels::DNS_ADDRESS.into(), address.to_string())])),
            ..host_objects::metadata(cluster, id, &id.control_plane_namespace(), API_SERVER)
        },
        ..Service::default()
    };
    tenant.memory.host.apply(&record).await?;
    tenant.memory.host.apply(&build_service(address)).await?;
    Ok(address)
}

/// Creates the Service with the address that is recorded, or else with the first free one of the tenant's range.
async fn create_dns_service(
    services: &Api<Service>,
    range: &ServiceRange,
    build_service: impl Fn(IpAddr) -> Service,
) -> Result<IpAddr, ReconcileError> {
    let record = optional(services.get_metadata(API_SERVER).await).map_err(api("read the address of the DNS"))?;
    let recorded: Option<IpAddr> =
        record.and_then(|record| record.annotations().get(labels::DNS_ADDRESS)?.parse().ok());
    let candidates = match recorded {
        Some(recorded) => vec![recorded],
        None => candidate_addresses(range),
    };
    for address in &candidates {
        match services.create(&PostParams::default(), &build_service(*address)).await {
            Ok(_) => return Ok(*address),
            // The address is taken.
            Err(error) if is_status(&error, 422) => {}
            Err(error) => return Err(api("create the Service of the tenant's DNS")(error)),
        }
    }
    let candidates: Vec<String> = candidates.iter().map(ToString::to_string).collect();
    Err(ReconcileError::Blocked {
        reason: "NoDnsAddress",
        message: format!(
            "other Services of the host have the addresses that the tenant's DNS may have ({}); delete or move one of \
             them",
            candidates.join(", ")
        ),
    })
}

/// Applies the Service of the DNS in the tenant. One with another address, which a team created, is replaced.
///
/// # Errors
/// The tenant's API server refuses or does not answer.
pub(super) async fn apply_tenant_service(tenant: &Applier, address: IpAddr) -> Result<(), ReconcileError> {
    let wanted = tenant_dns_service(address);
    let services: Api<Service> = Api::namespaced(tenant.client().clone(), NAMESPACE);
    let has_other_address = |live: &Service, wanted: &Service| cluster_ip(live) != cluster_ip(wanted);
    Ok(tenant.apply_or_replace(&services, &wanted, has_other_address).await?)
}

/// The data of the ConfigMap in the tenant; what was read last if the tenant does not answer.
async fn read_customization(tenant: &Tenant, connection: Option<&Arc<Applier>>) -> Option<BTreeMap<String, String>> {
    let known = &tenant.memory.dns;
    if let Some(connection) = connection {
        let maps: Api<ConfigMap> = Api::namespaced(connection.client().clone(), NAMESPACE);
        match tenant
            .slot
            .lend(CALL_LIMIT, maps.get(CUSTOMIZATION))
            .await
            .map(optional)
        {
            Some(Ok(map)) => {
                let data = map.and_then(|map| map.data).unwrap_or_default();
                *lock(known) = Some(data);
            }
            Some(Err(error)) => tracing::debug!(%error, "cannot read how a tenant customized its DNS"),
            None => tracing::debug!("a tenant does not answer how it customized its DNS"),
        }
    }
    lock(known).clone()
}

/// Writes an Event in the tenant about entries that have no effect, once for each message.
async fn write_error_event(tenant: &Tenant, connection: &Applier, errors: &[String]) {
    let events: Api<Event> = Api::namespaced(connection.client().clone(), NAMESPACE);
    let (params, event) = (PostParams::default(), error_event(errors));
    match tenant.slot.lend(CALL_LIMIT, events.create(&params, &event)).await {
        Some(Err(error)) if !is_status(&error, 409) => tracing::debug!(%error, "cannot write an Event in a tenant"),
        _ => {}
    }
}
