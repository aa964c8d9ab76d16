//! Variables of Services: a kubelet gives those of all Services of a namespace to each container. They are many times as large as the Services
//! themselves, so a pod gets those that have room.

use crate::{
    model::{DeniedField, json, service_variables::ServiceVariables},
    translation::sizes::MAX_SERVICE_VARIABLE_BYTES,
};
use serde_json::Value;

/// Of Services in the order of their names, those whose variables have room in all containers together. The same Services always lead to the same
/// choice, and all containers get the same.
pub(super) fn select<'a>(
    services: impl Iterator<Item = (&'a str, Vec<(String, String)>)>,
    containers: usize,
) -> ServiceVariables {
    let (mut selected, mut left_out) = (Vec::new(), Vec::new());
    let mut left = MAX_SERVICE_VARIABLE_BYTES;
    for (service, variables) in services {
        let bytes: usize = variables.iter().map(bytes_of).sum();
        match left.checked_sub(bytes.saturating_mul(containers)) {
            Some(rest) => {
                left = rest;
                selected.extend(variables);
            }
            None => left_out.push(service),
        }
    }
    ServiceVariables {
        variables: selected,
        left_out: describe(&left_out),
    }
}

/// Bytes of a variable in a list of a JSON text. No character of it is escaped there.
pub(super) fn bytes_of((name, value): &(String, String)) -> usize {
    r#"{"name":"","value":""},"#.len() + name.len() + value.len()
}

/// That the variables of these Services are left out, if there are such.
fn describe(left_out: &[&str]) -> Option<DeniedField> {
    const NAMED: usize = 3;
    let (named, more) = left_out.split_at(left_out.len().min(NAMED));
    if named.is_empty() {
        return None;
    }
    let rest = match more.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let names = named.join(", ");
    let why = format!(
        "the variables of these Services are left out, because those of all Services of the namespace would have more than \
         {MAX_SERVICE_VARIABLE_BYTES} bytes in the containers of the pod: {names}{rest}. Find Services by DNS, and set the field to false"
    );
    Some(DeniedField::new("spec.enableServiceLinks", why))
}

/// The variables that a kubelet makes of a Service.
pub(super) fn variables(name: &str, service: &Value) -> Vec<(String, String)> {
    let ip = json::text(service, &["spec", "clusterIP"]).unwrap_or_default();
    let ports = json::items(service, &["spec", "ports"]);
    if ip.is_empty() || ip == "None" || ports.is_empty() {
        return Vec::new();
    }
    let prefix = name.to_uppercase().replace('-', "_");
    let number = |port: &Value| port.get("port").map(ToString::to_string).unwrap_or_default();
    let url_host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let mut variables = vec![
        (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), number(&ports[0])),
    ];
    for port in ports {
        if let Some(name) = json::filled(port, &["name"]) {
            let name = name.to_uppercase().replace('-', "_");
            variables.push((format!("{prefix}_SERVICE_PORT_{name}"), number(port)));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = json::text(port, &["protocol"]).unwrap_or("TCP");
        let number = number(port);
        let url = format!("{}://{url_host}:{number}", protocol.to_lowercase());
        if index == 0 {
            variables.push((format!("{prefix}_PORT"), url.clone()));
        }
        let one = format!("{prefix}_PORT_{number}_{protocol}");
        variables.push((one.clone(), url));
        variables.push((format!("{one}_PROTO"), protocol.to_lowercase()));
        variables.push((format!("{one}_PORT"), number));
        variables.push((format!("{one}_ADDR"), ip.to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn service_variables_are_the_kubelets() {
        let service = json!({"spec": {"clusterIP": "10.0.0.7", "ports": [
            {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns-udp", "port": 53, "protocol": "UDP"}]}});
        let made = variables("my-web", &service);
        let value = |name: &str| {
            made.iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("MY_WEB_SERVICE_HOST"), Some("10.0.0.7"));
        assert_eq!(value("MY_WEB_SERVICE_PORT"), Some("80"));
        assert_eq!(value("MY_WEB_SERVICE_PORT_DNS_UDP"), Some("53"));
        assert_eq!(value("MY_WEB_PORT"), Some("tcp://10.0.0.7:80"));
        assert_eq!(value("MY_WEB_PORT_53_UDP_ADDR"), Some("10.0.0.7"));
        assert!(variables("h", &json!({"spec": {"clusterIP": "None", "ports": [{"port": 1}]}})).is_empty());
    }

    /// A Service with this number of ports.
    fn service(ports: u16) -> Value {
        let ports: Vec<Value> = (1..=ports)
            .map(|port| json!({"name": format!("port-{port}"), "port": port, "protocol": "TCP"}))
            .collect();
        json!({"spec": {"clusterIP": "10.0.0.7", "ports": ports}})
    }

    /// Bytes of the variables, and the message about Services that are left out.
    fn selected(services: &[(&'static str, u16)], containers: usize) -> (usize, String) {
        let of = |(name, ports): &(&'static str, u16)| (*name, variables(name, &service(*ports)));
        let selected = select(services.iter().map(of), containers);
        let bytes: usize = selected.variables.iter().map(bytes_of).sum();
        (
            bytes * containers,
            selected.left_out.map(|left_out| left_out.why).unwrap_or_default(),
        )
    }

    #[test]
    fn services_without_room_are_left_out_by_their_names() {
        let services = [("a", 1), ("b", 100), ("c", 250), ("d", 250), ("e", 1)];
        let (bytes, message) = selected(&services, 1);
        assert!(bytes <= MAX_SERVICE_VARIABLE_BYTES);
        assert!(message.contains("of the pod: c, d. Find"), "{message}");
        let (bytes, message) = selected(&services, 10);
        assert!(
            message.contains("of the pod: b, c, d. Find"),
            "each container has them: {message}"
        );
        assert!(bytes <= MAX_SERVICE_VARIABLE_BYTES);
        assert_eq!(selected(&services, 0).1, "");
    }

    #[test]
    fn a_hundred_small_services_have_room() {
        let names: Vec<String> = (0..100).map(|number| format!("service-{number:02}")).collect();
        let services = names.iter().map(|name| (name.as_str(), variables(name, &service(1))));
        let selected = select(services, 1);
        assert!(selected.left_out.is_none());
    }

    #[test]
    fn some_of_many_services_are_named() {
        let services = [("a", 250), ("b", 250), ("c", 250), ("d", 250), ("e", 250)];
        let (_, message) = selected(&services, 1);
        assert!(message.contains("b, c, d and 1 more."), "{message}");
    }

    #[test]
    fn bytes_are_those_of_the_json_text() {
        let variable = ("WEB_PORT".to_owned(), "tcp://10.0.0.7:80".to_owned());
        let text = json!([{"name": variable.0, "value": variable.1}]).to_string();
        assert_eq!(bytes_of(&variable), text.len() - 1);
    }
}
