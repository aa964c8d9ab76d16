//! Nodes that the tenant shares with others: which pods may also run there, and how.
//!
//! | part | rule |
//! |---|---|
//! | who may | pods without devices (extended resources, claims, a GPU runtime class) and without capabilities beyond `baseline`, if the tenant has shared pools and the host's scheduler places its pods |
//! | nodeSelector, affinity | the tenant's own nodes or those of its shared pools, in every term; otherwise the own nodes only |
//! | imagePullPolicy | `Always`, so that no tenant uses an image that another tenant has pulled; pods that say `Never` stay on own nodes |
//! | hostUsers | `false`, if the class requires that; pods that say `true` stay on own nodes |
//! | seccompProfile | `RuntimeDefault` if the pod names none, whatever the class says; Windows pods stay on own nodes |
//! | capabilities | every container drops `NET_RAW`, with which it could send packets as another tenant's pod |
//! | priority | as elsewhere, but such pods never preempt: the victims could be others'. New pods of a PodGroup that preempts stay on own nodes |
//!
//! A pod that exists on the host keeps what it was created with, even if the tenant's pools or the rules of its class change, and whatever ephemeral
//! containers it gets: these follow the rules of its nodes. Without its label the host would refuse every change of it, also what closes it.

use super::{
    placement,
    scheduling::{NODE_TERMS, group_preempts, priority_class},
    security,
    tables::CONTAINERS,
};
use crate::model::{Cache, KindId, json, resource::Name};
use berth_api::{SchedulingMode, labels, sync_policy::SharedNodesPolicy};
use serde_json::{Map, Value, json};

/// Parts of names of RuntimeClasses that bring GPUs into containers.
pub const GPU_RUNTIMES: &[&str] = &["nvidia", "amd", "habana", "gpu"];

/// Lets a host pod, whose spec is otherwise complete, run on nodes of shared pools. Returns the pools that it may use.
pub fn open(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>) -> Vec<String> {
    let rules = &cache.tenant.policy.shared_nodes;
    let pools = pools(cache, name, rules);
    let is_new = !cache.stores.host(KindId::Pod).contains(name);
    let stays_on_own_nodes = || {
        placement::mode(cache, source) != SchedulingMode::Host
            || !may_share(source, spec, rules)
            || group_preempts(cache, name, source) == Some(true)
    };
    if pools.is_empty() || is_new && stays_on_own_nodes() {
        return Vec::new();
    }
    match terms(&cache.tenant.slug, &pools, spec) {
        Some(terms) => {
            let affinity = spec.entry("affinity").or_insert_with(|| json!({}));
            json::set(affinity, &NODE_TERMS, terms);
        }
        None if is_new => return Vec::new(),
        // Where it may run cannot change any more.
        None => {}
    }
    if let Some(selector) = spec.get_mut("nodeSelector").and_then(Value::as_object_mut) {
        selector.remove(labels::TENANT);
        if selector.is_empty() {
            spec.remove("nodeSelector");
        }
    }
    if let Some(class) = priority_class(cache, source, false) {
        spec.insert("priorityClassName".into(), class.into());
    }
    if rules.user_namespaces {
        spec.insert("hostUsers".into(), false.into());
    }
    security::default_seccomp_profile(spec);
    for list in CONTAINERS {
        items(spec, list).for_each(security::drop_raw_sockets);
    }
    // A tenant that has no shared pools any more may still have pods that end there.
    if !rules.cached_images || rules.pools.is_empty() {
        for list in CONTAINERS {
            for container in items(spec, list) {
                container["imagePullPolicy"] = "Always".into();
            }
        }
        for volume in items(spec, "volumes") {
            if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
                image["pullPolicy"] = "Always".into();
            }
        }
    }
    pools
}

/// The pools that a pod on the host was created with; for any other pod, those that the tenant has now.
fn pools(cache: &Cache, name: &Name, rules: &SharedNodesPolicy) -> Vec<String> {
    let Some(host) = cache.stores.host(KindId::Pod).get(name).map(|host| host.object()) else {
        return rules.pools.clone();
    };
    let list = json::text(&host, &["metadata", "annotations", labels::SHARED_POOLS]).unwrap_or_default();
    list.split(',')
        .filter(|pool| !pool.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

fn may_share(source: &Value, spec: &Map<String, Value>, rules: &SharedNodesPolicy) -> bool {
    let has_devices = spec.get("resourceClaims").is_some_and(|claims| !json::is_unset(claims))
        || CONTAINERS.iter().any(|list| {
            let containers = spec.get(*list).and_then(Value::as_array).into_iter().flatten();
            containers.into_iter().any(asks_for_devices)
        })
        || asks_for_devices(&Value::Object(spec.clone()));
    let adds_capabilities = CONTAINERS.iter().any(|list| {
        let mut containers = spec.get(*list).and_then(Value::as_array).into_iter().flatten();
        containers.any(security::adds_more_than_baseline)
    });
    let runtime = spec.get("runtimeClassName").and_then(Value::as_str).unwrap_or_default();
    let is_gpu_runtime = GPU_RUNTIMES.iter().any(|part| runtime.contains(part));
    let wants_node_users = rules.user_namespaces && source.get("hostUsers") == Some(&Value::Bool(true));
    let is_linux = !security::is_windows(spec);
    !has_devices
        && !adds_capabilities
        && !is_gpu_runtime
        && !wants_node_users
        && is_linux
        && (rules.cached_images || !never_pulls(source))
}

/// Whether a container, or a pod as a whole, requests devices: resources with a domain, which not every node has.
fn asks_for_devices(container: &Value) -> bool {
    let claims = json::items(container, &["resources", "claims"]);
    let named = ["requests", "limits"].into_iter().flat_map(|part| {
        let resources = container.get("resources").and_then(|resources| resources.get(part));
        resources.and_then(Value::as_object).into_iter().flatten()
    });
    !claims.is_empty() || named.into_iter().any(|(resource, _)| resource.contains('/'))
}

fn never_pulls(source: &Value) -> bool {
    let never = Some("Never");
    CONTAINERS.iter().any(|list| {
        let containers = json::items(source, &[list]).iter();
        containers
            .into_iter()
            .any(|container| json::text(container, &["imagePullPolicy"]) == never)
    }) || json::items(source, &["volumes"])
        .iter()
        .any(|volume| json::text(volume, &["image", "pullPolicy"]) == never)
}

/// The node selector terms: each of the pod's own terms once for the tenant's nodes and once for shared nodes. `None`
/// if none of the pod's own terms can match.
fn terms(slug: &str, pools: &[String], spec: &Map<String, Value>) -> Option<Vec<Value>> {
    let own = spec
        .get("affinity")
        .map(|affinity| json::items(affinity, &NODE_TERMS).to_vec());
    let own = own
        .filter(|terms| !terms.is_empty())
        .unwrap_or_else(|| vec![json!({"matchExpressions": []})]);
    // An empty term matches no node.
    let is_nothing = |term: &Value| term.as_object().is_none_or(Map::is_empty);
    let own: Vec<Value> = own.into_iter().filter(|term| !is_nothing(term)).collect();
    let ways = [
        json!({"key": labels::TENANT, "operator": "In", "values": [slug]}),
        json!({"key": labels::SHARED_POOL, "operator": "In", "values": pools}),
    ];
    let all = own.iter().flat_map(|term| {
        ways.iter().map(|way| {
            let mut term = term.clone();
            let mut expressions = vec![way.clone()];
            expressions.extend(json::items(&term, &["matchExpressions"]).iter().cloned());
            term["matchExpressions"] = expressions.into();
            term
        })
    });
    (!own.is_empty()).then(|| all.collect())
}

fn items<'a>(spec: &'a mut Map<String, Value>, list: &str) -> impl Iterator<Item = &'a mut Value> {
    spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use crate::{
        kinds::pod::Pods,
        model::{ToHost, store::Stored, tenant::test_tenant},
    };
    use berth_api::sync_policy::{PriorityBand, SyncedKind};
    use std::sync::Arc;

    fn cache(change: impl FnOnce(&mut SharedNodesPolicy)) -> Cache {
        let mut tenant = test_tenant();
        let policy = Arc::make_mut(&mut tenant.policy);
        policy.shared_nodes.pools = vec!["cpu".into()];
        policy.pods.runtime_classes = vec!["*".into()];
        policy.devices.classes = vec!["*".into()];
        change(&mut policy.shared_nodes);
        registry::new_cache(tenant)
    }

    fn pod_groups() -> SyncedKind {
        SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1beta1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            ..SyncedKind::default()
        }
    }

    /// The host pod of a pod with this spec.
    fn host(cache: &Cache, more: &Value) -> Value {
        let mut spec = json!({"containers": [{"name": "c", "image": "app"}]});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "research", "uid": "u"}, "spec": spec});
        Pods.translate(cache, &Name::new("research", "p"), &pod).unwrap().object
    }

    fn shares(host: &Value) -> bool {
        let (label, selector) = (
            json::text(host, &["metadata", "labels", labels::SHARED_NODES]).is_some(),
            json::text(host, &["spec", "nodeSelector", labels::TENANT]).is_none(),
        );
        assert_eq!(label, selector, "{host}");
        label
    }

    #[test]
    fn a_pod_without_devices_may_run_on_own_and_on_shared_nodes() {
        let host = host(&cache(|_| ()), &json!({"nodeSelector": {"disk": "ssd"}}));
        assert!(shares(&host));
        insta::assert_yaml_snapshot!(json!({
            "labels": host["metadata"]["labels"][labels::SHARED_NODES],
            "pools": host["metadata"]["annotations"][labels::SHARED_POOLS],
            "nodeSelector": host["spec"]["nodeSelector"],
            "affinity": host["spec"]["affinity"],
            "pull": host["spec"]["containers"][0]["imagePullPolicy"],
        }));
    }

    #[test]
    fn every_term_of_the_pods_own_holds_on_both_sorts_of_nodes() {
        let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
        let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let with = |terms: Value| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            host(&cache(|_| ()), &json!({"affinity": {"nodeAffinity": required}}))
        };
        let two = with(json!([zone, named, {}]));
        let terms = json::items(&two["spec"]["affinity"], &NODE_TERMS);
        assert_eq!(terms.len(), 4, "{terms:?}");
        assert_eq!(terms[1]["matchExpressions"][0]["key"], labels::SHARED_POOL);
        assert_eq!(terms[1]["matchExpressions"][1]["key"], "zone");
        assert!(terms[2]["matchFields"].is_array() && terms[3]["matchFields"].is_array());
        // Terms that match no node still match none.
        assert!(!shares(&with(json!([{}]))));
    }

    #[test]
    fn pods_that_may_use_devices_stay_on_own_nodes() {
        let limited = |resource: &str| json!({"containers": [{"name": "c", "image": "a", "resources": {"limits": {resource: "1"}}}]});
        for devices in [
            limited("nvidia.com/gpu"),
            limited("nvidia.com/mig-1g.10gb"),
            limited("deviceclass.resource.kubernetes.io/gpu"),
            json!({"runtimeClassName": "nvidia"}),
            json!({"initContainers": [{"name": "i", "image": "a", "resources": {"requests": {"amd.com/gpu": "1"}, "limits": {"amd.com/gpu": "1"}}}]}),
        ] {
            assert!(!shares(&host(&cache(|_| ()), &devices)), "{devices}");
        }
        for plain in [
            limited("cpu"),
            limited("hugepages-2Mi"),
            json!({"runtimeClassName": "kata"}),
        ] {
            assert!(shares(&host(&cache(|_| ()), &plain)), "{plain}");
        }
    }

    #[test]
    fn pods_with_a_capability_that_the_class_gives_stay_on_own_nodes() {
        let mut cache = cache(|_| ());
        Arc::make_mut(&mut cache.tenant.policy).pods.capabilities = vec!["IPC_LOCK".into()];
        let container =
            json!([{"name": "c", "image": "a", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]);
        let pod = host(&cache, &json!({"containers": container}));
        assert!(!shares(&pod));
        let added = &pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"];
        assert_eq!(*added, json!(["IPC_LOCK"]));
        assert!(!shares(&host(&cache, &json!({"initContainers": container}))));
    }

    #[test]
    fn pods_on_shared_nodes_follow_the_class_or_stay_on_own_nodes() {
        let strict = cache(|rules| rules.user_namespaces = true);
        assert_eq!(host(&strict, &json!({}))["spec"]["hostUsers"], false);
        assert!(!shares(&host(&strict, &json!({"hostUsers": true}))));
        let never = json!({"containers": [{"name": "c", "image": "a", "imagePullPolicy": "Never"}]});
        assert!(!shares(&host(&strict, &never)));
        let cached = host(&cache(|rules| rules.cached_images = true), &never);
        assert!(shares(&cached));
        assert_eq!(cached["spec"]["containers"][0]["imagePullPolicy"], "Never");
    }

    #[test]
    fn a_pod_that_exists_keeps_its_pools_whatever_it_gets_and_the_class_says() {
        let ephemeral = json!({"ephemeralContainers": [{"name": "e", "image": "a", "imagePullPolicy": "Never"}]});
        let never = json!({"containers": [{"name": "c", "image": "a", "imagePullPolicy": "Never"}]});
        for fields in [
            ephemeral.clone(),
            never,
            json!({"hostUsers": true}),
            json!({"schedulerName": "no-longer-listed"}),
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}}),
        ] {
            let cache = cache(|rules| rules.user_namespaces = true);
            assert!(!shares(&host(&cache, &fields)), "{fields}");
            let live = json!({"metadata": {"name": "p-on-host", "resourceVersion": "1", "annotations": {labels::SHARED_POOLS: "builds"}}});
            let pods = cache.stores.host(KindId::Pod);
            pods.written(Name::new("research", "p"), Stored::new(&live));
            let pod = host(&cache, &fields);
            assert!(shares(&pod), "{fields}");
            assert_eq!(
                pod["metadata"]["annotations"][labels::SHARED_POOLS],
                "builds",
                "{fields}"
            );
            for container in json::items(&pod, &["spec", "ephemeralContainers"]) {
                assert_eq!(container["imagePullPolicy"], "Always");
                assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["NET_RAW"]));
            }
        }
        // It still ends on a node of a pool that the tenant has no more.
        let cache = cache(|rules| {
            *rules = SharedNodesPolicy {
                cached_images: true,
                ..SharedNodesPolicy::default()
            }
        });
        let live = json!({"metadata": {"name": "p-on-host", "resourceVersion": "1", "annotations": {labels::SHARED_POOLS: "builds"}}});
        let pods = cache.stores.host(KindId::Pod);
        pods.written(Name::new("research", "p"), Stored::new(&live));
        let pod = host(&cache, &ephemeral);
        assert!(shares(&pod));
        assert_eq!(pod["spec"]["ephemeralContainers"][0]["imagePullPolicy"], "Always");
    }

    #[test]
    fn containers_on_shared_nodes_have_a_seccomp_profile_and_no_raw_sockets() {
        let mut cache = cache(|_| ());
        Arc::make_mut(&mut cache.tenant.policy).pods.seccomp_default = Some(false);
        let container = |more: Value| json!([{"name": "c", "image": "a", "securityContext": more}]);
        let pod = json!({"containers": container(json!({"capabilities": {"drop": ["KILL"], "add": ["CHOWN"]}})),
            "initContainers": [{"name": "i", "image": "a"}], "ephemeralContainers": [{"name": "e", "image": "a"}]});
        let shared = host(&cache, &pod);
        let spec = &shared["spec"];
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let capabilities = |list: &str| spec[list][0]["securityContext"]["capabilities"].clone();
        assert_eq!(
            capabilities("containers"),
            json!({"drop": ["KILL", "NET_RAW"], "add": ["CHOWN"]})
        );
        assert_eq!(capabilities("initContainers"), json!({"drop": ["NET_RAW"]}));
        assert_eq!(capabilities("ephemeralContainers"), json!({"drop": ["NET_RAW"]}));
        // On own nodes the class decides about the profile, and the defaults of the container runtime hold.
        let mut own = pod;
        own["runtimeClassName"] = "nvidia".into();
        let own = host(&cache, &own);
        assert!(!shares(&own) && own["spec"].get("securityContext").is_none(), "{own}");
        assert!(
            own["spec"]["initContainers"][0].get("securityContext").is_none(),
            "{own}"
        );
        assert!(!shares(&host(&cache, &json!({"os": {"name": "windows"}}))));
    }

    #[test]
    fn a_pod_on_a_shared_node_preempts_no_pod() {
        let mut cache = cache(|_| ());
        Arc::make_mut(&mut cache.tenant.policy).pods.priority = Some(PriorityBand { lowest: 0, highest: 11 });
        let at_home = host(&cache, &json!({"priority": 1000, "runtimeClassName": "nvidia"}));
        assert_eq!(at_home["spec"]["priorityClassName"], "berth-default-5");
        let shared = host(&cache, &json!({"priority": 1000}));
        assert_eq!(shared["spec"]["priorityClassName"], "berth-default-5-never");
    }

    /// The host's scheduler places no group whose pods preempt differently.
    #[test]
    fn no_pod_of_a_group_preempts_where_others_of_it_may_share_nodes() {
        let classes = |pools: &[&str]| {
            let mut tenant = cache(|rules| rules.pools = pools.iter().map(|pool| (*pool).to_owned()).collect()).tenant;
            let policy = Arc::make_mut(&mut tenant.policy);
            policy.pods.priority = Some(PriorityBand { lowest: 0, highest: 11 });
            policy.kinds = vec![pod_groups()];
            let cache = registry::new_cache(tenant);
            let alone = json!({"runtimeClassName": "nvidia"});
            let in_group = json!({"runtimeClassName": "nvidia", "schedulingGroup": {"podGroupName": "ring"}});
            [alone, in_group].map(|fields| host(&cache, &fields)["spec"]["priorityClassName"].clone())
        };
        assert_eq!(classes(&[]), ["berth-default-1", "berth-default-1"]);
        assert_eq!(classes(&["cpu"]), ["berth-default-1", "berth-default-1-never"]);
    }

    /// A group keeps its priority when its tenant gets shared pools, or has none any more.
    #[test]
    fn new_pods_of_a_group_on_the_host_preempt_as_it_does() {
        let pods = |pools: &[&str], of_group: &str| {
            let mut tenant = cache(|rules| rules.pools = pools.iter().map(|pool| (*pool).to_owned()).collect()).tenant;
            let policy = Arc::make_mut(&mut tenant.policy);
            policy.pods.priority = Some(PriorityBand { lowest: 0, highest: 11 });
            policy.kinds = vec![pod_groups()];
            let cache = registry::new_cache(tenant);
            let id = cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
            let group = json!({"metadata": {"name": "x", "namespace": "h", "resourceVersion": "1"},
                "spec": {"priorityClassName": of_group}});
            let ring = Name::new("research", "ring");
            cache.stores.host(id).written(ring, Stored::new(&group));
            let in_group = json!({"schedulingGroup": {"podGroupName": "ring"}});
            let gpu = json!({"schedulingGroup": {"podGroupName": "ring"}, "runtimeClassName": "nvidia"});
            [in_group, gpu].map(|fields| {
                let pod = host(&cache, &fields);
                (shares(&pod), pod["spec"]["priorityClassName"].clone())
            })
        };
        let (preempts, never) = (json!("berth-default-1"), json!("berth-default-1-never"));
        assert_eq!(
            pods(&["cpu"], "berth-default-1"),
            [(false, preempts.clone()), (false, preempts)]
        );
        assert_eq!(
            pods(&["cpu"], "berth-default-1-never"),
            [(true, never.clone()), (false, never.clone())]
        );
        assert_eq!(
            pods(&[], "berth-default-1-never"),
            [(false, never.clone()), (false, never.clone())]
        );
        // It says nothing about the class of the tenant.
        assert_eq!(pods(&["cpu"], "normal"), [(true, never.clone()), (false, never)]);
    }

    #[test]
    fn pods_of_tenants_without_shared_pools_or_with_their_own_scheduler_stay_on_own_nodes() {
        assert!(!shares(&host(&cache(|rules| rules.pools.clear()), &json!({}))));
        let mut own = cache(|_| ());
        own.tenant.scheduling = SchedulingMode::Tenant;
        assert!(!shares(&host(&own, &json!({}))));
    }
}
