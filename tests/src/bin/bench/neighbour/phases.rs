//! Where the time of a phase goes, alone or beside the greedy tenant: what the tenants' etcd and both API servers measured themselves, and the
//! processor time of everybody.

use super::histogram::Histogram;
use crate::{
    processor::{Snapshot, processes_with_names, used, waited},
    report::{Report, figure_of},
};
use berth_pki::{
    CertificateAuthority, LeafRequest, Usage,
    kubeconfig::{Credential, KubeconfigRequest, kubeconfig},
};
use berth_tests::{
    scrape::{Metrics, scrape_api_server},
    tenant::{Tenant, patient},
    test_cluster::TestCluster,
};
use kube::Client;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const HOUR: Duration = Duration::from_secs(3600);
const MEBIBYTE: f64 = 1_048_576.0;
/// Groups of processes with less are not shown: a hundredth of one processor.
const FEW: f64 = 0.01;

/// A histogram in seconds: words for it, its name, and labels of the series that count.
type Asked = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Of the tenants' etcd. The last one is what a neighbour's transaction waits for before it: requests are applied one by one.
const OF_ETCD: [Asked; 5] = [
    ("WAL, write", "etcd_disk_wal_write_duration_seconds", &[]),
    ("WAL, fsync", "etcd_disk_wal_fsync_duration_seconds", &[]),
    (
        "commit of the backend",
        "etcd_disk_backend_commit_duration_seconds",
        &[],
    ),
    (
        "snapshot of the backend",
        "etcd_disk_backend_snapshot_duration_seconds",
        &[],
    ),
    (
        "transaction applied",
        "etcd_server_apply_duration_seconds",
        &[("op", "Txn")],
    ),
];

/// Of an API server.
const OF_API_SERVER: [Asked; 8] = [
    (
        "ConfigMap created",
        "apiserver_request_duration_seconds",
        &[("verb", "POST"), ("resource", "configmaps")],
    ),
    (
        "ConfigMap replaced",
        "apiserver_request_duration_seconds",
        &[("verb", "PUT"), ("resource", "configmaps")],
    ),
    (
        "etcd, ConfigMap created",
        "etcd_request_duration_seconds",
        &[("operation", "create"), ("resource", "configmaps")],
    ),
    (
        "etcd, ConfigMap replaced",
        "etcd_request_duration_seconds",
        &[("operation", "update"), ("resource", "configmaps")],
    ),
    (
        "policies, object created",
        "apiserver_admission_controller_admission_duration_seconds",
        &[
            ("name", "ValidatingAdmissionPolicy"),
            ("operation", "CREATE"),
            ("type", "validate"),
        ],
    ),
    (
        "conditions of webhooks, object created",
        "apiserver_admission_match_condition_evaluation_seconds",
        &[("kind", "webhook"), ("operation", "CREATE")],
    ),
    (
        "webhooks, object created",
        "apiserver_admission_webhook_admission_duration_seconds",
        &[("operation", "CREATE")],
    ),
    (
        "request waited for its turn",
        "apiserver_flowcontrol_request_wait_duration_seconds",
        &[("execute", "true")],
    ),
];

/// How long goroutines that could run waited in their process. Only API servers export it.
const GOROUTINES: Asked = ("goroutine waited", "go_sched_latencies_seconds", &[]);

/// A counter: words for it, its name, and what it is divided by, and the unit that it then has.
type Counter = (&'static str, &'static str, f64, &'static str);

/// Of the tenants' etcd, besides those of every program.
const COUNTERS_OF_ETCD: [Counter; 4] = [
    ("WAL, written", "etcd_disk_wal_write_bytes_total", MEBIBYTE, "MiB"),
    (
        "received of clients",
        "etcd_network_client_grpc_received_bytes_total",
        MEBIBYTE,
        "MiB",
    ),
    (
        "sent to clients",
        "etcd_network_client_grpc_sent_bytes_total",
        MEBIBYTE,
        "MiB",
    ),
    ("slow applications", "etcd_server_slow_apply_total", 1.0, ""),
];

/// Of an API server, besides those of every program. Go counts them when a collection ends.
const COUNTERS_OF_API_SERVER: [Counter; 2] = [
    (
        "processor time of garbage collection",
        "go_cpu_classes_gc_total_cpu_seconds_total",
        1.0,
        "s",
    ),
    (
        "of that while the processors were idle for it",
        "go_cpu_classes_gc_mark_idle_cpu_seconds_total",
        1.0,
        "s",
    ),
];

/// Of every program.
const COUNTERS: [Counter; 3] = [
    ("allocated", "go_memstats_alloc_bytes_total", MEBIBYTE, "MiB"),
    ("garbage collections", "go_gc_duration_seconds_count", 1.0, ""),
    ("stopped for these", "go_gc_duration_seconds_sum", 0.001, "ms"),
];

/// Who is asked.
pub(super) struct Sources {
    etcd: Client,
    greedy: Client,
    neighbour: Client,
    /// Slugs of both tenants.
    slugs: [String; 2],
}

/// What has been counted until a moment.
pub(super) struct Moment {
    at: Instant,
    used: Snapshot,
    waited: Snapshot,
    etcd: Metrics,
    greedy: Metrics,
    neighbour: Metrics,
}

impl Sources {
    /// Connects to the tenants' etcd, which shows its metrics to everybody who has a certificate.
    pub(super) async fn of(host: &TestCluster, greedy: &Tenant, neighbour: &Tenant) -> Self {
        let datastore = host.datastore();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let authority = CertificateAuthority::from_pem(&read(&datastore.ca_cert), &read(&datastore.ca_key)).unwrap();
        let certificate = authority
            .issue(&LeafRequest {
                common_name: "bench".into(),
                ..LeafRequest::new(Usage::Client, HOUR)
            })
            .unwrap();
        let text = kubeconfig(&KubeconfigRequest {
            cluster_name: "etcd".into(),
            server: datastore.endpoint,
            ca_pem: authority.cert_pem().into(),
            user: Credential::ClientCertificate {
                cert_pem: certificate.cert_pem,
                key_pem: certificate.key_pem,
            },
            namespace: None,
        });
        Self {
            etcd: patient(&text.unwrap()).await,
            greedy: greedy.client.clone(),
            neighbour: neighbour.client.clone(),
            slugs: [greedy, neighbour].map(|tenant| tenant.id.slug().to_owned()),
        }
    }

    /// What has been counted so far. Who does not answer has counted nothing.
    pub(super) async fn now(&self, host: &TestCluster) -> Moment {
        let [greedy, neighbour] = self.slugs.each_ref().map(String::as_str);
        let processes = processes_with_names(host, &[(greedy, "greedy tenant"), (neighbour, "neighbour")]);
        let (used, waited) = (Snapshot::of(processes.clone(), used), Snapshot::of(processes, waited));
        let at = Instant::now();
        let metrics = async |who: &str, client: &Client| {
            scrape_api_server(client).await.unwrap_or_else(|error| {
                eprintln!("the metrics of the {who} are not in the report: {error}");
                Metrics::default()
            })
        };
        Moment {
            at,
            used,
            waited,
            etcd: metrics("tenants' etcd", &self.etcd).await,
            greedy: metrics("greedy tenant's API server", &self.greedy).await,
            neighbour: metrics("neighbour's API server", &self.neighbour).await,
        }
    }
}

impl Moment {
    /// Adds what was counted since `before` to a report; `when` is the name of the phase.
    pub(super) fn add_since(&self, before: &Self, when: &str, processors: usize, report: &mut Report) {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        report.add(format!("{when}: length"), seconds, "s");
        add_histograms(
            report,
            &format!("{when}: tenants' etcd"),
            &OF_ETCD,
            [&before.etcd, &self.etcd],
        );
        let counters = COUNTERS_OF_ETCD.iter().chain(&COUNTERS);
        add_counters(
            report,
            &format!("{when}: tenants' etcd"),
            counters,
            [&before.etcd, &self.etcd],
        );
        for (who, metrics) in [
            ("neighbour's API server", [&before.neighbour, &self.neighbour]),
            ("greedy tenant's API server", [&before.greedy, &self.greedy]),
        ] {
            let who = format!("{when}: {who}");
            add_histograms(report, &who, &OF_API_SERVER, metrics);
            add_histograms(report, &who, &[GOROUTINES], metrics);
            add_counters(report, &who, COUNTERS_OF_API_SERVER.iter().chain(&COUNTERS), metrics);
        }
        self.add_processors(before, when, processors, report);
    }

    /// Shares of the machine, and how long threads waited for a processor, for each second of the phase.
    fn add_processors(&self, before: &Self, when: &str, processors: usize, report: &mut Report) {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let machine = seconds * figure_of(processors);
        let used = self.used.since(&before.used);
        let waited = self.waited.since(&before.waited);
        let all: f64 = used.values().sum();
        report.add(
            format!("{when}: share of the processors, all"),
            all / machine * 100.0,
            "%",
        );
        for (group, used) in used.iter().filter(|(_, used)| **used / seconds >= FEW) {
            report.add(
                format!("{when}: share of the processors, {group}"),
                used / machine * 100.0,
                "%",
            );
            let waited = waited.get(group).copied().unwrap_or_default();
            report.add(
                format!("{when}: threads waited for a processor, {group}"),
                waited / seconds * 1000.0,
                "ms/s",
            );
        }
    }
}

fn add_histograms(report: &mut Report, who: &str, asked: &[Asked], [before, after]: [&Metrics; 2]) {
    for (what, name, labels) in asked {
        let read = |metrics: &Metrics| Histogram::read(metrics, name, labels);
        let added = read(after).since(&read(before));
        let (Some(mean), Some(half), Some(most)) = (added.mean(), added.quantile(0.5), added.quantile(0.99)) else {
            continue;
        };
        report.add(format!("{who}, {what}, count"), added.count(), "");
        for (which, seconds) in [("mean", mean), ("p50", half), ("p99", most)] {
            report.add(format!("{who}, {what}, {which}"), seconds * 1000.0, "ms");
        }
    }
}

fn add_counters<'a>(
    report: &mut Report,
    who: &str,
    counters: impl Iterator<Item = &'a Counter>,
    [before, after]: [&Metrics; 2],
) {
    for (what, name, divisor, unit) in counters {
        let added = after.sum(&[*name]) - before.sum(&[*name]);
        report.add(format!("{who}, {what}"), added / divisor, unit);
    }
}
