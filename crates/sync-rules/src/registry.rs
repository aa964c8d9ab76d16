//! The one list of kinds and their rules. The registry names the kinds; no kind names the registry.

use crate::kinds::{
    config, custom, devices, disruption_budget, endpoint_slice, event, gateway, ingress, namespace, network_policy,
    node, pod, runtime_class, schedule, service, storage,
};
use crate::model::{Cache, Kind, KindId, Tenant};
use berth_api::{SyncPolicy, sync_policy::SyncedKind};

/// Where a kind lives, in which direction it is synced and by which rules.
pub fn kind(id: KindId) -> Kind {
    match id {
        KindId::Pod => pod::KIND,
        KindId::PodToken => pod::token::KIND,
        KindId::ClusterTrustBundle => pod::trust::BUNDLES,
        KindId::PodCertificateRequest => pod::certificate::REQUESTS,
        KindId::RuntimeClass => runtime_class::KIND,
        KindId::Namespace => namespace::KIND,
        KindId::ConfigMap => config::CONFIG_MAP,
        KindId::Secret => config::SECRET,
        KindId::Service => service::KIND,
        KindId::DeviceClass => devices::class::KIND,
        KindId::ResourceSlice => devices::slice::KIND,
        KindId::ResourceClaim => devices::claim::KIND,
        KindId::ResourceClaimTemplate => devices::template::KIND,
        KindId::GeneratedClaim => devices::generated::KIND,
        KindId::StorageClass => storage::classes::STORAGE_CLASS,
        KindId::VolumeSnapshotClass => storage::classes::SNAPSHOT_CLASS,
        KindId::VolumeAttributesClass => storage::classes::ATTRIBUTES_CLASS,
        KindId::CsiDriver => storage::driver::KIND,
        KindId::PersistentVolumeClaim => storage::claim::KIND,
        KindId::PersistentVolume => storage::volume::KIND,
        KindId::VolumeSnapshot => storage::snapshot::KIND,
        KindId::VolumeSnapshotContent => storage::snapshot::CONTENT_KIND,
        KindId::EndpointSlice => endpoint_slice::KIND,
        KindId::Ingress => ingress::KIND,
        KindId::IngressClass => ingress::class::KIND,
        KindId::HttpRoute => gateway::route::HTTP,
        KindId::GrpcRoute => gateway::route::GRPC,
        KindId::TlsRoute => gateway::route::TLS,
        KindId::GatewayClass => gateway::class::KIND,
        KindId::Gateway => gateway::GATEWAY,
        KindId::ReferenceGrant => gateway::REFERENCE_GRANT,
        KindId::NetworkPolicy => network_policy::KIND,
        KindId::PodDisruptionBudget => disruption_budget::KIND,
        KindId::Node => node::KIND,
        KindId::TenantSchedule => schedule::KIND,
        KindId::Event => event::KIND,
        KindId::Custom(custom) => custom::kind(custom),
    }
}

/// The kinds that are synced for tenants of a class: those that are built in and those that the class names.
pub fn kind_ids(policy: &SyncPolicy) -> Vec<KindId> {
    let mut ids = KindId::BUILT_IN.to_vec();
    ids.extend(custom::kind_ids(policy));
    ids
}

/// Whether the syncer has rules for the objects of a kind that no class can change: by the kind's name, or by that of its resource.
pub fn is_built_in(kind: &SyncedKind) -> bool {
    let mut built_in = KindId::BUILT_IN.iter().filter_map(|id| self::kind(*id).resource());
    built_in.any(|resource| {
        resource.group == kind.group && (resource.kind == kind.kind || resource.plural == kind.resource)
    })
}

/// An empty cache for a tenant.
pub fn new_cache(tenant: Tenant) -> Cache {
    let kinds = kind_ids(&tenant.policy).into_iter().map(|id| (id, kind(id)));
    Cache::new(tenant, kinds.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of the kinds here whose versions every API server serves itself, so that no definition of a tenant can take their place.
    const SERVED: &[&str] = &[
        "",
        "certificates.k8s.io",
        "discovery.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "resource.k8s.io",
        "storage.k8s.io",
    ];

    #[test]
    fn kinds_that_tenants_may_define_themselves_are_extensions() {
        for id in KindId::BUILT_IN {
            let kind = kind(*id);
            let Some(resource) = kind.tenant.map(|spec| spec.resource) else {
                continue;
            };
            let is_served = SERVED.contains(&resource.group);
            assert_eq!(kind.is_extension, !is_served, "{}", id.label());
            assert!(
                !is_served || resource.version == "v1",
                "{}: a tenant could define another version",
                id.label()
            );
            assert!(!(kind.is_extension && kind.is_essential), "{}", id.label());
        }
    }

    #[test]
    fn a_kind_is_built_in_by_its_name_and_by_that_of_its_resource() {
        let is_built_in = |group: &str, kind: &str, resource: &str| {
            is_built_in(&SyncedKind {
                group: group.into(),
                kind: kind.into(),
                resource: resource.into(),
                ..SyncedKind::default()
            })
        };
        assert!(is_built_in("networking.k8s.io", "Ingress", ""));
        assert!(is_built_in("networking.k8s.io", "ingress", "ingresses"));
        assert!(!is_built_in("example.com", "Ingress", "ingresses"));
        assert!(!is_built_in("scheduling.k8s.io", "PodGroup", "podgroups"));
    }

    #[test]
    fn what_leads_traffic_acts_without_pods() {
        let policy = SyncPolicy {
            kinds: vec![SyncedKind {
                group: "example.com".into(),
                version: "v1".into(),
                kind: "Widget".into(),
                resource: "widgets".into(),
                ..SyncedKind::default()
            }],
            ..SyncPolicy::default()
        };
        let acting = kind_ids(&policy).into_iter().filter(|id| kind(*id).acts_without_pods);
        let acting: Vec<&str> = acting.map(KindId::label).collect();
        // Endpoints that a tenant makes are not on the host while it sleeps.
        let expected = [
            "Service",
            "Ingress",
            "HttpRoute",
            "GrpcRoute",
            "TlsRoute",
            "Widget.example.com",
        ];
        assert_eq!(acting, expected);
    }
}
