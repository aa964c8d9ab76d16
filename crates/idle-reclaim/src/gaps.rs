//! What earlier passes found of gaps.
//!
//! The subqueries that look for gaps are most of what a pass costs in Prometheus. Series that had none a few minutes ago, and new samples in
//! each pass since, have none now, unless these samples are no numbers. So of an idle pod gaps are looked for again after [`PERIOD`] only. No
//! pod leaves by what is remembered: right before that, everything is asked.

use crate::{
    Seconds,
    pod::GpuPod,
    series::{DeviceSeries, SeriesTable},
    signal::Signal,
};
use std::collections::HashMap;

/// Time after which gaps of a pod are looked for again.
const PERIOD: Seconds = 300;
/// The first time it is shorter, by this or a multiple of it: pods take turns.
const TURN: Seconds = 60;
/// Time between two passes after which it is not known whether there were samples all the time: a pass may fail or take long.
const MAX_PAUSE: Seconds = 150;

/// The pods that were idle in the pass before, by UID.
#[derive(Clone, Debug, Default)]
pub struct GapMemory {
    pods: HashMap<String, Found>,
}

/// What was found of a pod without gaps.
#[derive(Clone, Debug)]
struct Found {
    window: Seconds,
    devices: Vec<CoveredDevice>,
    /// When gaps are looked for again.
    until: Seconds,
    /// The last pass in which the pod was idle.
    idle_at: Seconds,
}

/// Intervals with a sample of one GPU or MIG instance.
#[derive(Clone, Debug)]
struct CoveredDevice {
    uuid: String,
    instance: String,
    coverage: [Option<f64>; Signal::COUNT],
}

impl GapMemory {
    /// Adds what is remembered to the series of a pod. Returns whether gaps need not be looked for now.
    pub fn recall(&self, pod: &GpuPod, window: Seconds, table: &mut SeriesTable, now: Seconds) -> bool {
        let found = self.pods.get(&pod.uid).filter(|found| found.holds(window, now));
        found.is_some_and(|found| {
            let mut devices = table.of_pod_mut(&pod.namespace, &pod.name).iter_mut();
            devices.all(|device| found.add_to(device))
        })
    }

    /// Remembers a pod that is idle in the pass of `now`.
    pub fn remember(&mut self, pod: &GpuPod, window: Seconds, table: &SeriesTable, now: Seconds) {
        let known = self.pods.get_mut(&pod.uid);
        let is_known = known.is_some();
        if let Some(found) = known.filter(|found| found.holds(window, now)) {
            found.idle_at = now;
            return;
        }
        let period = if is_known { PERIOD } else { first_period(&pod.uid) };
        let devices = table.of_pod(&pod.namespace, &pod.name).iter();
        let found = Found {
            window,
            devices: devices.map(CoveredDevice::new).collect(),
            until: now + period,
            idle_at: now,
        };
        self.pods.insert(pod.uid.clone(), found);
    }

    /// Forgets all pods that were not idle in the pass of `now`.
    pub fn end_pass(&mut self, now: Seconds) {
        self.pods.retain(|_, found| found.idle_at == now);
    }
}

impl Found {
    fn holds(&self, window: Seconds, now: Seconds) -> bool {
        self.window == window && now < self.until && now - self.idle_at <= MAX_PAUSE
    }

    fn add_to(&self, device: &mut DeviceSeries) -> bool {
        let is_it = |known: &&CoveredDevice| known.uuid == device.uuid && known.instance == device.instance;
        let Some(known) = self.devices.iter().find(is_it) else {
            return false;
        };
        for (aggregate, coverage) in device.signals.iter_mut().zip(known.coverage) {
            aggregate.coverage = aggregate.coverage.or(coverage);
        }
        true
    }
}

impl CoveredDevice {
    fn new(device: &DeviceSeries) -> Self {
        Self {
            uuid: device.uuid.clone(),
            instance: device.instance.clone(),
            coverage: device.signals.map(|aggregate| aggregate.coverage),
        }
    }
}

/// Different for pods that are found at the same time.
fn first_period(uid: &str) -> Seconds {
    let sum: Seconds = uid.bytes().map(Seconds::from).sum();
    PERIOD - TURN * (sum % (PERIOD / TURN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        query::Aggregation,
        testing::{self, NOW},
    };

    const WINDOW: Seconds = 3600;

    /// What a pass knows of pods before it looks for gaps.
    fn without_gaps_known(pods: &[&GpuPod]) -> SeriesTable {
        let mut table = SeriesTable::default();
        for pod in pods {
            for index in 0..2 {
                table.record(&testing::row(pod, index), Signal::Engine, Aggregation::Peak, 0.0);
            }
        }
        table
    }

    fn remembered(pods: &[&GpuPod]) -> GapMemory {
        let mut memory = GapMemory::default();
        let table = testing::idle_table(pods);
        for pod in pods {
            memory.remember(pod, WINDOW, &table, NOW);
        }
        memory.end_pass(NOW);
        memory
    }

    #[test]
    fn what_had_no_gaps_is_remembered_for_a_while() {
        let pod = testing::pod("train", 2);
        let mut memory = remembered(&[&pod]);
        let mut asked = Vec::new();
        for minute in 1..=12 {
            let now = NOW + minute * 60;
            let mut table = without_gaps_known(&[&pod]);
            if memory.recall(&pod, WINDOW, &mut table, now) {
                let devices = table.of_pod(&pod.namespace, &pod.name);
                let coverage = devices
                    .iter()
                    .map(|device| device.signals[Signal::Engine.index()].coverage);
                assert_eq!(coverage.collect::<Vec<_>>(), [Some(60.0); 2]);
            } else {
                asked.push(minute);
                table = testing::idle_table(&[&pod]);
            }
            memory.remember(&pod, WINDOW, &table, now);
            memory.end_pass(now);
        }
        assert!(asked[0] <= 5, "{asked:?}");
        assert_eq!(asked[1] - asked[0], 5, "{asked:?}");
    }

    #[test]
    fn pods_take_turns() {
        let pods: Vec<GpuPod> = (0..100).map(|index| testing::pod(&format!("p{index}"), 2)).collect();
        let pods: Vec<&GpuPod> = pods.iter().collect();
        let memory = remembered(&pods);
        let asked = |minute: Seconds| {
            let is_asked = |pod: &&&GpuPod| {
                let mut table = without_gaps_known(&[pod]);
                // A pass every minute until then.
                let mut memory = memory.clone();
                for found in memory.pods.values_mut() {
                    found.idle_at = NOW + (minute - 1) * 60;
                }
                !memory.recall(pod, WINDOW, &mut table, NOW + minute * 60)
            };
            pods.iter().filter(is_asked).count()
        };
        let asked: Vec<usize> = (1..=5).map(asked).collect();
        assert!(asked.windows(2).all(|two| two[1] - two[0] < 40), "{asked:?}");
        assert_eq!(asked[4], 100);
    }

    #[test]
    fn nothing_is_remembered_of_what_is_not_known_to_be_the_same() {
        let pod = testing::pod("train", 2);
        let mut memory = remembered(&[&pod]);
        for found in memory.pods.values_mut() {
            found.until = NOW + PERIOD;
        }
        let recalls = |memory: &GapMemory, window: Seconds, now: Seconds| {
            memory.recall(&pod, window, &mut without_gaps_known(&[&pod]), now)
        };
        assert!(recalls(&memory, WINDOW, NOW + 60));
        assert!(!recalls(&memory, 2 * WINDOW, NOW + 60), "another window");
        assert!(!recalls(&memory, WINDOW, NOW + MAX_PAUSE + 1), "passes failed");
        let mut table = without_gaps_known(&[&pod]);
        table.record(&testing::row(&pod, 7), Signal::Engine, Aggregation::Peak, 0.0);
        assert!(!memory.recall(&pod, WINDOW, &mut table, NOW + 60), "another GPU");
        let mut later = memory.clone();
        later.end_pass(NOW + 60);
        assert!(!recalls(&later, WINDOW, NOW + 61), "it was not idle in the last pass");
    }
}
