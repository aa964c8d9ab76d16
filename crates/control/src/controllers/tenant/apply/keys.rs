//! The tenant's keys and certificates, kept in Secrets of the control-plane namespace.
//!
//! `pki` holds the authorities, and the keys with which the tenant's objects are encrypted. It is created exactly once, and changed when a rotation
//! replaces one of them; `certificates` holds the leaves and follows renewals.
//! If somebody deletes `pki`, for example with its namespace, control stores what it knows again: the next one would make other keys, and no
//! kubeconfig and no token of the tenant would be accepted any more.

use super::super::{build::host_objects, context::TenantContext, memory::KnownAuthorities, target::Tenant};
use crate::{
    apply::{is_status, optional},
    control_plane::{
        Authorities, CertificateError, Encryption, EncryptionState, EncryptionStep, Kept, LeafStore, Rotation,
        RotationStep, encryption::keep,
    },
    error::{ReconcileError, api},
    secret_texts::read_texts,
};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, ResourceExt, api::PostParams};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Name of the Secret with the tenant's certificate authorities.
const AUTHORITIES: &str = "pki";
/// Name of the Secret with the tenant's leaf certificates.
const LEAVES: &str = "certificates";
/// Time after which control looks again whether the Secret with the authorities is there: as often as other objects are applied again.
const LOOK: Duration = Duration::from_secs(300);

/// The tenant's authorities: those stored, or new ones, stored before anything is signed with them.
///
/// # Errors
/// The host refuses or does not answer, or what is stored is damaged.
pub(super) async fn load_authorities(
    context: &TenantContext,
    tenant: &Tenant,
) -> Result<Arc<Authorities>, ReconcileError> {
    if let Some(known) = recall(tenant) {
        let is_kept = known.seen_at.elapsed() < LOOK || keep_stored(context, tenant, &known).await?;
        if is_kept {
            return Ok(known.loaded);
        }
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let mut stored = optional(secrets.get(AUTHORITIES).await).map_err(api("read the tenant's PKI"))?;
    if stored.is_none() {
        let new = host_objects::secret(
            &tenant.cluster,
            &tenant.id,
            AUTHORITIES,
            Authorities::create(tenant.id.hash())?,
        );
        stored = match secrets.create(&PostParams::default(), &new).await {
            Ok(created) => Some(created),
            // Another control created it first: its keys are the tenant's.
            Err(error) if is_status(&error, 409) => {
                optional(secrets.get(AUTHORITIES).await).map_err(api("read the tenant's PKI"))?
            }
            Err(error) => return Err(api("store the tenant's PKI")(error)),
        };
    }
    let mut version = stored.as_ref().and_then(ResourceExt::resource_version);
    let mut stored = stored.map(read_texts).unwrap_or_default();
    let missing = Authorities::missing(tenant.id.hash(), &stored)?;
    if !missing.is_empty() {
        // This fails if another control does the same at the same time; the next reconcile reads what that one stored.
        let added = add_authorities(&secrets, missing).await?;
        version = added.resource_version();
        stored = read_texts(added);
    }
    let loaded = Arc::new(Authorities::load(
        &stored,
        context.datastore.ca_cert(),
        context.datastore.ca_key(),
    )?);
    remember(
        tenant,
        Some(KnownAuthorities {
            loaded: Arc::clone(&loaded),
            stored,
            version,
            seen_at: Instant::now(),
        }),
    );
    Ok(loaded)
}

fn recall(tenant: &Tenant) -> Option<KnownAuthorities> {
    lock(&tenant.memory.authorities).clone()
}

fn remember(tenant: &Tenant, known: Option<KnownAuthorities>) {
    *lock(&tenant.memory.authorities) = known;
}

/// Stores the known authorities again if their Secret is gone, and the keys of encryption if somebody has taken them out of it. Returns whether the
/// authorities are as they are known.
async fn keep_stored(
    context: &TenantContext,
    tenant: &Tenant,
    known: &KnownAuthorities,
) -> Result<bool, ReconcileError> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let found = optional(secrets.get_metadata(AUTHORITIES).await).map_err(api("look for the tenant's PKI"))?;
    let mut version = known.version.clone();
    if let Some(found) = &found
        && found.resource_version() != known.version
    {
        let Changed { kept, version: now } = keep_keys(&secrets, tenant, &known.stored).await?;
        if kept.has_further_keys {
            remember(tenant, None);
            return Ok(false);
        }
        version = now;
    }
    if found.is_none() {
        let same = host_objects::secret(&tenant.cluster, &tenant.id, AUTHORITIES, known.stored.clone());
        let created = secrets.create(&PostParams::default(), &same).await;
        // If somebody else was faster, the next control reads what that one stored.
        version = match created {
            Ok(created) => created.resource_version(),
            Err(error) if is_status(&error, 409) => None,
            Err(error) => return Err(api("store the tenant's PKI again")(error)),
        };
        tracing::warn!(
            tenant = tenant.id.slug(),
            "the Secret with the certificate authorities was gone, and is stored again"
        );
    }
    let seen = KnownAuthorities {
        version,
        seen_at: Instant::now(),
        ..known.clone()
    };
    remember(tenant, Some(seen));
    Ok(true)
}

/// What was found in a Secret that somebody has changed, and its version now.
struct Changed {
    kept: Kept,
    version: Option<String>,
}

/// Puts the known keys of encryption back into the Secret, which somebody has changed.
async fn keep_keys(
    secrets: &Api<Secret>,
    tenant: &Tenant,
    known: &BTreeMap<String, String>,
) -> Result<Changed, ReconcileError> {
    let mut secret = secrets.get(AUTHORITIES).await.map_err(api("read the tenant's PKI"))?;
    let mut stored = read_texts(secret.clone());
    let kept = keep(known, &mut stored);
    if kept.is_changed {
        secret = replace(secrets, &mut secret, stored).await?;
        tracing::warn!(
            tenant = tenant.id.slug(),
            "somebody has changed the keys of encryption in the Secret pki; those with which API servers run are stored again"
        );
    }
    Ok(Changed {
        kept,
        version: secret.resource_version(),
    })
}

/// Stores authorities that a tenant of an earlier version lacks, beside those that it has. Returns the Secret with all of them.
async fn add_authorities(secrets: &Api<Secret>, missing: BTreeMap<String, String>) -> Result<Secret, ReconcileError> {
    let mut secret = secrets.get(AUTHORITIES).await.map_err(api("read the tenant's PKI"))?;
    let data = secret.data.get_or_insert_default();
    for (name, text) in missing {
        data.entry(name).or_insert(ByteString(text.into_bytes()));
    }
    let stored = secrets.replace(AUTHORITIES, &PostParams::default(), &secret).await;
    stored.map_err(api("store the tenant's PKI"))
}

/// Takes a step of the rotation that is recorded as `expected`, in one write. Returns the rotation as it is then: if another process has taken a
/// step meanwhile, that one's. Whatever happens, the next reconcile reads the authorities again.
///
/// # Errors
/// The host refuses or does not answer, the Secret was changed at the same time, or what is stored is damaged.
pub(super) async fn record_rotation(
    context: &TenantContext,
    tenant: &Tenant,
    expected: Option<Rotation>,
    step: &RotationStep,
) -> Result<Option<Rotation>, ReconcileError> {
    remember(tenant, None);
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let mut secret = secrets.get(AUTHORITIES).await.map_err(api("read the tenant's PKI"))?;
    let mut stored = read_texts(secret.clone());
    let recorded = Rotation::read(&stored)?;
    if recorded != expected {
        return Ok(recorded);
    }
    let after = step.carry_out(&mut stored, tenant.id.hash(), context.clock.now())?;
    replace(&secrets, &mut secret, stored).await?;
    Ok(after)
}

/// Takes a step of the encryption of what the tenant stores, that is stored as `expected`, its keys included: somebody may have restored one. As
/// [`record_rotation`].
///
/// # Errors
/// The host refuses or does not answer, the Secret was changed at the same time, or what is stored is damaged.
pub(super) async fn record_encryption(
    context: &TenantContext,
    tenant: &Tenant,
    expected: &Encryption,
    step: &EncryptionStep,
) -> Result<Option<EncryptionState>, ReconcileError> {
    remember(tenant, None);
    tenant.memory.forget_rewriting();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let mut secret = secrets.get(AUTHORITIES).await.map_err(api("read the tenant's PKI"))?;
    let mut stored = read_texts(secret.clone());
    let read = |stored: &BTreeMap<String, String>| Encryption::read(stored).map_err(CertificateError::from);
    let found = read(&stored)?;
    if found != *expected {
        return Ok(found.state().cloned());
    }
    let carried_out = step.carry_out(&mut stored, context.clock.now());
    carried_out.map_err(CertificateError::from)?;
    let after = read(&stored)?.state().cloned();
    replace(&secrets, &mut secret, stored).await?;
    Ok(after)
}

/// Stores this in the Secret that was read. A change at the same time is a conflict. Returns it as it is stored.
async fn replace(
    secrets: &Api<Secret>,
    secret: &mut Secret,
    stored: BTreeMap<String, String>,
) -> Result<Secret, ReconcileError> {
    let data = stored
        .into_iter()
        .map(|(name, text)| (name, ByteString(text.into_bytes())));
    secret.data = Some(data.collect());
    let replaced = secrets.replace(AUTHORITIES, &PostParams::default(), secret).await;
    replaced.map_err(api("store the tenant's PKI"))
}

/// The tenant's leaf certificates as they are stored.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn load_certificates(
    context: &TenantContext,
    tenant: &Tenant,
    now: Timestamp,
) -> Result<LeafStore, ReconcileError> {
    if let Some(known) = lock(&tenant.memory.leaves).clone() {
        return Ok(LeafStore::new(known.into_data(), now));
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let stored = optional(secrets.get(LEAVES).await).map_err(api("read the tenant's certificates"))?;
    Ok(LeafStore::new(stored.map(read_texts).unwrap_or_default(), now))
}

/// Stores the certificates that a rendering used.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn store_certificates(tenant: &Tenant, leaves: LeafStore) -> Result<(), ReconcileError> {
    let secret = host_objects::secret(&tenant.cluster, &tenant.id, LEAVES, leaves.clone().into_data());
    tenant.memory.host.apply(&secret).await?;
    *lock(&tenant.memory.leaves) = Some(leaves);
    Ok(())
}
