//! Environment variables: what the kubelet of a cluster of the tenant's own would give a container.

mod services;

use super::{
    downward,
    tables::{CONTAINERS, FIELD_REF, FILE_KEY_REF, OBJECT_REF, RESOURCE_FIELD_REF},
};
use crate::{
    kinds::service::working_part,
    model::{
        Cache, DeniedField, KindId, json, own_containers,
        resource::{Name, host_name},
        service_variables::ServiceVariables,
    },
    translation::{
        device_variables,
        fields::{self, FieldIssues, Fields, Rule},
    },
};
use berth_api::sync_policy::PodPolicy;
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc};

/// The rules of `EnvVar`.
pub const VARIABLE: Fields = &[
    ("name", Rule::Copy),
    ("value", Rule::Rewrite),
    ("valueFrom", Rule::Rewrite),
];

/// The rules of `EnvVarSource`.
pub const SOURCE: Fields = &[
    ("configMapKeyRef", Rule::Rewrite),
    ("fieldRef", Rule::Within(FIELD_REF)),
    ("fileKeyRef", Rule::Within(FILE_KEY_REF)),
    ("resourceFieldRef", Rule::Within(RESOURCE_FIELD_REF)),
    ("secretKeyRef", Rule::Rewrite),
];

/// The rules of `EnvFromSource`.
pub const ENV_FROM: Fields = &[
    ("configMapRef", Rule::Rewrite),
    ("prefix", Rule::Copy),
    ("secretRef", Rule::Rewrite),
];

/// The labels and annotations that variables of these containers of a pod read. A container that starts later reads what they are then.
pub fn fields_that_change<'a>(containers: impl IntoIterator<Item = &'a Value>) -> impl Iterator<Item = String> {
    let containers = containers.into_iter();
    let variables = containers.flat_map(|container| json::items(container, &["env"]));
    let fields = variables.filter_map(|variable| json::text(variable, &["valueFrom", "fieldRef", "fieldPath"]));
    fields
        .filter(|field| downward::can_change(field))
        .map(ToOwned::to_owned)
}

/// What all containers of a pod share.
pub struct Environment<'a> {
    pod: &'a Value,
    namespace: &'a str,
    rules: &'a PodPolicy,
    /// The variables of the API server, which come first.
    api_server: Vec<(String, String)>,
    /// Those of Services, which come before the container's own.
    services: Arc<ServiceVariables>,
}

impl<'a> Environment<'a> {
    /// The environment of a pod's containers.
    pub fn new(cache: &'a Cache, name: &'a Name, pod: &'a Value) -> Self {
        // The environment of a pod that is on the host cannot change any more, so Services need not be read.
        let is_new = !cache.stores.host(KindId::Pod).contains(name);
        let has_services = is_new && json::at(pod, &["spec", "enableServiceLinks"]) != Some(&Value::Bool(false));
        Self {
            pod,
            namespace: &name.namespace,
            rules: &cache.tenant.policy.pods,
            api_server: api_server(&cache.tenant.api_server_host, cache.tenant.api_server_port),
            services: if has_services {
                of_services(cache, name, pod)
            } else {
                Arc::default()
            },
        }
    }

    /// Bytes of the variables of Services in each container.
    pub fn count_service_bytes(&self) -> usize {
        self.services.variables.iter().map(services::bytes_of).sum()
    }

    /// Variables of a container, each name once: the last of several definitions counts, as in a kubelet.
    pub fn variables(&self, container: &Value, path: &str, issues: &mut FieldIssues) -> Vec<Value> {
        let mut variables = Vec::new();
        let mut ignore = |left_out: DeniedField| {
            if !issues.ignored.contains(&left_out) {
                issues.ignore(left_out.field, left_out.why);
            }
        };
        if let Some(left_out) = &self.services.left_out {
            ignore(left_out.clone());
        }
        for (name, value) in self.api_server.iter().chain(&self.services.variables) {
            if device_variables::is_denied(self.rules, name) {
                let why = format!("the variable of a Service is left out: {}", describe_denial(name));
                ignore(DeniedField::new("spec.enableServiceLinks", why));
            } else {
                variables.push(json!({"name": name, "value": value}));
            }
        }
        for (index, variable) in json::items(container, &["env"]).iter().enumerate() {
            let path = format!("{path}.env[{index}]");
            let name = json::text(variable, &["name"]).unwrap_or_default();
            let is_harmless = variable.get("valueFrom").is_none_or(Value::is_null)
                && device_variables::means_no_device(name, json::text(variable, &["value"]).unwrap_or_default());
            if device_variables::is_denied(self.rules, name) && !is_harmless {
                issues.deny(&path, describe_denial(name));
                continue;
            }
            variables.push(self.variable(name, variable, &path, issues));
        }
        with_last_of_each(variables)
    }

    fn variable(&self, name: &str, variable: &Value, path: &str, issues: &mut FieldIssues) -> Value {
        let mut translated = fields::copy(variable, path, VARIABLE, issues);
        translated.insert("name".into(), name.into());
        let Some(source) = variable.get("valueFrom").filter(|source| !source.is_null()) else {
            let value = json::text(variable, &["value"]).unwrap_or_default();
            translated.insert("value".into(), value.into());
            return translated.into();
        };
        let path = format!("{path}.valueFrom");
        let field = json::text(source, &["fieldRef", "fieldPath"]);
        if let Some(field) = field.filter(|field| downward::can_change(field)) {
            let annotation = format!("metadata.annotations['{}']", downward::annotation(field));
            let source = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": annotation}});
            translated.insert("valueFrom".into(), source);
            return translated.into();
        }
        if let Some(text) = field.and_then(|field| downward::literal(self.pod, field)) {
            // `$` would be taken for a reference to another variable.
            translated.insert("value".into(), text.replace('$', "$$").into());
            return translated.into();
        }
        let mut copied = fields::copy(source, &path, SOURCE, issues);
        for (field, kind) in [("configMapKeyRef", KindId::ConfigMap), ("secretKeyRef", KindId::Secret)] {
            if let Some(value) = source.get(field).filter(|value| !value.is_null()) {
                copied.insert(
                    field.into(),
                    self.renamed(kind, value, &format!("{path}.{field}"), issues),
                );
            }
        }
        translated.insert("valueFrom".into(), copied.into());
        translated.into()
    }

    /// ConfigMaps and Secrets of which every key becomes a variable.
    pub fn sources(&self, container: &Value, path: &str, issues: &mut FieldIssues) -> Vec<Value> {
        let mut sources = Vec::new();
        for (index, source) in json::items(container, &["envFrom"]).iter().enumerate() {
            let path = format!("{path}.envFrom[{index}]");
            let mut copied = fields::copy(source, &path, ENV_FROM, issues);
            for (field, kind) in [("configMapRef", KindId::ConfigMap), ("secretRef", KindId::Secret)] {
                if let Some(value) = source.get(field).filter(|value| !value.is_null()) {
                    copied.insert(
                        field.into(),
                        self.renamed(kind, value, &format!("{path}.{field}"), issues),
                    );
                }
            }
            let prefix = json::text(source, &["prefix"]).unwrap_or_default();
            if let Some(name) = device_variables::completion(prefix) {
                let why = format!(
                    "with this prefix a key could become {name}, by which the node's container runtime gives devices \
                     without the scheduler: choose another prefix"
                );
                issues.deny(format!("{path}.prefix"), why);
            }
            sources.push(copied.into());
        }
        sources
    }

    fn renamed(&self, kind: KindId, reference: &Value, path: &str, issues: &mut FieldIssues) -> Value {
        let mut renamed = fields::copy(reference, path, OBJECT_REF, issues);
        let name = json::text(reference, &["name"]).unwrap_or_default();
        let host = host_name(kind, &Name::new(self.namespace, name));
        renamed.insert("name".into(), host.into());
        renamed.into()
    }
}

/// The variables of the Services of a pod's namespace.
fn of_services(cache: &Cache, name: &Name, pod: &Value) -> Arc<ServiceVariables> {
    let (services, containers) = (cache.stores.tenant(KindId::Service), count_containers(pod));
    let known = &cache.service_variables;
    known.get(services, &name.namespace, containers, || {
        let mut services = services.all();
        services.retain(|(service, _)| service.namespace == name.namespace && !is_api_server(service));
        services.sort_by(|(a, _), (b, _)| a.cmp(b));
        let services = services.iter().map(|(service, stored)| {
            let service_part = working_part(stored);
            (&*service.name, services::variables(&service.name, &service_part))
        });
        services::select(services, containers)
    })
}

/// The last variable of each name, in their order.
fn with_last_of_each(variables: Vec<Value>) -> Vec<Value> {
    let mut known: HashSet<&str> = HashSet::new();
    let names = variables.iter().rev();
    let mut are_last: Vec<bool> = names
        .map(|variable| known.insert(json::text(variable, &["name"]).unwrap_or_default()))
        .collect();
    drop(known);
    variables
        .into_iter()
        .filter(|_| are_last.pop().unwrap_or_default())
        .collect()
}

/// Why a variable is denied.
fn describe_denial(name: &str) -> String {
    format!(
        "{name} makes the node's container runtime give devices without the scheduler: request them as resources, or ask \
         the platform team to list the variable in the class (sync.pods.deviceVariables)"
    )
}

fn count_containers(pod: &Value) -> usize {
    CONTAINERS
        .iter()
        .map(|list| json::items(pod, &["spec", list]).len())
        .sum()
}

fn is_api_server(service: &Name) -> bool {
    &*service.namespace == "default" && &*service.name == "kubernetes"
}

/// The variables with the address of the tenant's API server. A kubelet always adds those of its own cluster, so each
/// of them has to be set.
fn api_server(host: &str, port: u16) -> Vec<(String, String)> {
    let port = port.to_string();
    let url_host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let url = format!("tcp://{url_host}:{port}");
    [
        ("KUBERNETES_PORT", url.as_str()),
        ("KUBERNETES_PORT_443_TCP", &url),
        ("KUBERNETES_PORT_443_TCP_ADDR", host),
        ("KUBERNETES_PORT_443_TCP_PORT", &port),
        (own_containers::OF_TENANT, "tcp"),
        ("KUBERNETES_SERVICE_HOST", host),
        ("KUBERNETES_SERVICE_PORT", &port),
        ("KUBERNETES_SERVICE_PORT_HTTPS", &port),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{store::Stored, tenant::test_tenant},
        registry,
    };

    #[test]
    fn variables_follow_labels_and_annotations() {
        let label = "metadata.labels['app']";
        let field = |path: &str| json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let pod = json!({"metadata": {"name": "p", "labels": {"app": "$(HOME)"}},
            "spec": {"containers": [{"env": [field(label), field("metadata.name"), field("status.podIP")]}]}});
        let containers = json::items(&pod, &["spec", "containers"]);
        assert_eq!(fields_that_change(containers).collect::<Vec<_>>(), [label]);
        let rules = PodPolicy::default();
        let environment = Environment {
            pod: &pod,
            namespace: "default",
            rules: &rules,
            api_server: Vec::new(),
            services: Arc::default(),
        };
        let variable = |path| environment.variable("A", &field(path), "env", &mut FieldIssues::default());
        let path = format!("metadata.annotations['{}']", downward::annotation(label));
        assert_eq!(variable(label)["valueFrom"]["fieldRef"]["fieldPath"], path.as_str());
        assert_eq!(variable("metadata.name")["value"], "p", "a name never changes");
    }

    #[test]
    fn the_last_variable_of_a_name_counts() {
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let all = [("A", "1"), ("B", "2"), ("A", "3"), ("C", "4"), ("B", "5")];
        let last = [("A", "3"), ("C", "4"), ("B", "5")];
        let variables = |of: &[(&str, &str)]| of.iter().map(|(name, value)| variable(name, value)).collect::<Vec<_>>();
        assert_eq!(with_last_of_each(variables(&all)), variables(&last));
        assert!(with_last_of_each(Vec::new()).is_empty());
    }

    #[test]
    fn services_are_read_once_for_all_pods() {
        let cache = registry::new_cache(test_tenant());
        let name = Name::new("team", "web");
        let service = json!({"metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 80}]}});
        let services = cache.stores.tenant(KindId::Service);
        services.written(name.clone(), Stored::new(&service));
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{}]}});
        for _ in ["one", "another"] {
            let of_pod = Name::new("team", "p");
            let environment = Environment::new(&cache, &of_pod, &pod);
            let mut variables = environment.services.variables.iter().map(|(name, _)| name.as_str());
            assert!(variables.any(|name| name == "WEB_SERVICE_HOST"));
        }
        let known = services.get(&name).unwrap().extract(0, |_| unreachable!("it is known"));
        assert_eq!(known["spec"], service["spec"]);
    }

    #[test]
    fn services_make_no_device_variables() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{}]}});
        let service = json!({"spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 1}]}});
        let mut of_services = services::variables("docker-resource-gpu", &service);
        of_services.extend(services::variables("nvidia-dcgm-exporter", &service));
        let of_exporter = of_services.len() / 2;
        let rules = PodPolicy::default();
        let environment = Environment {
            pod: &pod,
            namespace: "default",
            rules: &rules,
            api_server: Vec::new(),
            services: Arc::new(ServiceVariables {
                variables: of_services,
                left_out: None,
            }),
        };
        let mut issues = FieldIssues::default();
        // `DOCKER_RESOURCE_GPU_SERVICE_PORT=1` would be the second GPU of the node.
        for _ in ["one container", "another"] {
            let variables = environment.variables(&pod["spec"]["containers"][0], "spec.containers[0]", &mut issues);
            let mut names = variables.iter().filter_map(|variable| variable["name"].as_str());
            assert!(
                names.all(|name| name.starts_with("NVIDIA_DCGM_EXPORTER_")),
                "{variables:?}"
            );
            assert_eq!(variables.len(), of_exporter);
        }
        assert_eq!(issues.ignored.len(), of_exporter, "each is named once");
        assert!(issues.denied.is_empty());
    }
}
