//! Pods that need claims of devices besides a place.

use super::*;

/// Puts a pod with a claim of a device into the tenant; of a gang of two, if it belongs to one.
fn put_claiming_pod(engine: &Engine, of: &str, gang: Option<&str>) -> Value {
    let annotations = gang.map_or_else(|| json!({}), |gang| annotations_of_member(gang, 2));
    let mut pod = test_pods::put_pod(engine, of, &annotations);
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
    change_pod(engine, of, &pod);
    engine.update_device_claims(&name(of));
    pod
}

/// An engine of a tenant that may have so many pods that wait, and so many claims, of which one is taken.
fn engine_with_claims(most: usize, claims: u32) -> Scripted {
    let mut tenant = tenant_with_places(most);
    tenant.host_limits.resource_claims = claims;
    // Whose pods nobody reports about: no status of them is stored.
    let scripted = Scripted::new(tenant, |call| {
        call.starts_with("tenant").then_some(Failure::Refused(404))
    });
    let template = KindId::ResourceClaimTemplate;
    scripted.put(Side::Host, template, &name("gpu"), json!({"spec": {}}));
    take_claim(&scripted);
    scripted
}

/// The tenant makes a claim itself.
fn take_claim(scripted: &Scripted) {
    scripted.put(Side::Host, KindId::ResourceClaim, &name("own"), json!({"spec": {}}));
}

/// The claim is gone.
fn free_claim(scripted: &Scripted) {
    scripted
        .engine
        .cache
        .stores
        .host(KindId::ResourceClaim)
        .forget(&name("own"));
}

/// Tries to create a pod that waits for a place then, or has no room for its claims. Returns whether it waits.
async fn gets_claims(engine: &Engine, of: &str, pod: &Value) -> bool {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    match sync.create(&Stored::new(pod), pod).await {
        Ok(outcome) => {
            assert_eq!(outcome, NO_ROOM);
            true
        }
        Err(CallError::QuotaExceeded(exceeded)) => {
            assert!(exceeded.is_of_device_claims(), "{exceeded}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_gang_has_room_for_its_claims_before_it_has_places() {
    let scripted = engine_with_claims(2, 2);
    let engine = &scripted.engine;
    let members = ["m0", "m1"].map(|of| (of, put_claiming_pod(engine, of, Some("train"))));
    for (of, pod) in &members {
        assert!(!gets_claims(engine, of, pod).await);
        assert_eq!(counts(engine), (0, 0), "others have the places meanwhile");
    }
    assert_eq!(create(engine, "p", 2, |index| index + 1).await, 2);
    free_claim(&scripted);
    // The first one has a place among pods with devices once both exist, and asks for one among all pods then.
    for (of, pod) in members.iter().chain(&members[..1]) {
        assert!(gets_claims(engine, of, pod).await);
    }
    assert_eq!(counts(engine), (2, 2));
    let single = put_claiming_pod(engine, "single", None);
    assert!(
        !gets_claims(engine, "single", &single).await,
        "they are kept for the gang"
    );
    put_host_pod(engine, "p0", &json!({"nodeName": "gpu-1"}));
    assert_eq!(counts(engine), (3, 0), "the gang is complete");
}

#[tokio::test]
async fn pods_without_room_for_their_claims_do_not_come_before_others() {
    let scripted = engine_with_claims(1, 1);
    let engine = &scripted.engine;
    assert_eq!(create(engine, "p", 1, |_| 8).await, 1);
    let of_claims = ["c0", "c1", "c2"];
    let claiming = of_claims.map(|of| put_claiming_pod(engine, of, None));
    free_claim(&scripted);
    for (of, pod) in of_claims.iter().zip(&claiming) {
        assert!(gets_claims(engine, of, pod).await);
    }
    let plain = put_pod(engine, "plain", 1);
    assert!(waits(engine, "plain", &plain).await);
    take_claim(&scripted);
    put_host_pod(engine, "p0", &json!({"nodeName": "gpu-1"}));
    assert!(!lock(&engine.waiting_room).is_waiting(&name("c0")), "it is its turn");
    assert!(!gets_claims(engine, "c0", &claiming[0]).await);
    assert!(!waits(engine, "plain", &plain).await);
    assert!(!gets_claims(engine, "c0", &claiming[0]).await);
    assert_eq!(counts(engine), (1, 0));
    let room = lock(&engine.device_room);
    assert_eq!(
        (room.placed(), room.waiting()),
        (1, 1),
        "it is in no line until there is room for its claims"
    );
}
