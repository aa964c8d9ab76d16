//! Owners of idle pods: warned, stopped in the end, and when their pods are evicted instead.

use super::*;

#[tokio::test]
async fn an_owner_is_warned_and_stopped_in_the_end() {
    let mut world = World::new();
    world.fleet.run(1).await;
    let warning: Value = serde_json::from_str(world.annotations()["berth.dev/gpus-idle"].as_str().unwrap()).unwrap();
    assert_eq!(warning["step"], "Warned");
    assert!(warning["nextStepAt"].is_string(), "{warning}");
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert_eq!(
        pod["metadata"]["annotations"]["berth.dev/gpus-idle"],
        world.annotations()["berth.dev/gpus-idle"]
    );
    assert_eq!(
        world.tenant.find("/events.k8s.io/v1/namespaces/ml/events/web.").len(),
        1
    );
    world.fleet.run(1).await;
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    assert_eq!(cluster["status"]["idle"]["workloads"][0]["owner"]["name"], "web");
    assert_eq!(world.patches_of_deployment(), 1, "once for each step");
    world.fleet.run(UNTIL_DUE - 3).await;
    assert_eq!(world.fleet.step().as_deref(), Some("Reclaimable"));
    assert_eq!(
        (world.replicas(), world.fleet.evictions(), world.results("stopped")),
        (0, 0, 1)
    );
    let annotations = world.annotations();
    let record: Value = serde_json::from_str(annotations["berth.dev/stopped"].as_str().unwrap()).unwrap();
    assert_eq!((&record["replicas"], &record["class"]), (&json!(1), &json!("gold")));
    assert_eq!(
        (&annotations["berth.dev/gpus-idle"], &annotations["team"]),
        (&Value::Null, &json!("own"))
    );
    assert_eq!(world.listed(), 1);
    let reasons = world.reasons();
    assert!(reasons.contains(&json!("OwnerStopped")), "{reasons:?}");
}

#[tokio::test]
async fn activity_takes_the_warning_of_the_owner_back() {
    let mut world = World::new();
    world.fleet.run(20).await;
    assert!(world.annotations()["berth.dev/gpus-idle"].is_string());
    world.fleet.gpu.set(Some(0.5));
    world.fleet.run(1).await;
    assert_eq!(world.annotations(), json!({"team": "own"}));
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert!(pod["metadata"]["annotations"]["berth.dev/gpus-idle"].is_null());
}

#[tokio::test]
async fn pods_that_stay_although_their_owner_was_stopped_are_evicted() {
    let mut world = World::new();
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (0, 0));
    world.fleet.run(1).await;
    assert_eq!(world.fleet.evictions(), 1);
}

#[tokio::test]
async fn pods_whose_owner_is_started_again_after_each_pass_are_evicted() {
    let mut world = World::new();
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (0, 0));
    // It is paused, and deletes no pod. The next pass starts it before it comes to the pod.
    world.change(DEPLOYMENT, |object| object["spec"]["paused"] = true.into());
    world.ask_on(DEPLOYMENT);
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
    assert_eq!(world.results("stopped"), 1, "once for each pod");
}

#[tokio::test]
async fn an_owner_that_is_not_listed_or_has_other_pods_is_not_stopped() {
    let mut world = World::new();
    world.set_rules(vec![OwnerKind {
        group: "batch".into(),
        kind: "Job".into(),
        suspend: None,
    }]);
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (1, 1, 0));
    let mut world = World::new();
    world.change(DEPLOYMENT, |object| object["status"]["replicas"] = 2.into());
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (1, 1, 0));
}

#[tokio::test]
async fn an_owner_that_is_being_scaled_up_is_not_stopped() {
    let mut world = World::new();
    world.fleet.run(UNTIL_DUE - 2).await;
    // Its controller has not created the new pods yet.
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 10.into());
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (10, 1, 0));
}

/// As the Deployment controller does, which writes status and annotations after the warning.
#[tokio::test]
async fn an_owner_that_changes_meanwhile_is_read_again() {
    for (changes, is_stopped) in [(2, true), (usize::MAX, false)] {
        let mut world = World::new();
        world.fleet.run(UNTIL_DUE - 2).await;
        world.tenant.change_before_writes(DEPLOYMENT, changes);
        world.fleet.run(1).await;
        assert_eq!(world.replicas() == 0, is_stopped, "{changes} changes");
        assert_eq!(world.fleet.evictions() == 0, is_stopped, "{changes} changes");
    }
}
