//! The team's kubeconfig, in a Secret beside the `TenantCluster`, and what is published for kubeconfigs without a secret.

use super::{
    super::{build::host_objects, context::TenantContext, target::Tenant},
    Prepared,
    control_plane::admin_leaf,
    keys,
};
use crate::{
    apply::{delete_same, optional},
    authentication::publish_kubeconfig,
    error::{ReconcileError, api},
};
use berth_api::{KubeconfigStatus, labels};
use berth_pki::kubeconfig::Credential;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};

impl Prepared<'_> {
    /// What people need to sign in with a kubeconfig that holds no secret, for the status.
    pub(crate) fn published_kubeconfig(&self) -> Option<KubeconfigStatus> {
        let rules = &self.accepted.settings.authentication.rules;
        publish_kubeconfig(rules, self.authorities.server.cert_pem())
    }
}

/// Writes the team's kubeconfig into the Secret beside the TenantCluster, and returns it.
///
/// # Errors
/// The host refuses or does not answer, or the Secret is not Berth's.
pub(super) async fn apply_kubeconfig(
    context: &TenantContext,
    prepared: &Prepared<'_>,
) -> Result<String, ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let authorities = &prepared.authorities;
    let mut leaves = keys::load_certificates(context, tenant, Timestamp::now()).await?;
    let admin = leaves.issue(&authorities.client, "admin", &admin_leaf())?;
    let user = Credential::ClientCertificate {
        cert_pem: admin.cert_pem,
        key_pem: admin.key_pem,
    };
    let name = tenant.cluster.name_any();
    let kubeconfig = authorities.kubeconfig(&prepared.endpoints.public.url, &name, user)?;
    let exists = keep_only_current(context, tenant).await?;
    let secret = host_objects::kubeconfig_secret(&tenant.cluster, &tenant.id, &kubeconfig);
    let host = &tenant.memory.host;
    if exists {
        host.apply(&secret).await?;
    } else {
        host.apply_again(&secret).await?;
    }
    Ok(kubeconfig)
}

/// Whether the Secret exists. One of an earlier version, which had another type, and one that somebody made immutable are deleted: neither can
/// be changed.
///
/// # Errors
/// Another Secret of the team has the kubeconfig's name: it must not be overwritten. Or the host refuses or does not answer.
async fn keep_only_current(context: &TenantContext, tenant: &Tenant) -> Result<bool, ReconcileError> {
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    let name = host_objects::kubeconfig_secret_name(&tenant.cluster);
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let existing = optional(secrets.get(&name).await).map_err(api("get the kubeconfig Secret"))?;
    let Some(secret) = existing else {
        return Ok(false);
    };
    if secret.labels().get(labels::TENANT).map(String::as_str) != Some(tenant.id.slug()) {
        return Err(ReconcileError::Blocked {
            reason: "SecretExists",
            message: format!(
                "Secret {namespace}/{name} exists and is not this tenant's; delete or rename it, or give the \
                 TenantCluster another name"
            ),
        });
    }
    if secret.type_.as_deref() == Some(host_objects::KUBECONFIG_TYPE) && secret.immutable != Some(true) {
        return Ok(true);
    }
    // Only what was read: by now it may not be this tenant's any more.
    delete_same(&secrets, &secret.metadata, secret.resource_version())
        .await
        .map_err(api("replace the kubeconfig Secret"))?;
    Ok(false)
}
