use super::*;
use crate::{
    metrics::Metrics,
    routes::{Key, RoutingTable},
    sleep_state::REQUEST_INTERVAL,
};
use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use std::{
    future::{pending, ready},
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

const WAKE_TIMEOUT: Duration = Duration::from_secs(60);
const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Keeps the times of requests.
#[derive(Default)]
struct Recorded(Mutex<Vec<Timestamp>>);

impl RequestWake for Recorded {
    fn request_wake(&self, _: &str, _: &str, at: Timestamp) -> BoxFuture<'static, Result<(), String>> {
        self.0.lock().unwrap().push(at);
        ready(Ok(())).boxed()
    }
}

/// One tenant, whose API server is there or not.
struct Setup {
    holder: Holder,
    table: RoutingTable,
    requests: Arc<Recorded>,
    answers: AtomicBool,
    attempts: AtomicUsize,
}

fn key() -> Key {
    ("team-a".into(), "vision".into())
}

fn state(activity: Activity) -> SleepState {
    SleepState {
        activity,
        since: Some("2027-01-15T08:00:00Z".parse().unwrap()),
        requested_at: None,
    }
}

const UNLIMITED: HoldLimits = HoldLimits {
    all: 1000,
    of_tenant: 1000,
    of_tenant_source: 1000,
    of_source: 1000,
};

impl Setup {
    fn with(limits: HoldLimits, backends: Backends) -> Arc<Self> {
        let metrics = Metrics::new(&mut Registry::default());
        let domain = "example.com".parse().unwrap();
        let requests = Arc::new(Recorded::default());
        Arc::new(Self {
            holder: Holder::new(limits, WAKE_TIMEOUT, backends, requests.clone()),
            table: RoutingTable::new(domain, backends, metrics, CancellationToken::new()),
            requests,
            answers: AtomicBool::default(),
            attempts: AtomicUsize::default(),
        })
    }

    fn new() -> Arc<Self> {
        Self::with(UNLIMITED, Backends::ClusterIp)
    }

    fn set(&self, activity: Activity) {
        self.table.put_tenant(key(), "1", state(activity));
    }

    fn tenant(&self) -> Arc<Tenant> {
        self.table.find_tenant("vision.team-a.example.com").unwrap()
    }

    fn requested(&self) -> usize {
        self.requests.0.lock().unwrap().len()
    }

    fn held(&self) -> i64 {
        self.tenant().metrics.held.get()
    }

    async fn hold_from(
        self: Arc<Self>,
        source: IpAddr,
        refused: Option<String>,
        hung_up: impl Future<Output = ()>,
    ) -> Result<(), HoldError> {
        let attempt = || async {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            let answers = self.answers.load(Ordering::Relaxed);
            if answers { Ok(()) } else { Err("refused".into()) }
        };
        let tenant = self.tenant();
        self.holder.hold(&tenant, source, refused, hung_up, attempt).await
    }

    fn spawn(self: &Arc<Self>) -> JoinHandle<Result<(), HoldError>> {
        tokio::spawn(Arc::clone(self).hold_from(SOURCE, None, pending()))
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn many_connections_cause_one_request_and_pass_together() {
    let setup = Setup::new();
    setup.set(Activity::Sleeping);
    let mut all = JoinSet::new();
    for _ in 0..500 {
        all.spawn(Arc::clone(&setup).hold_from(SOURCE, None, pending()));
    }
    seconds(5).await;
    assert_eq!((setup.requested(), setup.held()), (1, 500));
    // An API server that answers while the tenant sleeps is one that ends.
    setup.answers.store(true, Ordering::Relaxed);
    seconds(1).await;
    assert_eq!((setup.held(), setup.attempts.load(Ordering::Relaxed)), (500, 0));
    setup.set(Activity::Waking);
    let start = Instant::now();
    assert!(all.join_all().await.into_iter().all(|outcome| outcome == Ok(())));
    assert!(start.elapsed() < PROBE_INTERVAL, "they wait for each other");
    assert_eq!((setup.requested(), setup.held()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_connection_tries_for_all() {
    let setup = Setup::new();
    setup.set(Activity::Waking);
    let all: Vec<_> = (0..100).map(|_| setup.spawn()).collect();
    seconds(10).await;
    let attempts = setup.attempts.load(Ordering::Relaxed);
    assert!((90..=101).contains(&attempts), "{attempts} attempts in 10 seconds");
    // The one that tries now may hang up: another one takes its turn.
    for held in &all[..99] {
        held.abort();
    }
    setup.answers.store(true, Ordering::Relaxed);
    assert_eq!(all.into_iter().last().unwrap().await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_repeated_until_control_has_it() {
    let setup = Setup::new();
    setup.set(Activity::Sleeping);
    let held = setup.spawn();
    seconds(25).await;
    assert_eq!(setup.requested(), 3);
    let since = state(Activity::Sleeping).since.unwrap();
    let requested = SleepState {
        requested_at: since.checked_add(SignedDuration::from_secs(3)).ok(),
        ..state(Activity::Sleeping)
    };
    setup.table.put_tenant(key(), "1", requested);
    seconds(30).await;
    assert_eq!(setup.requested(), 3);
    assert!(
        setup.requests.0.lock().unwrap().iter().all(|at| *at > since),
        "a request that control takes for an earlier one"
    );
    held.abort();
    // Another sleep, another request.
    let again = SleepState {
        since: since.checked_add(SignedDuration::from_secs(60)).ok(),
        ..requested
    };
    setup.table.put_tenant(key(), "1", again);
    let held = setup.spawn();
    seconds(1).await;
    assert_eq!(setup.requested(), 4);
    held.abort();
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_does_not_wake_is_given_up() {
    let setup = Setup::new();
    setup.set(Activity::Sleeping);
    let start = Instant::now();
    let held = setup.spawn();
    seconds(30).await;
    setup.set(Activity::Waking);
    assert_eq!(held.await.unwrap(), Err(HoldError::NotAwake("refused".into())));
    assert_eq!(start.elapsed().as_secs(), WAKE_TIMEOUT.as_secs());
    assert_eq!(setup.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_may_have_fallen_asleep() {
    let setup = Setup::new();
    setup.set(Activity::Running);
    let hold = || tokio::spawn(Arc::clone(&setup).hold_from(SOURCE, Some("refused".into()), pending()));
    // It is broken, and not asleep.
    let start = Instant::now();
    assert_eq!(hold().await.unwrap(), Err(HoldError::Unavailable("refused".into())));
    assert_eq!(
        (start.elapsed().as_secs(), setup.requested()),
        (STATUS_DELAY.as_secs(), 1)
    );
    assert_eq!(hold().await.unwrap(), Err(HoldError::Unavailable("refused".into())));
    assert_eq!(setup.requested(), 1, "another connection asks again");
    // Its status says so a moment later.
    seconds(60).await;
    let held = hold();
    seconds(2).await;
    assert_eq!(setup.requested(), 2);
    setup.set(Activity::Sleeping);
    seconds(30).await;
    assert!(setup.requested() > 2 && !held.is_finished());
    setup.answers.store(true, Ordering::Relaxed);
    setup.set(Activity::Running);
    assert_eq!(held.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn processes_are_reached_once_their_tenant_is_awake() {
    let setup = Setup::with(UNLIMITED, Backends::Loopback);
    setup.answers.store(true, Ordering::Relaxed);
    setup.set(Activity::Waking);
    let held = setup.spawn();
    seconds(5).await;
    assert!(!held.is_finished() && setup.attempts.load(Ordering::Relaxed) == 0);
    setup.set(Activity::Running);
    assert_eq!(held.await.unwrap(), Ok(()));
    assert_eq!(setup.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn held_connections_end_with_their_tenant() {
    let setup = Setup::new();
    setup.set(Activity::Sleeping);
    let (held, tenant) = (setup.spawn(), setup.tenant());
    seconds(1).await;
    let start = Instant::now();
    setup.table.delete_tenant(&key());
    assert_eq!(held.await.unwrap(), Err(HoldError::Deleted));
    assert_eq!((start.elapsed(), tenant.metrics.held.get()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn what_no_request_wakes_is_not_held() {
    for (activity, expected) in [
        (Activity::Kept, HoldError::Kept),
        (Activity::Ending, HoldError::Deleted),
    ] {
        let setup = Setup::new();
        setup.set(Activity::Sleeping);
        let held = setup.spawn();
        seconds(1).await;
        let start = Instant::now();
        setup.set(activity);
        assert_eq!(held.await.unwrap(), Err(expected));
        assert!(setup.spawn().await.unwrap().is_err());
        assert_eq!((start.elapsed(), setup.held()), (Duration::ZERO, 0));
        assert_eq!(setup.requested(), 1, "{activity:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_frees_its_place() {
    let one = HoldLimits {
        of_tenant: 1,
        ..UNLIMITED
    };
    let setup = Setup::with(one, Backends::ClusterIp);
    setup.set(Activity::Sleeping);
    let leaves = seconds(5);
    let held = tokio::spawn(Arc::clone(&setup).hold_from(SOURCE, None, leaves));
    seconds(1).await;
    assert_eq!(setup.spawn().await.unwrap(), Err(HoldError::Limit));
    assert_eq!(held.await.unwrap(), Err(HoldError::HungUp));
    let next = setup.spawn();
    seconds(1).await;
    assert!(!next.is_finished() && setup.held() == 1);
    next.abort();
}

#[tokio::test(start_paused = true)]
async fn held_connections_are_limited_in_all_by_tenant_and_by_source() {
    let of = |all, of_tenant, of_tenant_source, of_source| HoldLimits {
        all,
        of_tenant,
        of_tenant_source,
        of_source,
    };
    let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
    for (limits, another_source_is_held) in [
        (of(2, 9, 9, 9), false),
        (of(9, 2, 9, 9), false),
        (of(9, 9, 2, 9), true),
        (of(9, 9, 9, 2), true),
    ] {
        let setup = Setup::with(limits, Backends::ClusterIp);
        setup.set(Activity::Sleeping);
        let all = [setup.spawn(), setup.spawn()];
        seconds(1).await;
        assert_eq!(setup.spawn().await.unwrap(), Err(HoldError::Limit), "{limits:?}");
        let last = tokio::spawn(Arc::clone(&setup).hold_from(other, None, pending()));
        seconds(1).await;
        assert_eq!(!last.is_finished(), another_source_is_held, "{limits:?}");
        // What was refused takes no place of the other limits.
        assert_eq!(setup.held(), 2 + i64::from(another_source_is_held));
        for held in all {
            held.abort();
        }
        last.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_wakes_also_if_others_have_all_places() {
    let full = HoldLimits { all: 0, ..UNLIMITED };
    for (activity, requests) in [(Activity::Sleeping, 1), (Activity::Running, 0), (Activity::Kept, 0)] {
        let setup = Setup::with(full, Backends::ClusterIp);
        setup.set(activity);
        for _ in 0..3 {
            assert_eq!(setup.spawn().await.unwrap(), Err(HoldError::Limit));
            seconds(1).await;
        }
        assert_eq!((setup.requested(), setup.held()), (requests, 0), "{activity:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_is_made_again_while_a_client_still_waits() {
    /// Fails at first, as a host's API server that starts again.
    struct Failing(AtomicUsize);
    impl RequestWake for Failing {
        fn request_wake(&self, _: &str, _: &str, _: Timestamp) -> BoxFuture<'static, Result<(), String>> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            ready(if number < 2 { Err("refused".into()) } else { Ok(()) }).boxed()
        }
    }
    let (setup, failing) = (Setup::new(), Arc::new(Failing(AtomicUsize::default())));
    setup.set(Activity::Sleeping);
    let holder = Holder::new(UNLIMITED, WAKE_TIMEOUT, Backends::ClusterIp, failing.clone());
    let tenant = setup.tenant();
    let held = holder.hold(&tenant, SOURCE, None, seconds(9), || async { Ok::<(), String>(()) });
    assert_eq!(held.await, Err(HoldError::HungUp));
    let metrics = &tenant.metrics;
    assert_eq!((metrics.wakes_failed.get(), metrics.wakes_requested.get()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_interval_is_longer_than_one_request() {
    /// Does not answer.
    struct Silent(AtomicUsize);
    impl RequestWake for Silent {
        fn request_wake(&self, _: &str, _: &str, _: Timestamp) -> BoxFuture<'static, Result<(), String>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            pending().boxed()
        }
    }
    let (setup, silent) = (Setup::new(), Arc::new(Silent(AtomicUsize::default())));
    setup.set(Activity::Sleeping);
    let (tenant, waker) = (setup.tenant(), Waker::new(silent.clone()));
    waker.ask(&tenant);
    seconds(1).await;
    waker.ask(&tenant);
    sleep(REQUEST_INTERVAL).await;
    let failed = tenant.metrics.wakes_failed.get();
    waker.ask(&tenant);
    seconds(1).await;
    assert_eq!((failed, silent.0.load(Ordering::Relaxed)), (1, 2));
}
