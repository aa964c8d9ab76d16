//! The tenant's kube-scheduler, for tenants that place their pods themselves.
//!
//! It places pods on the nodes that the tenant sees; the host's scheduler then has only that node to choose, and checks
//! whether the pod fits.

use super::{
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::{Component, FILES, SCHEDULER, file_flag, kubernetes_program, version_flags},
    input::ControlPlaneInput,
};
use berth_pki::Usage;
use std::collections::BTreeMap;

/// The user that it is in the tenant.
pub(super) const SCHEDULER_USER: &str = "system:kube-scheduler";
/// Port of its health, if it has one.
const PORT: u16 = 10259;

pub(super) fn render(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Component, CertificateError> {
    let identity = Leaf::new(SCHEDULER_USER, Usage::Client);
    let mut files = BTreeMap::new();
    leaves
        .issue(&authorities.client, SCHEDULER, &identity)?
        .put(&mut files, "client");
    files.insert(
        "kubeconfig".into(),
        authorities.kubeconfig_from_files(&input.endpoints.api_server.https_url())?,
    );
    files.insert("config.yaml".into(), configuration());
    let mut args = vec![file_flag("config", "config.yaml")];
    let (flags, health) = input.form.leader_election_flags(PORT);
    args.extend(flags);
    args.extend(version_flags(input.version));
    Ok(Component {
        name: SCHEDULER,
        program: kubernetes_program(input.version),
        args,
        env: BTreeMap::new(),
        files,
        host_service_account: None,
        memory_limit: None,
        replicas: input.form.replicas(),
        overlaps: true,
        health,
    })
}

/// Settings that have no flags. Devices are allocated on the host, where the drivers and all claims are: a scheduler in
/// the tenant would allocate the same devices a second time. So its plugin for devices is off, and it ignores the claims of
/// pods.
fn configuration() -> String {
    format!(
        "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: {FILES}/kubeconfig
enableProfiling: false
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      disabled:
      - name: DynamicResources
"
    )
}
