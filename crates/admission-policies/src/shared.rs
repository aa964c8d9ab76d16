//! Pods that may run on nodes which several tenants use: in the pools that their tenant may share, without devices, and
//! without what the class keeps from such nodes.

use super::{Place, Requests, Rule, WRITES, Wall, Who, cel, rule};
use berth_api::{labels, policy_annotations};
use berth_sync_rules::kinds::pod::GPU_RUNTIMES;

const TERMS: &str =
    "object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms";

/// Variables of walls that ask where a pod may run; they need [`cel::slug`].
pub(super) fn variables() -> [(&'static str, String); 3] {
    let own = format!(
        "object.spec.?nodeSelector[?'{}'].orValue('') == {}",
        labels::TENANT,
        cel::SLUG
    );
    [
        cel::allowed("sharedPools", policy_annotations::SHARED_POOLS),
        ("terms", format!("{TERMS}.orValue([])")),
        // Whatever its affinity says: a node has either mark, never both.
        ("staysHome", own),
    ]
}

/// Every pod is for the tenant's own nodes; or each of its terms is for these or for shared pools of the tenant.
pub(super) fn where_pods_run() -> Rule {
    let own = format!(
        "e.key == '{}' && e.?values.orValue([]) == [{}]",
        labels::TENANT,
        cel::SLUG
    );
    let shared = format!(
        "e.key == '{}' && e.?values.orValue([]).size() > 0 && \
         e.values.all(v, v != '' && v in variables.sharedPools)",
        labels::SHARED_POOL
    );
    rule(
        format!(
            "variables.staysHome || (variables.terms.size() > 0 && variables.terms.all(t, \
             t.?matchExpressions.orValue([]).exists(e, e.operator == 'In' && (({own}) || ({shared})))))"
        ),
        "spec.nodeSelector must ask for the label berth.dev/tenant of this tenant's own nodes, or every affinity term for shared \
         pools that it may use",
    )
}

/// What holds for pods that may run beside other tenants'.
pub(super) fn wall() -> Wall {
    let mut variables = vec![cel::slug()];
    variables.extend(cel::maps());
    variables.extend(variables_of_containers());
    Wall {
        name: "berth-shared-nodes",
        about: "Pods that may run on nodes of several tenants have no devices, and make nobody leave.",
        place: Place::Workloads,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers", "pods/resize"],
            operations: WRITES,
        }],
        variables,
        rules: vec![
            rule(
                format!(
                    "variables.mayShare == (variables.labels[?'{}'].orValue('') == '{}')",
                    labels::SHARED_NODES,
                    labels::SHARED_NODES_ALLOWED
                ),
                "pods that may run on shared nodes, and only those, carry the label berth.dev/shared-nodes",
            ),
            at_home_or(
                "object.spec.?resourceClaims.orValue([]).size() == 0",
                "spec.resourceClaims: there are no devices on shared nodes",
            ),
            at_home_or(
                "variables.resources.all(r, r.all(k, !k.contains('/')))",
                "resources: there are no devices on shared nodes",
            ),
            at_home_or(
                &format!(
                    "!{}.exists(part, object.spec.?runtimeClassName.orValue('').contains(part))",
                    cel::list(GPU_RUNTIMES.iter().copied())
                ),
                "spec.runtimeClassName: there are no GPUs on shared nodes",
            ),
            // Classes of Berth's bands; without a band all pods have the host's default priority.
            at_home_or(
                "object.spec.?preemptionPolicy.orValue('') == 'Never' || \
                 !object.spec.?priorityClassName.orValue('').startsWith('berth-')",
                "spec.priorityClassName: pods that may run on shared nodes preempt nobody",
            ),
            unless(
                policy_annotations::HOST_USERS,
                "object.spec.?hostUsers.orValue(true) == false",
                "spec.hostUsers must be false on shared nodes",
            ),
            unless(
                policy_annotations::CACHED_IMAGES,
                "variables.containers.all(c, c.?imagePullPolicy.orValue('') == 'Always') && \
                 object.spec.?ephemeralContainers.orValue([]).all(c, c.?imagePullPolicy.orValue('') == 'Always') && \
                 object.spec.?volumes.orValue([]).all(v, !has(v.image) || v.image.?pullPolicy.orValue('') == 'Always')",
                "imagePullPolicy must be Always on shared nodes: images of others are not for everybody",
            ),
        ],
    }
}

fn variables_of_containers() -> Vec<(&'static str, String)> {
    let list = |field: &str| format!("object.spec.?{field}.orValue([])");
    let parts = |path: &str| format!("{path}.?requests.orValue({{}}), {path}.?limits.orValue({{}})");
    let of = |field: &str| {
        format!(
            "{0}.map(c, c.?resources.?requests.orValue({{}})) + {0}.map(c, c.?resources.?limits.orValue({{}}))",
            list(field)
        )
    };
    let mut all: Vec<_> = variables().into();
    // A pod that names no shared pool is kept at home, or refused, by `berth-pods`.
    all.push((
        "mayShare",
        format!(
            "!variables.staysHome && variables.terms.exists(t, t.?matchExpressions.orValue([]).exists(e, e.key == '{}'))",
            labels::SHARED_POOL
        ),
    ));
    all.push(cel::allowed("refused", policy_annotations::NOT_ON_SHARED_NODES));
    all.push((
        "resources",
        format!(
            "{} + {} + [{}]",
            of("containers"),
            of("initContainers"),
            parts("object.spec.?resources")
        ),
    ));
    all.push((
        "containers",
        // Ephemeral containers are of another type.
        format!("{} + {}", list("containers"), list("initContainers")),
    ));
    all
}

fn at_home_or(expression: &str, message: &'static str) -> Rule {
    rule(format!("!variables.mayShare || ({expression})"), message)
}

fn unless(refused: &str, expression: &str, message: &'static str) -> Rule {
    at_home_or(
        &format!("!('{refused}' in variables.refused) || ({expression})"),
        message,
    )
}
