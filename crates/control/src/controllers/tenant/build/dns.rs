//! The objects of the tenant's DNS, on the host and in the tenant.

use super::host_objects;
use crate::control_plane::{DNS_USER, ServiceRange};
use berth_api::{
    TenantCluster, labels,
    names::{self, TenantId},
    text::event_note,
};
use k8s_openapi::{
    api::{
        core::v1::{Event, ObjectReference, Service, ServicePort, ServiceSpec},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::{
        apis::meta::v1::{MicroTime, ObjectMeta, Time},
        util::intstr::IntOrString,
    },
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

/// Name of the Service, on the host and in the tenant, as in clusters that kubeadm makes.
pub const SERVICE: &str = "kube-dns";
/// Namespace in the tenant of the Service and of the customization.
pub const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap in the tenant with the customization by its teams.
pub const CUSTOMIZATION: &str = "coredns-custom";
/// Port that pods send queries to.
const PORT: i32 = 53;
/// Addresses after the API server's that are tried; the range ends there.
const CANDIDATES: u32 = 5;

/// The addresses after that of the API server that the DNS may have.
pub fn candidate_addresses(range: &ServiceRange) -> Vec<IpAddr> {
    let IpAddr::V4(first) = range.first else {
        return Vec::new();
    };
    (1..=CANDIDATES)
        .map(|offset| IpAddr::V4(Ipv4Addr::from(u32::from(first) + offset)))
        .collect()
}

/// The ClusterIP of a Service.
pub fn cluster_ip(service: &Service) -> Option<IpAddr> {
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

/// The Service on the host, in front of the pods of CoreDNS.
pub fn host_dns_service(
    cluster: &TenantCluster,
    tenant: &TenantId,
    address: IpAddr,
    port: u16,
    selector: Option<BTreeMap<String, String>>,
) -> Service {
    Service {
        metadata: host_objects::metadata(cluster, tenant, &tenant.control_plane_namespace(), SERVICE),
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
pub fn dns_role() -> ClusterRole {
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

/// The Service as the tenant sees it. It only shows the address: pods reach the Service on the host.
pub fn tenant_dns_service(address: IpAddr) -> Service {
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

/// The Event in the tenant about entries of the customization that have no effect. Its name follows from the message, so that
/// there is one for each message.
pub fn error_event(errors: &[String]) -> Event {
    let message = event_note(&errors.join("; "));
    let now = jiff::Timestamp::now();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{CUSTOMIZATION}.{}", names::hash(&[&message]))),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("ConfigMap".into()),
            namespace: Some(NAMESPACE.into()),
            name: Some(CUSTOMIZATION.into()),
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
    use crate::{control_plane::COREDNS, runtime::cluster::pod_selector};

    #[test]
    fn the_address_follows_that_of_the_api_server() {
        let range = ServiceRange {
            cidr: "10.96.0.48/29".into(),
            first: [10, 96, 0, 49].into(),
            secondary: None,
        };
        let candidates: Vec<String> = candidate_addresses(&range).iter().map(ToString::to_string).collect();
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
        insta::assert_yaml_snapshot!(host_dns_service(&cluster, &tenant, address, 5353, Some(selector)));
        insta::assert_yaml_snapshot!(tenant_dns_service(address));
        insta::assert_yaml_snapshot!(dns_role());
    }

    #[test]
    fn the_name_of_an_event_follows_from_its_message() {
        let errors = ["hosts, line 1: \"x\" is not an address".to_owned()];
        assert_eq!(error_event(&errors).metadata.name, error_event(&errors).metadata.name);
        assert_ne!(
            error_event(&errors).metadata.name,
            error_event(&["other".to_owned()]).metadata.name
        );
        let long = error_event(&["é".repeat(1024)]);
        assert_eq!(long.message, Some("é".repeat(512)));
    }
}
