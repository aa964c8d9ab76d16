//! The pauses between two restores of a tenant, and between two tries of one.
//!
//! Each restore stops the syncer: who asks again and again would keep it from ever taking away from the host what the class allows no more, and would fill etcd with
//! the history of what was replaced. docs/adr/0066 says more.

use super::{
    super::{context::TenantContext, enforcement},
    Accepted,
};
use crate::datastore::{DatastoreError, RestoreEnd};
use kube::ResourceExt;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before a restore that failed is tried again; it doubles with each try.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// The longest.
const MOST_RETRY: Duration = Duration::from_secs(300);

/// How long the next restore waits at most after one that has ended; none: not at all.
///
/// # Errors
/// This process does not know how the last restore ended, and the datastore does not say it.
pub(super) async fn find_pause(
    context: &TenantContext,
    accepted: &Accepted,
) -> Result<Option<Duration>, DatastoreError> {
    let tenant = &accepted.tenant;
    let (uid, restores) = (tenant.cluster.uid().unwrap_or_default(), context.tenants.restores());
    if !restores.knows_end(&uid) {
        let now = context.clock.now();
        let stored = context.contents.read_restore_end(&tenant.id).await?;
        // Of one that cannot be read nobody knows when it ended.
        let end = stored.map(|text| RestoreEnd::parse(&text).unwrap_or_else(|_| RestoreEnd::new(now, 0)));
        restores.learn_end(&uid, end.as_ref(), now, Instant::now());
    }
    let rules = enforcement::rules_hash(&accepted.settings.sync);
    let has_compared = tenant.memory.follows(&rules);
    Ok(restores.rest(&uid, has_compared, Instant::now()))
}

/// Pause before a restore is tried again that has been tried so often.
pub(super) fn retry_pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    RETRY.saturating_mul(1 << doublings).min(MOST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_have_a_greatest_length() {
        let seconds: Vec<u64> = (0..9).map(|attempts| retry_pause(attempts).as_secs()).collect();
        assert_eq!(seconds, [5, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(retry_pause(u32::MAX), MOST_RETRY);
    }
}
