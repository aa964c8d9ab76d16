//! Pods that are judged as one, because one of them waits for the others: those of one owner and those of one gang.
//!
//! A host pod has no owner. The labels that controllers put on their pods are on the host pod as well; they name it. A label that
//! joins more pods than belong together only makes Berth more careful, because a workload is idle if all of its pods are.

use crate::pod::GpuPod;
use std::{collections::BTreeMap, sync::Arc};

/// Which pods are judged as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadName {
    /// What the pods have in common, for example Job or Gang.
    pub kind: String,
    /// Namespace in the tenant.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Pods that are judged as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name: that of the widest owner.
    pub name: WorkloadName,
    /// Its pods.
    pub pods: Vec<Arc<GpuPod>>,
}

/// Labels that name an owner of several pods, with its kind. Owners of owners come first.
const OWNER_LABELS: [(&str, &str); 10] = [
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("training.kubeflow.org/job-name", "TrainingJob"),
    ("ray.io/cluster", "RayCluster"),
    ("volcano.sh/job-name", "VolcanoJob"),
    ("sparkoperator.k8s.io/app-name", "SparkApplication"),
    // Spark itself sets it, also without the operator.
    ("spark-app-selector", "Spark"),
    ("workflows.argoproj.io/workflow", "Workflow"),
    ("batch.kubernetes.io/job-name", "Job"),
    ("job-name", "Job"),
];
/// Label of the pods of a StatefulSet: their own name.
const STATEFUL_SET_POD: &str = "statefulset.kubernetes.io/pod-name";
/// Label of the pods of a Deployment: a part of their names.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Kind of a workload that has only a gang in common.
const GANG: &str = "Gang";
/// Kind of a single pod.
const POD: &str = "Pod";

/// Puts the pods of one owner and those of one gang together.
pub fn group(pods: &[Arc<GpuPod>]) -> Vec<Workload> {
    // Each pod begins as a group of its own; a name that two pods have joins their groups.
    let mut parents: Vec<usize> = (0..pods.len()).collect();
    let mut first_with: BTreeMap<WorkloadName, usize> = BTreeMap::new();
    for (index, pod) in pods.iter().enumerate() {
        for name in names(pod) {
            let first = *first_with.entry(name).or_insert(index);
            let (root, own) = (find_root(&mut parents, first), find_root(&mut parents, index));
            parents[root.max(own)] = root.min(own);
        }
    }
    let mut groups: BTreeMap<usize, Vec<Arc<GpuPod>>> = BTreeMap::new();
    for (index, pod) in pods.iter().enumerate() {
        groups
            .entry(find_root(&mut parents, index))
            .or_default()
            .push(Arc::clone(pod));
    }
    groups
        .into_values()
        .map(|pods| Workload {
            name: name_of_group(&pods),
            pods,
        })
        .collect()
}

fn find_root(parents: &mut [usize], index: usize) -> usize {
    let mut root = index;
    while parents[root] != root {
        // Halves the path for the next time.
        parents[root] = parents[parents[root]];
        root = parents[root];
    }
    root
}

/// The smallest of the names that most pods would have: the same in every pass, whatever the order of the pods is.
fn name_of_group(pods: &[Arc<GpuPod>]) -> WorkloadName {
    let first_names = pods.iter().filter_map(|pod| names(pod).into_iter().next());
    first_names.min().unwrap_or_default()
}

/// What a pod has in common with others: its owner and its gang, else itself.
fn names(pod: &GpuPod) -> Vec<WorkloadName> {
    let named = |kind: &str, name: &str| WorkloadName {
        kind: kind.to_owned(),
        namespace: pod.origin_namespace.clone(),
        name: name.to_owned(),
    };
    let gang = pod.gang.as_deref().map(|gang| named(GANG, gang));
    let mut names: Vec<WorkloadName> = owner(pod)
        .map(|(kind, name)| named(kind, &name))
        .into_iter()
        .chain(gang)
        .collect();
    if names.is_empty() {
        names.push(named(POD, &pod.origin_name));
    }
    names
}

fn owner(pod: &GpuPod) -> Option<(&'static str, String)> {
    let label = |key: &str| pod.labels.get(key).filter(|value| !value.is_empty());
    let labelled = OWNER_LABELS
        .iter()
        .find_map(|(key, kind)| Some((*kind, label(key)?.clone())));
    let stateful_set = || {
        let (name, _) = label(STATEFUL_SET_POD)?.rsplit_once('-')?;
        Some(("StatefulSet", name.to_owned()))
    };
    let deployment = || {
        let hash = label(TEMPLATE_HASH)?;
        let name = pod.origin_name.split(&format!("-{hash}-")).next();
        Some(("Deployment", name.unwrap_or(hash).to_owned()))
    };
    labelled.or_else(stateful_set).or_else(deployment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn pod(name: &str, labels: &[(&str, &str)], gang: Option<&str>) -> Arc<GpuPod> {
        Arc::new(GpuPod {
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            gang: gang.map(ToOwned::to_owned),
            ..testing::pod(name, 1)
        })
    }

    fn groups(pods: &[Arc<GpuPod>]) -> Vec<(String, usize)> {
        group(pods)
            .into_iter()
            .map(|workload| {
                let WorkloadName { kind, namespace, name } = workload.name;
                (format!("{kind} {namespace}/{name}"), workload.pods.len())
            })
            .collect()
    }

    #[test]
    fn owners_are_named_by_the_labels_of_their_controllers() {
        let pods = [
            pod("alone", &[], None),
            pod(
                "train-0-abcde",
                &[("batch.kubernetes.io/job-name", "train"), ("job-name", "train")],
                None,
            ),
            pod("train-1-fghij", &[("batch.kubernetes.io/job-name", "train")], None),
            pod("web-7d9-x1", &[("pod-template-hash", "7d9")], None),
            pod("web-5c4-x2", &[("pod-template-hash", "5c4")], None),
            pod("lab-0", &[("statefulset.kubernetes.io/pod-name", "lab-0")], None),
        ];
        let expected = [
            ("Pod ml/alone", 1),
            ("Job ml/train", 2),
            ("Deployment ml/web", 2),
            ("StatefulSet ml/lab", 1),
        ];
        assert_eq!(groups(&pods), expected.map(|(name, count)| (name.to_owned(), count)));
    }

    #[test]
    fn pods_of_one_job_of_each_known_controller_are_judged_as_one() {
        // The labels that each controller sets on the pods of one job, as its source says.
        let controllers: [(&str, &[(&str, &str)]); 8] = [
            (
                "JobSet ml/a",
                &[
                    ("jobset.sigs.k8s.io/jobset-name", "a"),
                    ("batch.kubernetes.io/job-name", "a-workers-0"),
                ],
            ),
            (
                "TrainingJob ml/a",
                &[
                    ("training.kubeflow.org/job-name", "a"),
                    ("training.kubeflow.org/replica-type", "worker"),
                ],
            ),
            (
                "RayCluster ml/a",
                &[("ray.io/cluster", "a"), ("ray.io/node-type", "worker")],
            ),
            (
                "VolcanoJob ml/a",
                &[("volcano.sh/job-name", "a"), ("volcano.sh/job-namespace", "ml")],
            ),
            (
                "SparkApplication ml/a",
                &[
                    ("sparkoperator.k8s.io/app-name", "a"),
                    ("spark-app-selector", "spark-1"),
                    ("spark-role", "executor"),
                ],
            ),
            (
                "Spark ml/spark-1",
                &[("spark-app-selector", "spark-1"), ("spark-role", "executor")],
            ),
            (
                "Workflow ml/a",
                &[
                    ("workflows.argoproj.io/workflow", "a"),
                    ("workflows.argoproj.io/completed", "false"),
                ],
            ),
            (
                "LeaderWorkerSet ml/a",
                &[
                    ("leaderworkerset.sigs.k8s.io/name", "a"),
                    ("statefulset.kubernetes.io/pod-name", "a-0-1"),
                ],
            ),
        ];
        for (name, labels) in controllers {
            let pods = ["a-0", "a-1"].map(|pod_name| pod(pod_name, labels, None));
            assert_eq!(groups(&pods), [(name.to_owned(), 2)]);
        }
    }

    #[test]
    fn gangs_and_owners_that_overlap_are_one() {
        let pods = [
            pod("a", &[("job-name", "first")], Some("both")),
            pod("b", &[("job-name", "second")], Some("both")),
            pod("c", &[("job-name", "second")], None),
            pod("d", &[], Some("other")),
        ];
        assert_eq!(
            groups(&pods),
            [("Job ml/first".to_owned(), 3), ("Gang ml/other".to_owned(), 1)]
        );
    }

    #[test]
    fn the_name_does_not_depend_on_the_order_of_the_pods() {
        let mut pods = vec![
            pod("a", &[("job-name", "z")], Some("g")),
            pod("b", &[], Some("g")),
            pod("c", &[("job-name", "z")], None),
        ];
        let name = groups(&pods)[0].clone();
        pods.reverse();
        assert_eq!(groups(&pods), [name]);
    }

    #[test]
    fn namespaces_are_apart() {
        let mut other = GpuPod::clone(&pod("a", &[("job-name", "train")], None));
        other.origin_namespace = "vision".into();
        let pods = [pod("a", &[("job-name", "train")], None), Arc::new(other)];
        assert_eq!(groups(&pods).len(), 2);
    }
}
