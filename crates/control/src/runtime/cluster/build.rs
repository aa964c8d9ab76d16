//! The objects of a component in a cluster: pure, with golden files.

use super::{FOLDER, go_memory_limit, pod_selector, settings::ClusterSettings};
use crate::{
    control_plane::{API_SERVER, COREDNS, Component, Health, Ports, Program, SYNCER},
    runtime::Owner,
};
use berth_api::{labels, names};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Capabilities, Container, ContainerPort, EnvVar, HTTPGetAction, KeyToPath, Lifecycle, LifecycleHandler,
            LocalObjectReference, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource,
            SeccompProfile, Secret, SecretProjection, SecurityContext, Service, ServiceAccountTokenProjection,
            ServicePort, ServiceSpec, SleepAction, TopologySpreadConstraint, Volume, VolumeMount, VolumeProjection,
        },
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;

/// Label that names the component of an object.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Name of the syncer's port with its metrics, in its pod and its Service.
pub const ADMIN_PORT: &str = "admin";
/// A capability without which the programs of some images do not start. Their ports do not need it.
const BIND: &str = "NET_BIND_SERVICE";
/// User and group of every container.
const USER: i64 = 65532;
/// Files are readable by that group only.
const FILE_MODE: i32 = 0o440;
/// Life of a token of the host, in seconds. The kubelet renews it in time.
const TOKEN_SECONDS: i64 = 3600;
/// Time for which a terminating API server goes on serving, in seconds: until every node knows that it is no longer among
/// the endpoints of its Service. Nobody reports when that is so. A node under load that knows it later sends connections to a
/// closed port; waiting for longer costs nothing but the memory of the old server.
const LINGER_SECONDS: i64 = 30;
/// Time for requests in progress after that, in seconds.
const GRACE_SECONDS: i64 = 30;
/// Time within which an API server answers its readiness probe, in seconds: that of kubeadm's manifests. A server that is only slow must
/// stay an endpoint. Without a ready one, connections go to the one that terminates, and are refused once that has ended.
const API_SERVER_ANSWER_SECONDS: i32 = 15;
/// Time within which other components answer a probe, in seconds.
const ANSWER_SECONDS: i32 = 5;
/// Time after which a rollout that makes no progress is reported, in seconds.
const PROGRESS_SECONDS: i32 = 120;

fn meta(owner: Owner<'_>, name: &str, component: &str) -> ObjectMeta {
    let mut all = owner.labels.clone();
    all.insert(APP_NAME.into(), component.into());
    all.insert("app.kubernetes.io/managed-by".into(), labels::CONTROL_MANAGER.into());
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(owner.tenant.control_plane_namespace()),
        labels: Some(all),
        ..ObjectMeta::default()
    }
}

/// The key of a file in its Secret: keys have no folders.
fn secret_key(name: &str) -> String {
    name.replace('/', "_")
}

/// The files of a component, in an immutable Secret that is named after them: pods that still run keep theirs.
pub(super) fn files(owner: Owner<'_>, component: &Component) -> Secret {
    let files = component.files_in(FOLDER);
    let parts: Vec<&str> = files
        .iter()
        .flat_map(|(name, text)| [name.as_str(), text.as_str()])
        .collect();
    let name = format!("{}-files-{}", component.name, names::hash(&parts));
    Secret {
        metadata: meta(owner, &name, component.name),
        immutable: Some(true),
        type_: Some("Opaque".into()),
        data: Some(
            files
                .into_iter()
                .map(|(name, text)| (secret_key(&name), ByteString(text.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}

/// The Deployment of a component whose files are in the Secret `files`.
pub(super) fn deployment(
    owner: Owner<'_>,
    component: &Component,
    settings: &ClusterSettings,
    files: &str,
) -> Deployment {
    let selector = LabelSelector {
        match_labels: Some(pod_selector(owner.tenant, component.name)),
        match_expressions: None,
    };
    let metadata = meta(owner, component.name, component.name);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: metadata.labels.clone(),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(component, settings, files, &selector)),
    };
    let strategy = if component.overlaps {
        DeploymentStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(IntOrString::Int(1)),
                max_unavailable: Some(IntOrString::Int(0)),
            }),
        }
    } else {
        DeploymentStrategy {
            type_: Some("Recreate".into()),
            rolling_update: None,
        }
    };
    let spec = DeploymentSpec {
        replicas: Some(count(component)),
        revision_history_limit: Some(1),
        progress_deadline_seconds: Some(PROGRESS_SECONDS),
        selector,
        strategy: Some(strategy),
        template,
        ..DeploymentSpec::default()
    };
    let annotations = [(labels::DEPLOYED_HASH.to_owned(), hash(&spec))];
    Deployment {
        metadata: ObjectMeta {
            annotations: Some(annotations.into()),
            ..metadata
        },
        spec,
        status: None,
    }
}

/// Hash of what a Deployment is to be.
fn hash(spec: &DeploymentSpec) -> String {
    // Serialization cannot fail: there are only texts, numbers and lists.
    let text = serde_json::to_string(spec).unwrap_or_default();
    names::hash(&[text.as_str()])
}

/// The hash that a Deployment has in its annotation; empty if it has none.
pub(super) fn version(deployment: &Deployment) -> &str {
    let annotation = deployment.annotations().get(labels::DEPLOYED_HASH);
    annotation.map_or("", String::as_str)
}

fn count(component: &Component) -> i32 {
    i32::try_from(component.replicas).unwrap_or(1)
}

fn pod(component: &Component, settings: &ClusterSettings, files: &str, selector: &LabelSelector) -> PodSpec {
    let spread = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(|key| TopologySpreadConstraint {
        topology_key: key.into(),
        max_skew: 1,
        when_unsatisfiable: "ScheduleAnyway".into(),
        label_selector: Some(selector.clone()),
        match_label_keys: Some(vec!["pod-template-hash".into()]),
        ..TopologySpreadConstraint::default()
    });
    let lingers = component.name == API_SERVER;
    PodSpec {
        containers: vec![container(component, settings, lingers)],
        volumes: Some(vec![volume(component, files)]),
        // The token of the service account, where one is needed, is among the files.
        automount_service_account_token: Some(false),
        service_account_name: component.host_service_account.map(Into::into),
        enable_service_links: Some(false),
        // CoreDNS forwards to the node's resolver, never to the host cluster's DNS, which knows every tenant's names.
        dns_policy: (component.name == COREDNS).then(|| "Default".into()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(GRACE_SECONDS + if lingers { LINGER_SECONDS } else { 0 }),
        topology_spread_constraints: (component.replicas > 1).then(|| spread.to_vec()),
        priority_class_name: settings.priority_class_name.clone(),
        node_selector: (!settings.node_selector.is_empty()).then(|| settings.node_selector.clone()),
        tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
        image_pull_secrets: (!settings.image_pull_secrets.is_empty()).then(|| {
            let reference = |name: &String| LocalObjectReference { name: name.clone() };
            settings.image_pull_secrets.iter().map(reference).collect()
        }),
        ..PodSpec::default()
    }
}

fn container(component: &Component, settings: &ClusterSettings, lingers: bool) -> Container {
    let text = |list: &[&str]| Some(list.iter().map(ToString::to_string).collect());
    let (command, capability) = match component.program {
        // The image's entry point is a wrapper.
        Program::Kubernetes { .. } => (text(&[component.name]), (component.name == API_SERVER).then_some(BIND)),
        Program::CoreDns => (None, Some(BIND)),
        Program::Syncer => (None, None),
    };
    let resources = settings.resources(component.name, component.memory_limit);
    let mut env = component.env.clone();
    env.extend(
        go_memory_limit::value(&component.program, &resources)
            .map(|value| (go_memory_limit::VARIABLE.to_owned(), value)),
    );
    let variable = |(name, value)| EnvVar {
        name,
        value: Some(value),
        value_from: None,
    };
    Container {
        name: component.name.into(),
        image: Some(settings.image(component)),
        image_pull_policy: Some(settings.image_pull_policy.clone()),
        command,
        args: Some(component.args_in(FOLDER)),
        // Why it has ended, for the conditions of the tenant.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        env: (!env.is_empty()).then(|| env.into_iter().map(variable).collect()),
        ports: admin_port(component).map(|port| vec![port]),
        resources: Some(resources),
        volume_mounts: Some(vec![VolumeMount {
            name: "files".into(),
            mount_path: FOLDER.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        startup_probe: component.health.map(|health| probe(health, health.live, 1, 180)),
        liveness_probe: component.health.map(|health| probe(health, health.live, 10, 6)),
        readiness_probe: component.health.map(|health| Probe {
            timeout_seconds: Some(if lingers {
                API_SERVER_ANSWER_SECONDS
            } else {
                ANSWER_SECONDS
            }),
            ..probe(health, health.ready, 2, 3)
        }),
        lifecycle: lingers.then(|| Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction {
                    seconds: LINGER_SECONDS,
                }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                add: capability.and_then(|name| text(&[name])),
                drop: text(&["ALL"]),
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// The port of the syncer with its metrics: a PodMonitor finds ports by their names.
fn admin_port(component: &Component) -> Option<ContainerPort> {
    let health = component.health?;
    matches!(component.program, Program::Syncer).then(|| ContainerPort {
        name: Some(ADMIN_PORT.into()),
        container_port: health.port.into(),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    })
}

fn probe(health: Health, path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(health.port.into()),
            scheme: Some(if health.tls { "HTTPS" } else { "HTTP" }.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(period.max(ANSWER_SECONDS)),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// The folder of the files: the Secret's, and a token of the host if the component needs one.
fn volume(component: &Component, files: &str) -> Volume {
    let secret = VolumeProjection {
        secret: Some(SecretProjection {
            name: files.into(),
            items: Some(
                component
                    .files
                    .keys()
                    .map(|name| KeyToPath {
                        key: secret_key(name),
                        path: name.clone(),
                        ..KeyToPath::default()
                    })
                    .collect(),
            ),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let token = component.host_service_account.map(|_| VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path: "token".into(),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..ServiceAccountTokenProjection::default()
        }),
        ..VolumeProjection::default()
    });
    Volume {
        name: "files".into(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(FILE_MODE),
            sources: Some(std::iter::once(secret).chain(token).collect()),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Allows the eviction of one replica at a time.
pub(super) fn disruption_budget(owner: Owner<'_>, component: &Component) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: meta(owner, component.name, component.name),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            // A pod that cannot start anyway must not keep its node from being drained.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            selector: Some(LabelSelector {
                match_labels: Some(pod_selector(owner.tenant, component.name)),
                match_expressions: None,
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

/// The Service of the syncer. (Those of the API server and of DNS are made with their addresses, which are recorded.)
pub(super) fn service(owner: Owner<'_>, ports: &Ports) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.into()),
        protocol: Some("TCP".into()),
        port: port.into(),
        target_port: Some(IntOrString::Int(port.into())),
        ..ServicePort::default()
    };
    Service {
        metadata: meta(owner, SYNCER, SYNCER),
        spec: Some(ServiceSpec {
            selector: Some(pod_selector(owner.tenant, SYNCER)),
            ports: Some(vec![
                port(ADMIN_PORT, ports.syncer_admin),
                port("admission", ports.admission),
                port("egress", ports.egress),
            ]),
            // It answers the API server before it has listed everything, and reports what it waits for.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
