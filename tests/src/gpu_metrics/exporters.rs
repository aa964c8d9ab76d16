//! Synthetic DCGM exporters: one for each node, all served by this process.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
    routing::get,
};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

/// GPUs of a node, all of one pod.
pub const GPUS: usize = 8;

/// What an exporter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// All GPUs do nothing.
    #[default]
    Idle,
    /// One GPU computes.
    Busy,
    /// One GPU computed until 20 minutes ago: its job loads data since.
    LoadingData,
    /// One GPU computes for five minutes and pauses for five, now too: its job writes checkpoints.
    Checkpointing,
    /// One GPU lacks a metric.
    Incomplete,
    /// One metric of one GPU is no number.
    NotANumber,
    /// It answers with an error.
    Down,
}

/// Seconds for which a job that loads data has not computed.
const LOADING: i64 = 1200;
/// Seconds of a pause for a checkpoint, and of the time between two.
const CHECKPOINT: i64 = 300;

impl Behaviour {
    /// Whether a GPU computed so many seconds ago.
    fn is_busy(self, gpu: usize, age: i64) -> bool {
        let computes = match self {
            Self::Busy => true,
            Self::LoadingData => age >= LOADING,
            Self::Checkpointing => (age / CHECKPOINT) % 2 == 1,
            Self::Idle | Self::Incomplete | Self::NotANumber | Self::Down => false,
        };
        computes && gpu == 5
    }
}

/// Samples of the past, which the first scrape of each exporter gets, so that nobody has to wait until a window is full. Prometheus takes
/// samples that are older than its newest one by an hour at most.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Age of the oldest sample in seconds.
    pub seconds: i64,
    /// Seconds between two samples.
    pub interval: i64,
}

/// All exporters.
#[derive(Clone, Default)]
pub struct Exporters(Arc<Inner>);

#[derive(Default)]
struct Inner {
    behaviours: Mutex<HashMap<usize, Behaviour>>,
    history: Option<History>,
    /// Nodes whose history was scraped.
    scraped: Mutex<HashSet<usize>>,
}

impl Exporters {
    /// Exporters that were there before the server that scrapes them.
    pub fn with_history(history: History) -> Self {
        Self(Arc::new(Inner {
            history: Some(history),
            ..Inner::default()
        }))
    }

    /// Serves them on a free port.
    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/metrics/{node}", get(metrics))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// Sets what the exporter of a node says from now on.
    pub fn set(&self, node: usize, behaviour: Behaviour) {
        lock(&self.0.behaviours).insert(node, behaviour);
    }

    fn of(&self, node: usize) -> Behaviour {
        lock(&self.0.behaviours).get(&node).copied().unwrap_or_default()
    }

    /// The age in seconds of each sample of a node in this scrape, with what follows its value: a time in milliseconds, or nothing for now.
    fn times(&self, node: usize) -> Vec<(i64, String)> {
        let now = vec![(0, String::new())];
        let Some(history) = self.0.history else { return now };
        if !lock(&self.0.scraped).insert(node) {
            return now;
        }
        let last = Timestamp::now().as_second();
        let samples = history.seconds / history.interval;
        let ages = (0..=samples).rev().map(|sample| sample * history.interval);
        ages.map(|age| (age, format!(" {}", (last - age) * 1000))).collect()
    }
}

async fn metrics(State(exporters): State<Exporters>, Path(node): Path<usize>) -> impl IntoResponse {
    let behaviour = exporters.of(node);
    if behaviour == Behaviour::Down {
        return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    }
    let times = exporters.times(node);
    let mut text = String::new();
    for (metric, idle, busy) in [
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.0, 0.8),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.0, 0.4),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.0, 0.3),
        ("DCGM_FI_DEV_POWER_USAGE", 78.5, 640.0),
        // Memory in use says nothing about activity.
        ("DCGM_FI_DEV_FB_USED", 70_000.0, 70_000.0),
    ] {
        writeln!(text, "# TYPE {metric} gauge").unwrap();
        for gpu in 0..GPUS {
            let is_affected = gpu == 3 && metric.contains("TENSOR");
            if behaviour == Behaviour::Incomplete && is_affected {
                continue;
            }
            let idle = if behaviour == Behaviour::NotANumber && is_affected {
                f64::NAN
            } else {
                idle
            };
            for (age, time) in &times {
                let value = if behaviour.is_busy(gpu, *age) { busy } else { idle };
                writeln!(
                    text,
                    "{metric}{{gpu=\"{gpu}\",UUID=\"GPU-{node}-{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"gpu-{node}\",\
                     container=\"main\",namespace=\"berth-w\",pod=\"{}\"}} {value}{time}",
                    pod_name(node)
                )
                .unwrap();
            }
        }
    }
    (StatusCode::OK, text)
}

/// Name of the host pod that has the GPUs of a node.
pub fn pod_name(node: usize) -> String {
    format!("train-{node}-host")
}
