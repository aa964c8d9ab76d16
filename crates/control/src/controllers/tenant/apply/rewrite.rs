//! Rewrites objects that are stored otherwise than their encryption says.
//!
//! Which objects these are is read in etcd: what is stored there is the proof that a key is not needed any more. A patch without content makes the
//! API server store an object again, if it would store it otherwise by now. Control never reads the content.
//!
//! One round goes through all objects, in as many passes as it takes. A round that has found all of them stored as they are to be is the last one.

use super::super::{context::TenantContext, rewriting::Rewriting, target::Tenant};
use crate::{
    apply::optional,
    control_plane::{Encryption, encryption::folder},
    datastore::HeadPage,
    error::{ReconcileError, api},
};
use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::json;
use std::{sync::PoisonError, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Objects that are rewritten in a pass: with the pause after it some dozens in a second, so that others are served meanwhile.
const MOST_REWRITTEN: u64 = 64;
/// Time after which a pass reads no further page.
const READING: Duration = Duration::from_secs(5);
/// Time for a pass. A webhook may take 30 s. It is less if the reconcile has waited for the tenant for long before.
const LIMIT: Duration = Duration::from_secs(32);
/// How long before the end of a pass objects are given up that are not answered: what follows them has its turn in the next pass.
const MARGIN: Duration = Duration::from_millis(250);
/// Why an object was given up.
const NOT_ANSWERED: &str = "no answer in time";

/// What a pass has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rewritten {
    /// A round has found every object stored as it is to be.
    All,
    /// There may be more objects. How far it is, for people.
    Part(String),
}

/// One pass. All API servers that run must write as `encryption` says.
///
/// # Errors
/// The datastore or the tenant's API server fails or does not answer.
pub(super) async fn rewrite(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    client: &Client,
) -> Result<Rewritten, ReconcileError> {
    let lock = || tenant.memory.rewriting.lock().unwrap_or_else(PoisonError::into_inner);
    let mut progress = lock().clone();
    let time = tenant.slot.shorten(LIMIT);
    let until = Instant::now() + time.saturating_sub(MARGIN);
    let pass = run_pass(context, tenant, encryption, client, until, &mut progress);
    let ended = tenant.slot.lend(time, Box::pin(pass)).await;
    let message = progress.describe();
    *lock() = progress;
    match ended {
        None => Ok(Rewritten::Part(format!(
            "{message}; etcd or the tenant's API server is slow"
        ))),
        Some(Ok(true)) => Ok(Rewritten::All),
        Some(Ok(false)) => Ok(Rewritten::Part(message)),
        Some(Err(error)) => Err(error),
    }
}

/// Whether nothing was rewritten in the last round because the tenant's API server refuses what is left.
pub(super) fn is_refused(tenant: &Tenant) -> bool {
    let progress = tenant.memory.rewriting.lock().unwrap_or_else(PoisonError::into_inner);
    progress.is_refused()
}

/// Whether the last round has ended in this pass. Objects that are not answered are given up at `until`.
async fn run_pass(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    client: &Client,
    until: Instant,
    progress: &mut Rewriting,
) -> Result<bool, ReconcileError> {
    let begun = Instant::now();
    let resources: Vec<&str> = encryption.resources().into_iter().collect();
    let most = progress.tried() + MOST_REWRITTEN;
    loop {
        let Some(resource) = resources.get(progress.resource) else {
            return Ok(progress.end_round());
        };
        if begun.elapsed() >= READING || Instant::now() >= until || progress.tried() >= most {
            return Ok(false);
        }
        let mut page = read_page(context, tenant, &folder(resource), progress.after.as_deref()).await?;
        let others: Vec<&str> = page
            .heads
            .iter()
            .filter(|(_, head)| !encryption.is_current(resource, head))
            .map(|(name, _)| name.as_str())
            .collect();
        rewrite_objects(client, resource, &others, until, progress).await?;
        match page.heads.pop() {
            Some((name, _)) if page.has_more => progress.after = Some(name),
            _ => {
                progress.resource += 1;
                progress.after = None;
            }
        }
    }
}

/// A page of what etcd has of a tenant. One at a time is read, over all tenants: a page has up to 12 MiB.
async fn read_page(
    context: &TenantContext,
    tenant: &Tenant,
    folder: &str,
    after: Option<&str>,
) -> Result<HeadPage, ReconcileError> {
    let _turn = context.tenants.head_reading.lock().await;
    Ok(context.datastore.read_heads(&tenant.id, folder, after).await?)
}

/// Rewrites the objects of a resource, by their keys below its folder: all of a page at the same time, so that one that is not answered keeps no
/// other one back.
async fn rewrite_objects(
    client: &Client,
    resource: &str,
    keys: &[&str],
    until: Instant,
    progress: &mut Rewriting,
) -> Result<(), ReconcileError> {
    if keys.is_empty() {
        return Ok(());
    }
    // Before they are rewritten: whatever becomes of that, another round looks at them.
    progress.add_found(keys.len());
    let Some(kind) = find_kind(client, resource).await? else {
        for key in keys {
            let object = format!("{resource} {key}");
            progress.add_refused(&object, "no CustomResourceDefinition of the tenant serves it");
        }
        return Ok(());
    };
    let patches = keys
        .iter()
        .map(|key| timeout_at(until, rewrite_object(client, &kind, key)));
    let results = join_all(patches).await;
    let mut failed = None;
    for (key, result) in keys.iter().zip(results) {
        match result {
            Ok(Ok(())) => progress.add_rewritten(),
            // It may concern this object alone. Whatever it is, the next round tries again.
            Ok(Err(kube::Error::Api(status))) => progress.add_refused(&format!("{resource} {key}"), &status.message),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => progress.add_refused(&format!("{resource} {key}"), NOT_ANSWERED),
        }
    }
    failed.map_or(Ok(()), |error| Err(api("rewrite an object of the tenant")(error)))
}

/// Lets the API server store an object again. That it is gone is no error.
async fn rewrite_object(client: &Client, kind: &ApiResource, key: &str) -> kube::Result<()> {
    let (objects, name): (Api<DynamicObject>, &str) = match key.rsplit_once('/') {
        Some((namespace, name)) => (Api::namespaced_with(client.clone(), namespace, kind), name),
        None => (Api::all_with(client.clone(), kind), key),
    };
    let nothing = Patch::Merge(json!({}));
    let patched = objects.patch_metadata(name, &PatchParams::default(), &nothing).await;
    optional(patched).map(drop)
}

/// How the API server serves a resource; none if it does not.
async fn find_kind(client: &Client, resource: &str) -> Result<Option<ApiResource>, ReconcileError> {
    let kind = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let Some((plural, group)) = resource.split_once('.') else {
        // Its kind is in no path.
        return Ok(Some(kind("", "v1", "", resource)));
    };
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = optional(definitions.get(resource).await).map_err(api("read a CustomResourceDefinition"))?;
    let Some(spec) = definition.map(|definition| definition.spec) else {
        return Ok(None);
    };
    let served = spec.versions.iter().find(|version| version.served);
    Ok(served.map(|version| kind(group, &version.name, &spec.names.kind, plural)))
}
