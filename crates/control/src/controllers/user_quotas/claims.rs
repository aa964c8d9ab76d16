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

/// Users with limits of devices of whom pods were admitted that name claims which do not request what was counted, or which cannot be read.
pub(super) async fn find_outdated_users<'p>(
    client: &Client,
    limits: &UserLimits,
    pods: &'p [Arc<ObservedUserPod>],
    counted: &CountedPods,
    admitted: &BTreeSet<String>,
    failed: &mut FirstError<ReconcileError>,
) -> BTreeSet<&'p str> {
    let mut named: BTreeMap<String, (&'p Claim, BTreeSet<&'p str>)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| admitted.contains(&pod.uid)) {
        let user = limits.find_user(pod.created_by.as_deref());
        if !has_limits_of_devices(limits, user) {
            continue;
        }
        // The host has made those of templates, under names of their own.
        for claim in pod.claims.iter().filter(|claim| !claim.is_template) {
            let (_, users) = named
                .entry(claim_key(claim))
                .or_insert_with(|| (claim, BTreeSet::new()));
            users.insert(user);
        }
    }
    let reads: Vec<_> = named.values().map(|(claim, _)| read_requested(client, claim)).collect();
    let reads: Vec<Result<Option<RequestedDevices>, ReconcileError>> =
        stream::iter(reads).buffered(AT_ONCE).collect().await;
    let mut outdated = BTreeSet::new();
    for ((key, (_, users)), read) in named.iter().zip(reads) {
        let requested = failed.note(read).flatten();
        if requested.is_none() || requested.as_ref() != counted.claims.get(key) {
            outdated.extend(users.iter().copied());
        }
    }
    outdated
}

/// What a claim requests; none if it is gone, or cannot be parsed.
async fn read_requested(client: &Client, claim: &Claim) -> Result<Option<RequestedDevices>, ReconcileError> {
    let found = read_claim(client, &claim.namespace, &claim.name).await?;
    Ok(found.map(|claim| DeviceClaim::read(claim.spec.as_ref(), None).count_requested()))
}
