use super::*;
use berth_api::OwnerSuspend;
use json_patch::merge;
use proptest::prelude::*;

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn replicas() -> Switch {
    Switch::of_built_in("apps", "Deployment").unwrap()
}

fn deployment(wanted: u32, existing: u32) -> Value {
    json!({"metadata": {"name": "web", "resourceVersion": "7"}, "spec": {"replicas": wanted}, "status": {"replicas": existing}})
}

/// A merge patch, as API servers carry it out.
fn apply(object: &Value, patch: &Value) -> Value {
    assert_eq!(
        patch["metadata"]["resourceVersion"],
        object["metadata"]["resourceVersion"]
    );
    let mut after = object.clone();
    merge(&mut after, patch);
    after["metadata"]["resourceVersion"] = "8".into();
    after
}

fn idle(pods: usize) -> OwnedPods {
    OwnedPods { idle: pods, others: 0 }
}

fn stopped(object: &Value, switch: &Switch, idle_pods: usize) -> Value {
    apply(
        object,
        &stop(object, switch, idle(idle_pods), Some("gold"), now()).unwrap(),
    )
}

fn field(path: &str) -> Switch {
    let suspend = OwnerSuspend {
        path: Some(path.into()),
        ..OwnerSuspend::default()
    };
    Switch::of_suspend(&suspend).unwrap()
}

/// As Kubeflow's notebook controller reads it, and as KServe does.
fn annotation(name: &str, value: Option<&str>) -> Switch {
    let suspend = OwnerSuspend {
        annotation: Some(name.into()),
        value: value.map(ToOwned::to_owned),
        ..OwnerSuspend::default()
    };
    Switch::of_suspend(&suspend).unwrap()
}

fn restored(object: &Value, switch: &Switch) -> Value {
    let Review::Restore(patch) = review(object, switch, true) else {
        panic!("not restored: {object}")
    };
    apply(object, &patch)
}

#[test]
fn one_patch_stops_and_records_and_one_restores_and_removes_the_record() {
    let before = deployment(3, 3);
    let after = stopped(&before, &replicas(), 3);
    assert_eq!(after["spec"]["replicas"], 0);
    assert!(is_stopped(&after, &replicas()));
    assert_eq!(
        after["metadata"]["annotations"][STOPPED],
        r#"{"replicas":3,"at":"1970-01-01T00:00:00Z","reason":"IdleGPUs","class":"gold"}"#
    );
    assert_eq!(review(&after, &replicas(), false), Review::Keep);
    let Review::Restore(patch) = review(&after, &replicas(), true) else {
        panic!("not restored")
    };
    let restored = apply(&after, &patch);
    assert_eq!(restored["spec"]["replicas"], 3);
    assert_eq!(restored["metadata"]["annotations"], json!({}));
    // However often it is asked for.
    assert_eq!(review(&restored, &replicas(), true), Review::Forget);
}

#[test]
fn a_job_is_suspended() {
    let job = json!({"metadata": {"resourceVersion": "1"}, "spec": {"parallelism": 4}, "status": {"active": 4}});
    let after = stopped(&job, &Switch::Job, 4);
    assert_eq!(after["spec"], json!({"parallelism": 4, "suspend": true}));
    let Review::Restore(patch) = review(&after, &Switch::Job, true) else {
        panic!("not restored")
    };
    assert_eq!(apply(&after, &patch)["spec"]["suspend"], false);
    let mut ended = job;
    ended["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    let refused = stop(&ended, &Switch::Job, idle(4), None, now());
    assert_eq!(refused, Err(CannotStop::HasStopped));
}

#[test]
fn an_owner_with_other_pods_or_of_the_platform_is_not_stopped() {
    let refused = |object: &Value, pods| stop(object, &replicas(), idle(pods), None, now()).unwrap_err();
    assert_eq!(refused(&deployment(3, 3), 2), CannotStop::HasOtherPods);
    assert_eq!(refused(&deployment(0, 1), 2), CannotStop::HasStopped);
    let mut object = deployment(1, 1);
    object["metadata"]["labels"] = json!({MANAGED_BY: "platform"});
    assert_eq!(refused(&object, 1), CannotStop::NotOfTeam);
    let mut object = deployment(1, 1);
    object["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
    assert_eq!(refused(&object, 1), CannotStop::HasStopped);
    for bad in [json!("3"), json!(-1), json!(1.5), json!(200_000)] {
        let mut object = deployment(1, 1);
        object["spec"]["replicas"] = bad;
        assert_eq!(refused(&object, 1), CannotStop::Unreadable, "{object}");
    }
    let mut object = deployment(1, 1);
    for bad in [Value::Null, "7".repeat(65).into()] {
        object["metadata"]["resourceVersion"] = bad;
        assert_eq!(refused(&object, 1), CannotStop::Unreadable);
    }
}

#[test]
fn an_owner_that_somebody_started_is_left_alone() {
    let mut object = stopped(&deployment(3, 3), &replicas(), 3);
    object["spec"]["replicas"] = 1.into();
    object["metadata"]["annotations"][RESTORE] = RESTORE_WANTED.into();
    let Review::RemoveRecord(patch) = review(&object, &replicas(), true) else {
        panic!("the record stays")
    };
    let after = apply(&object, &patch);
    assert_eq!(
        (&after["spec"]["replicas"], &after["metadata"]["annotations"]),
        (&json!(1), &json!({}))
    );
}

#[test]
fn the_team_restores_with_an_annotation_and_forgets_by_removing_the_record() {
    let mut object = stopped(&deployment(3, 3), &replicas(), 3);
    object["metadata"]["annotations"][RESTORE] = RESTORE_WANTED.into();
    assert!(matches!(review(&object, &replicas(), false), Review::Restore(_)));
    object["metadata"]["annotations"][RESTORE] = "false".into();
    assert_eq!(review(&object, &replicas(), false), Review::Keep);
    object["metadata"]["annotations"] = Value::Null;
    assert_eq!(review(&object, &replicas(), true), Review::Forget);
}

#[test]
fn a_record_that_is_not_berths_restores_nothing() {
    for forged in [
        "",
        "3",
        "{}",
        r#"{"replicas":-1}"#,
        r#"{"replicas":0,"at":"1970-01-01T00:00:00Z","reason":""}"#,
        r#"{"replicas":100001,"at":"1970-01-01T00:00:00Z","reason":""}"#,
        r#"{"at":"1970-01-01T00:00:00Z","reason":""}"#,
        r#"{"replicas":1,"at":"1970-01-01T00:00:00Z","reason":"","spec":{}}"#,
    ] {
        let mut object = deployment(0, 0);
        object["metadata"]["annotations"] = json!({STOPPED: forged});
        let Review::RemoveRecord(patch) = review(&object, &replicas(), true) else {
            panic!("{forged}")
        };
        assert_eq!(patch["spec"], Value::Null, "{forged}");
    }
}

#[test]
fn custom_kinds_are_scaled_at_the_path_of_their_definition() {
    let switch = Switch::of_scale(".spec.server.count", ".status.ready").unwrap();
    let object = json!({"metadata": {"resourceVersion": "1"}, "spec": {"server": {"count": 2, "image": "a"}}, "status": {"ready": 2}});
    let after = stopped(&object, &switch, 2);
    assert_eq!(after["spec"], json!({"server": {"count": 0, "image": "a"}}));
}

#[test]
fn an_owner_that_is_being_scaled_up_is_not_stopped() {
    // It was scaled from 3 to 10 just now: its controller has not seen it yet.
    let refused = stop(&deployment(10, 3), &replicas(), idle(3), None, now());
    assert_eq!(refused, Err(CannotStop::HasOtherPods));
    let job = json!({"metadata": {"resourceVersion": "1"}, "spec": {"parallelism": 4}, "status": {"active": 1}});
    let refused = stop(&job, &Switch::Job, idle(1), None, now());
    assert_eq!(refused, Err(CannotStop::HasOtherPods));
    // One that is being scaled down has pods that are leaving.
    assert!(stop(&deployment(1, 3), &replicas(), idle(3), None, now()).is_ok());
}

#[test]
fn a_field_suspends_and_becomes_what_it_was() {
    for (before, switch) in [
        (json!({"suspend": false, "size": 4}), field("spec.suspend")),
        (json!({"size": 4}), field("spec.suspend")),
        (
            json!({"runPolicy": {"backoffLimit": 3}}),
            field("spec.runPolicy.suspend"),
        ),
        (
            json!({"runPolicy": {"suspend": false}}),
            field("spec.runPolicy.suspend"),
        ),
    ] {
        let object = json!({"metadata": {"resourceVersion": "1"}, "spec": before});
        let after = stopped(&object, &switch, 4);
        assert_eq!(switch.is_running(&after), Some(false), "{after}");
        assert!(is_stopped(&after, &switch));
        assert_eq!(review(&after, &switch, false), Review::Keep);
        let again = restored(&after, &switch);
        assert_eq!(again["spec"], before);
        assert_eq!(again["metadata"]["annotations"], json!({}));
        assert_eq!(
            review(&again, &switch, true),
            Review::Forget,
            "however often it is asked for"
        );
    }
    let unreadable = json!({"metadata": {"resourceVersion": "1"}, "spec": {"suspend": "no"}});
    let refused = stop(&unreadable, &field("spec.suspend"), idle(1), None, now());
    assert_eq!(refused, Err(CannotStop::Unreadable));
}

#[test]
fn an_annotation_suspends_and_becomes_what_it_was() {
    let notebook = annotation("kubeflow-resource-stopped", None);
    let object =
        json!({"metadata": {"resourceVersion": "1", "annotations": {"team": "own"}}, "spec": {"template": {}}});
    let after = stopped(&object, &notebook, 1);
    assert_eq!(
        after["metadata"]["annotations"]["kubeflow-resource-stopped"],
        "1970-01-01T00:00:00Z"
    );
    assert_eq!(after["spec"], object["spec"]);
    let again = restored(&after, &notebook);
    assert_eq!(again["metadata"]["annotations"], json!({"team": "own"}));

    let service = annotation("serving.kserve.io/stop", Some("true"));
    let object = json!({"metadata": {"resourceVersion": "1", "annotations": {"serving.kserve.io/stop": "false"}}});
    let after = stopped(&object, &service, 1);
    assert_eq!(after["metadata"]["annotations"]["serving.kserve.io/stop"], "true");
    let again = restored(&after, &service);
    assert_eq!(
        again["metadata"]["annotations"],
        json!({"serving.kserve.io/stop": "false"})
    );
    let mut object = object;
    object["metadata"]["annotations"]["serving.kserve.io/stop"] = "x".repeat(1025).into();
    assert_eq!(
        stop(&object, &service, idle(1), None, now()),
        Err(CannotStop::Unreadable)
    );
}

#[test]
fn what_the_team_resumes_itself_is_left_alone() {
    let switch = annotation("kubeflow-resource-stopped", None);
    let object = json!({"metadata": {"resourceVersion": "1"}});
    let mut after = stopped(&object, &switch, 1);
    // As Kubeflow's dashboard does it.
    let annotations = after["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("kubeflow-resource-stopped");
    let Review::RemoveRecord(patch) = review(&after, &switch, true) else {
        panic!("the record stays")
    };
    assert_eq!(apply(&after, &patch)["metadata"]["annotations"], json!({}));
}

#[test]
fn what_has_other_pods_is_not_suspended() {
    let object = json!({"metadata": {"resourceVersion": "1"}});
    let pods = OwnedPods { idle: 4, others: 1 };
    let refused = stop(&object, &field("spec.suspend"), pods, None, now());
    assert_eq!(refused, Err(CannotStop::HasOtherPods));
}

#[test]
fn a_record_of_another_way_to_stop_restores_nothing() {
    let by_field = field("spec.suspend");
    for (forged, switch) in [
        (
            r#"{"suspendedBy":"spec.paused","at":"1970-01-01T00:00:00Z","reason":""}"#,
            by_field.clone(),
        ),
        (r#"{"at":"1970-01-01T00:00:00Z","reason":""}"#, by_field.clone()),
        (
            r#"{"suspendedBy":"spec.suspend","before":{"a":1},"at":"1970-01-01T00:00:00Z","reason":""}"#,
            by_field.clone(),
        ),
        (
            r#"{"suspendedBy":"spec.suspend","before":true,"at":"1970-01-01T00:00:00Z","reason":""}"#,
            by_field,
        ),
        (
            r#"{"suspendedBy":"stop","before":1,"at":"1970-01-01T00:00:00Z","reason":""}"#,
            annotation("stop", None),
        ),
        (
            r#"{"suspendedBy":"spec.suspend","at":"1970-01-01T00:00:00Z","reason":""}"#,
            Switch::Job,
        ),
    ] {
        let mut object = json!({"metadata": {"annotations": {STOPPED: forged, "stop": "now"}, "resourceVersion": "1"}});
        object["spec"]["suspend"] = true.into();
        let Review::RemoveRecord(patch) = review(&object, &switch, true) else {
            panic!("{forged}")
        };
        assert_eq!(patch["spec"], Value::Null, "{forged}");
        assert_eq!(patch["metadata"]["annotations"].get("stop"), None, "{forged}");
    }
}

proptest! {
    #[test]
    fn whatever_is_restored_is_what_was_stopped(wanted in 1..=MAX_REPLICAS, existing in 0..50_u32, reviews in 1..4_usize) {
        let pods = usize::try_from(MAX_REPLICAS).unwrap();
        let mut object = stopped(&deployment(wanted, existing), &replicas(), pods);
        let mut restored = 0;
        for _ in 0..reviews {
            if let Review::Restore(patch) = review(&object, &replicas(), true) {
                object = apply(&object, &patch);
                restored += 1;
            }
        }
        prop_assert_eq!((restored, &object["spec"]["replicas"]), (1, &json!(wanted)));
    }

    #[test]
    fn no_annotation_of_a_team_reaches_another_field(text in ".{0,80}", wanted in any::<bool>()) {
        let mut object = deployment(0, 0);
        object["metadata"]["annotations"] = json!({STOPPED: text});
        if let Review::Restore(patch) | Review::RemoveRecord(patch) = review(&object, &replicas(), wanted) {
            let fields: Vec<&String> = patch.as_object().unwrap().keys().collect();
            prop_assert!(fields.iter().all(|field| ["metadata", "spec"].contains(&field.as_str())));
        }
    }
}
