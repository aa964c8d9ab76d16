//! The tenant's own Service range: eight addresses of the host's range. Its first address is `default/kubernetes` in
//! the tenant and the ClusterIP of a Service on the host, so that one address leads to the tenant's API server inside
//! and outside. That host Service is also where the tenant's ports are recorded.

use super::host_objects::tenant_labels;
use crate::{
    apply::{is_status, optional},
    context::Context,
    control_plane::{API_SERVER, Endpoints, Ports, SYNCER, ServiceRange},
    error::{ReconcileError, api},
    runtime::{Owner, cluster::pod_selector},
};
use berth_api::{TenantCluster, names::TenantId};
use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of a tenant's own range: the least that kube-apiserver takes.
const RANGE_SIZE: u32 = 8;
/// Prefix length of a range of [`RANGE_SIZE`] addresses.
const RANGE_PREFIX: u32 = 29;
/// The same for IPv6.
const SECONDARY_PREFIX: u32 = 125;
/// Name of the ServiceCIDR that stands for an API server's command line.
const DEFAULT_CIDR: &str = "kubernetes";
/// How many ranges are tried before giving up until the next pass.
const ATTEMPTS: u32 = 64;
/// Name of the recorded port of the syncer's admission server.
const ADMISSION: &str = "admission";
/// Name of the recorded port of the syncer's egress server.
const EGRESS: &str = "egress";
/// Name of the recorded port of the tenant's DNS.
const DNS: &str = "dns";

/// Where the tenant's components listen and its Service range, as recorded on the host; records them first if this
/// is a new tenant.
///
/// # Errors
/// The host refuses or does not answer; no free range is left.
pub async fn ensure(
    context: &Context,
    owner: Owner<'_>,
    cluster: &TenantCluster,
    host: &HostRanges,
) -> Result<(Endpoints, ServiceRange), ReconcileError> {
    let (ports, mut range) = recorded(context, cluster, owner.tenant, host).await?;
    range.secondary = host.all().find_map(|cidr| secondary(cidr, range.first));
    Ok((context.runtime.endpoints(owner, &ports, &range).await?, range))
}

async fn recorded(
    context: &Context,
    cluster: &TenantCluster,
    tenant: &TenantId,
    host: &HostRanges,
) -> Result<(Ports, ServiceRange), ReconcileError> {
    let services: Api<Service> = Api::namespaced(context.client.clone(), &tenant.control_plane_namespace());
    let existing = optional(services.get(API_SERVER).await).map_err(api("read the Service of the API server"))?;
    let uses_pods = context.runtime.uses_pods();
    // Read first: ports that are allocated are not given out again.
    let known = existing.as_ref().filter(|_| !uses_pods).and_then(read);
    if let Some(recorded) = known {
        return Ok(recorded);
    }
    let fresh = context.runtime.allocate(tenant)?;
    if let Some(service) = existing {
        if uses_pods && let Some(range) = read_range(&service) {
            return Ok((fresh, range));
        }
        // Recorded by an earlier version, which knew fewer ports.
        if let Some(completed) = complete(service, &fresh) {
            let stored = services.replace(API_SERVER, &PostParams::default(), &completed).await;
            let stored = stored.map_err(api("record the tenant's ports"))?;
            if let Some(recorded) = read(&stored) {
                return Ok(recorded);
            }
        }
    }
    let (base, count) = host.all().find_map(ranges_of).ok_or(ReconcileError::Blocked {
        reason: "NoServiceRange",
        message: "the host cluster has no IPv4 Service range of /24 or larger to take the tenant's from".into(),
    })?;
    // Different tenants start at different places, so that many created at once seldom meet.
    let start = tenant
        .hash()
        .bytes()
        .fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    for attempt in 0..ATTEMPTS {
        let range = range_at(base, 1 + (start.wrapping_add(attempt)) % (count - 1));
        let service = service(cluster, tenant, &fresh, &range, uses_pods);
        match services.create(&PostParams::default(), &service).await {
            Ok(_) => return Ok((fresh, range)),
            // 422: the address is taken. 409: another control made the Service; the next pass reads it.
            Err(error) if is_status(&error, 422) => {}
            Err(error) => return Err(api("record the tenant's Service range")(error)),
        }
    }
    Err(ReconcileError::Blocked {
        reason: "NoServiceRange",
        message: format!("{ATTEMPTS} Service ranges were tried and all were taken; free Services or add a ServiceCIDR"),
    })
}

/// The host's Service ranges, one entry for each of its ServiceCIDRs, the one from its command line first. Each holds
/// one range of a family or one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRanges(pub Vec<Vec<String>>);

impl HostRanges {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }
}

/// Reads the host's Service ranges.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn host_ranges(context: &Context) -> Result<HostRanges, ReconcileError> {
    let cidrs: Api<ServiceCIDR> = Api::all(context.client.clone());
    let list = cidrs
        .list(&ListParams::default())
        .await
        .map_err(api("list the host's ServiceCIDRs"))?;
    let mut items = list.items;
    items.sort_by_key(|cidr| (cidr.name_any() != DEFAULT_CIDR, cidr.name_any()));
    let ranges = items.into_iter().filter_map(|cidr| cidr.spec?.cidrs);
    Ok(HostRanges(ranges.collect()))
}

/// The tenant's own range of the other family: eight addresses of an IPv6 range of the host. kube-apiserver takes
/// addresses of a family only if it has a range of its own; it gives out none of this range, so that two tenants may have
/// the same.
fn secondary(cidr: &str, first: IpAddr) -> Option<String> {
    let (address, prefix) = cidr.split_once('/')?;
    let base = u128::from(address.parse::<Ipv6Addr>().ok()?);
    let prefix: u32 = prefix.parse().ok()?;
    let IpAddr::V4(first) = first else { return None };
    (8..=120).contains(&prefix).then(|| {
        let index = u128::from(u32::from(first) / RANGE_SIZE) % (1 << (SECONDARY_PREFIX - prefix).min(64));
        let start = Ipv6Addr::from(base + index * u128::from(RANGE_SIZE));
        format!("{start}/{SECONDARY_PREFIX}")
    })
}

/// First address and number of tenant ranges of an IPv4 range.
fn ranges_of(cidr: &str) -> Option<(Ipv4Addr, u32)> {
    let (address, prefix) = cidr.split_once('/')?;
    let address: Ipv4Addr = address.parse().ok()?;
    let prefix: u32 = prefix.parse().ok()?;
    (8..=24)
        .contains(&prefix)
        .then(|| (address, 1 << (RANGE_PREFIX - prefix)))
}

fn range_at(base: Ipv4Addr, index: u32) -> ServiceRange {
    let start = u32::from(base) + index * RANGE_SIZE;
    ServiceRange {
        cidr: format!("{}/{RANGE_PREFIX}", Ipv4Addr::from(start)),
        first: IpAddr::V4(Ipv4Addr::from(start + 1)),
        secondary: None,
    }
}

/// The range that an address is the first of.
fn range_of(first: Ipv4Addr) -> Option<ServiceRange> {
    let start = u32::from(first).checked_sub(1)?;
    (start % RANGE_SIZE == 0).then(|| range_at(Ipv4Addr::from(start), 0))
}

fn port(name: &str, port: i32, target: u16) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port,
        target_port: Some(IntOrString::Int(target.into())),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    }
}

fn api_port(ports: &Ports) -> ServicePort {
    port(API_SERVER, 443, ports.api_server)
}

/// What is recorded of servers that are no pods.
fn ports(ports: &Ports) -> Vec<ServicePort> {
    vec![
        api_port(ports),
        port(SYNCER, 8080, ports.syncer_admin),
        port(ADMISSION, 8443, ports.admission),
        port(EGRESS, 8444, ports.egress),
        port(DNS, 53, ports.dns),
    ]
}

/// A recorded Service with the ports of `fresh` that it lacks; `None` if it lacks none.
fn complete(mut recorded: Service, fresh: &Ports) -> Option<Service> {
    let known = recorded.spec.as_mut()?.ports.get_or_insert_default();
    let missing: Vec<ServicePort> = ports(fresh)
        .into_iter()
        .filter(|port| known.iter().all(|other| other.name != port.name))
        .collect();
    let is_new = !missing.is_empty();
    known.extend(missing);
    is_new.then_some(recorded)
}

fn service(
    cluster: &TenantCluster,
    tenant: &TenantId,
    fresh: &Ports,
    range: &ServiceRange,
    uses_pods: bool,
) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(API_SERVER.into()),
            namespace: Some(tenant.control_plane_namespace()),
            labels: Some(tenant_labels(cluster, tenant)),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some(range.first.to_string()),
            ports: Some(if uses_pods { vec![api_port(fresh)] } else { ports(fresh) }),
            selector: uses_pods.then(|| pod_selector(tenant, API_SERVER)),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn read_range(service: &Service) -> Option<ServiceRange> {
    range_of(service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()?)
}

/// What [`service`] recorded of servers that are no pods.
fn read(service: &Service) -> Option<(Ports, ServiceRange)> {
    let spec = service.spec.as_ref()?;
    let range = read_range(service)?;
    let target = |name: &str| {
        let port = spec
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name))?;
        match port.target_port.as_ref()? {
            IntOrString::Int(number) => u16::try_from(*number).ok(),
            IntOrString::String(_) => None,
        }
    };
    Some((
        Ports {
            api_server: target(API_SERVER)?,
            syncer_admin: target(SYNCER)?,
            admission: target(ADMISSION)?,
            egress: target(EGRESS)?,
            dns: target(DNS)?,
        },
        range,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_eight_addresses_and_can_be_read_back() {
        let (base, count) = ranges_of("10.96.0.0/16").unwrap();
        assert_eq!(count, 8192);
        let range = range_at(base, 6);
        assert_eq!(
            (range.cidr.as_str(), range.first.to_string().as_str()),
            ("10.96.0.48/29", "10.96.0.49")
        );
        assert_eq!(range_of(Ipv4Addr::new(10, 96, 0, 49)), Some(range));
        assert_eq!(range_of(Ipv4Addr::new(10, 96, 0, 50)), None);
        assert_eq!(range_at(base, count - 1).cidr, "10.96.255.248/29");
    }

    #[test]
    fn ranges_that_are_too_small_or_not_ipv4_are_passed_over() {
        for cidr in ["10.96.0.0/28", "fd00::/108", "nonsense", "10.96.0.0/x"] {
            assert_eq!(ranges_of(cidr), None, "{cidr}");
        }
    }

    #[test]
    fn a_host_with_both_families_gives_a_range_of_the_other_one() {
        let first = Ipv4Addr::new(10, 96, 0, 49).into();
        assert_eq!(
            secondary("fd00:10:96::/108", first).as_deref(),
            Some("fd00:10:96::30/125")
        );
        assert_eq!(
            secondary("fd00:10:96::/120", first).as_deref(),
            Some("fd00:10:96::30/125")
        );
        assert_eq!(secondary("fd00:10:96::/121", first), None);
        assert_eq!(secondary("10.96.0.0/16", first), None);
    }

    #[test]
    fn the_record_is_read_back() {
        let tenant = TenantId::new("a", "1");
        let cluster = TenantCluster::new("a", berth_api::TenantClusterSpec::default());
        let ports = Ports {
            api_server: 40001,
            syncer_admin: 40002,
            admission: 40003,
            egress: 40004,
            dns: 40005,
        };
        let range = range_at(Ipv4Addr::new(10, 96, 0, 0), 6);
        let made = service(&cluster, &tenant, &ports, &range, false);
        assert_eq!(read(&made), Some((ports.clone(), range.clone())));
        assert_eq!(complete(made.clone(), &ports), None);
        let mut earlier = made;
        earlier.spec.as_mut().unwrap().ports.as_mut().unwrap().pop();
        assert_eq!(read(&earlier), None);
        let fresh = Ports {
            api_server: 1,
            syncer_admin: 2,
            ..ports.clone()
        };
        let completed = complete(earlier, &fresh).unwrap();
        assert_eq!(read(&completed), Some((ports, range)));
    }

    #[test]
    fn pods_are_found_by_labels_and_their_ports_are_not_recorded() {
        let tenant = TenantId::new("a", "1");
        let cluster = TenantCluster::new("a", berth_api::TenantClusterSpec::default());
        let ports = Ports {
            api_server: 6443,
            syncer_admin: 8080,
            admission: 8443,
            egress: 8444,
            dns: 5353,
        };
        let range = range_at(Ipv4Addr::new(10, 96, 0, 0), 6);
        let made = service(&cluster, &tenant, &ports, &range, true);
        assert_eq!((read(&made), read_range(&made)), (None, Some(range)));
        insta::assert_yaml_snapshot!(made.spec);
    }
}
