//! Pods that start together or not at all. Labels of queues and schedulers stay in the tenant; what they say about a
//! pod's gang becomes annotations of the host pod, so that the platform assigns the nodes of a gang together.
//!
//! | the tenant's pod has | gang | size |
//! |---|---|---|
//! | annotation `scheduling.berth.dev/gang` | its value | annotation `scheduling.berth.dev/gang-size` |
//! | `spec.schedulingGroup.podGroupName` | the PodGroup of `scheduling.k8s.io` | its `minCount` |
//! | label `scheduling.x-k8s.io/pod-group`, or annotation `scheduling.k8s.io/group-name` | the PodGroup of `scheduling.x-k8s.io` or Volcano | its `minMember` |
//! | label `kueue.x-k8s.io/pod-group-name` | its value | annotation `kueue.x-k8s.io/pod-group-total-count` |
//! | label `leaderworkerset.sigs.k8s.io/group-key` | its value | annotation `leaderworkerset.sigs.k8s.io/size` |
//!
//! The annotation `scheduling.berth.dev/gang-topology: required` requests one topology domain, however the gang is
//! named. So do Kueue's `kueue.x-k8s.io/podset-required-topology` and LeaderWorkerSet's
//! `leaderworkerset.sigs.k8s.io/exclusive-topology`, and JobSet's `alpha.jobset.sigs.k8s.io/exclusive-topology` where
//! the gang is one job, except for the topology of single nodes. PodGroups count if the tenant's class lists their
//! kind.

use super::placement;
use crate::model::{
    Cache, KindId, json,
    resource::{Key, Name},
    store::Stored,
};
use berth_api::{SchedulingMode, labels};
use serde_json::{Map, Value};

/// More pods than any gang has.
const MOST: u64 = 10_000;

/// Kinds of groups: how a pod names one, the kind, and where it says how many must start together.
const GROUPS: &[(Named, &str, &[&str])] = &[
    (
        Named::Label("scheduling.x-k8s.io/pod-group"),
        "PodGroup.scheduling.x-k8s.io",
        &["spec", "minMember"],
    ),
    (
        Named::Annotation("scheduling.k8s.io/group-name"),
        "PodGroup.scheduling.volcano.sh",
        &["spec", "minMember"],
    ),
];

/// Field of `spec.schedulingGroup` with the name of a PodGroup of Kubernetes itself.
const POD_GROUP_NAME: &str = "podGroupName";
/// Where a PodGroup of Kubernetes itself says how many must start together.
const MIN_COUNT: &[&str] = &["spec", "schedulingPolicy", "gang", "minCount"];

/// Groups whose size is on the pod itself: the label with the name, the annotation with the size.
const SIZED: &[(&str, &str)] = &[
    ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    (
        "leaderworkerset.sigs.k8s.io/group-key",
        "leaderworkerset.sigs.k8s.io/size",
    ),
];

/// Annotations whose value is a topology label: all pods of the gang need one domain of it.
const ONE_DOMAIN: [&str; 2] = [
    "kueue.x-k8s.io/podset-required-topology",
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
];
/// The same for the pods of each job of a JobSet.
const ONE_DOMAIN_OF_JOB: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";
/// Annotation of a JobSet's pods: how many jobs there are in all.
const JOBS: &str = "jobset.sigs.k8s.io/global-replicas";
/// The topology of single nodes, which are no domains of a gang.
const HOST: &str = "kubernetes.io/hostname";

enum Named {
    Label(&'static str),
    Annotation(&'static str),
}

impl Named {
    /// The name of the group, if the pod has one.
    fn find<'a>(&self, pod: &'a Value) -> Option<&'a str> {
        match self {
            Self::Label(key) => label(pod, key),
            Self::Annotation(key) => annotation(pod, key),
        }
    }
}

/// The gang of a pod that the host's schedulers place, and how many pods of it start together.
pub fn membership(cache: &Cache, name: &Name, pod: &Value) -> Option<(String, u64)> {
    // Schedulers in the tenant know their gangs themselves.
    if placement::mode(cache, &pod["spec"]) == SchedulingMode::Tenant {
        return None;
    }
    gang(cache, name, pod).filter(|(_, size)| (1..=MOST).contains(size))
}

/// Annotations of the host pod that say which gang it belongs to.
pub(super) fn annotations(cache: &Cache, name: &Name, pod: &Value) -> Map<String, Value> {
    let Some((gang, size)) = membership(cache, name, pod) else {
        return Map::new();
    };
    let mut annotations = Map::new();
    annotations.insert(labels::GANG.into(), gang.into());
    annotations.insert(labels::GANG_SIZE.into(), size.to_string().into());
    if needs_one_domain(pod) {
        annotations.insert(labels::GANG_TOPOLOGY.into(), labels::GANG_TOPOLOGY_REQUIRED.into());
    }
    annotations
}

fn needs_one_domain(pod: &Value) -> bool {
    let of_nodes = |key: &&str| annotation(pod, key).is_some_and(|topology| topology != HOST);
    annotation(pod, labels::GANG_TOPOLOGY_OF_TENANT) == Some(labels::GANG_TOPOLOGY_REQUIRED)
        || ONE_DOMAIN.iter().any(of_nodes)
        || (of_nodes(&ONE_DOMAIN_OF_JOB) && annotation(pod, JOBS) == Some("1"))
}

fn gang(cache: &Cache, name: &Name, pod: &Value) -> Option<(String, u64)> {
    if let Some(gang) = annotation(pod, labels::GANG_OF_TENANT) {
        return Some((
            gang.to_owned(),
            annotation(pod, labels::GANG_SIZE_OF_TENANT)?.parse().ok()?,
        ));
    }
    if let Some(group) = json::filled(pod, &["spec", "schedulingGroup", POD_GROUP_NAME]) {
        return Some((
            group.to_owned(),
            size_of(cache, name, super::scheduling::POD_GROUP, group, MIN_COUNT)?,
        ));
    }
    for (named, kind, path) in GROUPS {
        let group = named.find(pod);
        if let Some((group, size)) = group.and_then(|group| Some((group, size_of(cache, name, kind, group, path)?))) {
            return Some((group.to_owned(), size));
        }
    }
    SIZED
        .iter()
        .find_map(|(group, size)| Some((label(pod, group)?.to_owned(), annotation(pod, size)?.parse().ok()?)))
}

/// The groups that a pod names, whatever their kind: its gang may depend on their objects.
pub fn named_groups(pod: &Value) -> impl Iterator<Item = &str> {
    let of_kubernetes = json::filled(pod, &["spec", "schedulingGroup", POD_GROUP_NAME]);
    let others = GROUPS.iter().filter_map(move |(named, ..)| named.find(pod));
    of_kubernetes.into_iter().chain(others)
}

/// Whether a pod may belong to a gang: far cheaper than to find out.
pub fn may_have_one(pod: &Stored) -> bool {
    let of_groups = GROUPS
        .iter()
        .map(|(Named::Label(key) | Named::Annotation(key), ..)| *key);
    let mut keys = of_groups
        .chain(SIZED.iter().map(|(key, _)| *key))
        .chain([labels::GANG_OF_TENANT, POD_GROUP_NAME]);
    keys.any(|key| pod.mentions(key))
}

/// The kinds of groups that are synced for this tenant.
pub fn groups(cache: &Cache) -> Vec<KindId> {
    sized_kinds()
        .filter_map(|(kind, _)| cache.find_kind_by_name(kind))
        .collect()
}

/// How many pods of a group must start together, as its object in the tenant says.
pub fn size_of_group(cache: &Cache, group: &Key) -> Option<u64> {
    let (_, path) = sized_kinds().find(|(kind, _)| cache.find_kind_by_name(kind) == Some(group.kind))?;
    json::at(&cache.stores.tenant(group.kind).get(&group.name)?.object(), path)?.as_u64()
}

/// The kinds of groups, and where they say how many pods must start together.
fn sized_kinds() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let own = (super::scheduling::POD_GROUP, MIN_COUNT);
    GROUPS.iter().map(|(_, kind, path)| (*kind, *path)).chain([own])
}

/// How many pods of a group must start together, as the group's object in the tenant says.
fn size_of(cache: &Cache, name: &Name, kind: &str, group: &str, path: &[&str]) -> Option<u64> {
    let kind = cache.find_kind_by_name(kind)?;
    let object = cache
        .stores
        .tenant(kind)
        .get(&Name::new(&name.namespace, group))?
        .object();
    json::at(&object, path)?.as_u64()
}

fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    json::filled(pod, &["metadata", "labels", key])
}

fn annotation<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    json::filled(pod, &["metadata", "annotations", key])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use serde_json::json;

    fn found(pod: &Value) -> Map<String, Value> {
        annotations(&registry::new_cache(test_tenant()), &Name::new("ml", "a"), pod)
    }

    #[test]
    fn a_gang_by_annotations() {
        let pod = json!({"metadata": {"annotations": {
            "scheduling.berth.dev/gang": "train", "scheduling.berth.dev/gang-size": "8",
            "scheduling.berth.dev/gang-topology": "required",
        }}});
        let expected =
            json!({"berth.dev/gang": "train", "berth.dev/gang-size": "8", "berth.dev/gang-topology": "required"});
        assert_eq!(Value::Object(found(&pod)), expected);
    }

    #[test]
    fn groups_whose_size_is_on_the_pod() {
        for (group, size) in SIZED {
            let pod = json!({"metadata": {"labels": {*group: "g"}, "annotations": {*size: "4"}}});
            assert_eq!(found(&pod)["berth.dev/gang-size"], "4", "{group}");
        }
    }

    #[test]
    fn a_pod_that_names_no_group_needs_no_closer_look() {
        let may_have_one = |pod: &Value| may_have_one(&Stored::new(pod));
        assert!(!may_have_one(
            &json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}})
        ));
        assert!(may_have_one(
            &json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}})
        ));
        for (group, _) in SIZED {
            assert!(may_have_one(&json!({"metadata": {"labels": {*group: "g"}}})), "{group}");
        }
        for (named, ..) in GROUPS {
            let metadata = match named {
                Named::Label(key) => json!({"labels": {*key: "g"}}),
                Named::Annotation(key) => json!({"annotations": {*key: "g"}}),
            };
            assert!(may_have_one(&json!({ "metadata": metadata })), "{metadata}");
        }
        let own = json!({"metadata": {"annotations": {"scheduling.berth.dev/gang": "train"}}});
        assert!(may_have_one(&own));
    }

    #[test]
    fn topologies_of_other_systems() {
        let one_domain = |more: &[(&str, &str)]| {
            let mut pod = json!({"metadata": {"annotations": {
                "scheduling.berth.dev/gang": "train", "scheduling.berth.dev/gang-size": "8",
            }}});
            for (key, value) in more {
                pod["metadata"]["annotations"][key] = (*value).into();
            }
            found(&pod).contains_key("berth.dev/gang-topology")
        };
        for key in ONE_DOMAIN {
            assert!(one_domain(&[(key, "topology.example.com/rack")]), "{key}");
            assert!(!one_domain(&[(key, HOST)]), "{key}");
        }
        let rack = (ONE_DOMAIN_OF_JOB, "topology.example.com/rack");
        assert!(one_domain(&[rack, (JOBS, "1")]));
        assert!(!one_domain(&[rack, (JOBS, "4")]), "each of the jobs has its own");
    }

    #[test]
    fn pods_without_a_valid_size_form_no_gang() {
        for size in ["", "0", "many", "-1", "99999999"] {
            let pod = json!({"metadata": {"annotations": {
                "scheduling.berth.dev/gang": "train", "scheduling.berth.dev/gang-size": size,
            }}});
            assert!(found(&pod).is_empty(), "{size:?}");
        }
        // No API server serves PodGroups here.
        assert!(found(&json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}})).is_empty());
        assert!(found(&json!({"metadata": {"labels": {"app": "a"}}})).is_empty());
    }
}
