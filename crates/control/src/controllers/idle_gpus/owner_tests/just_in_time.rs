//! Tenants whose API servers answer just in time: they delay nobody but themselves.

use super::*;

/// Tenants that take a second and a half for each answer, and whose owners and budgets keep their pods.
const SLOW: usize = 20;

fn add_slow(world: &World) -> ScriptedApi {
    let api = ScriptedApi::new("slow", &Script::default());
    for path in [REPLICA_SET, DEPLOYMENT] {
        api.insert(path, world.tenant.get(path).unwrap());
    }
    for number in 0..SLOW {
        let name = format!("slow-{number}");
        world.fleet.add_tenant(&name);
        put_pod(&api, &name, &controller("apps/v1", "ReplicaSet", "web-7d9"));
        let tenants = &world.fleet.context.tenants;
        let memory = tenants.of(&format!("{name}-uid"), &world.fleet.host.client());
        memory.connection.set_client(Some(api.client()));
    }
    api.delay(Duration::from_millis(1500));
    api.refuse_writes(Some(("/deployments/", 403, "an admission policy says no")));
    world
        .fleet
        .host
        .refuse_writes(Some(("-host/eviction", 429, "a budget says no")));
    api
}

#[tokio::test(start_paused = true)]
async fn tenants_that_are_just_in_time_do_not_take_the_last_steps_of_others() {
    let mut world = World::new();
    let slow = add_slow(&world);
    world.fleet.run(UNTIL_DUE - 2).await;
    let started = Instant::now();
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.results("stopped")), (0, 1));
    let blocked = u64::try_from(SLOW).unwrap();
    assert_eq!(world.results("blocked"), blocked, "they have their turn as well");
    assert_eq!(slow.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 1);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
