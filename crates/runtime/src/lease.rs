//! Leader election: one of several replicas works, the others wait.

use kube::Client;
use kube_lease_manager::{LeaseManagerBuilder, LeaseManagerError};
use tokio_util::sync::CancellationToken;

/// Seconds that a lease is valid after its last renewal. A leader that was killed is replaced after this time.
const DURATION_SECONDS: u64 = 15;
/// Seconds before its end at which the holder renews its lease.
const GRACE_SECONDS: u64 = 5;

/// The lease, and the replica that requests it.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Namespace of the Lease object.
    pub namespace: String,
    /// Name of the Lease object.
    pub name: String,
    /// Name of this replica: unique among replicas that may run at the same time. A replica that starts under the name of
    /// the holder takes the lease at once.
    pub identity: String,
}

/// Runs `work` while this process holds the lease. `work` gets a token that is cancelled when it must stop: because
/// `stop` was cancelled, or because the lease was lost, in which case this function returns [`LeaseError::Lost`] and
/// the process should exit, so that it keeps no state of its time as leader. The lease is released when `work` ends.
/// `on_waiting` is called once this process is ready to take over.
///
/// # Errors
/// The lease cannot be managed, or was lost.
pub async fn run_as_leader<F, Fut>(
    client: Client,
    request: &LeaseRequest,
    stop: &CancellationToken,
    on_waiting: impl FnOnce(),
    work: F,
) -> Result<(), LeaseError>
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let manager = LeaseManagerBuilder::new(client, &request.name)
        .with_namespace(&request.namespace)
        .with_identity(&request.identity)
        .with_field_manager(berth_field_manager(&request.identity))
        .with_duration(DURATION_SECONDS)
        .with_grace(GRACE_SECONDS)
        .build()
        .await
        .map_err(|error| LeaseError::Manager(Box::new(error)))?;
    let (mut leading, task) = manager.watch().await;
    tracing::info!(lease = request.name, identity = request.identity, "waiting to lead");
    on_waiting();
    let acquired = tokio::select! {
        () = stop.cancelled() => false,
        result = leading.wait_for(|leads| *leads) => result.is_ok(),
    };
    let mut lost = false;
    if acquired {
        tracing::info!(lease = request.name, identity = request.identity, "leading");
        let work_stop = stop.child_token();
        let work = work(work_stop.clone());
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => {}
            _ = leading.wait_for(|leads| !*leads) => {
                lost = true;
                work_stop.cancel();
                work.await;
            }
        }
    }
    // Dropping the channel makes the manager release the lease.
    drop(leading);
    let managed = task.await;
    match (lost, managed) {
        (true, _) => Err(LeaseError::Lost),
        (false, Ok(Err(error))) => Err(LeaseError::Manager(Box::new(error))),
        (false, _) => Ok(()),
    }
}

fn berth_field_manager(identity: &str) -> String {
    // The API server allows 128 characters.
    format!("berth-lease-{identity}").chars().take(128).collect()
}

/// Why a replica is no longer the leader.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The Lease object cannot be managed.
    #[error("leader election: {0}")]
    Manager(#[source] Box<LeaseManagerError>),
    /// Another replica is the leader, or the lease could not be renewed in time.
    #[error("leader election: the lease was lost; another replica may lead now")]
    Lost,
}
