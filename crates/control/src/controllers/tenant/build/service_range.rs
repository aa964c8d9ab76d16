//! The tenant's own Service range: eight addresses of the host's range. Its first address is `default/kubernetes` in
//! the tenant and the ClusterIP of a Service on the host, so that one address leads to the tenant's API server inside
//! and outside. That host Service is also where the tenant's ports are recorded.

use super::host_objects::tenant_labels;
use crate::{
    control_plane::{API_SERVER, Ports, SYNCER, ServiceRange},
    runtime::cluster::pod_selector,
};
use berth_api::{TenantCluster, names::TenantId};
use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of a tenant's own range: the least that kube-apiserver takes.
const RANGE_SIZE: u32 = 8;
/// Prefix length of a range of [`RANGE_SIZE`] addresses.
const RANGE_PREFIX: u32 = 29;
/// The same for IPv6.
const SECONDARY_PREFIX: u32 = 125;
/// Name of the recorded port of the syncer's admission server.
const ADMISSION: &str = "admission";
/// Name of the recorded port of the syncer's egress server.
const EGRESS: &str = "egress";
/// Name of the recorded port of the tenant's DNS.
const DNS: &str = "dns";

/// The tenant's own range of the other family: eight addresses of an IPv6 range of the host. kube-apiserver takes
/// addresses of a family only if it has a range of its own; it allocates no address of this range, so two tenants may have
/// the same.
pub fn secondary_range(cidr: &str, first: IpAddr) -> Option<String> {
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

/// Ranges for a new tenant among those of the host, in the order in which they are tried: at most `limit` of them, none twice. They begin
/// anywhere and are far from each other, both by `random`: nobody can take those of one tenant beforehand, and addresses that
/// somebody has taken side by side are few of them.
pub fn candidates<'r>(host: impl IntoIterator<Item = &'r str>, random: u64, limit: usize) -> Vec<ServiceRange> {
    let host: Vec<&str> = host.into_iter().collect();
    let ranges: Vec<(Ipv4Addr, u32)> = host.iter().copied().filter_map(count_ranges).collect();
    let reserved = reserved_addresses(host);
    let total: u64 = ranges.iter().map(|(_, count)| usable(*count)).sum();
    if total == 0 {
        return Vec::new();
    }
    let start = random % total;
    // With a step that has no divisor in common with the number, each range is met once.
    let step = (0..total)
        .map(|more| 1 + (random / total % total + more) % total)
        .find(|step| greatest_common_divisor(*step, total) == 1)
        .unwrap_or(1);
    let all = (0..total)
        .map(|attempt| (start + attempt * step) % total)
        .filter_map(|index| nth_range(&ranges, index));
    // Those with addresses that the host keeps for its own Services come last.
    let is_reserved = |range: &ServiceRange| reserved.iter().any(|network| network.contains(&range.first));
    let free = all.clone().filter(|range| !is_reserved(range));
    free.chain(all.filter(is_reserved)).take(limit).collect()
}

/// Ranges of one of the host's that a tenant can have. The first address of the first one is that of the network.
fn usable(count: u32) -> u64 {
    u64::from(count.saturating_sub(1))
}

/// A range by its number, where the host's follow each other.
fn nth_range(ranges: &[(Ipv4Addr, u32)], index: u64) -> Option<ServiceRange> {
    let mut left = index;
    for (base, count) in ranges {
        if left < usable(*count) {
            return Some(range_at(*base, u32::try_from(left).ok()? + 1));
        }
        left -= usable(*count);
    }
    None
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        greatest_common_divisor(other, one % other)
    }
}

/// First address and number of tenant ranges of an IPv4 range.
fn count_ranges(cidr: &str) -> Option<(Ipv4Addr, u32)> {
    let (address, prefix) = cidr.split_once('/')?;
    let address: Ipv4Addr = address.parse().ok()?;
    let prefix: u32 = prefix.parse().ok()?;
    (8..=24)
        .contains(&prefix)
        .then(|| (address, 1 << (RANGE_PREFIX - prefix)))
}

/// Addresses of the host's Service ranges that Kubernetes keeps for Services with an address that somebody chose, such as the host's DNS: the
/// first sixteenth of a range, at least 16 and at most 256. API servers give them to other Services last. The first address of a range is that of the
/// network, which no Service has; so the last one that Kubernetes keeps is left out.
///
/// Source: <https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/>
pub fn reserved_addresses<'r>(ranges: impl IntoIterator<Item = &'r str>) -> Vec<IpNet> {
    /// Bits of 16 addresses, and of 256.
    const BITS: std::ops::RangeInclusive<u8> = 4..=8;
    let reserved = ranges.into_iter().filter_map(|range| {
        let range: IpNet = range.parse().ok()?;
        let bits = range.max_prefix_len() - range.prefix_len();
        // Of 16 addresses and fewer it keeps none.
        let kept = (bits > *BITS.start()).then(|| bits.saturating_sub(4).clamp(*BITS.start(), *BITS.end()))?;
        IpNet::new(range.network(), range.max_prefix_len() - kept).ok()
    });
    reserved.collect()
}

fn range_at(base: Ipv4Addr, index: u32) -> ServiceRange {
    let start = u32::from(base) + index * RANGE_SIZE;
    ServiceRange {
        cidr: format!("{}/{RANGE_PREFIX}", Ipv4Addr::from(start)),
        first: IpAddr::V4(Ipv4Addr::from(start + 1)),
        secondary: None,
    }
}

/// The range that begins with an address.
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

/// The recorded ports of servers that are not pods.
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
pub fn add_missing_ports(mut recorded: Service, fresh: &Ports) -> Option<Service> {
    let known = recorded.spec.as_mut()?.ports.get_or_insert_default();
    let missing: Vec<ServicePort> = ports(fresh)
        .into_iter()
        .filter(|port| known.iter().all(|other| other.name != port.name))
        .collect();
    let is_new = !missing.is_empty();
    known.extend(missing);
    is_new.then_some(recorded)
}

/// The Service of the API server, at the first address of the range. `fresh`: the ports of the servers. Where these are no pods, the Service records them, and
/// selects nothing.
pub fn api_server_service(
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

/// The range that [`api_server_service`] recorded; none if its address begins no range.
pub fn read_range(service: &Service) -> Option<ServiceRange> {
    range_of(service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()?)
}

/// The ports and the range that [`api_server_service`] recorded for servers that are not pods.
pub fn read_ports_and_range(service: &Service) -> Option<(Ports, ServiceRange)> {
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
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_eight_addresses_and_can_be_read_back() {
        let (base, count) = count_ranges("10.96.0.0/16").unwrap();
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
    fn all_ranges_of_the_host_are_tried_once_and_the_first_of_each_is_left_out() {
        for random in [0, 1, 12_345_678_901_234_567_890, u64::MAX] {
            let tried = candidates(["10.96.0.0/24", "fd00::/108", "10.97.0.0/23"], random, usize::MAX);
            let all: BTreeSet<&str> = tried.iter().map(|range| range.cidr.as_str()).collect();
            assert_eq!((tried.len(), all.len()), (31 + 63, 31 + 63), "{random}");
            assert!(!all.contains("10.96.0.0/29") && !all.contains("10.97.0.0/29"));
            for edge in ["10.96.0.8/29", "10.96.0.248/29", "10.97.0.8/29", "10.97.1.248/29"] {
                assert!(all.contains(edge), "{random}: {edge}");
            }
        }
        assert!(candidates(["10.96.0.0/28", "fd00::/108"], 7, 64).is_empty());
    }

    #[test]
    fn another_random_number_tries_other_ranges_far_from_each_other() {
        let tried = |random: u64| -> BTreeSet<String> {
            let ranges = candidates(["10.96.0.0/12"], random, 64);
            ranges.into_iter().map(|range| range.cidr).collect()
        };
        let (one, other) = (tried(0x0123_4567_89ab_cdef), tried(0xfedc_ba98_7654_3210));
        assert_eq!((one.len(), other.len()), (64, 64));
        assert!(one.intersection(&other).count() < 8, "{one:?} {other:?}");
        let blocks: BTreeSet<&str> = one
            .iter()
            .filter_map(|cidr| cidr.rsplit_once('.'))
            .map(|(block, _)| block)
            .collect();
        assert!(blocks.len() > 32, "{one:?}");
    }

    #[test]
    fn ranges_that_are_too_small_or_not_ipv4_are_passed_over() {
        for cidr in ["10.96.0.0/28", "fd00::/108", "nonsense", "10.96.0.0/x"] {
            assert_eq!(count_ranges(cidr), None, "{cidr}");
        }
    }

    #[test]
    fn a_host_with_both_families_gives_a_range_of_the_other_one() {
        let first = Ipv4Addr::new(10, 96, 0, 49).into();
        assert_eq!(
            secondary_range("fd00:10:96::/108", first).as_deref(),
            Some("fd00:10:96::30/125")
        );
        assert_eq!(
            secondary_range("fd00:10:96::/120", first).as_deref(),
            Some("fd00:10:96::30/125")
        );
        assert_eq!(secondary_range("fd00:10:96::/121", first), None);
        assert_eq!(secondary_range("10.96.0.0/16", first), None);
    }

    #[test]
    fn addresses_that_kubernetes_keeps_are_not_for_tenants() {
        let reserved = |range: &str| -> Vec<String> {
            let reserved = reserved_addresses([range]);
            reserved.iter().map(ToString::to_string).collect()
        };
        assert_eq!(reserved("10.96.0.0/12"), ["10.96.0.0/24"]);
        assert_eq!(reserved("10.96.0.0/20"), ["10.96.0.0/24"]);
        assert_eq!(reserved("10.96.0.0/21"), ["10.96.0.0/25"]);
        assert_eq!(reserved("10.96.0.128/25"), ["10.96.0.128/28"]);
        assert_eq!(reserved("10.96.0.0/27"), ["10.96.0.0/28"]);
        assert_eq!(reserved("10.96.0.0/28"), [""; 0]);
        assert_eq!(reserved("fd00:10:96::/108"), ["fd00:10:96::/120"]);
        assert_eq!(reserved("fd00:10:96::/64"), ["fd00:10:96::/120"]);
        assert_eq!(reserved("oops"), [""; 0]);
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
        let made = api_server_service(&cluster, &tenant, &ports, &range, false);
        assert_eq!(read_ports_and_range(&made), Some((ports.clone(), range.clone())));
        assert_eq!(add_missing_ports(made.clone(), &ports), None);
        let mut earlier = made;
        earlier.spec.as_mut().unwrap().ports.as_mut().unwrap().pop();
        assert_eq!(read_ports_and_range(&earlier), None);
        let fresh = Ports {
            api_server: 1,
            syncer_admin: 2,
            ..ports.clone()
        };
        let completed = add_missing_ports(earlier, &fresh).unwrap();
        assert_eq!(read_ports_and_range(&completed), Some((ports, range)));
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
        let made = api_server_service(&cluster, &tenant, &ports, &range, true);
        assert_eq!((read_ports_and_range(&made), read_range(&made)), (None, Some(range)));
        insta::assert_yaml_snapshot!(made.spec);
    }
}
