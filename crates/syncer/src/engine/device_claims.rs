//! Keeps the tenant within its number of claims of devices on the host before the host's quota does. kube-controller-manager makes claims for pods that name
//! templates. If the quota refuses one, it tries again and again, with requests that all tenants share, long after the pod has come.
//!
//! So a pod comes to the host only when there is room for the claims of all pods that are there and for its own, whether or not they are made already. A
//! claim that the tenant makes itself leaves that room. Pods of a gang come [together](super::gang_claims).

use super::{
    Engine, Outcome, admit,
    api::CallError,
    gang_claims::{GangClaims, Member, Refusal},
    lock,
    places::Presence,
    room_waits,
    to_host::ObjectSync,
    turns, user_waits,
};
use berth_sync_rules::{
    kinds::{
        devices::claims_of_pods,
        pod::{gang, placement},
    },
    model::{KindId, resource::Name},
    translation::quota::QuotaExceeded,
};
use serde_json::Value;
use std::{collections::HashMap, time::Instant};

/// Claims that are about to be made for pods.
#[derive(Debug)]
pub(super) struct DeviceClaims {
    /// Of those pods on the host that lack some.
    of_pods: HashMap<Name, u64>,
    /// All of these.
    total: u64,
    /// Of objects that are being created.
    in_flight: u64,
    gangs: GangClaims,
}

impl DeviceClaims {
    /// Of a tenant that may have so many claims.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            of_pods: HashMap::new(),
            total: 0,
            in_flight: 0,
            gangs: GangClaims::new(limit.into()),
        }
    }

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
    /// The object, if it is a pod.
    pod: Option<Name>,
    claims: u64,
}

impl Drop for ClaimsInFlight<'_> {
    fn drop(&mut self) {
        let mut claims = lock(&self.engine.device_claims);
        claims.in_flight -= self.claims;
        if let Some(pod) = &self.pod {
            claims.gangs.end_creation(pod, Instant::now());
        }
    }
}

impl Engine {
    /// Brings the numbers up to date after a pod has changed on one side, or its gang.
    pub(super) fn update_device_claims(&self, pod: &Name) {
        let mut claims = lock(&self.device_claims);
        // While they are locked: both sides change at the same time.
        claims.set(pod, claims_of_pods::count_missing(&self.cache, pod));
        claims.gangs.set(pod, self.find_member(pod), Instant::now());
    }

    /// What a pod is to a gang, also if it takes no claims. None if it belongs to none, or is not to come to the host.
    fn find_member(&self, pod: &Name) -> Option<Member> {
        let stored = self.cache.stores.tenant(KindId::Pod).get(pod)?;
        // Most pods belong to none: to know that, they are not unpacked.
        if !gang::may_have_one(&stored) {
            return None;
        }
        let object = stored.object();
        if placement::has_gates(&object) {
            return None;
        }
        let claims = claims_of_pods::count(&object);
        let gang = self.find_gang(pod, &object).filter(|gang| gang.size > 1)?;
        let host = self.cache.stores.host(KindId::Pod).get(pod);
        let (claims, is_on_host) = match self.find_presence(pod, host.as_deref()) {
            Presence::Active => (claims, true),
            Presence::Succeeded => (0, true),
            Presence::Gone => (claims, false),
            Presence::Ended => return None,
        };
        Some(Member {
            gang,
            claims,
            is_on_host,
        })
    }

    /// Room for the claims of an object that is to be created on the host. None if the pod waits until its gang is complete.
    ///
    /// # Errors
    /// The tenant would have more than it may have.
    pub(super) fn reserve_device_claims(
        &self,
        id: KindId,
        name: &Name,
        object: &Value,
    ) -> Result<Option<ClaimsInFlight<'_>>, QuotaExceeded> {
        let more = match id {
            KindId::Pod => claims_of_pods::count(object),
            KindId::ResourceClaim => 1,
            _ => 0,
        };
        let mut claims = lock(&self.device_claims);
        let mut others = Vec::new();
        if more > 0 {
            let number = |kind: KindId| self.cache.stores.host(kind).len() as u64;
            // Those of pods that have ended or are gone stay until controllers of the host have deleted them.
            let made = number(KindId::GeneratedClaim) + claims.total;
            let taken = number(KindId::ResourceClaim) + made + claims.in_flight;
            let limit = self.cache.tenant.host_limits.resource_claims;
            let free = u64::from(limit).saturating_sub(taken);
            let (pod, now) = ((id == KindId::Pod).then_some(name), Instant::now());
            others = match claims.gangs.ask(pod, more, free, now) {
                Ok(others) => others,
                Err(Refusal::Incomplete) => return Ok(None),
                Err(Refusal::Full) => return Err(QuotaExceeded::of_device_claims(limit)),
                Err(Refusal::FullForGang) => return Err(QuotaExceeded::of_claims_of_gang(limit)),
                Err(Refusal::TooLarge(needed)) => return Err(QuotaExceeded::of_large_gang(limit, needed)),
            };
            if let Some(pod) = pod {
                claims.gangs.begin_creation(pod, now);
            }
        }
        claims.in_flight += more;
        drop(claims);
        // There is room for them as well: they do not wait until it is their time to be tried again.
        self.let_in(others);
        Ok(Some(ClaimsInFlight {
            engine: self,
            pod: (id == KindId::Pod).then(|| name.clone()),
            claims: more,
        }))
    }
}

impl ObjectSync<'_> {
    /// Notes that a pod was not created although there is room for its claims, if this came of it.
    pub(super) fn settle_claims_after(&self, result: &Result<Outcome, CallError>) {
        if self.id != KindId::Pod {
            return;
        }
        let mut claims = lock(&self.engine.device_claims);
        match result.as_ref().map_or("", |outcome| outcome.result) {
            // Its turn comes.
            turns::WAITS | admit::NO_PLACE | room_waits::NO_PLACE => {}
            user_waits::NO_PLACE => claims.gangs.give_up(self.name, Instant::now()),
            _ => claims.gangs.put_off(self.name, Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        scripted::Scripted,
        test_engine::{engine_of, exceeded, sync_of, tenant},
        to_host,
    };
    use berth_api::{SyncPolicy, labels};
    use berth_sync_rules::model::{resource::Side, schedule::PodSchedule, store::Stored};
    use futures::FutureExt;
    use serde_json::json;
    use std::sync::Arc;

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

    fn reserve<'a>(engine: &'a Engine, pod: &Value) -> Result<Option<ClaimsInFlight<'a>>, QuotaExceeded> {
        let name = Name::new("team", pod["metadata"]["name"].as_str().unwrap());
        engine.reserve_device_claims(KindId::Pod, &name, pod)
    }

    fn has_room(engine: &Engine, claims: usize) -> bool {
        reserve(engine, &pod("new", claims)).is_ok_and(|claims| claims.is_some())
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
        let name = Name::new("team", "a");
        let reserve_one = || engine.reserve_device_claims(KindId::ResourceClaim, &name, &json!({}));
        assert!(reserve_one().is_err());
        engine.cache.stores.host(KindId::Pod).gone(&name, 2);
        engine.add_dependents(Side::Host, KindId::Pod, &name);
        let in_flight = reserve_one().unwrap();
        assert!(has_room(&engine, 9) && !has_room(&engine, 10));
        drop(in_flight);
        assert!(has_room(&engine, 10));
        let why = reserve(&engine, &pod("new", 11)).err().unwrap();
        assert!(why.to_string().contains("spec.limits.resourceClaims"), "{why}");
        assert!(!why.refuses_every_object(), "others go on");
    }

    /// Puts a pod of a gang of four with two claims into the tenant.
    fn put_member(engine: &Engine, gang: &str, number: usize) -> Value {
        let name = format!("{gang}{number}");
        let mut pod = pod(&name, 2);
        pod["metadata"]["annotations"] = json!({labels::GANG_OF_TENANT: gang, labels::GANG_SIZE_OF_TENANT: "4"});
        put(engine, Side::Tenant, KindId::Pod, &name, &pod);
        pod
    }

    /// Whether there is room for the claims of a pod. Then it comes to the host.
    fn comes(engine: &Engine, pod: &Value) -> bool {
        let comes = reserve(engine, pod).is_ok_and(|claims| claims.is_some());
        if comes {
            put_host_pod(engine, pod["metadata"]["name"].as_str().unwrap(), "1", &json!({}));
        }
        comes
    }

    #[tokio::test]
    async fn gangs_that_are_created_together_get_their_claims_one_after_the_other() {
        let engine = engine();
        let gangs = ["a", "b"].map(|gang| [0, 1, 2, 3].map(|number| put_member(&engine, gang, number)));
        let [a, b] = &gangs;
        for (of_a, of_b) in a.iter().zip(b) {
            assert!(comes(&engine, of_a) && !comes(&engine, of_b));
        }
        let why = reserve(&engine, &b[0]).err().unwrap().to_string();
        assert!(
            why.contains("gang") && why.contains("spec.limits.resourceClaims"),
            "{why}"
        );
        assert!(has_room(&engine, 2) && !has_room(&engine, 3));
        for number in 0..4 {
            let name = Name::new("team", &format!("a{number}"));
            for side in [Side::Tenant, Side::Host] {
                engine.cache.stores.of(side, KindId::Pod).gone(&name, 2);
                engine.add_dependents(side, KindId::Pod, &name);
            }
        }
        while engine.queue_of(KindId::Pod).take().now_or_never().is_some() {}
        assert!(reserve(&engine, &b[0]).is_ok_and(|claims| claims.is_some()));
        let woken = engine.queue_of(KindId::Pod).len();
        assert_eq!(woken, 3, "the others do not wait for the end of their back-off");
        assert!(b.iter().all(|pod| comes(&engine, pod)));
    }

    #[tokio::test]
    async fn a_pod_that_fails_or_waits_for_its_user_keeps_no_claims_from_others_for_ever() {
        let engine = engine();
        let pods = [0, 1, 2, 3].map(|number| put_member(&engine, "a", number));
        assert!(comes(&engine, &pods[0]));
        assert!(!has_room(&engine, 3), "six are kept");
        let name = Name::new("team", "a1");
        let sync = sync_of(&engine, &name, PodSchedule::default());
        assert!(reserve(&engine, &pods[1]).is_ok());
        for result in [Err(CallError::NotFound), Ok(Outcome::new(turns::WAITS))] {
            sync.settle_claims_after(&result);
            assert!(!has_room(&engine, 3), "it may be created soon");
        }
        sync.settle_claims_after(&Ok(user_waits::NO_PLACE_OF_USER));
        assert!(has_room(&engine, 4) && !has_room(&engine, 5));
        engine.cache.stores.tenant(KindId::Pod).forget(&name);
        engine.add_dependents(Side::Tenant, KindId::Pod, &name);
        let mut gated = put_member(&engine, "a", 2);
        gated["spec"]["schedulingGates"] = json!([{"name": "example.com/later"}]);
        put(&engine, Side::Tenant, KindId::Pod, "a2", &gated);
        assert!(
            has_room(&engine, 6) && !has_room(&engine, 7),
            "nothing is kept for a pod with gates"
        );
    }

    #[tokio::test]
    async fn while_the_host_takes_no_pods_none_keeps_claims_for_ever() {
        let engine = engine();
        let pods = [0, 1, 2, 3].map(|number| put_member(&engine, "a", number));
        assert!(comes(&engine, &pods[0]));
        let name = Name::new("team", "a1");
        let sync = sync_of(&engine, &name, PodSchedule::default());
        // It has not used them in time, and asks again.
        sync.settle_claims_after(&Ok(user_waits::NO_PLACE_OF_USER));
        assert!(reserve(&engine, &pods[1]).is_ok());
        assert!(!has_room(&engine, 3), "it waits for its turn");
        engine.refused_kinds.refuse(KindId::Pod, &exceeded("count/pods"));
        assert!(sync.create(&Stored::new(&pods[1]), &pods[1]).await.is_err());
        assert!(has_room(&engine, 4) && !has_room(&engine, 5));
    }

    #[tokio::test]
    async fn a_pod_of_a_gang_that_is_being_created_takes_its_room_once() {
        let engine = engine();
        let pods = [0, 1, 2, 3].map(|number| put_member(&engine, "a", number));
        let in_flight = reserve(&engine, &pods[0]).unwrap();
        assert!(has_room(&engine, 2) && !has_room(&engine, 3), "eight are for the gang");
        drop(in_flight);
        assert!(has_room(&engine, 2) && !has_room(&engine, 3));
    }

    #[tokio::test]
    async fn a_leader_without_claims_is_a_member_of_its_gang() {
        let engine = engine();
        let mut leader = pod("leader", 0);
        leader["metadata"]["annotations"] = json!({labels::GANG_OF_TENANT: "a", labels::GANG_SIZE_OF_TENANT: "4"});
        put_member(&engine, "other", 0);
        let workers = [1, 2, 3].map(|number| put_member(&engine, "a", number));
        assert!(!comes(&engine, &workers[0]), "one pod is missing");
        put(&engine, Side::Tenant, KindId::Pod, "leader", &leader);
        assert!(comes(&engine, &workers[0]));
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
