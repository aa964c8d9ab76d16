//! Memory of an idle tenant, by process, and of its syncer with many pods. From `/proc/<pid>/smaps_rollup`: private is
//! memory that no other process shares (`Anonymous`), resident counts shared file pages too, PSS shares them out.

use crate::report::{Report, figure_of};
use berth_control::control_plane::{API_SERVER, CONTROLLER_MANAGER, SYNCER};
use berth_tests::{
    objects::{gpu_pod, phase},
    processes::find,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::until_true,
};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use std::time::Duration;

const PODS: usize = 1000;
/// Time after which a tenant counts as idle: start-up garbage is collected, caches are filled.
const SETTLE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(300);

/// Kibibytes of one line of `smaps_rollup`.
fn read(rollup: &str, field: &str) -> f64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':')
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap()
}

/// Mebibytes of processes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) private: f64,
    pub(crate) resident: f64,
    pub(crate) share: f64,
}

impl Memory {
    /// Of one process.
    pub(crate) fn of(process: u32) -> Self {
        let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
        let mebibytes = |field| read(&rollup, field) / 1024.0;
        Self {
            private: mebibytes("Anonymous"),
            resident: mebibytes("Rss"),
            share: mebibytes("Pss"),
        }
    }

    /// Adds another process.
    pub(crate) fn add(&mut self, other: Self) {
        self.private += other.private;
        self.resident += other.resident;
        self.share += other.share;
    }
}

/// Memory of a tenant's process.
fn memory(host: &TestCluster, tenant: &Tenant, component: &str) -> Memory {
    let process = find(&host.tenant_records(), &format!("{}.{component}", tenant.id.slug())).unwrap();
    Memory::of(process.pid.unwrap())
}

pub(crate) async fn run() {
    let host = TestCluster::start("h100=8,cpu=1").await;
    let tenant = Tenant::create(&host, "bench-memory", &cluster("memory", &[("train", "h100", 8)])).await;
    tokio::time::sleep(SETTLE).await;
    let mut report = Report::new("memory");
    let mut private = 0.0;
    for component in [API_SERVER, CONTROLLER_MANAGER, SYNCER] {
        let Memory {
            private: own,
            resident,
            share,
        } = memory(&host, &tenant, component);
        report.add(format!("idle {component}, private"), own, "MiB");
        report.add(format!("idle {component}, resident"), resident, "MiB");
        report.add(format!("idle {component}, proportional share"), share, "MiB");
        private += own;
    }
    report.add("idle tenant, private", private, "MiB");

    let idle = memory(&host, &tenant, SYNCER);
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    futures::stream::iter(0..PODS)
        .for_each_concurrent(8, async |index| {
            pods.create(&PostParams::default(), &gpu_pod(&format!("p-{index:04}"), 0))
                .await
                .unwrap();
        })
        .await;
    until_true("all pods run", LIMIT, async || {
        let list = pods.list(&ListParams::default()).await.unwrap();
        list.iter().filter(|pod| phase(pod) == "Running").count() == PODS
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let full = memory(&host, &tenant, SYNCER);
    report.add(format!("syncer with {PODS} pods, private"), full.private, "MiB");
    report.add(format!("syncer with {PODS} pods, resident"), full.resident, "MiB");
    report.add(
        "syncer, private, for each pod",
        (full.private - idle.private) * 1024.0 / figure_of(PODS),
        "KiB",
    );
    report.finish();
    tenant.delete(&host).await;
}
