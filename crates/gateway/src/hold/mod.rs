//! Holds connections to tenants that sleep until their API servers are there.
//!
//! A held connection has its ClientHello in memory, and nothing else of it is read: what the client sends on stays in the kernel.

use crate::{
    limits::{Slot, Slots, SourceSlot, Sources},
    routes::{Backends, Tenant},
    sleep_state::{Activity, SleepState, WakeRequests},
    wake::{RequestWake, Waker},
};
use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

/// How long a connection is held whose API server does not accept it, although the tenant does not sleep as far as the gateway knows:
/// until its status has arrived.
pub const STATUS_DELAY: Duration = Duration::from_secs(3);
/// Time between two attempts to connect to an API server that is being started. One connection of a tenant tries, for all of them.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Time for one such attempt. A network without anything behind an address may not answer at all.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks whether a request to wake the tenant is due.
const REQUEST_CHECK: Duration = Duration::from_secs(1);

/// Maximum numbers of held connections.
#[derive(Clone, Copy, Debug)]
pub struct HoldLimits {
    /// All of them.
    pub all: usize,
    /// Those to one tenant.
    pub of_tenant: usize,
    /// Those to one tenant from one source.
    pub of_tenant_source: usize,
    /// Those from one source.
    pub of_source: usize,
}

/// What held connections of one tenant share.
#[derive(Debug, Default)]
pub struct HoldState {
    sleep: watch::Sender<SleepState>,
    /// Changes when the API server has accepted a held connection: the others follow.
    accepted: watch::Sender<u64>,
    /// Who has it tries to connect.
    probe: tokio::sync::Mutex<()>,
    slots: Slots,
    sources: Sources,
    /// When the tenant's wake was last requested.
    pub requests: Mutex<WakeRequests>,
}

impl HoldState {
    /// What is known of the tenant's sleep.
    pub fn sleep_state(&self) -> SleepState {
        *self.sleep.borrow()
    }

    /// Takes what the TenantCluster says now.
    pub fn set_sleep_state(&self, state: SleepState) {
        self.sleep.send_if_modified(|known| {
            let differs = *known != state;
            *known = state;
            differs
        });
    }
}

/// Why a held connection is not passed on.
#[derive(Debug, PartialEq, Eq)]
pub enum HoldError {
    /// Too many connections are held.
    Limit,
    /// The client closed the connection.
    HungUp,
    /// The TenantCluster is being deleted, or is gone.
    Deleted,
    /// The tenant sleeps, and no request wakes it.
    Kept,
    /// The tenant did not wake in time.
    NotAwake(String),
    /// The API server does not accept connections, and the tenant does not sleep.
    Unavailable(String),
}

/// Holds connections, within limits.
pub struct Holder {
    limits: HoldLimits,
    wake_timeout: Duration,
    backends: Backends,
    all: Slots,
    sources: Sources,
    waker: Waker,
}

/// A held connection, which is counted until this is dropped.
struct Held {
    tenant: Arc<Tenant>,
    _all: Slot,
    _tenant: Slot,
    _tenant_source: SourceSlot,
    _source: SourceSlot,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tenant.metrics.held.dec();
    }
}

impl Holder {
    /// One that holds connections for `wake_timeout` at most, and sends requests to wake tenants to `requests`.
    pub fn new(limits: HoldLimits, wake_timeout: Duration, backends: Backends, requests: Arc<dyn RequestWake>) -> Self {
        Self {
            limits,
            wake_timeout,
            backends,
            all: Slots::default(),
            sources: Sources::default(),
            waker: Waker::new(requests),
        }
    }

    fn take(&self, tenant: &Arc<Tenant>, source: IpAddr) -> Option<Held> {
        let (all, of_tenant, of_tenant_source, of_source) = (
            self.all.take(self.limits.all)?,
            tenant.hold.slots.take(self.limits.of_tenant)?,
            tenant.hold.sources.take(source, self.limits.of_tenant_source)?,
            self.sources.take(source, self.limits.of_source)?,
        );
        tenant.metrics.held.inc();
        Some(Held {
            tenant: Arc::clone(tenant),
            _all: all,
            _tenant: of_tenant,
            _tenant_source: of_tenant_source,
            _source: of_source,
        })
    }

    /// Holds a connection from `source` until `dial` reaches the tenant's API server, and returns what that gave. `hung_up` completes when
    /// the client has closed the connection. `refused` is why the API server could not be reached before, if that was tried.
    ///
    /// # Errors
    /// As [`HoldError`] says.
    pub async fn hold<T, F: Future<Output = Result<T, String>>>(
        &self,
        tenant: &Arc<Tenant>,
        source: IpAddr,
        refused: Option<String>,
        hung_up: impl Future<Output = ()>,
        dial: impl Fn() -> F,
    ) -> Result<T, HoldError> {
        let Some(_held) = self.take(tenant, source) else {
            // Others have the places, but the tenant is to be there when its clients come back.
            if tenant.hold.sleep_state().activity == Activity::Sleeping {
                self.waker.ask(tenant);
            }
            return Err(HoldError::Limit);
        };
        tokio::select! {
            biased;
            () = tenant.deleted.cancelled() => Err(HoldError::Deleted),
            () = hung_up => Err(HoldError::HungUp),
            reached = self.reach(tenant, refused, dial) => reached,
        }
    }

    async fn reach<T, F: Future<Output = Result<T, String>>>(
        &self,
        tenant: &Arc<Tenant>,
        refused: Option<String>,
        dial: impl Fn() -> F,
    ) -> Result<T, HoldError> {
        let start = Instant::now();
        let (mut states, mut accepted) = (tenant.hold.sleep.subscribe(), tenant.hold.accepted.subscribe());
        let mut was_asleep = false;
        let mut message = refused.unwrap_or_else(|| "the tenant sleeps".into());
        loop {
            let activity = states.borrow_and_update().activity;
            match activity {
                Activity::Ending => return Err(HoldError::Deleted),
                Activity::Kept => return Err(HoldError::Kept),
                Activity::Running | Activity::Sleeping | Activity::Waking | Activity::Other => {}
            }
            was_asleep |= activity.is_asleep();
            let deadline = start + if was_asleep { self.wake_timeout } else { STATUS_DELAY };
            if Instant::now() >= deadline {
                return Err(if was_asleep {
                    HoldError::NotAwake(message)
                } else {
                    HoldError::Unavailable(message)
                });
            }
            // One that was asleep and runs now needs no request any more.
            if activity == Activity::Sleeping || !was_asleep {
                self.waker.ask(tenant);
            }
            let may_answer = self.may_answer(activity);
            let tried = tokio::select! {
                // What it says applies from the next turn on.
                _ = states.changed() => continue,
                () = sleep_until(deadline) => continue,
                () = sleep(REQUEST_CHECK), if !may_answer => continue,
                tried = probe(&tenant.hold, dial()), if may_answer => tried,
                _ = accepted.changed(), if may_answer => {
                    let tried = timeout_at(deadline, dial()).await;
                    tried.unwrap_or_else(|_| Err("the API server does not accept in time".into()))
                }
            };
            match tried {
                Ok(reached) => return Ok(reached),
                Err(error) => message = error,
            }
        }
    }

    /// Whether an API server that accepts a connection now also serves it. One of a tenant that sleeps may be about to end. The Service of
    /// one that is being started leads to it once it is ready; as a process it accepts connections earlier, and would deny requests
    /// because it has not read any RBAC rules: control says when it serves, and it counts as running then.
    fn may_answer(&self, activity: Activity) -> bool {
        match activity {
            Activity::Sleeping | Activity::Kept | Activity::Ending => false,
            Activity::Waking => self.backends == Backends::ClusterIp,
            Activity::Running | Activity::Other => true,
        }
    }
}

/// Tries to connect, after the other held connections of the tenant that try. If that works, they follow at once.
async fn probe<T>(hold: &HoldState, attempt: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let _turn = hold.probe.lock().await;
    let tried = attempt.await;
    if tried.is_ok() {
        hold.accepted.send_modify(|count| *count = count.wrapping_add(1));
    } else {
        sleep(PROBE_INTERVAL).await;
    }
    tried
}

#[cfg(test)]
mod tests;
