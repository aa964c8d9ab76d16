//! Kinds of the team's that answer nothing, or with errors: nothing but their own objects waits for them.

use super::*;
use berth_api::OwnerSuspend;
use berth_idle_reclaim::{
    ladder::{LadderState, UnknownTime},
    workload::WorkloadName,
};
use std::collections::HashSet;

const API_VERSION: &str = "evil.example/v1";
const KIND: &str = "/apis/evil.example/v1";
const POOL: &str = "/apis/evil.example/v1/namespaces/ml/pools/pool";

fn by_suspend() -> OwnerSuspend {
    OwnerSuspend {
        path: Some("spec.suspend".into()),
        ..OwnerSuspend::default()
    }
}

/// A class that also stops pools, a tenant that serves them, and one of them.
async fn with_pool() -> World {
    let mut world = World::new();
    let mut owner_kinds = IdleReclaim::default().owner_kinds;
    owner_kinds.push(OwnerKind {
        group: "evil.example".into(),
        kind: "Pool".into(),
        suspend: Some(by_suspend()),
    });
    world.set_rules(owner_kinds);
    let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION,
        "resources": [{"name": "pools", "kind": "Pool", "namespaced": true}]});
    world.tenant.serve(KIND, resources);
    let pool = json!({"apiVersion": API_VERSION, "kind": "Pool", "metadata": {"name": "pool", "namespace": "ml", "uid": "pool-uid"},
        "spec": {"suspend": false}});
    world.tenant.insert(POOL, pool);
    // A pass in which nothing is idle, for the views of tenants and classes.
    world.fleet.gpu.set(Some(0.5));
    world.fleet.run(1).await;
    world
}

/// A workload that is idle: a pod of this name in the tenant, with an owner.
fn idle(world: &World, name: &str, owner: &Value) -> Decision {
    let uid = format!("{name}-uid");
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "uid": uid,
        "ownerReferences": owner}});
    world
        .tenant
        .insert(&format!("/api/v1/namespaces/ml/pods/{name}"), object);
    let pod = GpuPod {
        uid: format!("{name}-host"),
        origin_namespace: "ml".into(),
        origin_name: name.into(),
        origin_uid: uid,
        ..GpuPod::default()
    };
    Decision {
        workload: WorkloadName {
            name: name.into(),
            ..WorkloadName::default()
        },
        pods: vec![Arc::new(pod)],
        gpus: 1,
        profile: None,
        verdict: Verdict::Idle,
        is_opted_out: false,
        state: Some(LadderState {
            idle_since: 0,
            step: IdleStep::Warned,
            step_since: 0,
            paused: false,
            unknown: UnknownTime::default(),
        }),
        next_step_at: None,
    }
}

/// Pods of the pool and of the Deployment, in this order.
fn both_idle(world: &World) -> [Decision; 2] {
    [
        idle(world, "pooled", &controller(API_VERSION, "Pool", "pool")),
        idle(world, "train", &controller("apps/v1", "ReplicaSet", "web-7d9")),
    ]
}

/// Writes the warnings of a pass.
async fn write_warnings(world: &mut World, decisions: &[Decision]) {
    let tenants = tenants::observe(&world.fleet.context.stores);
    let found = [(&tenants[0], Found::Decisions(decisions))];
    inside::update(&world.fleet.context, &mut world.fleet.memory, &found).await;
}

/// The UIDs of host pods whose owners were stopped.
async fn stop_owners(world: &mut World, decision: &Decision) -> HashSet<String> {
    let tenants = tenants::observe(&world.fleet.context.stores);
    let inside = world.fleet.memory.inside(&tenants[0]);
    stop::stop_owners(&world.fleet.context, inside, &tenants[0], decision).await
}

fn is_warned(world: &World, path: &str) -> bool {
    let object = world.tenant.get(path).unwrap();
    object["metadata"]["annotations"]["berth.dev/gpus-idle"].is_string()
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_does_not_answer_keeps_no_other_owner_stopped() {
    let mut world = Box::pin(World::stopped()).await;
    let resources = json!({"resources": [{"name": "pools", "kind": "Pool", "namespaced": true}]});
    world.tenant.serve(KIND, resources);
    let record = json!({"suspendedBy": "spec.suspend", "at": "2026-01-01T00:00:00Z", "reason": "IdleGPUs"}).to_string();
    let pool = json!({"apiVersion": API_VERSION, "kind": "Pool", "metadata": {"name": "pool", "namespace": "ml", "uid": "pool-uid",
        "annotations": {"berth.dev/stopped": record}}, "spec": {"suspend": true}});
    world.tenant.insert(POOL, pool);
    let listed = json!({"apiVersion": API_VERSION, "kind": "Pool", "namespace": "ml", "name": "pool", "uid": "pool-uid", "gpus": 8,
        "stoppedAt": "2026-01-01T00:00:00Z", "suspend": by_suspend()});
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
        let resources = json!({"resources": [{"name": "pools", "kind": "Pool", "namespaced": true}]});
        let decisions = both_idle(&world);
        fail(&world);
        write_warnings(&mut world, &decisions).await;
        for path in ["/api/v1/namespaces/ml/pods/pooled", TENANT_POD, DEPLOYMENT] {
            assert!(is_warned(&world, path), "{number}: {path}");
        }
        assert!(!is_warned(&world, POOL), "{number}");
        world.tenant.serve(KIND, resources);
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
            let is_pool_stopped = !stop_owners(&mut world, &decisions[0]).await.is_empty();
            assert_eq!(is_pool_stopped, number >= 2, "{number}");
            for _ in 0..20 {
                stop_owners(&mut world, &decisions[0]).await;
            }
            let stopped = stop_owners(&mut world, &decisions[1]).await;
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
        assert_eq!(
            !stop_owners(&mut world, &decision).await.is_empty(),
            is_stopped,
            "{request}"
        );
        assert_eq!(world.replicas() == 0, is_stopped, "{request}");
    }
}
