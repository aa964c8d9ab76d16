//! Connections that are not passed on.

use crate::{
    client_hello::{self, HelloError},
    hold::HoldError,
    metrics::{Metrics, Refusal},
    routes::Tenant,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

/// Time for an alert to be written.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);

/// A refused connection: what is counted, what is logged, and what the client gets.
pub struct Refused {
    reason: Refusal,
    tenant: Option<Arc<Tenant>>,
    message: String,
    alert: Vec<u8>,
}

impl Refused {
    /// One of an unknown tenant, which gets no answer.
    pub fn new(reason: Refusal, message: impl Into<String>) -> Self {
        Self {
            reason,
            tenant: None,
            message: message.into(),
            alert: Vec::new(),
        }
    }

    /// It gets an alert.
    #[must_use]
    pub fn with_alert(mut self, description: u8) -> Self {
        self.alert = client_hello::alert(description).to_vec();
        self
    }

    /// One of a tenant, which gets the alert internal_error: the client did nothing wrong in TLS.
    pub fn of_tenant(tenant: &Arc<Tenant>, reason: Refusal, message: impl Into<String>) -> Self {
        Self {
            tenant: Some(Arc::clone(tenant)),
            ..Self::new(reason, message).with_alert(client_hello::INTERNAL_ERROR)
        }
    }

    /// One without a ClientHello.
    pub fn without_hello(error: HelloError) -> Self {
        let message = error.to_string();
        match error {
            HelloError::Closed | HelloError::Io(_) => Self::new(Refusal::Closed, message),
            HelloError::TooLong => {
                Self::new(Refusal::InvalidClientHello, message).with_alert(client_hello::DECODE_ERROR)
            }
            HelloError::Invalid { alert, .. } => Self {
                alert,
                ..Self::new(Refusal::InvalidClientHello, message)
            },
        }
    }

    /// One that is not held, or not held any longer. `unreached` is why the API server was not reached before, if that was tried.
    pub fn held(tenant: &Arc<Tenant>, error: HoldError, unreached: Option<String>) -> Self {
        let refuse = |reason, message: String| Self::of_tenant(tenant, reason, message);
        match (error, unreached) {
            (HoldError::Limit, None) => refuse(
                Refusal::HoldLimit,
                "too many connections are held for tenants that sleep".into(),
            ),
            (HoldError::Limit, Some(message)) | (HoldError::Unavailable(message), _) => {
                refuse(Refusal::BackendUnavailable, message)
            }
            (HoldError::NotAwake(message), _) => refuse(
                Refusal::WakeTimeout,
                format!("the tenant did not wake in time: {message}"),
            ),
            (HoldError::HungUp, _) => Self {
                alert: Vec::new(),
                ..refuse(
                    Refusal::Closed,
                    "the client closed the connection while it was held".into(),
                )
            },
            (HoldError::Kept, _) => refuse(
                Refusal::KeptAsleep,
                "the tenant sleeps, and spec.sleep.mode is Asleep: nothing but another mode wakes it".into(),
            ),
            (HoldError::Deleted, _) => refuse(Refusal::TenantDeleted, "the tenant was deleted".into())
                .with_alert(client_hello::UNRECOGNIZED_NAME),
        }
    }

    /// Counts the connection, and answers with the alert if there is one.
    pub async fn answer(&self, mut client: TcpStream, peer: SocketAddr, metrics: &Metrics) {
        let Self {
            reason,
            tenant,
            message,
            alert,
        } = self;
        // Those of a tenant that is gone would never be removed.
        let known = tenant.as_ref().filter(|tenant| !tenant.deleted.is_cancelled());
        let labels = known.map(|tenant| tenant.metrics.labels.clone()).unwrap_or_default();
        metrics.count_refusal(*reason, &labels);
        tracing::debug!(%peer, reason = reason.as_str(), namespace = labels.tenant_namespace, tenant = labels.tenant, "{message}");
        if !alert.is_empty() {
            let answer = async {
                client.write_all(alert).await?;
                client.shutdown().await
            };
            // The client may be gone.
            let _ = timeout(ALERT_TIMEOUT, answer).await;
        }
    }
}
