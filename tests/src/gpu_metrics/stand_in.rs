//! Stands in for Prometheus where a test moves the clock: a real server would have no samples of that time.

use axum::{Router, extract::State, routing::post};
use berth_control::controllers::idle_gpus::GpuMetricsSource;
use berth_idle_reclaim::query::QuerySettings;
use berth_prometheus::{Prometheus, PrometheusConfig};
use berth_runtime::locks::lock;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::net::TcpListener;

/// What the eight GPUs of one pod do; of other pods nothing is known.
#[derive(Clone, Default)]
pub struct StandIn(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// Namespace and name.
    pod: Option<(String, String)>,
    activity: f64,
}

impl StandIn {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.0)
    }

    /// Sets namespace and name of the host pod that has the GPUs.
    pub fn set_pod(&self, pod: Option<(String, String)>) {
        self.known().pod = pod;
    }

    /// Sets how busy each GPU is, from 0 to 1.
    pub fn set_activity(&self, activity: f64) {
        self.known().activity = activity;
    }

    /// A source of metrics for control, with a pass each second.
    pub async fn serve(&self) -> GpuMetricsSource {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/api/v1/query", post(answer))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        GpuMetricsSource {
            prometheus: Prometheus::new(PrometheusConfig::new(url.parse().unwrap())).unwrap(),
            settings: QuerySettings::default(),
            interval: Duration::from_secs(1),
        }
    }
}

/// The rows that Prometheus would have, by what the query aggregates: all samples of the window are there.
async fn answer(State(stand_in): State<StandIn>, form: String) -> String {
    let time = form.split('&').find_map(|pair| pair.strip_prefix("time="));
    let known = stand_in.known();
    let value = if form.contains("timestamp") {
        time.unwrap_or("0").to_owned()
    } else if form.contains("count_over_time") {
        "30".to_owned()
    } else if form.contains("POWER") {
        "80".to_owned()
    } else {
        known.activity.to_string()
    };
    let row = |(namespace, pod): &(String, String), gpu: u32| {
        json!({"value": [0, value], "metric": {"UUID": format!("GPU-{gpu}"), "modelName": "NVIDIA H100",
            "exported_namespace": namespace, "exported_pod": pod, "namespace": "monitoring", "pod": "exporter"}})
    };
    let of_pod = |pod| (0..8).map(move |gpu| (pod, gpu));
    let rows: Vec<Value> = known
        .pod
        .iter()
        .flat_map(of_pod)
        .map(|(pod, gpu)| row(pod, gpu))
        .collect();
    json!({"status": "success", "data": {"resultType": "vector", "result": rows}}).to_string()
}
