//! A tenant that writes a small object at a steady pace.

use super::tally::Answer;
use crate::report::milliseconds;
use berth_runtime::thread::Thread;
use berth_tests::tenant::patient;
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

/// A write that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    /// When it began.
    pub(super) at: Instant,
    /// Until it was answered.
    pub(super) took: Duration,
}

/// The writes of one period.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Those that were accepted.
    pub(super) accepted: Vec<Write>,
    /// The others, by what was answered.
    pub(super) errors: BTreeMap<String, u32>,
}

impl Written {
    /// How long those took that were accepted, in milliseconds.
    pub(super) fn delays(&self) -> Vec<f64> {
        self.accepted.iter().map(|write| milliseconds(write.took)).collect()
    }
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

/// Writes in a thread of its own, as another machine would: in that of the writers of large objects, an answer would wait until they have read theirs.
pub(super) fn start(kubeconfig: String, prefix: &'static str, stop: CancellationToken) -> Thread<Written> {
    let work = move || async move { write_small(patient(&kubeconfig).await, prefix, stop).await };
    Thread::start("neighbour", work).unwrap()
}

/// Creates a small ConfigMap every [`PAUSE`] until `stop`. A write does not wait for the one before: a slow server is asked as often
/// as a fast one.
async fn write_small(client: Client, prefix: &'static str, stop: CancellationToken) -> Written {
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    // Connecting is no part of a write.
    drop(maps.get_opt("none").await);
    let mut tick = tokio::time::interval(PAUSE);
    let mut requests = JoinSet::new();
    let mut index = 0;
    loop {
        tokio::select! { () = stop.cancelled() => break, _ = tick.tick() => {} }
        let (maps, map) = (maps.clone(), config_map(&format!("{prefix}{index:05}"), "small".into()));
        index += 1;
        requests.spawn(async move {
            let at = Instant::now();
            let answer = Answer::of(maps.create(&PostParams::default(), &map)).await;
            let took = at.elapsed();
            (Write { at, took }, answer)
        });
    }
    let mut written = Written::default();
    for (write, answer) in requests.join_all().await {
        match answer {
            Answer::Accepted => written.accepted.push(write),
            other => *written.errors.entry(other.to_string()).or_default() += 1,
        }
    }
    written
}
