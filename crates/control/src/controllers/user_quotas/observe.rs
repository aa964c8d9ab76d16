//! Which tenants have limits, and which pods count for whom.

use crate::{stores::Stores, user_pods::ObservedUserPod};
use berth_api::{TenantCluster, names::TenantId};
use berth_quota::{Projects, UserLimits, UserPod};
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Projects that limit their users, and their tenants.
#[derive(Debug, Default)]
pub(super) struct LimitedProjects {
    /// The limits of each, by name.
    pub(super) limits: BTreeMap<String, UserLimits>,
    /// The Project of each tenant, by slug.
    by_slug: HashMap<String, String>,
}

impl LimitedProjects {
    /// The slugs of all tenants with limits.
    pub(super) fn slugs(&self) -> impl Iterator<Item = String> + '_ {
        self.by_slug.keys().cloned()
    }
}

/// The slug of a tenant.
pub(super) fn slug(cluster: &TenantCluster) -> Option<String> {
    Some(TenantId::new(&cluster.name_any(), &cluster.uid()?).slug().to_owned())
}

/// All Projects that limit their users.
pub(super) fn list_limited(stores: &Stores) -> LimitedProjects {
    let projects = stores.projects.state();
    let limits: BTreeMap<String, UserLimits> = projects
        .iter()
        .filter(|project| project.limits_users())
        .map(|project| (project.name_any(), UserLimits::new(&project.spec.user_quotas)))
        .collect();
    if limits.is_empty() {
        return LimitedProjects::default();
    }
    let owners = Projects::new(projects.iter().map(AsRef::as_ref));
    let tenants = stores.tenants.state();
    let by_slug = tenants.iter().filter_map(|cluster| {
        let project = owners.of(&cluster.namespace().unwrap_or_default())?;
        Some((slug(cluster)?, limits.get_key_value(project)?.0.clone()))
    });
    LimitedProjects {
        by_slug: by_slug.collect(),
        limits,
    }
}

type ObservedPods = Vec<Arc<ObservedUserPod>>;

/// The pods of each Project, and those of no Project with limits.
pub(super) fn group_pods<'a>(
    levels: &'a LimitedProjects,
    pods: &[Arc<ObservedUserPod>],
) -> (BTreeMap<&'a str, ObservedPods>, ObservedPods) {
    let mut by_project: BTreeMap<&str, ObservedPods> = BTreeMap::new();
    let mut others = ObservedPods::new();
    for pod in pods {
        match levels.by_slug.get(&pod.tenant) {
            Some(project) => by_project.entry(project).or_default().push(Arc::clone(pod)),
            None => others.push(Arc::clone(pod)),
        }
    }
    (by_project, others)
}

/// The pods of a Project, as the decision takes them. A pod that is deleted before it started requests nothing.
pub(super) fn build_pods(
    limits: &UserLimits,
    pods: &[Arc<ObservedUserPod>],
    granted: &BTreeSet<String>,
) -> Vec<UserPod> {
    let counted = pods.iter().filter_map(|pod| {
        let is_admitted = !pod.is_gated || granted.contains(&pod.uid);
        (is_admitted || !pod.is_ending).then(|| UserPod {
            uid: pod.uid.clone(),
            user: limits.find_user(pod.created_by.as_deref()).to_owned(),
            amounts: pod.amounts.clone(),
            is_admitted,
            gang: pod.gang.clone(),
            priority: pod.priority,
            since: pod.since,
        })
    });
    counted.collect()
}
