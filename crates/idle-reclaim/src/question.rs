//! What Prometheus is asked, and about which pods.
//!
//! Activity decides alone: a pod of which one GPU did something is active, however complete its series are. So the peaks come first. The
//! newest samples are asked for only of pods that showed no activity, and gaps only of those of them that have new samples. A window that only some pods have, as that of
//! notebooks, costs no queries about the others.

use crate::{
    Seconds,
    evidence::{self, Metrics, Verdict},
    pod::GpuPod,
    policy::{Policy, Timings},
    query::Pods,
    signal::Signal,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// All questions of a pass.
#[derive(Clone, Debug)]
pub struct Questions<'a> {
    /// One for each window.
    pub by_window: Vec<Question<'a>>,
    gpu_resources: &'a BTreeSet<String>,
    /// How many pods with GPUs there are, at least.
    all_pods: usize,
}

/// What is asked over one window.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The window.
    pub window: Seconds,
    /// The signals that the rules of its pods evaluate.
    pub signals: BTreeSet<Signal>,
    pods: Vec<(&'a Policy, Timings, &'a GpuPod)>,
}

impl<'a> Questions<'a> {
    /// Questions about all pods with GPUs of some tenants, each with the rules of its class. `gpu_resources` are those that count the GPUs
    /// of pools.
    pub fn about_all(
        tenants: impl IntoIterator<Item = (&'a Policy, &'a [Arc<GpuPod>])>,
        gpu_resources: &'a BTreeSet<String>,
    ) -> Self {
        let mut questions = Self::about_few(tenants, gpu_resources);
        questions.all_pods = questions.by_window.iter().map(|question| question.pods.len()).sum();
        questions
    }

    /// The same about a few pods of many.
    pub fn about_few(
        tenants: impl IntoIterator<Item = (&'a Policy, &'a [Arc<GpuPod>])>,
        gpu_resources: &'a BTreeSet<String>,
    ) -> Self {
        let mut by_window: BTreeMap<Seconds, Question<'a>> = BTreeMap::new();
        for (policy, pods) in tenants {
            let with_gpus = pods
                .iter()
                .filter(|pod| pod.holds_devices() && pod.may_have_gpus(gpu_resources));
            for pod in with_gpus {
                let (_, timings) = policy.timings_of(&pod.labels);
                let question = by_window.entry(timings.window).or_insert_with(|| Question {
                    window: timings.window,
                    signals: BTreeSet::new(),
                    pods: Vec::new(),
                });
                question.signals.extend(&policy.signals);
                question.pods.push((policy, timings, pod));
            }
        }
        Self {
            by_window: by_window.into_values().collect(),
            gpu_resources,
            all_pods: usize::MAX,
        }
    }

    /// The pods whose peaks are needed.
    pub fn pods(&self, question: &Question<'_>) -> Vec<Pods> {
        let names = question.pods.iter().map(|(_, _, pod)| pod.name.as_str());
        Pods::select(names.collect(), self.all_pods)
    }

    /// The queries about some pods of a question.
    pub fn select(&self, pods: &[&GpuPod]) -> Vec<Pods> {
        let names = pods.iter().map(|pod| pod.name.as_str());
        Pods::select(names.collect(), self.all_pods)
    }

    /// The pods of a question with this verdict by what is known now.
    pub fn pods_with(
        &self,
        verdict: Verdict,
        question: &Question<'a>,
        known: &Metrics,
        now: Seconds,
    ) -> Vec<&'a GpuPod> {
        let has_it = |policy: &Policy, timings: Timings, pod: &GpuPod| {
            evidence::judge(pod, policy, timings, self.gpu_resources, Some(known), now) == verdict
        };
        let pods = question.pods.iter();
        pods.filter(|(policy, timings, pod)| has_it(policy, *timings, pod))
            .map(|(_, _, pod)| *pod)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        evidence::Unknown,
        query::Aggregation,
        series::SeriesTable,
        testing::{self, NOW, SIGNALS},
    };
    use berth_api::{IdleProfile, IdleReclaim, IdleSignal};

    fn names(pods: &[Pods]) -> String {
        format!("{pods:?}")
    }

    /// A fleet in which few pods are asked about one by one.
    fn fleet(count: usize) -> Vec<Arc<GpuPod>> {
        (0..count)
            .map(|index| Arc::new(testing::pod(&format!("p{index}"), 1)))
            .collect()
    }

    fn peaks(pods: &[Arc<GpuPod>], activity: impl Fn(usize) -> f64) -> Metrics {
        let mut table = SeriesTable::default();
        for (index, pod) in pods.iter().enumerate() {
            for signal in SIGNALS {
                table.record(&testing::row(pod, 0), signal, Aggregation::Peak, activity(index));
            }
        }
        testing::metrics(table)
    }

    /// The pods of the first window whose newest samples are asked for, by the peaks.
    fn undecided<'a>(questions: &Questions<'a>, peaks: &Metrics) -> Vec<&'a GpuPod> {
        questions.pods_with(
            Verdict::Unknown(Unknown::StaleSeries),
            &questions.by_window[0],
            peaks,
            NOW,
        )
    }

    #[test]
    fn gaps_are_asked_for_only_of_pods_that_show_no_activity() {
        let (policy, resources) = (Policy::new(&IdleReclaim::default()), BTreeSet::new());
        let mut pods = fleet(4);
        Arc::make_mut(&mut pods[3]).started_at = Some(NOW - 60);
        let questions = Questions::about_few([(&policy, pods.as_slice())], &resources);
        let metrics = peaks(&pods, |index| if index == 0 { 0.5 } else { 0.0 });
        let asked = names(&questions.select(&undecided(&questions, &metrics)));
        assert!(asked.contains("p1-host") && asked.contains("p2-host"), "{asked}");
        assert!(!asked.contains("p0-host"), "it is active: {asked}");
        assert!(!asked.contains("p3-host"), "it has just started: {asked}");
    }

    #[test]
    fn without_idle_pods_gaps_are_not_asked_for() {
        let (policy, resources) = (Policy::new(&IdleReclaim::default()), BTreeSet::new());
        let pods = fleet(3);
        let questions = Questions::about_all([(&policy, pods.as_slice())], &resources);
        assert!(undecided(&questions, &peaks(&pods, |_| 0.5)).is_empty());
        let nothing = peaks(&[], |_| 0.0);
        assert!(undecided(&questions, &nothing).is_empty(), "their series are missing");
    }

    #[test]
    fn the_window_of_some_pods_costs_queries_about_these_only() {
        let rules = IdleReclaim {
            additional_signals: vec![IdleSignal::MemoryActivity],
            profiles: vec![IdleProfile {
                name: "notebooks".into(),
                match_labels: [("notebook-name".to_owned(), String::new())].into(),
                window: Some("4h".into()),
                ..IdleProfile::default()
            }],
            ..IdleReclaim::default()
        };
        let (policy, resources) = (Policy::new(&rules), BTreeSet::new());
        let mut pods = fleet(2000);
        Arc::make_mut(&mut pods[7])
            .labels
            .insert("notebook-name".into(), "anna".into());
        let questions = Questions::about_all([(&policy, pods.as_slice())], &resources);
        let [of_others, of_notebooks] = questions.by_window.as_slice() else {
            panic!("{questions:?}")
        };
        assert_eq!((of_others.window, of_notebooks.window), (3600, 4 * 3600));
        assert_eq!(questions.pods(of_others), [Pods::All]);
        let asked = questions.pods(of_notebooks);
        assert_eq!(asked.len(), 1);
        assert!(names(&asked).contains("p7-host"), "{asked:?}");
        assert_eq!(of_notebooks.signals.len(), 4);
    }

    #[test]
    fn pods_that_hold_no_gpus_are_not_asked_about() {
        let (policy, resources) = (Policy::new(&IdleReclaim::default()), BTreeSet::new());
        let mut pods = fleet(1);
        Arc::make_mut(&mut pods[0]).devices_held = crate::pod::DevicesHeld::NotYet;
        let questions = Questions::about_all([(&policy, pods.as_slice())], &resources);
        assert!(questions.by_window.is_empty());
    }
}
