//! Whether further kinds of a class (`sync.kinds`) can be synced: the host must serve them, and control must hold the
//! rights that it gives to syncers.

use crate::{
    apply::{is_status, optional},
    error::{ReconcileError, api},
};
use berth_api::{SyncPolicy, labels, sync_policy::SyncedKind};
use berth_runtime::locks::lock;
use berth_sync_rules::permissions;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    rbac::v1::PolicyRule,
};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::APIResource,
};
use kube::{Api, Client, api::PostParams};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

/// Age after which an answer of the host is read again.
const REFRESH: Duration = Duration::from_secs(60);
/// The same for kinds and definitions that were not available.
const REFRESH_MISSING: Duration = Duration::from_secs(5);
/// What a syncer does with objects of a further kind on the host.
const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// What was tried if the host does not say what it serves.
const DISCOVER: &str = "discover the kinds of the host";

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

/// Answers of the host, and until when each is used.
type Known<T> = Mutex<BTreeMap<String, (Instant, T)>>;

/// What is known of kinds.
pub struct KnownKinds {
    client: Client,
    usable: Known<Usable>,
    definitions: Known<Option<Arc<CustomResourceDefinition>>>,
    rules: Mutex<BTreeMap<String, Arc<SyncerRules>>>,
}

/// What syncers of a class may do.
#[derive(Debug)]
pub struct SyncerRules {
    /// In the workload namespace of the host.
    pub host: Vec<PolicyRule>,
    /// In the tenant.
    pub tenant: Vec<PolicyRule>,
}

/// What is known of `key`, if it is not too old.
fn recall<T: Clone>(known: &Known<T>, key: &str) -> Option<T> {
    let known = lock(known);
    let (until, value) = known.get(key)?;
    (Instant::now() < *until).then(|| value.clone())
}

fn remember<T>(known: &Known<T>, key: String, value: T, is_there: bool) {
    let now = Instant::now();
    let mut known = lock(known);
    known.retain(|_, (until, _)| now < *until);
    known.insert(key, (now + if is_there { REFRESH } else { REFRESH_MISSING }, value));
}

impl KnownKinds {
    /// Nothing is known at first; `client` is the host's.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            usable: Known::default(),
            definitions: Known::default(),
            rules: Mutex::default(),
        }
    }

    /// Whether a kind can be synced, as the host said not long ago.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn usable(&self, kind: &SyncedKind) -> Result<Usable, ReconcileError> {
        let key = format!("{}/{}/{}/{}", kind.group, kind.version, kind.resource, kind.kind);
        if let Some(known) = recall(&self.usable, &key) {
            return Ok(known);
        }
        let found = check_usable(&self.client, kind).await?;
        remember(&self.usable, key, found.clone(), found == Usable::Yes);
        Ok(found)
    }

    /// A version in which the host serves the objects of a kind now: that of the class if it can be, for versions are views of the same objects. None if it
    /// does not serve them. The host says that without rights on them as well.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn served_version(&self, kind: &SyncedKind) -> Result<Option<String>, ReconcileError> {
        let groups = self.client.list_api_groups().await.map_err(api(DISCOVER))?;
        let group = groups.groups.into_iter().find(|group| group.name == kind.group);
        let of_group = group.into_iter().flat_map(|group| group.versions);
        let others = of_group
            .map(|served| served.version)
            .filter(|other| *other != kind.version);
        for version in [kind.version.clone()].into_iter().chain(others) {
            let served = list_resources(&self.client, &kind.group, &version).await?;
            if served.iter().any(|resource| resource.name == kind.resource) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// The host's CustomResourceDefinition of a kind, if it has one.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn definition(&self, kind: &SyncedKind) -> Result<Option<Arc<CustomResourceDefinition>>, ReconcileError> {
        let name = format!("{}.{}", kind.resource, kind.group);
        if let Some(known) = recall(&self.definitions, &name) {
            return Ok(known);
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let found = optional(definitions.get(&name).await).map_err(api("read a definition"))?;
        let found = found.map(Arc::new);
        remember(&self.definitions, name, found.clone(), found.is_some());
        Ok(found)
    }

    /// What a syncer with these rules may do, without the kinds for which control may give no rights: the host would
    /// refuse a role with one of them as a whole.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn syncer_rules(&self, policy: &SyncPolicy) -> Result<Arc<SyncerRules>, ReconcileError> {
        let mut permitted = policy.clone();
        permitted.kinds.clear();
        for kind in &policy.kinds {
            if !matches!(self.usable(kind).await?, Usable::NotPermitted(_)) {
                permitted.kinds.push(kind.clone());
            }
        }
        // Kinds of a policy live as long as the process, so the rules of each policy are computed once.
        let key = serde_json::to_string(&permitted).unwrap_or_default();
        let mut rules = lock(&self.rules);
        let made = rules.entry(key).or_insert_with(|| {
            Arc::new(SyncerRules {
                host: permissions::host_workload_rules(&permitted),
                tenant: permissions::tenant_rules(&permitted),
            })
        });
        Ok(Arc::clone(made))
    }
}

async fn check_usable(client: &Client, kind: &SyncedKind) -> Result<Usable, ReconcileError> {
    for verb in VERBS {
        if !is_permitted(client, kind, verb).await? {
            return Ok(Usable::NotPermitted(format!(
                "Berth may not {verb} {}.{}; give it all of {} with a ClusterRole that carries the label {}: \"true\"",
                kind.resource,
                kind.group,
                VERBS.join(", "),
                labels::AGGREGATE_TO_CONTROL
            )));
        }
    }
    let group_version = format!("{}/{}", kind.group, kind.version);
    let served = list_resources(client, &kind.group, &kind.version).await?;
    Ok(match served.iter().find(|resource| resource.name == kind.resource) {
        None => Usable::NotServed(format!("the host does not serve {} of {group_version}", kind.resource)),
        Some(found) if found.kind != kind.kind => Usable::NotServed(format!(
            "{} of {group_version} is of kind {}, not {}",
            kind.resource, found.kind, kind.kind
        )),
        Some(found) if !found.namespaced => Usable::NotServed(format!(
            "{} of {group_version} is not namespaced, and only namespaced kinds can be synced",
            kind.resource
        )),
        Some(_) => Usable::Yes,
    })
}

/// The resources that the host serves in a version of a group.
async fn list_resources(client: &Client, group: &str, version: &str) -> Result<Vec<APIResource>, ReconcileError> {
    match client.list_api_group_resources(&format!("{group}/{version}")).await {
        Ok(list) => Ok(list.resources),
        Err(error) if is_status(&error, 404) => Ok(Vec::new()),
        Err(error) => Err(api(DISCOVER)(error)),
    }
}

async fn is_permitted(client: &Client, kind: &SyncedKind, verb: &str) -> Result<bool, ReconcileError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(kind.group.clone()),
                resource: Some(kind.resource.clone()),
                verb: Some(verb.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(api("check control's permissions"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
