//! Device classes and claims, as far as they matter for nodes.

use super::selector::Selector;
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// Maximum length of a request's selectors; longer ones are ignored.
const MAX_SELECTOR_LENGTH: usize = 512;

/// A `DeviceClass`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceClass {
    /// All must select a device.
    pub selectors: Vec<Selector>,
    /// The extended resource by which pods can request its devices.
    pub extended_resource: Option<String>,
}

/// A `ResourceClaim`, or one that a template creates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceClaim {
    pub requests: Vec<RequestAlternatives>,
    pub allocation: Option<Allocation>,
}

/// The alternatives of one request of a claim: the first available one is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAlternatives(pub Vec<DeviceRequest>);

/// Devices that a claim requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Name of the request, followed by that of the alternative.
    pub name: String,
    pub kind: DeviceKind,
    /// How many. None: all that the node has.
    pub count: Option<u64>,
}

/// Devices of a class, or some of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind {
    pub class: String,
    /// Expressions of the claim that restrict the selection.
    pub selectors: Arc<[String]>,
}

/// Devices that were allocated to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The node of the devices. None: several nodes reach them.
    pub node: Option<String>,
    /// Names of the pools that the devices are of.
    pub pools: BTreeSet<String>,
    /// Names of the requests that were satisfied.
    pub requests: Vec<String>,
}

impl Allocation {
    /// Whether a device of this node is allocated. Its pools have the name of the node, or this name, a slash and another one.
    pub fn is_on_node(&self, node: &str) -> bool {
        let is_of_node = |pool: &String| {
            let rest = pool.strip_prefix(node);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.node.as_deref() == Some(node) || self.pools.iter().any(is_of_node)
    }
}

impl DeviceKind {
    /// All devices of a class.
    pub fn whole(class: &str) -> Self {
        Self {
            class: class.to_owned(),
            selectors: Arc::default(),
        }
    }
}

impl DeviceClass {
    /// Reads the `spec` of a class.
    pub fn read(spec: &Value) -> Self {
        Self {
            selectors: expressions(spec).map(Selector::new).collect(),
            extended_resource: spec["extendedResourceName"].as_str().map(ToOwned::to_owned),
        }
    }
}

impl DeviceClaim {
    /// Reads the `spec` and `status` of a claim. A template has the `spec` of its claims within its own.
    pub fn read(spec: &Value, status: &Value) -> Self {
        let requests = array(&spec["devices"]["requests"])
            .filter_map(read_alternatives)
            .collect();
        let allocation = status.get("allocation").filter(|allocation| allocation.is_object());
        Self {
            requests,
            allocation: allocation.map(|allocation| Allocation {
                node: read_allocated_node(&allocation["nodeSelector"]),
                pools: read_results(allocation, "pool").collect(),
                requests: read_results(allocation, "request").collect(),
            }),
        }
    }
}

/// A text of each allocated device.
fn read_results<'a>(allocation: &'a Value, field: &'a str) -> impl Iterator<Item = String> + 'a {
    array(&allocation["devices"]["results"]).filter_map(move |result| Some(result[field].as_str()?.to_owned()))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn expressions(of: &Value) -> impl Iterator<Item = &str> {
    array(&of["selectors"]).filter_map(|selector| selector["cel"]["expression"].as_str())
}

fn read_alternatives(request: &Value) -> Option<RequestAlternatives> {
    let name = request["name"].as_str()?;
    let one = request
        .get("exactly")
        .and_then(|exactly| read_device_request(name.to_owned(), exactly));
    let alternatives = array(&request["firstAvailable"]);
    let several = alternatives.filter_map(|alternative| {
        let sub = alternative["name"].as_str().unwrap_or_default();
        read_device_request(format!("{name}/{sub}"), alternative)
    });
    let asks: Vec<DeviceRequest> = one.into_iter().chain(several).collect();
    (!asks.is_empty()).then_some(RequestAlternatives(asks))
}

fn read_device_request(name: String, request: &Value) -> Option<DeviceRequest> {
    // Administrative access does not take a device from others.
    if request["adminAccess"] == true {
        return None;
    }
    let is_all = request["allocationMode"] == "All";
    Some(DeviceRequest {
        name,
        kind: DeviceKind {
            class: request["deviceClassName"].as_str()?.to_owned(),
            selectors: read_selectors(request),
        },
        count: (!is_all).then(|| request["count"].as_u64().unwrap_or(1)),
    })
}

/// The selectors of a request; none if they are long, so that the class alone counts: tenants write them, and they are kept
/// for every node.
fn read_selectors(request: &Value) -> Arc<[String]> {
    let length: usize = expressions(request).map(str::len).sum();
    if length > MAX_SELECTOR_LENGTH {
        return Arc::default();
    }
    expressions(request).map(ToOwned::to_owned).collect()
}

/// The node that a selector of an allocation names.
fn read_allocated_node(selector: &Value) -> Option<String> {
    let mut terms = array(&selector["nodeSelectorTerms"]);
    let (term, None) = (terms.next()?, terms.next()) else {
        return None;
    };
    let name =
        array(&term["matchFields"]).find(|field| field["key"] == "metadata.name" && field["operator"] == "In")?;
    name["values"].as_array()?.first()?.as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_of_claims_are_read() {
        let claim = DeviceClaim::read(
            &json!({"devices": {"requests": [
                {"name": "one", "exactly": {"deviceClassName": "gpu"}},
                {"name": "some", "exactly": {"deviceClassName": "gpu", "count": 4, "allocationMode": "ExactCount",
                    "selectors": [{"cel": {"expression": "big"}}]}},
                {"name": "all", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
                {"name": "watch", "exactly": {"deviceClassName": "gpu", "adminAccess": true}},
                {"name": "either", "firstAvailable": [
                    {"name": "a", "deviceClassName": "gpu", "count": 2}, {"name": "b", "deviceClassName": "mig"},
                ]},
            ]}}),
            &Value::Null,
        );
        let read: Vec<Vec<(&str, &str, Option<u64>)>> = claim
            .requests
            .iter()
            .map(|request| {
                let asks = request.0.iter();
                asks.map(|ask| (ask.name.as_str(), ask.kind.class.as_str(), ask.count))
                    .collect()
            })
            .collect();
        let expected: [&[_]; 4] = [
            &[("one", "gpu", Some(1))],
            &[("some", "gpu", Some(4))],
            &[("all", "nic", None)],
            &[("either/a", "gpu", Some(2)), ("either/b", "mig", Some(1))],
        ];
        assert_eq!(read, expected);
        assert_eq!(claim.requests[1].0[0].kind.selectors[..], ["big"]);
        assert_eq!(claim.allocation, None);
    }

    #[test]
    fn allocations_of_claims_are_read() {
        let named = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]});
        let allocation = |selector: &Value| {
            let devices = json!({"results": [{"request": "either/b", "driver": "d", "pool": "p", "device": "x"}]});
            let status = json!({"allocation": {"devices": devices, "nodeSelector": selector}});
            DeviceClaim::read(&Value::Null, &status).allocation.unwrap()
        };
        assert_eq!(allocation(&named).node.as_deref(), Some("n1"));
        assert_eq!(allocation(&Value::Null).node, None);
        assert_eq!(allocation(&named).requests, ["either/b"]);
    }

    #[test]
    fn an_allocation_is_on_the_node_of_its_selector_and_of_its_pools() {
        let named = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]});
        let is_on_node = |pool: &str, selector: &Value| {
            let devices = json!({"results": [{"request": "r", "driver": "d", "pool": pool, "device": "x"}]});
            let status = json!({"allocation": {"devices": devices, "nodeSelector": selector}});
            DeviceClaim::read(&Value::Null, &status)
                .allocation
                .unwrap()
                .is_on_node("n1")
        };
        assert!(is_on_node("any", &named));
        assert!(is_on_node("n1", &Value::Null) && is_on_node("n1/imex", &Value::Null));
        assert!(!is_on_node("n10", &Value::Null) && !is_on_node("network", &Value::Null));
    }
}
