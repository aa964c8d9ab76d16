//! Device classes and claims as the host's API server sends them: the parts that matter for nodes. All else is skipped while it is parsed. Tenants fill
//! claims: as a tree of JSON one of 240 KiB takes 10 MiB.

use serde::{Deserialize, de::IgnoredAny};

/// The `spec` of a `DeviceClass`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClassSpec {
    pub(super) selectors: Option<Vec<DeviceSelector>>,
    pub(super) extended_resource_name: Option<String>,
}

/// The `spec` of a `ResourceClaimTemplate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TemplateSpec {
    /// That of the claims that it makes.
    pub spec: Option<ClaimSpec>,
}

/// The `spec` of a `ResourceClaim`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    devices: Option<RequestedByClaim>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RequestedByClaim {
    requests: Option<Vec<Request>>,
}

/// A request of a claim, in either form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) exactly: Option<Alternative>,
    pub(super) first_available: Option<Vec<Alternative>>,
    pub(super) name: String,
}

/// Devices of a class: what is requested, or one of the alternatives.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Alternative {
    /// Of an alternative.
    pub(super) name: String,
    pub(super) device_class_name: Option<String>,
    pub(super) selectors: Option<Vec<DeviceSelector>>,
    pub(super) allocation_mode: Option<String>,
    pub(super) count: Option<i64>,
    pub(super) admin_access: Option<bool>,
}

/// What a device must be like.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeviceSelector {
    cel: Option<CelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CelSelector {
    expression: Option<String>,
}

/// The `status` of a `ResourceClaim`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    pub(super) allocation: Option<AllocationStatus>,
    /// What uses the claim: the number alone matters.
    #[serde(rename = "reservedFor")]
    reserved_for: Option<Vec<IgnoredAny>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AllocationStatus {
    devices: Option<AllocatedDevices>,
    node_selector: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AllocatedDevices {
    results: Option<Vec<AllocatedDevice>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AllocatedDevice {
    pub(super) request: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) pool: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSelector {
    node_selector_terms: Option<Vec<NodeSelectorTerm>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSelectorTerm {
    match_fields: Option<Vec<NodeField>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeField {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

impl ClaimSpec {
    /// The requests of the claim.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        let requests = self.devices.as_ref().and_then(|devices| devices.requests.as_ref());
        requests.into_iter().flatten()
    }

    /// Whether the claim requests nothing.
    pub fn is_empty(&self) -> bool {
        self.requests().next().is_none()
    }
}

impl ClaimStatus {
    /// Whether anything uses the claim, or is about to.
    pub fn is_reserved(&self) -> bool {
        self.reserved_for.as_ref().is_some_and(|users| !users.is_empty())
    }

    /// How many devices of a driver are allocated to the claim; none as long as it has no allocation.
    pub fn count_allocated(&self, driver: &str) -> Option<usize> {
        let results = self.allocation.as_ref()?.results();
        let of_driver = results.filter(|result| result.driver.as_deref() == Some(driver));
        Some(of_driver.count())
    }
}

impl AllocationStatus {
    /// The allocated devices.
    pub(super) fn results(&self) -> impl Iterator<Item = &AllocatedDevice> {
        let results = self.devices.as_ref().and_then(|devices| devices.results.as_ref());
        results.into_iter().flatten()
    }

    /// The node that the selector of the allocation names.
    pub(super) fn node(&self) -> Option<&String> {
        let terms = self.node_selector.as_ref()?.node_selector_terms.as_ref()?;
        let [term] = terms.as_slice() else {
            return None;
        };
        let mut fields = term.match_fields.iter().flatten();
        let name = fields.find(|field| field.key == "metadata.name" && field.operator == "In")?;
        name.values.as_ref()?.first()
    }
}

/// The expressions of selectors.
pub(super) fn expressions(selectors: Option<&[DeviceSelector]>) -> impl Iterator<Item = &str> {
    let cel = selectors
        .into_iter()
        .flatten()
        .filter_map(|selector| selector.cel.as_ref());
    cel.filter_map(|cel| cel.expression.as_deref())
}
