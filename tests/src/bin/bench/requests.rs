//! How many requests each API server answered, by verb and resource: all of them, and those of a tenant's syncer.

use crate::report::{Report, figure_of};
use berth_tests::{
    scrape::{scrape, scrape_api_server},
    tenant::Tenant,
    test_cluster::TestCluster,
};
use std::collections::BTreeMap;

/// Fewer requests for a pod than this have another cause: Leases, lists of controllers.
const FEW: f64 = 0.02;

/// Requests since the programs were started, by who counted them, verb and resource.
pub(crate) struct Requests(BTreeMap<(String, String), f64>);

impl Requests {
    /// What has been counted so far. API servers do not say whose requests they were, so the syncer's own count is beside theirs.
    pub(crate) async fn count(host: &TestCluster, tenant: &Tenant) -> Self {
        let mut counted = BTreeMap::new();
        for (side, client) in [("host", &host.client), ("tenant", &tenant.client)] {
            let metrics = scrape_api_server(client).await.unwrap();
            let labels = ["verb", "resource", "subresource"];
            for (labels, count) in metrics.sum_by("apiserver_request_total", &labels) {
                let who = format!("of all clients, {side}");
                counted.insert((who, name(&labels)), count);
            }
        }
        let metrics = scrape(host, tenant).await.unwrap();
        let labels = ["side", "verb", "resource"];
        for (labels, count) in metrics.sum_by("berth_syncer_api_call_seconds_count", &labels) {
            let who = format!("of the syncer, {}", labels[0]);
            counted.insert((who, name(&labels[1..])), count);
        }
        Self(counted)
    }

    /// What was counted between `before` and this.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let now = self.0.iter();
        let new = now.map(|(what, count)| (what.clone(), count - before.0.get(what).copied().unwrap_or_default()));
        Self(new.collect())
    }

    /// Adds the requests for each of `pods` to a report, and their sums.
    pub(crate) fn add_to(&self, report: &mut Report, pods: usize) {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for ((who, what), count) in &self.0 {
            let per_pod = count / figure_of(pods);
            if per_pod >= FEW {
                report.add(format!("requests for a pod {who}: {what}"), per_pod, "");
                *sums.entry(who).or_default() += per_pod;
            }
        }
        for (who, sum) in sums {
            report.add(format!("requests for a pod {who}: all"), sum, "");
        }
    }
}

/// `POST pods/binding`.
fn name(labels: &[String]) -> String {
    match labels {
        [verb, resource, subresource] if !subresource.is_empty() => format!("{verb} {resource}/{subresource}"),
        [verb, resource, ..] => format!("{verb} {resource}"),
        _ => labels.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_verb_and_resource() {
        let name = |labels: &[&str]| name(&labels.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(name(&["POST", "pods", "binding"]), "POST pods/binding");
        assert_eq!(name(&["POST", "pods", ""]), "POST pods");
        assert_eq!(name(&["create", "secrets"]), "create secrets");
    }

    #[test]
    fn only_new_requests_count() {
        let requests = |count: f64| Requests(BTreeMap::from([(("of all".to_owned(), "POST pods".to_owned()), count)]));
        let new = requests(7.0).since(&requests(4.0));
        assert_eq!(format!("{:?}", new.0), r#"{("of all", "POST pods"): 3.0}"#);
    }
}
