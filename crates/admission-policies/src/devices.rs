//! Claims of devices: of classes that are offered, never with a look at others' devices.

use super::{Place, Requests, Rule, WRITES, Wall, Who, cel, rule};
use berth_api::policy_annotations;

const GROUP: &str = "resource.k8s.io";

pub(super) fn walls() -> Vec<Wall> {
    vec![
        wall(
            "berth-resource-claims",
            "Claims of devices name classes that are offered to the tenant.",
            &["resourceclaims"],
            "object.spec.?devices",
        ),
        wall(
            "berth-resource-claim-templates",
            "Templates of claims of devices name classes that are offered to the tenant.",
            &["resourceclaimtemplates"],
            "object.spec.spec.?devices",
        ),
    ]
}

fn wall(name: &'static str, about: &'static str, resources: &'static [&'static str], devices: &str) -> Wall {
    Wall {
        name,
        about,
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: GROUP,
            version: "v1",
            resources,
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed("classes", policy_annotations::DEVICE_CLASSES),
            cel::allowed("drivers", policy_annotations::CONFIG_DRIVERS),
            ("requests", format!("{devices}.?requests.orValue([])")),
            ("config", format!("{devices}.?config.orValue([])")),
        ],
        rules: vec![
            each(
                &cel::contains("classes", "r.deviceClassName"),
                "deviceClassName must be one that the tenant's class lists",
            ),
            rule(
                "variables.requests.all(r, !r.?exactly.?adminAccess.orValue(false))",
                "adminAccess gives devices that others use",
            ),
            each(
                &format!(
                    "r.?tolerations.orValue([]).all(t, t.?key.orValue('') != '' && !{})",
                    cel::reserved("t.key")
                ),
                "tolerations of devices may name no taint of the platform, and not every taint at once",
            ),
            rule(
                format!(
                    "variables.config.all(c, !has(c.opaque) || {})",
                    cel::contains("drivers", "c.opaque.driver")
                ),
                "config may be for drivers that the tenant's class lists only",
            ),
        ],
    }
}

/// A rule for every request, whichever form it has.
fn each(expression: &str, message: &'static str) -> Rule {
    rule(
        format!(
            "variables.requests.all(q, (has(q.exactly) ? [q.exactly] : q.?firstAvailable.orValue([])).all(r, {expression}))"
        ),
        message,
    )
}
