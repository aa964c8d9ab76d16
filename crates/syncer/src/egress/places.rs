//! How many connections lead out of the broker at a time.
//!
//! A log that is followed and silent stays open for as long as somebody wants, and `view` in one namespace is enough for it. So connections to
//! kubelets have an end of their own: webhooks, aggregated APIs and the keys of issuers always have places.

use crate::kubelet;
use berth_sync_rules::egress::{policy::ConnectError, target::Target};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time that lead out of this process.
pub(super) const TUNNELS: usize = 512;

/// The places that are free.
pub(super) struct Places {
    all: Arc<Semaphore>,
    to_kubelets: Arc<Semaphore>,
}

/// The place of one connection. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _one: OwnedSemaphorePermit,
    _to_kubelet: Option<OwnedSemaphorePermit>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(TUNNELS)),
            to_kubelets: Arc::new(Semaphore::new(kubelet::CONNECTIONS)),
        }
    }
}

impl Places {
    /// A place for a connection to a kubelet, at `target`.
    ///
    /// # Errors
    /// None is left, as the message says to the team.
    pub(super) fn take_for_kubelet(&self, target: &Target) -> Result<Place, ConnectError> {
        let taken = Arc::clone(&self.to_kubelets).try_acquire_owned().map_err(|_| {
            ConnectError::unavailable(format!(
                "{target}: your cluster has {} logs, commands and forwarded ports open; close some",
                kubelet::CONNECTIONS
            ))
        })?;
        Ok(Place {
            _to_kubelet: Some(taken),
            ..self.take(target)?
        })
    }

    /// A place for any other connection, to `target`.
    ///
    /// # Errors
    /// As [`Places::take_for_kubelet`].
    pub(super) fn take(&self, target: &Target) -> Result<Place, ConnectError> {
        let taken = Arc::clone(&self.all).try_acquire_owned().map_err(|_| {
            ConnectError::unavailable(format!(
                "{target}: your API server has {TUNNELS} connections open (logs, exec, port-forward, webhooks); close some"
            ))
        })?;
        Ok(Place {
            _one: taken,
            _to_kubelet: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    #[test]
    fn logs_leave_places_for_webhooks() {
        let (places, node, webhook) = (Places::default(), target("10.0.0.1:10250"), target("hook.team.svc:443"));
        let logs: Vec<Place> = std::iter::from_fn(|| places.take_for_kubelet(&node).ok()).collect();
        assert_eq!(logs.len(), kubelet::CONNECTIONS);
        let refused = places.take_for_kubelet(&node).unwrap_err();
        assert!(refused.message.contains("384 logs"), "{}", refused.message);
        let webhooks: Vec<Place> = std::iter::from_fn(|| places.take(&webhook).ok()).collect();
        assert_eq!(webhooks.len(), TUNNELS - kubelet::CONNECTIONS);
        let refused = places.take(&webhook).unwrap_err();
        assert!(refused.message.contains("512 connections open"), "{}", refused.message);
        drop(logs);
        assert!(places.take_for_kubelet(&node).is_ok());
    }

    #[test]
    fn webhooks_may_have_every_place() {
        let (places, webhook) = (Places::default(), target("hook.team.svc:443"));
        let webhooks: Vec<Place> = std::iter::from_fn(|| places.take(&webhook).ok()).collect();
        assert_eq!(webhooks.len(), TUNNELS);
        // A kubelet's place that could not be used is free.
        assert!(places.take_for_kubelet(&target("10.0.0.1:10250")).is_err());
        drop(webhooks);
        let logs: Vec<Place> = std::iter::from_fn(|| places.take_for_kubelet(&target("10.0.0.1:10250")).ok()).collect();
        assert_eq!(logs.len(), kubelet::CONNECTIONS);
    }
}
