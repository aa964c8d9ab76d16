//! Follows the encryption of what a tenant stores: makes its first key, observes what runs, and records the next step.
//!
//! A step is one write of the Secret with the authorities. What follows from it is rendered and applied by the next reconcile, as everything
//! else is. What fails here is in the condition `EncryptedAtRest` and stops nothing else, but for keys that are missing: an API server without them
//! may never be ready, and does not say why.

use super::{
    super::{
        context::TenantContext,
        encryption::ObservedEncryption,
        readable::{LOOK, Place},
        rotation::RotationProgress,
        settings::Settings,
        target::Tenant,
    },
    Accepted, ControlPlane, Prepared, keys,
    rewrite::{self, Rewritten},
    rotation::find_outdated,
};
use crate::{
    control_plane::{
        API_SERVER, Authorities, Change, Component, Encryption, EncryptionState, EncryptionStep,
        encryption::{describe_key, folder},
    },
    error::ReconcileError,
};
use berth_api::{EncryptionPhase, SleepState};
use jiff::Timestamp;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Pause before a change under way is looked at again.
const POLL: Duration = Duration::from_secs(2);
/// Pause before a step that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Pause before objects are rewritten again that the tenant's API server has refused.
const REFUSED: Duration = Duration::from_mins(1);
/// Time to look whether every stored object can be read: some hundred thousand objects, in turns with other tenants. For a tenant with more, the look goes on
/// in the next reconcile.
const CHECK_LIMIT: Duration = Duration::from_secs(30);
/// The resource of which objects may be encrypted although nobody knows that they are: every earlier list had it by default.
const SECRETS: &str = "secrets";

/// The resources whose objects are to be encrypted. A tenant without a class, because its class was deleted, keeps what it has: no class says that
/// anything is to be decrypted.
fn wanted_resources(settings: &Settings, encryption: &Encryption) -> BTreeSet<String> {
    if settings.class.is_none() {
        let kept = encryption.target().map(|(_, resources)| resources.clone());
        return kept.unwrap_or_default();
    }
    let listed = settings.encryption.iter().flat_map(|encryption| &encryption.resources);
    listed.cloned().collect()
}

/// Looks whether the tenant has the keys of what it stores, and makes its first key if its class encrypts something. Returns the authorities with it.
///
/// # Errors
/// The host or the datastore refuses or does not answer, or objects are encrypted with a key that is missing.
pub(super) async fn prepare_encryption(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Arc<Authorities>,
) -> Result<Arc<Authorities>, ReconcileError> {
    let tenant = &accepted.tenant;
    let encryption = &authorities.encryption;
    let wanted = wanted_resources(&accepted.settings, encryption);
    let is_begun = encryption.state().is_some();
    let published = tenant
        .cluster
        .status
        .as_ref()
        .and_then(|status| status.encryption.as_ref());
    let keys = encryption.key_names();
    let is_unused = !is_begun && wanted.is_empty() && keys.is_empty();
    if is_unused && published.is_none() {
        return Ok(authorities);
    }
    if !tenant.memory.readable().is_readable_with(&keys) {
        let published = published.iter().flat_map(|status| &status.resources);
        let known = encryption.resources().into_iter().chain([SECRETS]);
        let resources = known.chain(wanted.iter().chain(published).map(String::as_str));
        let is_known = if sleeps_unchanged(tenant, encryption) {
            look_while_asleep(context, tenant, encryption, resources.collect()).await?
        } else {
            check_readable(context, tenant, encryption, resources.collect()).await?;
            true
        };
        if is_known {
            tenant.memory.readable().note(keys);
        }
    }
    if is_begun || is_unused {
        return Ok(authorities);
    }
    // Nothing has to be read in a tenant without objects. An API server that was started a moment ago is replaced before anything is taken for encrypted.
    let begins_with = match context.datastore.count_keys(&tenant.id).await? {
        0 => EncryptionPhase::Rewriting,
        _ => EncryptionPhase::Distributing,
    };
    let request = tenant.cluster.encryption_key_rotation_request();
    let begin = EncryptionStep::Begin(Change {
        resources: wanted,
        requested_at: encryption.due_request(request, context.clock.now()),
        begins_with,
    });
    keys::record_encryption(context, tenant, encryption, &begin).await?;
    keys::load_authorities(context, tenant).await
}

/// Whether nothing of a tenant is started in this reconcile, and nothing that is known of its encryption changes: it sleeps, and the status says what is
/// stored. If it says something else, an older Secret may have been restored.
fn sleeps_unchanged(tenant: &Tenant, encryption: &Encryption) -> bool {
    tenant.cluster.sleep_state() == SleepState::Sleeping && is_published(tenant, encryption)
}

/// Looks at objects of a tenant that sleeps, if no other tenant needs the turn. Returns whether all were readable: otherwise another reconcile goes on,
/// at the latest that which starts the tenant. After a restart of control there may be hundreds of them, and a tenant that is started does not wait for all of these.
async fn look_while_asleep(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    resources: BTreeSet<&str>,
) -> Result<bool, ReconcileError> {
    let is_turn_taken = context.tenants.head_reading.try_lock().is_err();
    if is_turn_taken || !context.tenants.looks_while_asleep().begin(Instant::now()) {
        return Ok(false);
    }
    let look = tokio::time::timeout(LOOK, find_unreadable(context, tenant, encryption, resources)).await;
    context.tenants.looks_while_asleep().end(Instant::now());
    match look {
        Ok(found) => found?.map_or(Ok(true), Err),
        Err(_) => Ok(false),
    }
}

/// Looks in etcd whether the keys that are stored are enough to read everything, unless API servers run with these keys.
async fn check_readable(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    resources: BTreeSet<&str>,
) -> Result<(), ReconcileError> {
    if is_published(tenant, encryption) && context.runtime.is_available(&tenant.id, API_SERVER).await? {
        return Ok(());
    }
    let check = find_unreadable(context, tenant, encryption, resources);
    match tenant.slot.lend(CHECK_LIMIT, Box::pin(check)).await {
        Some(found) => found?.map_or(Ok(()), Err),
        None => Err(ReconcileError::Blocked {
            reason: "EncryptionNotChecked",
            message: "the tenant waits until Berth has looked whether it has the keys of what is stored".into(),
        }),
    }
}

/// Whether the status says what is stored of the encryption. If it does not, an older Secret may have been restored over that with the keys with which
/// API servers run.
fn is_published(tenant: &Tenant, encryption: &Encryption) -> bool {
    let status = tenant.cluster.status.as_ref();
    let published = status.and_then(|status| status.encryption.as_ref());
    let Some(state) = encryption.state() else { return false };
    let known = encryption.resources();
    let mut resources = published.iter().flat_map(|published| &published.resources);
    state.target.key.as_deref() == published.and_then(|published| published.key_name.as_deref())
        && resources.all(|resource| known.contains(resource.as_str()))
}

/// Why an object cannot be read; none if all can. Begins where the last look ran out of time.
async fn find_unreadable(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    resources: BTreeSet<&str>,
) -> Result<Option<ReconcileError>, ReconcileError> {
    let keys = encryption.key_names();
    let place = tenant.memory.readable().place(&keys);
    let from = place.as_ref().map_or("", |place| place.resource.as_str());
    for resource in resources.into_iter().filter(|resource| *resource >= from) {
        let folder = folder(resource);
        let begun = place.as_ref().filter(|place| place.resource == resource);
        let mut after = begun.map(|place| place.after.clone());
        loop {
            // All tenants may be started at the same time, and one with many objects must not keep the others waiting.
            let mut is_unreadable = |head: &[u8]| !encryption.can_read(head);
            let page = rewrite::read_page(context, tenant, &folder, after.as_deref(), &mut is_unreadable);
            let mut page = page.await?;
            if let Some((_, head)) = page.heads.iter().find(|(_, head)| !encryption.can_read(head)) {
                tenant.memory.readable().forget_place();
                return Ok(Some(describe_missing_key(tenant, resource, &describe_key(head))));
            }
            match page.heads.pop() {
                Some((name, _)) if page.has_more => {
                    let place = Place {
                        resource: resource.to_owned(),
                        after: name.clone(),
                    };
                    tenant.memory.readable().note_place(&keys, place);
                    after = Some(name);
                }
                last => {
                    // With many resources, a look may come no further than a few of them.
                    let last = last.map(|(name, _)| name).or(after);
                    let place = Place {
                        resource: resource.to_owned(),
                        after: last.unwrap_or_default(),
                    };
                    tenant.memory.readable().note_place(&keys, place);
                    break;
                }
            }
        }
    }
    Ok(None)
}

fn describe_missing_key(tenant: &Tenant, resource: &str, key: &str) -> ReconcileError {
    let namespace = tenant.id.control_plane_namespace();
    ReconcileError::Blocked {
        reason: "EncryptionKeyMissing",
        message: format!(
            "the datastore has {resource} that are encrypted with the key {key}, and Secret {namespace}/pki of the host does not have this key. Nothing \
             is started or changed, as no API server could read them. Restore the entries of the Secret that begin with encryption from a backup"
        ),
    }
}

/// Takes the next step of the encryption of the tenant, if there is one and what it waits for was observed in this reconcile.
pub(super) async fn follow_encryption(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
) -> ObservedEncryption {
    let tenant = &prepared.accepted.tenant;
    let encryption = &prepared.authorities.encryption;
    let wanted = wanted_resources(&prepared.accepted.settings, encryption);
    let request = tenant.cluster.encryption_key_rotation_request();
    let due = encryption.due_request(request, context.clock.now());
    let observed =
        |state: Option<&EncryptionState>, progress| ObservedEncryption::new(state.cloned(), request, progress);
    if encryption.next_step(&wanted, due, &Ok(())) == EncryptionStep::Rest {
        return observed(encryption.state(), RotationProgress::Done);
    }
    if matches!(control_plane, ControlPlane::Asleep { .. }) {
        return observed(encryption.state(), RotationProgress::Sleeps);
    }
    match take_step(context, prepared, control_plane, (&wanted, due)).await {
        Ok((recorded, progress)) => {
            let pause = match progress {
                RotationProgress::Done => Duration::ZERO,
                _ if rewrite::is_in_vain(tenant) => REFUSED,
                _ => POLL,
            };
            context.queue.add_after(tenant.key(), pause);
            observed(recorded.as_ref(), progress).with_refusal(rewrite::is_refused(tenant))
        }
        Err(error) => {
            context.queue.add_after(tenant.key(), RETRY);
            observed(encryption.state(), RotationProgress::Failed(error.to_string()))
        }
    }
}

/// Decides the next step and records it, or rewrites some objects. Returns the state as it is then.
async fn take_step(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
    (wanted, due): (&BTreeSet<String>, Option<Timestamp>),
) -> Result<(Option<EncryptionState>, RotationProgress), ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let encryption = &prepared.authorities.encryption;
    let api_servers = observe_api_servers(context, prepared, control_plane).await?;
    let recorded = encryption.state().cloned();
    let step = match encryption.next_step(wanted, due, &api_servers) {
        EncryptionStep::Rewrite => {
            let applier = match control_plane {
                ControlPlane::Started { started, .. } => started.api_server.applier(),
                ControlPlane::NotStarted(_) | ControlPlane::Asleep { .. } => None,
            };
            let Some(applier) = applier else {
                return Ok((
                    recorded,
                    RotationProgress::Waits("the API server does not answer yet".into()),
                ));
            };
            match rewrite::rewrite(context, tenant, encryption, applier.client()).await? {
                Rewritten::All => EncryptionStep::Enter(EncryptionPhase::Completed),
                Rewritten::Part(progress) => return Ok((recorded, RotationProgress::Waits(progress))),
            }
        }
        other => other,
    };
    match &step {
        EncryptionStep::Rest | EncryptionStep::Rewrite => Ok((recorded, RotationProgress::Done)),
        EncryptionStep::Wait(missing) => {
            rewrite::note_other_api_server(tenant);
            Ok((recorded, RotationProgress::Waits(missing.clone())))
        }
        EncryptionStep::Begin(_) | EncryptionStep::Enter(_) => {
            let after = keys::record_encryption(context, tenant, encryption, &step).await?;
            let is_completed = |state: &&EncryptionState| state.phase == EncryptionPhase::Completed;
            if let Some(state) = after.as_ref().filter(is_completed) {
                // Every object was found to need no other key.
                tenant
                    .memory
                    .readable()
                    .note(state.target.key.iter().cloned().collect());
            }
            Ok((after, RotationProgress::Done))
        }
    }
}

/// Whether every API server that runs has what was rendered in this reconcile.
async fn observe_api_servers(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
) -> Result<Result<(), String>, ReconcileError> {
    let ControlPlane::Started { started, .. } = control_plane else {
        let missing = "the API server does not run; the condition ControlPlaneReady says why";
        return Ok(Err(missing.into()));
    };
    let mut components = started.components.iter();
    let api_server: Vec<&Component> = components
        .find(|component| component.name == API_SERVER)
        .into_iter()
        .collect();
    find_outdated(context, prepared, &api_server).await
}
