//! What a real Prometheus takes of a syncer that has been taken over, if it scrapes as the chart's PodMonitor says.

use crate::{
    monitoring::with_prometheus,
    render::{find, template},
};
use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use berth_tests::{
    gpu_metrics::Server,
    scrape,
    wait::{SOON, until},
};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::Write as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::net::TcpListener;

/// Answers, and a part of the error that Prometheus has for each.
const ANSWERS: [(&str, &str); 8] = [
    ("false-series", ""),
    ("long", "body size limit exceeded"),
    ("long-when-read", "body size limit exceeded"),
    ("many-samples", "sample limit exceeded"),
    ("many-labels", "label_limit exceeded"),
    ("long-label", "label_name_length_limit exceeded"),
    ("long-value", "label_value_length_limit exceeded"),
    ("redirection", "302"),
];
const TEXT: &str = "text/plain; version=0.0.4";

/// Serves the answers. Returns the address, and how often Prometheus went where a redirection leads.
async fn serve() -> (SocketAddr, Arc<AtomicUsize>) {
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = visits.clone();
    let inside = move || {
        let visits = counted.clone();
        async move {
            visits.fetch_add(1, Ordering::Relaxed);
        }
    };
    let router = Router::new()
        .route("/inside", get(inside))
        .route("/{answer}", get(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, visits)
}

async fn answer(Path(name): Path<String>) -> Response {
    match name.as_str() {
        "redirection" => (StatusCode::FOUND, [(header::LOCATION, "/inside")]).into_response(),
        "long-when-read" => {
            let headers = [(header::CONTENT_TYPE, TEXT), (header::CONTENT_ENCODING, "gzip")];
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text("long").as_bytes()).unwrap();
            (headers, encoder.finish().unwrap()).into_response()
        }
        name => ([(header::CONTENT_TYPE, TEXT)], text(name)).into_response(),
    }
}

/// The metrics in an answer.
fn text(answer: &str) -> String {
    let mut text = String::new();
    match answer {
        // Of another tenant, of another time, and one of control.
        "false-series" => text.push_str(
            "berth_syncer_queue_depth{tenant=\"speech\"} 7 1000\nberth_control_syncer_ready{tenant=\"speech\"} 1\n",
        ),
        // A comment is no sample.
        "long" => text = format!("# HELP a {}\n", "x".repeat(1000)).repeat(5000),
        "many-samples" => {
            for n in 0..=20_000 {
                writeln!(text, "berth_syncer_denials_total{{reason=\"{n}\"}} 1").unwrap();
            }
        }
        "many-labels" => {
            let labels: Vec<String> = (0..30).map(|n| format!("label_{n}=\"a\"")).collect();
            writeln!(text, "berth_syncer_denials_total{{{}}} 1", labels.join(",")).unwrap();
        }
        "long-label" => writeln!(text, "berth_syncer_denials_total{{{}=\"a\"}} 1", "n".repeat(65)).unwrap(),
        "long-value" => writeln!(text, "berth_syncer_denials_total{{reason=\"{}\"}} 1", "v".repeat(513)).unwrap(),
        other => panic!("there is no answer {other}"),
    }
    text
}

/// What Prometheus Operator makes of a PodMonitor, with one target for each answer.
fn configuration(monitor: &Value, address: SocketAddr) -> Value {
    let spec = &monitor["spec"];
    let endpoint = &spec["podMetricsEndpoints"][0];
    let relabelings = endpoint["metricRelabelings"].as_array().unwrap().iter();
    let relabelings: Vec<Value> = relabelings
        .map(|rule| json!({"source_labels": rule["sourceLabels"], "regex": rule["regex"], "action": rule["action"]}))
        .collect();
    let job = |(name, _): &(&str, &str)| {
        json!({
            "job_name": name,
            "metrics_path": format!("/{name}"),
            "static_configs": [{"targets": [address.to_string()], "labels": {"tenant_namespace": "team", "tenant": "vision"}}],
            "body_size_limit": spec["bodySizeLimit"],
            "sample_limit": spec["sampleLimit"],
            "label_limit": spec["labelLimit"],
            "label_name_length_limit": spec["labelNameLengthLimit"],
            "label_value_length_limit": spec["labelValueLengthLimit"],
            "follow_redirects": endpoint["followRedirects"],
            "honor_labels": endpoint["honorLabels"],
            "honor_timestamps": endpoint["honorTimestamps"],
            "metric_relabel_configs": relabelings,
        })
    };
    let jobs: Vec<Value> = ANSWERS.iter().map(job).collect();
    json!({"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs})
}

/// The data of an answer of Prometheus.
async fn ask(prometheus: SocketAddr, path: &str) -> Result<Value, String> {
    let answer = scrape::get(prometheus, path).await;
    let (_, text) = answer.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    Ok(answer["data"].clone())
}

/// Compares the errors of all targets with those that are expected.
fn compare_errors(targets: &Value) -> Result<(), String> {
    let targets = targets["activeTargets"].as_array().cloned().unwrap_or_default();
    for (name, expected) in ANSWERS {
        let target = targets.iter().find(|target| target["scrapePool"] == name);
        let target = target.filter(|target| target["health"] != "unknown");
        let error = target.and_then(|target| target["lastError"].as_str());
        let is_expected =
            error.is_some_and(|error| error.contains(expected) && error.is_empty() == expected.is_empty());
        if !is_expected {
            return Err(format!("{name}: {error:?}"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_takes_nothing_without_end_and_nothing_of_others_from_a_syncer() {
    let all = template(&with_prometheus()).await.unwrap();
    let monitor = find(&all, "PodMonitor/berth-syncers").unwrap();
    let (address, visits) = serve().await;
    let server = Server::with_configuration(&configuration(monitor, address).to_string());
    let prometheus: SocketAddr = server.url().trim_start_matches("http://").parse().unwrap();
    until("each answer has its error", SOON, async || {
        let targets = ask(prometheus, "/api/v1/targets?state=active").await?;
        compare_errors(&targets).map_err(|error| format!("{error}; {}", server.log()))
    })
    .await;
    assert_eq!(
        visits.load(Ordering::Relaxed),
        0,
        "the syncer chose where Prometheus goes"
    );
    // All series of Berth.
    let query = "/api/v1/query?query=%7B__name__%3D~%22berth_.*%22%7D";
    until("the metric of a syncer is one of its own tenant", SOON, async || {
        let found = ask(prometheus, query).await?["result"].take();
        let labels = json!({"__name__": "berth_syncer_queue_depth", "exported_tenant": "speech", "instance": address.to_string(),
            "job": "false-series", "tenant": "vision", "tenant_namespace": "team"});
        match found.as_array().map(Vec::as_slice) {
            Some([series]) if series["metric"] == labels && series["value"][1] == "7" => Ok(()),
            _ => Err(found.to_string()),
        }
    })
    .await;
}
