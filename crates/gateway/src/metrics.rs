//! Metrics of the gateway. What clients send never becomes a label.

use berth_runtime::metrics::duration_histogram;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// A tenant. Both are empty where the tenant is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
}

/// Bytes of a tenant in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BytesLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// received (from clients) or sent (to clients).
    pub direction: &'static str,
}

/// Requests to wake a tenant, by outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WakeLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// success or failure, as far as the host's API server is concerned.
    pub outcome: &'static str,
}

/// Refused connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabels {
    /// Namespace of the `TenantCluster`; empty if the tenant is not known.
    pub tenant_namespace: String,
    /// Name of the `TenantCluster`; empty if the tenant is not known.
    pub tenant: String,
    /// Why.
    pub reason: &'static str,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source has as many connections as it may have.
    SourceLimit,
    /// The header of the PROXY protocol is missing or wrong.
    InvalidProxyHeader,
    /// No complete ClientHello came in time.
    HandshakeTimeout,
    /// No complete ClientHello came before the place was needed for another connection.
    HandshakeLimit,
    /// The client closed the connection before its ClientHello was complete.
    Closed,
    /// What came is no ClientHello, or too large.
    InvalidClientHello,
    /// The client names no host.
    NoServerName,
    /// No tenant has this host name.
    UnknownServerName,
    /// The source has as many connections to this tenant as it may have.
    TenantSourceLimit,
    /// The tenant has as many connections as it may have.
    TenantLimit,
    /// The tenant's API server has no address yet.
    BackendPending,
    /// The tenant's API server does not accept connections.
    BackendUnavailable,
    /// Too many connections are held for tenants that sleep.
    HoldLimit,
    /// The tenant did not wake in time.
    WakeTimeout,
    /// The TenantCluster was deleted while the connection was held.
    TenantDeleted,
    /// The tenant sleeps, and no request wakes it.
    KeptAsleep,
}

impl Refusal {
    /// All of them.
    const ALL: [Self; 16] = [
        Self::SourceLimit,
        Self::InvalidProxyHeader,
        Self::HandshakeTimeout,
        Self::HandshakeLimit,
        Self::Closed,
        Self::InvalidClientHello,
        Self::NoServerName,
        Self::UnknownServerName,
        Self::TenantSourceLimit,
        Self::TenantLimit,
        Self::BackendPending,
        Self::BackendUnavailable,
        Self::HoldLimit,
        Self::WakeTimeout,
        Self::TenantDeleted,
        Self::KeptAsleep,
    ];

    /// Its label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SourceLimit => "source-limit",
            Self::InvalidProxyHeader => "invalid-proxy-header",
            Self::HandshakeTimeout => "handshake-timeout",
            Self::HandshakeLimit => "handshake-limit",
            Self::Closed => "closed",
            Self::InvalidClientHello => "invalid-client-hello",
            Self::NoServerName => "no-server-name",
            Self::UnknownServerName => "unknown-server-name",
            Self::TenantSourceLimit => "tenant-source-limit",
            Self::TenantLimit => "tenant-limit",
            Self::BackendPending => "backend-pending",
            Self::BackendUnavailable => "backend-unavailable",
            Self::HoldLimit => "hold-limit",
            Self::WakeTimeout => "wake-timeout",
            Self::TenantDeleted => "tenant-deleted",
            Self::KeptAsleep => "kept-asleep",
        }
    }
}

/// Metrics of one tenant, so that its connections need not look them up.
#[derive(Clone, Debug)]
pub struct TenantMetrics {
    /// The tenant.
    pub labels: TenantLabels,
    /// Open connections.
    pub connections: Gauge,
    /// Connections that were passed to its API server.
    pub opened: Counter,
    /// Bytes from clients.
    pub received: Counter,
    /// Bytes to clients.
    pub sent: Counter,
    /// Connections that were closed because their reader took nothing and another one needed the place.
    pub displaced: Counter,
    /// Connections that are held.
    pub held: Gauge,
    /// Requests to wake it that the host's API server accepted.
    pub wakes_requested: Counter,
    /// Requests to wake it that failed.
    pub wakes_failed: Counter,
}

/// All metrics. Clones share values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open connections by tenant.
    pub connections: Family<TenantLabels, Gauge>,
    /// Connections that were passed to API servers, by tenant.
    pub opened: Family<TenantLabels, Counter>,
    /// Bytes by tenant and direction.
    pub bytes: Family<BytesLabels, Counter>,
    /// Refused connections by reason and, if known, tenant.
    pub refusals: Family<RefusalLabels, Counter>,
    /// Time from the acceptance of a connection until its API server has its ClientHello, without connections that were held.
    pub open_seconds: Histogram,
    /// Connections that were closed because their client or API server took nothing and another one needed the place, by tenant.
    pub displaced: Family<TenantLabels, Counter>,
    /// Connections that are held for tenants that sleep, by tenant.
    pub held: Family<TenantLabels, Gauge>,
    /// Requests to wake tenants, by tenant and outcome.
    pub wake_requests: Family<WakeLabels, Counter>,
    /// How long connections were held that were passed on then.
    pub hold_seconds: Histogram,
    /// Tenants with a host name.
    pub tenants: Gauge,
}

impl Metrics {
    /// Metrics, registered in `registry` under `berth_gateway_`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            connections: Family::default(),
            opened: Family::default(),
            bytes: Family::default(),
            refusals: Family::default(),
            open_seconds: duration_histogram(),
            displaced: Family::default(),
            held: Family::default(),
            wake_requests: Family::default(),
            hold_seconds: duration_histogram(),
            tenants: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("berth_gateway");
        registry.register(
            "open_connections",
            "Open connections, by tenant",
            metrics.connections.clone(),
        );
        registry.register(
            "connections",
            "Connections that were passed to API servers, by tenant",
            metrics.opened.clone(),
        );
        registry.register(
            "bytes",
            "Bytes received from and sent to clients, by tenant",
            metrics.bytes.clone(),
        );
        registry.register(
            "refusals",
            "Refused connections, by reason and, if it is known, by tenant",
            metrics.refusals.clone(),
        );
        registry.register(
            "open_seconds",
            "Time from the acceptance of a connection until its API server has its ClientHello, without connections that were held",
            metrics.open_seconds.clone(),
        );
        registry.register(
            "displaced_connections",
            "Connections that were closed because their client or API server took nothing and another one needed the place, by tenant",
            metrics.displaced.clone(),
        );
        registry.register(
            "held_connections",
            "Connections that are held for tenants that sleep, by tenant",
            metrics.held.clone(),
        );
        registry.register(
            "wake_requests",
            "Requests to wake tenants, by tenant and outcome (success or failure)",
            metrics.wake_requests.clone(),
        );
        registry.register(
            "hold_seconds",
            "How long connections were held until their API server accepted them",
            metrics.hold_seconds.clone(),
        );
        registry.register("tenants", "Tenants with a host name", metrics.tenants.clone());
        metrics
    }

    /// Metrics of one tenant.
    pub fn of_tenant(&self, labels: TenantLabels) -> TenantMetrics {
        let bytes = |direction| self.bytes.get_or_create_owned(&bytes_labels(&labels, direction));
        let wakes = |outcome| self.wake_requests.get_or_create_owned(&wake_labels(&labels, outcome));
        TenantMetrics {
            connections: self.connections.get_or_create_owned(&labels),
            opened: self.opened.get_or_create_owned(&labels),
            received: bytes(RECEIVED),
            sent: bytes(SENT),
            displaced: self.displaced.get_or_create_owned(&labels),
            held: self.held.get_or_create_owned(&labels),
            wakes_requested: wakes(SUCCESS),
            wakes_failed: wakes(FAILURE),
            labels,
        }
    }

    /// Removes the metrics of a tenant that is gone.
    pub fn forget_tenant(&self, labels: &TenantLabels) {
        self.connections.remove(labels);
        self.opened.remove(labels);
        self.displaced.remove(labels);
        self.held.remove(labels);
        for outcome in [SUCCESS, FAILURE] {
            self.wake_requests.remove(&wake_labels(labels, outcome));
        }
        for direction in [RECEIVED, SENT] {
            self.bytes.remove(&bytes_labels(labels, direction));
        }
        for reason in Refusal::ALL {
            self.refusals.remove(&refusal_labels(labels, reason));
        }
    }

    /// Counts a refused connection; `tenant` as far as it is known.
    pub fn count_refusal(&self, reason: Refusal, tenant: &TenantLabels) {
        self.refusals.get_or_create(&refusal_labels(tenant, reason)).inc();
    }
}

/// From clients.
const RECEIVED: &str = "received";
/// To clients.
const SENT: &str = "sent";
/// Requests that the host's API server accepted.
const SUCCESS: &str = "success";
/// Requests that it rejected, or did not get.
const FAILURE: &str = "failure";

fn bytes_labels(labels: &TenantLabels, direction: &'static str) -> BytesLabels {
    BytesLabels {
        tenant_namespace: labels.tenant_namespace.clone(),
        tenant: labels.tenant.clone(),
        direction,
    }
}

fn wake_labels(labels: &TenantLabels, outcome: &'static str) -> WakeLabels {
    WakeLabels {
        tenant_namespace: labels.tenant_namespace.clone(),
        tenant: labels.tenant.clone(),
        outcome,
    }
}

fn refusal_labels(labels: &TenantLabels, reason: Refusal) -> RefusalLabels {
    RefusalLabels {
        tenant_namespace: labels.tenant_namespace.clone(),
        tenant: labels.tenant.clone(),
        reason: reason.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn nothing_of_a_tenant_that_is_gone_is_left() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let labels = TenantLabels {
            tenant_namespace: "team-a".into(),
            tenant: "vision".into(),
        };
        let tenant = metrics.of_tenant(labels.clone());
        tenant.received.inc_by(7);
        tenant.displaced.inc();
        tenant.held.inc();
        tenant.wakes_requested.inc();
        for reason in Refusal::ALL {
            metrics.count_refusal(reason, &labels);
        }
        metrics.count_refusal(Refusal::NoServerName, &TenantLabels::default());
        let text = |registry: &Registry| {
            let mut text = String::new();
            encode(&mut text, registry).unwrap();
            text
        };
        let before = text(&registry);
        for line in [
            "berth_gateway_bytes_total{tenant_namespace=\"team-a\",tenant=\"vision\",direction=\"received\"} 7",
            "berth_gateway_refusals_total{tenant_namespace=\"\",tenant=\"\",reason=\"no-server-name\"} 1",
            "berth_gateway_displaced_connections_total{tenant_namespace=\"team-a\",tenant=\"vision\"} 1",
            "berth_gateway_held_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 1",
            "berth_gateway_wake_requests_total{tenant_namespace=\"team-a\",tenant=\"vision\",outcome=\"success\"} 1",
        ] {
            assert!(before.lines().any(|found| found == line), "{line}: {before}");
        }
        metrics.forget_tenant(&labels);
        let after = text(&registry);
        assert!(!after.contains("vision") && after.contains("no-server-name"), "{after}");
    }
}
