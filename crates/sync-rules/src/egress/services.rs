//! The endpoints of a tenant's Service: the addresses that its pods have on the host, whatever the tenant's own
//! EndpointSlices say. The address of a Service itself is never connected to.

use super::policy::ConnectError;
use crate::{
    kinds::endpoint_slice,
    model::{
        Cache, KindId, json,
        pod_addresses::{self, is_finished, is_ready},
        resource::Name,
        store::{Stored, is_origin},
    },
    translation::endpoint_address::EndpointAddresses,
};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// The Service with this address, if it is the tenant's.
pub fn by_address(cache: &Cache, address: IpAddr) -> Option<Name> {
    let text = address.to_string();
    let is_its = |service: &Stored| {
        // Most Services have another address, and a text search is cheaper than parsing.
        service.mentions(&text) && {
            let service = service.object();
            let addresses = json::items(&service, &["spec", "clusterIPs"]).iter();
            let mut addresses = addresses
                .filter_map(Value::as_str)
                .chain(json::text(&service, &["spec", "clusterIP"]));
            addresses.any(|its| its.parse() == Ok(address))
        }
    };
    let services = cache.stores.tenant(KindId::Service).all();
    services
        .into_iter()
        .find(|(_, service)| is_its(service))
        .map(|(name, _)| name)
}

/// The endpoints behind a port of a Service.
///
/// # Errors
/// Why there are none.
pub fn endpoints(cache: &Cache, name: &Name, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let service = cache.stores.tenant(KindId::Service).get(name);
    let Some(service) = service.map(|service| service.object()) else {
        return Err(ConnectError::unknown(format!("there is no Service {name}")));
    };
    let ports = json::items(&service, &["spec", "ports"]);
    let is_it = |candidate: &&Value| {
        candidate["port"].as_u64() == Some(port.into())
            && matches!(json::text(candidate, &["protocol"]), None | Some("TCP"))
    };
    let Some(service_port) = ports.iter().find(is_it) else {
        return Err(ConnectError::unknown(format!("Service {name} has no TCP port {port}")));
    };
    let found = if json::strings(&service, &["spec", "selector"]).is_empty() {
        of_slices(cache, name, service_port)
    } else {
        of_pods(cache, name, &service, service_port)
    };
    if found.is_empty() {
        return Err(ConnectError::unavailable(format!(
            "Service {name} has no endpoint that is ready and one of your pods"
        )));
    }
    Ok(found)
}

fn of_pods(cache: &Cache, name: &Name, service: &Value, port: &Value) -> Vec<SocketAddr> {
    let selector = json::strings(service, &["spec", "selector"]);
    let even_unready = service["spec"]["publishNotReadyAddresses"] == Value::Bool(true);
    let families = json::items(service, &["spec", "ipFamilies"]);
    let is_preferred = |address: &IpAddr| {
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        families
            .first()
            .and_then(Value::as_str)
            .is_none_or(|first| first == family)
    };
    let pods = cache.stores.tenant(KindId::Pod).all().into_iter();
    pods.filter(|(pod, stored)| {
        pod.namespace == name.namespace && selector.values().all(|value| stored.mentions(value))
    })
    .filter_map(|(pod, stored)| {
        let object = stored.object();
        let labels = json::strings(&object, &["metadata", "labels"]);
        let host = cache.stores.host(KindId::Pod).get(&pod)?;
        let state = host.object();
        let is_good = selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && stored.deletion.is_none()
            && is_origin(&stored, &host)
            && !is_finished(&state["status"])
            // The host may remove a pod that the tenant keeps.
            && (even_unready || (is_ready(&state) && host.deletion.is_none()));
        let port = is_good.then(|| target_port(&object, port)).flatten()?;
        let addresses = pod_addresses::of(&state);
        let address = addresses.iter().find(|address| is_preferred(address));
        address
            .or(addresses.first())
            .map(|address| SocketAddr::new(*address, port))
    })
    .collect()
}

/// The port of a pod that a port of a Service leads to.
fn target_port(pod: &Value, port: &Value) -> Option<u16> {
    let target = match &port["targetPort"] {
        Value::Null => &port["port"],
        target => target,
    };
    let number = match target.as_str() {
        None => target.as_u64(),
        Some(name) => named_port(pod, name),
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)
}

fn named_port(pod: &Value, name: &str) -> Option<u64> {
    let containers = ["containers", "initContainers"].into_iter();
    let containers = containers.flat_map(|field| json::items(pod, &["spec", field]));
    let mut ports = containers.flat_map(|container| json::items(container, &["ports"]));
    ports.find(|port| port["name"] == name)?["containerPort"].as_u64()
}

/// Endpoints that the tenant wrote itself, if they may be synced to the host.
fn of_slices(cache: &Cache, name: &Name, service_port: &Value) -> Vec<SocketAddr> {
    let port_name = json::text(service_port, &["name"]).unwrap_or_default();
    let allowed = EndpointAddresses::new(cache);
    let slices = cache.stores.tenant(KindId::EndpointSlice).all().into_iter();
    let slices = slices.filter(|(slice, stored)| slice.namespace == name.namespace && stored.mentions(&name.name));
    slices
        .map(|(slice, stored)| (slice, stored.object()))
        .filter(|(slice, object)| endpoint_slice::service(slice, object).as_ref() == Some(name))
        .flat_map(|(_, slice)| {
            let ports = json::items(&slice, &["ports"]).iter();
            let mut ports = ports.filter(|port| json::text(port, &["name"]).unwrap_or_default() == port_name);
            let port = ports.find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
            let endpoints = json::items(&slice, &["endpoints"]).iter();
            let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != Value::Bool(false));
            let addresses: Vec<SocketAddr> = ready
                .flat_map(|endpoint| json::items(endpoint, &["addresses"]))
                .filter(|address| endpoint_slice::denied(&allowed, address).is_none())
                .filter_map(|address| Some(SocketAddr::new(address.as_str()?.parse().ok()?, port?)))
                .collect();
            addresses
        })
        .collect()
}
