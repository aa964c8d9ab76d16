//! What a tenant may have of each kind on the host, at most: enforced by the host's API server, even if the syncer is taken over.

use super::host_objects::metadata;
use berth_api::{
    Amount, LIMITS_NAME, ScheduleState, TenantCluster, TenantLimits, names::TenantId, sync_policy::SyncedKind,
};
use k8s_openapi::{
    api::core::v1::{LimitRange, LimitRangeItem, LimitRangeSpec, ResourceQuota, ResourceQuotaSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use std::collections::BTreeMap;

/// The number of objects in the workload namespace. While schedules let nothing new start, no pod can be created; those that there are
/// stay. `kinds` are those that the class lists in `sync.kinds`. `ceilings` are amounts by the names of the `ResourceQuota` beyond which the tenant may
/// not grow, whether its class limits the resource or not.
pub fn resource_quota(
    cluster: &TenantCluster,
    tenant: &TenantId,
    (limits, kinds): (&TenantLimits, &[SyncedKind]),
    schedule: ScheduleState,
    ceilings: &BTreeMap<String, u64>,
) -> ResourceQuota {
    let mut hard = limits.quota(kinds);
    for (resource, ceiling) in ceilings {
        let limit = hard.get(resource).cloned();
        let limit = limit.and_then(|limit| Amount::Text(limit).value());
        if limit.is_none_or(|limit| limit > *ceiling) {
            hard.insert(resource.clone(), ceiling.to_string());
        }
    }
    if schedule != ScheduleState::Running {
        hard.insert("count/pods".into(), "0".into());
    }
    ResourceQuota {
        metadata: metadata(cluster, tenant, &tenant.workload_namespace(), LIMITS_NAME),
        spec: Some(ResourceQuotaSpec {
            hard: Some(
                hard.into_iter()
                    .map(|(resource, limit)| (resource, Quantity(limit)))
                    .collect(),
            ),
            ..ResourceQuotaSpec::default()
        }),
        status: None,
    }
}

/// Lowers limits of storage by what volumes have beyond the requests of their claims, which the host does not count: `excess`, by the names of the
/// `ResourceQuota`.
pub fn count_excess(quota: &mut ResourceQuota, excess: &BTreeMap<String, u64>) {
    let hard = quota.spec.as_mut().and_then(|spec| spec.hard.as_mut());
    for (resource, limit) in hard.into_iter().flatten() {
        let bytes = Amount::Text(limit.0.clone()).value();
        if let Some((bytes, excess)) = bytes.zip(excess.get(resource)) {
            *limit = Quantity(bytes.saturating_sub(*excess).to_string());
        }
    }
}

/// The size of one object in the workload namespace, and what containers without requests request of CPU and memory, where these are
/// limited, by the class or by one of the `ceilings` of [`resource_quota`]. It has no limits for containers: these would also set the requests of
/// containers that have none.
pub fn limit_range(
    cluster: &TenantCluster,
    tenant: &TenantId,
    limits: &TenantLimits,
    ceilings: &BTreeMap<String, u64>,
) -> LimitRange {
    let volume = limits.volume_size.iter().map(|size| LimitRangeItem {
        type_: "PersistentVolumeClaim".into(),
        max: Some(BTreeMap::from([("storage".to_owned(), Quantity(size.clone()))])),
        ..LimitRangeItem::default()
    });
    let requests: BTreeMap<String, Quantity> = limits
        .default_requests(|name| limits.resource(name).is_some() || ceilings.contains_key(name))
        .into_iter()
        .map(|(resource, amount)| (resource.to_owned(), Quantity(amount.to_owned())))
        .collect();
    let container = (!requests.is_empty()).then(|| LimitRangeItem {
        type_: "Container".into(),
        default_request: Some(requests),
        ..LimitRangeItem::default()
    });
    LimitRange {
        metadata: metadata(cluster, tenant, &tenant.workload_namespace(), LIMITS_NAME),
        spec: Some(LimitRangeSpec {
            limits: volume.chain(container).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{Amount, ResourceLimit, TenantClusterSpec};

    fn tenant() -> (TenantCluster, TenantId) {
        let cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        (cluster, TenantId::new("vision", "6f2c"))
    }

    #[test]
    fn the_quota_limits_what_the_class_limits() {
        let (cluster, id) = tenant();
        let limits = TenantLimits {
            pods: 7,
            requests_storage: Some("50Ti".into()),
            ..TenantLimits::default()
        };
        let quota = resource_quota(&cluster, &id, (&limits, &[]), ScheduleState::Running, &BTreeMap::new());
        assert_eq!(quota.metadata.namespace, Some(id.workload_namespace()));
        let hard = quota.spec.and_then(|spec| spec.hard).unwrap();
        assert_eq!(hard["count/pods"].0, "7");
        assert_eq!(hard["requests.storage"].0, "50Ti");
        assert_eq!(hard.len(), limits.quota(&[]).len());
    }

    /// Otherwise claims of one byte fill the storage of the platform, if the smallest volume of a class is large.
    #[test]
    fn what_volumes_have_beyond_their_claims_counts() {
        let (cluster, id) = tenant();
        let of_class = "fast.storageclass.storage.k8s.io/requests.storage";
        let limits = TenantLimits {
            requests_storage: Some("50Gi".into()),
            resources: vec![ResourceLimit {
                resource: of_class.into(),
                quantity: Amount::Text("1Ki".into()),
            }],
            ..TenantLimits::default()
        };
        let hard = |excess: &[(&str, u64)]| {
            let mut quota = resource_quota(&cluster, &id, (&limits, &[]), ScheduleState::Running, &BTreeMap::new());
            let excess = excess.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
            count_excess(&mut quota, &excess.collect());
            let hard = quota.spec.and_then(|spec| spec.hard).unwrap();
            assert_eq!(hard.len(), limits.quota(&[]).len());
            (hard["requests.storage"].0.clone(), hard[of_class].0.clone())
        };
        assert_eq!(hard(&[]), ("50Gi".into(), "1Ki".into()));
        let excess = [("requests.storage", 1 << 30), (of_class, 1 << 30), ("other", 1)];
        assert_eq!(hard(&excess), ((49_u64 << 30).to_string(), "0".into()));
    }

    #[test]
    fn a_tenant_does_not_grow_beyond_a_lowered_quota() {
        let (cluster, id) = tenant();
        let limits = TenantLimits {
            pods: 100,
            services: 5,
            resources: vec![ResourceLimit {
                resource: "requests.memory".into(),
                quantity: Amount::Text("1Ti".into()),
            }],
            ..TenantLimits::default()
        };
        let ceilings = [
            ("count/pods", 7),
            ("count/services", 9),
            ("requests.memory", 3 << 30),
            ("requests.cpu", 4),
        ];
        let ceilings = ceilings
            .map(|(resource, ceiling)| (resource.to_owned(), ceiling))
            .into();
        let hard = |schedule: ScheduleState| {
            let quota = resource_quota(&cluster, &id, (&limits, &[]), schedule, &ceilings);
            quota.spec.and_then(|spec| spec.hard).unwrap()
        };
        let running = hard(ScheduleState::Running);
        let amount = |name: &str| running[name].0.clone();
        assert_eq!(
            (amount("count/pods"), amount("count/services")),
            ("7".into(), "5".into())
        );
        assert_eq!(amount("requests.memory"), (3_u64 << 30).to_string());
        assert_eq!(amount("count/secrets"), limits.quota(&[])["count/secrets"]);
        assert_eq!(amount("requests.cpu"), "4", "the class does not limit it");
        assert_eq!(hard(ScheduleState::Stopped)["count/pods"].0, "0");
    }

    #[test]
    fn no_pod_is_created_while_schedules_let_nothing_start() {
        let (cluster, id) = tenant();
        let limits = TenantLimits::default();
        for schedule in [ScheduleState::StartsForbidden, ScheduleState::Stopped] {
            let quota = resource_quota(&cluster, &id, (&limits, &[]), schedule, &BTreeMap::new());
            let hard = quota.spec.and_then(|spec| spec.hard).unwrap();
            assert_eq!(hard["count/pods"].0, "0");
            // The Secrets of the pods that run go on.
            assert_eq!(hard["count/secrets"].0, limits.quota(&[])["count/secrets"]);
        }
    }

    #[test]
    fn containers_have_default_requests_of_what_the_quota_counts() {
        let (cluster, id) = tenant();
        let limits = TenantLimits {
            resources: vec![ResourceLimit {
                resource: "requests.memory".into(),
                quantity: Amount::Text("1Ti".into()),
            }],
            ..TenantLimits::default()
        };
        let range = limit_range(&cluster, &id, &limits, &BTreeMap::new()).spec.unwrap();
        assert_eq!(range.limits.len(), 1);
        let container = &range.limits[0];
        assert_eq!(container.type_, "Container");
        let requests = container.default_request.as_ref().unwrap();
        assert_eq!((requests.len(), requests["memory"].0.as_str()), (1, "16Mi"));
        assert_eq!((&container.default, &container.max), (&None, &None));
        let ceilings = BTreeMap::from([("requests.cpu".to_owned(), 4)]);
        let range = limit_range(&cluster, &id, &limits, &ceilings).spec.unwrap();
        let requests = range.limits[0].default_request.as_ref().unwrap();
        assert_eq!((requests.len(), requests["cpu"].0.as_str()), (2, "10m"));
        let quota = resource_quota(&cluster, &id, (&limits, &[]), ScheduleState::Running, &BTreeMap::new());
        assert_eq!(
            quota.spec.and_then(|spec| spec.hard).unwrap()["requests.memory"].0,
            "1Ti"
        );
    }

    #[test]
    fn volumes_have_a_maximum_only_if_the_class_has_one() {
        let (cluster, id) = tenant();
        let limits = |volume_size: Option<&str>| {
            let limits = TenantLimits {
                volume_size: volume_size.map(Into::into),
                ..TenantLimits::default()
            };
            let range = limit_range(&cluster, &id, &limits, &BTreeMap::new());
            range.spec.map(|spec| spec.limits).unwrap_or_default()
        };
        assert!(limits(None).is_empty());
        let volume = limits(Some("2Ti"));
        assert_eq!(volume[0].type_, "PersistentVolumeClaim");
        assert_eq!(volume[0].max.as_ref().unwrap()["storage"].0, "2Ti");
    }
}
