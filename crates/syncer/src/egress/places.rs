//! How many connections lead out of the broker at a time.
//!
//! A log that is followed and silent stays open for as long as somebody wants, and `view` in one namespace is enough for it. So does a request to a pod
//! through the API server (`kubectl proxy`), which `edit` in one namespace allows. API servers limit neither. So users have ends of their own: webhooks,
//! aggregated APIs and the keys of issuers always have places, and so has the admission of Services.
//!
//! Of the connections to pods, those to the pods of one namespace are at most [`OF_LEFT`] times as many as are left: a request names a pod but not its user.
//!
//! | connections | at most |
//! |---|---|
//! | out of this process | [`TUNNELS`] |
//! | of users | [`OF_USERS`] |
//! | to kubelets, of users | [`kubelet::CONNECTIONS`] |
//! | to pods by their addresses, of users | [`TO_PODS`] |
//! | to the metrics API, in this process | [`TO_METRICS`] |

use super::local::Local;
use crate::kubelet;
use berth_runtime::locks::lock;
use berth_sync_rules::egress::{
    policy::{ConnectError, Route},
    target::Target,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time that lead out of this process.
pub(super) const TUNNELS: usize = 512;
/// Those of users among them.
const OF_USERS: usize = TUNNELS - 64;
/// Those of users to pods: the other half is for logs and commands.
const TO_PODS: usize = OF_USERS / 2;
/// Connections to the pods of one namespace, for each that is left: three quarters of all if there are no others.
const OF_LEFT: usize = 3;
/// Connections at a time to the metrics API. API servers keep up to 25 idle ones each.
pub(super) const TO_METRICS: usize = 128;

/// The places that are free.
pub(super) struct Places {
    all: Arc<Semaphore>,
    of_users: Arc<Semaphore>,
    to_kubelets: Arc<Semaphore>,
    to_pods: Arc<Semaphore>,
    by_namespace: Arc<Mutex<ByNamespace>>,
    to_metrics: Arc<Semaphore>,
}

/// How many connections to pods there are, by the namespaces of the pods. Those to other addresses have no namespace.
type ByNamespace = HashMap<Option<Arc<str>>, usize>;

/// The place of one connection. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _one: OwnedSemaphorePermit,
    _of_users: Option<[OwnedSemaphorePermit; 2]>,
    _of_namespace: Option<Share>,
}

/// One of the connections to the pods of a namespace.
#[derive(Debug)]
struct Share {
    by_namespace: Arc<Mutex<ByNamespace>>,
    namespace: Option<Arc<str>>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut by_namespace = lock(&self.by_namespace);
        if let Some(count) = by_namespace.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                by_namespace.remove(&self.namespace);
            }
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            all: places(TUNNELS),
            of_users: places(OF_USERS),
            to_kubelets: places(kubelet::CONNECTIONS),
            to_pods: places(TO_PODS),
            by_namespace: Arc::default(),
            to_metrics: places(TO_METRICS),
        }
    }
}

impl Places {
    /// A place for a connection to `target` by this route, to a pod of this `namespace`; admission has a limit of its own.
    ///
    /// # Errors
    /// None is left, as the message says to the team.
    pub(super) fn take_for(
        &self,
        target: &Target,
        route: &Route<Local>,
        namespace: Option<Arc<str>>,
    ) -> Result<Option<Place>, ConnectError> {
        let place = match route {
            Route::Local(Local::At(_)) => return Ok(None),
            Route::Local(Local::Routes(..)) => self.take_for_metrics(target),
            Route::Kubelet(_) => self.take_for_kubelet(target),
            Route::Addresses(..) if route.is_for_users() => self.take_for_pod(target, namespace),
            Route::Addresses(..) | Route::External(_) => self.take(target),
        };
        place.map(Some)
    }

    fn take_for_kubelet(&self, target: &Target) -> Result<Place, ConnectError> {
        let why = || {
            format!(
                "your cluster has {} logs, commands and forwarded ports open; close some",
                kubelet::CONNECTIONS
            )
        };
        self.take_for_user(target, acquire(&self.to_kubelets, target, why)?)
    }

    fn take_for_pod(&self, target: &Target, namespace: Option<Arc<str>>) -> Result<Place, ConnectError> {
        let why = || format!("your API server has {TO_PODS} connections to pods open (kubectl proxy); close some");
        let taken = acquire(&self.to_pods, target, why)?;
        let share = self.take_share(target, namespace)?;
        Ok(Place {
            _of_namespace: Some(share),
            ..self.take_for_user(target, taken)?
        })
    }

    fn take_share(&self, target: &Target, namespace: Option<Arc<str>>) -> Result<Share, ConnectError> {
        let mut by_namespace = lock(&self.by_namespace);
        let left = TO_PODS.saturating_sub(by_namespace.values().sum());
        let own = by_namespace.get(&namespace).copied().unwrap_or_default();
        if own >= OF_LEFT * left {
            let whose = namespace.map_or_else(
                || "to endpoints that are no pods".to_owned(),
                |namespace| format!("to pods of namespace {namespace}"),
            );
            return Err(ConnectError::unavailable(format!(
                "{target}: your API server has {own} connections {whose} open (kubectl proxy), and the rest is for others; close some"
            )));
        }
        by_namespace.insert(namespace.clone(), own + 1);
        drop(by_namespace);
        Ok(Share {
            by_namespace: Arc::clone(&self.by_namespace),
            namespace,
        })
    }

    fn take_for_user(&self, target: &Target, taken: OwnedSemaphorePermit) -> Result<Place, ConnectError> {
        let why = || {
            format!(
                "your cluster has {OF_USERS} logs, commands, forwarded ports and connections to pods (kubectl proxy) open; close some"
            )
        };
        let of_users = acquire(&self.of_users, target, why)?;
        Ok(Place {
            _of_users: Some([of_users, taken]),
            ..self.take(target)?
        })
    }

    fn take(&self, target: &Target) -> Result<Place, ConnectError> {
        let why = || {
            format!("your API server has {TUNNELS} connections open (logs, exec, port-forward, webhooks); close some")
        };
        Ok(Place {
            _one: acquire(&self.all, target, why)?,
            _of_users: None,
            _of_namespace: None,
        })
    }

    fn take_for_metrics(&self, target: &Target) -> Result<Place, ConnectError> {
        let why = || format!("your API server has {TO_METRICS} connections to the metrics API open; try again");
        Ok(Place {
            _one: acquire(&self.to_metrics, target, why)?,
            _of_users: None,
            _of_namespace: None,
        })
    }
}

/// One of the places, or the reason why `target` is not reached.
fn acquire(
    places: &Arc<Semaphore>,
    target: &Target,
    why: impl FnOnce() -> String,
) -> Result<OwnedSemaphorePermit, ConnectError> {
    let taken = Arc::clone(places).try_acquire_owned();
    taken.map_err(|_| ConnectError::unavailable(format!("{target}: {}", why())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::resource::Name;
    use std::net::{Ipv4Addr, SocketAddr};

    fn target(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    fn node() -> Route<Local> {
        Route::Kubelet(Name::new("", "n1"))
    }

    fn to(kind: &'static str) -> Route<Local> {
        Route::Addresses(kind, vec![SocketAddr::from((Ipv4Addr::new(10, 244, 1, 7), 80))])
    }

    fn metrics() -> Route<Local> {
        Route::Local(Local::Routes("metrics".into(), axum::Router::new()))
    }

    /// Takes as many as there are for pods of many namespaces.
    fn fill(places: &Places, route: &Route<Local>) -> Vec<Place> {
        let namespaces = (0..8).map(|number| format!("team-{number}"));
        let filled = namespaces.map(|namespace| fill_namespace(places, route, &namespace));
        filled.flatten().collect()
    }

    /// The same for the pods of one namespace.
    fn fill_namespace(places: &Places, route: &Route<Local>, namespace: &str) -> Vec<Place> {
        let asked = target("asked.example.com:443");
        let take = || places.take_for(&asked, route, Some(namespace.into()));
        std::iter::from_fn(|| take().ok().flatten()).collect()
    }

    fn take(places: &Places, asked: &str, route: &Route<Local>) -> Result<Option<Place>, ConnectError> {
        places.take_for(&target(asked), route, None)
    }

    fn refusal(places: &Places, route: &Route<Local>) -> String {
        take(places, "10.0.0.1:443", route).unwrap_err().message
    }

    #[test]
    fn logs_leave_places_for_webhooks() {
        let places = Places::default();
        let logs = fill(&places, &node());
        assert_eq!(logs.len(), kubelet::CONNECTIONS);
        let refused = refusal(&places, &node());
        assert!(
            refused.starts_with("10.0.0.1:443: your cluster has 384 logs"),
            "{refused}"
        );
        let webhooks = fill(&places, &to("service"));
        assert_eq!(webhooks.len(), TUNNELS - kubelet::CONNECTIONS);
        let refused = refusal(&places, &to("service"));
        assert!(refused.contains("512 connections open"), "{refused}");
        drop(logs);
        assert!(take(&places, "10.0.0.1:10250", &node()).is_ok());
    }

    #[test]
    fn requests_to_pods_leave_places_for_webhooks_and_logs() {
        let places = Places::default();
        let mut proxied = fill(&places, &to("pod"));
        assert_eq!(proxied.len(), 224);
        let refused = refusal(&places, &to("endpoint"));
        assert!(refused.contains("224 connections to pods open"), "{refused}");
        let logs = fill(&places, &node());
        assert_eq!(logs.len(), 224);
        let refused = refusal(&places, &node());
        assert!(refused.contains("448 logs, commands"), "{refused}");
        let webhooks = fill(&places, &to("service"));
        assert_eq!(webhooks.len(), 64);
        drop((webhooks, logs));
        assert_eq!(
            fill(&places, &Route::External(target("hooks.example.com:443"))).len(),
            288
        );
        proxied.truncate(100);
        assert_eq!(fill(&places, &to("endpoint")).len(), 124);
    }

    #[test]
    fn requests_to_the_pods_of_a_namespace_leave_places_for_those_of_others() {
        let places = Places::default();
        let taken = fill_namespace(&places, &to("pod"), "team");
        assert_eq!(taken.len(), 168);
        let refused = places.take_for(&target("10.244.1.7:80"), &to("pod"), Some("team".into()));
        let refused = refused.unwrap_err().message;
        assert!(
            refused.starts_with("10.244.1.7:80: your API server has 168 connections to pods of namespace team open"),
            "{refused}"
        );
        assert_eq!(fill_namespace(&places, &to("pod"), "other").len(), 42);
        assert!(take(&places, "10.30.1.2:80", &to("endpoint")).is_ok());
        drop(taken);
        assert_eq!(fill_namespace(&places, &to("pod"), "team").len(), 168);
        assert!(lock(&places.by_namespace).is_empty());
    }

    #[test]
    fn webhooks_may_have_every_place() {
        let places = Places::default();
        let webhooks = fill(&places, &to("service"));
        assert_eq!(webhooks.len(), TUNNELS);
        // A kubelet's place that could not be used is free.
        for route in [node(), to("pod")] {
            assert!(refusal(&places, &route).contains("512 connections open"));
        }
        drop(webhooks);
        assert_eq!(fill(&places, &node()).len(), kubelet::CONNECTIONS);
        assert_eq!(fill(&places, &to("pod")).len(), TO_PODS);
    }

    #[test]
    fn the_metrics_api_and_the_rest_leave_each_other_places() {
        let places = Places::default();
        let read = fill(&places, &metrics());
        assert_eq!(read.len(), TO_METRICS);
        let refused = refusal(&places, &metrics());
        assert!(refused.contains("128 connections to the metrics API"), "{refused}");
        assert_eq!(fill(&places, &to("service")).len(), TUNNELS);
        let admission = Route::Local(Local::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 8443))));
        assert!(matches!(take(&places, "10.0.0.1:443", &admission), Ok(None)));
        drop(read);
        assert!(take(&places, "10.0.0.1:443", &metrics()).is_ok());
    }
}
