//! Metrics of GPUs for tests and benchmarks: synthetic exporters, and a real Prometheus server that scrapes them.

mod exporters;
mod server;
mod stand_in;

pub use exporters::{Behaviour, Exporters, GPUS, History, pod_name};
pub use server::Server;
pub use stand_in::StandIn;

use berth_idle_reclaim::{
    Seconds,
    pod::{DevicesHeld, GpuPod},
};
use jiff::Timestamp;
use std::sync::Arc;

/// Seconds of the day that pods have run.
const A_DAY: Seconds = 86_400;

/// The host pods of so many nodes: each has all GPUs of its node, and has run for a day.
pub fn pods(nodes: usize) -> Vec<Arc<GpuPod>> {
    let now = Timestamp::now().as_second();
    (0..nodes).map(|node| Arc::new(pod(node, now - A_DAY))).collect()
}

fn pod(node: usize, started_at: Seconds) -> GpuPod {
    GpuPod {
        tenant: "vision-abc".into(),
        namespace: "berth-w".into(),
        name: pod_name(node),
        uid: format!("uid-{node}"),
        origin_namespace: "ml".into(),
        origin_name: format!("train-{node}"),
        devices: [("nvidia.com/gpu".to_owned(), u32::try_from(GPUS).unwrap())].into(),
        devices_held: DevicesHeld::Now,
        started_at: Some(started_at),
        ..GpuPod::default()
    }
}
