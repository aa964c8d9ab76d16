//! Claims of devices as the host has them when a pod is about to start.
//!
//! The watch of claims can be behind that of pods: tenants fill claims, and to read many large ones takes time. A user could replace a claim by a larger one
//! then, and the pod that gets the new one would start with what the old one requested. So a claim that a pod names is read again before the pod starts.
//! From then on it stays: a syncer makes no other one of this name as long as a host pod waits that names it.

use super::observe::{CountedPods, claim_key, has_limits_of_devices};
use crate::{
    device_claims::read_claim,
    error::{FirstError, ReconcileError},
    user_pods::ObservedUserPod,
};
use berth_node_lifecycle::{
    demand::Claim,
    devices::{DeviceClaim, RequestedDevices},
};
use berth_quota::UserLimits;
use futures::{StreamExt, stream};
use kube::Client;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Claims that are read at the same time.
const AT_ONCE: usize = 16;
/// Claims of one user that are read in one pass. A tenant can have many thousands of large ones. To read all of them again and again would take minutes,
/// while the users of all Projects wait.
pub(super) const MOST_OF_USER: usize = 128;

/// Admitted pods that wait all the same.
pub(super) struct HeldBack<'p> {
    /// Users of whom pods name claims that do not request what was counted, or that cannot be read. All of their pods wait.
    pub(super) users: BTreeSet<&'p str>,
    /// UIDs of pods whose claims are read in a later pass.
    pub(super) pods: BTreeSet<&'p str>,
}

/// A claim, and the users of whom pods name it.
type NamedClaim<'p> = (&'p Claim, BTreeSet<&'p str>);

/// Which of the pods that were admitted wait all the same because of their claims. Users without limits of devices have none.
pub(super) async fn find_held_back<'p>(
    client: &Client,
    limits: &UserLimits,
    pods: &'p [Arc<ObservedUserPod>],
    counted: &CountedPods,
    admitted: &BTreeSet<String>,
    failed: &mut FirstError<ReconcileError>,
) -> HeldBack<'p> {
    let admitted = pods.iter().filter(|pod| admitted.contains(&pod.uid));
    let (named, later) = choose_claims(limits, admitted);
    let reads: Vec<_> = named.values().map(|(claim, _)| read_requested(client, claim)).collect();
    let reads: Vec<Result<Option<RequestedDevices>, ReconcileError>> =
        stream::iter(reads).buffered(AT_ONCE).collect().await;
    let mut outdated = BTreeSet::new();
    for ((key, (_, users)), read) in named.iter().zip(reads) {
        let requested = failed.note(read).flatten();
        if requested.is_none() || counted.claims.get(key) != Some(&requested) {
            outdated.extend(users.iter().copied());
        }
    }
    HeldBack {
        users: outdated,
        pods: later,
    }
}

/// The claims to read now, by their keys, and the UIDs of pods that name further ones.
fn choose_claims<'p>(
    limits: &UserLimits,
    pods: impl Iterator<Item = &'p Arc<ObservedUserPod>>,
) -> (BTreeMap<String, NamedClaim<'p>>, BTreeSet<&'p str>) {
    let (mut named, mut later) = (BTreeMap::<String, NamedClaim<'p>>::new(), BTreeSet::new());
    let mut of_users: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        let user = limits.find_user(pod.created_by.as_deref());
        if !has_limits_of_devices(limits, user) {
            continue;
        }
        // The host has made those of templates, under names of their own.
        let own = pod.claims.iter().filter(|claim| !claim.is_template);
        let own: BTreeMap<String, &Claim> = own.map(|claim| (claim_key(claim), claim)).collect();
        let is_chosen = |key: &String| named.get(key).is_some_and(|(_, users)| users.contains(user));
        let more = own.keys().filter(|key| !is_chosen(key)).count();
        let number = of_users.entry(user).or_default();
        // One pod may name more.
        if *number > 0 && more > 0 && *number + more > MOST_OF_USER {
            later.insert(pod.uid.as_str());
            continue;
        }
        *number += more;
        for (key, claim) in own {
            let (_, users) = named.entry(key).or_insert_with(|| (claim, BTreeSet::new()));
            users.insert(user);
        }
    }
    (named, later)
}

/// What a claim requests; none if it is gone, or cannot be parsed.
async fn read_requested(client: &Client, claim: &Claim) -> Result<Option<RequestedDevices>, ReconcileError> {
    let found = read_claim(client, &claim.namespace, &claim.name).await?;
    Ok(found.map(|claim| DeviceClaim::read(claim.spec.as_ref(), None).count_requested()))
}
