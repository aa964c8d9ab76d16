//! The registration of a tenant in the platform's Argo CD: a Secret in Argo CD's namespace, and a ClusterRoleBinding in the tenant.
//!
//! The Secret is in a namespace that is not the tenant's, so nothing deletes it with its owner. A ConfigMap in the control-plane namespace
//! records where it is, before it is written and until it is deleted: a tenant is found registered whatever the platform's settings are
//! by then. What fails here is in the condition `ArgoCDRegistered` and stops nothing else.

use super::{
    super::{
        argo_cd::{ObservedRegistration, Recorded},
        build::{argo_cd, host_objects},
        context::TenantContext,
        settings::Settings,
        target::Tenant,
    },
    Accepted, Prepared,
    bootstrap_objects::apply_binding,
    keys,
};
use crate::{
    apply::{Applier, delete_same, optional},
    control_plane::{ARGO_CD_USER, Authorities, CertificateError, Endpoints, Issued, Leaf, LeafStore},
    error::{ReconcileError, api},
};
use berth_api::{ArgoCdRegistration, ArgoCdServer, labels, names::TenantId};
use berth_pki::Usage;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kube::{Api, ResourceExt, api::DeleteParams, core::PartialObjectMeta};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// Pause before a registration that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Name of the ConfigMap in the control-plane namespace, and of the certificate among the tenant's leaves.
const NAME: &str = "argo-cd";
/// Key of the ConfigMap: the namespace of the Secret.
const NAMESPACE_KEY: &str = "namespace";

/// Whether the tenant is to be a cluster in Argo CD, and the platform has one.
pub(super) fn is_registered(context: &TenantContext, settings: &Settings) -> bool {
    settings.argo_cd.is_some() && context.argo_cd_namespace.is_some()
}

/// Whether Argo CD, if the tenant is registered, connects to its API server itself and not through the gateway.
pub(super) fn connects_directly(context: &TenantContext, settings: &Settings) -> bool {
    is_registered(context, settings) && !uses_gateway(settings.argo_cd_server, context.network_config.gateway.is_some())
}

/// Whether the Secret leads through the gateway. Without a gateway, one from before stays as it is.
fn uses_gateway(server: ArgoCdServer, has_gateway: bool) -> bool {
    has_gateway && server == ArgoCdServer::Gateway
}

/// The URL at which Argo CD reaches the tenant; none: it is to be one at the gateway, and there is no gateway. The team chooses no part of
/// it but the names of the TenantCluster and its namespace, which no other tenant has.
fn find_server(settings: &Settings, endpoints: &Endpoints) -> Option<String> {
    match settings.argo_cd_server {
        ArgoCdServer::Service => Some(endpoints.api_server.https_url()),
        ArgoCdServer::Gateway => endpoints.gateway.clone(),
    }
}

/// The client certificate of Argo CD. It is renewed as all leaves are, and dropped when it is no longer issued.
///
/// # Errors
/// A new certificate cannot be made.
pub(super) fn issue_certificate(authorities: &Authorities, leaves: &mut LeafStore) -> Result<Issued, CertificateError> {
    let leaf = Leaf::new(ARGO_CD_USER, Usage::Client);
    leaves.issue(&authorities.client, NAME, &leaf)
}

/// What writes in a tenant that answers.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) applier: &'a Applier,
    /// Since when the reconcile writes in the tenant.
    pub(super) begun: Instant,
}

/// Registers the tenant as its settings say, or ends its registration. `writer` is of a tenant that answers.
pub(super) async fn keep_registration(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    writer: Option<Writer<'_>>,
) -> ObservedRegistration {
    let tenant = &prepared.accepted.tenant;
    let mut recorded = tenant.memory.argo_cd.lock().await;
    match make_match(context, prepared, writer, &mut recorded).await {
        Ok(observed) => observed,
        Err(error) => {
            // What was recorded is not known.
            *recorded = Recorded::Unknown;
            context.queue.add_after(tenant.key(), RETRY);
            ObservedRegistration::from_error(&error)
        }
    }
}

async fn make_match(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    writer: Option<Writer<'_>>,
    recorded: &mut Recorded,
) -> Result<ObservedRegistration, ReconcileError> {
    let Accepted {
        tenant,
        settings,
        // Argo CD works in a tenant without nodes, too.
        schedule: _,
        ceilings: _,
    } = prepared.accepted;
    if *recorded == Recorded::Unknown {
        *recorded = load_record(context, &tenant.id).await?;
    }
    let wanted = settings.argo_cd.as_ref();
    let target = wanted.and(context.argo_cd_namespace.as_deref());
    let server = find_server(settings, &prepared.endpoints);
    if let Recorded::In(namespace) = recorded.clone()
        && target != Some(namespace.as_str())
        // The Secret moves only if it can be written in its new place.
        && (target.is_none() || server.is_some())
    {
        delete_secret(context, &tenant.id, tenant.cluster.uid().as_deref(), &namespace).await?;
        if target.is_none() {
            let Some(writer) = writer else {
                return Ok(ObservedRegistration::Revoking);
            };
            revoke_rights(tenant, writer).await?;
            delete_record(context, &tenant.id).await?;
            *recorded = Recorded::Nowhere;
        }
    }
    let (registration, namespace) = match (wanted, target) {
        (None, _) => return Ok(ObservedRegistration::NotRegistered),
        (Some(_), None) => return Ok(ObservedRegistration::NotConfigured),
        (Some(registration), Some(namespace)) => (registration, namespace),
    };
    match (server, writer) {
        (None, _) => Ok(ObservedRegistration::NoGateway {
            class: settings.class_name().to_owned(),
            has_secret: *recorded != Recorded::Nowhere,
        }),
        // The Secret stays as it is.
        (Some(_), None) => Ok(ObservedRegistration::NotObserved),
        (Some(server), Some(writer)) => {
            let place = Place { namespace, server };
            register(context, prepared, registration, (&place, writer), recorded).await?;
            Ok(ObservedRegistration::Registered {
                secret: format!("{namespace}/{}", tenant.id.argo_cd_secret()),
                name: argo_cd::cluster_name(&tenant.cluster),
            })
        }
    }
}

/// Where the Secret is, and where it leads.
struct Place<'a> {
    /// Namespace of Argo CD.
    namespace: &'a str,
    /// URL of the tenant's API server.
    server: String,
}

/// Makes Argo CD cluster-admin in the tenant, and writes the Secret by which Argo CD reaches the tenant.
async fn register(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    registration: &ArgoCdRegistration,
    (place, writer): (&Place<'_>, Writer<'_>),
    recorded: &mut Recorded,
) -> Result<(), ReconcileError> {
    let Accepted {
        tenant,
        settings,
        schedule: _,
        ceilings: _,
    } = prepared.accepted;
    let Place { namespace, server } = place;
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let name = tenant.id.argo_cd_secret();
    let existing = optional(secrets.get_metadata(&name).await).map_err(api("get the Secret for Argo CD"))?;
    let uid = tenant.cluster.uid();
    if existing.as_ref().is_some_and(|secret| !is_of(secret, uid.as_deref())) {
        return Err(ReconcileError::Blocked {
            reason: "SecretExists",
            message: format!(
                "Secret {namespace}/{name} exists and is not this tenant's; ask the platform team to delete it. Berth tries again"
            ),
        });
    }
    let record = Recorded::In((*namespace).to_owned());
    if *recorded != record {
        store_record(tenant, namespace).await?;
        *recorded = record;
    }
    let grant = async { Ok::<_, ReconcileError>(apply_binding(writer.applier, &argo_cd::admin_binding()).await?) };
    tenant.write_in_rest(writer.begun, Box::pin(grant)).await?;
    let mut leaves = keys::load_certificates(context, tenant, Timestamp::now()).await?;
    let certificate = issue_certificate(&prepared.authorities, &mut leaves)?;
    let access = argo_cd::Access {
        server,
        ca_pem: prepared.authorities.server.cert_pem(),
        cert_pem: &certificate.cert_pem,
        key_pem: &certificate.key_pem,
    };
    let mut secret = argo_cd::cluster_secret(
        &tenant.cluster,
        &tenant.id,
        settings.class_name(),
        namespace,
        registration,
        &access,
    );
    let host = &tenant.memory.host;
    match existing {
        // Nothing is written into another Secret that has its name by then.
        Some(existing) => {
            secret.metadata.uid = existing.metadata.uid;
            host.apply(&secret).await?;
        }
        None => host.apply_again(&secret).await?,
    }
    Ok(())
}

/// Removes what Argo CD knows of a tenant that is deleted, wherever that is.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn delete_registration(
    context: &TenantContext,
    tenant: &TenantId,
    uid: Option<&str>,
) -> Result<(), ReconcileError> {
    let mut namespaces: BTreeSet<String> = context.argo_cd_namespace.iter().cloned().collect();
    if let Recorded::In(namespace) = load_record(context, tenant).await? {
        namespaces.insert(namespace);
    }
    for namespace in &namespaces {
        delete_secret(context, tenant, uid, namespace).await?;
    }
    Ok(())
}

/// Whether a Secret was made for the TenantCluster with this UID.
fn is_of(secret: &PartialObjectMeta<Secret>, uid: Option<&str>) -> bool {
    uid.is_some() && secret.annotations().get(labels::OWNER_UID).map(String::as_str) == uid
}

/// Deletes the tenant's Secret in a namespace. Another Secret of that name stays.
async fn delete_secret(
    context: &TenantContext,
    tenant: &TenantId,
    uid: Option<&str>,
    namespace: &str,
) -> Result<(), ReconcileError> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let existing = optional(secrets.get_metadata(&tenant.argo_cd_secret()).await);
    match existing.map_err(api("get the Secret for Argo CD"))? {
        Some(secret) if is_of(&secret, uid) => delete_same(&secrets, &secret.metadata, None)
            .await
            .map(drop)
            .map_err(api("delete the Secret for Argo CD")),
        _ => Ok(()),
    }
}

/// Takes away what Argo CD may do in the tenant.
async fn revoke_rights(tenant: &Tenant, writer: Writer<'_>) -> Result<(), ReconcileError> {
    let Writer { applier, begun } = writer;
    let bindings: Api<ClusterRoleBinding> = Api::all(applier.client().clone());
    let revoke = async {
        let deleted = bindings.delete(ARGO_CD_USER, &DeleteParams::default()).await;
        optional(deleted).map_err(api("delete the ClusterRoleBinding of Argo CD in the tenant"))?;
        Ok::<_, ReconcileError>(())
    };
    tenant.write_in_rest(begun, revoke).await?;
    // It would be remembered as applied.
    applier.forget();
    Ok(())
}

fn records(context: &TenantContext, tenant: &TenantId) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), &tenant.control_plane_namespace())
}

/// Where the Secret is, as it was recorded last.
async fn load_record(context: &TenantContext, tenant: &TenantId) -> Result<Recorded, ReconcileError> {
    let map = optional(records(context, tenant).get(NAME).await);
    let map = map.map_err(api("read where the tenant is registered in Argo CD"))?;
    let namespace = map.and_then(|map| map.data?.remove(NAMESPACE_KEY));
    Ok(namespace.map_or(Recorded::Nowhere, Recorded::In))
}

async fn store_record(tenant: &Tenant, namespace: &str) -> Result<(), ReconcileError> {
    let data = [(NAMESPACE_KEY.into(), namespace.into())].into();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, NAME, data);
    Ok(tenant.memory.host.apply_again(&map).await?)
}

async fn delete_record(context: &TenantContext, tenant: &TenantId) -> Result<(), ReconcileError> {
    let deleted = records(context, tenant).delete(NAME, &DeleteParams::default()).await;
    optional(deleted).map_err(api("delete the record of the registration in Argo CD"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argo_cd_connects_to_api_servers_unless_there_is_a_gateway_that_it_uses() {
        assert!(uses_gateway(ArgoCdServer::Gateway, true));
        assert!(!uses_gateway(ArgoCdServer::Gateway, false));
        assert!(!uses_gateway(ArgoCdServer::Service, true));
    }
}
