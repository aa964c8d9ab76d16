//! Owners that a field or an annotation suspends: stopped and restored, once, with a tenant in memory.

use super::{
    owner_tests::{UNTIL_DUE, World, by_path, controller, put_pod},
    *,
};
use berth_api::{IdleReclaim, OwnerKind, OwnerSuspend};
use serde_json::{Value, json};

/// A kind that a class lists, and the object that owns the pod.
struct Example {
    /// Group and version.
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    suspend: OwnerSuspend,
    spec: Value,
    /// Whether a StatefulSet is between the object and its pod.
    has_stateful_set: bool,
}

impl Example {
    fn all() -> [Self; 4] {
        [
            Self {
                group: "kubeflow.org/v1",
                kind: "Notebook",
                plural: "notebooks",
                suspend: OwnerSuspend {
                    annotation: Some("kubeflow-resource-stopped".into()),
                    ..OwnerSuspend::default()
                },
                spec: json!({"template": {}}),
                has_stateful_set: true,
            },
            Self {
                group: "jobset.x-k8s.io/v1alpha2",
                kind: "JobSet",
                plural: "jobsets",
                suspend: by_path("spec.suspend"),
                spec: json!({"replicatedJobs": []}),
                has_stateful_set: false,
            },
            Self {
                group: "ray.io/v1",
                kind: "RayCluster",
                plural: "rayclusters",
                suspend: by_path("spec.suspend"),
                spec: json!({"suspend": false}),
                has_stateful_set: false,
            },
            Self {
                group: "kubeflow.org/v1",
                kind: "PyTorchJob",
                plural: "pytorchjobs",
                suspend: by_path("spec.runPolicy.suspend"),
                spec: json!({"runPolicy": {"suspend": false, "backoffLimit": 3}}),
                has_stateful_set: false,
            },
        ]
    }

    fn path(&self) -> String {
        format!("/apis/{}/namespaces/ml/{}/lab", self.group, self.plural)
    }

    /// A tenant with the object, and a class that lists its kind.
    fn world(&self) -> World {
        let world = World::new();
        let (group, _) = self.group.split_once('/').unwrap();
        world.set_rules(vec![OwnerKind {
            group: group.into(),
            kind: self.kind.into(),
            suspend: Some(self.suspend.clone()),
        }]);
        world.serve_kind(self.group, self.kind, self.plural);
        let owner = controller(self.group, self.kind, "lab");
        if self.has_stateful_set {
            let stateful_set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "lab-set", "namespace": "ml",
                "uid": "lab-set-uid", "ownerReferences": owner}, "spec": {"replicas": 1}, "status": {"replicas": 1}});
            world
                .tenant
                .insert("/apis/apps/v1/namespaces/ml/statefulsets/lab-set", stateful_set);
            world.own_pod(&controller("apps/v1", "StatefulSet", "lab-set"));
        } else {
            world.own_pod(&owner);
        }
        let object = json!({"apiVersion": self.group, "kind": self.kind, "metadata": {"name": "lab", "namespace": "ml",
            "uid": "lab-uid", "annotations": {"team": "own"}}, "spec": self.spec});
        world.tenant.insert(&self.path(), object);
        world
    }

    fn object(&self, world: &World) -> Value {
        world.tenant.get(&self.path()).unwrap()
    }

    /// Whether the object is suspended, as its controller reads it.
    fn is_suspended(&self, world: &World) -> bool {
        let object = self.object(world);
        match self.kind {
            "Notebook" => object["metadata"]["annotations"]["kubeflow-resource-stopped"].is_string(),
            "PyTorchJob" => object["spec"]["runPolicy"]["suspend"] == true,
            _ => object["spec"]["suspend"] == true,
        }
    }

    fn has_record(&self, world: &World) -> bool {
        self.object(world)["metadata"]["annotations"]["berth.dev/stopped"].is_string()
    }

    /// Nothing but what the team wrote is there.
    fn assert_as_before(&self, world: &World) {
        let object = self.object(world);
        assert_eq!(object["spec"], self.spec, "{}", self.kind);
        assert_eq!(
            object["metadata"]["annotations"],
            json!({"team": "own"}),
            "{}",
            self.kind
        );
    }
}

#[tokio::test]
async fn an_owner_is_suspended_and_becomes_what_it_was() {
    for example in Example::all() {
        let mut world = example.world();
        world.fleet.run(UNTIL_DUE - 1).await;
        assert!(example.is_suspended(&world), "{}", example.kind);
        assert_eq!((world.fleet.evictions(), world.listed()), (0, 1), "{}", example.kind);
        world.remove_pod();
        // Nobody asks for it, whatever the class says now.
        world.set_rules(IdleReclaim::default().owner_kinds);
        world.fleet.run(3).await;
        assert!(example.is_suspended(&world), "{}", example.kind);
        world.ask_on(&example.path());
        world.fleet.run(2).await;
        example.assert_as_before(&world);
        assert_eq!(world.listed(), 0, "{}", example.kind);
        // It is the team's own again.
        world.fleet.run(2).await;
        example.assert_as_before(&world);
    }
}

#[tokio::test]
async fn what_the_team_resumes_itself_is_not_restored() {
    let [notebook, ..] = Example::all();
    let mut world = notebook.world();
    world.fleet.run(UNTIL_DUE - 1).await;
    world.remove_pod();
    world.change(&notebook.path(), |object| {
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("kubeflow-resource-stopped");
    });
    world.fleet.run(2).await;
    notebook.assert_as_before(&world);
    assert_eq!(world.listed(), 0);
}

#[tokio::test]
async fn a_crash_at_any_call_suspends_and_restores_exactly_once() {
    let [notebook, .., training_job] = Example::all();
    for example in [notebook, training_job] {
        let mut stopped = 0;
        for number in 0..16 {
            let what = format!("{}, call {number}", example.kind);
            let mut world = example.world();
            world.fleet.run(UNTIL_DUE - 2).await;
            world.script.fail_call(world.script.calls().len() + number);
            world.fleet.run(1).await;
            world.fleet.memory = Memory::default();
            assert_eq!(example.is_suspended(&world), example.has_record(&world), "{what}");
            if !example.is_suspended(&world) {
                continue;
            }
            stopped += 1;
            assert_eq!(world.listed(), 1, "{what}");
            world.remove_pod();
            world.ask_on(&example.path());
            world.script.fail_call(world.script.calls().len() + number);
            world.fleet.run(1).await;
            world.fleet.memory = Memory::default();
            world.fleet.run(3).await;
            example.assert_as_before(&world);
            world.fleet.run(3).await;
            assert_eq!(world.listed(), 0, "{what}");
        }
        assert!((1..16).contains(&stopped), "{}: {stopped}", example.kind);
    }
}

#[tokio::test]
async fn an_owner_with_other_pods_is_not_suspended() {
    for (is_of_owner, is_ending) in [(true, false), (true, true), (false, false)] {
        let [_, job_set, ..] = Example::all();
        let mut world = job_set.world();
        // Its labels say nothing of the JobSet, so that it is judged alone. Prometheus knows no GPU of it.
        let pods = &world.fleet.context.stores.gpu_pods;
        let idle = pods.by_tenant().into_values().flatten().next().unwrap();
        let other = GpuPod {
            name: "zoo-host".into(),
            uid: "other-host-uid".into(),
            origin_name: "other".into(),
            origin_uid: "other-uid".into(),
            is_ending,
            ..GpuPod::clone(&idle)
        };
        pods.put("berth-w/zoo-host", Some(other));
        let owner = if is_of_owner {
            controller(job_set.group, job_set.kind, "lab")
        } else {
            Value::Null
        };
        put_pod(&world.tenant, "other", &owner);
        world.fleet.run(UNTIL_DUE - 1).await;
        let has_others = is_of_owner && !is_ending;
        assert_eq!(job_set.is_suspended(&world), !has_others, "{is_of_owner} {is_ending}");
        assert_eq!(
            world.fleet.evictions(),
            usize::from(has_others),
            "{is_of_owner} {is_ending}"
        );
    }
}
