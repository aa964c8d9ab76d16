//! Synthetic DCGM exporters: one for each node, all served by this process.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
    routing::get,
};
use std::{
    collections::HashMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::TcpListener;

/// GPUs of a node, all of one pod.
pub(crate) const GPUS: usize = 8;

/// What an exporter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// All GPUs do nothing.
    #[default]
    Idle,
    /// One GPU computes.
    Busy,
    /// One GPU lacks a metric.
    Incomplete,
    /// It answers with an error.
    Down,
}

/// All exporters.
#[derive(Clone, Default)]
pub(crate) struct Exporters(Arc<Mutex<HashMap<usize, Behaviour>>>);

impl Exporters {
    /// Serves them on a free port.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/metrics/{node}", get(metrics))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    pub(crate) fn set(&self, node: usize, behaviour: Behaviour) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node, behaviour);
    }

    fn of(&self, node: usize) -> Behaviour {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&node).copied().unwrap_or_default()
    }
}

async fn metrics(State(exporters): State<Exporters>, Path(node): Path<usize>) -> impl IntoResponse {
    let behaviour = exporters.of(node);
    if behaviour == Behaviour::Down {
        return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    }
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
            if behaviour == Behaviour::Incomplete && gpu == 3 && metric.contains("TENSOR") {
                continue;
            }
            let value = if behaviour == Behaviour::Busy && gpu == 5 {
                busy
            } else {
                idle
            };
            writeln!(
                text,
                "{metric}{{gpu=\"{gpu}\",UUID=\"GPU-{node}-{gpu}\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"gpu-{node}\",\
                 container=\"main\",namespace=\"berth-w\",pod=\"{}\"}} {value}",
                pod_name(node)
            )
            .unwrap();
        }
    }
    (StatusCode::OK, text)
}

/// Name of the host pod that has the GPUs of a node.
pub(crate) fn pod_name(node: usize) -> String {
    format!("train-{node}-host")
}
