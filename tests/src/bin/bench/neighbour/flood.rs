//! A tenant that writes as fast as it can. Each function is one of several writers, and ends at a given time.

use super::{
    small_writes::config_map,
    tally::{Answer, Tally},
};
use berth_tests::objects::gpu_pod;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::{Api, Client, api::PostParams};
use serde_json::json;
use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Pause after a request without an answer: the server may be starting.
const PAUSE: Duration = Duration::from_millis(100);

/// Numbers that several writers share, so that each is used once.
#[derive(Debug)]
pub(super) struct Numbers {
    next: AtomicUsize,
    end: usize,
}

impl Numbers {
    /// The numbers from 0 to `end`, without it.
    pub(super) fn below(end: usize) -> Arc<Self> {
        Arc::new(Self {
            next: AtomicUsize::new(0),
            end,
        })
    }

    fn take(&self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < self.end)
    }
}

/// What the writers of large objects have in common.
#[derive(Clone, Debug)]
pub(super) struct Large {
    /// Bytes of a value.
    pub(super) size: usize,
    pub(super) numbers: Arc<Numbers>,
    pub(super) until: Instant,
    pub(super) tally: Arc<Tally>,
}

/// Creates large ConfigMaps. Once it may create no more, it writes other content into those that it has.
pub(super) async fn store(client: Client, writer: usize, large: Large) {
    let Large {
        size,
        numbers,
        until,
        tally,
    } = large;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let parameters = PostParams::default();
    let (mut created, mut is_full) = (0_usize, false);
    while Instant::now() < until
        && let Some(number) = numbers.take()
    {
        let index = if is_full { number % created } else { created };
        let name = format!("large-{writer}-{index}");
        // The same content again would not be stored.
        let mut value = number.to_string();
        value.push_str(&"x".repeat(size.saturating_sub(value.len())));
        let map = config_map(&name, value);
        let answer = if is_full {
            let answer = Answer::of(maps.replace(&name, &parameters, &map)).await;
            tally.count("replace ConfigMap", &answer);
            answer
        } else {
            let answer = Answer::of(maps.create(&parameters, &map)).await;
            tally.count("create ConfigMap", &answer);
            // A conflict: it was stored by a request that was not answered.
            created += usize::from(matches!(answer, Answer::Accepted | Answer::Refused { code: 409, .. }));
            is_full = answer.is_forbidden() && created > 0;
            answer
        };
        pause_after(&answer).await;
    }
}

/// Creates pods that no node can run: the tenant has none.
pub(super) async fn create_pods(client: Client, numbers: Arc<Numbers>, until: Instant, tally: Arc<Tally>) {
    let pods: Api<Pod> = Api::namespaced(client, "default");
    create(&pods, "create Pod", &numbers, until, &tally, |number| {
        gpu_pod(&format!("pending-{number}"), 1)
    })
    .await;
}

/// Creates Services, each with an address.
pub(super) async fn create_services(client: Client, numbers: Arc<Numbers>, until: Instant, tally: Arc<Tally>) {
    let services: Api<Service> = Api::namespaced(client, "default");
    create(&services, "create Service", &numbers, until, &tally, |number| {
        let service = json!({"metadata": {"name": format!("service-{number}")},
            "spec": {"ports": [{"port": 80}], "selector": {"app": "none"}}});
        serde_json::from_value(service).unwrap()
    })
    .await;
}

async fn create<K>(
    api: &Api<K>,
    what: &'static str,
    numbers: &Numbers,
    until: Instant,
    tally: &Tally,
    object: impl Fn(usize) -> K,
) where
    K: Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    while Instant::now() < until
        && let Some(number) = numbers.take()
    {
        let answer = Answer::of(api.create(&PostParams::default(), &object(number))).await;
        tally.count(what, &answer);
        pause_after(&answer).await;
    }
}

async fn pause_after(answer: &Answer) {
    if matches!(answer, Answer::None) {
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once() {
        let numbers = Numbers::below(2);
        assert_eq!([(); 3].map(|()| numbers.take()), [Some(0), Some(1), None]);
    }
}
