//! Namespaces: which tenant one belongs to, what it is for, what its class allows and which Pod Security level holds is
//! said by labels and annotations, so only control may write them.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};
use berth_api::labels;

pub(super) fn wall() -> Wall {
    let reserved = cel::reserved("k");
    let security = "k.startsWith('pod-security.kubernetes.io/')";
    let is_tenants = format!(
        "('{0}' in variables.labels || '{0}' in variables.oldLabels)",
        labels::ROLE
    );
    let kept = |map: &str, old: &str, which: &str| format!("({})", cel::kept(map, old, which));
    Wall {
        name: "berth-namespaces",
        about: "Labels and annotations of berth.dev on namespaces, and the Pod Security level of tenants' namespaces, are the platform's.",
        place: Place::Cluster,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["namespaces", "namespaces/status", "namespaces/finalize"],
            operations: WRITES,
        }],
        variables: cel::maps().into(),
        rules: vec![
            rule(
                format!(
                    "({} && {}) || {}",
                    kept("labels", "oldLabels", &reserved),
                    kept("annotations", "oldAnnotations", &reserved),
                    cel::may_bypass()
                ),
                "labels and annotations of berth.dev on namespaces are for the platform only",
            ),
            rule(
                format!(
                    "!{is_tenants} || {} || {}",
                    kept("labels", "oldLabels", security),
                    cel::may_bypass()
                ),
                "the Pod Security level of a tenant's namespace is for the platform only",
            ),
        ],
    }
}
