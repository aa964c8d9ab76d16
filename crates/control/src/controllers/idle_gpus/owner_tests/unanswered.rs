//! Kinds of the team's that answer nothing, or with errors: nothing but their own objects waits for them.

use super::*;

const API_VERSION: &str = "evil.example/v1";
const KIND: &str = "/apis/evil.example/v1";
const POOL: &str = "/apis/evil.example/v1/namespaces/ml/pools/pool";

/// A class that also stops pools, a tenant that serves them, and one of them.
async fn with_pool() -> World {
    let mut world = World::new();
    let mut owner_kinds = IdleReclaim::default().owner_kinds;
    owner_kinds.push(OwnerKind {
        group: "evil.example".into(),
        kind: "Pool".into(),
        suspend: Some(by_path("spec.suspend")),
    });
    world.set_rules(owner_kinds);
    world.serve_kind(API_VERSION, "Pool", "pools");
    world.tenant.insert(POOL, pool(API_VERSION));
    // A pass in which nothing is idle, for the views of tenants and classes.
    world.fleet.gpu.set(Some(0.5));
    world.fleet.run(1).await;
    world
}

/// Pods of the pool and of the Deployment, in this order.
fn both_idle(world: &World) -> [Decision; 2] {
    put_pod(&world.tenant, "pooled", &controller(API_VERSION, "Pool", "pool"));
    world.own_pod(&controller("apps/v1", "ReplicaSet", "web-7d9"));
    ["pooled", "train"].map(|name| idle(name, &[name]))
}

/// Writes the warnings of a pass.
async fn write_warnings(world: &mut World, decisions: &[Decision]) {
    let tenants = tenants::observe(&world.fleet.context.stores);
    let found = [(&tenants[0], Found::Decisions(decisions))];
    mark_and_restore::update(&world.fleet.context, &mut world.fleet.memory, &found).await;
}

fn is_warned(world: &World, path: &str) -> bool {
    let object = world.tenant.get(path).unwrap();
    object["metadata"]["annotations"]["berth.dev/gpus-idle"].is_string()
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_does_not_answer_keeps_no_other_owner_stopped() {
    let mut world = Box::pin(World::stopped()).await;
    world.serve_kind(API_VERSION, "Pool", "pools");
    let record = json!({"suspendedBy": "spec.suspend", "at": "2026-01-01T00:00:00Z", "reason": "IdleGPUs"}).to_string();
    let mut pool = pool(API_VERSION);
    pool["spec"]["suspend"] = true.into();
    pool["metadata"]["annotations"] = json!({"berth.dev/stopped": record});
    world.tenant.insert(POOL, pool);
    let listed = json!({"apiVersion": API_VERSION, "kind": "Pool", "namespace": "ml", "name": "pool", "uid": "pool-uid", "gpus": 8,
        "stoppedAt": "2026-01-01T00:00:00Z", "suspend": by_path("spec.suspend")});
    let inside = world.fleet.memory.inside.get_mut("tenant-uid").unwrap();
    inside.stopped.insert(0, serde_json::from_value(listed).unwrap());
    world.tenant.never_answer(Some(KIND));
    world.ask("*");
    let started = Instant::now();
    world.fleet.run(1).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(
        (world.replicas(), world.request()),
        (1, json!("Pool/ml/pool")),
        "the others are restored, and not asked for again"
    );
    let reasons = world.reasons();
    for reason in ["OwnerRestored", "OwnerNotRestored"] {
        assert!(reasons.contains(&json!(reason)), "{reason}: {reasons:?}");
    }
    world.fleet.run(1).await;
    assert_eq!(world.listed(), 1);
    world.tenant.never_answer(None);
    world.fleet.run(1).await;
    let pool = world.tenant.get(POOL).unwrap();
    assert_eq!(
        (&pool["spec"], &pool["metadata"]["annotations"]),
        (&json!({}), &json!({}))
    );
    assert_eq!(world.request(), Value::Null);
    world.fleet.run(1).await;
    assert_eq!(world.listed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_fails_or_does_not_answer_keeps_back_no_other_warning() {
    let failures: [fn(&World); 3] = [
        |world| world.tenant.serve(KIND, json!("this is no list")),
        |world| world.tenant.never_answer(Some(KIND)),
        |world| world.tenant.never_answer(Some("/pools/")),
    ];
    for (number, fail) in failures.into_iter().enumerate() {
        let mut world = Box::pin(with_pool()).await;
        let decisions = both_idle(&world);
        fail(&world);
        write_warnings(&mut world, &decisions).await;
        for path in ["/api/v1/namespaces/ml/pods/pooled", TENANT_POD, DEPLOYMENT] {
            assert!(is_warned(&world, path), "{number}: {path}");
        }
        assert!(!is_warned(&world, POOL), "{number}");
        world.serve_kind(API_VERSION, "Pool", "pools");
        world.tenant.never_answer(None);
        write_warnings(&mut world, &decisions).await;
        assert!(is_warned(&world, POOL), "{number}: it is tried again");
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_answer_loses_its_pods_alone() {
    // Objects whose kind is known and that are never read, and webhooks for other writes.
    let failures: [fn(&World); 4] = [
        |world| world.tenant.never_answer(Some("/pools/")),
        |world| world.tenant.never_answer_writes(Some("/pools/")),
        |world| world.tenant.never_answer_writes(Some("/pods/")),
        |world| world.tenant.never_answer_writes(Some("/ml/events")),
    ];
    for (number, fail) in failures.into_iter().enumerate() {
        for is_warned_before in [true, false] {
            let mut world = Box::pin(with_pool()).await;
            let decisions = both_idle(&world);
            fail(&world);
            if is_warned_before {
                write_warnings(&mut world, &decisions).await;
            }
            let started = Instant::now();
            let is_pool_stopped = !world.stop_owners(&decisions[0]).await.is_empty();
            assert_eq!(is_pool_stopped, number >= 2, "{number}");
            for _ in 0..20 {
                world.stop_owners(&decisions[0]).await;
            }
            let stopped = world.stop_owners(&decisions[1]).await;
            assert_eq!(stopped, HashSet::from(["train-host".to_owned()]), "{number}");
            assert_eq!(world.replicas(), 0, "{number}");
            let took = started.elapsed();
            assert!(
                took < Duration::from_secs(5),
                "{number}: it is asked once in a pass: {took:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_one_owner_keeps_no_other_from_being_stopped() {
    for (request, is_stopped) in [("Pool/ml/pool", true), ("deployment/ml/web", false), ("*", false)] {
        let mut world = Box::pin(with_pool()).await;
        let [_, decision] = both_idle(&world);
        let inside = world.fleet.memory.inside.get_mut("tenant-uid").unwrap();
        inside.request = Some(request.into());
        assert_eq!(!world.stop_owners(&decision).await.is_empty(), is_stopped, "{request}");
        assert_eq!(world.replicas() == 0, is_stopped, "{request}");
    }
}
