//! Leader election: one of several replicas works, the others wait.
//!
//! The lease is requested and renewed on a thread with a runtime and a client of its own. So what the work does, or a part of it that computes for
//! long, keeps no renewal back. A fence ends a process that may no longer lead, or that does nothing any more.

mod fence;
mod heartbeat;
mod renewals;
#[cfg(test)]
mod tests;

use crate::{
    client::{self, ConnectError},
    thread::Thread,
};
use fence::{Cause, Fence};
use heartbeat::Heartbeat;
use kube::{Client, Config};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use renewals::Renewals;
use std::{io, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Name of the thread that holds the lease.
const THREAD: &str = "lease";
/// Pause before the lease is requested again after an error.
const RETRY: Duration = Duration::from_secs(1);
/// Time for the release of the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Times of the election.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Seconds that a lease is valid after its last renewal. A leader that was killed is replaced after this time.
    duration: u64,
    /// Seconds before its end at which the holder begins to renew its lease.
    grace: u64,
    /// Age of the last renewal at which the holder stops.
    renewed_within: Duration,
    /// Pause between two looks at whether this process may lead.
    check: Duration,
    /// Pause between two signs of life of the runtime of the work.
    beat: Duration,
    /// Time without one after which the process ends.
    stands_still: Duration,
    /// Time from the loss of the lease until the process is ended, in which it can end by itself.
    orderly_end: Duration,
}

impl Default for Times {
    /// The times of all programs. `renewed_within` is client-go's default: others may take the lease five seconds later, by their own clocks.
    fn default() -> Self {
        Self {
            duration: 15,
            grace: 12,
            renewed_within: Duration::from_secs(10),
            check: Duration::from_millis(500),
            beat: Duration::from_secs(1),
            stands_still: Duration::from_secs(60),
            orderly_end: Duration::from_secs(2),
        }
    }
}

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
    /// Ends this process, from a thread without a runtime: [`exit`], unless replicas of a test share a process.
    pub end_process: fn(),
    /// The default, unless a test cannot wait for so long.
    pub times: Times,
}

/// Ends the process as one that has failed.
pub fn exit() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the process may hang, and another replica leads: no destructor may delay its end"
    )]
    std::process::exit(1);
}

/// Runs `work` while this process holds the lease. `work` gets a token that is cancelled when it must stop, because `stop` was cancelled; the
/// lease is released when it ends. If the lease is lost, or was not renewed in time, `work` is dropped where it is: another replica may
/// lead now. This function then returns [`LeaseError::Lost`], and the process should exit, so that it keeps no state of its time as leader. Two
/// seconds later [`LeaseRequest::end_process`] is called in any case: what `work` has spawned may still run, and this function cannot return while
/// the thread that polls it is busy.
///
/// The same happens with [`LeaseError::StandsStill`] when the runtime that calls this has run no task for a minute while this process led. The
/// lease is not released then: the process must have ended before another replica leads.
///
/// `on_waiting` is called once this process is ready to take over.
///
/// # Errors
/// The lease cannot be managed, or was lost.
pub async fn run_as_leader<F, Fut>(
    config: Config,
    request: &LeaseRequest,
    stop: &CancellationToken,
    on_waiting: impl FnOnce(),
    work: F,
) -> Result<(), LeaseError>
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let (heartbeat, _task) = Heartbeat::start(request.times.beat);
    let (phases, mut phase) = watch::channel(Phase::Starting);
    let finish = CancellationToken::new();
    let candidate = Candidate {
        config,
        request: request.clone(),
        heartbeat,
        phases,
        finish: finish.clone(),
    };
    let mut thread = Thread::start(THREAD, move || candidate.run()).map_err(LeaseError::Thread)?;
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        ended = thread.ended() => return failed(ended),
        true = reach(&mut phase, Phase::Waiting) => {}
    }
    on_waiting();
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        ended = thread.ended() => return failed(ended),
        true = reach(&mut phase, Phase::Leading) => {}
    }
    tokio::select! {
        // It is polled first, so that a process that has lost its lease does nothing more.
        biased;
        ended = thread.ended() => return failed(ended),
        () = work(stop.child_token()) => {}
    }
    finish.cancel();
    thread.ended().await.unwrap_or(Err(LeaseError::Panicked))
}

/// The error of a thread that was not to end yet.
fn failed(ended: Option<Result<(), LeaseError>>) -> Result<(), LeaseError> {
    match ended {
        None => Err(LeaseError::Panicked),
        Some(Ok(())) => Err(LeaseError::Lost),
        Some(Err(error)) => Err(error),
    }
}

/// How far a replica has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Starting,
    Waiting,
    Leading,
}

/// Returns true once a replica has come so far, and false if it will not.
async fn reach(phase: &mut watch::Receiver<Phase>, awaited: Phase) -> bool {
    phase.wait_for(|now| *now >= awaited).await.is_ok()
}

/// A replica: what its thread holds and renews the lease with.
struct Candidate {
    config: Config,
    request: LeaseRequest,
    /// Of the runtime of the work.
    heartbeat: Heartbeat,
    phases: watch::Sender<Phase>,
    /// Is cancelled when the work has ended.
    finish: CancellationToken,
}

impl Candidate {
    /// Waits for the lease, renews it until the work has ended, and gives it back.
    ///
    /// # Errors
    /// As [`run_as_leader`].
    async fn run(self) -> Result<(), LeaseError> {
        let renewals = Renewals::default();
        // Clients are served by the runtime in which they were made.
        let client = renewals.observe(client::limited_and_reading_all(self.config.clone())?);
        let mut manager = self.manage(&client).await?;
        tracing::info!(
            lease = self.request.name,
            identity = self.request.identity,
            "waiting to lead"
        );
        self.phases.send_replace(Phase::Waiting);
        while let Err(error) = acquire(&manager).await {
            tracing::warn!(%error, "the lease is gone, and is created again once no other replica can lead any more");
            tokio::time::sleep(Duration::from_secs(self.request.times.duration)).await;
            manager = self.manage(&client).await?;
        }
        // Before the work knows that it may begin.
        let LeaseRequest { times, end_process, .. } = self.request;
        let mut fence =
            Fence::raise(renewals, self.heartbeat.clone(), times, end_process).map_err(LeaseError::Thread)?;
        tracing::info!(lease = self.request.name, identity = self.request.identity, "leading");
        self.phases.send_replace(Phase::Leading);
        let lost = tokio::select! {
            biased;
            cause = fence.closed() => Some(cause),
            () = self.finish.cancelled() => None,
            () = renew(&manager) => {
                fence.close();
                Some(Cause::Lost)
            }
        };
        drop(fence);
        if let Some(cause) = lost {
            // The process may be ended before anybody can look at the error.
            tracing::error!("this process may not lead any more: {cause}");
            return Err(cause.into());
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
    async fn manage(&self, client: &Client) -> Result<LeaseManager, LeaseManagerError> {
        let request = &self.request;
        LeaseManagerBuilder::new(client.clone(), &request.name)
            .with_namespace(&request.namespace)
            .with_identity(&request.identity)
            .with_field_manager(berth_field_manager(&request.identity))
            .with_duration(request.times.duration)
            .with_grace(request.times.grace)
            .build()
            .await
    }
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

/// Renews the lease. Returns once another process has it, or it does not exist any more.
async fn renew(manager: &LeaseManager) {
    loop {
        match manager.changed().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) if is_missing(&error) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot renew the lease");
                tokio::time::sleep(RETRY).await;
            }
        }
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
    /// There is no client for the lease.
    #[error("leader election: {0}")]
    Client(#[from] ConnectError),
    /// There is no thread for the lease.
    #[error("leader election: no thread can be started: {0}")]
    Thread(#[source] io::Error),
    /// Its thread has panicked. Releases abort the whole process then, and never return this. Builds that unwind, as those of tests do, must not go on
    /// as if the thread had given the lease back.
    #[error("leader election: the thread that holds the lease has ended")]
    Panicked,
    /// Another replica is the leader, or the lease could not be renewed in time.
    #[error("leader election: the lease was lost; another replica may lead now")]
    Lost,
    /// This process held the lease and did nothing.
    #[error("leader election: the process led, and has run no task for {} s", .0.as_secs())]
    StandsStill(Duration),
}

impl From<LeaseManagerError> for LeaseError {
    fn from(error: LeaseManagerError) -> Self {
        Self::Manager(Box::new(error))
    }
}

impl From<Cause> for LeaseError {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Lost | Cause::Overdue(_) => Self::Lost,
            Cause::StandsStill(time) => Self::StandsStill(time),
        }
    }
}
