//! Ephemeral containers that are denied: their owner cannot remove them from the pod.

use super::super::*;
use super::class::{cache, name, pod};
use super::late_denials::{LISTED, fields, limited, put_on_host, running};
use crate::translation::sizes::count_bytes;

fn names(object: &Value) -> Vec<&str> {
    let containers = json::items(object, &["spec", "ephemeralContainers"]).iter();
    containers
        .filter_map(|container| json::text(container, &["name"]))
        .collect()
}

/// Ephemeral containers, of which the second, the fourth and the fifth are denied.
fn mixed() -> Value {
    json!([
        {"name": "a", "image": LISTED},
        {"name": "b", "image": "busybox", "targetContainerName": "main"},
        {"name": "c", "image": LISTED, "targetContainerName": "main"},
        {"name": "d", "image": LISTED, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        {"name": "e", "image": LISTED, "volumeMounts": [{"name": "v", "mountPath": "/nvidia-container-devices/all"}]},
    ])
}

fn with_mixed() -> Value {
    json!({"containers": [{"name": "main", "image": LISTED}], "ephemeralContainers": mixed()})
}

#[test]
fn an_ephemeral_container_that_is_denied_is_left_out_alone() {
    let cache = cache(SchedulingMode::Host, limited);
    let expected = [
        "spec.ephemeralContainers[1].image",
        "spec.ephemeralContainers[3].securityContext.capabilities.add",
        "spec.ephemeralContainers[4].volumeMounts[0].mountPath",
    ];
    let check = |pod: &Value| {
        let Translated { object, parts, .. } = Pods.translate(&cache, &name(), pod).unwrap();
        assert_eq!(names(&object), ["a", "c"]);
        assert_eq!(fields(&parts.left_out), expected);
        assert!(parts.kept.is_empty() && parts.in_doubt.is_empty(), "{parts:?}");
        object
    };
    // Also one that was there before the pod was on the host.
    check(&pod(&with_mixed()));
    let created = Pods.translate_new(&cache, &name(), &pod(&with_mixed())).unwrap();
    assert_eq!(fields(&created.parts.left_out), expected);
    assert!(names(&created.object).is_empty(), "they are added later");
    put_on_host(&cache, 1, &json!({"nodeName": "gpu-1"}));
    let desired = check(&running(&with_mixed()));
    let live = json!({"metadata": {}, "spec": {"containers": [{"name": "main", "image": LISTED}], "ephemeralContainers": [{"name": "a"}]}});
    let writes = update::update(&desired, &live);
    let [
        ..,
        HostWrite::Patch {
            subresource: "ephemeralcontainers",
            patch,
        },
    ] = writes.as_slice()
    else {
        panic!("{writes:?}")
    };
    assert_eq!(names(patch), ["c"]);
}

/// Nobody can remove it, so a pod with a large annotation would be denied for ever.
#[test]
fn what_a_container_that_is_left_out_reads_takes_no_room_on_the_host() {
    const ANNOTATION: &str = "metadata.annotations['example.com/large']";
    let cache = cache(SchedulingMode::Host, limited);
    let debug = |image: &str| {
        let large = json!({"name": "LARGE", "valueFrom": {"fieldRef": {"fieldPath": ANNOTATION}}});
        let debug = json!({"name": "debug", "image": image, "env": [large]});
        let mut pod = pod(&json!({"containers": [{"name": "main", "image": LISTED}], "ephemeralContainers": [debug]}));
        pod["metadata"]["annotations"] = json!({"example.com/large": "a".repeat(250 << 10)});
        pod
    };
    let key = downward::annotation(ANNOTATION);
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &debug("busybox")).unwrap();
    assert_eq!(fields(&parts.left_out), ["spec.ephemeralContainers[0].image"]);
    assert_eq!(object["metadata"]["annotations"].get(&key), None);
    let denied = Pods.translate(&cache, &name(), &debug(LISTED)).unwrap_err();
    assert_eq!(
        fields(&denied),
        ["metadata.annotations"],
        "one that is allowed reads it"
    );
}

#[test]
fn an_ephemeral_container_that_is_allowed_later_is_added_then() {
    let before = cache(SchedulingMode::Host, limited);
    let after = cache(SchedulingMode::Host, |policy| {
        policy.pods.images = Some(vec!["*".into()]);
    });
    let pod = running(&with_mixed());
    let hash = |cache: &Cache| {
        put_on_host(
            cache,
            1,
            &json!({"nodeName": "gpu-1", "ephemeralContainers": [{"name": "a"}, {"name": "c"}]}),
        );
        let object = Pods.translate(cache, &name(), &pod).unwrap().object;
        (json::hash(&Pods.mutable_part(&object)), object)
    };
    let ((old, _), (new, desired)) = (hash(&before), hash(&after));
    assert_ne!(old, new, "so that it is written");
    assert_eq!(names(&desired), ["a", "b", "c"]);
    let live = json!({"spec": {"ephemeralContainers": [{"name": "a"}, {"name": "c"}, {"name": "of-the-platform"}]}});
    let writes = update::update(&desired, &live);
    let Some(HostWrite::Patch { patch, .. }) = writes.last() else {
        panic!("{writes:?}")
    };
    assert_eq!(names(patch), ["b"]);
}

#[test]
fn an_ephemeral_container_that_the_host_has_is_kept() {
    let cache = cache(SchedulingMode::Host, limited);
    let on_host = json!([{"name": "b", "image": "busybox", "resources": {}}]);
    put_on_host(
        &cache,
        1,
        &json!({"nodeName": "gpu-1", "ephemeralContainers": on_host, "containers": []}),
    );
    let host = cache.stores.host(KindId::Pod).get(&name()).unwrap().object();
    assert_eq!(
        host["spec"],
        json!({"nodeName": "gpu-1", "ephemeralContainers": [{"name": "b"}]})
    );
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &running(&with_mixed())).unwrap();
    assert_eq!(names(&object), ["a", "b", "c"]);
    assert_eq!(fields(&parts.kept), ["spec.ephemeralContainers[1].image"]);
    assert_eq!(parts.left_out.len(), 2);
}

/// One that waits would start with it.
#[test]
fn a_pod_that_waits_is_made_again_without_an_ephemeral_container_that_is_denied_by_now() {
    let cache = cache(SchedulingMode::Host, limited);
    put_on_host(&cache, 1, &json!({"ephemeralContainers": [{"name": "b"}]}));
    let many: Vec<Value> = (0..251)
        .map(|number| json!({"name": format!("d{number}"), "image": "busybox"}))
        .collect();
    let few = pod(&with_mixed());
    let many = pod(&json!({"containers": [{"name": "main", "image": LISTED}], "ephemeralContainers": many}));
    for (tenant, expected) in [
        (&few, "spec.ephemeralContainers[1].image"),
        (&many, "spec.ephemeralContainers"),
    ] {
        let denied = Pods.translate(&cache, &name(), tenant).unwrap_err();
        assert_eq!(fields(&denied), [expected]);
        let when_denied = Pods.when_denied(&cache, &name(), tenant, &json!({}));
        assert_eq!(when_denied, WhenDenied::Withdraw);
    }
    cache.stores.host(KindId::Pod).forget(&name());
    for (tenant, left_out) in [(&few, 3), (&many, 1)] {
        let made = Pods.translate_new(&cache, &name(), tenant).unwrap();
        assert_eq!(made.parts.left_out.len(), left_out);
        put_on_host(&cache, 2, &json!({}));
        assert!(Pods.translate(&cache, &name(), tenant).is_ok(), "it is made again once");
        cache.stores.host(KindId::Pod).forget(&name());
    }
}

/// The statuses of ephemeral containers in the status that the tenant's pod gets.
fn statuses(cache: &Cache, tenant: &Value, of_host: &Value) -> Vec<Value> {
    let host =
        json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "ephemeralContainerStatuses": of_host}});
    let observation = Observation {
        tenant,
        host: &host,
        in_sync: true,
        denied: &[],
        now: Timestamp::UNIX_EPOCH,
    };
    match Pods.sync_status(cache, &name(), &observation).as_slice() {
        [TenantWrite::Status(status)] => json::items(status, &["ephemeralContainerStatuses"]).to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_status_of_a_container_that_is_left_out_says_why_it_waits() {
    let cache = cache(SchedulingMode::Host, limited);
    let mut tenant = running(&with_mixed());
    let ran = json!({"name": "a", "state": {"terminated": {"exitCode": 0}}});
    let of_host = json!([ran, {"name": "c", "state": {"running": {}}}, {"name": "of-the-platform"}]);
    let first = statuses(&cache, &tenant, &of_host);
    let shown: Vec<&Value> = first.iter().map(|status| &status["name"]).collect();
    assert_eq!(shown, ["a", "c", "b", "d", "e"]);
    let b = &first[2];
    assert_eq!(
        (&b["image"], &b["ready"], &b["restartCount"]),
        (&json!("busybox"), &json!(false), &json!(0))
    );
    let waiting = &b["state"]["waiting"];
    assert_eq!(waiting["reason"], "FieldDenied");
    let message = waiting["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.ephemeralContainers[1].image: ") && message.contains("registry.example.com/*"),
        "{message}"
    );
    // An API server may add fields, which are no reason to write it again.
    let mut stored = first.clone();
    stored[2]["started"] = false.into();
    tenant["status"]["ephemeralContainerStatuses"] = stored.clone().into();
    assert_eq!(statuses(&cache, &tenant, &of_host), stored);
    // No API server takes back that a container has ended.
    let ended = json!({"terminated": {"exitCode": 1}});
    tenant["status"]["ephemeralContainerStatuses"][2]["state"] = ended.clone();
    assert_eq!(statuses(&cache, &tenant, &of_host)[2]["state"], ended);
    // Anything else that somebody writes there is replaced.
    tenant["status"]["ephemeralContainerStatuses"][2]["state"] = json!({"running": {}});
    assert_eq!(statuses(&cache, &tenant, &of_host)[2]["state"], b["state"]);
    // What the host reports counts.
    let reported = json!([{"name": "b", "state": {"running": {}}}]);
    assert_eq!(statuses(&cache, &tenant, &reported)[0]["state"], json!({"running": {}}));
}

#[test]
fn statuses_of_containers_that_are_left_out_are_limited() {
    let cache = cache(SchedulingMode::Host, limited);
    let debug = |number: usize| json!({"name": format!("d{number}"), "image": "x".repeat(5000)});
    let with = |count: usize| {
        let containers: Vec<Value> = (0..count).map(debug).collect();
        statuses(
            &cache,
            &running(&json!({"ephemeralContainers": containers})),
            &json!([]),
        )
    };
    let some = with(250);
    assert_eq!(some.len(), 50);
    assert!(Value::from(some).to_string().len() < 100_000);
    assert!(with(251).is_empty(), "an Event says that there are too many");
}

#[test]
fn the_name_of_a_container_of_the_platform_is_taken() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let mut tenant =
        running(&json!({"ephemeralContainers": [{"name": "proxy", "image": "a"}, {"name": "debug", "image": "a"}]}));
    let mut host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"nodeName": "gpu-1"},
        "status": {"containerStatuses": [{"name": "main"}, {"name": "proxy"}]}});
    trim_host(&mut host);
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &tenant).unwrap();
    assert_eq!(names(&object), ["debug"], "the host takes it");
    assert_eq!(fields(&parts.left_out), ["spec.ephemeralContainers[0].name"]);
    tenant["spec"]["ephemeralContainers"][0]["name"] = "main".into();
    let shown = statuses(&cache, &tenant, &json!([]));
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0]["state"]["waiting"]["reason"], "FieldDenied");
}

/// The host would take it for the one that is there, and commands of the tenant would run in it.
#[test]
fn the_name_of_an_ephemeral_container_of_the_platform_is_taken() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let tenant = running(&json!({"ephemeralContainers": [{"name": "proxy", "image": "a"}]}));
    let mut host = json!({"metadata": {"name": "h", "resourceVersion": "1"},
        "spec": {"nodeName": "gpu-1", "ephemeralContainers": [{"name": "proxy", "image": "tools", "securityContext": {"privileged": true}}]},
        "status": {"phase": "Running", "ephemeralContainerStatuses": [{"name": "proxy", "image": "tools", "state": {"running": {}}}]}});
    trim_host(&mut host);
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &tenant).unwrap();
    assert!(names(&object).is_empty());
    assert_eq!(fields(&parts.left_out), ["spec.ephemeralContainers[0].name"]);
    let observation = Observation {
        tenant: &tenant,
        host: &host,
        in_sync: true,
        denied: &[],
        now: Timestamp::UNIX_EPOCH,
    };
    let writes = Pods.sync_status(&cache, &name(), &observation);
    let [TenantWrite::Status(status)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    let shown = json::items(status, &["ephemeralContainerStatuses"]);
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0]["state"]["waiting"]["reason"], "FieldDenied");
}

/// Otherwise nobody would reach it.
#[test]
fn every_ephemeral_container_that_the_syncer_adds_is_known_as_the_tenants() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let variables =
        ["KUBERNETES_SERVICE_HOST", own_containers::OF_TENANT].map(|name| json!({"name": name, "value": "own"}));
    let tenant = pod(&json!({"enableServiceLinks": false, "ephemeralContainers": [
        {"name": "plain", "image": "a"}, {"name": "with-variables", "image": "a", "env": variables}]}));
    let mut host = Pods.translate(&cache, &name(), &tenant).unwrap().object;
    trim_host(&mut host);
    let kept = json!([{"name": "plain"}, {"name": "with-variables"}]);
    assert_eq!(host["spec"]["ephemeralContainers"], kept);
}

#[test]
fn ephemeral_containers_make_a_pod_no_larger_than_it_may_be() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let debug = |name: &str, bytes: usize| json!({"name": name, "image": "a", "args": ["a".repeat(bytes)]});
    let spec = json!({"ephemeralContainers": [debug("a", 300 << 10), debug("b", 300 << 10), debug("c", 100 << 10)]});
    let translate = |pod: &Value| Pods.translate(&cache, &name(), pod).unwrap();
    // The pod does not wait for them.
    let new = translate(&pod(&spec));
    assert_eq!(names(&new.object), ["a", "c"]);
    assert_eq!(fields(&new.parts.left_out), ["spec.ephemeralContainers[1]"]);
    put_on_host(
        &cache,
        1,
        &json!({"nodeName": "gpu-1", "ephemeralContainers": [{"name": "b"}]}),
    );
    let placed = translate(&running(&spec));
    assert_eq!(
        names(&placed.object),
        ["b", "c"],
        "what is there counts, whatever the order"
    );
    assert_eq!(fields(&placed.parts.left_out), ["spec.ephemeralContainers[0]"]);
}

/// Each has the variables of the API server there, which are ten times as long as a small container.
#[test]
fn ephemeral_containers_are_measured_as_the_host_has_them_where_the_status_changes_often() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let probe = json!({"periodSeconds": 1, "failureThreshold": 1, "exec": {"command": ["true"]}});
    let many: Vec<Value> = (0..200)
        .map(|number| json!({"name": format!("d{number}"), "image": "a"}))
        .collect();
    let main = json!({"name": "main", "image": "a", "readinessProbe": probe});
    let tenant = pod(&json!({"containers": [main], "ephemeralContainers": many}));
    let Translated { object, parts, .. } = Pods.translate(&cache, &name(), &tenant).unwrap();
    let added = json::items(&object, &["spec", "ephemeralContainers"]);
    let bytes: usize = added.iter().map(count_bytes).sum();
    assert!((24 << 10..=32 << 10).contains(&bytes), "{bytes}");
    assert!(!parts.left_out.is_empty());
}

#[test]
fn ephemeral_containers_that_are_too_many_or_too_rich_keep_no_pod_from_the_host() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let translate = |containers: Vec<Value>| {
        let pod = pod(&json!({ "ephemeralContainers": containers }));
        Pods.translate_new(&cache, &name(), &pod).unwrap().parts.left_out
    };
    let debug = |name: String, mounts: usize| {
        let mounts: Vec<Value> = (0..mounts)
            .map(|number| json!({"name": "v", "mountPath": format!("/{number}")}))
            .collect();
        json!({"name": name, "image": "a", "volumeMounts": mounts})
    };
    let left_out = translate(vec![
        debug("a".into(), 1500),
        debug("b".into(), 501),
        debug("c".into(), 500),
    ]);
    assert_eq!(fields(&left_out), ["spec.ephemeralContainers[1]"]);
    assert!(
        left_out[0].why.contains("2001 of spec.containers[].volumeMounts"),
        "{left_out:?}"
    );
    let many = |count: usize| translate((0..count).map(|number| debug(format!("d{number}"), 0)).collect());
    assert!(many(250).is_empty());
    assert_eq!(fields(&many(251)), ["spec.ephemeralContainers"]);
}

#[test]
fn a_pod_does_not_wait_for_what_its_ephemeral_containers_name() {
    let cache = cache(SchedulingMode::Host, |_| ());
    let secret = |name: &str| json!({"secretRef": {"name": name}});
    for name in ["of-pod", "of-debug"] {
        let object = json!({"metadata": {"name": name, "resourceVersion": "1"}});
        let secrets = cache.stores.tenant(KindId::Secret);
        secrets.written(Name::new("research", name), Stored::new(&object));
    }
    let pod = pod(
        &json!({"containers": [{"name": "main", "image": "a", "envFrom": [secret("of-pod")]}],
        "ephemeralContainers": [{"name": "debug", "image": "a", "envFrom": [secret("of-debug")]}]}),
    );
    let needs = Pods.prerequisites(&cache, &name(), &pod);
    let needs: Vec<&str> = needs.iter().map(|key| &*key.name.name).collect();
    assert_eq!(needs, ["of-pod"]);
    assert_eq!(
        Pods.references(&cache, &name(), &pod).len(),
        2,
        "they are there when it is added"
    );
}
