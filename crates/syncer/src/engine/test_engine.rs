//! An engine for unit tests.

use super::{Engine, api::Api, to_host::ObjectSync};
use crate::metrics::Metrics;
use berth_api::{SchedulingMode, SyncPolicy};
use berth_sync_rules::{
    model::{
        HostLimits, KindId, Tenant, UserRules,
        resource::{Name, Side},
        schedule::PodSchedule,
    },
    registry,
};
use std::{sync::Arc, time::Instant};

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
        withdrawn_storage_classes: std::collections::BTreeSet::new(),
        host_limits: HostLimits::default(),
    }
}

/// An engine that reaches no API server, with a place for one pod at a time.
pub(super) fn engine() -> Arc<Engine> {
    let mut policy = SyncPolicy::default();
    policy.pods.scheduling_window = Some(1);
    engine_of(tenant(policy))
}

/// An engine of a tenant that reaches no API server.
pub(super) fn engine_of(tenant: Tenant) -> Arc<Engine> {
    berth_runtime::install_crypto();
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = berth_runtime::client::from_config(config).unwrap();
    let metrics = Metrics::default();
    let api = |side| Api::new(client.clone(), side, metrics.clone());
    let (tenant_api, host_api) = (api(Side::Tenant), api(Side::Host));
    Engine::new(registry::new_cache(tenant), tenant_api, host_api, metrics)
}

/// The reconcile of a pod to which a schedule applies.
pub(super) fn sync_of<'a>(engine: &'a Engine, name: &'a Name, schedule: PodSchedule) -> ObjectSync<'a> {
    ObjectSync {
        engine,
        id: KindId::Pod,
        kind: engine.cache.rules_to_host(KindId::Pod).unwrap(),
        name,
        observed_at: Instant::now(),
        compares: true,
        schedule,
    }
}
