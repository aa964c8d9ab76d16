//! How much one object may hold: the limits of `berth_sync_rules::translation::sizes`, as expressions. An object that holds more, because
//! it is older than a limit, may change as long as it does not grow.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, null_fields, validation};
use berth_sync_rules::translation::sizes::{
    DISRUPTION_BUDGET, Measure, NETWORK_POLICY_RULES, NETWORK_POLICY_SELECTOR, POD, RUNNING_POD, SERVICE,
    SERVICE_PORTS, SizeLimit,
};

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![
        build_policy(
            "berth-pod-sizes",
            "Pods of a tenant hold no more than the scheduler and nodes can work with.",
            ResourceRule {
                group: "",
                version: "v1",
                resources: &["pods", "pods/ephemeralcontainers"],
                operations: WRITES,
            },
            &[POD, RUNNING_POD],
        ),
        build_service_policy(),
        build_policy(
            "berth-network-policy-sizes",
            "NetworkPolicies of a tenant hold no more rules than nodes can work with.",
            ResourceRule {
                group: "networking.k8s.io",
                version: "v1",
                resources: &["networkpolicies"],
                operations: WRITES,
            },
            &[NETWORK_POLICY_SELECTOR, NETWORK_POLICY_RULES],
        ),
        build_policy(
            "berth-disruption-budget-sizes",
            "PodDisruptionBudgets of a tenant have selectors that controllers can work with.",
            ResourceRule {
                group: "policy",
                version: "v1",
                resources: &["poddisruptionbudgets"],
                operations: WRITES,
            },
            &[DISRUPTION_BUDGET],
        ),
    ]
}

fn build_policy(
    name: &'static str,
    description: &'static str,
    resource_rule: ResourceRule,
    limits: &[&[SizeLimit]],
) -> AdmissionPolicy {
    AdmissionPolicy {
        name,
        description,
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![resource_rule],
        variables: Vec::new(),
        validations: limits.iter().copied().flatten().map(validate).collect(),
    }
}

fn build_service_policy() -> AdmissionPolicy {
    let mut policy = build_policy(
        "berth-service-sizes",
        "Services of a tenant have no more ports than nodes can work with.",
        ResourceRule {
            group: "",
            version: "v1",
            resources: &["services"],
            operations: WRITES,
        },
        &[SERVICE],
    );
    policy.validations.extend(SERVICE_PORTS.iter().map(|limit| {
        let Validation { expression, message } = validate(limit);
        validation(
            format!("object.spec.?clusterIP.orValue('') == 'None' || {expression}"),
            message,
        )
    }));
    policy
}

/// The validation of a limit.
pub(super) fn validate(limit: &SizeLimit) -> Validation {
    let SizeLimit {
        field,
        measure,
        in_tenant: _,
        on_host,
        // For the tenant; intact syncers do not get this far.
        why: _,
    } = limit;
    let unless_absent = common_field(measure)
        .map(|field| format!("!object.?spec.?{field}.hasValue() || "))
        .unwrap_or_default();
    validation(
        format!(
            "{unless_absent}{0} <= {on_host} || (oldObject != null && {1} >= {0})",
            count("object", measure),
            count("oldObject", measure)
        ),
        format!("{field}: one object may have at most {on_host} on the host"),
    )
}

/// The field of the spec that has all entries which a measure counts at several paths: without it there are none. Most pods have no
/// affinity, and more paths go through it than through the rest of a pod.
fn common_field(measure: &Measure) -> Option<String> {
    let Measure::Total { parents, entries } = *measure else {
        return None;
    };
    let field_of = |path: String| {
        let below = path.strip_prefix("spec.")?;
        let field = below.split('.').next()?;
        Some(field.trim_end_matches(['[', ']', '{', '}', '?']).to_owned())
    };
    let paths = parents
        .iter()
        .flat_map(|parent| entries.iter().map(move |entry| format!("{parent}.{entry}")));
    let fields: Vec<_> = paths.map(field_of).collect();
    let (first, further) = fields.split_first()?;
    if further.is_empty() || further.iter().any(|field| field != first) {
        return None;
    }
    first.clone()
}

/// Names of the items of lists within lists.
const ITEMS: [&str; 4] = ["a", "b", "c", "d"];

/// The number that a measure counts in an object.
fn count(object: &str, measure: &Measure) -> String {
    let terms: Vec<String> = match measure {
        Measure::Total { parents, entries } => parents
            .iter()
            .flat_map(|parent| entries.iter().map(move |path| format!("{parent}.{path}")))
            .map(|path| count_entries(object, &path, 0))
            .collect(),
        Measure::Products(products) => products
            .iter()
            .map(|(parent, factors)| {
                walk(object, parent, 0, &|item, depth| {
                    let [one, other] = factors.map(|path| format!("[{}, 1].max()", count_entries(item, path, depth)));
                    format!("{one} * {other}")
                })
            })
            .collect(),
    };
    terms.join(" + ")
}

/// The number of entries at a path below `value`.
fn count_entries(value: &str, path: &str, depth: usize) -> String {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    walk(value, parent, depth, &|parent, _| {
        if let Some(field) = last.strip_suffix('?') {
            return format!("({parent}.?{field}.hasValue() ? 1 : 0)");
        }
        match last.strip_suffix("{}") {
            Some(field) => format!("{parent}.?{field}.orValue({{}}).size()"),
            None => format!("{}.size()", list_at(parent, last.trim_end_matches("[]"))),
        }
    })
}

/// The list `field` of `value`; empty if there is none.
fn list_at(value: &str, field: &str) -> String {
    if null_fields::may_be_null(value, field) {
        cel::list(value, field)
    } else {
        format!("{value}.?{field}.orValue([])")
    }
}

/// Applies `leaf` to the objects at a path below `value`, and adds up the results. `depth` is the number of lists around `value`.
fn walk(value: &str, path: &str, depth: usize, leaf: &dyn Fn(&str, usize) -> String) -> String {
    if path.is_empty() {
        return leaf(value, depth);
    }
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    match step.strip_suffix("[]") {
        Some(field) => {
            let item = ITEMS[depth];
            let each = walk(item, rest, depth + 1, leaf);
            format!("{}.map({item}, {each}).sum()", list_at(value, field))
        }
        None => walk(&format!("{value}.?{step}"), rest, depth, leaf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first part of the expression: the second is about objects that do not grow.
    fn expression(limits: &[SizeLimit], field: &str) -> String {
        let expression = validate(limits.iter().find(|limit| limit.field == field).unwrap()).expression;
        let (limited, _) = expression.split_once(" || (oldObject != null && ").unwrap();
        limited.to_owned()
    }

    #[test]
    fn what_cannot_be_there_is_not_counted() {
        let fields = |limits: &[SizeLimit]| -> Vec<_> {
            let measured = limits.iter().map(|limit| (limit.field, common_field(&limit.measure)));
            measured.filter_map(|(limit, field)| Some((limit, field?))).collect()
        };
        let expected = |limit, field: &str| (limit, field.to_owned());
        let affinity = POD.iter().filter(|limit| limit.field.starts_with("spec.affinity"));
        let affinity: Vec<_> = affinity.map(|limit| expected(limit.field, "affinity")).collect();
        let mut of_pod = vec![
            expected("spec.volumes", "volumes"),
            expected("spec.volumes: claims", "volumes"),
            expected("spec.hostAliases", "hostAliases"),
        ];
        of_pod.extend(affinity);
        of_pod.push(expected(
            "spec.topologySpreadConstraints: selectors",
            "topologySpreadConstraints",
        ));
        assert_eq!((fields(POD), of_pod.len()), (of_pod.clone(), 10));
        assert!(fields(RUNNING_POD).is_empty(), "one path is counted at once");
        let terms = expression(POD, "spec.affinity.nodeAffinity: terms");
        let counted = "object.?spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.";
        assert!(
            terms.starts_with(&format!("!object.?spec.?affinity.hasValue() || {counted}")),
            "{terms}"
        );
    }

    #[test]
    fn objects_beyond_a_limit_may_not_grow() {
        let tolerations = RUNNING_POD
            .iter()
            .find(|limit| limit.field == "spec.tolerations")
            .unwrap();
        assert_eq!(
            validate(tolerations).expression,
            "object.?spec.?tolerations.orValue([]).size() <= 500 || (oldObject != null && \
             oldObject.?spec.?tolerations.orValue([]).size() >= object.?spec.?tolerations.orValue([]).size())"
        );
    }

    #[test]
    fn headless_services_may_have_more_ports() {
        let ports = build_service_policy().validations.pop().unwrap();
        assert!(
            ports
                .expression
                .starts_with("object.spec.?clusterIP.orValue('') == 'None' || object.?spec.?ports.")
        );
    }

    #[test]
    fn paths_become_expressions() {
        assert_eq!(
            expression(RUNNING_POD, "spec.tolerations"),
            "object.?spec.?tolerations.orValue([]).size() <= 500"
        );
        assert_eq!(
            expression(POD, "spec.nodeSelector"),
            "object.?spec.?nodeSelector.orValue({}).size() <= 120"
        );
        assert_eq!(
            expression(POD, "spec.volumes"),
            "!object.?spec.?volumes.hasValue() || object.?spec.?volumes.orValue([]).size() + \
             object.?spec.?volumes.orValue([]).map(a, \
             a.?projected.?sources.optMap(l, dyn(l) == null ? [] : l).orValue([]).size()).sum() <= 600"
        );
        assert_eq!(
            expression(POD, "spec.volumes: claims"),
            "!object.?spec.?volumes.hasValue() || \
             object.?spec.?volumes.orValue([]).map(a, (a.?persistentVolumeClaim.hasValue() ? 1 : 0)).sum() + \
             object.?spec.?volumes.orValue([]).map(a, (a.?ephemeral.hasValue() ? 1 : 0)).sum() <= 40"
        );
        assert_eq!(
            expression(NETWORK_POLICY_SELECTOR, "spec.podSelector"),
            "!object.?spec.?podSelector.hasValue() || object.?spec.?podSelector.?matchLabels.orValue({}).size() + \
             object.?spec.?podSelector.?matchExpressions.orValue([]).size() + \
             object.?spec.?podSelector.?matchExpressions.orValue([]).map(a, a.?values.orValue([]).size()).sum() <= 510"
        );
    }

    #[test]
    fn lists_within_lists_have_names_of_their_own() {
        let selectors = expression(NETWORK_POLICY_RULES, "spec.ingress and spec.egress: selectors");
        let nested = "object.?spec.?egress.orValue([]).map(a, a.?to.orValue([]).map(b, \
                      b.?podSelector.?matchExpressions.orValue([]).map(c, c.?values.orValue([]).size()).sum()).sum()).sum()";
        assert!(selectors.contains(nested), "{selectors}");
    }

    #[test]
    fn products_take_an_empty_list_for_one_entry() {
        assert_eq!(
            expression(SERVICE, "spec.ports by spec.loadBalancerSourceRanges"),
            "[object.?spec.?ports.orValue([]).size(), 1].max() * \
             [object.?spec.?loadBalancerSourceRanges.orValue([]).size(), 1].max() <= 5000"
        );
        let rules = expression(NETWORK_POLICY_RULES, "spec.ingress and spec.egress: peers by ports");
        let ingress = "object.?spec.?ingress.orValue([]).map(a, \
                       [a.?from.orValue([]).size(), 1].max() * [a.?ports.orValue([]).size(), 1].max()).sum()";
        assert!(rules.starts_with(ingress), "{rules}");
    }
}
