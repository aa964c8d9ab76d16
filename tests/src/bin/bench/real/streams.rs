//! exec and port-forward through the tenant's API server and the syncer, against the same at the host's API server. In turn,
//! medians.

use super::{BULK, DIRECT, POD};
use crate::{
    processor::{Seconds, Snapshot},
    report::{Report, milliseconds, percentile},
};
use berth_tests::{kubectl::Kubectl, tenant::Tenant, test_cluster::TestCluster};
use std::{
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Child,
};

/// Bytes of one transfer.
pub(super) const BYTES: u64 = 256 << 20;
const TRANSFERS: u32 = 5;
const COMMANDS: usize = 15;
const REQUESTS: usize = 200;
/// Processor time from which on a group of processes has a row, in ms/MiB.
const SHOWN: f64 = 0.2;

/// One of the two ways.
struct Way {
    kubectl: Kubectl,
    namespace: &'static str,
}

/// The measurements of one way.
#[derive(Default)]
struct Figures {
    command: Vec<f64>,
    transfer: Vec<f64>,
    request: Vec<f64>,
    forwarded: Vec<f64>,
    /// Processor time that a mebibyte took, of all processes of this machine, in milliseconds.
    exec_work: Vec<f64>,
    forward_work: Vec<f64>,
    /// The same of all transfers by group of processes, in seconds.
    exec_by: Seconds,
    forward_by: Seconds,
}

pub(super) async fn run(host: &TestCluster, tenant: &Tenant) {
    let admin = std::fs::read_to_string(host.home().admin_kubeconfig()).unwrap();
    let ways = [
        Way {
            kubectl: Kubectl::of(tenant),
            namespace: "default",
        },
        Way {
            kubectl: Kubectl::with(&admin),
            namespace: DIRECT,
        },
    ];
    let mut figures = [Figures::default(), Figures::default()];
    for _ in 0..COMMANDS {
        for (way, figures) in ways.iter().zip(&mut figures) {
            figures.command.push(milliseconds(way.exec(&["true"]).await));
        }
    }
    let bytes = BYTES.to_string();
    for _ in 0..TRANSFERS {
        for (way, figures) in ways.iter().zip(&mut figures) {
            // To read the times of all processes is work as well.
            let before = Snapshot::take_with_pods(host);
            let work = busy();
            let took = way.exec(&["head", "-c", &bytes, "/dev/zero"]).await;
            figures.transfer.push(rate(took));
            figures.exec_work.push((busy() - work) / mebibytes());
            add(&mut figures.exec_by, Snapshot::take_with_pods(host).since(&before));
        }
    }
    let forwards = [ways[0].forward(8080).await, ways[1].forward(8080).await];
    for _ in 0..REQUESTS {
        for ((_forward, port), figures) in forwards.iter().zip(&mut figures) {
            let begun = Instant::now();
            let answer = ask(*port).await;
            figures.request.push(milliseconds(begun.elapsed()));
            assert!(
                answer.starts_with(b"HTTP/1.1 200"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
    }
    drop(forwards);
    for _ in 0..TRANSFERS {
        for (way, figures) in ways.iter().zip(&mut figures) {
            let (_forward, port) = way.forward(BULK).await;
            let before = Snapshot::take_with_pods(host);
            let (begun, work) = (Instant::now(), busy());
            assert_eq!(drain(port).await, BYTES);
            figures.forwarded.push(rate(begun.elapsed()));
            figures.forward_work.push((busy() - work) / mebibytes());
            add(&mut figures.forward_by, Snapshot::take_with_pods(host).since(&before));
        }
    }
    print(&figures);
}

fn print([through, direct]: &[Figures; 2]) {
    let mut report = Report::new("real-streams");
    let mut compare = |what: &str, unit, through: &[f64], direct: &[f64]| {
        let (through, direct) = (percentile(through, 50.0), percentile(direct, 50.0));
        report.add(format!("{what}, through the tenant"), through, unit);
        report.add(format!("{what}, on the host directly"), direct, unit);
        report.add(format!("{what}, tenant / direct"), through / direct, "x");
    };
    compare("kubectl exec true", "ms", &through.command, &direct.command);
    compare("exec, bytes out", "MiB/s", &through.transfer, &direct.transfer);
    compare("a request by port-forward", "ms", &through.request, &direct.request);
    compare(
        "port-forward, bytes out",
        "MiB/s",
        &through.forwarded,
        &direct.forwarded,
    );
    compare("exec, processor time", "ms/MiB", &through.exec_work, &direct.exec_work);
    compare(
        "port-forward, processor time",
        "ms/MiB",
        &through.forward_work,
        &direct.forward_work,
    );
    // What is not in these rows is kubectl's, the kernel's, and that of processes which ended meanwhile.
    for (what, through, direct) in [
        ("exec", &through.exec_by, &direct.exec_by),
        ("port-forward", &through.forward_by, &direct.forward_by),
    ] {
        for (way, seconds) in [("through the tenant", through), ("on the host directly", direct)] {
            for (group, seconds) in seconds {
                let each = seconds * 1000.0 / mebibytes() / f64::from(TRANSFERS);
                if each >= SHOWN {
                    report.add(format!("{what}, {group}, {way}"), each, "ms/MiB");
                }
            }
        }
    }
    report.finish();
}

fn add(sum: &mut Seconds, more: Seconds) {
    for (group, seconds) in more {
        *sum.entry(group).or_default() += seconds;
    }
}

fn mebibytes() -> f64 {
    f64::from(u32::try_from(BYTES >> 20).unwrap())
}

/// Mebibytes a second.
fn rate(took: Duration) -> f64 {
    mebibytes() / took.as_secs_f64()
}

/// Time for which the processors of this machine have worked so far, in milliseconds: everything but idle and waiting for
/// disks (proc_stat(5); its unit is a hundredth of a second).
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let fields = text.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let ticks = fields.enumerate().filter(|(field, _)| ![3, 4].contains(field));
    ticks.map(|(_, ticks)| ticks.parse::<f64>().unwrap() * 10.0).sum()
}

impl Way {
    /// Runs a command in the pod and throws away what it prints.
    async fn exec(&self, command: &[&str]) -> Duration {
        let arguments = [&["exec", "-n", self.namespace, POD, "-c", "web", "--"], command].concat();
        let begun = Instant::now();
        let status = self.kubectl.command(&arguments).stdout(Stdio::null()).status();
        assert!(status.await.unwrap().success());
        begun.elapsed()
    }

    /// Forwards a port of the pod to a free one of this machine.
    async fn forward(&self, port: u16) -> (Child, u16) {
        let pod = format!("pod/{POD}");
        let mut command = self
            .kubectl
            .command(&["port-forward", "-n", self.namespace, &pod, &format!(":{port}")]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().expect("an address");
        // kubectl must be able to go on printing.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let address = line.split(' ').nth(2).unwrap_or_default();
        let port = address.rsplit(':').next().unwrap_or_default().parse().expect(&line);
        (child, port)
    }
}

/// One HTTP request over a connection of its own. The end of the connection is not waited for: kubectl does not always pass it
/// on.
async fn ask(port: u16) -> Vec<u8> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = b"GET /hostname HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n";
    connection.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(POD.as_bytes()) {
        let read = connection.read_buf(&mut answer).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
    }
    answer
}

/// Reads all bytes of a transfer; returns their number.
async fn drain(port: u16) -> u64 {
    let connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tokio::io::copy(&mut connection.take(BYTES), &mut tokio::io::sink())
        .await
        .unwrap()
}
