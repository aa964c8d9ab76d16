//! Owners whose version is no longer served, as after an upgrade of their definition.

use super::*;

const GROUP: &str = "/apis/pools.example";
const OLD: &str = "pools.example/v1alpha1";
const NEW: &str = "pools.example/v1";

fn path(api_version: &str) -> String {
    format!("/apis/{api_version}/namespaces/ml/pools/pool")
}

/// Lets the tenant serve the kind in this version, or in none.
fn serve(world: &World, version: Option<&str>) {
    let versions: Vec<Value> = version.iter().map(|version| json!({"version": version})).collect();
    let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "pools.example", "versions": versions});
    world
        .tenant
        .serve(GROUP, if version.is_some() { group } else { Value::Null });
    for api_version in [OLD, NEW] {
        world.tenant.serve(&format!("/apis/{api_version}"), Value::Null);
    }
    if let Some(version) = version {
        world.serve_kind(&format!("pools.example/{version}"), "Pool", "pools");
    }
}

/// What an upgrade does: the object is served in the new version only.
fn upgrade(world: &World) {
    serve(world, Some("v1"));
    let mut object = world.tenant.get(&path(OLD)).unwrap();
    object["apiVersion"] = NEW.into();
    world.tenant.remove(&path(OLD));
    world.tenant.insert(&path(NEW), object);
}

/// A tenant whose pod is owned by a pool of the old version, under a class that stops pools.
fn with_pool() -> World {
    let world = World::new();
    world.set_rules(vec![OwnerKind {
        group: "pools.example".into(),
        kind: "Pool".into(),
        suspend: Some(by_path("spec.suspend")),
    }]);
    serve(&world, Some("v1alpha1"));
    world.tenant.insert(&path(OLD), pool(OLD));
    world.own_pod(&controller(OLD, "Pool", "pool"));
    world
}

/// The same with the pool stopped.
async fn with_stopped_pool() -> World {
    let mut world = with_pool();
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!(listed_version(&world), OLD);
    world.remove_pod();
    world.fleet.run(1).await;
    world
}

fn is_suspended(world: &World, api_version: &str) -> bool {
    world.tenant.get(&path(api_version)).unwrap()["spec"]["suspend"] == true
}

fn listed_version(world: &World) -> Value {
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    cluster["status"]["idle"]["stoppedOwners"][0]["apiVersion"].clone()
}

#[tokio::test]
async fn an_owner_is_restored_in_the_version_that_is_served() {
    let mut world = Box::pin(with_stopped_pool()).await;
    upgrade(&world);
    world.fleet.run(4).await;
    assert_eq!(listed_version(&world), NEW);
    assert!(is_suspended(&world, NEW));
    world.ask("pool/ml/pool");
    world.fleet.run(2).await;
    assert_eq!(world.request(), Value::Null);
    let object = world.tenant.get(&path(NEW)).unwrap();
    assert_eq!(
        (&object["spec"]["suspend"], &object["metadata"]["annotations"]),
        (&json!(false), &json!({}))
    );
    assert_eq!(world.listed(), 0);
}

#[tokio::test]
async fn another_object_of_the_name_is_not_restored_in_another_version() {
    let mut world = Box::pin(with_stopped_pool()).await;
    upgrade(&world);
    world.change(&path(NEW), |object| object["metadata"]["uid"] = "another-uid".into());
    world.ask_on(&path(NEW));
    world.fleet.run(2).await;
    assert_eq!(world.listed(), 0);
    assert!(is_suspended(&world, NEW));
}

#[tokio::test]
async fn an_owner_is_forgotten_when_its_kind_is_served_in_no_version() {
    let mut world = Box::pin(with_stopped_pool()).await;
    // While a definition changes there is a moment without any version.
    serve(&world, None);
    world.fleet.run(1).await;
    serve(&world, Some("v1alpha1"));
    world.fleet.run(3).await;
    assert_eq!(world.listed(), 1);
    serve(&world, None);
    world.fleet.run(2).await;
    assert_eq!(world.listed(), 1);
    world.fleet.run(1).await;
    assert_eq!(world.listed(), 0);
}

#[tokio::test]
async fn an_owner_is_kept_while_a_version_of_its_kind_does_not_say_what_it_serves() {
    let mut world = Box::pin(with_stopped_pool()).await;
    upgrade(&world);
    world.tenant.serve(&format!("{GROUP}/v1"), json!("this is no list"));
    world.fleet.run(5).await;
    assert_eq!(world.listed(), 1);
}

#[tokio::test]
async fn a_pod_that_names_a_version_that_is_no_longer_served_has_its_owner() {
    let mut world = with_pool();
    upgrade(&world);
    world.fleet.run(UNTIL_DUE - 1).await;
    assert!(is_suspended(&world, NEW));
    assert_eq!((world.fleet.evictions(), listed_version(&world)), (0, json!(NEW)));
}
