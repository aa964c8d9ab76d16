//! Which tenant has a host name, and where its API server is.
//!
//! The table follows from two kinds of objects of the host: TenantClusters give the host names, and the Service `kube-apiserver` of a
//! tenant's control-plane namespace the address. The name of that namespace follows from the UID of the TenantCluster, so no text that a
//! team writes leads to another tenant.

use crate::{
    hold::HoldState,
    limits::{Slot, Slots, SourceSlot, Sources},
    metrics::{Metrics, Refusal, TenantLabels, TenantMetrics},
    sleep_state::SleepState,
};
use berth_api::{GatewayDomain, names::TenantId};
use berth_runtime::locks::lock;
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};
use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How a Service leads to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    /// At its address: API servers are pods.
    ClusterIp,
    /// At its target port on this machine: API servers are processes.
    Loopback,
}

impl Backends {
    /// The address of the API server behind a Service; `None` as long as it has none.
    pub fn address_of(self, service: &Service) -> Option<SocketAddr> {
        let spec = service.spec.as_ref()?;
        let port = spec
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(API_SERVER))?;
        match self {
            Self::ClusterIp => {
                let address: IpAddr = spec.cluster_ip.as_deref()?.parse().ok()?;
                Some(SocketAddr::new(address, u16::try_from(port.port).ok()?))
            }
            Self::Loopback => {
                let Some(IntOrString::Int(target)) = port.target_port else {
                    return None;
                };
                Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), u16::try_from(target).ok()?))
            }
        }
    }
}

/// Name of the Service of an API server, and of its port.
pub const API_SERVER: &str = "kube-apiserver";

/// A TenantCluster, as far as the gateway knows it.
#[derive(Debug)]
pub struct Tenant {
    uid: String,
    host_name: String,
    control_plane_namespace: String,
    connections: Slots,
    sources: Sources,
    /// Whether it sleeps, and what its held connections share.
    pub hold: HoldState,
    /// Its metrics.
    pub metrics: TenantMetrics,
    /// Cancelled once the TenantCluster is gone: its connections are closed then.
    pub deleted: CancellationToken,
}

impl Tenant {
    /// Counts a connection from `source` until the result is dropped. What a source may have at most is less than what the tenant may have: a
    /// connection counts before anybody knows whether its client has any rights, so one source must not take all places.
    ///
    /// # Errors
    /// The source, or the tenant, has as many connections as it may have.
    pub fn take_connection(
        self: &Arc<Self>,
        source: IpAddr,
        of_source: usize,
        of_tenant: usize,
    ) -> Result<TenantSlot, Refusal> {
        let of_source = self.sources.take(source, of_source);
        let of_source = of_source.ok_or(Refusal::TenantSourceLimit)?;
        let slot = self.connections.take(of_tenant).ok_or(Refusal::TenantLimit)?;
        self.metrics.connections.inc();
        Ok(TenantSlot {
            tenant: Arc::clone(self),
            _slot: slot,
            _source: of_source,
        })
    }
}

/// A counted connection of a tenant.
#[derive(Debug)]
pub struct TenantSlot {
    /// The tenant.
    pub tenant: Arc<Tenant>,
    _slot: Slot,
    _source: SourceSlot,
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        self.tenant.metrics.connections.dec();
    }
}

/// Namespace and name of an object.
pub type Key = (String, String);

/// The routing table. The watches write it, connections read it.
pub struct RoutingTable {
    domain: GatewayDomain,
    backends: Backends,
    metrics: Metrics,
    closed: CancellationToken,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// By TenantCluster.
    tenants: HashMap<Key, Arc<Tenant>>,
    /// By host name.
    host_names: HashMap<String, Arc<Tenant>>,
    /// Addresses of API servers by control-plane namespace.
    addresses: HashMap<String, SocketAddr>,
}

impl RoutingTable {
    /// An empty table. All connections of all tenants are closed once `closed` is cancelled.
    pub fn new(domain: GatewayDomain, backends: Backends, metrics: Metrics, closed: CancellationToken) -> Self {
        Self {
            domain,
            backends,
            metrics,
            closed,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a TenantCluster, or takes what it says about its sleep now. One with another UID under the same name is another tenant.
    pub fn put_tenant(&self, key: Key, uid: &str, sleep: SleepState) {
        let mut state = self.state();
        if let Some(known) = state.tenants.get(&key).filter(|known| known.uid == uid) {
            known.hold.set_sleep_state(sleep);
            return;
        }
        self.remove(&mut state, &key);
        let (namespace, name) = &key;
        let host_name = self.domain.host_name(namespace, name);
        let tenant = Arc::new(Tenant {
            uid: uid.into(),
            host_name: host_name.clone(),
            control_plane_namespace: TenantId::new(name, uid).control_plane_namespace(),
            connections: Slots::default(),
            sources: Sources::default(),
            hold: HoldState::default(),
            metrics: self.metrics.of_tenant(TenantLabels {
                tenant_namespace: namespace.clone(),
                tenant: name.clone(),
            }),
            deleted: self.closed.child_token(),
        });
        tenant.hold.set_sleep_state(sleep);
        state.host_names.insert(host_name, Arc::clone(&tenant));
        state.tenants.insert(key, tenant);
        self.count(&state);
    }

    /// Removes a TenantCluster and closes its connections.
    pub fn delete_tenant(&self, key: &Key) {
        let mut state = self.state();
        self.remove(&mut state, key);
        self.count(&state);
    }

    /// Removes all TenantClusters but these, after a complete list.
    pub fn retain_tenants(&self, listed: &HashSet<Key>) {
        let mut state = self.state();
        let gone: Vec<Key> = state
            .tenants
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        for key in &gone {
            self.remove(&mut state, key);
        }
        self.count(&state);
    }

    fn remove(&self, state: &mut State, key: &Key) {
        if let Some(tenant) = state.tenants.remove(key) {
            state.host_names.remove(&tenant.host_name);
            tenant.deleted.cancel();
            self.metrics.forget_tenant(&tenant.metrics.labels);
        }
    }

    fn count(&self, state: &State) {
        self.metrics
            .tenants
            .set(i64::try_from(state.tenants.len()).unwrap_or(i64::MAX));
    }

    /// Takes the address of an API server from its Service.
    pub fn put_service(&self, namespace: &str, service: &Service) {
        let mut state = self.state();
        match self.backends.address_of(service) {
            Some(address) => state.addresses.insert(namespace.to_owned(), address),
            None => state.addresses.remove(namespace),
        };
        drop(state);
        self.changed.notify_waiters();
    }

    /// Removes the address of an API server. Connections to it go on until it closes them.
    pub fn delete_service(&self, namespace: &str) {
        self.state().addresses.remove(namespace);
    }

    /// Removes the addresses in all namespaces but these, after a complete list.
    pub fn retain_services(&self, listed: &HashSet<Key>) {
        let namespaces: HashSet<&String> = listed.iter().map(|(namespace, _)| namespace).collect();
        self.state()
            .addresses
            .retain(|namespace, _| namespaces.contains(namespace));
    }

    /// The tenant with this host name, in lower case.
    pub fn find_tenant(&self, host_name: &str) -> Option<Arc<Tenant>> {
        self.state().host_names.get(host_name).cloned()
    }

    /// How Services lead to API servers.
    pub fn backends(&self) -> Backends {
        self.backends
    }

    /// The address of the tenant's API server. If it has none yet, waits for it, at most for `wait`.
    pub async fn find_backend(&self, tenant: &Tenant, wait: Duration) -> Option<SocketAddr> {
        let find = || self.state().addresses.get(&tenant.control_plane_namespace).copied();
        let until_found = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // From here on no change is missed.
                changed.as_mut().enable();
                if let Some(address) = find() {
                    return address;
                }
                changed.await;
            }
        };
        match find() {
            Some(address) => Some(address),
            None => tokio::time::timeout(wait, until_found).await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use serde_json::json;

    fn table(backends: Backends) -> RoutingTable {
        let metrics = Metrics::new(&mut Registry::default());
        RoutingTable::new(
            "example.com".parse().unwrap(),
            backends,
            metrics,
            CancellationToken::new(),
        )
    }

    fn key(namespace: &str, name: &str) -> Key {
        (namespace.into(), name.into())
    }

    fn service(address: &str, target: i32) -> Service {
        let ports = json!([
            {"name": "syncer", "port": 8080, "targetPort": 40002},
            {"name": "kube-apiserver", "port": 443, "targetPort": target},
        ]);
        serde_json::from_value(json!({"spec": {"clusterIP": address, "ports": ports}})).unwrap()
    }

    async fn address(table: &RoutingTable, host_name: &str) -> Option<String> {
        let tenant = table.find_tenant(host_name)?;
        let address = table.find_backend(&tenant, Duration::ZERO).await?;
        Some(address.to_string())
    }

    #[tokio::test]
    async fn a_name_leads_to_the_service_of_its_tenant() {
        let table = table(Backends::ClusterIp);
        table.put_tenant(key("team-a", "vision"), "1", SleepState::default());
        table.put_tenant(key("team-b", "vision"), "2", SleepState::default());
        let namespace = |uid| TenantId::new("vision", uid).control_plane_namespace();
        table.put_service(&namespace("1"), &service("10.96.0.49", 6443));
        table.put_service(&namespace("2"), &service("fd00::1", 6443));
        // The team's own Service of the name leads nowhere.
        table.put_service("team-a", &service("10.96.0.200", 6443));
        assert_eq!(
            address(&table, "vision.team-a.example.com").await.unwrap(),
            "10.96.0.49:443"
        );
        assert_eq!(
            address(&table, "vision.team-b.example.com").await.unwrap(),
            "[fd00::1]:443"
        );
        for unknown in [
            "vision.team-c.example.com",
            "team-a.example.com",
            "example.com",
            "vision",
            "",
        ] {
            assert!(table.find_tenant(unknown).is_none(), "{unknown}");
        }
    }

    #[tokio::test]
    async fn processes_are_reached_at_their_ports() {
        let table = table(Backends::Loopback);
        table.put_tenant(key("team-a", "vision"), "1", SleepState::default());
        let namespace = TenantId::new("vision", "1").control_plane_namespace();
        table.put_service(&namespace, &service("10.96.0.49", 40001));
        assert_eq!(
            address(&table, "vision.team-a.example.com").await.unwrap(),
            "127.0.0.1:40001"
        );
    }

    #[test]
    fn services_without_an_address_or_a_port_are_no_backends() {
        for (backends, service) in [
            (Backends::ClusterIp, service("None", 6443)),
            (Backends::ClusterIp, service("", 6443)),
            (Backends::ClusterIp, Service::default()),
            (Backends::Loopback, service("10.96.0.49", 70_000)),
        ] {
            assert_eq!(backends.address_of(&service), None);
        }
    }

    #[test]
    fn a_tenant_that_is_gone_loses_its_name_and_its_connections() {
        let table = table(Backends::ClusterIp);
        let (a, b) = (key("team-a", "vision"), key("team-a", "speech"));
        table.put_tenant(a.clone(), "1", SleepState::default());
        table.put_tenant(b.clone(), "2", SleepState::default());
        let first = table.find_tenant("vision.team-a.example.com").unwrap();
        let other = table.find_tenant("speech.team-a.example.com").unwrap();
        // The same object again changes nothing.
        table.put_tenant(a.clone(), "1", SleepState::default());
        assert!(!first.deleted.is_cancelled());
        // A new object of the same name is another tenant.
        table.put_tenant(a.clone(), "3", SleepState::default());
        assert!(first.deleted.is_cancelled());
        let second = table.find_tenant("vision.team-a.example.com").unwrap();
        assert_ne!(second.control_plane_namespace, first.control_plane_namespace);
        table.delete_tenant(&a);
        assert!(second.deleted.is_cancelled() && table.find_tenant("vision.team-a.example.com").is_none());
        table.delete_tenant(&a);
        // One that a new list does not have.
        table.retain_tenants(&HashSet::from([b.clone()]));
        assert!(!other.deleted.is_cancelled());
        table.retain_tenants(&HashSet::new());
        assert!(other.deleted.is_cancelled() && table.find_tenant("speech.team-a.example.com").is_none());
    }

    #[tokio::test]
    async fn addresses_follow_their_services() {
        let table = table(Backends::ClusterIp);
        table.put_tenant(key("team-a", "vision"), "1", SleepState::default());
        let host = "vision.team-a.example.com";
        let namespace = TenantId::new("vision", "1").control_plane_namespace();
        for (number, expected) in [(49, "10.96.0.49:443"), (57, "10.96.0.57:443")] {
            table.put_service(&namespace, &service(&format!("10.96.0.{number}"), 6443));
            assert_eq!(address(&table, host).await.unwrap(), expected);
        }
        table.retain_services(&HashSet::from([key(&namespace, API_SERVER)]));
        assert!(address(&table, host).await.is_some());
        table.retain_services(&HashSet::new());
        assert_eq!(address(&table, host).await, None);
        table.put_service(&namespace, &service("10.96.0.49", 6443));
        table.delete_service(&namespace);
        assert_eq!(address(&table, host).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_waited_for() {
        let table = Arc::new(table(Backends::ClusterIp));
        table.put_tenant(key("team-a", "vision"), "1", SleepState::default());
        let tenant = table.find_tenant("vision.team-a.example.com").unwrap();
        let wait = Duration::from_secs(10);
        assert_eq!(table.find_backend(&tenant, wait).await, None);
        let waiting = tokio::spawn({
            let (table, tenant) = (Arc::clone(&table), Arc::clone(&tenant));
            async move { table.find_backend(&tenant, wait).await }
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        // That of another tenant does not count.
        table.put_service("berth-other-cp", &service("10.96.0.1", 6443));
        tokio::time::sleep(Duration::from_secs(3)).await;
        table.put_service(&tenant.control_plane_namespace, &service("10.96.0.49", 6443));
        let found = waiting.await.unwrap().unwrap();
        assert_eq!(found.to_string(), "10.96.0.49:443");
    }

    #[test]
    fn the_connections_of_a_tenant_are_limited_and_counted() {
        let table = table(Backends::ClusterIp);
        table.put_tenant(key("team-a", "vision"), "1", SleepState::default());
        let tenant = table.find_tenant("vision.team-a.example.com").unwrap();
        let take = |last: u8| tenant.take_connection([192, 0, 2, last].into(), 2, 3);
        let refusal = |last: u8| take(last).unwrap_err();
        let first = (take(1).unwrap(), take(1).unwrap());
        // One source does not take all places of a tenant.
        assert_eq!(refusal(1), Refusal::TenantSourceLimit);
        let other = take(2).unwrap();
        assert_eq!((refusal(2), refusal(3)), (Refusal::TenantLimit, Refusal::TenantLimit));
        assert_eq!(tenant.metrics.connections.get(), 3);
        drop(first);
        assert_eq!(tenant.metrics.connections.get(), 1);
        // What was refused takes no place.
        drop((take(2).unwrap(), take(3).unwrap(), other));
        assert_eq!(tenant.metrics.connections.get(), 0);
    }
}
