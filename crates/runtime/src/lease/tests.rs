use super::*;
use crate::locks::lock;
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{Method, Uri},
};
use serde_json::{Value, json};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::Instant,
};
use tokio::runtime::Builder;

/// Those of tests: a lease is renewed about once a second, and machines may be busy.
const QUICK: Times = Times {
    duration: 12,
    grace: 11,
    renewed_within: Duration::from_secs(5),
    check: Duration::from_millis(50),
    beat: Duration::from_millis(100),
    stands_still: Duration::from_secs(60),
    orderly_end: Duration::from_millis(100),
};

/// The lease of a server, and how often it was renewed.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<(Value, usize)>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, (Value, usize)> {
        lock(&self.0)
    }

    /// Answers any request as if it were about the lease.
    fn answer(&self, method: &Method, body: &[u8]) -> Value {
        let mut known = self.lock();
        let (spec, renewals) = &mut *known;
        if method == Method::PATCH {
            let patch: Value = serde_json::from_slice(body).unwrap();
            for (field, value) in patch["spec"].as_object().unwrap() {
                spec[field] = value.clone();
            }
            *renewals += usize::from(!patch["spec"]["renewTime"].is_null());
        }
        let metadata = json!({"name": "control", "namespace": "berth-system"});
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": *spec})
    }
}

/// An API server with one lease, on a thread of its own.
struct Server {
    known: Known,
    address: SocketAddr,
    _thread: Thread<io::Result<()>>,
}

impl Server {
    fn start() -> Self {
        let known = Known::default();
        known.lock().0 = json!({});
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(known.clone());
        let serve = move || async move { axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await };
        Self {
            known,
            address,
            _thread: Thread::start("server", serve).unwrap(),
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn holder(&self) -> Value {
        self.known.lock().0["holderIdentity"].clone()
    }

    fn renewals(&self) -> usize {
        self.known.lock().1
    }

    /// Runs for the lease in a runtime with one worker.
    fn elect(&self, times: Times, end_process: fn(), work: impl FnOnce()) -> Result<(), LeaseError> {
        let (request, stop) = (request(times, end_process), CancellationToken::new());
        let work = async |_: CancellationToken| work();
        one_worker().block_on(run_as_leader(config(&self.url()), &request, &stop, || {}, work))
    }
}

async fn answer(State(known): State<Known>, method: Method, body: Bytes) -> Json<Value> {
    Json(known.answer(&method, &body))
}

fn config(url: &str) -> Config {
    crate::install_crypto();
    Config::new(url.parse::<Uri>().unwrap())
}

fn request(times: Times, end_process: fn()) -> LeaseRequest {
    LeaseRequest {
        namespace: "berth-system".into(),
        name: "control".into(),
        identity: "replica".into(),
        end_process,
        times,
    }
}

fn one_worker() -> tokio::runtime::Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Blocks the worker of the runtime and the thread that calls this, for so many seconds. `then` is called once the worker is blocked.
#[expect(clippy::disallowed_methods, reason = "that is what is tested")]
fn block_all(seconds: u64, then: impl FnOnce()) {
    let (started, is_started) = std::sync::mpsc::channel();
    tokio::spawn(async move {
        started.send(()).unwrap();
        sleep(Duration::from_secs(seconds));
    });
    is_started.recv().unwrap();
    then();
    sleep(Duration::from_secs(seconds));
}

#[test]
fn the_lease_is_kept_while_all_threads_of_the_runtime_are_blocked() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    let server = Server::start();
    let end = || {
        ENDS.fetch_add(1, Ordering::SeqCst);
    };
    let elected = server.elect(QUICK, end, || {
        let before = server.renewals();
        block_all(QUICK.renewed_within.as_secs() + 2, || {});
        assert!(server.renewals() >= before + 2);
        assert_eq!(server.holder(), "replica");
    });
    elected.unwrap();
    assert_eq!(server.holder(), Value::Null, "it is given back");
    assert_eq!(ENDS.load(Ordering::SeqCst), 0);
}

#[test]
fn a_leader_that_stands_still_ends_before_its_lease() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    let times = Times {
        stands_still: Duration::from_secs(2),
        ..QUICK
    };
    let server = Server::start();
    let end = || {
        ENDS.fetch_add(1, Ordering::SeqCst);
    };
    let elected = server.elect(times, end, || {
        block_all(6, || {});
        assert_eq!(ENDS.load(Ordering::SeqCst), 1, "while it is blocked");
    });
    assert!(matches!(elected, Err(LeaseError::StandsStill(time)) if time == times.stands_still));
    assert_eq!(server.holder(), "replica", "nobody else leads while it ends");
    assert_eq!(ENDS.load(Ordering::SeqCst), 1);
}

/// Names the server to the process that is to lose its lease.
const SERVER: &str = "BERTH_TEST_LEASE_SERVER";
/// What the process says once all its threads are blocked: a line of its own, whatever the test's runner writes.
const ASLEEP: &[u8] = b"\nall are asleep\n";

/// A process that is killed if a test fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Waits until it says that all its threads are blocked.
    fn until_asleep(&mut self) {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let said = lines
            .map(Result::unwrap)
            .find(|line| line.as_bytes() == ASLEEP.trim_ascii());
        assert!(said.is_some(), "it has ended: {:?}", self.0.wait());
    }

    /// The code that it ends with.
    #[expect(clippy::disallowed_methods, reason = "no runtime is used here")]
    fn exit_code(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_mins(1) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            sleep(Duration::from_millis(100));
        }
        panic!("it does not end");
    }
}

/// Leads until all threads are blocked.
fn lead_and_block(server: &str) {
    let say = || std::io::stdout().write_all(ASLEEP).unwrap();
    let work = async |_: CancellationToken| block_all(600, say);
    let request = request(Times::default(), exit);
    let stop = CancellationToken::new();
    let led = one_worker().block_on(run_as_leader(config(server), &request, &stop, || {}, work));
    panic!("its threads were not blocked: {led:?}");
}

#[test]
fn a_process_that_has_lost_its_lease_ends_although_all_its_threads_are_blocked() {
    if let Ok(server) = env::var(SERVER) {
        return lead_and_block(&server);
    }
    let server = Server::start();
    let test = "lease::tests::a_process_that_has_lost_its_lease_ends_although_all_its_threads_are_blocked";
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(SERVER, server.url());
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    process.until_asleep();
    server.known.lock().0["holderIdentity"] = "another".into();
    assert_eq!(process.exit_code(), Some(1));
}
