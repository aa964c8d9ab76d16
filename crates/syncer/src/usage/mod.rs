//! `metrics.k8s.io` in the tenant: what its pods and nodes use, for `kubectl top` and for autoscalers.
//!
//! The tenant's API server reaches this through the egress broker, as an aggregated API behind the Service
//! [`berth_sync_rules::usage::SERVICE`]; no other client can. It has authenticated the user and checked its own RBAC
//! for the same resource, verb, namespace and name, so nothing is checked again here.
//!
//! The numbers are those that the host's own metrics API has for the tenant's host pods, and for its nodes: the syncer
//! may read metrics of its one workload namespace and of exactly the nodes that are the tenant's alone. A host
//! without such an API gets a reason; the API itself is served all the same, because one that is registered and does
//! not answer would keep namespaces from being deleted.
//!
//! - [`host_metrics`] asks the host, not each time that somebody asks here.
//! - [`places`] limits how many long answers are made and sent at a time, and for how long.
//! - [`berth_sync_rules::usage`] reads selectors, makes the tenant's objects and writes them as tables.

mod host_metrics;
mod places;
#[cfg(test)]
mod tests;

use crate::engine::Engine;
use axum::{
    Json, Router,
    extract::{Query, State},
    http::{
        HeaderMap, HeaderValue, Method, StatusCode, Uri,
        header::{ACCEPT, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use berth_api::labels;
use berth_runtime::tree::Tree;
use berth_sync_rules::model::{
    Cache, KindId, json,
    resource::{Name, Resource},
    store::Stored,
};
use berth_sync_rules::usage::{
    selection::Selection,
    table::{self, Include},
    translate,
};
use host_metrics::{HostMetrics, Measured, NODES, OfPods, PODS};
use kube::Client;
use places::{FEW, Places, Turn};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The API for one tenant, out of the metrics of `host`.
pub(crate) fn router(engine: Arc<Engine>, host: Client) -> Router {
    Router::new()
        .fallback(answer)
        .with_state(Arc::new(Usage::new(engine, host)))
}

struct Usage {
    engine: Arc<Engine>,
    host: Arc<HostMetrics>,
    places: Places,
}

/// Metrics that were asked for.
struct Metrics {
    /// The kind of the list; empty for a single object.
    kind: &'static str,
    items: Vec<Value>,
    /// The turn of one that takes long to make.
    turn: Option<Turn>,
}

impl Metrics {
    fn of_one(item: Value) -> Self {
        Self {
            kind: "",
            items: vec![item],
            turn: None,
        }
    }
}

/// Memory of a list. That of 15,000 pods with a dozen labels takes half of it.
const MOST_MEMORY: u64 = 256 << 20;

/// The objects of a list, while it is made.
#[derive(Default)]
struct Items {
    items: Vec<Value>,
    memory: u64,
}

impl Items {
    /// Adds one.
    ///
    /// # Errors
    /// All together take too much memory. They have the labels that the tenant gives them, which nothing else limits.
    fn push(&mut self, item: Value) -> Result<(), Failure> {
        self.memory += Tree::bytes_of(&item);
        if self.memory > MOST_MEMORY {
            return Err(Failure::TooLong);
        }
        self.items.push(item);
        Ok(())
    }
}

/// The parameters of a query. Others (`limit`, `timeout`, …) have no effect.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    label_selector: String,
    field_selector: String,
    watch: Option<String>,
    include_object: Option<String>,
}

impl Options {
    /// Whether it is a watch to an API server, which gives such a request no time limit.
    fn is_watch(&self) -> bool {
        let value = self.watch.as_deref();
        value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// Seconds after which there may be a place for a long answer.
const RETRY_SECONDS: u16 = 2;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// There is no such path.
    NoPath,
    /// The method is not a read.
    Method,
    /// The query is invalid.
    Query(String),
    /// There is no such object, or the host has no metrics of it: resource with its group, and name.
    NotFound(&'static str, String),
    /// The host has no such API.
    NotServed,
    /// The host does not answer.
    Unavailable,
    /// What the host has is longer than what is read, or the answer would be longer than what is sent.
    TooLong,
    /// There are as many long answers as there may be.
    Busy,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (code, reason, message) = match self {
            Self::NoPath => (
                StatusCode::NOT_FOUND,
                "NotFound",
                "the server could not find the requested resource".to_owned(),
            ),
            Self::Method => (
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource".to_owned(),
            ),
            Self::Query(message) => (StatusCode::BAD_REQUEST, "BadRequest", message),
            Self::NotFound(resource, name) => (
                StatusCode::NOT_FOUND,
                "NotFound",
                format!("{resource} {name:?} not found"),
            ),
            Self::NotServed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the platform has no metrics: its cluster has no metrics.k8s.io. Ask the platform team to install \
                 metrics-server or another server of this API"
                    .to_owned(),
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the platform's metrics are not available now; try again".to_owned(),
            ),
            Self::TooLong => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the metrics are too long, with the labels of your pods or nodes: ask for those of one namespace, or \
                 write fewer labels"
                    .to_owned(),
            ),
            Self::Busy => (
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                format!(
                    "too many long lists of metrics are read at once: try again in {RETRY_SECONDS} s, or ask for fewer objects"
                ),
            ),
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16(),
        });
        let mut response = (code, Json(status)).into_response();
        if code == StatusCode::TOO_MANY_REQUESTS {
            // Clients of Kubernetes try again by themselves.
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

async fn answer(
    State(usage): State<Arc<Usage>>,
    method: Method,
    uri: Uri,
    query: Query<Options>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    // An API server keeps empty parts, and has checked the user's rights for something else.
    if uri.path().contains("//") {
        return Err(Failure::NoPath);
    }
    let path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let rest = match path.as_slice() {
        ["apis", "metrics.k8s.io"] => return Ok(Json(api_group()).into_response()),
        ["apis", "metrics.k8s.io", "v1beta1", rest @ ..] => rest,
        _ => return Err(Failure::NoPath),
    };
    if rest.is_empty() {
        return Ok(Json(resources()).into_response());
    }
    let Query(options) = query;
    if method != Method::GET || options.is_watch() {
        return Err(Failure::Method);
    }
    let selection = Selection::parse(&options.label_selector, &options.field_selector).map_err(Failure::Query)?;
    let Metrics { kind, items, turn } = match rest {
        ["pods"] => usage.pods("", &selection).await?,
        ["namespaces", namespace, "pods"] => usage.pods(namespace, &selection).await?,
        ["nodes"] => usage.nodes(&selection).await?,
        ["namespaces", namespace, "pods", name] => Metrics::of_one(usage.pod(&Name::new(namespace, name)).await?),
        ["nodes", name] => Metrics::of_one(usage.node(name).await?),
        _ => return Err(Failure::NoPath),
    };
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let whole = if let Some(version) = table::version_asked(accept) {
        let include = Include::parse(options.include_object.as_deref());
        table::table(version, &items, include)
    } else {
        match (kind, <[Value; 1]>::try_from(items)) {
            ("", Ok([item])) => item,
            (kind, items) => {
                let items = items.map_or_else(|many| many, Vec::from);
                json::object([
                    ("kind", kind.into()),
                    ("apiVersion", translate::API_VERSION.into()),
                    ("metadata", json!({})),
                    ("items", items.into()),
                ])
            }
        }
    };
    usage.places.send(whole, turn)
}

fn api_group() -> Value {
    let version = json!({"groupVersion": translate::API_VERSION, "version": "v1beta1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": "metrics.k8s.io", "versions": [version],
        "preferredVersion": version,
    })
}

fn resources() -> Value {
    let resource = |Resource { kind, plural, .. }: Resource, namespaced: bool| json!({"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": translate::API_VERSION,
        "resources": [resource(NODES, false), resource(PODS, true)],
    })
}

/// Whether other tenants use a node as well: its total usage is then not shown to the tenant.
fn is_shared(cache: &Cache, node: &Name) -> bool {
    let published = cache.stores.host(KindId::Node).get(node).map(|node| node.object());
    published.is_some_and(|node| json::text(&node, &["spec", "labels", labels::SHARED_POOL]).is_some())
}

impl Usage {
    fn new(engine: Arc<Engine>, host: Client) -> Self {
        Self {
            host: Arc::new(HostMetrics::new(Arc::clone(&engine), host)),
            engine,
            places: Places::default(),
        }
    }

    /// Metrics of all pods in a namespace of the tenant; of all its pods if that is empty.
    async fn pods(&self, namespace: &str, selection: &Selection) -> Result<Metrics, Failure> {
        let measured = self.host.of_pods().await?;
        let turn = self.places.turn_for(of_namespace(&measured, namespace).count()).await?;
        let asked: Vec<(&Name, &Measured)> = of_namespace(&measured, namespace).collect();
        let mut all = Items::default();
        for (number, part) in asked.chunks(FEW).enumerate() {
            if number > 0 {
                // Others wait at a terminal.
                tokio::task::yield_now().await;
            }
            for (name, host) in part {
                if let Some(pod) = self.selected_pod(name, host, selection) {
                    all.push(pod)?;
                }
            }
        }
        Ok(Metrics {
            kind: "PodMetricsList",
            items: all.items,
            turn,
        })
    }

    /// Metrics of a pod, if it is selected.
    fn selected_pod(&self, name: &Name, host: &Measured, selection: &Selection) -> Option<Value> {
        let stores = &self.engine.cache().stores;
        let pod = stores.tenant(KindId::Pod).get(name)?.object();
        if !selection.selects(&name.namespace, &name.name, &labels_of(&pod)) {
            return None;
        }
        let host_pod = stores.host(KindId::Pod).get(name)?.object();
        Some(translate::pod(name, &pod, &host_pod, &host.to_value()))
    }

    async fn pod(&self, name: &Name) -> Result<Value, Failure> {
        if !self.engine.cache().stores.tenant(KindId::Pod).contains(name) {
            return Err(Failure::NotFound("pods", name.to_string()));
        }
        let measured = self.host.of_pods().await?;
        let host = measured.get(name);
        // It may be gone by now.
        let metrics = host.and_then(|host| self.selected_pod(name, host, &Selection::default()));
        metrics.ok_or_else(|| Failure::NotFound("pods.metrics.k8s.io", name.to_string()))
    }

    /// Metrics of the tenant's nodes.
    async fn nodes(&self, selection: &Selection) -> Result<Metrics, Failure> {
        let cache = self.engine.cache();
        let mut names = cache.stores.host(KindId::Node).names();
        names.retain(|name| !is_shared(cache, name));
        names.sort();
        let asked = names.iter().map(|name| Arc::clone(&name.name)).collect();
        let measured = self.host.of_nodes(asked).await?;
        let turn = self.places.turn_for(names.len()).await?;
        let mut all = Items::default();
        for (name, measured) in names.iter().zip(measured) {
            let known = measured.zip(cache.stores.tenant(KindId::Node).get(name));
            let Some((measured, node)) = known else {
                continue;
            };
            let node = node.object();
            if selection.selects("", &name.name, &labels_of(&node)) {
                all.push(translate::node(name, &node, &measured.to_value()))?;
            }
        }
        Ok(Metrics {
            kind: "NodeMetricsList",
            items: all.items,
            turn,
        })
    }

    async fn node(&self, name: &str) -> Result<Value, Failure> {
        let (cache, name) = (self.engine.cache(), Name::new("", name));
        let of_tenant = |stored: Option<Arc<Stored>>| {
            let is_there = cache.stores.host(KindId::Node).contains(&name);
            stored.filter(|_| is_there && !is_shared(cache, &name))
        };
        let Some(node) = of_tenant(cache.stores.tenant(KindId::Node).get(&name)) else {
            return Err(Failure::NotFound("nodes", name.to_string()));
        };
        let measured = self.host.of_nodes(vec![Arc::clone(&name.name)]).await?;
        match measured.into_iter().flatten().next() {
            Some(measured) => Ok(translate::node(&name, &node.object(), &measured.to_value())),
            None => Err(Failure::NotFound("nodes.metrics.k8s.io", name.to_string())),
        }
    }
}

/// What is measured of the pods of a namespace; of all if that is empty.
fn of_namespace<'a>(pods: &'a OfPods, namespace: &'a str) -> impl Iterator<Item = (&'a Name, &'a Measured)> {
    let from = pods.range(Name::new(namespace, "")..);
    from.take_while(move |(name, _)| namespace.is_empty() || &*name.namespace == namespace)
}

fn labels_of(object: &Value) -> BTreeMap<String, String> {
    json::strings(object, &["metadata", "labels"])
}
