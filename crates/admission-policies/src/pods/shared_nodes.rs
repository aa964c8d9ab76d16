//! Pods that may run on shared nodes: only in pools that their tenant may use, without devices, and without what its class
//! denies on shared nodes.

use super::WAS_THERE;
use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{labels, policy_annotations};
use berth_sync_rules::kinds::pod::GPU_RUNTIMES;

const TERMS: &str =
    "object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms";

/// Types of seccomp profiles on shared nodes. The first is what the syncer sets.
const SECCOMP_PROFILES: [&str; 2] = ["RuntimeDefault", "Localhost"];

/// Variables of validations of where a pod may run; they need [`cel::tenant_slug_variable`].
pub(crate) fn placement_variables() -> [(&'static str, String); 3] {
    let own = format!(
        "object.spec.?nodeSelector[?'{}'].orValue('') == {}",
        labels::TENANT,
        cel::TENANT_SLUG
    );
    [
        cel::allowed_names_variable("sharedPools", policy_annotations::SHARED_POOLS),
        ("terms", format!("{TERMS}.orValue([])")),
        // Then its affinity does not matter: a node has either label, never both.
        ("ownNodesOnly", own),
    ]
}

/// Whether a request leaves where a pod may run as it was. A pool may be the tenant's no longer, while its pods there still end: what
/// closes them must reach them, and controllers must be able to take their finalizers off.
fn is_placement_unchanged() -> String {
    let old_terms = TERMS.replacen("object.", "oldObject.", 1);
    format!(
        "oldObject != null && object.spec.?nodeSelector.orValue({{}}) == oldObject.spec.?nodeSelector.orValue({{}}) && \
         variables.terms == {old_terms}.orValue([])"
    )
}

/// A pod selects the tenant's own nodes, or each of its affinity terms selects these or shared pools that the tenant may use.
pub(crate) fn validate_placement() -> Validation {
    let own = format!(
        "e.key == '{}' && e.?values.orValue([]) == [{}]",
        labels::TENANT,
        cel::TENANT_SLUG
    );
    let shared = format!(
        "e.key == '{}' && e.?values.orValue([]).size() > 0 && \
         e.values.all(v, v != '' && v in variables.sharedPools)",
        labels::SHARED_POOL
    );
    validation(
        format!(
            "variables.ownNodesOnly || ({}) || (variables.terms.size() > 0 && variables.terms.all(t, \
             t.?matchExpressions.orValue([]).exists(e, e.operator == 'In' && (({own}) || ({shared})))))",
            is_placement_unchanged()
        ),
        "spec.nodeSelector must select the label berth.dev/tenant of this tenant's own nodes, or every affinity term must select \
         shared pools that it may use",
    )
}

pub(crate) fn build_policy() -> AdmissionPolicy {
    let mut variables = vec![cel::tenant_slug_variable()];
    variables.extend(cel::metadata_variables());
    variables.extend(policy_variables());
    let mut validations = validate_pods();
    validations.extend(validate_security_contexts());
    AdmissionPolicy {
        name: "berth-shared-nodes",
        description: "Pods that may run on shared nodes have no devices and preempt no other pods.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        // All validations hold for other pods.
        conditions: vec![("may-be-shared", may_be_shared())],
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers", "pods/resize"],
            operations: WRITES,
        }],
        variables,
        validations,
    }
}

/// Whether a pod has the label of those that may run on shared nodes, or names a shared pool: if not, `variables.mayShare` is false.
fn may_be_shared() -> String {
    format!(
        "'{}' in object.metadata.?labels.orValue({{}}) || {TERMS}.orValue([]).exists(t, {})",
        labels::SHARED_NODES,
        names_shared_pool("t")
    )
}

/// Whether a term of node affinity names a shared pool.
fn names_shared_pool(term: &str) -> String {
    format!(
        "{term}.?matchExpressions.orValue([]).exists(e, e.key == '{}')",
        labels::SHARED_POOL
    )
}

/// What a class says about its pods holds for those that are made from then on, and for containers that others get: nothing else of a
/// pod can change. Otherwise nobody could change the labels by which policies close those that exist.
fn validate_pods() -> Vec<Validation> {
    // Only images of containers can change.
    let images = "map(c, c.?image.orValue(''))";
    let old = ["containers", "initContainers"].map(|list| format!("oldObject.spec.?{list}.orValue([]).{images}"));
    // The two lists of containers are of two types for an API server, but the names of images are text in both.
    let has_same_images = format!(
        "oldObject != null && variables.containers.{images} == {}",
        old.join(" + ")
    );
    vec![
        validation(
            format!(
                "variables.mayShare == (variables.labels[?'{}'].orValue('') == '{}')",
                labels::SHARED_NODES,
                labels::SHARED_NODES_ALLOWED
            ),
            "pods that may run on shared nodes, and only those, must carry the label berth.dev/shared-nodes",
        ),
        unless_on_own_nodes(
            "object.spec.?resourceClaims.orValue([]).size() == 0",
            "spec.resourceClaims: there are no devices on shared nodes",
        ),
        unless_on_own_nodes(
            "variables.resources.all(r, r.all(k, !k.contains('/')))",
            "resources: there are no devices on shared nodes",
        ),
        unless_on_own_nodes(
            &format!(
                "!{}.exists(part, object.spec.?runtimeClassName.orValue('').contains(part))",
                cel::string_list(GPU_RUNTIMES.iter().copied())
            ),
            "spec.runtimeClassName: there are no GPUs on shared nodes",
        ),
        // PriorityClasses of Berth's bands; without a band all pods have the host's default priority.
        unless_on_own_nodes(
            "object.spec.?preemptionPolicy.orValue('') == 'Never' || \
             !object.spec.?priorityClassName.orValue('').startsWith('berth-')",
            "spec.priorityClassName: pods that may run on shared nodes must not preempt other pods",
        ),
        when_denied(
            policy_annotations::HOST_USERS,
            "oldObject != null || object.spec.?hostUsers.orValue(true) == false",
            "spec.hostUsers must be false on shared nodes",
        ),
        // The class of a tenant that has no shared pools any more says nothing about its pods that still end there.
        unless_on_own_nodes(
            &format!(
                "(variables.sharedPools.size() > 0 && !('{}' in variables.denied)) || \
                 ((({has_same_images}) || (variables.containers.all(c, c.?imagePullPolicy.orValue('') == 'Always') && \
                 object.spec.?volumes.orValue([]).all(v, !has(v.image) || v.image.?pullPolicy.orValue('') == 'Always'))) && \
                 object.spec.?ephemeralContainers.orValue([]).all(c, {WAS_THERE} || c.?imagePullPolicy.orValue('') == 'Always'))",
                policy_annotations::CACHED_IMAGES
            ),
            "imagePullPolicy must be Always on shared nodes: a pod may not use images that another tenant pulled",
        ),
    ]
}

/// A seccomp profile for every container, and no right to send packets under another address. [`super::security`] rejects
/// `Unconfined` and added capabilities.
///
/// A pod's own fields cannot change once it exists, and neither can its ephemeral containers: those from before these rules stay as
/// they are.
fn validate_security_contexts() -> Vec<Validation> {
    let profile = |path: &str, unset: &str| {
        format!(
            "{path}.?securityContext.?seccompProfile.?type.orValue('{unset}') in {}",
            cel::string_list(SECCOMP_PROFILES)
        )
    };
    let (of_pod, of_container) = (profile("object.spec", ""), profile("c", SECCOMP_PROFILES[0]));
    let drops_raw_sockets =
        "c.?securityContext.?capabilities.?drop.orValue([]).exists(name, name == 'NET_RAW' || name == 'ALL')";
    let raw_sockets = "capabilities.drop of every container must list NET_RAW or ALL on shared nodes: with raw sockets it could \
                       send packets as another tenant";
    vec![
        unless_on_own_nodes(
            &format!("oldObject != null || ({of_pod} && variables.containers.all(c, {of_container}))"),
            "seccompProfile must be RuntimeDefault or Localhost on shared nodes, in spec.securityContext and wherever a container \
             has one",
        ),
        unless_on_own_nodes(
            &format!("oldObject != null || variables.containers.all(c, {drops_raw_sockets})"),
            raw_sockets,
        ),
        unless_on_own_nodes(
            &format!(
                "request.?subResource.orValue('') != 'ephemeralcontainers' || \
                 object.spec.?ephemeralContainers.orValue([]).all(c, {WAS_THERE} || {drops_raw_sockets})"
            ),
            raw_sockets,
        ),
    ]
}

fn policy_variables() -> Vec<(&'static str, String)> {
    let list = |field: &str| format!("object.spec.?{field}.orValue([])");
    let parts = |path: &str| format!("{path}.?requests.orValue({{}}), {path}.?limits.orValue({{}})");
    let of = |field: &str| {
        format!(
            "{0}.map(c, c.?resources.?requests.orValue({{}})) + {0}.map(c, c.?resources.?limits.orValue({{}}))",
            list(field)
        )
    };
    let mut all: Vec<_> = placement_variables().into();
    // `berth-pods` makes pods that name no shared pool select the tenant's own nodes.
    all.push((
        "mayShare",
        format!(
            "!variables.ownNodesOnly && variables.terms.exists(t, {})",
            names_shared_pool("t")
        ),
    ));
    all.push(cel::allowed_names_variable(
        "denied",
        policy_annotations::NOT_ON_SHARED_NODES,
    ));
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

fn unless_on_own_nodes(expression: &str, message: &'static str) -> Validation {
    validation(format!("!variables.mayShare || ({expression})"), message)
}

fn when_denied(feature: &str, expression: &str, message: &'static str) -> Validation {
    unless_on_own_nodes(
        &format!("!('{feature}' in variables.denied) || ({expression})"),
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_validates_every_pod_that_may_share_or_says_so() {
        let policy = build_policy();
        let [(_, condition)] = &policy.conditions[..] else {
            panic!("{:?}", policy.conditions)
        };
        let may_share = policy.variables.iter().find(|(name, _)| *name == "mayShare").unwrap();
        let [_, terms, _] = placement_variables();
        let of_terms = may_share.1.split_once("variables.terms.exists").unwrap().1;
        assert!(
            condition.ends_with(&format!("{}.exists{of_terms}", terms.1)),
            "{condition}"
        );
        // The first validation is about the label, all others about pods that may share.
        let (label, others) = policy.validations.split_first().unwrap();
        assert!(label.expression.contains(labels::SHARED_NODES) && condition.contains(labels::SHARED_NODES));
        for other in others {
            assert!(
                other.expression.starts_with("!variables.mayShare || "),
                "{}",
                other.expression
            );
        }
    }

    /// Pods that end may get ephemeral containers for a day.
    #[test]
    fn images_are_pulled_again_where_a_tenant_has_no_shared_pools_any_more() {
        let policy = build_policy();
        let mut of_images = policy
            .validations
            .iter()
            .map(|validation| validation.expression.as_str());
        let of_images = of_images
            .find(|expression| expression.contains("imagePullPolicy"))
            .unwrap();
        let unless = format!(
            "!variables.mayShare || ((variables.sharedPools.size() > 0 && !('{}' in variables.denied)) || ",
            policy_annotations::CACHED_IMAGES
        );
        assert!(of_images.starts_with(&unless), "{of_images}");
    }
}
