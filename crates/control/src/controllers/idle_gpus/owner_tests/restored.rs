//! Owners that were stopped: restored once, for the team or the platform, by whichever control there is.

use super::*;

#[tokio::test]
async fn the_team_restores_with_an_annotation() {
    let mut world = Box::pin(World::stopped()).await;
    world.ask_on(DEPLOYMENT);
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.annotations()), (1, json!({"team": "own"})));
    world.fleet.run(1).await;
    assert_eq!(world.listed(), 0);
    // It is the team's own again.
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 0.into());
    world.fleet.run(3).await;
    assert_eq!(world.replicas(), 0);
}

#[tokio::test]
async fn a_request_on_the_host_restores_once() {
    let mut world = Box::pin(World::stopped()).await;
    world.ask("deployment/ml/web");
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.listed()), (1, 1));
    assert_eq!(world.request(), Value::Null);
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 0.into());
    world.fleet.memory = Memory::default();
    world.fleet.run(3).await;
    assert_eq!((world.replicas(), world.listed()), (0, 0));
}

#[tokio::test]
async fn an_owner_that_the_team_starts_itself_is_not_restored() {
    let mut world = Box::pin(World::stopped()).await;
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 5.into());
    world.fleet.run(2).await;
    assert_eq!(
        (world.replicas(), world.annotations(), world.listed()),
        (5, json!({"team": "own"}), 0)
    );
}

#[tokio::test]
async fn a_new_control_knows_what_was_stopped_and_a_class_that_is_off_keeps_it() {
    let mut world = Box::pin(World::stopped()).await;
    world.fleet.memory = Memory::default();
    world.fleet.set_rules(IdleReclaim::default());
    world.fleet.run(3).await;
    assert_eq!((world.replicas(), world.listed()), (0, 1));
    world.ask_on(DEPLOYMENT);
    world.fleet.run(2).await;
    assert_eq!((world.replicas(), world.listed()), (1, 0));
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    assert!(cluster["status"]["idle"].is_null(), "{cluster}");
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_keeps_what_was_stopped() {
    let mut world = Box::pin(World::stopped()).await;
    world.ask_on(DEPLOYMENT);
    world.connect(false);
    world.fleet.run(200).await;
    assert_eq!((world.replicas(), world.listed()), (0, 1));
    world.connect(true);
    world.fleet.run(1).await;
    assert_eq!(world.replicas(), 1);
}

#[tokio::test]
async fn a_crash_at_any_call_stops_and_restores_exactly_once() {
    // Every call to the tenant from the step before the last one on fails once, each in a world of its own.
    for number in 0..12 {
        let mut world = World::new();
        world.fleet.run(UNTIL_DUE - 2).await;
        world.script.fail_call(world.script.calls().len() + number);
        world.fleet.run(1).await;
        world.fleet.memory = Memory::default();
        let is_stopped = world.replicas() == 0;
        assert_eq!(
            is_stopped,
            world.annotations()["berth.dev/stopped"].is_string(),
            "call {number}"
        );
        if !is_stopped {
            continue;
        }
        assert_eq!(world.listed(), 1, "call {number}");
        world.remove_pod();
        world.ask_on(DEPLOYMENT);
        world.script.fail_call(world.script.calls().len() + number);
        world.fleet.run(1).await;
        world.fleet.memory = Memory::default();
        world.fleet.run(3).await;
        assert_eq!(
            (world.replicas(), world.annotations()),
            (1, json!({"team": "own"})),
            "call {number}"
        );
        world.fleet.run(3).await;
        assert_eq!(world.listed(), 0, "call {number}");
    }
}
