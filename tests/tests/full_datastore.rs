//! A full datastore: the alert sees the alarm, and the commands of docs/operations/troubleshooting.md make room and end it.
// No runtime: the commands of the page are run one after the other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test may block, and fails where it stands"
)]

use berth_process::{
    binaries::{Binary, find_pinned},
    free_port,
};
use berth_tests::page::find_commands;
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Bytes that the database may have.
const QUOTA: usize = 16 << 20;
/// Bytes of one value: less than the 1.5 MiB that etcd accepts in a request.
const VALUE: usize = 1 << 20;
/// For etcd to start on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

/// A member of its own, without TLS: the commands read how to connect from variables. It ends with this value, and with the process
/// that started it.
struct Etcd {
    process: Child,
    _data: TempDir,
    port: u16,
}

impl Etcd {
    fn start() -> Self {
        let data = TempDir::with_prefix("berth-full-").unwrap();
        let (port, peer_port) = (free_port().unwrap(), free_port().unwrap());
        let (url, peer_url) = (
            format!("http://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{peer_port}"),
        );
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(find_pinned(Binary::Etcd).unwrap())
            .arg(format!("--data-dir={}", data.path().join("etcd").display()))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster=default={peer_url}"))
            .arg(format!("--quota-backend-bytes={QUOTA}"))
            .args(["--unsafe-no-fsync", "--log-level=error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut etcd = Self {
            process,
            _data: data,
            port,
        };
        let begun = Instant::now();
        while !etcd.run("etcdctl endpoint health", &[]).status.success() {
            assert_eq!(etcd.process.try_wait().unwrap(), None, "etcd ended");
            assert!(begun.elapsed() < LIMIT, "etcd does not answer");
            sleep(Duration::from_millis(100));
        }
        etcd
    }

    /// Runs commands as the page has them, with this input.
    fn run(&self, commands: &str, input: &[u8]) -> Output {
        let etcdctl = find_pinned(Binary::Etcdctl).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh")
            .args(["-e", "-c", commands])
            .env("PATH", format!("{}:{path}", etcdctl.parent().unwrap().display()))
            .env("ETCDCTL_ENDPOINTS", format!("http://127.0.0.1:{}", self.port))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that reads nothing may have ended.
        let _ = shell.stdin.take().unwrap().write_all(input);
        shell.wait_with_output().unwrap()
    }

    /// Writes a value; returns what etcd says against it.
    fn put(&self) -> Result<(), String> {
        let output = self.run("etcdctl put key", &vec![b'x'; VALUE]);
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        }
    }

    /// How many members have the alarm, by the metric that the alert `BerthDatastoreFull` reads.
    fn alarms(&self) -> usize {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let alarms = text.lines().filter(|line| {
            line.starts_with("etcd_debugging_server_alarms{")
                && line.contains("alarm_type=\"NOSPACE\"")
                && line.ends_with(" 1")
        });
        alarms.count()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn documented_commands_end_the_alarm_of_a_full_datastore() {
    let etcd = Etcd::start();
    let refusal = (0..2 * QUOTA / VALUE).find_map(|_| etcd.put().err());
    let refusal = refusal.expect("etcd refuses writes once it is full");
    assert!(refusal.contains("database space exceeded"), "{refusal}");
    assert_eq!(etcd.alarms(), 1);
    let page = include_str!("../../docs/operations/troubleshooting.md");
    let commands = find_commands(page, "etcdctl compact").expect("the page has the commands");
    let output = etcd.run(commands, &[]);
    assert!(output.status.success(), "{output:?}");
    etcd.put().expect("it accepts writes again");
    assert_eq!(etcd.alarms(), 0);
}
