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
//! [`berth_sync_rules::usage`] reads selectors, makes the tenant's objects and writes them as tables.

use crate::engine::Engine;
use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, Method, StatusCode, Uri, header::ACCEPT},
    response::{IntoResponse, Response},
};
use berth_api::labels;
use berth_sync_rules::model::{
    Cache, KindId, json,
    resource::{Name, Resource, host_name},
    store::Stored,
};
use berth_sync_rules::usage::{
    selection::{Selection, is_namespace},
    table::{self, Include},
    translate,
};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Client,
    api::{GetParams, ListParams},
    core::Request,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Time that the host may take.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Nodes asked about at a time.
const AT_A_TIME: usize = 8;
const PODS: Resource = Resource::new("metrics.k8s.io", "v1beta1", "PodMetrics", "pods");
const NODES: Resource = Resource::new("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes");

/// The API for one tenant, out of the metrics of `host`.
pub(crate) fn router(engine: Arc<Engine>, host: Client) -> Router {
    Router::new()
        .fallback(answer)
        .with_state(Arc::new(Usage { engine, host }))
}

struct Usage {
    engine: Arc<Engine>,
    host: Client,
}

/// The parameters of a query. Others (`limit`, `timeout`, …) have no effect.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    label_selector: String,
    field_selector: String,
    watch: String,
    include_object: Option<String>,
}

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
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
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16(),
        });
        (code, Json(status)).into_response()
    }
}

async fn answer(
    State(usage): State<Arc<Usage>>,
    method: Method,
    uri: Uri,
    query: Query<Options>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let rest = match path.as_slice() {
        ["apis", "metrics.k8s.io"] => return Ok(Json(api_group())),
        ["apis", "metrics.k8s.io", "v1beta1", rest @ ..] => rest,
        _ => return Err(Failure::NoPath),
    };
    if rest.is_empty() {
        return Ok(Json(resources()));
    }
    let Query(options) = query;
    if method != Method::GET || matches!(options.watch.as_str(), "1" | "true") {
        return Err(Failure::Method);
    }
    let selection = Selection::parse(&options.label_selector, &options.field_selector).map_err(Failure::Query)?;
    let (kind, items) = match rest {
        ["pods"] => ("PodMetricsList", usage.pods("", &selection).await?),
        ["namespaces", namespace, "pods"] => ("PodMetricsList", usage.pods(namespace, &selection).await?),
        ["nodes"] => ("NodeMetricsList", usage.nodes(&selection).await?),
        ["namespaces", namespace, "pods", name] => ("", vec![usage.pod(&Name::new(namespace, name)).await?]),
        ["nodes", name] => ("", vec![usage.node(name).await?]),
        _ => return Err(Failure::NoPath),
    };
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if let Some(version) = table::version_asked(accept) {
        let include = Include::parse(options.include_object.as_deref());
        return Ok(Json(table::table(version, &items, include)));
    }
    Ok(Json(match (kind, <[Value; 1]>::try_from(items)) {
        ("", Ok([item])) => item,
        (kind, items) => {
            let items = items.map_or_else(|many| many, Vec::from);
            json!({"kind": kind, "apiVersion": translate::API_VERSION, "metadata": {}, "items": items})
        }
    }))
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
    /// Metrics of all pods in a namespace of the tenant; of all its pods if that is empty.
    async fn pods(&self, namespace: &str, selection: &Selection) -> Result<Vec<Value>, Failure> {
        let cache = self.engine.cache();
        let mut own = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
        if !namespace.is_empty() {
            if !is_namespace(namespace) {
                return Ok(Vec::new());
            }
            own = format!("{own},{}={namespace}", labels::TENANT_OBJECT_NAMESPACE);
        }
        let path = PODS.path(&cache.tenant.workload_namespace);
        let request = Request::new(path).list(&ListParams::default().labels(&own));
        let list = self.ask(request).await?.ok_or(Failure::NotServed)?;
        let (on_host, in_tenant) = (cache.stores.host(KindId::Pod), cache.stores.tenant(KindId::Pod));
        let mut found: Vec<(Name, Value)> = json::items(&list, &["items"])
            .iter()
            .filter_map(|host| {
                let name = on_host.tenant_name(json::text(host, &["metadata", "name"])?)?;
                let pod = in_tenant.get(&name)?.object();
                let is_meant = (namespace.is_empty() || &*name.namespace == namespace)
                    && selection.selects(&name.namespace, &name.name, &labels_of(&pod));
                if !is_meant {
                    return None;
                }
                let metrics = translate::pod(&name, &pod, &on_host.get(&name)?.object(), host);
                Some((name, metrics))
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found.into_iter().map(|(_, metrics)| metrics).collect())
    }

    async fn pod(&self, name: &Name) -> Result<Value, Failure> {
        let cache = self.engine.cache();
        let Some(pod) = cache.stores.tenant(KindId::Pod).get(name) else {
            return Err(Failure::NotFound("pods", name.to_string()));
        };
        let no_metrics = || Failure::NotFound("pods.metrics.k8s.io", name.to_string());
        let path = PODS.path(&cache.tenant.workload_namespace);
        let request = Request::new(path).get(&host_name(KindId::Pod, name), &GetParams::default());
        match self.ask(request).await? {
            Some(host) => {
                // It may be gone by now.
                let host_pod = cache.stores.host(KindId::Pod).get(name).ok_or_else(no_metrics)?;
                Ok(translate::pod(name, &pod.object(), &host_pod.object(), &host))
            }
            None => Err(no_metrics()),
        }
    }

    /// Metrics of the tenant's nodes. Each is requested by its name, because the syncer may read only these names.
    async fn nodes(&self, selection: &Selection) -> Result<Vec<Value>, Failure> {
        let cache = self.engine.cache();
        let mut names = cache.stores.host(KindId::Node).names();
        names.sort();
        let selected = names
            .into_iter()
            .filter(|name| !is_shared(cache, name))
            .filter_map(|name| {
                let node = cache.stores.tenant(KindId::Node).get(&name)?.object();
                selection
                    .selects("", &name.name, &labels_of(&node))
                    .then_some((name, node))
            });
        let asked = selected.map(|(name, node)| async move {
            let host = self.ask(node_request(&name.name)).await?;
            Ok::<_, Failure>(host.map(|host| translate::node(&name, &node, &host)))
        });
        let found: Vec<Option<Value>> = stream::iter(asked).buffered(AT_A_TIME).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
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
        match self.ask(node_request(&name.name)).await? {
            Some(host) => Ok(translate::node(&name, &node.object(), &host)),
            None => Err(Failure::NotFound("nodes.metrics.k8s.io", name.to_string())),
        }
    }

    /// Reads from the host; `None` if it has no metrics of the object.
    async fn ask(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Option<Value>, Failure> {
        let request = request.map_err(|_| Failure::NoPath)?;
        let answered = tokio::time::timeout(TIME_LIMIT, self.host.request::<Value>(request)).await;
        match answered {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                // An API server names the object that it does not find, but not a path.
                let names_it = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
                if names_it { Ok(None) } else { Err(Failure::NotServed) }
            }
            Ok(Err(error)) => {
                // Each request of a tenant may cause one.
                tracing::debug!(%error, "the host gives no metrics");
                Err(Failure::Unavailable)
            }
            Err(_) => Err(Failure::Unavailable),
        }
    }
}

fn node_request(name: &str) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    Request::new(NODES.path("")).get(name, &GetParams::default())
}

fn labels_of(object: &Value) -> std::collections::BTreeMap<String, String> {
    json::strings(object, &["metadata", "labels"])
}
