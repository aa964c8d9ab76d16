//! Memory of an idle tenant whose control plane runs in pods, by container.

use super::processes;
use crate::{memory::Memory, report::Report};
use berth_tests::{tenant::Tenant, test_cluster::TestCluster};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use std::{collections::BTreeMap, time::Duration};

/// Time after which a tenant counts as idle: start-up garbage is collected, caches are filled.
const SETTLE: Duration = Duration::from_secs(60);

pub(super) async fn run(host: &TestCluster, tenant: &Tenant) {
    tokio::time::sleep(SETTLE).await;
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let mut by_component: BTreeMap<String, Memory> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let component = pod.labels().get("app.kubernetes.io/name").cloned();
        let sum = by_component
            .entry(component.unwrap_or_else(|| pod.name_any()))
            .or_default();
        for process in processes(&pod) {
            sum.add(Memory::of(process));
        }
    }
    let mut report = Report::new("real-memory");
    let mut all = Memory::default();
    for (component, memory) in by_component {
        report.add(format!("idle {component}, private"), memory.private, "MiB");
        report.add(format!("idle {component}, resident"), memory.resident, "MiB");
        all.add(memory);
    }
    report.add("idle tenant, private", all.private, "MiB");
    report.add("idle tenant, proportional share", all.share, "MiB");
    report.finish();
}
