use super::*;
use berth_api::pod_labels;

fn host(image: &str, cpu: &str) -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {
        "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}, "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "k"}]
    }})
}

#[test]
fn updates_remove_only_what_came_from_the_tenant() {
    let mut old = host("old", "1");
    old["metadata"]["labels"] = json!({"app": "a", "kept": "k"});
    let mut live = old.clone();
    live["metadata"]["annotations"] = json!({labels::APPLIED_KEYS: applied_keys(&old), "sidecar": "injected"});
    live["metadata"]["labels"]["injected"] = "by-webhook".into();
    live["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "injected", "image": "sidecar"}));
    live["spec"]["tolerations"]
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "host-added"}));
    live["spec"]["schedulingGates"] = json!([{"name": "kueue"}]);
    let mut desired = host("new", "1");
    desired["metadata"]["labels"] = json!({"kept": "k", "new": "n"});
    desired["metadata"]["annotations"] = json!({labels::APPLIED_KEYS: applied_keys(&desired)});
    desired["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "changed later"}]);
    desired["spec"]["tolerations"] = json!([{"key": "more"}]);
    let writes = update(&desired, &live);
    let [HostWrite::Merge(patch)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    insta::assert_yaml_snapshot!(patch);
}

/// The admission plugin `ExtendedResourceToleration` of the host adds it to pods that ask for GPUs. Some providers turn it on.
#[test]
fn a_toleration_that_the_host_adds_for_an_extended_resource_stays() {
    let desired = host("image", "1");
    let mut live = desired.clone();
    let added = json!({"key": "nvidia.com/gpu", "operator": "Exists"});
    live["spec"]["tolerations"].as_array_mut().unwrap().push(added.clone());
    let written = |desired: &Value| match update(desired, &live).as_slice() {
        [HostWrite::Merge(patch)] => patch["spec"]["tolerations"].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(written(&desired), Value::Null);
    let mut more = desired.clone();
    let own = json!({"key": "more", "operator": "Exists"});
    more["spec"]["tolerations"].as_array_mut().unwrap().push(own.clone());
    assert_eq!(written(&more), json!([{"key": "k"}, added, own]));
}

fn open(pod: &mut Value) {
    for key in [labels::NETWORK_EGRESS, labels::NETWORK_INGRESS] {
        pod["metadata"]["labels"][key] = labels::NETWORK_OPEN.into();
    }
    pod["metadata"]["labels"][pod_labels::host_key("app")] = "a".into();
    pod["metadata"]["annotations"] = json!({labels::APPLIED_HASH: "h", "downward.berth.dev/x": "a=b"});
    pod["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(pod).into();
}

#[test]
fn what_closes_a_pod_does_not_wait_for_a_resize() {
    let mut live = host("image", "1");
    open(&mut live);
    let mut desired = host("image", "2");
    open(&mut desired);
    assert!(matches!(
        update(&desired, &live).as_slice(),
        [HostWrite::Patch {
            subresource: "resize",
            ..
        }]
    ));
    let closed = desired["metadata"]["labels"].as_object_mut().unwrap();
    closed.remove(labels::NETWORK_EGRESS);
    desired["metadata"]["annotations"][labels::APPLIED_HASH] = "other".into();
    desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
    let writes = update(&desired, &live);
    let [
        HostWrite::Patch { subresource: "", patch },
        HostWrite::Patch {
            subresource: "resize", ..
        },
    ] = writes.as_slice()
    else {
        panic!("{writes:?}")
    };
    assert_eq!(patch["metadata"]["labels"], json!({labels::NETWORK_EGRESS: null}));
    let annotations: Vec<&String> = patch["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(
        annotations,
        [labels::APPLIED_KEYS],
        "the hash is written when all is done"
    );
}

#[test]
fn what_closes_a_pod_can_be_written_alone() {
    let mut live = host("image", "1");
    live["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "db-0".into();
    open(&mut live);
    let mut desired = live.clone();
    assert_eq!(closing_patch(&desired, &live), None);
    desired["metadata"]["labels"] = json!({"listed": "l", labels::NETWORK_DNS: labels::NETWORK_OPEN, labels::NETWORK_INGRESS: labels::NETWORK_OPEN});
    desired["metadata"]["labels"][pod_labels::host_key("tier")] = "t".into();
    desired["metadata"]["annotations"] = json!({"note": "long"});
    desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
    let patch = closing_patch(&desired, &live).unwrap();
    let expected = json!({labels::NETWORK_EGRESS: null, "statefulset.kubernetes.io/pod-name": null,
        (pod_labels::host_key("app")): null, (pod_labels::host_key("tier")): "t"});
    assert_eq!(patch, json!({"metadata": {"labels": expected}}));
}

/// By a stolen credential, which can leave everything on record as it was.
#[test]
fn labels_that_open_a_pod_and_were_set_by_somebody_else_are_removed() {
    let desired = {
        let mut pod = host("image", "1");
        pod["metadata"]["annotations"] = json!({labels::APPLIED_HASH: "h"});
        pod["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&pod).into();
        pod
    };
    let of_namespace = format!("{}team-x", labels::NAMESPACE_LABELS);
    let mut live = desired.clone();
    let foreign = [
        labels::NETWORK_EGRESS,
        labels::NETWORK_API_SERVER,
        of_namespace.as_str(),
    ];
    for key in foreign.into_iter().chain(["injected"]) {
        live["metadata"]["labels"][key] = labels::NETWORK_OPEN.into();
    }
    let mut removed = json!({});
    for key in foreign {
        removed[key] = Value::Null;
    }
    let writes = update(&desired, &live);
    let [HostWrite::Merge(patch)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    assert_eq!(patch["metadata"]["labels"], removed);
    assert_eq!(closing_patch(&desired, &live).unwrap()["metadata"]["labels"], removed);
    let isolating = isolating_patch(&desired, &live).unwrap();
    assert_eq!(
        isolating["metadata"]["labels"],
        json!({labels::NETWORK_EGRESS: null, labels::NETWORK_API_SERVER: null})
    );
}

#[test]
fn annotations_that_are_no_longer_allowed_go_alone() {
    let mut live = host("image", "1");
    live["metadata"]["annotations"] = json!({"example.com/order": "o", "example.com/kept": "k"});
    live["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&live).into();
    live["metadata"]["annotations"]["sidecar"] = "injected".into();
    let mut desired = live.clone();
    desired["metadata"]["annotations"] = json!({"example.com/kept": "longer", "example.com/more": "m"});
    desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
    let patch = closing_patch(&desired, &live).unwrap();
    assert_eq!(patch, json!({"metadata": {"annotations": {"example.com/order": null}}}));
    live["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("example.com/order");
    assert_eq!(closing_patch(&desired, &live), None, "once, whatever is on record");
}

#[test]
fn values_of_the_downward_api_stay_while_they_are_left_out() {
    let mut live = host("image", "1");
    open(&mut live);
    let mut desired = live.clone();
    desired["metadata"]["annotations"] = json!({});
    desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
    let changes = changed_entries(&desired, &live, "annotations").unwrap();
    assert!(
        !changes.keys().any(|key| key.starts_with(labels::DOWNWARD_FIELDS)),
        "{changes:?}"
    );
}

#[test]
fn resources_and_ephemeral_containers_go_through_their_subresources_first() {
    let live = host("image", "1");
    let mut desired = host("image", "2");
    desired["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    let subresources: Vec<_> = update(&desired, &live)
        .into_iter()
        .map(|write| match write {
            HostWrite::Patch { subresource, .. } => subresource,
            HostWrite::Apply(_) | HostWrite::Merge(_) => "",
        })
        .collect();
    assert_eq!(subresources, ["resize", "ephemeralcontainers"]);
}

#[test]
fn an_ephemeral_container_that_the_host_refuses_keeps_few_others_from_it() {
    let live = host("image", "1");
    let in_patches = |count: usize| -> Vec<usize> {
        let mut desired = live.clone();
        let containers = (0..count).map(|number| json!({"name": format!("d{number}")}));
        desired["spec"]["ephemeralContainers"] = containers.collect();
        let writes = update(&desired, &live).into_iter();
        let patches = writes.filter_map(|write| match write {
            HostWrite::Patch { patch, .. } => Some(patch),
            HostWrite::Apply(_) | HostWrite::Merge(_) => None,
        });
        patches
            .map(|patch| json::items(&patch, &["spec", "ephemeralContainers"]).len())
            .collect()
    };
    assert!(in_patches(0).is_empty());
    assert_eq!(in_patches(3), [1, 1, 1]);
    assert_eq!(in_patches(9), [2, 2, 2, 2, 1]);
    let most = in_patches(250);
    assert_eq!((most.len(), most.iter().sum::<usize>()), (8, 250));
}

#[test]
fn the_hash_covers_mutable_fields_only() {
    let hash = |pod: &Value| json::hash(&mutable_part(pod));
    let mut other = host("a", "1");
    other["spec"]["containers"][0]["env"] = json!([]);
    assert_eq!(hash(&host("a", "1")), hash(&other));
    assert_ne!(hash(&host("a", "1")), hash(&host("b", "1")));
    assert_ne!(hash(&host("a", "1")), hash(&host("a", "2")));
}
