//! Pods that teams excepted, up to the numbers of GPUs that the class allows in each namespace and in the whole tenant.

use crate::{Seconds, policy::selects, workload::Workload};
use berth_api::IdleOptOut;
use std::collections::{BTreeMap, BTreeSet};

/// Which of the workloads of a tenant are excepted, by their places in the list. `gpus` are the GPUs of each. Those that started first come
/// first, so that a new one never takes the place of one that was excepted.
pub fn find_excepted(rules: Option<&IdleOptOut>, workloads: &[Workload], gpus: &[u32]) -> BTreeSet<usize> {
    let Some(rules) = rules else { return BTreeSet::new() };
    let IdleOptOut {
        match_labels,
        max_gpus_per_namespace,
        max_gpus_per_tenant: _,
    } = rules;
    let mut requests: Vec<(Seconds, usize)> = workloads
        .iter()
        .enumerate()
        .filter(|(_, workload)| workload.pods.iter().any(|pod| selects(match_labels, &pod.labels)))
        .map(|(index, workload)| (started_at(workload), index))
        .collect();
    requests.sort_by(|a, b| (a.0, &workloads[a.1].name).cmp(&(b.0, &workloads[b.1].name)));
    let mut used: BTreeMap<&str, u32> = BTreeMap::new();
    let mut left = rules.max_gpus_of_tenant();
    let mut excepted = BTreeSet::new();
    for (_, index) in requests {
        let used = used.entry(&workloads[index].name.namespace).or_default();
        let requested = gpus.get(index).copied().unwrap_or_default();
        let sum = used.saturating_add(requested);
        if sum <= *max_gpus_per_namespace && requested <= left {
            *used = sum;
            left -= requested;
            excepted.insert(index);
        }
    }
    excepted
}

/// When the first of its pods started.
fn started_at(workload: &Workload) -> Seconds {
    let times = workload.pods.iter().filter_map(|pod| pod.started_at);
    times.min().unwrap_or(Seconds::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pod::GpuPod, testing, workload};
    use std::sync::Arc;

    fn rules(max: u32, of_tenant: Option<u32>) -> IdleOptOut {
        IdleOptOut {
            match_labels: [("example.com/keep-gpus".to_owned(), "true".to_owned())].into(),
            max_gpus_per_namespace: max,
            max_gpus_per_tenant: of_tenant,
        }
    }

    fn excepted(pods: &[(&str, u32, Seconds, bool)], max: u32) -> Vec<String> {
        let rules = rules(max, None);
        let pods: Vec<Arc<GpuPod>> = pods
            .iter()
            .map(|(name, gpus, started_at, is_excepted)| {
                let mut pod = testing::pod(name, *gpus);
                pod.started_at = Some(*started_at);
                if *is_excepted {
                    pod.labels.clone_from(&rules.match_labels);
                }
                Arc::new(pod)
            })
            .collect();
        let workloads = workload::group(&pods);
        let gpus: Vec<u32> = workloads
            .iter()
            .map(|workload| workload.pods[0].gpus(&BTreeSet::new()))
            .collect();
        let found = find_excepted(Some(&rules), &workloads, &gpus);
        found
            .into_iter()
            .map(|index| workloads[index].name.name.clone())
            .collect()
    }

    #[test]
    fn the_budget_goes_to_those_that_started_first() {
        let pods = [
            ("new", 4, 30, true),
            ("old", 4, 10, true),
            ("large", 8, 20, true),
            ("without", 1, 1, false),
        ];
        assert_eq!(excepted(&pods, 8), ["new", "old"], "the large one does not fit");
        assert_eq!(excepted(&pods, 4), ["old"]);
        assert!(excepted(&pods, 3).is_empty());
    }

    #[test]
    fn namespaces_of_a_tenant_share_one_budget() {
        let excepted = |rules: &IdleOptOut| {
            let pods: Vec<Arc<GpuPod>> = [("a", 1), ("b", 2), ("c", 3)]
                .into_iter()
                .map(|(namespace, started_at)| {
                    let mut pod = testing::pod("job", 4);
                    pod.origin_namespace = namespace.into();
                    pod.started_at = Some(started_at);
                    pod.labels.clone_from(&rules.match_labels);
                    Arc::new(pod)
                })
                .collect();
            find_excepted(Some(rules), &workload::group(&pods), &[4, 4, 4]).len()
        };
        assert_eq!(excepted(&rules(4, None)), 1, "as many as in one namespace");
        assert_eq!(excepted(&rules(4, Some(8))), 2);
        assert_eq!(excepted(&rules(4, Some(7))), 1);
        assert_eq!(excepted(&rules(4, Some(100))), 3);
        assert_eq!(excepted(&rules(3, Some(100))), 0);
        assert_eq!(excepted(&rules(4, Some(0))), 0);
    }

    #[test]
    fn without_rules_nothing_is_excepted() {
        let pods = [Arc::new(testing::pod("a", 1))];
        assert!(find_excepted(None, &workload::group(&pods), &[1]).is_empty());
    }
}
