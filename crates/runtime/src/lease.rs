//! Leader election: one of several replicas works, the others wait.

mod renewals;

use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use renewals::Renewals;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Seconds that a lease is valid after its last renewal. A leader that was killed is replaced after this time.
const DURATION_SECONDS: u64 = 15;
/// Seconds before its end at which the holder begins to renew its lease.
const GRACE_SECONDS: u64 = 12;
/// Age of the last renewal at which the holder stops, as client-go's default. Others may take the lease five seconds later, by their own clocks.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two looks at the age of the last renewal.
const CHECK: Duration = Duration::from_millis(500);
/// Pause before the lease is requested again after an error.
const RETRY: Duration = Duration::from_secs(1);
/// Time for the release of the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Runs `work` while this process holds the lease. `work` gets a token that is cancelled when it must stop, because `stop` was cancelled; the
/// lease is released when it ends. If the lease is lost, or was not renewed in time, `work` is dropped where it is: another replica may
/// lead now. This function then returns [`LeaseError::Lost`], and the process should exit, so that it keeps no state of its time as leader.
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
    let renewals = Renewals::default();
    let client = renewals.observe(client);
    let mut manager = manage(&client, request).await?;
    tracing::info!(lease = request.name, identity = request.identity, "waiting to lead");
    on_waiting();
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        acquired = async {
            while let Err(error) = acquire(&manager).await {
                tracing::warn!(%error, "the lease is gone, and is created again once no other replica can lead any more");
                tokio::time::sleep(Duration::from_secs(DURATION_SECONDS)).await;
                manager = manage(&client, request).await?;
            }
            Ok::<_, LeaseError>(())
        } => acquired?,
    }
    tracing::info!(lease = request.name, identity = request.identity, "leading");
    tokio::select! {
        // It is polled first, so that a process that was stopped for long does nothing more.
        biased;
        () = lose(&manager, &renewals) => return Err(LeaseError::Lost),
        () = work(stop.child_token()) => {}
    }
    // Without the release, others wait until it is no longer valid.
    match tokio::time::timeout(RELEASE_TIMEOUT, manager.release()).await {
        Ok(released) => Ok(released?),
        Err(_) => Ok(()),
    }
}

/// The manager of the lease. Creates the Lease object if there is none.
///
/// # Errors
/// The API server refuses or does not answer.
async fn manage(client: &Client, request: &LeaseRequest) -> Result<LeaseManager, LeaseManagerError> {
    LeaseManagerBuilder::new(client.clone(), &request.name)
        .with_namespace(&request.namespace)
        .with_identity(&request.identity)
        .with_field_manager(berth_field_manager(&request.identity))
        .with_duration(DURATION_SECONDS)
        .with_grace(GRACE_SECONDS)
        .build()
        .await
}

/// Returns once this process has the lease.
///
/// # Errors
/// There is no Lease object any more.
async fn acquire(manager: &LeaseManager) -> Result<(), LeaseManagerError> {
    // A process that starts under the name of the holder would lead without a renewal, on what is left of the lease. This clears a lease of its
    // own, or one that is over.
    while let Err(error) = manager.release().await {
        if is_missing(&error) {
            return Err(error);
        }
        tracing::warn!(%error, "cannot read the lease");
        tokio::time::sleep(RETRY).await;
    }
    loop {
        match manager.changed().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if is_missing(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "cannot read or take the lease");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Renews the lease. Returns once another process has it, it does not exist any more, or it was not renewed in time.
async fn lose(manager: &LeaseManager, renewals: &Renewals) {
    let renew = async {
        loop {
            match manager.changed().await {
                Ok(true) => {}
                Ok(false) => return tracing::error!("another replica has the lease"),
                Err(error) if is_missing(&error) => return tracing::error!(%error, "the lease is gone"),
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the lease");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    let overdue = async {
        while renewals.age() < RENEWED_WITHIN {
            tokio::time::sleep(CHECK).await;
        }
        tracing::error!("the lease was not renewed for {} s", RENEWED_WITHIN.as_secs());
    };
    tokio::select! {
        biased;
        () = overdue => {}
        () = renew => {}
    }
}

fn is_missing(error: &LeaseManagerError) -> bool {
    match error {
        LeaseManagerError::NonexistentLease(_) => true,
        LeaseManagerError::KubeError(kube::Error::Api(status)) => status.code == 404,
        _ => false,
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

impl From<LeaseManagerError> for LeaseError {
    fn from(error: LeaseManagerError) -> Self {
        Self::Manager(Box::new(error))
    }
}
