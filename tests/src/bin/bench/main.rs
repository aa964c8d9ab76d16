//! Berth's benchmarks. Each is one command, prints a table, and leaves its figures in `target/bench/<name>.json`.
//!
//! Machines are shared and noisy: where a figure matters it is a ratio of two things measured in turn in one run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod burst;
mod cores;
mod fairness;
mod gateway;
mod load;
mod memory;
mod neighbour;
mod processor;
mod real;
mod report;
mod requests;
mod restart;
mod sync;
mod tenant_ready;

use clap::{Parser, Subcommand};

/// Berth's benchmarks: tables on stdout, JSON in target/bench/.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Copy, Subcommand)]
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
    /// What the gateway adds to a request, bytes against a direct connection, memory of idle watches, TLS connections in a second.
    Gateway,
    /// On real nodes, as root: a tenant whose control plane runs in pods gets ready, its memory, exec and port-forward against
    /// the host directly, and DNS.
    Real,
    /// What `real` runs inside of pods.
    #[command(hide = true)]
    AskNames {
        /// The DNS server.
        server: std::net::IpAddr,
    },
}

fn main() {
    berth_runtime::install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let which = Args::parse().which;
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
        if matches!(which, Which::All | Which::Gateway) {
            gateway::run().await;
        }
        if matches!(which, Which::All | Which::Real) {
            real::run().await;
        }
        if let Which::AskNames { server } = which {
            real::ask_many(server).await;
        }
    });
}
