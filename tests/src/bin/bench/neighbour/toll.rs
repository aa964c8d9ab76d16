//! What a tenant costs the host: memory, sizes of databases, processes that ended; and what the host counts of its objects.

use crate::report::Report;
use berth_api::{DatastoreUsage, quantity};
use berth_control::control_plane::{API_SERVER, SYNCER};
use berth_local::process;
use berth_process::statuses;
use berth_tests::{processes::find, tenant::Tenant, test_cluster::TestCluster};
use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::api::resource::Quantity};
use kube::Api;
use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};
use tokio_util::sync::CancellationToken;

/// Time between two observations.
const PAUSE: Duration = Duration::from_secs(1);
const MEBIBYTE: f64 = 1_048_576.0;

/// Mebibytes, by what has that size.
type Sizes = BTreeMap<&'static str, f64>;

/// Where everything is.
pub(super) struct Places {
    /// Files of etcd.
    databases: [(&'static str, PathBuf); 2],
    /// Processes: folder of their records, and their names.
    processes: [(&'static str, PathBuf, String); 5],
    /// Folders of the records of all processes.
    records: [PathBuf; 3],
    /// The tenant's processes have names that begin with this.
    tenant: String,
}

/// How often processes were started again.
#[derive(Clone, Copy)]
struct Restarts {
    of_tenant: u32,
    of_others: u32,
}

/// What a tenant cost between two moments.
pub(super) struct Toll {
    before: Sizes,
    most: Sizes,
    after: Sizes,
    restarts: [Restarts; 2],
}

impl Places {
    pub(super) fn of(host: &TestCluster, tenant: &Tenant) -> Self {
        let database = |name: &str| host.home().data(name).join("member/snap/db");
        let of_tenant = |component: &str| (host.tenant_records(), format!("{}.{component}", tenant.id.slug()));
        let (syncers, syncer) = of_tenant(SYNCER);
        let (servers, server) = of_tenant(API_SERVER);
        Self {
            databases: [
                ("database of the host's etcd", database(process::ETCD)),
                ("database of the tenants' etcd", database(process::DATASTORE)),
            ],
            processes: [
                ("resident memory of the greedy tenant's syncer", syncers, syncer),
                ("resident memory of the greedy tenant's API server", servers, server),
                (
                    "resident memory of control",
                    host.control_records(),
                    "berth-control-first".to_owned(),
                ),
                (
                    "resident memory of the host's etcd",
                    host.home().run(),
                    process::ETCD.to_owned(),
                ),
                (
                    "resident memory of the tenants' etcd",
                    host.home().run(),
                    process::DATASTORE.to_owned(),
                ),
            ],
            records: [host.home().run(), host.control_records(), host.tenant_records()],
            tenant: format!("{}.", tenant.id.slug()),
        }
    }

    /// Sizes now. A process that does not run has none.
    fn sizes(&self) -> Sizes {
        let databases = self.databases.iter().filter_map(|(what, path)| {
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let bytes = fs::metadata(path).ok()?.len() as f64;
            Some((*what, bytes / MEBIBYTE))
        });
        let processes = self.processes.iter().filter_map(|(what, records, name)| {
            let process = find(records, name)?.pid?;
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            Some((*what, resident(&status)?))
        });
        databases.chain(processes).collect()
    }

    fn restarts(&self) -> Restarts {
        let mut restarts = Restarts {
            of_tenant: 0,
            of_others: 0,
        };
        for process in self.records.iter().flat_map(|records| statuses(records)) {
            if process.name.starts_with(&self.tenant) {
                restarts.of_tenant += process.restarts;
            } else {
                restarts.of_others += process.restarts;
            }
        }
        restarts
    }
}

/// Mebibytes in a line of `/proc/<pid>/status`.
fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024.0)
}

/// Observes until `stop`.
pub(super) async fn follow(places: Places, stop: CancellationToken) -> Toll {
    let (before, restarts) = (places.sizes(), places.restarts());
    let mut most = before.clone();
    loop {
        tokio::select! { () = stop.cancelled() => break, () = tokio::time::sleep(PAUSE) => {} }
        for (what, size) in places.sizes() {
            let largest = most.entry(what).or_default();
            *largest = largest.max(size);
        }
    }
    Toll {
        before,
        most,
        after: places.sizes(),
        restarts: [restarts, places.restarts()],
    }
}

impl Toll {
    pub(super) fn add_to(&self, report: &mut Report) {
        let sizes = [("before", &self.before), ("most", &self.most), ("after", &self.after)];
        for what in self.most.keys() {
            for (when, sizes) in &sizes {
                let size = sizes.get(what).copied().unwrap_or_default();
                report.add(format!("{what}, {when}"), size, "MiB");
            }
        }
        let [before, after] = self.restarts;
        for (whose, before, after) in [
            ("the greedy tenant", before.of_tenant, after.of_tenant),
            ("all others (goal 0)", before.of_others, after.of_others),
        ] {
            let restarts = f64::from(after) - f64::from(before);
            report.add(format!("processes that ended by themselves, of {whose}"), restarts, "");
        }
    }
}

/// What the host counts of a tenant, and what it may have.
#[derive(Default, PartialEq)]
pub(super) struct Limits {
    /// Used and allowed, by resource of the ResourceQuota.
    counted: BTreeMap<String, (f64, f64)>,
    stored: Option<DatastoreUsage>,
}

impl Limits {
    /// Asks the host.
    pub(super) async fn read(host: &TestCluster, tenant: &Tenant) -> kube::Result<Self> {
        let quotas: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        let status = quotas.get("berth-limits").await?.status.unwrap_or_default();
        let (used, hard) = (status.used.unwrap_or_default(), status.hard.unwrap_or_default());
        let counted = used.iter().filter_map(|(resource, used)| {
            let (used, hard) = (number(used)?, number(hard.get(resource)?)?);
            (used > 0.0).then(|| (resource.clone(), (used, hard)))
        });
        let counted = counted.collect();
        let cluster = host.tenants(&tenant.namespace).get(&tenant.name).await?;
        Ok(Self {
            counted,
            stored: cluster.status.and_then(|status| status.datastore),
        })
    }

    pub(super) fn add_to(&self, report: &mut Report) {
        for (resource, (used, hard)) in &self.counted {
            report.add(format!("greedy tenant on the host, {resource}"), *used, "");
            report.add(format!("greedy tenant on the host, {resource}, limit"), *hard, "");
        }
        if let Some(stored) = self.stored {
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let (bytes, objects) = (stored.bytes as f64, stored.objects as f64);
            report.add("greedy tenant's objects in the datastore", objects, "");
            report.add("their size as its API server estimates it", bytes / MEBIBYTE, "MiB");
            report.add("share of what its class allows", f64::from(stored.percent), "%");
        }
    }
}

/// A quantity as a number.
fn number(quantity: &Quantity) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let thousandths = quantity::parse(&quantity.0)? as f64;
    Some(thousandths / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read() {
        let status = "Name:\tsyncer\nVmHWM:\t  40960 kB\nVmRSS:\t   20480 kB\nThreads:\t3\n";
        assert_eq!(resident(status), Some(20.0));
        assert_eq!(resident("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn counts_of_the_host_are_read() {
        assert_eq!(number(&Quantity("15k".into())), Some(15_000.0));
    }
}
