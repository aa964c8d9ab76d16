//! Pods and statuses generated at random from the API servers' schemas.

use super::super::{Pods, update};
use crate::{
    kinds::schemas::{Types, of_pods as schemas, structure},
    model::{
        Cache, HostWrite, KindId, Observation, TenantWrite, ToHost, json,
        resource::{Name, host_name},
        store::Stored,
        tenant::test_tenant,
    },
    registry,
    translation::sizes::{MAX_ADDED_POD_BYTES, MAX_SERVICE_VARIABLE_BYTES, count_bytes},
};
use berth_api::labels;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Generates values of a schema with splitmix64: any seed gives another pod, the same seed the same.
struct Maker<'a> {
    types: &'a Types,
    texts: &'a [&'a str],
    /// Keys of maps.
    keys: &'a [&'a str],
    state: u64,
}

impl Maker<'_> {
    fn number(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn one_of(&mut self, texts: &[&str]) -> String {
        let index = self.number(texts.len() as u64);
        texts[usize::try_from(index).unwrap()].to_owned()
    }

    /// A value of a type; of a structure each field with a chance of one in `rarity`.
    fn value(&mut self, kind: &str, rarity: u64) -> Value {
        let inner = structure(kind);
        if kind.starts_with('[') {
            return (0..self.number(3)).map(|_| self.value(inner, rarity)).collect();
        }
        if kind.starts_with('{') {
            let entries = (0..self.number(3)).map(|_| (self.one_of(self.keys), self.value(inner, rarity)));
            return Value::Object(entries.collect());
        }
        if let Some(fields) = self.types.get(kind) {
            let mut object = Map::new();
            for (field, kind) in fields {
                if self.number(rarity) == 0 {
                    object.insert(field.clone(), self.value(kind, rarity));
                }
            }
            return object.into();
        }
        match kind {
            "boolean" => (self.number(2) == 0).into(),
            "integer" | "IntOrString" => self.number(100).into(),
            "Quantity" => "1".into(),
            _ => self.one_of(self.texts).into(),
        }
    }
}

const TEXTS: &[&str] = &[
    "",
    "a",
    "train-0",
    "berth.dev/tenant",
    "node-role.example.com/x",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_",
    "NVIDIA_MOFED",
    "NVIDIA_NEW_DEVICES",
    "DOCKER_RESOURCE_GPU",
    "CUDA_VERSION",
    "Unconfined",
    "Unmasked",
    "Bidirectional",
    "SYS_ADMIN",
    "NET_BIND_SERVICE",
    "system-node-critical",
    "kernel.msgmax",
    "spc_t",
    "metadata.labels",
    "metadata.labels['a']",
    "spec.nodeName",
    "Exists",
    "$(A)",
    "/var/run/nvidia-container-devices/0",
    "169.254.169.254",
];

fn name() -> Name {
    Name::new("research", "train-0")
}

/// A pod with everything that the schema knows, each field with a chance of one in `rarity`.
fn pod(types: &Types, seed: u64, rarity: u64) -> Value {
    let mut maker = Maker {
        types,
        texts: TEXTS,
        keys: TEXTS,
        state: seed,
    };
    let mut pod = json!({"metadata": {"name": "train-0", "namespace": "research", "uid": "u", "labels": maker.value("{string}", 1),
        "annotations": maker.value("{string}", 1)}, "spec": maker.value("PodSpec", rarity)});
    // API servers require that containers have different names.
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            container["name"] = format!("c{index}").into();
        }
    }
    pod
}

/// Removes a denied field from a pod, or the part of its path that exists.
fn without(value: &mut Value, path: &str) {
    let steps: Vec<&str> = path.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect();
    let mut current = value;
    for (index, step) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        let next_exists = |value: &Value| match (value, steps.get(index + 1)) {
            (Value::Object(fields), Some(next)) => fields.contains_key(*next),
            (Value::Array(items), Some(next)) => next.parse().is_ok_and(|next: usize| next < items.len()),
            _ => false,
        };
        match current {
            Value::Object(fields) if is_last || !fields.get(*step).is_some_and(next_exists) => {
                fields.remove(*step);
                return;
            }
            Value::Object(fields) => current = &mut fields[*step],
            Value::Array(items) => {
                let at: usize = step.parse().unwrap();
                if is_last || !next_exists(&items[at]) {
                    items.remove(at);
                    return;
                }
                current = &mut items[at];
            }
            _ => return,
        }
    }
}

/// The host pod of a pod from which all denied fields are removed.
fn accepted(cache: &Cache, mut pod: Value) -> Option<(Value, Value)> {
    for _ in 0..400 {
        match Pods.translate(cache, &name(), &pod) {
            Ok(translated) => return Some((pod, translated.object)),
            Err(denied) => {
                // From the back, so that indexes in lists stay valid.
                let mut fields: Vec<_> = denied.into_iter().map(|denied| denied.field).collect();
                fields.sort();
                without(&mut pod, fields.last().unwrap());
            }
        }
    }
    None
}

/// A cache of a namespace with this number of Services of a hundred ports each, with the longest names.
fn cache_with_services(count: usize) -> Cache {
    let cache = registry::new_cache(test_tenant());
    let ports: Vec<Value> = (1..=100)
        .map(|port| json!({"name": format!("port-{port:0>10}"), "port": port, "protocol": "TCP"}))
        .collect();
    for number in 0..count {
        let name = format!("service-{number:0>55}");
        let service = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"clusterIP": "10.0.0.7", "ports": ports}});
        let services = cache.stores.tenant(KindId::Service);
        services.written(Name::new("research", &name), Stored::new(&service));
    }
    cache
}

/// Fields of `value` that the schema does not know.
fn unknown_fields(types: &Types, kind: &str, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for item in items {
                unknown_fields(types, structure(kind), item, path, found);
            }
        }
        Value::Object(fields) => {
            let Some(known) = types.get(kind) else {
                return;
            };
            for (field, value) in fields {
                match known.get(field) {
                    Some(kind) => unknown_fields(types, kind, value, &format!("{path}.{field}"), found),
                    None => found.push(format!("{path}.{field}")),
                }
            }
        }
        _ => {}
    }
}

/// Finds what the host forbids, without the tables that should keep it out: what the Pod Security Standard "baseline"
/// forbids, and what belongs to the platform.
fn forbidden(path: &str, value: &Value, found: &mut Vec<String>) {
    if let Value::Array(items) = value {
        for item in items {
            forbidden(path, item, found);
        }
    }
    let Value::Object(fields) = value else {
        return;
    };
    for (field, value) in fields {
        let text = value.as_str().unwrap_or_default();
        let bad = match field.as_str() {
            "hostNetwork" | "hostPID" | "hostIPC" | "privileged" => value == &Value::Bool(true),
            "hostPort" => value != &json!(0),
            "nodeName" | "serviceAccount" | "serviceAccountName" | "schedulerName" | "runtimeClassName"
            | "overhead" | "windowsOptions" | "hostIP" | "procMount" | "priority" | "hostPath" | "nfs" | "iscsi"
            | "csi" | "flexVolume" => !json::is_unset(value),
            "mountPropagation" => text == "Bidirectional",
            "mountPath" => text.starts_with("/var/run/nvidia"),
            "host" => !text.is_empty() && (path.ends_with("httpGet") || path.ends_with("tcpSocket")),
            "type" => text == "Unconfined" || (text == "spc_t" && path.ends_with("seLinuxOptions")),
            "add" => value
                .as_array()
                .is_some_and(|added| added.contains(&json!("SYS_ADMIN"))),
            "sysctls" => json::items(value, &[])
                .iter()
                .any(|sysctl| sysctl["name"] == "kernel.msgmax"),
            "prefix" => text.starts_with("NVIDIA_") || text.starts_with("DOCKER_RESOURCE_") || text == "CUDA_VERSION",
            "name" if path.rsplit('.').next() == Some("env") => {
                (text.starts_with("NVIDIA_") || text.starts_with("DOCKER_RESOURCE_") || text == "CUDA_VERSION")
                    && !json::is_unset(fields.get("value").unwrap_or(&json!("set")))
            }
            "key" if path.ends_with("tolerations") => labels::is_reserved(text) && text != labels::TENANT,
            _ => false,
        };
        if bad {
            found.push(format!("{path}.{field}: {value}"));
        }
        forbidden(&format!("{path}.{field}"), value, found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn host_pods_keep_no_forbidden_field(seed in any::<u64>(), rarity in 1u64..5, version in 0usize..2) {
        let cache = registry::new_cache(test_tenant());
        let types = &schemas()[version];
        let pod = pod(types, seed, rarity);
        let (pod, host) = accepted(&cache, pod).expect("a pod without anything denied");
        let again = Pods.translate(&cache, &name(), &pod).unwrap().object;
        prop_assert_eq!(&host, &again);
        let mut found = Vec::new();
        forbidden("spec", &host["spec"], &mut found);
        unknown_fields(types, "PodSpec", &host["spec"], "spec", &mut found);
        prop_assert!(found.is_empty(), "{found:#?}");
        let slug = test_tenant().slug;
        prop_assert_eq!(json::text(&host, &["spec", "nodeSelector", labels::TENANT]), Some(slug.as_str()));
        prop_assert_eq!(&host["spec"]["automountServiceAccountToken"], &json!(false));

        for key in json::strings(&host, &["metadata", "annotations"]).keys() {
            prop_assert!(labels::is_reserved(key) || super::super::ANNOTATIONS.contains(&key.as_str()), "{key}");
        }

        // A new host pod needs no update.
        let writes = update::update(&host, &host);
        for write in writes {
            let HostWrite::Merge(patch) = write else {
                panic!("{write:?}")
            };
            prop_assert!(json::is_patched(&host, &patch), "{patch}");
        }
    }

    #[test]
    fn host_pods_are_not_much_larger_than_the_tenants(seed in any::<u64>(), rarity in 1u64..5, version in 0usize..2) {
        let pod = pod(&schemas()[version], seed, rarity);
        let (pod, without_services) = accepted(&cache_with_services(0), pod).expect("a pod without anything denied");
        let host = Pods.translate(&cache_with_services(3), &name(), &pod).unwrap().object;
        let of_services = count_bytes(&host) - count_bytes(&without_services);
        prop_assert!(of_services <= MAX_SERVICE_VARIABLE_BYTES, "{of_services}");
        let bytes = |pod: &Value| count_bytes(&pod["spec"]) + count_bytes(&pod["metadata"]["labels"]);
        let added = bytes(&host).saturating_sub(bytes(&pod));
        prop_assert!(added <= MAX_ADDED_POD_BYTES, "{added}");
    }

    #[test]
    fn no_status_shows_a_name_of_the_host(seed in any::<u64>(), rarity in 1u64..4) {
        let cache = registry::new_cache(test_tenant());
        let types = &schemas()[1];
        let pod_name = host_name(KindId::Pod, &name());
        let missing = Name::new("research", "not-there");
        let missing_name = host_name(KindId::Secret, &missing);
        let target = crate::model::references::Target { kind: KindId::Secret, name: missing };
        cache.references().set(&KindId::Pod.key(name()), [target].into());
        let tenant = test_tenant();
        let texts = [pod_name.as_str(), &missing_name, &tenant.workload_namespace, &tenant.control_plane_namespace, "words"];
        let spoken: Vec<String> = texts.iter().map(|text| format!("of {text}: {text}/{text}")).collect();
        let texts: Vec<&str> = spoken.iter().map(String::as_str).chain(texts).collect();
        let mut maker = Maker { types, texts: &texts, keys: &["cpu", "nvidia.com/gpu"], state: seed };
        let mut status = maker.value("PodStatus", rarity);
        status["phase"] = "Running".into();
        // Names of claims consist of the pod's name and a suffix that is also in the host's names; see `claims`.
        for field in ["resourceClaimStatuses", "extendedResourceClaimStatus"] {
            status.as_object_mut().unwrap().remove(field);
        }
        let host = json!({"metadata": {"name": pod_name, "resourceVersion": "1"}, "spec": {}, "status": status});
        cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
        let observation = Observation {
            tenant: &json!({"metadata": {"name": "train-0", "namespace": "research"}, "spec": {}, "status": {}}),
            host: &host,
            in_sync: true,
            denied: &[],
            now: Timestamp::UNIX_EPOCH,
        };
        for write in Pods.sync_status(&cache, &name(), &observation) {
            let TenantWrite::Status(mut status) = write else {
                panic!("{write:?}")
            };
            forget_images(&mut status);
            let text = status.to_string();
            for secret in [&pod_name, &missing_name, &tenant.workload_namespace, &tenant.control_plane_namespace] {
                prop_assert!(!text.contains(secret.as_str()), "{secret} in {text}");
            }
        }
    }
}

/// Removes images, which the tenant names, and identifiers, which the runtime names.
fn forget_images(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !matches!(key.as_str(), "image" | "imageID" | "imageRef" | "containerID"));
            fields.values_mut().for_each(forget_images);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_images),
        _ => {}
    }
}

#[test]
fn host_names_of_many_pods_are_unique() {
    let types = Types::new();
    let mut maker = Maker {
        types: &types,
        texts: &[],
        keys: &[],
        state: 7,
    };
    let mut names = HashSet::new();
    let mut hosts = HashSet::new();
    while names.len() < 50_000 {
        // Few characters and dashes anywhere: names that would be equal if their parts were only joined.
        let bits = maker.number(1 << 40);
        let text: String = (0..20)
            .map(|i| ["a", "b", "-", "c"][usize::try_from((bits >> (2 * i)) & 3).unwrap()])
            .collect();
        let cut = usize::try_from(maker.number(18)).unwrap() + 1;
        let (namespace, name) = text.split_at(cut);
        if names.insert((namespace.to_owned(), name.to_owned())) {
            let host = host_name(KindId::Pod, &Name::new(namespace, name));
            assert!(host.len() <= 63);
            assert!(hosts.insert(host), "{namespace}/{name}");
        }
    }
}
