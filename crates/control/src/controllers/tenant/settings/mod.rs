//! What decides how a tenant runs, besides its nodes: its version, and the rules of its class.

mod chosen_version;
mod removals;

pub(super) use removals::without_removed;

use crate::{
    authentication::{self, ResolvedAuthentication},
    controllers::tenant_class::{self, class_of},
    network::{self, AllowedNetworks},
};
use berth_api::{
    ArgoCdRegistration, ArgoCdServer, ClassAudit, ClassAuthentication, ClassEncryption, ClassManifest, ClassSleep,
    ControlPlaneService, ControlPlaneServicePolicy, DEFAULT_CLASS, DnsPolicy, ExpirationPolicy, NodeMode,
    SchedulingMode, StorageOffer, SyncPolicy, TenantAccess, TenantClass, TenantClassSpec, TenantCluster, TenantLimits,
    conditions::{ACCEPTED, ConditionUpdate},
    hostnames, images,
    network::ClassNetwork,
    sync_policy::{IngressPolicy, PodPolicy, SharedNodesPolicy, allows},
};
use chosen_version::choose_version;
use ipnet::IpNet;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// Reason: Berth cannot run the version here.
pub(super) const UNSUPPORTED_VERSION: &str = "UnsupportedVersion";
/// Reason: the class does not allow the issuers of the spec.
pub(super) const AUTHENTICATION_NOT_ALLOWED: &str = "AuthenticationNotAllowed";
/// Reason: the class does not allow how the tenant is to be registered in Argo CD.
pub(super) const ARGO_CD_NOT_ALLOWED: &str = "ArgoCDNotAllowed";

/// How a tenant runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Kubernetes version.
    pub version: String,
    /// The class; none when these are Berth's own defaults.
    pub class: Option<String>,
    /// Whether the host or the tenant schedules pods.
    pub scheduling: SchedulingMode,
    /// Replicas of each component of the control plane that may have several.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Where the team reaches its API server.
    #[serde(default)]
    pub endpoint: ControlPlaneService,
    /// What is synced, and by which rules.
    pub sync: SyncPolicy,
    /// The rules of its DNS.
    #[serde(default)]
    pub dns: DnsPolicy,
    /// The network rules of its class.
    #[serde(default)]
    pub class_network: ClassNetwork,
    /// Networks that the tenant may reach and be reached from; none for tenants of versions without this setting.
    #[serde(default)]
    pub network: AllowedNetworks,
    /// How much it may store and create.
    #[serde(default)]
    pub limits: TenantLimits,
    /// What of its objects is encrypted where it is stored; none: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<ClassEncryption>,
    /// How long it exists, as far as its class says.
    #[serde(default)]
    pub expiration: ExpirationPolicy,
    /// Whose tokens its API server accepts.
    #[serde(default)]
    pub authentication: ResolvedAuthentication,
    /// Seconds for which a token of one of its ServiceAccounts is valid at most.
    #[serde(default = "max_token_seconds")]
    pub max_token_seconds: i64,
    /// What its API server writes into an audit log; none: it has no audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<ClassAudit>,
    /// Who has a role in all of it.
    #[serde(default)]
    pub access: TenantAccess,
    /// How it sleeps, as far as its class says.
    #[serde(default)]
    pub sleep: ClassSleep,
    /// What the platform applies in it.
    #[serde(default)]
    pub manifests: Vec<ClassManifest>,
    /// How it is registered in Argo CD; none: it is not.
    #[serde(default, rename = "argoCD")]
    pub argo_cd: Option<ArgoCdRegistration>,
    /// Whether its class registers it, and not its spec.
    #[serde(default, rename = "argoCDFromClass")]
    pub argo_cd_from_class: bool,
    /// At which address Argo CD reaches it, as its class says.
    #[serde(default, rename = "argoCDServer")]
    pub argo_cd_server: ArgoCdServer,
    /// What of storage the class no longer offers and whose grace period is over: pods that use it end.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub withdrawn_storage: BTreeSet<StorageOffer>,
}

/// The default of settings that earlier versions recorded.
fn one() -> u32 {
    1
}

/// As [`one`].
fn max_token_seconds() -> i64 {
    ClassAuthentication::default().max_token_seconds()
}

impl Settings {
    /// Name of the class, as host objects that are made for a class carry it.
    pub fn class_name(&self) -> &str {
        self.class.as_deref().unwrap_or(DEFAULT_CLASS)
    }

    /// Whether the tenant comes from another class: its status still names that one.
    pub(super) fn is_new_class(&self, cluster: &TenantCluster) -> bool {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| status.class_name != self.class)
    }
}

/// The settings that a spec asks for, or why its class does not allow them. `versions` are those that can be run here.
///
/// # Errors
/// The condition Accepted.
pub fn resolve(
    cluster: &TenantCluster,
    classes: impl Fn(&str) -> Option<Arc<TenantClass>>,
    versions: &[String],
    blocked: &[IpNet],
) -> Result<Settings, ConditionUpdate> {
    let spec = &cluster.spec;
    let settings = |class: Option<String>, rules: &TenantClassSpec| {
        let class_name = class.as_deref().unwrap_or(DEFAULT_CLASS);
        let version = choose_version(cluster, (class_name, rules), versions)?;
        let network = network::resolve_allowed_networks(&spec.network, &rules.network, blocked);
        let namespace = cluster.namespace().unwrap_or_default();
        let policy = &rules.integrations.argo_cd;
        let argo_cd = policy.resolve(class_name, &namespace, requested_argo_cd(cluster));
        let settings = Settings {
            argo_cd: argo_cd.map_err(|why| reject(ARGO_CD_NOT_ALLOWED, why))?,
            argo_cd_from_class: requested_argo_cd(cluster).is_none(),
            argo_cd_server: policy.server,
            version,
            class,
            scheduling: spec.scheduling_mode.unwrap_or(rules.scheduling_mode),
            replicas: spec.control_plane.as_ref().map_or(1, |wanted| wanted.replicas),
            endpoint: spec.service(),
            sync: SyncPolicy {
                pods: expand_images(cluster, &rules.sync.pods),
                ingress: expand_hostnames(cluster, &rules.sync.ingress),
                shared_nodes: restrict_shared_nodes(cluster, &rules.sync.shared_nodes),
                ..rules.sync.clone()
            },
            dns: rules.dns.clone(),
            class_network: rules.network.clone(),
            network: network.map_err(|why| reject("NetworkNotAllowed", why))?,
            limits: rules.limits.clone(),
            encryption: rules.encryption.clone(),
            expiration: rules.expiration.clone(),
            authentication: authentication::resolve(spec.authentication.as_ref(), rules)
                .map_err(|why| reject(AUTHENTICATION_NOT_ALLOWED, why))?,
            max_token_seconds: rules.authentication.max_token_seconds(),
            audit: rules.audit.clone(),
            access: spec.access.clone(),
            sleep: rules.sleep.clone(),
            manifests: rules.manifests.clone(),
            withdrawn_storage: BTreeSet::new(),
        };
        let rejection = find_service_error(&settings, &rules.control_plane.service)
            .or_else(|| find_shared_pool_error(&settings, &rules.sync.shared_nodes));
        rejection.map_or(Ok(settings), Err)
    };
    let Some(name) = class_of(cluster, |name| classes(name).is_some()) else {
        return settings(None, &TenantClassSpec::default());
    };
    let Some(class) = classes(&name) else {
        return Err(reject("UnknownClass", describe_unknown_class(cluster, &name)));
    };
    if let Err(invalid) = tenant_class::validate(&class.spec) {
        return Err(reject(
            "InvalidClass",
            format!("TenantClass {name} contradicts itself, ask the platform team to correct it: {invalid}"),
        ));
    }
    settings(Some(name), &class.spec)
}

/// What a tenant runs with as long as its spec is not accepted: what it was accepted with last, under the rules that its class has
/// now, and without the people, and the Argo CD, that the spec no longer lets in. A spec that cannot be carried out keeps no rule away.
pub(super) fn under_rules(accepted: Settings, cluster: &TenantCluster, rules: &TenantClassSpec) -> Settings {
    let accepted = without_removed(accepted, cluster, Some(rules));
    Settings {
        sync: SyncPolicy {
            pods: expand_images(cluster, &rules.sync.pods),
            ingress: expand_hostnames(cluster, &rules.sync.ingress),
            shared_nodes: SharedNodesPolicy {
                pools: accepted.sync.shared_nodes.pools,
                ..rules.sync.shared_nodes.clone()
            },
            ..rules.sync.clone()
        },
        dns: rules.dns.clone(),
        class_network: rules.network.clone(),
        limits: rules.limits.clone(),
        encryption: rules.encryption.clone(),
        expiration: rules.expiration.clone(),
        sleep: rules.sleep.clone(),
        manifests: rules.manifests.clone(),
        authentication: accepted.authentication,
        max_token_seconds: rules.authentication.max_token_seconds(),
        audit: rules.audit.clone(),
        access: accepted.access,
        argo_cd_from_class: accepted.argo_cd_from_class || accepted.argo_cd.is_none(),
        argo_cd: accepted.argo_cd.or_else(|| registration_of_all(cluster, rules)),
        argo_cd_server: rules.integrations.argo_cd.server,
        version: accepted.version,
        class: accepted.class,
        scheduling: accepted.scheduling,
        replicas: accepted.replicas,
        endpoint: accepted.endpoint,
        network: accepted.network,
        // What is withdrawn is decided each time.
        withdrawn_storage: BTreeSet::new(),
    }
}

/// How the tenant asks to be registered in Argo CD.
fn requested_argo_cd(cluster: &TenantCluster) -> Option<&ArgoCdRegistration> {
    cluster.spec.integrations.as_ref()?.argo_cd.as_ref()
}

/// How a tenant is registered in Argo CD that does not ask for it, if its class registers all.
fn registration_of_all(cluster: &TenantCluster, rules: &TenantClassSpec) -> Option<ArgoCdRegistration> {
    let namespace = cluster.namespace().unwrap_or_default();
    let policy = &rules.integrations.argo_cd;
    policy.resolve("", &namespace, None).ok().flatten()
}

/// The rules for Ingresses with the tenant's own names in place of placeholders. The syncer and the host's admission policies get them
/// like this.
fn expand_hostnames(cluster: &TenantCluster, rules: &IngressPolicy) -> IngressPolicy {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let expand = |template: &String| hostnames::expand(template, &name, &namespace);
    IngressPolicy {
        hostnames: rules.hostnames.iter().map(expand).collect(),
        ..rules.clone()
    }
}

/// The rules for pods with the tenant's own names in place of placeholders in images, as with host names.
fn expand_images(cluster: &TenantCluster, rules: &PodPolicy) -> PodPolicy {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let expand = |templates: &Vec<String>| {
        let templates = templates.iter();
        templates
            .map(|template| images::expand(template, &name, &namespace))
            .collect()
    };
    PodPolicy {
        images: rules.images.as_ref().map(expand),
        ..rules.clone()
    }
}

/// The rules for shared nodes with the pools that the tenant asks for instead of those that its class lists.
fn restrict_shared_nodes(cluster: &TenantCluster, rules: &SharedNodesPolicy) -> SharedNodesPolicy {
    let groups = cluster
        .spec
        .node_groups
        .iter()
        .filter(|group| group.mode == NodeMode::Shared);
    let pools: BTreeSet<&str> = groups.map(|group| group.pool_name.as_str()).collect();
    SharedNodesPolicy {
        pools: pools.into_iter().map(ToOwned::to_owned).collect(),
        ..rules.clone()
    }
}

/// Why the shared pools of the spec are not allowed.
fn find_shared_pool_error(settings: &Settings, rules: &SharedNodesPolicy) -> Option<ConditionUpdate> {
    let requested = &settings.sync.shared_nodes.pools;
    let class = settings.class_name();
    if let Some(foreign) = requested.iter().find(|pool| !allows(&rules.pools, pool)) {
        return Some(reject(
            "SharedPoolNotAllowed",
            format!(
                "TenantClass {class} does not allow the shared pool {foreign}; remove the group from spec.nodeGroups, or ask \
                 the platform team to list the pool in the class's spec.sync.sharedNodes.pools"
            ),
        ));
    }
    // A scheduler in the tenant does not see what other tenants use of the nodes.
    (!requested.is_empty() && settings.scheduling == SchedulingMode::Tenant).then(|| {
        reject(
            "SharedPoolNotAllowed",
            "a scheduler in the tenant does not know what others use of shared nodes; set spec.schedulingMode to Host, or \
             remove the groups of mode Shared from spec.nodeGroups"
                .into(),
        )
    })
}

/// Why the class does not allow the Service of the API server.
pub(super) fn find_service_error(settings: &Settings, rules: &ControlPlaneServicePolicy) -> Option<ConditionUpdate> {
    let class = settings.class_name();
    let ControlPlaneService {
        kind,
        hostnames: _,
        annotations,
    } = &settings.endpoint;
    if !rules.types.is_empty() && !rules.types.contains(kind) {
        let types: Vec<&str> = rules.types.iter().map(|kind| kind.as_str()).collect();
        return Some(ConditionUpdate::mark_false(
            ACCEPTED,
            "EndpointNotAllowed",
            format!(
                "TenantClass {class} does not allow endpoints of type {}; set spec.controlPlane.service.type to one of {}",
                kind.as_str(),
                types.join(", ")
            ),
        ));
    }
    let foreign = annotations.keys().find(|key| !rules.annotations.contains(key))?;
    Some(ConditionUpdate::mark_false(
        ACCEPTED,
        "EndpointNotAllowed",
        format!(
            "TenantClass {class} does not allow the annotation {foreign}; remove it from spec.controlPlane.service.annotations, or \
             ask the platform team to list it in the class's spec.controlPlane.service.annotations"
        ),
    ))
}

fn describe_unknown_class(cluster: &TenantCluster, name: &str) -> String {
    let earlier = cluster.status.as_ref().and_then(|status| status.class_name.as_deref());
    if earlier == Some(name) {
        format!(
            "TenantClass {name} was deleted; the tenant keeps its rules. Create the class again, or set \
             spec.className to another"
        )
    } else {
        format!("there is no TenantClass {name:?}; set spec.className to one that exists, or remove it")
    }
}

fn reject(reason: &'static str, message: String) -> ConditionUpdate {
    ConditionUpdate::mark_false(ACCEPTED, reason, message)
}

#[cfg(test)]
mod tests;
