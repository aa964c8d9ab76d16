use super::*;
use crate::testing::{LATE, Script, ScriptedApi, make_unreadable};
use berth_node_lifecycle::nvidia_labels::{DEVICE_PLUGIN_CONFIG, MIG_CONFIG};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/berth-system/deployments/berth-control";
const AUTHORITY: &str = "/api/v1/namespaces/berth-system/secrets/berth-etcd-ca";

/// A host with the authority of the datastore, and with control if its metadata is given.
fn host(control: Option<Value>) -> ScriptedApi {
    let host = ScriptedApi::new("host", &Script::default());
    host.insert(AUTHORITY, json!({"metadata": {"name": "berth-etcd-ca"}}));
    if let Some(metadata) = control {
        host.insert(DEPLOYMENT, json!({"metadata": metadata, "spec": {}}));
    }
    host
}

/// `helm template | kubectl apply` runs the hooks of the chart as well.
#[tokio::test]
async fn nothing_is_deleted_while_control_is_installed() {
    let host = host(Some(json!({"name": "berth-control"})));
    let refusal = delete_unlisted_objects(&host.client(), Keep::default())
        .await
        .unwrap_err();
    assert!(refusal.to_string().contains("--no-hooks"), "{refusal}");
    assert!(host.get(AUTHORITY).is_some());
}

#[tokio::test]
async fn without_control_or_once_it_is_being_deleted_its_objects_are_deleted() {
    let deleted = json!({"name": "berth-control", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    for control in [None, Some(deleted)] {
        let host = host(control);
        delete_unlisted_objects(&host.client(), Keep::default()).await.unwrap();
        assert!(host.get(AUTHORITY).is_none());
    }
}

#[tokio::test]
async fn keys_are_kept_if_the_volumes_are() {
    let host = host(None);
    let keep = Keep {
        keys: true,
        ..Keep::default()
    };
    delete_unlisted_objects(&host.client(), keep).await.unwrap();
    assert!(host.get(AUTHORITY).is_some());
}

#[tokio::test]
async fn risks_that_were_found_do_not_stay_on_nodes() {
    let host = host(None);
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    for (name, annotations) in [
        ("risky", json!({labels::NODE_RISKS: "criu", "example.com/rack": "r1"})),
        ("new", json!({"example.com/rack": "r2"})),
    ] {
        host.insert(
            &path(name),
            json!({"metadata": {"name": name, "annotations": annotations}}),
        );
    }
    remove_node_risks(&host.client()).await.unwrap();
    let annotations = |name: &str| host.get(&path(name)).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations("risky"), json!({"example.com/rack": "r1"}));
    assert_eq!(annotations("new"), json!({"example.com/rack": "r2"}));
}

#[tokio::test]
async fn nodes_get_back_the_labels_of_nvidias_software_that_they_had() {
    let host = host(None);
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    let cases = [
        ("without", "four", Some("four="), None),
        ("with", "four", Some("four=default"), Some("default")),
        ("changed-meanwhile", "own", Some("four="), Some("own")),
        ("of-the-platform", "four", None, Some("four")),
    ];
    for (name, label, annotation, _) in cases {
        let metadata = json!({
            "name": name, "labels": {DEVICE_PLUGIN_CONFIG: label, MIG_CONFIG: "all-disabled", "example.com/rack": "r1"},
            "annotations": {
                labels::CHANGED_DEVICE_PLUGIN_CONFIG: annotation.unwrap_or_default(), labels::CHANGED_MIG_CONFIG: "all-disabled=all-balanced",
            },
        });
        let mut node = json!({ "metadata": metadata });
        if annotation.is_none() {
            node["metadata"]["annotations"] = json!({labels::CHANGED_MIG_CONFIG: "all-disabled=all-balanced"});
        }
        host.insert(&path(name), node);
    }
    restore_nvidia_labels(&host.client()).await.unwrap();
    for (name, .., expected) in cases {
        let metadata = host.get(&path(name)).unwrap()["metadata"].clone();
        assert_eq!(metadata["labels"][DEVICE_PLUGIN_CONFIG], json!(expected), "{name}");
        assert_eq!(metadata["labels"][MIG_CONFIG], "all-balanced", "{name}");
        assert_eq!(metadata["labels"]["example.com/rack"], "r1", "{name}");
        assert_eq!(metadata["annotations"], json!({}), "{name}");
    }
}

#[tokio::test]
async fn without_the_definitions_no_node_says_that_tenants_share_it() {
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    let assigned = json!({"berth.dev/state": "Scrubbing", labels::POOL: "h100"});
    let was_shared =
        json!({labels::PREVIOUS_SHARED_POOL: "cpu", labels::SHARED_UNTIL: "2026-01-01T00:00:00Z", labels::REASON: "r"});
    for classes in [true, false] {
        let host = host(None);
        for (name, labels, annotations) in [
            (
                "shared",
                json!({labels::SHARED_POOL: "cpu", labels::POOL: "cpu", "cpu": "yes"}),
                json!({}),
            ),
            ("left", json!({"cpu": "no"}), was_shared.clone()),
            ("assigned", assigned.clone(), was_shared.clone()),
        ] {
            let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
            host.insert(&path(name), json!({"metadata": metadata}));
        }
        let keep = Keep {
            classes,
            ..Keep::default()
        };
        delete_unlisted_objects(&host.client(), keep).await.unwrap();
        let metadata = |name: &str| host.get(&path(name)).unwrap()["metadata"].clone();
        let is_marked = !metadata("shared")["labels"][labels::SHARED_POOL].is_null();
        assert_eq!(
            is_marked, classes,
            "a later installation goes on with the pools that are kept"
        );
        if !classes {
            assert_eq!(metadata("shared")["labels"], json!({"cpu": "yes"}));
            assert_eq!(metadata("left")["annotations"], json!({}));
        }
        assert_eq!(metadata("left")["labels"], json!({"cpu": "no"}));
        assert_eq!(metadata("assigned")["labels"], assigned);
        assert_eq!(metadata("assigned")["annotations"], was_shared);
    }
}

#[test]
fn without_remaining_objects_there_is_no_message() {
    assert_eq!(RemainingObjects::default().error_message(), None);
}

#[test]
fn the_message_lists_remaining_objects_up_to_a_limit() {
    let remaining = RemainingObjects {
        tenants: (0..12).map(|n| format!("team/t{n}")).collect(),
        nodes: vec!["gpu-1 (Scrubbing)".into()],
        ..RemainingObjects::default()
    };
    let text = remaining.error_message().unwrap();
    assert!(text.contains("12 TenantClusters: team/t0,"), "{text}");
    assert!(
        text.contains("team/t9 and 2 more; 1 nodes that are not free (state): gpu-1 (Scrubbing)."),
        "{text}"
    );
    assert!(text.contains("every node is clean and free"), "{text}");
    assert!(!text.contains("namespaces of tenants"), "{text}");
}

#[tokio::test]
async fn nodes_with_any_part_of_an_assignment_are_named_with_their_state() {
    let host = host(None);
    let taint = |key: &str| json!({"taints": [{"key": key, "value": "recycling", "effect": "NoExecute"}]});
    for (name, labels, annotations, spec) in [
        (
            "both",
            json!({labels::NODE_STATE: "a", labels::TENANT: "t"}),
            json!({labels::NODE_STATE: "Draining"}),
            json!({}),
        ),
        ("label", json!({labels::NODE_STATE: "Scrubbing"}), json!({}), json!({})),
        ("tenant", json!({labels::TENANT: "t"}), json!({}), json!({})),
        ("owner", json!({}), json!({labels::OWNER_UID: "u"}), json!({})),
        ("taint", json!({}), json!({}), taint(labels::TENANT)),
        (
            "cordon",
            json!({}),
            json!({labels::CORDON: "berth"}),
            json!({"unschedulable": true}),
        ),
        (
            "free",
            json!({"example.com/rack": "r1"}),
            json!({labels::NODE_RISKS: "criu"}),
            taint("example.com/maintenance"),
        ),
        (
            "cordoned-by-people",
            json!({}),
            json!({labels::CORDON: "people"}),
            json!({"unschedulable": true}),
        ),
    ] {
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        let mut node = json!({"metadata": metadata, "spec": spec});
        // A user who is root on a node can write its managed fields.
        make_unreadable(&mut node);
        host.insert(&format!("/api/v1/nodes/{name}"), node);
    }
    // What clients correct is read. Nothing that API servers store today is of another type.
    let late = json!({"name": "late", "deletionTimestamp": LATE});
    host.insert("/api/v1/nodes/late", json!({"metadata": late}));
    let odd = json!({"name": "unreadable", "annotations": "none"});
    host.insert("/api/v1/nodes/unreadable", json!({"metadata": odd}));
    let remaining = find_remaining_objects(&host.client()).await.unwrap();
    let expected = "both (Draining), cordon (unknown), label (Scrubbing), owner (unknown), taint (unknown), tenant (unknown), \
                    unreadable (unknown)";
    assert_eq!(remaining.nodes.join(", "), expected);
}

#[tokio::test]
async fn snapshots_that_only_control_can_let_go_are_named() {
    let host = host(None);
    let snapshot = |name: &str, finalizers: &[&str]| {
        // All namespaces are one collection.
        let path = format!("/apis/berth.dev/v1alpha1/tenantsnapshots/{name}");
        host.insert(
            &path,
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
                "metadata": {"name": name, "namespace": "team", "finalizers": finalizers},
                "spec": {"tenantClusterName": "vision"}}),
        );
    };
    snapshot("nightly", &[labels::SNAPSHOT_FINALIZER]);
    snapshot("kept", &[]);
    let remaining = find_remaining_objects(&host.client()).await.unwrap();
    let expected = RemainingObjects {
        snapshots: vec!["team/nightly".into()],
        ..RemainingObjects::default()
    };
    assert_eq!(remaining, expected);
    let text = remaining.error_message().unwrap();
    assert!(
        text.contains("1 TenantSnapshots: team/nightly.")
            && text.contains("kubectl delete tenantsnapshots --all --all-namespaces")
            && text.contains(labels::SNAPSHOT_FINALIZER),
        "{text}"
    );
}
