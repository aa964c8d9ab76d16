//! The platform's settings of the pods of control planes: read from one file, which the Helm chart writes.

use super::metrics_peers;
use crate::{
    control_plane::{API_SERVER, CONTROLLER_MANAGER, COREDNS, Component, Program, SCHEDULER, SYNCER},
    runtime::RuntimeError,
};
use berth_kubernetes_versions::{self as versions, emulation};
use k8s_openapi::{
    api::{
        core::v1::{ResourceRequirements, Toleration},
        networking::v1::NetworkPolicyPeer,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path};

/// Images, placement and resources of the pods of control planes, and who collects their metrics.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClusterSettings {
    /// Kubernetes versions of which the registry has images, newest first.
    pub versions: Vec<String>,
    /// Registry, and path in it, of the upstream images `kube-apiserver`, `kube-controller-manager` and
    /// `kube-scheduler`. Their tag is the version.
    pub kubernetes_registry: String,
    /// Digests of upstream images (`sha256:…`) by name and tag, such as `kube-apiserver:v1.37.1`. The images of the others are
    /// fetched by their tags.
    pub image_digests: BTreeMap<String, String>,
    /// Image of the syncer.
    pub syncer_image: String,
    /// When nodes fetch images: IfNotPresent, Always or Never.
    pub image_pull_policy: String,
    /// Names of Secrets in control's namespace with which nodes fetch images. Control copies them beside the pods.
    pub image_pull_secrets: Vec<String>,
    /// PriorityClass of the pods.
    pub priority_class_name: Option<String>,
    /// Labels of the nodes that control planes run on. Nodes of tenants are never among them.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that control planes tolerate.
    pub tolerations: Vec<Toleration>,
    /// Resources by component, in place of the defaults.
    pub resources: BTreeMap<String, ResourceRequirements>,
    /// Who may read the metrics of syncers, as peers of a NetworkPolicy in Berth's namespace, which may do so in any case.
    pub metrics_from: Vec<NetworkPolicyPeer>,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            versions: vec![berth_kubernetes_versions::KUBERNETES_DEFAULT.into()],
            kubernetes_registry: "registry.k8s.io".into(),
            image_digests: BTreeMap::new(),
            syncer_image: format!("ghcr.io/berth-dev/berth-syncer:{}", env!("CARGO_PKG_VERSION")),
            image_pull_policy: "IfNotPresent".into(),
            image_pull_secrets: Vec::new(),
            priority_class_name: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            resources: BTreeMap::new(),
            metrics_from: Vec::new(),
        }
    }
}

impl ClusterSettings {
    /// Reads settings from a JSON file. Missing fields are as in [`ClusterSettings::default`].
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown field or a peer that an API server refuses.
    pub fn read(path: &Path) -> Result<Self, RuntimeError> {
        let text = std::fs::read_to_string(path).map_err(|source| RuntimeError::Io {
            path: path.display().to_string(),
            source,
        })?;
        Self::parse(&text).map_err(|why| RuntimeError::Settings(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let settings: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (index, peer) in settings.metrics_from.iter().enumerate() {
            metrics_peers::validate(peer)
                .map_err(|why| format!("metricsFrom[{index}] (networkPolicies.metricsFrom of the chart): {why}"))?;
        }
        Ok(settings)
    }

    /// Versions that tenants can have, newest first.
    pub fn offered(&self) -> Vec<String> {
        emulation::offered(self.versions.clone())
    }

    /// Image of a component.
    pub fn image(&self, component: &Component) -> String {
        match &component.program {
            Program::Kubernetes { version } => self.upstream_image("", component.name, version),
            Program::CoreDns => self.upstream_image("coredns/", "coredns", versions::COREDNS),
            Program::Syncer => self.syncer_image.clone(),
        }
    }

    /// An upstream image in the registry, with its digest if the platform knows it: `folder` is its path there, empty or with a slash
    /// at the end.
    pub fn upstream_image(&self, folder: &str, name: &str, tag: &str) -> String {
        let image = format!("{name}:{tag}");
        let reference = format!("{}/{folder}{image}", self.kubernetes_registry);
        match self.image_digests.get(&image) {
            Some(digest) => format!("{reference}@{digest}"),
            None => reference,
        }
    }

    /// Resources of a component's container. `memory_limit` is the bytes that it may need with the most that its tenant may have: the limit is
    /// not lower, unless the platform has chosen one.
    pub fn resources(&self, component: &str, memory_limit: Option<u64>) -> ResourceRequirements {
        match (self.resources.get(component), default_resources(component)) {
            (Some(chosen), _) => chosen.clone(),
            (None, Some((cpu, memory, limit))) => {
                let quantity = |text: &str| Quantity(text.into());
                let own = memory_limit.map(|bytes| bytes.div_ceil(MIB));
                let limit = match own {
                    Some(own) if own > limit => own,
                    _ => limit,
                };
                let limit = mebibytes(limit);
                ResourceRequirements {
                    requests: Some(BTreeMap::from([
                        ("cpu".into(), quantity(cpu)),
                        ("memory".into(), quantity(memory)),
                    ])),
                    limits: Some(BTreeMap::from([("memory".into(), Quantity(limit))])),
                    claims: None,
                }
            }
            (None, None) => ResourceRequirements::default(),
        }
    }
}

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// A number of MiB as a quantity, as people write it.
fn mebibytes(count: u64) -> String {
    if count.is_multiple_of(1024) {
        format!("{}Gi", count / 1024)
    } else {
        format!("{count}Mi")
    }
}

/// CPU and memory that an idle tenant needs, with a margin (docs/operations/performance.md), and the memory limit in MiB, which a
/// busy tenant may use and which protects other pods of the node.
fn default_resources(component: &str) -> Option<(&'static str, &'static str, u64)> {
    match component {
        API_SERVER => Some(("100m", "256Mi", 2048)),
        CONTROLLER_MANAGER => Some(("25m", "64Mi", 1024)),
        SCHEDULER => Some(("25m", "48Mi", 512)),
        SYNCER => Some(("25m", "32Mi", 512)),
        COREDNS => Some(("25m", "32Mi", 256)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_have_defaults_and_unknown_fields_are_rejected() {
        let settings = ClusterSettings::parse(
            r#"{"versions": ["v1.37.1", "v1.36.4"], "kubernetesRegistry": "mirror.example/k8s",
                "resources": {"syncer": {"requests": {"cpu": "1"}}},
                "metricsFrom": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]}"#,
        )
        .unwrap();
        assert_eq!(settings.metrics_from.len(), 1);
        assert_eq!(settings.offered(), ["v1.37.1", "v1.36.4", "v1.35.0"]);
        assert_eq!(settings.image_pull_policy, "IfNotPresent");
        assert_eq!(settings.resources(SYNCER, Some(1 << 40)).limits, None);
        assert_eq!(
            settings.resources(API_SERVER, None).requests.unwrap()["memory"].0,
            "256Mi"
        );
        let error = ClusterSettings::parse(r#"{"registry": "x"}"#).unwrap_err();
        assert!(error.contains("registry"), "{error}");
    }

    #[test]
    fn peers_that_would_keep_tenants_from_their_policies_are_rejected() {
        let peers = r#"{"metricsFrom": [{"podSelector": {}}, {"ipBlock": {"cidr": "192.0.2.7"}}]}"#;
        let error = ClusterSettings::parse(peers).unwrap_err();
        assert!(
            error.contains("metricsFrom[1]") && error.contains("192.0.2.7 is not a range"),
            "{error}"
        );
    }

    #[test]
    fn the_memory_limit_follows_what_the_tenant_may_have() {
        let settings = ClusterSettings::default();
        let limit = |memory: Option<u64>| settings.resources(SYNCER, memory).limits.unwrap()["memory"].0.clone();
        assert_eq!(limit(None), "512Mi");
        assert_eq!(limit(Some(1)), "512Mi");
        assert_eq!(limit(Some((3 << 30) + 1)), "3073Mi");
    }

    #[test]
    fn upstream_images_have_the_digests_that_the_platform_knows() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let settings = ClusterSettings {
            kubernetes_registry: "mirror.example/k8s".into(),
            image_digests: BTreeMap::from([("kube-apiserver:v1.37.1".into(), digest.clone())]),
            ..ClusterSettings::default()
        };
        let image = |folder, name, tag| settings.upstream_image(folder, name, tag);
        assert_eq!(
            image("", API_SERVER, "v1.37.1"),
            format!("mirror.example/k8s/kube-apiserver:v1.37.1@{digest}")
        );
        assert_eq!(
            image("", API_SERVER, "v1.36.4"),
            "mirror.example/k8s/kube-apiserver:v1.36.4"
        );
        assert_eq!(
            image("coredns/", "coredns", "v1.14.7"),
            "mirror.example/k8s/coredns/coredns:v1.14.7"
        );
    }
}
