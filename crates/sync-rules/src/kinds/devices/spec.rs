//! The spec of a claim: the devices that it requests.
//!
//! | field of `devices` | rule |
//! |---|---|
//! | `requests[].exactly`, `requests[].firstAvailable[]` | copied; the device class must be one that the tenant's class lists |
//! | … `adminAccess` | denied: it grants access to devices in use by others |
//! | … `tolerations` | copied; those of the platform's taints, and those of every taint, are denied |
//! | `constraints` | copied |
//! | `config[].opaque` | copied for drivers that the tenant's class lists, denied for others |
//!
//! How many alternatives and expressions there may be is in [`sizes`](crate::translation::sizes).

use super::class;
use crate::{
    model::{Cache, json},
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use berth_api::{
    SchedulingMode, labels,
    sync_policy::{ANY, allows},
};
use serde_json::{Map, Value};

const SPEC: Fields = &[("devices", Rule::Rewrite)];
const DEVICES: Fields = &[
    ("config", Rule::Rewrite),
    ("constraints", Rule::Rewrite),
    ("requests", Rule::Rewrite),
];
const REQUEST: Fields = &[
    ("exactly", Rule::Rewrite),
    ("firstAvailable", Rule::Rewrite),
    ("name", Rule::Copy),
];
/// The rules of `ExactDeviceRequest` and `DeviceSubRequest`.
const ASKED: Fields = &[
    (
        "adminAccess",
        Rule::Deny("it grants access to devices in use by others, and is reserved for the platform"),
    ),
    ("allocationMode", Rule::Copy),
    ("capacity", Rule::Rewrite),
    ("count", Rule::Copy),
    ("derivedAttributes", Rule::Rewrite),
    ("deviceClassName", Rule::Copy),
    ("name", Rule::Copy),
    ("selectors", Rule::Rewrite),
    ("tolerations", Rule::Rewrite),
];
const CAPACITY: Fields = &[("requests", Rule::Copy)];
const DERIVED: Fields = &[("expression", Rule::Copy), ("name", Rule::Copy)];
const SELECTOR: Fields = &[("cel", Rule::Rewrite)];
const CEL: Fields = &[("expression", Rule::Copy)];
const TOLERATION: Fields = &[
    ("effect", Rule::Copy),
    ("key", Rule::Copy),
    ("operator", Rule::Copy),
    ("tolerationSeconds", Rule::Copy),
    ("value", Rule::Copy),
];
const CONSTRAINT: Fields = &[
    ("distinctAttribute", Rule::Copy),
    ("matchAttribute", Rule::Copy),
    ("requests", Rule::Copy),
];
const CONFIG: Fields = &[("opaque", Rule::Rewrite), ("requests", Rule::Copy)];
const OPAQUE: Fields = &[("driver", Rule::Copy), ("parameters", Rule::Copy)];

/// The host's `ResourceClaimSpec` for a tenant's. `path` names it in denied fields.
pub fn translate(cache: &Cache, spec: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    if cache.tenant.scheduling == SchedulingMode::Tenant {
        issues.deny(
            format!("{path}.devices"),
            "devices are allocated by the host's scheduler, which does not place the pods of this tenant",
        );
    }
    let mut copied = fields::copy(spec, path, SPEC, issues);
    object(spec, "devices", path, &mut copied, |devices, path| {
        let mut copied = fields::copy(devices, path, DEVICES, issues);
        list(devices, "requests", path, &mut copied, |request, path| {
            self::request(cache, request, path, issues)
        });
        list(devices, "constraints", path, &mut copied, |constraint, path| {
            fields::copy(constraint, path, CONSTRAINT, issues)
        });
        list(devices, "config", path, &mut copied, |config, path| {
            let mut copied = fields::copy(config, path, CONFIG, issues);
            object(config, "opaque", path, &mut copied, |opaque, path| {
                driver(cache, opaque, path, issues);
                fields::copy(opaque, path, OPAQUE, issues)
            });
            copied
        });
        copied
    });
    copied.into()
}

fn request(cache: &Cache, request: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(request, path, REQUEST, issues);
    object(request, "exactly", path, &mut copied, |exactly, path| {
        asked(cache, exactly, path, issues)
    });
    list(request, "firstAvailable", path, &mut copied, |choice, path| {
        asked(cache, choice, path, issues)
    });
    copied
}

fn asked(cache: &Cache, asked: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(asked, path, ASKED, issues);
    let class = json::text(asked, &["deviceClassName"]).unwrap_or_default();
    if !class::is_offered(cache, class) {
        issues.deny(
            format!("{path}.deviceClassName"),
            format!(
                "the device class {class} is not offered here{}",
                offered(&cache.tenant.policy.devices.classes)
            ),
        );
    }
    list(asked, "selectors", path, &mut copied, |selector, path| {
        let mut copied = fields::copy(selector, path, SELECTOR, issues);
        object(selector, "cel", path, &mut copied, |cel, path| {
            fields::copy(cel, path, CEL, issues)
        });
        copied
    });
    object(asked, "capacity", path, &mut copied, |capacity, path| {
        fields::copy(capacity, path, CAPACITY, issues)
    });
    list(asked, "derivedAttributes", path, &mut copied, |derived, path| {
        fields::copy(derived, path, DERIVED, issues)
    });
    list(asked, "tolerations", path, &mut copied, |toleration, path| {
        match json::filled(toleration, &["key"]) {
            Some(key) if labels::is_reserved(key) => {
                issues.deny(format!("{path}.key"), "keys under berth.dev belong to the platform");
            }
            Some(_) => {}
            None => issues.deny(
                format!("{path}.key"),
                "without a key it would tolerate the platform's taints as well: name the taints to tolerate",
            ),
        }
        fields::copy(toleration, path, TOLERATION, issues)
    });
    copied
}

fn driver(cache: &Cache, opaque: &Value, path: &str, issues: &mut FieldIssues) {
    let driver = json::text(opaque, &["driver"]).unwrap_or_default();
    let drivers = &cache.tenant.policy.devices.config_drivers;
    if !allows(drivers, driver) {
        let why = format!(
            "configuration for the driver {driver} is not offered here{}",
            offered(drivers)
        );
        issues.deny(format!("{path}.driver"), why);
    }
}

/// Names what is offered instead, for a denial.
fn offered(list: &[String]) -> String {
    let names: Vec<&str> = list.iter().map(String::as_str).filter(|name| *name != ANY).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(": there is {}", names.join(", "))
    }
}

/// Translates the object `field`, if it is set.
fn object(
    source: &Value,
    field: &str,
    path: &str,
    into: &mut Map<String, Value>,
    rewrite: impl FnOnce(&Value, &str) -> Map<String, Value>,
) {
    if let Some(value) = source.get(field).filter(|value| !value.is_null()) {
        into.insert(field.into(), rewrite(value, &format!("{path}.{field}")).into());
    }
}

/// Translates the items of the list `field`, if there are any.
fn list(
    source: &Value,
    field: &str,
    path: &str,
    into: &mut Map<String, Value>,
    mut rewrite: impl FnMut(&Value, &str) -> Map<String, Value>,
) {
    let items: Vec<Value> = json::items(source, &[field])
        .iter()
        .enumerate()
        .map(|(index, item)| rewrite(item, &format!("{path}.{field}[{index}]")).into())
        .collect();
    if !items.is_empty() {
        into.insert(field.into(), items.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{devices::template, schemas};

    #[test]
    fn every_field_of_every_version_has_a_rule() {
        schemas::check(&[
            ("CELDeviceSelector", CEL),
            ("CapacityRequirements", CAPACITY),
            ("DeviceClaim", DEVICES),
            ("DeviceClaimConfiguration", CONFIG),
            ("DeviceConstraint", CONSTRAINT),
            ("DeviceDerivedAttribute", DERIVED),
            ("DeviceRequest", REQUEST),
            ("DeviceSelector", SELECTOR),
            ("DeviceSubRequest", ASKED),
            ("DeviceToleration", TOLERATION),
            ("ExactDeviceRequest", ASKED),
            ("OpaqueDeviceConfiguration", OPAQUE),
            ("ResourceClaimSpec", SPEC),
            ("ResourceClaimTemplateSpec", template::SPEC),
        ]);
    }
}
