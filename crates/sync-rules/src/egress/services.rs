//! The endpoints of a tenant's Service: the addresses that its pods have on the host, whatever the tenant's own
//! EndpointSlices say. The address of a Service itself is never connected to.

use super::policy::ConnectError;
use crate::{
    kinds::{endpoint_slice, service::working_part},
    model::{
        Cache, KindId,
        endpoint_pods::{Selection, TargetPort},
        json,
        resource::Name,
    },
    translation::endpoint_address::EndpointAddresses,
};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// The Service with this address, if it is the tenant's.
pub fn by_address(cache: &Cache, address: IpAddr) -> Option<Name> {
    cache.egress_index().services.objects(&address).next().cloned()
}

/// The endpoints behind a port of a Service.
///
/// # Errors
/// Why there are none.
pub fn endpoints(cache: &Cache, name: &Name, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let Some(service) = cache.stores.tenant(KindId::Service).get(name) else {
        return Err(ConnectError::unknown(format!("there is no Service {name}")));
    };
    let service = working_part(&service);
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
    let selection = Selection {
        namespace: &name.namespace,
        selector: &json::strings(service, &["spec", "selector"]),
        even_unready: service["spec"]["publishNotReadyAddresses"] == Value::Bool(true),
        family: json::items(service, &["spec", "ipFamilies"])
            .first()
            .and_then(Value::as_str),
        port: target_port(port),
    };
    cache.endpoint_pods().select(&selection)
}

/// The port of pods that a port of a Service leads to; 0 if it is no port.
fn target_port(port: &Value) -> TargetPort<'_> {
    let target = match &port["targetPort"] {
        Value::Null => &port["port"],
        target => target,
    };
    let number = || target.as_u64().and_then(|number| u16::try_from(number).ok());
    target
        .as_str()
        .map_or_else(|| TargetPort::Number(number().unwrap_or_default()), TargetPort::Name)
}

/// Endpoints that the tenant wrote itself, if they may be synced to the host.
fn of_slices(cache: &Cache, name: &Name, service_port: &Value) -> Vec<SocketAddr> {
    let port_name = json::text(service_port, &["name"]).unwrap_or_default();
    let allowed = EndpointAddresses::new(cache);
    let names: Vec<Name> = cache.egress_index().slices.objects(name).cloned().collect();
    let slices = names.iter().filter_map(|slice| {
        let stored = cache.stores.tenant(KindId::EndpointSlice).get(slice)?;
        Some((slice, stored.object()))
    });
    slices
        // It may be another Service's since it was found.
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

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
