//! The tenant's DNS: the address under which its pods find it, and what its teams changed about it.
//!
//! The address is that of the host Service `kube-dns`, the next one after `default/kubernetes` if it is free. Running pods
//! hold it, so it is also recorded beside the tenant's ports: a Service that is deleted by hand gets it again.

use super::{host_objects, settings::Settings, state::TenantMemory};
use crate::{
    apply::{Applier, ApplyError, is_status, optional},
    context::Context,
    control_plane::{
        API_SERVER, CLUSTER_DOMAIN, COREDNS, DNS_USER, DnsInput, Endpoints, ServiceRange,
        dns_customization::{self, Limits},
    },
    error::{ReconcileError, api},
    runtime::cluster::pod_selector,
};
use berth_api::{
    TenantCluster, labels,
    names::{self, TenantId},
};
use ipnet::IpNet;
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Event, ObjectReference, Service, ServicePort, ServiceSpec},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::{
        apis::meta::v1::{MicroTime, ObjectMeta, Time},
        util::intstr::IntOrString,
    },
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, PoisonError},
};

/// Name of the Service, on the host and in the tenant, where `kubectl` users look for it.
pub(super) const SERVICE: &str = "kube-dns";
/// Namespace in the tenant of the Service and of the customisation.
const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap in the tenant with what its teams change.
const CUSTOMISATION: &str = "coredns-custom";
/// Port that pods ask at.
const PORT: i32 = 53;
/// Addresses after the API server's that are tried; the range ends there.
const CANDIDATES: u32 = 5;
/// Longest message of an Event.
const LONGEST_MESSAGE: usize = 1024;

/// What the tenant's DNS is made of; none if the runtime has no DNS server. `ready` is the tenant's API server, if it
/// answers.
///
/// # Errors
/// The host refuses or does not answer; the address is gone.
pub(super) async fn input(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    settings: &Settings,
    (closed, endpoints, range): (&[IpNet], &Endpoints, &ServiceRange),
    ready: Option<&Arc<Applier>>,
) -> Result<Option<DnsInput>, ReconcileError> {
    if !context.runtime.has_dns() {
        return Ok(None);
    }
    let address = address(context, memory, cluster, tenant, endpoints, range).await?;
    let mut blocked_domains = settings.dns.blocked_domains.clone();
    if context.host.cluster_domain != CLUSTER_DOMAIN {
        blocked_domains.push(context.host.cluster_domain.clone());
    }
    let limits = Limits {
        policy: &settings.dns,
        cluster_domain: CLUSTER_DOMAIN,
        blocked_domains: &blocked_domains,
        blocked_cidrs: closed,
    };
    let customization = match data(memory, ready).await {
        None => None,
        Some(data) => {
            let (customization, errors) = dns_customization::parse_customization(&data, &limits);
            if let Some(ready) = ready.filter(|_| !errors.is_empty()) {
                tell(ready, &errors).await;
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
async fn address(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    endpoints: &Endpoints,
    range: &ServiceRange,
) -> Result<IpAddr, ReconcileError> {
    let services: Api<Service> = Api::namespaced(context.client.clone(), &tenant.control_plane_namespace());
    let selector = context.runtime.uses_pods().then(|| pod_selector(tenant, COREDNS));
    let wanted = |address| host_service(cluster, tenant, address, endpoints.dns.listen.port(), selector.clone());
    let live = optional(services.get(SERVICE).await).map_err(api("read the Service of the tenant's DNS"))?;
    let address = match live.as_ref().and_then(cluster_ip) {
        Some(address) => address,
        None => choose(&services, range, wanted).await?,
    };
    let record = Service {
        metadata: ObjectMeta {
            annotations: Some(BTreeMap::from([(labels::DNS_ADDRESS.into(), address.to_string())])),
            ..host_objects::meta(cluster, tenant, &tenant.control_plane_namespace(), API_SERVER)
        },
        ..Service::default()
    };
    memory.host.apply(&record).await?;
    memory.host.apply(&wanted(address)).await?;
    Ok(address)
}

/// Makes the Service with the address that is recorded, or else with the first free one of the tenant's range.
async fn choose(
    services: &Api<Service>,
    range: &ServiceRange,
    wanted: impl Fn(IpAddr) -> Service,
) -> Result<IpAddr, ReconcileError> {
    let record = optional(services.get_metadata(API_SERVER).await).map_err(api("read the address of the DNS"))?;
    let recorded: Option<IpAddr> =
        record.and_then(|record| record.annotations().get(labels::DNS_ADDRESS)?.parse().ok());
    let candidates = match recorded {
        Some(recorded) => vec![recorded],
        None => candidates(range),
    };
    for address in &candidates {
        match services.create(&PostParams::default(), &wanted(*address)).await {
            Ok(_) => return Ok(*address),
            // The address is taken.
            Err(error) if is_status(&error, 422) => {}
            Err(error) => return Err(api("make the Service of the tenant's DNS")(error)),
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

fn candidates(range: &ServiceRange) -> Vec<IpAddr> {
    let IpAddr::V4(first) = range.first else {
        return Vec::new();
    };
    (1..=CANDIDATES)
        .map(|offset| IpAddr::V4(Ipv4Addr::from(u32::from(first) + offset)))
        .collect()
}

fn cluster_ip(service: &Service) -> Option<IpAddr> {
    service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()
}

fn ports(target: Option<u16>) -> Vec<ServicePort> {
    let port = |name: &str, protocol: &str| ServicePort {
        name: Some(name.into()),
        port: PORT,
        protocol: Some(protocol.into()),
        target_port: target.map(|port| IntOrString::Int(port.into())),
        ..ServicePort::default()
    };
    vec![port("dns", "UDP"), port("dns-tcp", "TCP")]
}

/// The Service on the host, before the pods of CoreDNS.
fn host_service(
    cluster: &TenantCluster,
    tenant: &TenantId,
    address: IpAddr,
    port: u16,
    selector: Option<BTreeMap<String, String>>,
) -> Service {
    Service {
        metadata: host_objects::meta(cluster, tenant, &tenant.control_plane_namespace(), SERVICE),
        spec: Some(ServiceSpec {
            cluster_ip: Some(address.to_string()),
            ports: Some(ports(Some(port))),
            selector,
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The role of CoreDNS in the tenant.
pub(super) fn role() -> ClusterRole {
    let rule = |group: &str, resources: &[&str]| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(resources.iter().map(ToString::to_string).collect()),
        verbs: ["list", "watch"].map(Into::into).into(),
        ..PolicyRule::default()
    };
    ClusterRole {
        metadata: ObjectMeta {
            name: Some(DNS_USER.into()),
            ..ObjectMeta::default()
        },
        rules: Some(vec![
            rule("", &["namespaces", "services"]),
            rule("discovery.k8s.io", &["endpointslices"]),
        ]),
        aggregation_rule: None,
    }
}

/// The Service as the tenant sees it. Nothing follows from it: the host has the one that pods reach.
fn tenant_service(address: IpAddr) -> Service {
    let labels = [
        (labels::MANAGED_BY, labels::MANAGED_BY_CONTROL),
        ("k8s-app", "kube-dns"),
        ("kubernetes.io/cluster-service", "true"),
        ("kubernetes.io/name", "CoreDNS"),
    ];
    Service {
        metadata: ObjectMeta {
            name: Some(SERVICE.into()),
            namespace: Some(NAMESPACE.into()),
            labels: Some(labels.map(|(key, value)| (key.into(), value.into())).into()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some(address.to_string()),
            ports: Some(ports(None)),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Shows the DNS in the tenant. A Service of the name with another address, which a team made, makes way.
///
/// # Errors
/// The tenant's API server refuses or does not answer.
pub(super) async fn publish(tenant: &Applier, address: IpAddr) -> Result<(), ReconcileError> {
    let wanted = tenant_service(address);
    let refused = |error: &ApplyError| is_status(&error.source, 422);
    match tenant.apply(&wanted).await {
        Err(error) if refused(&error) => {}
        applied => return Ok(applied?),
    }
    let services: Api<Service> = Api::namespaced(tenant.client().clone(), NAMESPACE);
    let live = optional(services.get(SERVICE).await).map_err(api("read the tenant's Service of its DNS"))?;
    if let Some(foreign) = live.filter(|live| cluster_ip(live) != Some(address)) {
        let only_this = Preconditions {
            uid: foreign.uid(),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(only_this);
        optional(services.delete(SERVICE, &params).await).map_err(api("replace the tenant's Service of its DNS"))?;
    }
    Ok(tenant.apply(&wanted).await?)
}

/// What the ConfigMap in the tenant says now, or said when it was read last.
async fn data(memory: &TenantMemory, ready: Option<&Arc<Applier>>) -> Option<BTreeMap<String, String>> {
    if let Some(ready) = ready {
        let maps: Api<ConfigMap> = Api::namespaced(ready.client().clone(), NAMESPACE);
        match optional(maps.get(CUSTOMISATION).await) {
            Ok(map) => {
                let data = map.and_then(|map| map.data).unwrap_or_default();
                *memory.dns.lock().unwrap_or_else(PoisonError::into_inner) = Some(data);
            }
            Err(error) => tracing::debug!(%error, "cannot read how a tenant customised its DNS"),
        }
    }
    memory.dns.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Tells the tenant what was refused, once for each wording.
async fn tell(tenant: &Applier, refusals: &[String]) {
    let events: Api<Event> = Api::namespaced(tenant.client().clone(), NAMESPACE);
    match events.create(&PostParams::default(), &event(refusals)).await {
        Err(error) if !is_status(&error, 409) => tracing::debug!(%error, "cannot tell a tenant what was refused"),
        _ => {}
    }
}

fn event(refusals: &[String]) -> Event {
    let mut message = refusals.join("; ");
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    let now = jiff::Timestamp::now();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{CUSTOMISATION}.{}", names::hash(&[&message]))),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("ConfigMap".into()),
            namespace: Some(NAMESPACE.into()),
            name: Some(CUSTOMISATION.into()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".into()),
        reason: Some("NotInEffect".into()),
        action: Some("Customise".into()),
        message: Some(message),
        reporting_component: Some("berth.dev/control".into()),
        reporting_instance: Some("berth-control".into()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        event_time: Some(MicroTime(now)),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_follows_that_of_the_api_server() {
        let range = ServiceRange {
            cidr: "10.96.0.48/29".into(),
            first: [10, 96, 0, 49].into(),
            secondary: None,
        };
        let candidates: Vec<String> = candidates(&range).iter().map(ToString::to_string).collect();
        assert_eq!(
            candidates,
            ["10.96.0.50", "10.96.0.51", "10.96.0.52", "10.96.0.53", "10.96.0.54"]
        );
    }

    #[test]
    fn the_objects_are_as_reviewed() {
        let tenant = TenantId::new("vision", "6f2c");
        let cluster = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        let address = [10, 96, 0, 50].into();
        let selector = pod_selector(&tenant, COREDNS);
        insta::assert_yaml_snapshot!(host_service(&cluster, &tenant, address, 5353, Some(selector)));
        insta::assert_yaml_snapshot!(tenant_service(address));
        insta::assert_yaml_snapshot!(role());
    }

    #[test]
    fn an_event_says_what_was_refused_and_is_one_for_one_wording() {
        let words = ["hosts, line 1: \"x\" is not an address".to_owned()];
        assert_eq!(event(&words).metadata.name, event(&words).metadata.name);
        assert_ne!(event(&words).metadata.name, event(&["other".to_owned()]).metadata.name);
        let long = event(&["é".repeat(1024)]);
        assert!(long.message.unwrap().len() <= LONGEST_MESSAGE);
    }
}
