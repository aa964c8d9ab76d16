//! The devices that pods request, under the names that limits have for them: at most what their claims may get, as a `ResourceQuota` of the host
//! counts them, and not what was allocated.

use super::{ClaimState, DeviceClaim, Devices, RequestAlternatives};
use crate::demand::Claim;
use berth_api::{DEVICES_BY_CLASS, device_class_resource};
use std::collections::{BTreeMap, BTreeSet};

/// The most devices that one claim gets (`AllocationResultsMaxSize` in Kubernetes): a request of all devices counts as so many.
const MOST_OF_CLAIM: u64 = 32;

/// Numbers of devices by class.
pub type RequestedDevices = BTreeMap<String, u64>;

impl DeviceClaim {
    /// The devices that it may get, at most: of alternatives the largest number of each class.
    pub fn count_requested(&self) -> RequestedDevices {
        let mut requested = RequestedDevices::new();
        for RequestAlternatives(alternatives) in &self.requests {
            let mut largest: BTreeMap<&str, u64> = BTreeMap::new();
            for alternative in alternatives {
                let count = largest.entry(&alternative.kind.class).or_default();
                *count = (*count).max(alternative.count.unwrap_or(MOST_OF_CLAIM));
            }
            for (class, count) in largest {
                add(&mut requested, class.to_owned(), count);
            }
        }
        requested
    }
}

impl Devices {
    /// The devices that a claim of a pod may get, at most; none if neither the claim nor its template exists yet.
    pub fn count_requested(&self, claim: &Claim) -> Option<RequestedDevices> {
        match self.known().find(claim) {
            ClaimState::Unallocated(claim) | ClaimState::Allocated(claim) => Some(claim.count_requested()),
            ClaimState::Missing => None,
        }
    }

    /// Adds devices to what the containers of a pod request: `claimed` by claims, and those that they request as extended resources. Each
    /// device counts under all names of its class: that of claims, the implicit extended resource, and the extended resource of the class.
    pub fn add_requested(&self, amounts: &mut BTreeMap<String, u64>, claimed: &RequestedDevices) {
        let own = amounts.clone();
        let of_containers = |resource: &str| own.get(resource).copied().unwrap_or_default();
        let known = self.known();
        let classes: BTreeSet<&String> = known.classes.keys().chain(claimed.keys()).collect();
        for class in classes {
            let extended = known
                .classes
                .get(class)
                .and_then(|class| class.extended_resource.as_deref());
            let implicit = format!("{DEVICES_BY_CLASS}{class}");
            let by_claims = claimed.get(class).copied().unwrap_or_default();
            let (by_implicit, by_extended) = (of_containers(&implicit), extended.map_or(0, of_containers));
            let all = by_claims.saturating_add(by_implicit).saturating_add(by_extended);
            add(amounts, device_class_resource(class), all);
            add(amounts, implicit, all - by_implicit);
            if let Some(extended) = extended {
                add(amounts, extended.to_owned(), all - by_extended);
            }
        }
    }
}

fn add(sum: &mut BTreeMap<String, u64>, name: String, count: u64) {
    if count > 0 {
        let of_name = sum.entry(name).or_default();
        *of_name = of_name.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::claims::tests::{read_claim, read_class};
    use serde_json::{Value, json};

    fn devices(requests: &Value) -> Devices {
        let devices = Devices::default();
        for (class, extended) in [("gpu", Some("example.com/gpu")), ("mig", None)] {
            let spec = json!({"extendedResourceName": extended});
            devices.put_class(class, Some(read_class(&spec)));
        }
        let claim = read_claim(&json!({"devices": {"requests": requests}}), &Value::Null);
        devices.put_claim("berth-w/claim", Some(claim.clone()));
        devices.put_template("berth-w/template", Some(claim));
        devices
    }

    fn claim(name: &str, is_template: bool) -> Claim {
        Claim {
            namespace: "berth-w".into(),
            name: name.into(),
            is_template,
            generated: None,
        }
    }

    fn amounts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn a_claim_counts_with_the_most_that_it_may_get() {
        let devices = devices(&json!([
            {"name": "two", "exactly": {"deviceClassName": "gpu", "count": 2}},
            {"name": "all", "exactly": {"deviceClassName": "mig", "allocationMode": "All"}},
            {"name": "either", "firstAvailable": [
                {"name": "a", "deviceClassName": "gpu", "count": 1}, {"name": "b", "deviceClassName": "gpu", "count": 4},
                {"name": "c", "deviceClassName": "mig", "count": 3},
            ]},
        ]));
        for claim in [claim("claim", false), claim("template", true)] {
            assert_eq!(
                devices.count_requested(&claim),
                Some(amounts(&[("gpu", 6), ("mig", 35)]))
            );
        }
        assert_eq!(devices.count_requested(&claim("later", false)), None);
    }

    #[test]
    fn devices_count_under_every_name_of_their_class() {
        let devices = devices(&json!([]));
        let names = [
            "deviceclass.resource.kubernetes.io/gpu",
            "example.com/gpu",
            "gpu.deviceclass.resource.k8s.io/devices",
        ];
        for (own, claimed) in [
            (amounts(&[]), amounts(&[("gpu", 5)])),
            (amounts(&[(names[0], 5)]), amounts(&[])),
            (amounts(&[(names[1], 5)]), amounts(&[])),
            (amounts(&[(names[0], 1), (names[1], 2)]), amounts(&[("gpu", 2)])),
        ] {
            let mut all = own.clone();
            devices.add_requested(&mut all, &claimed);
            assert_eq!(
                all,
                names.map(|name| (name.to_owned(), 5)).into(),
                "{own:?} {claimed:?}"
            );
        }
        let mut none = amounts(&[("pods", 1)]);
        devices.add_requested(&mut none, &amounts(&[]));
        assert_eq!(none, amounts(&[("pods", 1)]));
    }
}
