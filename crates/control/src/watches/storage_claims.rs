//! The watch of tenants' PersistentVolumeClaims on the host. Of each only its classes and its sizes are kept.

use super::{
    follow::{self, Index},
    of_tenants,
};
use crate::{
    metered_use::MeteredUse,
    storage_uses::{StorageUses, of_claim},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use std::{collections::HashSet, sync::Arc};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Watches the claims of tenants. The receiver resolves when the first list is complete. A change wakes nothing: what a class no longer
/// offers is found when the class changes, and whether claims are left when the tenant is reconciled the next time.
pub(super) fn start(
    client: &Client,
    metered: MeteredUse,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<StorageUses>, oneshot::Receiver<()>) {
    let claims = Arc::new(StorageUses::default());
    let index = ClaimWatch {
        uses: Arc::clone(&claims),
        metered,
    };
    let listed = follow::start(Api::all(client.clone()), of_tenants(), index, tasks, stop);
    (claims, listed)
}

struct ClaimWatch {
    uses: Arc<StorageUses>,
    metered: MeteredUse,
}

impl Index<PersistentVolumeClaim> for ClaimWatch {
    fn put(&self, name: &str, claim: Option<&PersistentVolumeClaim>) {
        self.metered.put_claim(name, claim);
        self.uses.put_volume(name, claim);
        self.uses.put(name, claim.map(of_claim).unwrap_or_default());
    }

    fn retain(&self, names: &HashSet<String>) {
        self.metered.retain_claims(names);
        self.uses.retain(names);
    }
}
