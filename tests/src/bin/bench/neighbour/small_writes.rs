//! A tenant that writes a small object at a steady pace.

use super::tally::Answer;
use crate::report::milliseconds;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time between two writes.
const PAUSE: Duration = Duration::from_millis(250);

/// The writes of one period.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// How long those took that were accepted, in milliseconds.
    pub(super) delays: Vec<f64>,
    /// The others, by what was answered.
    pub(super) errors: BTreeMap<String, u32>,
}

/// A ConfigMap with one value.
pub(super) fn config_map(name: &str, value: String) -> ConfigMap {
    ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        data: Some(BTreeMap::from([("value".to_owned(), value)])),
        ..ConfigMap::default()
    }
}

/// Creates a small ConfigMap every [`PAUSE`] until `stop`. A write does not wait for the one before: a slow server is asked as often
/// as a fast one.
pub(super) async fn write_small(client: Client, prefix: &'static str, stop: CancellationToken) -> Written {
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut tick = tokio::time::interval(PAUSE);
    let mut requests = JoinSet::new();
    let mut index = 0;
    loop {
        tokio::select! { () = stop.cancelled() => break, _ = tick.tick() => {} }
        let (maps, map) = (maps.clone(), config_map(&format!("{prefix}{index:05}"), "small".into()));
        index += 1;
        requests.spawn(async move {
            let begun = Instant::now();
            let answer = Answer::of(maps.create(&PostParams::default(), &map)).await;
            (begun.elapsed(), answer)
        });
    }
    let mut written = Written::default();
    for (took, answer) in requests.join_all().await {
        match answer {
            Answer::Accepted => written.delays.push(milliseconds(took)),
            other => *written.errors.entry(other.to_string()).or_default() += 1,
        }
    }
    written
}
