//! The rules of a class, ready to be applied.

use crate::{
    Seconds,
    signal::{self, ALWAYS, Signal},
};
use berth_api::{
    GpuHourPrice, IdleLastStep, IdleOptOut, IdleProfile, IdleReclaim, IdleReclaimMode, IdleStep, KubeDuration,
    OwnerKind,
};
use std::collections::BTreeMap;

/// Times of the class or of one of its profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time without activity after which a pod is idle.
    pub window: Seconds,
    /// From the first warning to the request to write a checkpoint.
    pub grace_period: Seconds,
    /// From that request to the last step.
    pub checkpoint_period: Seconds,
    /// Time after the start that is not evaluated.
    pub startup_grace_period: Seconds,
    /// Time with a node after which a pod whose containers have not started is judged by its metrics alone.
    pub max_startup: Seconds,
    /// Time that a pod may run at least.
    pub minimum_runtime: Seconds,
}

impl Timings {
    /// The longer of each.
    #[must_use]
    pub fn longest(self, other: Self) -> Self {
        Self {
            window: self.window.max(other.window),
            grace_period: self.grace_period.max(other.grace_period),
            checkpoint_period: self.checkpoint_period.max(other.checkpoint_period),
            startup_grace_period: self.startup_grace_period.max(other.startup_grace_period),
            max_startup: self.max_startup.max(other.max_startup),
            minimum_runtime: self.minimum_runtime.max(other.minimum_runtime),
        }
    }

    /// Time between a step and the next one.
    pub const fn wait_after(&self, step: IdleStep) -> Seconds {
        match step {
            IdleStep::Warned => self.grace_period - self.grace_period / 2,
            IdleStep::WarnedAgain => self.grace_period / 2,
            IdleStep::CheckpointRequested | IdleStep::Reclaimable => self.checkpoint_period,
        }
    }
}

/// Which values count as none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    activity: f64,
    traffic: f64,
    power: f64,
    power_of_products: BTreeMap<String, f64>,
}

impl Limits {
    /// The largest value of a signal that counts as none.
    pub fn of(&self, signal: Signal, product: &str) -> f64 {
        match signal {
            Signal::Engine | Signal::Tensor | Signal::Memory => self.activity,
            Signal::PcieSent | Signal::PcieReceived | Signal::NvlinkSent | Signal::NvlinkReceived => self.traffic,
            Signal::Power => self.power_of_products.get(product).copied().unwrap_or(self.power),
        }
    }
}

/// Times for pods with certain labels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Profile {
    name: String,
    match_labels: BTreeMap<String, String>,
    timings: Timings,
}

/// The rules of a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// What Berth does about idle GPUs.
    pub mode: IdleReclaimMode,
    /// What it does with workloads that are still idle at the end.
    pub last_step: IdleLastStep,
    /// Time after the last step in which disruption budgets may keep pods.
    pub eviction_timeout: Seconds,
    /// Kinds of owners that may be stopped.
    pub owner_kinds: Vec<OwnerKind>,
    /// Which values count as none.
    pub limits: Limits,
    /// Signals that must show no activity.
    pub signals: Vec<Signal>,
    /// Pods that teams may except.
    pub opt_out: Option<IdleOptOut>,
    /// Price of one hour of one GPU.
    pub gpu_hour_price: Option<GpuHourPrice>,
    timings: Timings,
    profiles: Vec<Profile>,
}

/// Shortest window, whatever the class says. The schema rejects shorter ones; a text that is no duration counts as zero.
const SHORTEST_WINDOW: Seconds = 1800;

impl Policy {
    /// Reads the rules of a class.
    pub fn new(rules: &IdleReclaim) -> Self {
        Self::with_shortest_window(rules, SHORTEST_WINDOW)
    }

    /// As [`Policy::new`], with another shortest window. For tests, which cannot wait for half an hour.
    pub fn with_shortest_window(rules: &IdleReclaim, shortest_window: Seconds) -> Self {
        let IdleReclaim {
            mode,
            window,
            grace_period,
            checkpoint_period,
            eviction_timeout,
            last_step,
            owner_kinds,
            startup_grace_period,
            max_startup,
            minimum_runtime,
            max_activity_permille,
            max_traffic_bytes_per_second,
            max_power_watts,
            products,
            additional_signals,
            profiles,
            opt_out,
            gpu_hour_price,
        } = rules;
        let timings = Timings {
            window: window.seconds().max(shortest_window),
            grace_period: grace_period.seconds(),
            checkpoint_period: checkpoint_period.seconds(),
            startup_grace_period: startup_grace_period.seconds(),
            max_startup: max_startup.seconds(),
            minimum_runtime: minimum_runtime.seconds(),
        };
        let mut signals = ALWAYS.to_vec();
        let additional = additional_signals.iter().copied();
        signals.extend(additional.flat_map(signal::measured));
        signals.sort_unstable();
        signals.dedup();
        let traffic = u32::try_from(*max_traffic_bytes_per_second).unwrap_or(u32::MAX);
        Self {
            mode: *mode,
            last_step: *last_step,
            eviction_timeout: eviction_timeout.seconds(),
            owner_kinds: owner_kinds.clone(),
            limits: Limits {
                activity: f64::from(*max_activity_permille) / 1000.0,
                traffic: f64::from(traffic),
                power: f64::from(*max_power_watts),
                power_of_products: products
                    .iter()
                    .map(|product| (product.product.clone(), f64::from(product.max_power_watts)))
                    .collect(),
            },
            signals,
            opt_out: opt_out.clone(),
            gpu_hour_price: gpu_hour_price.clone(),
            timings,
            profiles: profiles
                .iter()
                .map(|profile| read_profile(profile, timings, shortest_window))
                .collect(),
        }
    }

    /// The times for a pod with these labels, and the name of the profile that they come from.
    pub fn timings_of(&self, labels: &BTreeMap<String, String>) -> (Option<&str>, Timings) {
        let profile = self
            .profiles
            .iter()
            .find(|profile| selects(&profile.match_labels, labels));
        profile.map_or((None, self.timings), |profile| (Some(&profile.name), profile.timings))
    }

    /// What the class says of an owner of this kind; none if it may not be stopped.
    pub fn find_owner_kind(&self, group: &str, kind: &str) -> Option<&OwnerKind> {
        let is_it = |owner: &&OwnerKind| owner.group == group && owner.kind == kind;
        let mut listed = self.owner_kinds.iter();
        listed.find(is_it).filter(|_| self.last_step == IdleLastStep::StopOwner)
    }
}

fn read_profile(profile: &IdleProfile, base: Timings, shortest_window: Seconds) -> Profile {
    let IdleProfile {
        name,
        match_labels,
        window,
        grace_period,
        checkpoint_period,
        startup_grace_period,
        max_startup,
        minimum_runtime,
    } = profile;
    let or = |own: &Option<KubeDuration>, base: Seconds| own.as_ref().map_or(base, KubeDuration::seconds);
    Profile {
        name: name.clone(),
        match_labels: match_labels.clone(),
        timings: Timings {
            window: or(window, base.window).max(shortest_window),
            grace_period: or(grace_period, base.grace_period),
            checkpoint_period: or(checkpoint_period, base.checkpoint_period),
            startup_grace_period: or(startup_grace_period, base.startup_grace_period),
            max_startup: or(max_startup, base.max_startup),
            minimum_runtime: or(minimum_runtime, base.minimum_runtime),
        },
    }
}

/// Whether a pod has all the labels; an empty value stands for any. No labels select no pod.
pub(crate) fn selects(match_labels: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    !match_labels.is_empty()
        && match_labels.iter().all(|(key, value)| {
            labels
                .get(key)
                .is_some_and(|actual| value.is_empty() || actual == value)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{IdleProduct, IdleSignal};

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn notebooks() -> IdleReclaim {
        IdleReclaim {
            profiles: vec![IdleProfile {
                name: "notebooks".into(),
                match_labels: labels(&[("notebook-name", "")]),
                window: Some("3h".into()),
                ..IdleProfile::default()
            }],
            ..IdleReclaim::default()
        }
    }

    #[test]
    fn the_first_profile_that_selects_a_pod_applies() {
        let policy = Policy::new(&notebooks());
        let (profile, timings) = policy.timings_of(&labels(&[("notebook-name", "anna")]));
        assert_eq!((profile, timings.window), (Some("notebooks"), 3 * 3600));
        assert_eq!(
            (timings.grace_period, timings.max_startup),
            (1800, 6 * 3600),
            "from the class"
        );
        let (profile, timings) = policy.timings_of(&labels(&[("app", "train")]));
        assert_eq!((profile, timings.window), (None, 3600));
    }

    #[test]
    fn no_window_is_shorter_than_half_an_hour() {
        let mut rules = notebooks();
        rules.window = "x".into();
        rules.profiles[0].window = Some("1s".into());
        let policy = Policy::new(&rules);
        for pod in [labels(&[("notebook-name", "anna")]), labels(&[])] {
            assert_eq!(policy.timings_of(&pod).1.window, 1800);
        }
    }

    #[test]
    fn products_have_their_own_power() {
        let rules = IdleReclaim {
            products: vec![IdleProduct {
                product: "NVIDIA L40S".into(),
                max_power_watts: 50,
            }],
            additional_signals: vec![IdleSignal::NvlinkTraffic, IdleSignal::NvlinkTraffic],
            ..IdleReclaim::default()
        };
        let policy = Policy::new(&rules);
        assert!(policy.limits.of(Signal::Power, "NVIDIA L40S") < 51.0);
        assert!(policy.limits.of(Signal::Power, "NVIDIA H100") > 149.0);
        assert_eq!(policy.signals.len(), 5, "{:?}", policy.signals);
    }

    #[test]
    fn only_listed_kinds_are_stopped_and_only_if_the_class_says_so() {
        let mut rules = IdleReclaim::default();
        let may_stop =
            |rules: &IdleReclaim, group: &str, kind: &str| Policy::new(rules).find_owner_kind(group, kind).is_some();
        assert!(!may_stop(&rules, "apps", "Deployment"));
        rules.last_step = IdleLastStep::StopOwner;
        assert!(may_stop(&rules, "apps", "Deployment") && may_stop(&rules, "batch", "Job"));
        assert!(!may_stop(&rules, "apps", "ReplicaSet") && !may_stop(&rules, "example.com", "Deployment"));
    }

    #[test]
    fn the_waits_between_the_steps_add_up() {
        let timings = Timings {
            grace_period: 31,
            checkpoint_period: 10,
            ..Timings::default()
        };
        let before_checkpoint = timings.wait_after(IdleStep::Warned) + timings.wait_after(IdleStep::WarnedAgain);
        assert_eq!(before_checkpoint, 31);
        assert_eq!(timings.wait_after(IdleStep::CheckpointRequested), 10);
    }

    #[test]
    fn labels_select_only_what_has_all_of_them() {
        let pod = labels(&[("a", "1"), ("b", "2")]);
        assert!(selects(&labels(&[("a", ""), ("b", "2")]), &pod));
        assert!(!selects(&labels(&[("a", "2")]), &pod));
        assert!(!selects(&labels(&[("c", "")]), &pod));
        assert!(!selects(&labels(&[]), &pod));
    }
}
