//! Berth's benchmarks. Each is one command, prints a table, and leaves its figures in `target/bench/<name>.json`.
//!
//! Machines are shared and noisy: where a figure matters it is a ratio of two things measured in turn in one run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod burst;
mod cores;
mod fairness;
mod idle_pass;
mod load;
mod memory;
mod neighbour;
mod processor;
mod quota_change;
mod real;
mod report;
mod requests;
mod reservations;
mod restart;
mod schedules;
mod sync;
mod tenant_admission;
mod tenant_ready;

use berth_runtime::shutdown;
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
        Which::AskNames { server } => return real::ask_many(server).await,
        Which::RunIdlePass { ref prometheus, nodes } => return idle_pass::run_passes(prometheus, nodes).await,
        _ => run_tenants(&which).await,
    }
    let all = matches!(which, Which::All);
    if let Some(options) = options(all, || match which {
        Which::TenantAdmission(options) => Some(options),
        _ => None,
    }) {
        tenant_admission::run(options).await;
    }
    if let Some(options) = options(all, || match which {
        Which::QuotaChange(options) => Some(options),
        _ => None,
    }) {
        quota_change::run(options).await;
    }
    if let Some(options) = options(all, || match which {
        Which::Schedules(options) => Some(options),
        _ => None,
    }) {
        schedules::run(options);
    }
    if let Some(options) = options(all, || match which {
        Which::IdlePass(options) => Some(options),
        _ => None,
    }) {
        idle_pass::run(options).await;
    }
    if matches!(which, Which::All | Which::Real) {
        real::run().await;
    }
}

/// The options of a benchmark: its defaults if all are run, none if it is not asked for.
fn options<O: Default>(all: bool, of_command: impl FnOnce() -> Option<O>) -> Option<O> {
    if all { Some(O::default()) } else { of_command() }
}

/// The benchmarks of tenants with control planes of their own.
async fn run_tenants(which: &Which) {
    if matches!(which, Which::All | Which::TenantReady) {
        tenant_ready::run().await;
    }
    if matches!(which, Which::All | Which::SyncLatency) {
        sync::run().await;
    }
    if matches!(which, Which::All | Which::Burst) {
        burst::run().await;
    }
    if matches!(which, Which::All | Which::Restart) {
        restart::run().await;
    }
    if matches!(which, Which::All | Which::Fairness) {
        fairness::run().await;
    }
    if matches!(which, Which::All | Which::Neighbour) {
        neighbour::run().await;
    }
    if matches!(which, Which::All | Which::Memory) {
        memory::run().await;
    }
}
