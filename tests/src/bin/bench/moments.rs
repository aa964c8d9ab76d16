//! When pods were first seen in some state, by a watch.

use crate::report::milliseconds;
use berth_api::labels;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};
use tokio::task::JoinHandle;

/// When each pod was first seen in one state, for as long as this exists.
pub(crate) struct Moments {
    seen: Arc<Mutex<BTreeMap<String, Instant>>>,
    watch: JoinHandle<()>,
}

impl Drop for Moments {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Moments {
    /// Starts to watch. `name` returns the name under which a pod is counted, if it is in the state.
    pub(crate) fn follow(pods: Api<Pod>, name: impl Fn(&Pod) -> Option<String> + Send + 'static) -> Self {
        let seen: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
        let moments = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            let mut stream = watcher(pods, watcher::Config::default())
                .default_backoff()
                .applied_objects()
                .boxed();
            while let Some(event) = stream.next().await {
                // An API server that is busy interrupts a watch, which begins again.
                let Ok(pod) = event else { continue };
                if let Some(name) = name(&pod) {
                    moments.lock().unwrap().entry(name).or_insert_with(Instant::now);
                }
            }
        });
        Self { seen, watch }
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> BTreeMap<String, Instant> {
        self.seen.lock().unwrap().clone()
    }

    /// When a pod was first seen.
    pub(crate) fn at(&self, name: &str) -> Option<Instant> {
        self.seen.lock().unwrap().get(name).copied()
    }
}

/// The tenant's name of a host pod.
pub(crate) fn origin(pod: &Pod) -> Option<String> {
    pod.annotations().get(labels::ORIGIN_NAME).cloned()
}

/// Milliseconds from the first moment to the second, for each name that has both.
pub(crate) fn delays(from: &BTreeMap<String, Instant>, to: &BTreeMap<String, Instant>) -> Vec<f64> {
    from.iter()
        .filter_map(|(name, at)| Some(milliseconds(to.get(name)?.saturating_duration_since(*at))))
        .collect()
}
