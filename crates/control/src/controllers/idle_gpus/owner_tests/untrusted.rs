//! What a team says of the owners of its pods, and how its API server answers, harms nobody else.

use super::*;

#[tokio::test]
async fn an_owner_of_a_kind_that_the_team_serves_itself_ends_nothing() {
    let mut world = World::new();
    // Names that continue each other, which are followed one by one: 2 to the power of 39 calls.
    let entry = |length: usize| json!({"name": format!("x{}", "/".repeat(length)), "kind": "X", "namespaced": true});
    let entries: Vec<Value> = (0..40).map(entry).collect();
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "evil.example/v1", "resources": entries});
    world.tenant.serve("/apis/evil.example/v1", list);
    world.own_pod(&controller("evil.example/v1", "X", "x"));
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.fleet.evictions(), world.listed()), (1, 0));
}

#[tokio::test]
async fn owners_that_are_no_part_of_a_path_are_not_asked_for() {
    let long = "x".repeat(1000);
    for (api_version, kind, name) in [
        ("apps/v1", "Deployment", "web/scale"),
        ("apps/v1", "Deployment", ".."),
        ("apps/v1", "Deployment", "we b"),
        ("apps/v1", "Deployment", "%77eb"),
        ("%61pps/v1", "Deployment", "web"),
        ("../v1", "Deployment", "web"),
        ("a.example/..", "Deployment", "web"),
        ("apps/v1", "Deploy/ment", "web"),
        ("a.example/v1", long.as_str(), "web"),
        (long.as_str(), "Deployment", "web"),
    ] {
        let mut world = World::new();
        world.own_pod(&controller(api_version, kind, name));
        world.fleet.run(UNTIL_DUE - 1).await;
        assert_eq!(
            (world.replicas(), world.fleet.evictions(), world.listed()),
            (1, 1, 0),
            "{name}"
        );
        let calls = world.script.calls();
        let odd = calls
            .iter()
            .find(|call| call.text.contains("/apis/") && !call.text.contains("/events"));
        assert!(odd.is_none(), "{api_version} {name}: {}", odd.unwrap().text);
    }
}

#[tokio::test]
async fn pods_of_many_owners_that_the_class_does_not_list_are_evicted() {
    let mut world = World::new();
    world.fleet.run(1).await;
    let names: Vec<String> = (0..100).map(|number| format!("gang-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let owner = format!("owner-{number}");
        put_pod(&world.tenant, name, &controller("apps/v1", "ReplicaSet", &owner));
        let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": owner, "namespace": "ml",
            "uid": format!("{owner}-uid")}, "spec": {"replicas": 1}});
        let path = format!("/apis/apps/v1/namespaces/ml/replicasets/{owner}");
        world.tenant.insert(&path, object);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let before = world.script.calls().len();
    let stopped = world.stop_owners(&idle("gang", &names)).await;
    assert!(stopped.is_empty(), "they are evicted: {stopped:?}");
    let calls = world.script.calls().split_off(before);
    let reads = calls.iter().filter(|call| call.text.contains("/replicasets/owner-"));
    assert_eq!(reads.count(), 100, "each is read once, for its own owner, and not kept");
}

#[tokio::test]
async fn owner_references_are_not_believed() {
    // Another Deployment of the name, a circle, and another pod of the name.
    let changes: [fn(&World); 3] = [
        |world| world.change(DEPLOYMENT, |object| object["metadata"]["uid"] = "new-uid".into()),
        |world| {
            let circle = controller("apps/v1", "ReplicaSet", "web-7d9");
            world.change(REPLICA_SET, |object| object["metadata"]["ownerReferences"] = circle);
        },
        |world| world.change(TENANT_POD, |object| object["metadata"]["uid"] = "new-uid".into()),
    ];
    for change in changes {
        let mut world = World::new();
        change(&world);
        world.fleet.run(UNTIL_DUE - 1).await;
        assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
        assert_eq!(world.annotations(), json!({"team": "own"}));
    }
}

#[tokio::test]
async fn a_tenant_that_does_not_answer_loses_its_pods_by_eviction() {
    let mut world = World::new();
    world.connect(false);
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_takes_the_time_of_its_tenant_only() {
    let mut world = World::new();
    world.tenant.never_answer_writes(Some("deployments"));
    let started = tokio::time::Instant::now();
    world.fleet.run(1).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(world.fleet.step().as_deref(), Some("Warned"));
    world.fleet.run(UNTIL_DUE - 2).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
}
