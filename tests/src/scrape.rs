//! Metrics of a tenant's syncer, as its admin endpoint serves them.

use crate::{processes::find, tenant::Tenant, test_cluster::TestCluster};
use berth_control::control_plane::SYNCER;
use berth_runtime::http::{self, StatusCode};
use std::{net::SocketAddr, time::Duration};

/// The metrics of a syncer.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Sum of all series whose name with labels has every one of `parts`.
    pub fn sum(&self, parts: &[&str]) -> f64 {
        let matching = self
            .0
            .iter()
            .filter(|(series, _)| parts.iter().all(|part| series.contains(part)));
        matching.map(|(_, value)| value).sum()
    }

    /// Writes to the host's API server.
    pub fn host_writes(&self) -> f64 {
        ["create", "apply", "patch", "delete", "replace"]
            .iter()
            .map(|verb| {
                let verb = format!("verb=\"{verb}\"");
                self.sum(&["berth_syncer_api_call_seconds_count{", "side=\"host\"", &verb])
            })
            .sum()
    }
}

/// Value of a flag of a tenant's syncer as it runs.
pub fn flag(host: &TestCluster, tenant: &Tenant, name: &str) -> Option<String> {
    let process = find(&host.tenant_records(), &format!("{}.{SYNCER}", tenant.id.slug()))?;
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid?)).ok()?;
    let prefix = format!("--{name}=");
    command
        .split('\0')
        .find_map(|argument| argument.strip_prefix(&prefix).map(ToOwned::to_owned))
}

/// Admin address of a tenant's syncer.
pub fn admin_address(host: &TestCluster, tenant: &Tenant) -> Option<SocketAddr> {
    flag(host, tenant, "admin-address")?.parse().ok()
}

/// Status and body of an HTTP request.
///
/// # Errors
/// Nothing answers.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<(StatusCode, String)> {
    http::get(&address.ip().to_string(), address.port(), path, Duration::from_secs(30)).await
}

/// The metrics of a tenant's syncer.
///
/// # Errors
/// It does not run or does not answer.
pub async fn scrape(host: &TestCluster, tenant: &Tenant) -> std::io::Result<Metrics> {
    let address = admin_address(host, tenant).ok_or_else(|| std::io::Error::other("the syncer does not run"))?;
    let (_, text) = get(address, "/metrics").await?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(Metrics(
        lines
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse().ok()?))
            })
            .collect(),
    ))
}
