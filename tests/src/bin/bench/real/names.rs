//! Looking up names in a tenant's pod, against the host's DNS in a pod of the host. The queries are sent in the network
//! namespaces of the pods, so that they take the same path as those of programs.

use super::processes;
use crate::report::{Report, percentile};
use berth_tests::{dns::ask, tenant::Tenant, test_cluster::TestCluster};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use simple_dns::rdata::TYPE;
use std::{
    net::{IpAddr, SocketAddr},
    process::Stdio,
    time::Instant,
};
use tokio::process::Command;

const NAME: &str = "kubernetes.default.svc.cluster.local";
const QUESTIONS: u32 = 500;
const ROUNDS: usize = 5;
/// Answers of a round that may be lost.
const MOST_LOST: u32 = 3;

pub(super) async fn run(host: &TestCluster, tenant: &Tenant, through: &Pod, direct: &Pod) {
    let services: Api<Service> = Api::namespaced(tenant.client.clone(), "kube-system");
    let of_tenant = address(&services.get("kube-dns").await.unwrap());
    let services: Api<Service> = Api::namespaced(host.client.clone(), "kube-system");
    let of_host = address(&services.get("kube-dns").await.unwrap());
    let (mut tenants, mut hosts) = (Vec::new(), Vec::new());
    // The first of each fills caches and is not counted.
    for round in 0..=ROUNDS {
        let (one, other) = (inside(through, of_tenant).await, inside(direct, of_host).await);
        if round > 0 {
            tenants.push(one);
            hosts.push(other);
        }
    }
    let (tenants, hosts) = (percentile(&tenants, 50.0), percentile(&hosts, 50.0));
    let mut report = Report::new("real-names");
    report.add("a name of the tenant, in its pod", tenants, "us");
    report.add("the same name, in a pod of the host", hosts, "us");
    report.add("tenant / host", tenants / hosts, "x");
    report.finish();
}

fn address(service: &Service) -> IpAddr {
    let spec = service.spec.as_ref().unwrap();
    spec.cluster_ip.as_ref().unwrap().parse().unwrap()
}

/// Runs [`ask_many`] in a pod's network namespace.
async fn inside(pod: &Pod, server: IpAddr) -> f64 {
    let process = processes(pod)[0];
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/proc/{process}/ns/net"))
        .arg(this)
        .args(["ask-names", &server.to_string()]);
    // Its messages go to the terminal.
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "asking {server}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Asks a DNS server the same question again and again and prints the median of the times in microseconds. A datagram may be
/// lost: a question without an answer counts as one that took its whole time limit.
pub(crate) async fn ask_many(server: IpAddr) {
    let mut times = Vec::new();
    let mut lost = 0;
    for _ in 0..QUESTIONS {
        let begun = Instant::now();
        match ask(SocketAddr::new(server, 53), TYPE::A, NAME).await {
            Ok(answer) => assert_eq!(answer.records.len(), 1, "{answer:?}"),
            Err(error) => {
                lost += 1;
                eprintln!("{server}: {error}");
                assert!(lost <= MOST_LOST, "{server} does not answer");
            }
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    println!("{}", percentile(&times, 50.0));
}
