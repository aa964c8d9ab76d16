//! What an installation puts onto a host cluster and takes off it again: custom resource definitions, control's namespace
//! and RBAC ([`manifests`]), the admission policies, the datastore's certificates, and what uninstalling checks and removes.

pub mod certificates;
pub mod manifests;
pub mod uninstall;

use crate::apply::{Applier, ApplyError};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use tokio::time::Instant;

/// Time within which a new definition must be served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// Label of everything that an installation made without the chart naming it.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "berth");
/// Label value of Secrets that [`certificates`] made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth-control");
/// Pause between looks at a definition that is not served yet.
const POLL: Duration = Duration::from_millis(20);

/// Why Berth could not be put onto a host cluster.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The host refused an object.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A definition was accepted and is not served.
    #[error("the host does not serve {name} {SERVED_WITHIN:?} after it was applied; see the log of its kube-apiserver")]
    NotServed {
        /// Name of the definition.
        name: String,
    },
}

/// Applies the custom resource definitions, control's namespace, its role, the role's binding to `user`, and the admission policies;
/// returns once the definitions are served. Needs cluster-admin. Doing it again upgrades what is there.
///
/// # Errors
/// The host refuses or does not serve the definitions in time.
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
    for policy in berth_admission_policies::all_policies() {
        applier.apply(&policy.build_policy()).await?;
        applier.apply(&policy.build_binding()).await?;
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let deadline = Instant::now() + SERVED_WITHIN;
    for definition in &definitions {
        let name = definition.name_any();
        while !api.get(&name).await.is_ok_and(|definition| is_served(&definition)) {
            if Instant::now() > deadline {
                return Err(InstallError::NotServed { name });
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

fn is_served(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}
