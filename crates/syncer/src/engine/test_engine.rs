//! An engine for unit tests.

use super::{Engine, api::Api, reserve::Connections, to_host::ObjectSync};
use crate::metrics::Metrics;
use berth_api::{SchedulingMode, SyncPolicy};
use berth_sync_rules::{
    model::{
        HostLimits, KindId, Tenant, UserRules,
        resource::{Name, Side},
        schedule::PodSchedule,
        store::Stored,
    },
    registry,
    translation::quota::QuotaExceeded,
};
use kube::Client;
use serde_json::json;
use std::{ops::Range, sync::Arc, time::Instant};

/// A tenant with a policy.
pub(crate) fn tenant(policy: SyncPolicy) -> Tenant {
    Tenant {
        slug: "vision-aaaaaaaaaaaaa".into(),
        workload_namespace: "berth-vision-aaaaaaaaaaaaa".into(),
        control_plane_namespace: "berth-vision-aaaaaaaaaaaaa-cp".into(),
        api_server_host: "10.96.0.49".into(),
        api_server_port: 443,
        dns_address: None,
        cluster_domain: "cluster.local".into(),
        policy: Arc::new(policy),
        network: Arc::default(),
        class_name: berth_api::DEFAULT_CLASS.into(),
        scheduling: SchedulingMode::Host,
        users: UserRules::default(),
        withdrawn_storage: std::collections::BTreeSet::new(),
        host_limits: HostLimits::default(),
        reserved_service_addresses: Vec::new(),
        host_account: String::new(),
    }
}

/// An engine that reaches no API server, with a place for one pod at a time.
pub(crate) fn engine() -> Arc<Engine> {
    let mut policy = SyncPolicy::default();
    policy.pods.scheduling_window = Some(1);
    engine_of(tenant(policy))
}

/// An engine of a tenant that reaches no API server.
pub(crate) fn engine_of(tenant: Tenant) -> Arc<Engine> {
    engine_with(tenant, None)
}

/// An engine of a tenant that reaches the host's API server not at all, and the tenant's with this client.
pub(crate) fn engine_reaching(tenant: Tenant, client: Client) -> Arc<Engine> {
    engine_with(tenant, Some(client))
}

fn engine_with(tenant: Tenant, client: Option<Client>) -> Arc<Engine> {
    let metrics = Metrics::default();
    let Connections {
        tenant: unreachable,
        host: host_api,
    } = connections_with(&metrics);
    let tenant_api = client.map_or(unreachable, |client| Api::new(client, Side::Tenant, metrics.clone()));
    Engine::new(registry::new_cache(tenant), tenant_api, host_api, metrics)
}

/// Connections that reach no API server.
pub(crate) fn connections() -> Connections {
    connections_with(&Metrics::default())
}

fn connections_with(metrics: &Metrics) -> Connections {
    berth_runtime::install_crypto();
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = berth_runtime::client::from_config(config).unwrap();
    let api = |side| Api::new(client.clone(), side, metrics.clone());
    Connections {
        tenant: api(Side::Tenant),
        host: api(Side::Host),
    }
}

/// The reconcile of a pod to which a schedule applies.
pub(super) fn sync_of<'a>(engine: &'a Engine, name: &'a Name, schedule: PodSchedule) -> ObjectSync<'a> {
    ObjectSync {
        schedule,
        ..sync_of_kind(engine, KindId::Pod, name)
    }
}

/// The answer of a host of whose quota nothing is left for this resource.
pub(super) fn exceeded(resource: &str) -> QuotaExceeded {
    let text = format!(
        "pods \"a\" is forbidden: exceeded quota: a, requested: {resource}=1, used: {resource}=1, limited: {resource}=1"
    );
    QuotaExceeded::parse(&text).unwrap()
}

/// Makes Services with a selector on the host.
pub(crate) fn make_services(engine: &Engine, numbers: Range<u32>) {
    let store = engine.cache.stores.host(KindId::Service);
    store.set_listed();
    for number in numbers {
        let name = Name::new("team", &format!("s{number}"));
        let object = json!({"metadata": {"name": "a", "uid": number.to_string()}, "spec": {"selector": {"app": "a"}}});
        store.watched(name.clone(), Stored::from(object));
        engine.cache.update_dependents(Side::Host, KindId::Service, &name);
    }
}

/// The reconcile of an object.
pub(super) fn sync_of_kind<'a>(engine: &'a Engine, id: KindId, name: &'a Name) -> ObjectSync<'a> {
    ObjectSync {
        engine,
        id,
        kind: engine.cache.rules_to_host(id).unwrap(),
        name,
        observed_at: Instant::now(),
        compares: true,
        schedule: PodSchedule::default(),
    }
}
