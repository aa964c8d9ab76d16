//! Keeps the tenant within its number of claims of devices on the host before the host's quota does. kube-controller-manager makes claims for pods that name
//! templates. If the quota refuses one, it tries again and again, with requests that all tenants share, long after the pod has come.
//!
//! So a pod comes to the host only when there is room for the claims of all pods that are there and for its own, whether or not they are made already. A
//! claim that the tenant makes itself leaves that room.

use super::{Engine, lock};
use berth_sync_rules::{
    kinds::devices::claims_of_pods,
    model::{KindId, resource::Name},
    translation::quota::QuotaExceeded,
};
use serde_json::Value;
use std::collections::HashMap;

/// Claims that are about to be made for pods.
#[derive(Debug, Default)]
pub(super) struct DeviceClaims {
    /// Of those pods on the host that lack some.
    of_pods: HashMap<Name, u64>,
    /// All of these.
    total: u64,
    /// Of objects that are being created.
    in_flight: u64,
}

impl DeviceClaims {
    fn set(&mut self, pod: &Name, claims: u64) {
        let before = match claims {
            0 => self.of_pods.remove(pod),
            _ => self.of_pods.insert(pod.clone(), claims),
        };
        self.total = self.total + claims - before.unwrap_or_default();
    }
}

/// Claims for which there is room, until the stores know what needs them.
#[must_use]
pub(super) struct ClaimsInFlight<'a> {
    engine: &'a Engine,
    claims: u64,
}

impl Drop for ClaimsInFlight<'_> {
    fn drop(&mut self) {
        lock(&self.engine.device_claims).in_flight -= self.claims;
    }
}

impl Engine {
    /// Brings the number up to date after a pod has changed on one side.
    pub(super) fn update_device_claims(&self, pod: &Name) {
        let claims = claims_of_pods::count_missing(&self.cache, pod);
        lock(&self.device_claims).set(pod, claims);
    }

    /// Room for the claims of an object that is to be created on the host.
    ///
    /// # Errors
    /// The tenant would have more than it may have.
    pub(super) fn reserve_device_claims(
        &self,
        id: KindId,
        object: &Value,
    ) -> Result<ClaimsInFlight<'_>, QuotaExceeded> {
        let more = match id {
            KindId::Pod => claims_of_pods::count(object),
            KindId::ResourceClaim => 1,
            _ => 0,
        };
        let mut claims = lock(&self.device_claims);
        if more > 0 {
            let number = |kind: KindId| self.cache.stores.host(kind).len() as u64;
            // Those of pods that have ended or are gone stay until controllers of the host have deleted them.
            let made = number(KindId::GeneratedClaim) + claims.total;
            let limit = self.cache.tenant.host_limits.resource_claims;
            if number(KindId::ResourceClaim) + made + claims.in_flight + more > u64::from(limit) {
                return Err(QuotaExceeded::of_device_claims(limit));
            }
        }
        claims.in_flight += more;
        Ok(ClaimsInFlight {
            engine: self,
            claims: more,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        scripted::Scripted,
        test_engine::{engine_of, tenant},
        to_host,
    };
    use berth_api::{SyncPolicy, labels};
    use berth_sync_rules::model::{resource::Side, store::Stored};
    use serde_json::json;
    use std::{sync::Arc, time::Instant};

    fn engine() -> Arc<Engine> {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.resource_claims = 10;
        engine_of(tenant)
    }

    fn pod(name: &str, claims: usize) -> Value {
        let claims = (0..claims).map(|number| json!({"name": number.to_string(), "resourceClaimTemplateName": "gpu"}));
        json!({"metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"},
            "spec": {"resourceClaims": claims.collect::<Vec<_>>()}})
    }

    fn put(engine: &Engine, side: Side, kind: KindId, name: &str, object: &Value) {
        let name = Name::new("team", name);
        let store = engine.cache.stores.of(side, kind);
        store.watched(name.clone(), Stored::new(object));
        engine.add_dependents(side, kind, &name);
    }

    /// Puts a pod on both sides.
    fn put_pod(engine: &Engine, name: &str, claims: usize) {
        put(engine, Side::Tenant, KindId::Pod, name, &pod(name, claims));
        put_host_pod(engine, name, "1", &json!({}));
    }

    fn put_host_pod(engine: &Engine, name: &str, version: &str, status: &Value) {
        let annotations = json!({labels::ORIGIN_UID: name});
        let host = json!({"metadata": {"name": name, "uid": "h", "resourceVersion": version, "annotations": annotations},
            "spec": {}, "status": status});
        put(engine, Side::Host, KindId::Pod, name, &host);
    }

    fn put_claims(engine: &Engine, kind: KindId, number: usize) {
        for number in 0..number {
            let name = format!("c{number}");
            let claim = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            put(engine, Side::Host, kind, &name, &claim);
        }
    }

    fn has_room(engine: &Engine, claims: usize) -> bool {
        engine.reserve_device_claims(KindId::Pod, &pod("new", claims)).is_ok()
    }

    #[tokio::test]
    async fn claims_of_pods_on_the_host_count_whether_they_are_made_or_not() {
        let engine = engine();
        put_claims(&engine, KindId::ResourceClaim, 3);
        put_pod(&engine, "a", 4);
        assert!(has_room(&engine, 3) && !has_room(&engine, 4));
        put_claims(&engine, KindId::GeneratedClaim, 4);
        let made = (0..4).map(|number| json!({"name": number.to_string(), "resourceClaimName": format!("c{number}")}));
        let mut status = json!({"resourceClaimStatuses": made.collect::<Vec<_>>()});
        put_host_pod(&engine, "a", "2", &status);
        assert!(has_room(&engine, 3) && !has_room(&engine, 4), "they are the same");
        status["phase"] = "Succeeded".into();
        put_host_pod(&engine, "a", "3", &status);
        put_pod(&engine, "b", 2);
        assert!(
            has_room(&engine, 1) && !has_room(&engine, 2),
            "those of earlier pods are still there"
        );
        assert!(has_room(&engine, 0), "it needs none");
    }

    #[tokio::test]
    async fn a_pod_that_is_gone_leaves_its_room_and_a_claim_of_the_tenants_own_takes_it() {
        let engine = engine();
        put_pod(&engine, "a", 10);
        let claim = json!({});
        assert!(engine.reserve_device_claims(KindId::ResourceClaim, &claim).is_err());
        let name = Name::new("team", "a");
        engine.cache.stores.host(KindId::Pod).gone(&name, 2);
        engine.add_dependents(Side::Host, KindId::Pod, &name);
        let in_flight = engine.reserve_device_claims(KindId::ResourceClaim, &claim).unwrap();
        assert!(has_room(&engine, 9) && !has_room(&engine, 10));
        drop(in_flight);
        assert!(has_room(&engine, 10));
        let why = engine
            .reserve_device_claims(KindId::Pod, &pod("new", 11))
            .err()
            .unwrap();
        assert!(why.to_string().contains("spec.limits.resourceClaims"), "{why}");
        assert!(!why.refuses_every_object(), "others go on");
    }

    #[tokio::test]
    async fn a_template_leaves_the_host_once_the_pods_there_have_their_claims() {
        let id = KindId::ResourceClaimTemplate;
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let engine = &scripted.engine;
        put_pod(engine, "a", 1);
        let template = Name::new("team", "gpu");
        scripted.put(Side::Host, id, &template, json!({"metadata": {}, "spec": {}}));
        let rules = engine.cache.rules_to_host(id).unwrap();
        let reconcile = || to_host::reconcile(engine, (id, rules), &template, Instant::now(), true);
        let outcome = reconcile().await.unwrap();
        assert!(outcome.requeue_after.is_some(), "it is looked at again");
        assert_eq!(scripted.calls("host DELETE", ""), Vec::<String>::new());
        let statuses = json!({"resourceClaimStatuses": [{"name": "0", "resourceClaimName": "a-0-x"}]});
        put_host_pod(engine, "a", "2", &statuses);
        reconcile().await.unwrap();
        assert_eq!(scripted.calls("host DELETE", "").len(), 1);
    }
}
