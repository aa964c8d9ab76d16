//! What installers other than Helm itself make of the chart, what a host admits, and values that a file names and leaves empty.

use crate::render::{find, named, template};
use berth_control::runtime::cluster::ClusterSettings;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The document with this kind and name.
fn existing<'a>(all: &'a [Value], name: &str) -> &'a Value {
    find(all, name).unwrap_or_else(|| panic!("{name} is missing"))
}

/// The Job that makes the certificates of etcd.
async fn certificates_job(values: &Value) -> Value {
    let all = template(values).await.unwrap();
    let mut jobs = all.into_iter().filter(|document| document["kind"] == "Job");
    let is_hook = |job: &Value| !job["metadata"]["annotations"]["helm.sh/hook"].is_null();
    jobs.find(|job| !is_hook(job)).unwrap()
}

/// For Argo CD and `kubectl apply` every rendering is the first revision, and the template of a Job cannot change.
#[tokio::test]
async fn jobs_of_one_revision_with_different_pods_have_different_names() {
    let before = certificates_job(&json!({})).await;
    let same = certificates_job(&json!({"control": {"replicas": 1}})).await;
    assert_eq!(before, same);
    for values in [
        json!({"control": {"image": {"tag": "v9"}}}),
        json!({"control": {"nodeSelector": {"a": "b"}}}),
        json!({"imagePullSecrets": ["registry"]}),
    ] {
        let after = certificates_job(&values).await;
        assert_ne!(before["spec"]["template"], after["spec"]["template"]);
        assert_ne!(named(&before), named(&after));
    }
}

/// Some hosts admit pods with these PriorityClasses only beside a quota for them.
#[tokio::test]
async fn there_is_a_quota_for_the_priority_classes_of_kubernetes() {
    let gateway = json!({"enabled": true, "domain": "example.com"});
    let all = template(&json!({"gateway": gateway})).await.unwrap();
    let classes = all.iter().filter_map(|document| {
        let class = document.pointer("/spec/template/spec/priorityClassName")?;
        Some((named(document), class.as_str()?))
    });
    let classes: Vec<(String, &str)> = classes.filter(|(_, class)| class.starts_with("system-")).collect();
    assert_eq!(classes.len(), 3, "control, etcd and the gateway: {classes:?}");
    let quota = &existing(&all, "ResourceQuota/berth-critical-pods")["spec"];
    let scope = &quota["scopeSelector"]["matchExpressions"][0];
    assert_eq!(scope["scopeName"], "PriorityClass");
    let covered = scope["values"].as_array().unwrap();
    for (name, class) in classes {
        assert!(covered.contains(&class.into()), "{name}");
    }
}

/// What control reads of these values.
async fn settings(values: &Value) -> ClusterSettings {
    let all = template(values).await.unwrap();
    let settings = &existing(&all, "ConfigMap/berth-control")["data"]["settings.json"];
    serde_json::from_str(settings.as_str().unwrap()).unwrap()
}

/// A key without a value, as in `nodeSelector:`, is null. Control would not start with a null, and an upgrade would hang.
#[tokio::test]
async fn control_reads_settings_of_values_that_are_left_empty() {
    let empty = json!({"imagePullSecrets": null, "tenants": {"versions": null, "imagePullPolicy": null,
        "imageDigests": null, "priorityClassName": null, "nodeSelector": null, "tolerations": null, "resources": null}});
    assert_eq!(settings(&empty).await, settings(&json!({})).await);
}

/// Zero members would end the only one that there is.
#[tokio::test]
async fn a_number_of_members_that_is_left_empty_is_one() {
    let etcd = async |values: &Value| {
        let all = template(values).await.unwrap();
        existing(&all, "StatefulSet/berth-etcd").clone()
    };
    let empty = etcd(&json!({"datastore": {"etcd": {"members": null}}})).await;
    assert_eq!(empty["spec"]["replicas"], 1);
    assert_eq!(empty, etcd(&json!({})).await);
}

/// With the default of a second, a server under load is killed, or taken out of its Service: then nobody reaches it at all.
#[tokio::test]
async fn servers_that_are_only_slow_are_alive_and_ready() {
    let gateway = json!({"enabled": true, "domain": "example.com"});
    let all = template(&json!({"gateway": gateway})).await.unwrap();
    for (name, seconds) in [
        ("StatefulSet/berth-etcd", 15),
        ("Deployment/berth-control", 5),
        ("Deployment/berth-gateway", 5),
    ] {
        let container = &existing(&all, name)["spec"]["template"]["spec"]["containers"][0];
        let probes = ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]);
        let probes = probes.into_iter().filter(|probe| !probe.is_null());
        let timeouts: Vec<&Value> = probes.map(|probe| &probe["timeoutSeconds"]).collect();
        assert!(timeouts.len() >= 2, "{name}");
        assert!(
            timeouts.iter().all(|timeout| **timeout == seconds),
            "{name}: {timeouts:?}"
        );
    }
}

/// A zone that fails takes no majority of etcd with it, where there are enough zones.
#[tokio::test]
async fn replicas_are_spread_over_zones() {
    let all = template(&json!({"datastore": {"etcd": {"members": 3}}})).await.unwrap();
    for name in ["Deployment/berth-control", "StatefulSet/berth-etcd"] {
        let spec = &existing(&all, name)["spec"]["template"];
        let spread = &spec["spec"]["topologySpreadConstraints"][0];
        assert_eq!(spread["topologyKey"], "topology.kubernetes.io/zone", "{name}");
        // They select the pods themselves.
        let selected = spread["labelSelector"]["matchLabels"].as_object().unwrap();
        let labels = &spec["metadata"]["labels"];
        assert!(selected.iter().all(|(key, value)| labels[key] == *value), "{name}");
    }
}

/// Jobs of the image of control would keep an uninstallation waiting if that image cannot be had.
#[tokio::test]
async fn a_forced_uninstallation_runs_nothing() {
    let hooks = async |force: bool| {
        let all = template(&json!({"uninstall": {"force": force}})).await.unwrap();
        let hooks = all
            .iter()
            .map(|document| &document["metadata"]["annotations"]["helm.sh/hook"]);
        let hooks = hooks.filter_map(|hook| Some(hook.as_str()?.to_owned()));
        hooks.collect::<BTreeSet<String>>()
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
    assert_eq!(hooks(false).await, names(&["post-delete", "pre-delete", "test"]));
    assert_eq!(hooks(true).await, names(&["test"]));
}

/// The rights of the Job that deletes what no template lists: it sees whether control is still there.
#[tokio::test]
async fn the_job_that_cleans_up_sees_whether_control_is_installed() {
    let all = template(&json!({})).await.unwrap();
    let rules = existing(&all, "Role/berth-clean-up")["rules"].as_array().unwrap();
    let reads = json!({"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["berth-control"], "verbs": ["get"]});
    assert!(rules.contains(&reads), "{rules:?}");
    let kinds: BTreeSet<&str> = all
        .iter()
        .filter(|document| document["metadata"]["annotations"]["helm.sh/hook"] == "post-delete")
        .filter_map(|document| document["kind"].as_str())
        .collect();
    assert!(kinds.contains("Job") && !kinds.contains("Deployment"), "{kinds:?}");
}

/// Nodes are changed only if the pools are deleted with their definitions.
#[tokio::test]
async fn the_job_that_cleans_up_may_change_nodes_only_if_the_definitions_are_deleted() {
    for keep in [true, false] {
        let all = template(&json!({"crds": {"keep": keep}})).await.unwrap();
        let rules = existing(&all, "ClusterRole/berth-clean-up")["rules"]
            .as_array()
            .unwrap();
        let of_nodes = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]});
        assert_eq!(rules.contains(&of_nodes), !keep, "{rules:?}");
    }
}

/// The rights to delete every PriorityClass do not outlast a Job that fails. Helm deletes what has succeeded before it, Argo CD what is deleted after a
/// failure. The Job itself stays, with its log.
#[tokio::test]
async fn the_rights_to_clean_up_go_also_if_the_job_fails() {
    let all = template(&json!({})).await.unwrap();
    let annotation = |document: &Value, key: &str| {
        let annotation = document["metadata"]["annotations"][key].as_str();
        annotation.unwrap_or_default().to_owned()
    };
    let of_job = |key: &str| annotation(existing(&all, "Job/berth-clean-up"), key);
    let weight = |text: String| text.parse::<i32>().unwrap();
    let kinds = [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
    ];
    for kind in kinds {
        let document = existing(&all, &format!("{kind}/berth-clean-up"));
        let policies = annotation(document, "helm.sh/hook-delete-policy");
        for policy in ["hook-succeeded", "hook-failed"] {
            assert!(policies.split(',').any(|one| one == policy), "{kind}: {policies}");
        }
        let is_before = weight(annotation(document, "helm.sh/hook-weight")) < weight(of_job("helm.sh/hook-weight"));
        assert!(is_before, "{kind} is created before the Job");
    }
    assert!(!of_job("helm.sh/hook-delete-policy").contains("hook-failed"));
}
