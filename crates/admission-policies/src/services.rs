//! Services: no foreign addresses, and ways in from outside only as the class allows.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};
use berth_api::policy_annotations;
use berth_sync_rules::kinds::service::INTERNAL_NAMES;

pub(super) fn wall() -> Wall {
    Wall {
        name: "berth-services",
        about: "Services of a tenant take no foreign addresses and open no way in that its class does not allow.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["services"],
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed("types", policy_annotations::SERVICE_TYPES),
            cel::allowed("classes", policy_annotations::LOAD_BALANCER_CLASSES),
            ("type", "object.spec.?type.orValue('ClusterIP')".into()),
            ("target", "object.spec.?externalName.orValue('').lowerAscii()".into()),
        ],
        rules: vec![
            rule(
                "object.spec.?externalIPs.orValue([]).size() == 0",
                "spec.externalIPs could take over foreign addresses",
            ),
            // Controllers of load balancers write it, too.
            rule(
                "object.spec.?loadBalancerIP.orValue('') == '' || (oldObject != null && \
                 object.spec.loadBalancerIP == oldObject.spec.?loadBalancerIP.orValue(''))",
                "spec.loadBalancerIP could take over foreign addresses",
            ),
            rule(
                "variables.type in ['ClusterIP', 'ExternalName'] || variables.type in variables.types",
                "spec.type must be ClusterIP, or one that the tenant's class offers",
            ),
            rule(
                format!(
                    "!has(object.spec.loadBalancerClass) || variables.type != 'LoadBalancer' || {}",
                    cel::contains("classes", "object.spec.loadBalancerClass")
                ),
                "spec.loadBalancerClass must be one that the tenant's class lists",
            ),
            rule(
                format!(
                    "variables.type != 'ExternalName' || !('.' + variables.target).matches('{}')",
                    internal_names()
                ),
                "spec.externalName may not be a name inside the platform, or an address",
            ),
        ],
    }
}

/// Names, with a dot before them, that lead into the platform; and addresses.
fn internal_names() -> String {
    let names = cel::alternatives(INTERNAL_NAMES.iter().copied());
    format!("([.]({names})[.]?$|[.]svc[.]|^[.][0-9.]*$|:)")
}
