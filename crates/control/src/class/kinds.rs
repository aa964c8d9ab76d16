//! Whether further kinds of a class (`sync.kinds`) can be synced: the host must serve them, and control must hold the
//! rights that it gives to syncers.

use crate::{
    context::Context,
    error::{ReconcileError, api},
};
use berth_api::{SyncPolicy, sync_policy::SyncedKind};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, api::PostParams};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Age after which the host is asked again.
const REFRESH: Duration = Duration::from_secs(60);
/// What a syncer does with objects of a further kind on the host.
const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// Whether a kind can be synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    /// It can.
    Yes,
    /// The host does not serve it, for the given reason. Syncers go without it until it does.
    NotServed(String),
    /// Control may not give the rights for it.
    NotPermitted(String),
}

/// What is known of kinds, for a while.
#[derive(Default)]
pub struct KnownKinds(Mutex<BTreeMap<String, (Instant, Usable)>>);

impl KnownKinds {
    /// Whether a kind can be synced, as the host said not long ago.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn usable(&self, context: &Context, kind: &SyncedKind) -> Result<Usable, ReconcileError> {
        let key = format!("{}/{}/{}/{}", kind.group, kind.version, kind.plural, kind.kind);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = lock().get(&key)
            && at.elapsed() < REFRESH
        {
            return Ok(known.clone());
        }
        let found = ask(context, kind).await?;
        lock().insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }

    /// A policy without the kinds for which control may give no rights: for the syncer's roles, which the host would
    /// refuse as a whole.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn permitted(&self, context: &Context, policy: &SyncPolicy) -> Result<SyncPolicy, ReconcileError> {
        let mut permitted = policy.clone();
        permitted.kinds.clear();
        for kind in &policy.kinds {
            if !matches!(self.usable(context, kind).await?, Usable::NotPermitted(_)) {
                permitted.kinds.push(kind.clone());
            }
        }
        Ok(permitted)
    }
}

async fn ask(context: &Context, kind: &SyncedKind) -> Result<Usable, ReconcileError> {
    for verb in VERBS {
        if !allowed(context, kind, verb).await? {
            return Ok(Usable::NotPermitted(format!(
                "Berth may not {verb} {}.{}; give it all of {} with a ClusterRole that carries the label {}: \"true\"",
                kind.plural,
                kind.group,
                VERBS.join(", "),
                crate::manifests::AGGREGATE_LABEL
            )));
        }
    }
    let group_version = format!("{}/{}", kind.group, kind.version);
    let served = match context.client.list_api_group_resources(&group_version).await {
        Ok(list) => list.resources,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(api("ask which kinds the host serves")(error)),
    };
    Ok(match served.iter().find(|resource| resource.name == kind.plural) {
        None => Usable::NotServed(format!("the host does not serve {} of {group_version}", kind.plural)),
        Some(found) if found.kind != kind.kind => Usable::NotServed(format!(
            "{} of {group_version} is of kind {}, not {}",
            kind.plural, found.kind, kind.kind
        )),
        Some(found) if !found.namespaced => Usable::NotServed(format!(
            "{} of {group_version} is not namespaced, and only namespaced kinds can be synced",
            kind.plural
        )),
        Some(_) => Usable::Yes,
    })
}

async fn allowed(context: &Context, kind: &SyncedKind, verb: &str) -> Result<bool, ReconcileError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(kind.group.clone()),
                resource: Some(kind.plural.clone()),
                verb: Some(verb.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(context.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(api("ask what control may do"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
