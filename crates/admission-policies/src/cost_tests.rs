//! What expressions may cost. An API server ends the evaluation of an expression that costs more than a million units (k8s.io/apiserver, pkg/apis/cel).
//!
//! | policy | then the request is | so |
//! |---|---|---|
//! | with parameters | admitted | everything that it goes through is bounded: [`LOOPS`] |
//! | that asks RBAC last | rejected, also one of the platform | the same: somebody who fills an object would close it to everybody |
//! | other | rejected, and no request of the platform is validated | nothing that an honest user writes is as large: [`CLOSED`] |
//!
//! A new policy has to be in one of the two tables.

use super::{AdmissionPolicy, all_policies, cel, nodes::kubelet_sizes};
use std::collections::BTreeSet;

/// Units of one expression.
const MOST: usize = 1_000_000;
/// Units of one question to RBAC.
const CHECK: usize = 350_000;

/// Why a list or map has no more entries.
enum Because {
    /// The schema of the kind says so.
    Schema,
    /// The text, in the same expression before the list.
    Guard(&'static str),
    /// Nobody but kubelets fills it, and this policy limits what they write.
    Kubelets(&'static str),
    /// A token names one node.
    Token,
}
use Because::{Guard, Kubelets, Schema, Token};

/// A list or map that expressions of a policy go through, how many entries that are at most, all outer lists together, and what each costs at most.
struct Loop {
    policy: &'static str,
    list: &'static str,
    entries: usize,
    each: usize,
    because: Because,
}

const fn each(policy: &'static str, list: &'static str, entries: usize, each: usize, because: Because) -> Loop {
    Loop {
        policy,
        list,
        entries,
        each,
        because,
    }
}

/// Keys of labels and annotations have up to 317 characters, in which a domain is searched for.
const ENTRY: usize = 120;

/// Everything that is gone through where an evaluation must not fail.
const LOOPS: &[Loop] = &[
    each("berth-class-namespaces", "variables.matchLabels", 16, 40, Schema),
    // Each with up to 64 values.
    each("berth-class-namespaces", "variables.matchExpressions", 16, 200, Schema),
    each("berth-pool-namespaces", "variables.matchLabels", 16, 40, Schema),
    each("berth-pool-namespaces", "variables.matchExpressions", 16, 200, Schema),
    each("berth-pool-namespaces", "object.spec.nodeGroups", 32, 20, Schema),
    each("berth-pool-namespaces", "oldObject.spec.nodeGroups", 32, 20, Schema),
    each("berth-pool-namespaces", "variables.pools", 32, 60, Schema),
    // It ends at the first label that the pod does not have. One has eleven bytes or more as text.
    each(
        "berth-mirror-pod-services",
        "variables.selector",
        kubelet_sizes::STATIC_POD as usize / 11,
        22,
        Kubelets("berth-kubelet-sizes"),
    ),
    each(
        "berth-team-pods",
        "variables.tolerations",
        500,
        20,
        Guard("variables.tolerations.size() > 500 || "),
    ),
    each(
        "berth-team-pods",
        "variables.oldTolerations",
        500,
        20,
        Guard("variables.oldTolerations.size() <= 500 && "),
    ),
    each(
        "berth-namespaces",
        "variables.labels",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.labels.size() <= 1000 && "),
    ),
    each(
        "berth-namespaces",
        "variables.oldLabels",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.oldLabels.size() <= 1000 && "),
    ),
    each(
        "berth-namespaces",
        "variables.annotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.annotations.size() <= 1000 && "),
    ),
    each(
        "berth-namespaces",
        "variables.oldAnnotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.oldAnnotations.size() <= 1000 && "),
    ),
    each(
        "berth-nodes",
        "variables.labels",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.labels.size() <= 1000 && "),
    ),
    each(
        "berth-nodes",
        "variables.oldLabels",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.oldLabels.size() <= 1000 && "),
    ),
    each(
        "berth-nodes",
        "variables.annotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.annotations.size() <= 1000 && "),
    ),
    each(
        "berth-nodes",
        "variables.oldAnnotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.oldAnnotations.size() <= 1000 && "),
    ),
    // A taint has 38 bytes or more as text, and a Node of a kubelet 768 KiB at most.
    each(
        "berth-nodes",
        "object.spec.taints",
        21_000,
        20,
        Kubelets("berth-kubelet-sizes"),
    ),
    each(
        "berth-nodes",
        "oldObject.spec.taints",
        21_000,
        20,
        Kubelets("berth-kubelet-sizes"),
    ),
    each("berth-resource-slices", "variables.nodes", 1, 100, Token),
    each(
        "berth-resource-slice-deletions",
        "request.userInfo.extra[?'authentication.kubernetes.io/node-name']",
        1,
        100,
        Token,
    ),
    // For each of four types.
    each(
        "berth-pod-status-by-agents",
        "variables.new.conditions",
        4 * 200,
        20,
        Guard("variables.new.conditions.size() <= 200 && "),
    ),
    each(
        "berth-pod-status-by-agents",
        "variables.old.conditions",
        4 * 200,
        20,
        Guard("variables.old.conditions.size() > 200 || "),
    ),
    each(
        "berth-pod-status-by-agents",
        "variables.annotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.annotations.size() <= 1000 && "),
    ),
    each(
        "berth-pod-status-by-agents",
        "variables.oldAnnotations",
        cel::MAX_ENTRIES,
        ENTRY,
        Guard("variables.oldAnnotations.size() <= 1000 && "),
    ),
];

/// The other policies, and why they reject no honest request for its costs.
const CLOSED: &[(&str, &str)] = &[
    (
        "berth-pods",
        "30,000 variables of one kind of containers, the most that berth-pod-sizes admits, cost 650,000",
    ),
    (
        "berth-new-pods",
        "berth-pod-sizes admits 600 volumes with their sources, 60 terms, 150 containers and 2,500 mounts, and a request 60,000 attributes of volumes",
    ),
    ("berth-pod-deletions", "nothing is gone through"),
    (
        "berth-shared-nodes",
        "berth-pod-sizes admits 2,000 terms with 8,000 expressions, and 400 containers",
    ),
    (
        "berth-images",
        "berth-pod-sizes admits 400 containers and 600 volumes, and an image of 100 characters costs 1,300 with 64 folders of a class",
    ),
    (
        "berth-pod-security",
        "berth-pod-sizes admits 400 containers, and an API server 1 MiB of their ports and capabilities",
    ),
    (
        "berth-annotations",
        "with 64 keys of a class, 6,000 annotations can be searched for",
    ),
    ("berth-secrets", "nothing is gone through"),
    ("berth-variable-sources", "a ConfigMap or Secret may have 40,000 keys"),
    ("berth-services", "nothing but lists of the class is gone through"),
    (
        "berth-endpoint-slices",
        "addresses and networks are limited: see its module",
    ),
    ("berth-user-quotas", "berth-pod-sizes admits 120 gates"),
    (
        "berth-metadata",
        "controllers of the host alone set owners and finalizers, a few of each",
    ),
    ("berth-deletions", "nothing is gone through"),
    ("berth-pod-status", "a status has thirty fields"),
    ("berth-volume-claims", "30,000 annotations can be gone through"),
    ("berth-volume-snapshots", "nothing is gone through"),
    (
        "berth-resource-claims",
        "an API server admits 32 requests with 8 alternatives and 16 tolerations",
    ),
    ("berth-resource-claim-templates", "the same"),
    ("berth-pod-groups", "nothing but lists of the class is gone through"),
    (
        "berth-ingresses",
        "100 rules, and 700 hosts of tls with 64 names of the class",
    ),
    (
        "berth-routes",
        "the lists of the Gateway API, with values of a usual length",
    ),
    ("berth-pod-sizes", "each measure goes through what it limits, once"),
    ("berth-service-sizes", "the same"),
    ("berth-network-policy-sizes", "the same"),
    ("berth-disruption-budget-sizes", "the same"),
    (
        "berth-tenant-cluster-sizes",
        "texts are measured: a byte costs at most three tenths of a unit, and a request has 3 MiB",
    ),
    ("berth-object-sizes", "the same"),
    ("berth-mirror-pods", "nothing is gone through"),
    ("berth-kubelet-sizes", "texts are measured, as of TenantClusters"),
    (
        "berth-network-policies",
        "the syncer counts what it costs: see its module",
    ),
    ("berth-tenant-nodes", "nothing is gone through"),
    ("berth-tenant-clusters", "a schema admits 32 node groups"),
    ("berth-tenant-cluster-status", "nothing is gone through"),
    ("berth-snapshot-triggers", "nothing is gone through"),
    ("berth-gateway", "a TenantCluster may have 1,000 annotations"),
];

/// All expressions of a policy.
fn expressions(policy: &AdmissionPolicy) -> Vec<String> {
    let conditions = policy.subject_condition().map(|condition| condition.expression);
    let further = policy.conditions.iter().map(|(_, expression)| expression.clone());
    let variables = policy.variables.iter().map(|(_, expression)| expression.clone());
    let validations = { policy.validations.iter() }.map(|validation| validation.expression.clone());
    let all = { conditions.into_iter() }
        .chain(further)
        .chain(variables)
        .chain(validations);
    all.map(|expression| simplify(&expression)).collect()
}

/// The expression without what stands for fields that are not set.
fn simplify(expression: &str) -> String {
    let without_null = expression.replace(".optMap(l, dyn(l) == null ? [] : l)", "");
    ["([])", "({})"]
        .into_iter()
        .fold(without_null, |text, empty| {
            text.replace(&format!(".orValue{empty}"), "")
        })
        .replace(".?", ".")
}

/// What an expression goes through: the position and the list of each. Lists that are written in the expression are left out.
fn loops(expression: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for name in [".all(", ".exists(", ".exists_one(", ".filter(", ".map("] {
        for (position, _) in expression.match_indices(name) {
            let list = operand_before(&expression[..position]);
            // Of several in a row, the first has the list.
            let list = [".filter(", ".map("].into_iter().fold(list, |list, next| {
                list.split_once(next).map_or(list, |(first, _)| first)
            });
            if !list.starts_with("['") {
                found.push((position, list));
            }
        }
    }
    found
}

/// The operand at the end of a text: up to an operator, or a bracket that is open.
fn operand_before(text: &str) -> &str {
    let (mut start, mut depth, mut is_quoted) = (text.len(), 0_usize, false);
    for (position, character) in text.char_indices().rev() {
        match character {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            ')' | ']' => depth += 1,
            '(' | '[' if depth == 0 => break,
            '(' | '[' => depth -= 1,
            _ if depth > 0 || character.is_ascii_alphanumeric() || "._".contains(character) => {}
            _ => break,
        }
        start = position;
    }
    &text[start..]
}

/// Whether an evaluation of the policy that fails does more than reject the request of one whom it is about.
fn must_be_evaluated(policy: &AdmissionPolicy) -> bool {
    let asks_last = format!("|| {}", cel::may_bypass_policies());
    let mut validations = policy.validations.iter();
    policy.parameters.is_some() || validations.any(|validation| validation.expression.ends_with(&asks_last))
}

fn find_loop(policy: &AdmissionPolicy, list: &str) -> &'static Loop {
    let found = LOOPS.iter().find(|row| row.policy == policy.name && row.list == list);
    found.unwrap_or_else(|| panic!("{}: what bounds {list}? Add a row to LOOPS", policy.name))
}

#[test]
fn the_lists_of_expressions_are_found() {
    for (expression, expected) in [
        (
            "a || object.spec.?x.orValue([]).all(i, i.?y.orValue([]).exists(j, j == 'a') && ['b'].all(k, k))",
            vec!["object.spec.x", "i.y"],
        ),
        ("!variables.x.all(k, k in z)", vec!["variables.x"]),
        (
            "(x ? variables.y.filter(t, t.k == 1).map(t, t.k) : [])",
            vec!["variables.y", "variables.y"],
        ),
        (
            "object.spec.?t.optMap(l, dyn(l) == null ? [] : l).orValue([]).size() <= 3",
            vec![],
        ),
        ("a[?'b.c/d'].split(',').map(c, c)", vec!["a[?'b.c/d'].split(',')"]),
    ] {
        let simple = simplify(expression);
        let mut found = loops(&simple);
        found.sort_unstable();
        let found: Vec<&str> = found.into_iter().map(|(_, list)| list).collect();
        assert_eq!(found, expected, "{expression}");
    }
}

#[test]
fn every_policy_can_always_be_evaluated_or_says_why_it_may_fail() {
    let names = |wanted: bool| -> BTreeSet<&'static str> {
        let all = all_policies().into_iter();
        all.filter(|policy| must_be_evaluated(policy) == wanted)
            .map(|policy| policy.name)
            .collect()
    };
    let closed: BTreeSet<&str> = CLOSED.iter().map(|(name, _)| *name).collect();
    assert_eq!(names(false), closed, "CLOSED");
    assert!(CLOSED.len() == closed.len() && CLOSED.iter().all(|(_, why)| !why.is_empty()));
    let bounded = names(true);
    assert!(LOOPS.iter().all(|row| bounded.contains(row.policy)), "LOOPS");
}

#[test]
fn what_must_always_be_evaluated_goes_through_bounded_lists() {
    let mut seen = BTreeSet::new();
    for policy in all_policies().iter().filter(|policy| must_be_evaluated(policy)) {
        for expression in expressions(policy) {
            let mut cost = expression.matches(".check(").count() * CHECK;
            for (position, list) in loops(&expression) {
                let row = find_loop(policy, list);
                seen.insert((row.policy, row.list));
                cost += row.entries * row.each;
                let is_bounded = match row.because {
                    Schema | Token => true,
                    Guard(text) => expression.find(text).is_some_and(|guard| guard < position),
                    Kubelets(other) => {
                        let all = all_policies();
                        let limits = all.iter().find(|policy| policy.name == other);
                        limits.is_some_and(|policy| policy.parameters.is_none())
                    }
                };
                assert!(is_bounded, "{}: {list}: {expression}", policy.name);
            }
            assert!(cost < MOST, "{}: {cost}: {expression}", policy.name);
        }
    }
    let rows: BTreeSet<(&str, &str)> = LOOPS.iter().map(|row| (row.policy, row.list)).collect();
    assert_eq!(rows, seen, "rows of LOOPS that no expression needs");
}
