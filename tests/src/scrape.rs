//! Metrics as programs serve them: a tenant's syncer, and API servers.

use crate::{processes::find, tenant::Tenant, test_cluster::TestCluster};
use berth_control::control_plane::SYNCER;
use berth_runtime::http::{self, StatusCode};
use kube::Client;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// The metrics of a program.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads the text format.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// The series of one name, added up by the values of some of their labels. A label that a series lacks is empty.
    pub fn sum_by(&self, name: &str, labels: &[&str]) -> BTreeMap<Vec<String>, f64> {
        let mut sums: BTreeMap<Vec<String>, f64> = BTreeMap::new();
        for (series, value) in &self.0 {
            let Some(own) = series.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')) else {
                continue;
            };
            let own: BTreeMap<&str, &str> = own
                .trim_end_matches('}')
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|(label, value)| (label, value.trim_matches('"')))
                .collect();
            let key = labels.iter().map(|label| own.get(label).copied().unwrap_or_default());
            *sums.entry(key.map(str::to_owned).collect()).or_default() += value;
        }
        sums
    }

    /// Sum of all series whose name with labels has every one of `parts`.
    pub fn sum(&self, parts: &[&str]) -> f64 {
        let matching = self
            .0
            .iter()
            .filter(|(series, _)| parts.iter().all(|part| series.contains(part)));
        matching.map(|(_, value)| value).sum()
    }

    /// Writes to the host's API server, by what was done and to which resource: `create pods`.
    pub fn host_writes(&self) -> BTreeMap<String, f64> {
        const WRITES: [&str; 5] = ["create", "apply", "patch", "delete", "replace"];
        let calls = self.sum_by("berth_syncer_api_call_seconds_count", &["side", "verb", "resource"]);
        let writes = calls
            .into_iter()
            .filter(|(labels, _)| labels[0] == "host" && WRITES.contains(&labels[1].as_str()));
        writes
            .map(|(labels, count)| (format!("{} {}", labels[1], labels[2]), count))
            .collect()
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
    Ok(Metrics::parse(&text))
}

/// The metrics of an API server.
///
/// # Errors
/// It does not answer.
pub async fn scrape_api_server(client: &Client) -> kube::Result<Metrics> {
    let request = ::http::Request::get("/metrics")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    Ok(Metrics::parse(&client.request_text(request).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_added_up_by_their_labels() {
        let metrics = Metrics::parse(concat!(
            "# TYPE requests counter\n",
            "requests{verb=\"POST\",resource=\"pods\",subresource=\"\",code=\"201\"} 3\n",
            "requests{verb=\"POST\",resource=\"pods\",subresource=\"\",code=\"409\"} 1e+00\n",
            "requests{verb=\"POST\",resource=\"pods\",subresource=\"binding\",code=\"201\"} 2\n",
            "requests_open{verb=\"POST\",resource=\"pods\"} 7\n",
        ));
        let key = |parts: [&str; 2]| parts.map(str::to_owned).to_vec();
        assert_eq!(
            metrics.sum_by("requests", &["resource", "subresource"]),
            BTreeMap::from([(key(["pods", ""]), 4.0), (key(["pods", "binding"]), 2.0)])
        );
    }
}
