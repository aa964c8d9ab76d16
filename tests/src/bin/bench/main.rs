//! Berth's benchmarks. Each is one command, prints a table, and leaves its figures in `target/bench/<name>.json`.
//!
//! Machines are shared and noisy: where a figure matters it is a ratio of two things measured in turn in one run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and fails where it stands"
)]

mod bare_api_server;
mod burst;
mod cores;
mod fairness;
mod gateway;
mod idle_pass;
mod load;
mod memory;
mod moments;
mod neighbour;
mod processor;
mod quota_change;
mod real;
mod report;
mod requests;
mod reservations;
mod restart;
mod schedules;
mod shares;
mod sync;
mod tenant_admission;
mod tenant_ready;
mod usage_pass;
mod wake;

use berth_runtime::shutdown;
use berth_tests::keeper;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The exit code of a program that SIGTERM ended.
const ENDED_BY_SIGNAL: u8 = 143;

/// Berth's benchmarks: tables on stdout, JSON in target/bench/.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Subcommand)]
enum Which {
    /// Everything below, one after the other.
    All,
    /// From an applied TenantCluster to a pod that is accepted, against a bare kube-apiserver's own start.
    TenantReady,
    /// From a pod created in the tenant to the host's pod, and from the host's status to the tenant's, at 50 pods a second; with the
    /// requests that a pod costs.
    SyncLatency,
    /// Many pods over several tenants until all run, against the same pods on the host directly; with the bound that follows
    /// from processor time, the share of time in Berth's own queues, writes to the host in a pod's life, and watches.
    Burst,
    /// A syncer with 1,000 pods is killed: time until it is in sync again, and the writes to the host meanwhile.
    Restart,
    /// Delay of a regular tenant's pods, alone and beside greedy tenants, against the same on the host directly.
    Fairness,
    /// Delay of a tenant's small writes, alone and beside a tenant that stores, or creates, as much as it can.
    Neighbour,
    /// Resident and private memory of an idle tenant by process, and of its syncer with 1,000 pods.
    Memory,
    /// What admitting a tenant costs in an organization with 10,000 tenants: the decision, the API call with and without Berth's
    /// admission policies, and the time until quota is reserved.
    TenantAdmission(tenant_admission::Options),
    /// From a change of a Project's quota to the reservation of a waiting tenant, and to the first drained node.
    QuotaChange(quota_change::Options),
    /// The evaluation of 10,000 schedule policies, and their next changes.
    Schedules(schedules::Options),
    /// One pass over the metrics of 10,000 GPUs of a real Prometheus server: time and memory.
    IdlePass(idle_pass::Options),
    /// Passes over what 200 tenants with 10,000 nodes use: time, and requests to the host's API server.
    UsagePass(usage_pass::Options),
    /// What the gateway adds to a request, bytes against a direct connection, memory of idle watches, TLS connections in a second; the same
    /// of HAProxy, if that is installed.
    Gateway,
    /// From a connection at the gateway to the first answer of a tenant that sleeps, against a bare kube-apiserver's own start; and what a
    /// tenant costs while it sleeps.
    Wake,
    /// On real nodes, as root: a tenant whose control plane runs in pods gets ready, its memory, exec and port-forward against
    /// the host directly, and DNS.
    Real,
    /// What `real` runs inside of pods.
    #[command(hide = true)]
    AskNames {
        /// The DNS server.
        server: std::net::IpAddr,
    },
    /// What `idle-pass` runs in a process of its own.
    #[command(hide = true)]
    RunIdlePass {
        /// URL of the server.
        #[arg(long)]
        prometheus: String,
        /// Nodes of the fleet.
        #[arg(long)]
        nodes: usize,
    },
}

fn main() -> ExitCode {
    if let Some(code) = keeper::guard_clusters() {
        return code;
    }
    berth_runtime::install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let which = Args::parse().which;
    runtime.block_on(async {
        let stop = shutdown::signals().unwrap();
        // What a benchmark started ends with its values, so it must not end by the signal itself.
        tokio::select! {
            biased;
            () = stop.cancelled() => ExitCode::from(ENDED_BY_SIGNAL),
            () = run(which) => ExitCode::SUCCESS,
        }
    })
}

async fn run(which: Which) {
    match which {
        Which::All => run_all().await,
        Which::TenantReady => tenant_ready::run().await,
        Which::SyncLatency => sync::run().await,
        Which::Burst => burst::run().await,
        Which::Restart => restart::run().await,
        Which::Fairness => fairness::run().await,
        Which::Neighbour => neighbour::run().await,
        Which::Memory => memory::run().await,
        Which::TenantAdmission(options) => tenant_admission::run(options).await,
        Which::QuotaChange(options) => quota_change::run(options).await,
        Which::Schedules(options) => schedules::run(options),
        Which::IdlePass(options) => idle_pass::run(options).await,
        Which::UsagePass(options) => usage_pass::run(options).await,
        Which::Gateway => gateway::run().await,
        Which::Wake => wake::run().await,
        Which::Real => real::run().await,
        Which::AskNames { server } => real::ask_many(server).await,
        Which::RunIdlePass { prometheus, nodes } => idle_pass::run_passes(&prometheus, nodes).await,
    }
}

async fn run_all() {
    tenant_ready::run().await;
    sync::run().await;
    burst::run().await;
    restart::run().await;
    fairness::run().await;
    neighbour::run().await;
    memory::run().await;
    tenant_admission::run(tenant_admission::Options::default()).await;
    quota_change::run(quota_change::Options::default()).await;
    schedules::run(schedules::Options::default());
    idle_pass::run(idle_pass::Options::default()).await;
    usage_pass::run(usage_pass::Options::default()).await;
    gateway::run().await;
    wake::run().await;
    real::run().await;
}
