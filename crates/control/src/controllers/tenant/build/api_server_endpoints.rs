//! The endpoints of `default/kubernetes` in the tenant, for what discovers API servers by them.
//!
//! kube-apiserver would write its own address, which no pod can reach. The endpoint is the Service's ClusterIP instead: it leads
//! to all API servers of the tenant, also from pods.

use berth_api::labels;
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointPort as LegacyPort, EndpointSubset, Endpoints},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use std::net::IpAddr;

/// Name of the Service and of its endpoints.
const NAME: &str = "kubernetes";
/// Name of the port, as kube-apiserver calls it.
const PORT_NAME: &str = "https";
/// Port of the Service.
const PORT: i32 = 443;

fn meta(label: (&str, &str)) -> ObjectMeta {
    let own = (labels::MANAGED_BY, labels::MANAGED_BY_CONTROL);
    ObjectMeta {
        name: Some(NAME.into()),
        namespace: Some("default".into()),
        labels: Some([label, own].map(|(key, value)| (key.into(), value.into())).into()),
        ..ObjectMeta::default()
    }
}

/// The slice. `address` is the ClusterIP of the Service.
pub fn slice(address: IpAddr) -> EndpointSlice {
    EndpointSlice {
        metadata: meta(("kubernetes.io/service-name", NAME)),
        address_type: if address.is_ipv6() { "IPv6" } else { "IPv4" }.into(),
        endpoints: Some(vec![Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }]),
        ports: Some(vec![EndpointPort {
            name: Some(PORT_NAME.into()),
            port: Some(PORT),
            protocol: Some("TCP".into()),
            ..EndpointPort::default()
        }]),
    }
}

/// The same as `Endpoints`, the older kind. Its label keeps the controller manager from making a second slice of it.
pub fn endpoints(address: IpAddr) -> Endpoints {
    Endpoints {
        metadata: meta(("endpointslice.kubernetes.io/skip-mirror", "true")),
        subsets: Some(vec![EndpointSubset {
            addresses: Some(vec![EndpointAddress {
                ip: address.to_string(),
                ..EndpointAddress::default()
            }]),
            ports: Some(vec![LegacyPort {
                name: Some(PORT_NAME.into()),
                port: PORT,
                protocol: Some("TCP".into()),
                ..LegacyPort::default()
            }]),
            ..EndpointSubset::default()
        }]),
    }
}
