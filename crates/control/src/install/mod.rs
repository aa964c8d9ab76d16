//! Installation and uninstallation on a host cluster: CustomResourceDefinitions, control's namespace and RBAC ([`manifests`]),
//! admission policies, the datastore's certificates, whether an installation works, and the objects that an uninstallation checks
//! and deletes.

pub mod certificates;
pub mod check;
pub mod manifests;
pub mod uninstall;

use crate::apply::{Applier, ApplyError};
use berth_api::{GROUP, VERSION};
use k8s_openapi::{
    Resource as _, api::admissionregistration::v1::MutatingAdmissionPolicy,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use tokio::time::Instant;

/// Time within which the host must serve a new definition.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);
/// Label of all objects that an installation creates besides those of the chart.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "berth");
/// Label value of Secrets that [`certificates`] made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth-control");
/// Interval between checks of a new definition.
const POLL: Duration = Duration::from_millis(20);

/// Why Berth could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The host rejected an object.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The host does not serve a definition.
    #[error(
        "the host does not serve {name} {ESTABLISHED_WITHIN:?} after it was applied; see the log of its kube-apiserver"
    )]
    NotEstablished {
        /// Name of the definition.
        name: String,
    },
}

/// Applies the CustomResourceDefinitions, control's namespace, its RBAC for `user`, and the admission policies. The user may also run control planes
/// as processes. Returns when the definitions are established. Needs cluster-admin. A second call upgrades the installation.
///
/// # Errors
/// The host rejects an object, or does not serve the definitions in time.
pub async fn install(client: &Client, user: &str) -> Result<(), InstallError> {
    let applier = Applier::new(client.clone());
    let definitions = berth_api::crd::all();
    for definition in &definitions {
        applier.apply(definition).await?;
    }
    applier.apply(&manifests::namespace()).await?;
    applier.apply(&manifests::scrub_service_account()).await?;
    applier.apply(&manifests::placeholder_priority()).await?;
    for role in manifests::cluster_roles() {
        applier.apply(&role).await?;
    }
    for binding in manifests::cluster_role_bindings(user) {
        applier.apply(&binding).await?;
    }
    applier.apply(&manifests::role()).await?;
    applier.apply(&manifests::role_binding(user)).await?;
    let (role, binding) = manifests::process_runtime_role(user);
    applier.apply(&role).await?;
    applier.apply(&binding).await?;
    // Parameters of policies are of these kinds: an API server that does not find a kind looks for it again only after 30 seconds,
    // and ignores the policy until then.
    wait_until_served(client, &definitions).await?;
    for policy in berth_admission_policies::all_policies() {
        applier.apply(&policy.build_policy()).await?;
        applier.apply(&policy.build_binding()).await?;
    }
    if serves_mutating_policies(client).await? {
        for (policy, binding) in berth_admission_policies::mutating_policies() {
            applier.apply(&policy).await?;
            applier.apply(&binding).await?;
        }
    }
    Ok(())
}

/// Whether the host can change requests by policies, as it can from Kubernetes 1.36 on.
async fn serves_mutating_policies(client: &Client) -> Result<bool, InstallError> {
    let served = client
        .list_api_group_resources(MutatingAdmissionPolicy::API_VERSION)
        .await;
    let served = served.map_err(|source| ApplyError {
        object: MutatingAdmissionPolicy::KIND.into(),
        source: Box::new(source),
    })?;
    let mut resources = served.resources.iter();
    Ok(resources.any(|resource| resource.kind == MutatingAdmissionPolicy::KIND))
}

/// Applies what a gateway may do on the host that is no pod of the chart. Needs cluster-admin.
///
/// # Errors
/// The host rejects an object.
pub async fn install_gateway(client: &Client) -> Result<(), InstallError> {
    let applier = Applier::new(client.clone());
    let (role, binding) = manifests::gateway_role();
    applier.apply(&role).await?;
    applier.apply(&binding).await?;
    Ok(())
}

/// Waits until the definitions are established and discovery shows their kinds.
async fn wait_until_served(client: &Client, definitions: &[CustomResourceDefinition]) -> Result<(), InstallError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let group_version = format!("{GROUP}/{VERSION}");
    let deadline = Instant::now() + ESTABLISHED_WITHIN;
    for definition in definitions {
        let name = definition.name_any();
        let is_served = async || {
            let established = api.get(&name).await.is_ok_and(|definition| is_established(&definition));
            let listed = client.list_api_group_resources(&group_version).await;
            established
                && listed.is_ok_and(|list| {
                    let mut resources = list.resources.iter();
                    resources.any(|resource| resource.name == definition.spec.names.plural)
                })
        };
        while !is_served().await {
            if Instant::now() > deadline {
                return Err(InstallError::NotEstablished {
                    name: definition.name_any(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}
