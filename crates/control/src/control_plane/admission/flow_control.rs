//! Priority and fairness in the tenant: nobody there takes what the platform's programs and the controllers need, or exempts requests.
//!
//! An API server shares out what it handles at the same time among priority levels, and FlowSchemas say to which level a request belongs:
//! the one with the lowest precedence that matches. A FlowSchema of a tenant comes after all that are for components, and names no level
//! without limits. The levels and FlowSchemas that Kubernetes has from the start keep their specs. The policy is a file, so it holds for
//! `cluster-admin` and `system:masters`, too.

use super::{
    super::certificates::CONTROL_USER,
    own_objects,
    platform_objects::API_SERVER_USER,
    static_policies::{add_file, binding, policy, rule, validation},
};
use serde_json::json;
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "flow-control.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "flow-control.berth.dev.static.k8s.io";
/// API group of FlowSchemas and priority levels.
const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// The last precedence of FlowSchemas that Kubernetes has for components (`kube-system-service-accounts` has 900), rounded up. Those of
/// the tenant come after it.
const COMPONENTS_UP_TO: i32 = 1000;
/// Shares of a priority level of the tenant, at most: as many as the largest of Kubernetes' own (`workload-low`) has.
const MAX_SHARES: i32 = 100;
/// What a team reads.
const DENIED_OWN: &str = "Kubernetes' own FlowSchemas and priority levels are kept as they are, so that a flood of requests delays no controller: \
                          create others with names of your own";
const DENIED_PRECEDENCE: &str =
    "spec.matchingPrecedence: use more than 1000. FlowSchemas up to 1000 are for the components of the control plane";
const DENIED_EXEMPT: &str = "spec.priorityLevelConfiguration.name: requests cannot be exempt from the limits of the API server; name another \
                             priority level";
const DENIED_SHARES: &str =
    "spec.limited.nominalConcurrencyShares: use at most 100, so that the components of the control plane keep theirs";

/// When an API server starts, it deletes what has this annotation and a name that it does not know. If a policy of the tenant denied that, it would
/// never be ready.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
const DENIED_AUTO_UPDATE: &str = "metadata.annotations: apf.kubernetes.io/autoupdate-spec is for Kubernetes' own FlowSchemas and priority levels: \
                                  an API server deletes others that have it when it starts";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    let rules = [rule(
        GROUP,
        &["CREATE", "UPDATE"],
        &["flowschemas", "prioritylevelconfigurations"],
    )];
    let constraints = json!({"matchPolicy": "Equivalent", "resourceRules": rules});
    let variables = [
        json!({"name": "isPlatform", "expression": format!("request.userInfo.username in ['{CONTROL_USER}', '{API_SERVER_USER}']")}),
        json!({"name": "isSchema", "expression": "request.resource.resource == 'flowschemas'"}),
        json!({"name": "isSame", "expression": "request.operation == 'UPDATE' && object.spec == oldObject.spec"}),
        json!({"name": "isFree", "expression": "variables.isPlatform || variables.isSame"}),
    ];
    let schemas = own_names("flowschemas");
    let levels = own_names("prioritylevelconfigurations");
    let own = format!(
        "variables.isFree || !(variables.isSchema ? object.metadata.name in [{schemas}] : object.metadata.name in [{levels}])"
    );
    let precedence =
        format!("variables.isFree || !variables.isSchema || object.spec.matchingPrecedence > {COMPONENTS_UP_TO}");
    let exempt = "variables.isFree || !variables.isSchema || object.spec.priorityLevelConfiguration.name != 'exempt'";
    let shares = format!(
        "variables.isFree || variables.isSchema || !has(object.spec.limited) || \
         !has(object.spec.limited.nominalConcurrencyShares) || object.spec.limited.nominalConcurrencyShares <= {MAX_SHARES}"
    );
    // Also where the annotation alone changes.
    let kept = format!(
        "variables.isPlatform || !has(object.metadata.annotations) || !('{AUTO_UPDATE}' in object.metadata.annotations) || \
         object.metadata.annotations['{AUTO_UPDATE}'] == 'false' || (variables.isSchema ? object.metadata.name in [{schemas}] : \
         object.metadata.name in [{levels}])"
    );
    let validations = [
        validation(&own, DENIED_OWN),
        validation(&precedence, DENIED_PRECEDENCE),
        validation(exempt, DENIED_EXEMPT),
        validation(&shares, DENIED_SHARES),
        validation(&kept, DENIED_AUTO_UPDATE),
    ];
    add_file(
        files,
        FILE,
        &[policy(NAME, &constraints, &variables, &validations), binding(NAME)],
    );
}

/// Names of the objects of a resource that an API server creates for itself, as a list of CEL without its brackets.
fn own_names(resource: &str) -> String {
    let own = own_objects::OWN.iter();
    let of_resource = own.filter(|own| own.group == GROUP && own.resources.contains(&resource));
    let names = of_resource.flat_map(|own| own.names).map(|name| format!("'{name}'"));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_policy_is_about_both_kinds_and_exempts_control_and_the_api_server_alone() {
        let mut files = BTreeMap::new();
        for_api_server(&mut files);
        let policy: Value = serde_json::from_str(files[FILE].split("\n---\n").next().unwrap()).unwrap();
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        assert_eq!(
            spec["matchConstraints"]["resourceRules"][0]["resources"],
            json!(["flowschemas", "prioritylevelconfigurations"])
        );
        let variables = spec["variables"].as_array().unwrap();
        assert_eq!(
            variables[0]["expression"],
            "request.userInfo.username in ['berth:control', 'system:apiserver']"
        );
        let validations = spec["validations"].as_array().unwrap();
        assert_eq!(validations.len(), 5);
        let last = validations[4]["expression"].as_str().unwrap();
        assert!(last.starts_with("variables.isPlatform || "), "{last}");
        for validation in &validations[..4] {
            let expression = validation["expression"].as_str().unwrap();
            assert!(expression.starts_with("variables.isFree || "), "{expression}");
        }
        let own = validations[0]["expression"].as_str().unwrap();
        for name in [
            "'catch-all'",
            "'exempt'",
            "'kube-controller-manager'",
            "'workload-high'",
        ] {
            assert!(own.contains(name), "{own}");
        }
    }

    #[test]
    fn each_resource_has_its_own_names() {
        assert!(own_names("flowschemas").contains("'probes'") && !own_names("flowschemas").contains("'node-high'"));
        assert!(own_names("prioritylevelconfigurations").contains("'node-high'"));
    }
}
