//! Host objects that are made or changed before the tenant's object is stored, because the host allocates something
//! that is written into it.
//!
//! A host object for a tenant object that does not exist yet is a reservation: instead of the UID of a tenant object it
//! has the time at which it was made. When the tenant's object is reconciled, the reservation becomes its host object;
//! a reservation without a tenant object is swept after a while. So a crash, or a later rejection in the tenant, leaves
//! nothing but what the sweep removes.
//!
//! Until the tenant's API server has stored the answer and the object arrives here, the tenant's object in the store is
//! out of date. Meanwhile the host object is left alone: its reservation is [*pending*](super::pending).

use super::{
    Engine,
    api::{Api, CallError, Delete},
    create,
    host_bytes::BytesInFlight,
    pending::ReservationInProgress,
    to_host,
};
use berth_api::labels;
use berth_sync_rules::{
    model::{
        KindId, ToHost, json,
        resource::{Key, Name, Side, host_name},
    },
    translation::sizes::count_bytes,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Age at which a reservation without a tenant object is removed.
pub(super) const GRACE: Duration = Duration::from_secs(60);
/// How long a creation waits until another one of the same name has ended, and an update until the creation has.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks whether that has happened.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Attempts if others change the same object.
const ATTEMPTS: usize = 5;
/// How API servers say that an address or a port is taken: `ErrAllocated` of their allocators.
pub(crate) const TAKEN_ADDRESS: &str = "provided IP is already allocated";
pub(crate) const TAKEN_PORT: &str = "provided port is already allocated";
/// Pauses in milliseconds before an address or a port that is taken is asked for again.
const RELEASE_PAUSES: [u64; 4] = [100, 200, 400, 800];

/// The connections to both API servers through which a reservation is made: those of the caller's runtime. The caller
/// runs on another thread than the engine, and must not wait for it.
pub(crate) struct Connections {
    /// To the tenant's.
    pub(crate) tenant: Api,
    /// To the host's.
    pub(crate) host: Api,
}

/// What is to be reserved.
pub(crate) struct ReservationRequest<'a> {
    pub(crate) connections: &'a Connections,
    /// The kind.
    pub(crate) id: KindId,
    pub(crate) rules: &'static dyn ToHost,
    /// Name in the tenant.
    pub(crate) name: &'a Name,
    /// UID of the tenant's object, if it exists.
    pub(crate) origin: Option<&'a str>,
    /// The host object as translated.
    pub(crate) object: Value,
    /// Whether nothing may be stored.
    pub(crate) dry_run: bool,
}

impl ReservationRequest<'_> {
    fn key(&self) -> Key {
        self.id.key(self.name.clone())
    }
}

/// Why nothing was reserved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// The tenant's object exists already.
    #[error("the object exists")]
    Exists,
    /// The host object of an earlier tenant object of the name is not gone yet.
    #[error("the earlier object is being deleted")]
    Ending,
    /// An object that is not the tenant's has the name.
    #[error("the name is taken")]
    Foreign,
    /// Not everything is listed yet.
    #[error("starting")]
    Starting,
    /// The host would make endpoints for it, and has made too many for the tenant.
    #[error("too many Services are made")]
    TooManyServices,
    /// The syncer has written so much for the tenant that there is no turn soon.
    #[error("no turn before {0:?}")]
    NoTurn(Duration),
    /// There were so many dry runs that there is none soon.
    #[error("no dry run before {0:?}")]
    NoTry(Duration),
    /// An API server failed or rejected the request.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Time that is left to a reservation made at `reserved_at` (seconds since the epoch).
pub(super) fn grace_left(reserved_at: i64, now: Timestamp) -> Duration {
    let age = SignedDuration::from_secs(now.as_second().saturating_sub(reserved_at));
    GRACE.saturating_sub(age.unsigned_abs())
}

impl Engine {
    /// Makes or changes the host object of a tenant object that is about to be stored. Returns it as the host has it.
    ///
    /// # Errors
    /// As [`ReserveError`] says; then no reservation is pending, and what may have been created is swept.
    pub(crate) async fn reserve(&self, request: ReservationRequest<'_>) -> Result<Value, ReserveError> {
        let stores = &self.cache.stores;
        if !stores.tenant(request.id).is_listed() {
            return Err(ReserveError::Starting);
        }
        // What exists needs no turn to be written.
        if request.origin.is_none() && self.exists(&request).await? {
            return Err(ReserveError::Exists);
        }
        if request.dry_run {
            tokio::time::sleep(self.turns.take_try_soon().map_err(ReserveError::NoTry)?).await;
            self.start_host_watch(request.id);
            return self.write_once_released(&request).await;
        }
        let _in_flight = self.wait_for_turn_to_reserve(&request).await?;
        self.start_host_watch(request.id);
        let in_progress = if request.origin.is_none() {
            self.wait_for_turn(&request).await?
        } else {
            self.wait_for_adoption(&request).await;
            self.start_reservation(&request, Duration::ZERO)
        };
        let is_new = request.origin.is_none() || !stores.host(request.id).contains(request.name);
        if is_new && !self.may_make_endpoints(request.id, &request.object) {
            return Err(ReserveError::TooManyServices);
        }
        let host = self.write_once_released(&request).await?;
        if let Some(in_progress) = in_progress {
            in_progress.answered(request.rules.allocated(&host));
        }
        self.store_written(Side::Host, request.id, request.name, host.clone());
        Ok(host)
    }

    /// Begins a reservation, unless one of the object began less than `turn` ago.
    fn start_reservation(&self, request: &ReservationRequest<'_>, turn: Duration) -> Option<ReservationInProgress<'_>> {
        let key = request.key();
        let number = self.pending.start(&key, turn, Instant::now())?;
        Some(ReservationInProgress::new(self, key, number))
    }

    /// Waits for the turn of the write, for some seconds at most: the tenant's API server waits, too.
    async fn wait_for_turn_to_reserve(
        &self,
        request: &ReservationRequest<'_>,
    ) -> Result<BytesInFlight<'_>, ReserveError> {
        let known = self.cache.stores.host(request.id).get(request.name);
        let known = known.map_or(0, |host| u64::from(host.bytes));
        let bytes = known.max(count_bytes(&request.object) as u64);
        let mutable = request.rules.mutable_part(&request.object);
        let growth = self.growth(&request.key(), known, &request.object, &mutable);
        let in_flight = self.reserve_growth(known, growth).map_err(CallError::QuotaExceeded)?;
        tokio::time::sleep(self.turns.take_soon(bytes).map_err(ReserveError::NoTurn)?).await;
        Ok(in_flight)
    }

    /// Waits until the reservation of an object that was stored just now has become its host object, but not for long: only then it is known what
    /// that selects.
    async fn wait_for_adoption(&self, request: &ReservationRequest<'_>) {
        let is_reserved = || {
            let host = self.cache.stores.host(request.id).get(request.name);
            host.is_some_and(|host| host.origin_uid.is_none())
        };
        let begun = Instant::now();
        while is_reserved() && begun.elapsed() < TURN_TIMEOUT {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the tenant has the object that is to be created. Its API server is asked only if it had it a moment ago.
    async fn exists(&self, request: &ReservationRequest<'_>) -> Result<bool, ReserveError> {
        if !self.cache.stores.tenant(request.id).contains(request.name) {
            return Ok(false);
        }
        let Name { namespace, name } = request.name;
        let tenant = &request.connections.tenant;
        let live = tenant.get(request.rules.resource(), namespace, name).await;
        Ok(CallError::found(live)?.is_some())
    }

    /// Lets one creation of a name proceed at a time. The next one finds the object that the first one created, if any.
    async fn wait_for_turn(
        &self,
        request: &ReservationRequest<'_>,
    ) -> Result<Option<ReservationInProgress<'_>>, ReserveError> {
        let store = self.cache.stores.tenant(request.id);
        loop {
            if store.contains(request.name) {
                if self.exists(request).await? {
                    return Err(ReserveError::Exists);
                }
                // It is gone: the watch will report that.
                return Ok(self.start_reservation(request, Duration::ZERO));
            }
            if let Some(in_progress) = self.start_reservation(request, TURN_TIMEOUT) {
                return Ok(Some(in_progress));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Makes or changes the host object. What the tenant asks for, an address or a port, may be that of an object that it deleted a moment ago:
    /// in the tenant it is free at once, on the host when that object is gone, too. It may be another tenant's as well, and the team may go on asking for
    /// it: each time would be several requests to the host.
    async fn write_once_released(&self, request: &ReservationRequest<'_>) -> Result<Value, ReserveError> {
        for pause in RELEASE_PAUSES {
            match self.write_host_object(request).await {
                Err(ReserveError::Call(CallError::Rejected(why)))
                    if is_allocated(&why) && self.turns.take_try_at_once() =>
                {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                written => return written,
            }
        }
        self.write_host_object(request).await
    }

    /// Makes the host object, or changes the one there is.
    async fn write_host_object(&self, request: &ReservationRequest<'_>) -> Result<Value, ReserveError> {
        let host = &request.connections.host;
        let (resource, namespace) = (request.rules.resource(), self.cache.tenant.workload_namespace.as_str());
        let name = host_name(request.id, request.name);
        let reservation = |live: Option<&Value>| {
            let object = request.rules.reserved(request.object.clone(), live);
            let hash = self.cache.tenant.applied_hash(&request.rules.mutable_part(&object));
            let about = (request.id, request.rules);
            to_host::with_metadata(&self.cache, about, request.name, request.origin, object, &hash)
        };
        if request.dry_run && request.origin.is_none() {
            // Under a name that is not in use, because the host object of an earlier object cannot be deleted for a dry
            // run.
            let other = Name::new(&request.name.namespace, &format!("{}/dry-run", request.name.name));
            let mut object = reservation(None);
            let name = host_name(request.id, &other);
            object["metadata"]["name"] = name.as_str().into();
            return Ok(host.apply_dry_run(resource, namespace, &name, &object).await?);
        }
        let mut found = None;
        if self.cache.stores.host(request.id).contains(request.name) {
            found = CallError::found(host.get(resource, namespace, &name).await)?;
        }
        for _ in 0..ATTEMPTS {
            let Some(live) = found.take() else {
                let mut object = reservation(None);
                object["metadata"]["resourceVersion"] = create::NOTHING_YET.into();
                let made = if request.dry_run {
                    host.apply_dry_run(resource, namespace, &name, &object).await
                } else {
                    host.apply(resource, namespace, &name, &object).await
                };
                match made {
                    Err(CallError::Conflict(_)) => {
                        found = CallError::found(host.get(resource, namespace, &name).await)?;
                        continue;
                    }
                    made => return Ok(made?),
                }
            };
            let meta = |path: &[&str]| json::text(&live["metadata"], path);
            if meta(&["labels", labels::MANAGED_BY]) != Some(labels::MANAGED_BY_SYNCER) {
                return Err(ReserveError::Foreign);
            }
            if meta(&["deletionTimestamp"]).is_some() {
                return Err(ReserveError::Ending);
            }
            let uid = meta(&["uid"]).unwrap_or_default();
            let origin = meta(&["annotations", labels::ORIGIN_UID]);
            let is_same = origin.is_some() && origin == request.origin;
            let mut object = reservation(is_same.then_some(&live));
            if (is_same || origin.is_none()) && !request.rules.must_replace(&object, &live) {
                object["metadata"]["uid"] = uid.into();
                let changed = if request.dry_run {
                    host.apply_dry_run(resource, namespace, &name, &object).await
                } else {
                    host.apply(resource, namespace, &name, &object).await
                };
                match changed {
                    Err(CallError::Conflict(_)) => {
                        found = CallError::found(host.get(resource, namespace, &name).await)?;
                        continue;
                    }
                    changed => return Ok(changed?),
                }
            }
            if request.dry_run {
                return Err(ReserveError::Ending);
            }
            let how = Delete {
                uid,
                version: None,
                grace_seconds: request.rules.orphan_grace(),
            };
            match host.delete(resource, namespace, &name, how).await {
                Ok(_) | Err(CallError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
            found = CallError::found(host.get(resource, namespace, &name).await)?;
        }
        Err(CallError::Conflict("the host object keeps changing".into()).into())
    }
}

/// Whether an API server rejects an object because an address or a port that it asks for is taken.
fn is_allocated(rejection: &str) -> bool {
    rejection.contains(TAKEN_ADDRESS) || rejection.contains(TAKEN_PORT)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{scripted::Scripted, test_engine::tenant},
        *,
    };
    use crate::metrics::Metrics;
    use berth_api::SyncPolicy;
    use futures::future::join_all;
    use http::{Request, Response, StatusCode};
    use kube::{Client, client::Body};
    use serde_json::json;
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    /// Reserves what a new Service without a selector needs.
    async fn reserve(engine: &Engine, connections: &Connections, dry_run: bool) -> Result<Value, ReserveError> {
        let request = ReservationRequest {
            connections,
            id: KindId::Service,
            rules: engine.cache.rules_to_host(KindId::Service).unwrap(),
            name: &Name::new("team", "web"),
            origin: None,
            object: json!({"metadata": {}, "spec": {"clusterIP": "10.96.200.7", "ports": [{"port": 80}]}}),
            dry_run,
        };
        engine.reserve(request).await
    }

    /// An engine whose host and tenant carry everything out, and that has started.
    fn started() -> Scripted {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        scripted.engine.cache.stores.tenant(KindId::Service).set_listed();
        scripted
    }

    #[tokio::test(start_paused = true)]
    async fn dry_runs_are_limited_in_number() {
        let scripted = started();
        let engine = &scripted.engine;
        let connections = Connections {
            tenant: engine.tenant.clone(),
            host: engine.host.clone(),
        };
        // A syncer that starts has 300, and each waits for five seconds at most.
        let answers = join_all((0..400).map(|_| reserve(engine, &connections, true))).await;
        let is_refused = |answer: &&Result<Value, ReserveError>| matches!(answer, Err(ReserveError::NoTry(_)));
        assert_eq!(answers.iter().filter(is_refused).count(), 50);
        assert!(answers.iter().all(|answer| answer.is_ok() || is_refused(&answer)));
        assert_eq!(scripted.calls("host PATCH ", "").len(), 350);
        // What is stored takes bytes, and is not limited by that.
        assert!(reserve(engine, &connections, false).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_taken_is_asked_for_again_a_limited_number_of_times() {
        let scripted = started();
        let engine = &scripted.engine;
        let asked: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let message = format!("spec.clusterIPs: Invalid value: {TAKEN_ADDRESS}");
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": 422});
            let mut response = Response::new(Body::from(status.to_string().into_bytes()));
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
            async move { Ok::<_, Infallible>(response) }
        });
        let connections = Connections {
            tenant: engine.tenant.clone(),
            host: Api::new(Client::new(service, "default"), Side::Host, Metrics::default()),
        };
        let is_taken = |answer: Result<Value, ReserveError>| matches!(answer, Err(ReserveError::Call(CallError::Rejected(why))) if is_allocated(&why));
        assert!(is_taken(reserve(engine, &connections, false).await));
        let all = 1 + RELEASE_PAUSES.len();
        assert_eq!(asked.swap(0, Ordering::SeqCst), all, "it may be released soon");
        while engine.turns.take_try_at_once() {}
        assert!(is_taken(reserve(engine, &connections, false).await));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn only_what_is_taken_is_asked_for_again() {
        for (why, expected) in [
            (
                "spec.ports[0].nodePort: Invalid value: 31476: provided port is already allocated",
                true,
            ),
            (
                "spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated",
                true,
            ),
            (
                "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range",
                false,
            ),
        ] {
            assert_eq!(is_allocated(why), expected, "{why}");
        }
        let all = Duration::from_millis(RELEASE_PAUSES.iter().sum());
        assert!(all < TURN_TIMEOUT, "another creation of the name waits for as long");
    }

    #[test]
    fn a_reservation_expires_whatever_the_clock_did() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(grace_left(1_000_000 - 10, now), Duration::from_secs(50));
        assert_eq!(grace_left(1_000_000 - 60, now), Duration::ZERO);
        assert_eq!(
            grace_left(1_000_000 + 100, now),
            Duration::ZERO,
            "made in the future: it has expired"
        );
    }
}
