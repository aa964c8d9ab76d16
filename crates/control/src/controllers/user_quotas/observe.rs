//! Which tenants have limits, and which pods count for whom.

use crate::{stores::Stores, user_pods::ObservedUserPod};
use berth_api::{PODS, TenantCluster, names::TenantId};
use berth_node_lifecycle::{
    demand::Claim,
    devices::{Devices, RequestedDevices},
};
use berth_quota::{Projects, UserAmounts, UserLimits, UserPod};
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
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

/// The pods of a Project, with what they request.
pub(super) struct CountedPods {
    /// As the decision takes them.
    pub(super) pods: Vec<UserPod>,
    /// What the claims that pods name request, by [`claim_key`]. None: it does not exist.
    pub(super) claims: HashMap<String, Option<RequestedDevices>>,
}

/// The key of a claim that a pod names: its namespace and name.
pub(super) fn claim_key(claim: &Claim) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}

/// Whether a user has limits of devices, and not of the number of pods alone.
pub(super) fn has_limits_of_devices(limits: &UserLimits, user: &str) -> bool {
    let mut listed = limits.of(user).into_iter().flat_map(UserAmounts::keys);
    listed.any(|resource| resource != PODS)
}

/// The pods of a Project, as the decision takes them. A pod that is deleted before it started requests nothing. One that names a claim of
/// devices that does not exist yet, or a template of which the host has not made its claim, waits for it, if its user has limits of devices.
pub(super) fn count_pods(
    limits: &UserLimits,
    devices: &Devices,
    pods: &[Arc<ObservedUserPod>],
    granted: &BTreeSet<String>,
) -> CountedPods {
    let is_admitted = |pod: &ObservedUserPod| !pod.is_gated || granted.contains(&pod.uid);
    let counted = pods.iter().filter(|pod| is_admitted(pod) || !pod.is_ending);
    let (admitted, waiting): (Vec<_>, Vec<_>) = counted.partition(|pod| is_admitted(pod));
    let mut claims = CountedClaims::default();
    // Admitted pods first: claims that they share with those that wait count already.
    let all = admitted.into_iter().chain(waiting).filter_map(|pod| {
        let (user, is_admitted) = (limits.find_user(pod.created_by.as_deref()), is_admitted(pod));
        let (claimed, are_all_known) = claims.count(devices, pod, user, is_admitted);
        if !is_admitted && !are_all_known && has_limits_of_devices(limits, user) {
            return None;
        }
        let mut amounts = pod.amounts.clone();
        devices.add_requested(&mut amounts, &claimed);
        Some(UserPod {
            uid: pod.uid.clone(),
            tenant: pod.tenant.clone(),
            user: user.to_owned(),
            amounts,
            is_admitted,
            gang: pod.gang.clone(),
            priority: pod.priority,
            since: pod.since,
        })
    });
    CountedPods {
        pods: all.collect(),
        claims: claims.requested,
    }
}

/// Whether a claim exists. Until the host has made one of a template, another template can take the name of this one.
fn is_made(devices: &Devices, claim: &Claim) -> bool {
    let made = |name: &String| Claim {
        name: name.clone(),
        is_template: false,
        generated: None,
        ..claim.clone()
    };
    let made = claim.generated.as_ref().map(made);
    !claim.is_template || made.is_some_and(|made| devices.count_requested(&made).is_some())
}

/// Claims of the pods that are counted.
#[derive(Default)]
struct CountedClaims<'p> {
    /// Those that count already: by user, gang if its pods wait, and the claim's namespace and name.
    counted: HashSet<(&'p str, Option<&'p str>, (&'p str, &'p str))>,
    /// What those that pods name request, by [`claim_key`]: the same for all pods, whatever the watch brings meanwhile. None: it does not exist.
    requested: HashMap<String, Option<RequestedDevices>>,
}

impl<'p> CountedClaims<'p> {
    /// The devices that a pod requests by claims, without those of claims that it shares with an admitted pod of the user, or with one of its
    /// gang; and whether all of its claims exist: then no others can take their places.
    fn count(
        &mut self,
        devices: &Devices,
        pod: &'p ObservedUserPod,
        user: &'p str,
        is_admitted: bool,
    ) -> (RequestedDevices, bool) {
        let (mut sum, mut are_all_known) = (RequestedDevices::new(), true);
        for claim in &pod.claims {
            let count = || devices.count_requested(claim);
            let requested = if claim.is_template {
                count()
            } else {
                self.requested.entry(claim_key(claim)).or_insert_with(count).clone()
            };
            let Some(requested) = requested else {
                are_all_known = false;
                continue;
            };
            are_all_known &= is_made(devices, claim);
            if !claim.is_template && !self.is_first(pod, (&claim.namespace, &claim.name), user, is_admitted) {
                continue;
            }
            for (class, number) in requested {
                let of_class = sum.entry(class).or_default();
                *of_class = of_class.saturating_add(number);
            }
        }
        (sum, are_all_known)
    }

    /// Whether a claim does not count yet for a pod.
    fn is_first(
        &mut self,
        pod: &'p ObservedUserPod,
        claim: (&'p str, &'p str),
        user: &'p str,
        is_admitted: bool,
    ) -> bool {
        let of_admitted = (user, None, claim);
        if is_admitted {
            return self.counted.insert(of_admitted);
        }
        // Two pods that wait may not be admitted together.
        let gang = pod.gang.as_ref().map(|gang| gang.name.as_str());
        !self.counted.contains(&of_admitted) && (gang.is_none() || self.counted.insert((user, gang, claim)))
    }
}
