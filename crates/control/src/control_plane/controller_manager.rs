//! The tenant's kube-controller-manager, without controllers that the host replaces.

use super::{
    admission::created_by::CONTROLLER_MANAGER as CONTROLLER_MANAGER_USER,
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::{CONTROLLER_MANAGER, Component, file_flag, flag, kubernetes_program, version_flags},
    garbage_collection,
    input::ControlPlaneInput,
};
use berth_pki::Usage;
use std::collections::BTreeMap;

/// Port of its health, if it has one.
const PORT: u16 = 10257;

/// Controllers that must not run in a tenant, and why. An unknown name ends kube-controller-manager, so every name
/// must exist in every supported version; these are in 1.35, 1.36 and 1.37.
///
/// Controllers that concern only the API stay on: claims of ephemeral volumes are created in the tenant
/// (`ephemeral-volume-controller`) and synced like others, and the protection controllers remove the finalizers that the
/// API server adds to claims and volumes. `taint-eviction-controller` evicts pods from Nodes with a `NoExecute` taint, the
/// tenant's own or one of the host's conditions: the pod's controller replaces it, while the host waits for the node.
pub(super) const DISABLED: &[(&str, &str)] = &[
    (
        "node-lifecycle-controller",
        "the host watches its nodes; the tenant is shown their conditions",
    ),
    ("node-ipam-controller", "pod addresses come from the host's network"),
    (
        "persistentvolume-attach-detach-controller",
        "volumes are attached by the host",
    ),
    (
        "persistentvolume-binder-controller",
        "claims are bound on the host, where the volumes are; the tenant is shown the binding",
    ),
    (
        "persistentvolume-expander-controller",
        "volumes are grown by the host; the tenant is shown their size",
    ),
    (
        "resourceclaim-controller",
        "claims out of templates are made and reserved for pods on the host, where devices are allocated",
    ),
    (
        "device-taint-eviction-controller",
        "the host evicts pods from tainted devices; their pods in the tenant go with them",
    ),
];

pub(super) fn render(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Component, CertificateError> {
    let identity = Leaf::new(CONTROLLER_MANAGER_USER, Usage::Client);
    let issued = leaves.issue(&authorities.client, CONTROLLER_MANAGER, &identity)?;
    let mut files = BTreeMap::new();
    issued.put(&mut files, "client");
    files.insert("server-ca.crt".into(), authorities.server.cert_pem().into());
    files.insert(
        "service-account.key".into(),
        authorities.service_account.private_pem.clone(),
    );
    files.insert(
        "kubeconfig".into(),
        authorities.kubeconfig_from_files(&input.endpoints.api_server.https_url())?,
    );

    let controllers: Vec<String> = std::iter::once("*".to_owned())
        .chain(DISABLED.iter().map(|(name, _)| format!("-{name}")))
        .collect();
    let mut args = vec![
        file_flag("kubeconfig", "kubeconfig"),
        flag("controllers", controllers.join(",")),
        file_flag("root-ca-file", "server-ca.crt"),
        file_flag("service-account-private-key-file", "service-account.key"),
        flag("use-service-account-credentials", "true"),
        // Ended pods count for the tenant's limit of pods.
        flag("terminated-pod-gc-threshold", input.limits.ended_pods()),
        flag("profiling", "false"),
    ];
    let (flags, health) = input.form.leader_election_flags(PORT);
    args.extend(flags);
    args.extend(version_flags(input.version));
    Ok(Component {
        name: CONTROLLER_MANAGER,
        program: kubernetes_program(input.version),
        args,
        env: garbage_collection::environment(garbage_collection::CONTROLLER_MANAGER_GROWTH),
        files,
        host_service_account: None,
        memory_limit: None,
        replicas: input.form.replicas(),
        overlaps: true,
        health,
    })
}
