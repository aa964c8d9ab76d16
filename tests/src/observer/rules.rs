//! Rules that hold for nodes and pods at every moment. Pure. Nothing here is taken from control: the rules are those that the
//! documentation states, and the only names are the labels and annotations that it lists.

use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The labels, annotations and taints of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Label `berth.dev/tenant`.
    pub tenant: Option<String>,
    /// Label `berth.dev/state`.
    pub state_label: Option<String>,
    /// Annotation `berth.dev/state`.
    pub state: Option<String>,
    /// Annotation `berth.dev/owner-uid`.
    pub owner: Option<String>,
    /// Label `berth.dev/node-group`.
    pub group: Option<String>,
    /// Annotation `berth.dev/recycling-id`.
    pub recycling: Option<String>,
    /// Annotation `berth.dev/reserved-with`.
    pub reserved_with: Option<usize>,
    /// Value and effect of each taint `berth.dev/tenant`.
    pub taints: Vec<(String, String)>,
    /// Whether several tenants may use it at the same time.
    pub is_shared: bool,
}

/// A tenant's pod that is on a node and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// The node.
    pub node: String,
    /// The tenant.
    pub tenant: String,
}

/// A Job that cleans a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// The node.
    pub node: String,
    /// The recycling.
    pub recycling: String,
    /// Whether it has done its work.
    pub is_complete: bool,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change {
    /// A Node: its new state; none if it is gone.
    Node(String, Option<NodeView>),
    /// A pod: its new state; none if it is on no node any more.
    Pod(String, Option<PodView>),
    /// A Job: its new state; none if it is gone.
    Job(String, Option<JobView>),
}

/// The history of a node.
#[derive(Default)]
struct History {
    /// The owner that it served last.
    served: Option<String>,
    /// The tenant of the last pod on it.
    pods_of: Option<String>,
    /// When it served an owner, or had a pod, for the last time.
    used_at: u64,
    /// Whether it was cleaned since it served an owner.
    is_clean: bool,
    /// Whether it was cleaned since a pod was on it.
    is_clean_of_pods: bool,
    /// Whether it was changed by hand and not corrected yet.
    by_hand: bool,
}

/// The cluster, one change after the other.
#[derive(Default)]
pub struct Rules {
    must_clean: bool,
    nodes: BTreeMap<String, NodeView>,
    histories: BTreeMap<String, History>,
    pods: BTreeMap<String, PodView>,
    jobs: BTreeMap<String, (JobView, u64)>,
    by_hand: HashSet<u64>,
    /// How often a node went to another tenant.
    pub recyclings: u32,
    /// Pods that came to a node that their tenant had just lost.
    pub late: u32,
    /// Descriptions of violated rules.
    pub violations: Vec<String>,
}

impl Rules {
    /// With `must_clean`, pools clean their nodes.
    pub fn new(must_clean: bool) -> Self {
        Self {
            must_clean,
            ..Self::default()
        }
    }

    /// The change with this resource version is not control's.
    pub fn note_by_hand(&mut self, version: u64) {
        self.by_hand.insert(version);
    }

    /// Nodes that were changed by hand and not corrected.
    pub fn not_corrected(&self) -> Vec<&String> {
        let all = self.histories.iter();
        all.filter(|(_, history)| history.by_hand)
            .map(|(name, _)| name)
            .collect()
    }

    /// Applies the change with this resource version.
    pub fn apply(&mut self, version: u64, change: Change) {
        match change {
            Change::Node(name, Some(node)) => self.node(version, &name, &node),
            Change::Node(name, None) => {
                // The history stays: what a tenant left on the node is still there.
                self.nodes.remove(&name);
                self.histories.entry(name).or_default().by_hand = false;
            }
            Change::Pod(name, pod) => self.pod(version, &name, pod),
            Change::Job(name, Some(job)) => self.job(version, name, job),
            Change::Job(name, None) => {
                self.jobs.remove(&name);
            }
        }
    }

    fn violation(&mut self, version: u64, what: &str) {
        self.violations.push(format!("at {version}: {what}"));
    }

    fn node(&mut self, version: u64, name: &str, node: &NodeView) {
        let before = self.nodes.insert(name.to_owned(), node.clone());
        let history = self.histories.entry(name.to_owned()).or_default();
        let was_by_hand = history.by_hand;
        let disagreement = disagreement(node);
        if disagreement.is_none() {
            history.by_hand = false;
        } else if self.by_hand.contains(&version) {
            history.by_hand = true;
        }
        let by_hand = history.by_hand;
        let mut wrong = Vec::new();
        if let Some(disagreement) = disagreement
            && !by_hand
        {
            wrong.push(format!("{name}: {disagreement}: {node:?}"));
        }
        if let Some(owner) = node.owner.as_ref().filter(|_| serves(node)) {
            let went_on = before
                .as_ref()
                .is_some_and(|before| serves(before) && before.owner == node.owner);
            // Control has corrected a change by hand.
            let is_corrected = was_by_hand && history.served.as_ref() == Some(owner);
            if !went_on
                && !is_corrected
                && let Some(earlier) = &history.served
            {
                if earlier != owner {
                    self.recyclings += 1;
                }
                if self.must_clean && !history.is_clean {
                    wrong.push(format!(
                        "{name} went from {earlier} to {owner} and was not cleaned in between"
                    ));
                }
            }
            history.served = Some(owner.clone());
            history.is_clean = false;
            history.used_at = version;
        } else if before.as_ref().is_some_and(serves) {
            history.used_at = version;
        }
        if let Some(before) = &before
            && before.state.as_deref() == Some("Reserved")
            && node.state.as_deref() == Some("Joining")
            && !by_hand
        {
            let wanted = before.reserved_with.unwrap_or(1);
            let has = self.nodes.values().filter(|other| {
                let is_there = ["Reserved", "Joining", "Assigned"]
                    .map(Some)
                    .contains(&other.state.as_deref());
                is_there && other.owner == node.owner && other.group == node.group
            });
            let has = has.count();
            if has < wanted {
                wrong.push(format!("{name} joins, and its group has {has} of {wanted} nodes"));
            }
        }
        for what in wrong {
            self.violation(version, &what);
        }
    }

    fn pod(&mut self, version: u64, name: &str, pod: Option<PodView>) {
        let before = match &pod {
            Some(pod) => self.pods.insert(name.to_owned(), pod.clone()),
            None => self.pods.remove(name),
        };
        if let Some(before) = &before {
            self.histories.entry(before.node.clone()).or_default().used_at = version;
        }
        let Some(pod) = pod.filter(|pod| before.as_ref() != Some(pod)) else {
            return;
        };
        let node = self.nodes.get(&pod.node).cloned().unwrap_or_default();
        if node.is_shared {
            return;
        }
        let on_node = self.pods.values().filter(|other| other.node == pod.node);
        let tenants: BTreeSet<String> = on_node.map(|other| other.tenant.clone()).collect();
        if tenants.len() > 1 {
            self.violation(version, &format!("{} has pods of {tenants:?}", pod.node));
        }
        let history = self.histories.entry(pod.node.clone()).or_default();
        let mut wrong = Vec::new();
        if let Some(earlier) = history.pods_of.as_ref().filter(|earlier| **earlier != pod.tenant)
            && self.must_clean
            && !history.is_clean_of_pods
        {
            let node = &pod.node;
            wrong.push(format!(
                "{name} comes to {node}, which was not cleaned since {earlier} was there"
            ));
        }
        if !serves(&node) && !history.by_hand {
            // The scheduler's cache may be a moment old: the same tenant's node is being drained or cleaned by now.
            let is_leaving = ["Scrubbing", "Validating", "Quarantined"]
                .map(Some)
                .contains(&node.state.as_deref());
            if is_leaving && history.pods_of.as_ref().is_none_or(|of| *of == pod.tenant) {
                self.late += 1;
            } else {
                wrong.push(format!(
                    "{name} comes to {}, which serves no tenant: {node:?}",
                    pod.node
                ));
            }
        } else if node.tenant.as_ref().is_some_and(|tenant| *tenant != pod.tenant) {
            wrong.push(format!(
                "{name} comes to {}, which is another tenant's: {node:?}",
                pod.node
            ));
        }
        history.pods_of = Some(pod.tenant);
        history.is_clean_of_pods = false;
        history.used_at = version;
        for what in wrong {
            self.violation(version, &what);
        }
    }

    fn job(&mut self, version: u64, name: String, job: JobView) {
        let began = self.jobs.get(&name).map_or(version, |(_, began)| *began);
        self.jobs.insert(name, (job.clone(), began));
        let is_of_this = self
            .nodes
            .get(&job.node)
            .is_some_and(|node| node.recycling.as_ref() == Some(&job.recycling));
        let is_empty = !self.pods.values().any(|pod| pod.node == job.node);
        let history = self.histories.entry(job.node).or_default();
        if job.is_complete && is_of_this && is_empty && began > history.used_at {
            history.is_clean = true;
            history.is_clean_of_pods = true;
        }
    }
}

/// Whether tenants' pods may be on a node, as the documentation says.
fn serves(node: &NodeView) -> bool {
    ["Assigned", "Cordoned", "Draining"]
        .map(Some)
        .contains(&node.state.as_deref())
}

/// How labels, annotations and taints of a node disagree; none if they agree.
fn disagreement(node: &NodeView) -> Option<String> {
    if node.is_shared {
        let alone = node.tenant.is_some() || node.state.is_some() || !node.taints.is_empty();
        return alone.then(|| "it is shared, and a single tenant's".into());
    }
    if node.state_label != node.state {
        return Some("the label of the state and its annotation differ".into());
    }
    let Some(state) = &node.state else {
        let left = node.tenant.is_some() || node.owner.is_some() || node.group.is_some() || !node.taints.is_empty();
        return left.then(|| "it is free, and something of a tenant is left on it".into());
    };
    let (leaving, staying): (Vec<_>, Vec<_>) = node.taints.iter().partition(|(_, effect)| effect == "NoExecute");
    let [(value, _)] = leaving.as_slice() else {
        return Some(format!("{} of its taints keep pods away", leaving.len()));
    };
    let is_drained = state == "Draining";
    if staying.len() != usize::from(is_drained) || staying.iter().any(|(value, _)| value != "recycling") {
        return Some(format!("it has {staying:?} against new pods"));
    }
    // A node whose owner is unknown is drained, and carries no tenant's label.
    let wanted = match (&node.tenant, serves(node)) {
        (Some(tenant), true) => tenant,
        (None, true) if is_drained => "recycling",
        (None, true) => return Some("it serves a tenant without its label".into()),
        (Some(_), false) => return Some("it serves no tenant but carries a tenant's label".into()),
        (None, false) => "recycling",
    };
    if value != wanted {
        return Some(format!("its taint is for {value}, not for {wanted}"));
    }
    let has_owner = serves(node) || ["Reserved", "Joining"].contains(&state.as_str());
    // A node whose owner is unknown is drained.
    let is_unknown = is_drained && node.owner.is_none();
    if node.owner.is_some() != has_owner && !is_unknown {
        return Some("its state and its owner do not fit".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: &str, tenant: &str) -> NodeView {
        let serves = ["Assigned", "Cordoned", "Draining"].contains(&state);
        let coming = ["Reserved", "Joining"].contains(&state);
        let some = |text: &str, wanted: bool| wanted.then(|| text.to_owned());
        NodeView {
            tenant: some(tenant, serves),
            state_label: some(state, !state.is_empty()),
            state: some(state, !state.is_empty()),
            owner: some(&format!("uid-{tenant}"), serves || coming),
            group: some("burst", serves || coming),
            recycling: some("h1", state == "Scrubbing" || state == "Validating"),
            reserved_with: None,
            taints: {
                let value = if serves { tenant } else { "recycling" };
                let mut taints = vec![(value.to_owned(), "NoExecute".to_owned())];
                taints.retain(|_| !state.is_empty());
                taints.extend((state == "Draining").then(|| ("recycling".into(), "NoSchedule".into())));
                taints
            },
            is_shared: false,
        }
    }

    /// The violations after these changes: a node's state and tenant, a pod that comes (`+tenant`) or goes (`-tenant`), a
    /// Job of the recycling that begins or is done.
    fn violations_after(changes: &[(&str, &str)]) -> Vec<String> {
        let mut rules = Rules::new(true);
        for (version, (what, tenant)) in (1..).zip(changes) {
            let pod = PodView {
                node: "n".into(),
                tenant: (*tenant).into(),
            };
            let job = JobView {
                node: "n".into(),
                recycling: "h1".into(),
                is_complete: *what == "done",
            };
            let change = match *what {
                "+" => Change::Pod((*tenant).into(), Some(pod)),
                "-" => Change::Pod((*tenant).into(), None),
                "begins" | "done" => Change::Job("scrub".into(), Some(job)),
                state => Change::Node("n".into(), Some(node(state, tenant))),
            };
            rules.apply(version, change);
        }
        rules.violations
    }

    const A: [(&str, &str); 4] = [("Assigned", "a"), ("+", "a"), ("Draining", "a"), ("-", "a")];
    const B: [(&str, &str); 4] = [("", ""), ("Joining", "b"), ("Assigned", "b"), ("+", "b")];

    fn between(changes: &[(&str, &str)]) -> Vec<String> {
        violations_after(&[&A[..], changes, &B[..]].concat())
    }

    #[test]
    fn a_complete_recycling_is_no_violation() {
        let clean = [("Scrubbing", ""), ("begins", ""), ("done", ""), ("Validating", "")];
        assert_eq!(between(&clean), Vec::<String>::new());
    }

    #[test]
    fn a_node_that_was_not_cleaned_is_a_violation() {
        for wrong in [
            &[("Scrubbing", ""), ("Validating", "")][..],
            &[("Scrubbing", ""), ("begins", ""), ("Validating", "")],
            &[
                ("begins", ""),
                ("Scrubbing", ""),
                ("Validating", ""),
                ("Quarantined", ""),
            ],
            // A pod was there while it was cleaned.
            &[("Scrubbing", ""), ("begins", ""), ("+", "a"), ("-", "a"), ("done", "")],
        ] {
            let violations = between(wrong);
            assert!(
                violations.iter().any(|what| what.contains("not cleaned")),
                "{wrong:?}: {violations:?}"
            );
        }
    }

    #[test]
    fn two_tenants_at_once_and_pods_on_a_free_node_are_violations() {
        assert!(
            violations_after(&[("Assigned", "a"), ("+", "a"), ("+", "b")])
                .concat()
                .contains("has pods of")
        );
        assert!(
            violations_after(&[("Assigned", "a"), ("+", "b")])
                .concat()
                .contains("another tenant's")
        );
        assert!(
            violations_after(&[("", ""), ("+", "a")])
                .concat()
                .contains("serves no tenant")
        );
        assert!(
            violations_after(&[("Joining", "a"), ("+", "a")])
                .concat()
                .contains("serves no tenant")
        );
    }

    #[test]
    fn a_disagreement_made_by_hand_must_be_corrected() {
        let mut without_label = node("Assigned", "a");
        without_label.tenant = None;
        let mut other_taint = node("Assigned", "a");
        other_taint.taints[0].0 = "b".into();
        let mut left = node("", "");
        left.owner = Some("uid-a".into());
        let mut early = node("Scrubbing", "");
        early.tenant = Some("a".into());
        let mut open = node("Draining", "a");
        open.taints.pop();
        for wrong in [without_label.clone(), other_taint, left, early, open] {
            assert!(disagreement(&wrong).is_some(), "{wrong:?}");
        }
        let mut rules = Rules::new(true);
        rules.note_by_hand(1);
        rules.apply(1, Change::Node("n".into(), Some(without_label)));
        assert_eq!((rules.violations.len(), rules.not_corrected().len()), (0, 1));
        rules.apply(2, Change::Node("n".into(), Some(node("Assigned", "a"))));
        assert!(rules.not_corrected().is_empty() && rules.violations.is_empty());
    }

    #[test]
    fn a_gang_that_joins_without_its_last_node_is_a_violation() {
        let mut rules = Rules::new(true);
        for (version, name) in [(1, "n1"), (2, "n2")] {
            let mut reserved = node("Reserved", "a");
            reserved.reserved_with = Some(3);
            rules.apply(version, Change::Node(name.into(), Some(reserved)));
        }
        rules.apply(3, Change::Node("n1".into(), Some(node("Joining", "a"))));
        assert!(rules.violations.concat().contains("2 of 3"), "{:?}", rules.violations);
    }
}
