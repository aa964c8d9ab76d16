//! What the host's metrics API says of the tenant's pods and nodes.
//!
//! All tenants share that API and the server behind it, which measures every fifteen seconds. Who may view one namespace may ask for metrics all the time, and an
//! answer about all pods can have megabytes. So the host is asked once for all who want to know, and what it has answered counts for a while, also that it
//! does not answer:
//!
//! | of | the host is asked | an answer counts for |
//! |---|---|---|
//! | pods | for all at once | [`FRESH`], and [`FRESH_PER_POD`] for each |
//! | nodes | for each that is wanted, [`AT_A_TIME`], because the syncer may read these names only | [`FRESH_OF_NODE`] |
//!
//! The host is asked in a task of its own: if who wanted to know goes away, the next one waits for the same answer.

use super::Failure;
use crate::engine::Engine;
use berth_api::labels;
use berth_sync_rules::model::{
    KindId,
    resource::{Name, Resource},
};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use kube::{
    Client,
    api::{GetParams, ListParams},
    core::Request,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Mutex, time::Instant};

/// Time that the host may take.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long an answer about pods counts, and one that is an error.
const FRESH: Duration = Duration::from_secs(5);
/// The same for each pod besides: of 15,000 the host is asked every twelve seconds at most.
const FRESH_PER_POD: Duration = Duration::from_micros(500);
/// How long an answer about a node counts.
const FRESH_OF_NODE: Duration = Duration::from_secs(15);
/// Nodes asked about at a time.
const AT_A_TIME: usize = 8;
/// Longest answer about a node, in bytes. It has its labels.
const LONGEST_OF_NODE: usize = 1 << 20;
/// The part of the bytes that a tenant may have on the host which an answer about all of its pods may have. It has their labels, but neither their specs nor
/// their status.
const PART_OF_HOST_BYTES: u64 = 8;
/// Longest answer about all pods of a tenant that may have little on the host, in bytes.
const LEAST_OF_PODS: u64 = 16 << 20;

/// Metrics of pods in the API of the host.
pub(super) const PODS: Resource = Resource::new("metrics.k8s.io", "v1beta1", "PodMetrics", "pods");
/// Metrics of nodes there.
pub(super) const NODES: Resource = Resource::new("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes");

/// What the host says of a pod or a node, without its labels.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Measured {
    #[serde(skip_serializing)]
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: Box<str>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Container {
    name: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

/// All that this API measures.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Box<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    items: Option<Vec<Measured>>,
}

impl Measured {
    /// As JSON, without the metadata.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// What is known of all pods, by their names in the tenant.
pub(super) type OfPods = BTreeMap<Name, Measured>;

/// The last answer about pods.
struct LastOfPods {
    until: Instant,
    answer: Result<Arc<OfPods>, Failure>,
}

/// What is known of nodes.
#[derive(Default)]
struct OfNodes {
    known: HashMap<Arc<str>, OfNode>,
    /// Until when the host is not asked again, and why.
    failed: Option<(Instant, Failure)>,
}

/// The name of a node, and what the host says of it; none if it has no metrics of it.
type AboutNode = (Arc<str>, Option<Arc<Measured>>);

/// The last answer about a node; none if the host has no metrics of it.
struct OfNode {
    until: Instant,
    measured: Option<Arc<Measured>>,
}

impl OfNodes {
    fn find(&self, names: &[Arc<str>]) -> Vec<Option<Arc<Measured>>> {
        let of = |name: &Arc<str>| self.known.get(name).and_then(|node| node.measured.clone());
        names.iter().map(of).collect()
    }
}

/// The metrics of the host.
pub(super) struct HostMetrics {
    engine: Arc<Engine>,
    host: Client,
    pods: Arc<Mutex<Option<LastOfPods>>>,
    nodes: Arc<Mutex<OfNodes>>,
}

impl HostMetrics {
    /// Nothing is known yet. `host` is a client of the runtime that asks.
    pub(super) fn new(engine: Arc<Engine>, host: Client) -> Self {
        Self {
            engine,
            host,
            pods: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// What all pods of the tenant use.
    ///
    /// # Errors
    /// The host does not say it.
    pub(super) async fn of_pods(self: &Arc<Self>) -> Result<Arc<OfPods>, Failure> {
        let mut last = Arc::clone(&self.pods).lock_owned().await;
        if let Some(LastOfPods { until, answer }) = &*last
            && Instant::now() < *until
        {
            return answer.clone();
        }
        let this = Arc::clone(self);
        let asking = tokio::spawn(async move {
            let answer = this.list_pods().await.map(Arc::new);
            let pods = answer.as_ref().map_or(0, |pods| pods.len());
            let fresh = FRESH + FRESH_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX);
            *last = Some(LastOfPods {
                until: Instant::now() + fresh,
                answer: answer.clone(),
            });
            answer
        });
        asking.await.unwrap_or(Err(Failure::Unavailable))
    }

    /// What nodes use; none for those of which the host has no metrics.
    ///
    /// # Errors
    /// The host does not say it.
    pub(super) async fn of_nodes(
        self: &Arc<Self>,
        names: Vec<Arc<str>>,
    ) -> Result<Vec<Option<Arc<Measured>>>, Failure> {
        let mut nodes = Arc::clone(&self.nodes).lock_owned().await;
        let now = Instant::now();
        nodes.known.retain(|_, node| now < node.until);
        let is_unknown = |name: &&Arc<str>| !nodes.known.contains_key(*name);
        let unknown: Vec<Arc<str>> = names.iter().filter(is_unknown).cloned().collect();
        if unknown.is_empty() {
            return Ok(nodes.find(&names));
        }
        if let Some((until, failure)) = &nodes.failed
            && now < *until
        {
            return Err(failure.clone());
        }
        let this = Arc::clone(self);
        let asking = tokio::spawn(async move {
            match this.ask_about_nodes(unknown).await {
                Ok(answers) => {
                    let until = Instant::now() + FRESH_OF_NODE;
                    let answers = answers.into_iter();
                    let answers = answers.map(|(name, measured)| (name, OfNode { until, measured }));
                    nodes.known.extend(answers);
                    Ok(nodes.find(&names))
                }
                Err(failure) => {
                    nodes.failed = Some((Instant::now() + FRESH, failure.clone()));
                    Err(failure)
                }
            }
        });
        asking.await.unwrap_or(Err(Failure::Unavailable))
    }

    async fn list_pods(&self) -> Result<OfPods, Failure> {
        let cache = self.engine.cache();
        let own = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
        let path = PODS.path(&cache.tenant.workload_namespace);
        let request = Request::new(path).list(&ListParams::default().labels(&own));
        let longest = (cache.tenant.host_limits.bytes / PART_OF_HOST_BYTES).max(LEAST_OF_PODS);
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        let list: List = self.ask(request, longest).await?.ok_or(Failure::NotServed)?;
        let on_host = cache.stores.host(KindId::Pod);
        let pods = list.items.unwrap_or_default().into_iter();
        let of_tenant = pods.filter_map(|pod| Some((on_host.tenant_name(&pod.metadata.name)?, pod)));
        Ok(of_tenant.collect())
    }

    async fn ask_about_nodes(&self, names: Vec<Arc<str>>) -> Result<Vec<AboutNode>, Failure> {
        let asked = names.into_iter().map(|name| async move {
            let request = Request::new(NODES.path("")).get(&name, &GetParams::default());
            let measured: Option<Measured> = self.ask(request, LONGEST_OF_NODE).await?;
            Ok::<_, Failure>((name, measured.map(Arc::new)))
        });
        stream::iter(asked).buffered(AT_A_TIME).try_collect().await
    }

    /// Reads an answer of the host of at most `longest` bytes; `None` if it has no metrics of the object.
    async fn ask<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        longest: usize,
    ) -> Result<Option<T>, Failure> {
        let request = request.map_err(|_| Failure::NoPath)?;
        let unavailable = |error: kube::Error| {
            // Each request of a tenant may cause one.
            tracing::debug!(%error, "the host gives no metrics");
            Failure::Unavailable
        };
        match tokio::time::timeout(TIME_LIMIT, read(&self.host, request, longest)).await {
            Ok(Ok(Some(text))) => {
                let answer = serde_json::from_slice(&text).map_err(kube::Error::SerdeError);
                answer.map(Some).map_err(unavailable)
            }
            Ok(Ok(None)) => Err(Failure::TooLong),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                // An API server names the object that it does not find, but not a path.
                let names_it = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
                if names_it { Ok(None) } else { Err(Failure::NotServed) }
            }
            Ok(Err(error)) => Err(unavailable(error)),
            Err(_) => Err(Failure::Unavailable),
        }
    }
}

/// The answer to a request; `None` if it has more than `longest` bytes.
async fn read(host: &Client, request: http::Request<Vec<u8>>, longest: usize) -> kube::Result<Option<Vec<u8>>> {
    let answer = host.request_stream(request).await?;
    let mut answer = pin!(answer);
    let mut text = Vec::new();
    loop {
        let part = answer.fill_buf().await.map_err(kube::Error::ReadEvents)?;
        let length = part.len();
        if length == 0 {
            return Ok(Some(text));
        }
        if text.len() + length > longest {
            return Ok(None);
        }
        text.extend_from_slice(part);
        answer.consume_unpin(length);
    }
}
