//! Places of users in a whole engine.

use super::*;
use crate::engine::{
    api::CallError,
    scripted::{Failure, Scripted},
    test_engine::{engine_of, exceeded, sync_of, tenant},
    test_pods::{self, annotations_of_member, change_pod, own_claims},
    test_requests::name,
    to_host,
    turns::{self, LineKind},
    user_places::LONG_WAIT,
};
use berth_api::{SyncPolicy, conditions::USER_LIMIT_EXCEEDED};
use berth_sync_rules::model::{Tenant, UserRules, schedule::PodSchedule};
use serde_json::json;

/// A tenant with limited users, each of whom has one place.
fn limited() -> Tenant {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.users = UserRules {
        are_stamped: true,
        are_limited: true,
    };
    tenant.host_limits.waiting_pods_of_user = 1;
    tenant
}

/// An engine of such a tenant.
fn engine() -> Arc<Engine> {
    engine_of(limited())
}

/// A pod of a user in the tenant.
fn put_pod(engine: &Engine, user: &str, of: &str) -> Value {
    test_pods::put_pod(engine, of, &json!({labels::CREATED_BY: user}))
}

/// The same of a member of a gang of two.
fn put_member(engine: &Engine, user: &str, of: &str) -> Value {
    let mut annotations = annotations_of_member("train", 2);
    annotations[labels::CREATED_BY] = user.into();
    test_pods::put_pod(engine, of, &annotations)
}

/// A pod on the host.
fn put_host_pod(engine: &Engine, of: &str, gates: &Value) {
    test_pods::put_host_pod(
        engine,
        of,
        &json!({"schedulingGates": gates}),
        &json!({"phase": "Pending"}),
    );
}

/// A pod comes to the host, or changes there.
fn see_host_pod(engine: &Engine, of: &str, gates: &Value) {
    put_host_pod(engine, of, gates);
    engine.update_user_places(Side::Host, &name(of));
}

/// Puts two pods of a user into the tenant. The first one has the place.
async fn put_two(engine: &Engine) -> [Value; 2] {
    let [first, second] = ["a1", "a2"].map(|of| put_pod(engine, "alice", of));
    assert_eq!(ask(engine, "a1", &first).await, None);
    assert_eq!(ask(engine, "a2", &second).await, WAITS);
    [first, second]
}

/// Asks for a place for a pod.
async fn ask(engine: &Engine, of: &str, pod: &Value) -> Option<Outcome> {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    sync.wait_for_user(&Stored::new(pod), pod).await
}

/// Tries to create a pod on the host.
async fn create(engine: &Engine, of: &str, pod: &Value) -> Result<Outcome, CallError> {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    sync.create(&Stored::new(pod), pod).await
}

/// Reconciles a pod as a whole.
async fn reconcile(engine: &Engine, of: &str) -> Result<Outcome, CallError> {
    let kind = engine.cache.rules_to_host(KindId::Pod).unwrap();
    to_host::reconcile(engine, (KindId::Pod, kind), &name(of), Instant::now(), true).await
}

fn gate() -> Value {
    json!([{"name": labels::USER_QUOTA_GATE}])
}

const WAITS: Option<Outcome> = Some(NO_PLACE_OF_USER);

#[tokio::test]
async fn a_user_leaves_room_on_the_host_to_others() {
    let engine = engine();
    let [_, second] = put_two(&engine).await;
    let other = put_pod(&engine, "bob", "b1");
    assert_eq!(ask(&engine, "b1", &other).await, None);
    see_host_pod(&engine, "a1", &gate());
    assert_eq!(ask(&engine, "a2", &second).await, WAITS, "the other waits on the host");
    see_host_pod(&engine, "a1", &json!([]));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "the next one is reconciled");
    assert_eq!(ask(&engine, "a2", &second).await, None, "the other may start");
    let third = put_pod(&engine, "alice", "a3");
    assert_eq!(ask(&engine, "a3", &third).await, WAITS);
    engine.cache.stores.tenant(KindId::Pod).forget(&name("a2"));
    engine.update_user_places(Side::Tenant, &name("a2"));
    assert_eq!(
        ask(&engine, "a3", &third).await,
        None,
        "it is gone before it was created"
    );
}

#[tokio::test]
async fn users_take_turns_for_other_places_as_they_wait() {
    let engine = engine();
    for (user, of, expected) in [
        ("alice", "a1", "alice"),
        ("system:serviceaccount:ci:runner", "s1", "system:serviceaccount:ci"),
    ] {
        let pod = put_pod(&engine, user, of);
        let (_, request) = engine.request(&name(of), &pod);
        assert_eq!(request.user.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn a_restarted_syncer_counts_the_pods_on_the_host() {
    let engine = engine();
    put_pod(&engine, "system:serviceaccount:ci:runner", "a1");
    let pod = put_pod(&engine, "system:serviceaccount:ci:other", "a2");
    put_host_pod(&engine, "a1", &gate());
    put_pod(&engine, "alice", "b1");
    put_host_pod(&engine, "b1", &json!([]));
    engine.restore_user_places();
    assert_eq!(
        ask(&engine, "a2", &pod).await,
        WAITS,
        "accounts of a namespace wait together"
    );
    let alice = put_pod(&engine, "alice", "b2");
    assert_eq!(ask(&engine, "b2", &alice).await, None);
}

#[tokio::test]
async fn a_pod_that_came_to_the_host_without_a_place_counts() {
    let engine = engine();
    put_pod(&engine, "alice", "a1");
    see_host_pod(&engine, "a1", &gate());
    let second = put_pod(&engine, "alice", "a2");
    assert_eq!(ask(&engine, "a2", &second).await, WAITS);
    engine.cache.stores.tenant(KindId::Pod).forget(&name("a1"));
    engine.cache.stores.host(KindId::Pod).forget(&name("a1"));
    engine.update_user_places(Side::Host, &name("a1"));
    assert_eq!(ask(&engine, "a2", &second).await, None);
}

#[tokio::test]
async fn a_gang_that_runs_gets_a_replacement_while_the_places_are_full() {
    let engine = engine();
    for of in ["m0", "m1"] {
        let pod = put_member(&engine, "alice", of);
        assert_eq!(ask(&engine, of, &pod).await, None);
        see_host_pod(&engine, of, &gate());
        see_host_pod(&engine, of, &json!([]));
    }
    let single = put_pod(&engine, "alice", "a1");
    assert_eq!(ask(&engine, "a1", &single).await, None);
    see_host_pod(&engine, "a1", &gate());
    let replacement = put_member(&engine, "alice", "m2");
    assert_eq!(ask(&engine, "m2", &replacement).await, WAITS, "the gang has its size");
    test_pods::put_host_pod(&engine, "m1", &json!({}), &json!({"phase": "Failed"}));
    engine.update_user_places(Side::Host, &name("m1"));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "it is reconciled");
    assert_eq!(ask(&engine, "m2", &replacement).await, None);
    let further = put_member(&engine, "alice", "m3");
    assert_eq!(ask(&engine, "m3", &further).await, WAITS, "beyond the size of the gang");
}

#[tokio::test]
async fn a_restarted_syncer_knows_the_gangs_that_run() {
    let engine = engine();
    put_member(&engine, "alice", "m0");
    put_host_pod(&engine, "m0", &json!([]));
    put_pod(&engine, "alice", "a1");
    put_host_pod(&engine, "a1", &gate());
    engine.restore_user_places();
    let replacement = put_member(&engine, "alice", "m1");
    assert_eq!(ask(&engine, "m1", &replacement).await, None);
    let further = put_member(&engine, "alice", "m2");
    assert_eq!(ask(&engine, "m2", &further).await, WAITS);
}

#[tokio::test]
async fn without_limits_nothing_waits() {
    let engine = engine_of(tenant(SyncPolicy::default()));
    for of in ["a1", "a2"] {
        let pod = put_pod(&engine, "alice", of);
        assert_eq!(ask(&engine, of, &pod).await, None);
        let (_, request) = engine.request(&name(of), &pod);
        assert_eq!(request.user, None, "nor do users take turns");
    }
    assert!(!lock(&engine.user_places).knows(&name("a1")));
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_which_the_tenant_takes_no_status_stays_in_the_line() {
    for failure in [Failure::Refused(403), Failure::Refused(500), Failure::Silence] {
        let scripted = Scripted::new(limited(), move |call| call.ends_with("/status").then_some(failure));
        let engine = &scripted.engine;
        let (first, late) = (put_pod(engine, "alice", "a1"), put_pod(engine, "alice", "late"));
        assert_eq!(ask(engine, "a1", &first).await, None);
        let since = Instant::now().checked_sub(LONG_WAIT).unwrap();
        let (_, request) = engine.request(&name("late"), &late);
        let user = engine.user_of(&late);
        lock(&engine.user_places).ask(&user, "", request, since);
        lock(&engine.user_places).observe(&name("a1"), OnHost::Gated { exceeds_limit: true });
        engine.check_user_places();
        assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "it is to say so");
        let outcome = create(engine, "late", &late).await;
        assert_eq!(outcome.ok(), WAITS, "{failure:?}");
        assert_eq!(scripted.calls("tenant PATCH", "/pods/late/status").len(), 1);
        assert!(lock(&engine.user_places).is_waiting(&name("late")), "{failure:?}");
    }
}

#[tokio::test]
async fn a_pod_that_waits_says_so_once_and_as_those_on_the_host() {
    let scripted = Scripted::new(limited(), |_| None);
    let engine = &scripted.engine;
    let mut pod = put_pod(engine, "alice", "late");
    let of = name("late");
    let sync = sync_of(engine, &of, PodSchedule::default());
    sync.report_user_limit(&Stored::new(&pod), &pod, "alice").await;
    let writes = || {
        (
            scripted.calls("tenant", "/pods/late/status").len(),
            scripted.calls("tenant", "").len(),
        )
    };
    assert_eq!(writes(), (1, 2), "with an Event");
    pod["status"] = engine.cache.stores.tenant(KindId::Pod).get(&of).unwrap().object()["status"].clone();
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!(USER_LIMIT_EXCEEDED), &json!("True"))
    );
    sync.report_user_limit(&Stored::new(&pod), &pod, "alice").await;
    assert_eq!(writes(), (1, 2));
}

#[tokio::test]
async fn while_the_host_takes_no_pod_none_leaves_the_line() {
    let scripted = Scripted::new(limited(), |_| None);
    let engine = &scripted.engine;
    let [first, second] = put_two(engine).await;
    let of = name("a1");
    let placed = sync_of(engine, &of, PodSchedule::default());
    let waits = || lock(&engine.user_places).is_waiting(&name("a2"));
    placed.settle_places_after(&Err(CallError::QuotaExceeded(exceeded("count/pods"))));
    placed.settle_places_after(&Err(CallError::Unavailable("it is down".into())));
    assert!(waits(), "no other pod could use the place");
    engine.refused_kinds.refuse(KindId::Pod, &exceeded("count/pods"));
    let refused = create(engine, "a1", &first).await;
    assert!(matches!(refused, Err(CallError::QuotaExceeded(_))));
    assert_eq!(create(engine, "a2", &second).await.ok(), WAITS);
    assert!(waits());
    // A smaller pod may fit.
    placed.settle_places_after(&Err(CallError::QuotaExceeded(exceeded("requests.cpu"))));
    assert!(!waits(), "the next one has the place");
}

#[tokio::test]
async fn a_pod_that_is_created_again_keeps_its_place_until_it_is_not_to_be_created() {
    let engine = engine();
    let mut first = put_pod(&engine, "alice", "a1");
    let second = put_pod(&engine, "alice", "a2");
    see_host_pod(&engine, "a1", &gate());
    assert_eq!(ask(&engine, "a2", &second).await, WAITS);
    engine.cache.stores.host(KindId::Pod).forget(&name("a1"));
    engine.update_user_places(Side::Host, &name("a1"));
    assert_eq!(ask(&engine, "a2", &second).await, WAITS, "its node was cordoned");
    assert_eq!(ask(&engine, "a1", &first).await, None);
    // Administrators of the tenant can write the phase.
    first["status"]["phase"] = "Failed".into();
    change_pod(&engine, "a1", &first);
    assert!(reconcile(&engine, "a1").await.is_ok());
    assert_eq!(ask(&engine, "a2", &second).await, None);
}

#[tokio::test]
async fn a_pod_that_waits_for_requests_keeps_the_place_of_its_user() {
    let mut tenant = limited();
    tenant.host_limits.controller_requests_per_second = 1;
    let engine = engine_of(tenant);
    engine.turns.take_requests(600);
    for (user, of, expected) in [
        ("alice", "a1", turns::WAITS),
        ("alice", "a2", NO_PLACE),
        ("bob", "b1", turns::WAITS),
    ] {
        let mut pod = put_pod(&engine, user, of);
        pod["spec"]["resourceClaims"] = own_claims(8);
        change_pod(&engine, of, &pod);
        assert_eq!(create(&engine, of, &pod).await.unwrap().result, expected, "{of}");
    }
    assert_eq!(engine.turns.waiting(LineKind::Requests), 2, "one of each user");
}

#[tokio::test]
async fn members_that_run_are_known_when_their_gang_becomes_known() {
    let engine = engine();
    put_pod(&engine, "alice", "m0");
    put_host_pod(&engine, "m0", &json!([]));
    put_pod(&engine, "alice", "a1");
    put_host_pod(&engine, "a1", &gate());
    engine.restore_user_places();
    let replacement = put_member(&engine, "alice", "m1");
    assert_eq!(ask(&engine, "m1", &replacement).await, WAITS, "nothing of it runs");
    let member = put_member(&engine, "alice", "m0");
    engine.regroup_places(&name("m0"), &member);
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "it is reconciled");
    assert_eq!(ask(&engine, "m1", &replacement).await, None);
}

#[tokio::test]
async fn what_became_of_a_pod_depends_on_both_sides() {
    let engine = engine();
    let host = |gates: &Value, phase: &str| {
        Stored::new(&json!({
            "metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"schedulingGates": gates}, "status": {"phase": phase},
        }))
    };
    let of = |host: Option<&Stored>| engine.find_gate(&name("p"), host);
    assert_eq!(of(None), OnHost::Ended, "it is gone on both");
    let gated = OnHost::Gated { exceeds_limit: false };
    assert_eq!(of(Some(&host(&gate(), "Pending"))), gated);
    assert_eq!(of(Some(&host(&json!([]), "Pending"))), OnHost::Started);
    assert_eq!(of(Some(&host(&json!([]), "Succeeded"))), OnHost::Succeeded);
    assert_eq!(of(Some(&host(&json!([]), "Failed"))), OnHost::Ended);
    let mut pod = put_pod(&engine, "alice", "p");
    assert_eq!(of(None), OnHost::Gone);
    for (phase, expected) in [("Succeeded", OnHost::Succeeded), ("Failed", OnHost::Ended)] {
        pod["status"]["phase"] = phase.into();
        change_pod(&engine, "p", &pod);
        assert_eq!(of(None), expected, "{phase}");
    }
}
