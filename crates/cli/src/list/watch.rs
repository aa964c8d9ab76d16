//! `berth list --watch`: tenants as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use berth_api::TenantCluster;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};

use super::ListFormat;
use super::text;
use crate::error::Error;
use crate::output::{print_next_line, print_note};
use crate::tenant::{TenantName, resource_name};

/// Prints `tenants`, and then each tenant that the watch of the API has again when it changes. Ends when nobody reads any more, or with the
/// process.
pub(super) async fn run(
    api: Api<TenantCluster>,
    config: watcher::Config,
    tenants: Vec<TenantCluster>,
    format: ListFormat,
) -> Result<ExitCode, Error> {
    let mut shown = Shown::new(tenants, format);
    if !print_lines(&shown.all(Timestamp::now()))? {
        return Ok(ExitCode::SUCCESS);
    }
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let now = Timestamp::now();
        let lines: Vec<String> = match event {
            Ok(Event::Apply(tenant) | Event::InitApply(tenant)) => shown.change(tenant, now).into_iter().collect(),
            Ok(Event::Delete(tenant)) => shown.delete(tenant, now).into_iter().collect(),
            Ok(Event::Init) => {
                shown.listed.clear();
                Vec::new()
            }
            Ok(Event::InitDone) => shown.delete_unlisted(now),
            // The watch begins again by itself, after a pause.
            Err(error) => {
                if !is_failing {
                    print_note(format_args!("{error}; trying again"));
                }
                is_failing = true;
                continue;
            }
        };
        is_failing = false;
        if !print_lines(&lines)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints lines, and returns whether somebody reads on.
fn print_lines(lines: &[String]) -> Result<bool, Error> {
    for line in lines {
        if !print_next_line(format_args!("{line}"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What was printed: the tenants by namespace and name.
struct Shown {
    tenants: BTreeMap<(String, String), TenantCluster>,
    /// Those that there were since the watch began, or began again.
    listed: BTreeSet<(String, String)>,
    format: ListFormat,
}

impl Shown {
    fn new(tenants: Vec<TenantCluster>, format: ListFormat) -> Self {
        let tenants = tenants.into_iter().map(|tenant| (key(&tenant), tenant)).collect();
        Self {
            tenants,
            listed: BTreeSet::new(),
            format,
        }
    }

    /// The lines of all tenants, with the heading of a table.
    fn all(&self, now: Timestamp) -> Vec<String> {
        let tenants: Vec<TenantCluster> = self.tenants.values().cloned().collect();
        if self.format == ListFormat::Name {
            let names = tenants.iter().map(|tenant| resource_name(&tenant.name_any()));
            return names.collect();
        }
        let text = text::describe(&tenants, None, self.format.columns(), now);
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// The line of a tenant, as wide as those of all others; none if it was printed as it is.
    fn change(&mut self, tenant: TenantCluster, now: Timestamp) -> Option<String> {
        let key = key(&tenant);
        let version = tenant.resource_version();
        self.listed.insert(key.clone());
        let before = self.tenants.insert(key.clone(), tenant);
        let is_new = before.is_none_or(|before| before.resource_version() != version);
        is_new.then(|| self.line_of(&key, now)).flatten()
    }

    /// The last line of a tenant that is gone.
    fn delete(&mut self, tenant: TenantCluster, now: Timestamp) -> Option<String> {
        let key = key(&tenant);
        self.tenants.insert(key.clone(), tenant);
        let line = self.line_of(&key, now);
        self.tenants.remove(&key);
        line
    }

    /// The last lines of the tenants that went while the watch was interrupted.
    fn delete_unlisted(&mut self, now: Timestamp) -> Vec<String> {
        let all = self.tenants.iter();
        let gone = all.filter(|(key, _)| !self.listed.contains(*key));
        let gone: Vec<TenantCluster> = gone.map(|(_, tenant)| tenant.clone()).collect();
        gone.into_iter().filter_map(|tenant| self.delete(tenant, now)).collect()
    }

    fn line_of(&self, key: &(String, String), now: Timestamp) -> Option<String> {
        let position = self.tenants.keys().position(|known| known == key)?;
        let heading = usize::from(self.format != ListFormat::Name);
        self.all(now).into_iter().nth(position + heading)
    }
}

fn key(tenant: &TenantCluster) -> (String, String) {
    let TenantName { namespace, name } = TenantName::of(tenant);
    (namespace, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tenant(name: &str, version: &str, phase: &str) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": name, "namespace": "team", "resourceVersion": version}, "spec": {},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn each_change_is_one_line_below_the_table() {
        let now = Timestamp::UNIX_EPOCH;
        let mut shown = Shown::new(vec![tenant("vision", "1", "Provisioning")], ListFormat::Table);
        let table = shown.all(now);
        assert_eq!(table.len(), 2, "{table:?}");
        assert!(
            table[0].starts_with("NAMESPACE") && table[1].contains("Provisioning"),
            "{table:?}"
        );
        // A watch begins with everything that there is.
        assert_eq!(shown.change(tenant("vision", "1", "Provisioning"), now), None);
        let line = shown.change(tenant("vision", "2", "Ready"), now).unwrap();
        assert!(line.starts_with("team       vision  Ready"), "{line}");
        let line = shown.change(tenant("audio", "3", "Pending"), now).unwrap();
        assert!(line.starts_with("team       audio   Pending"), "{line}");
        let line = shown.delete(tenant("vision", "4", "Deleting"), now).unwrap();
        assert!(line.contains("vision") && line.contains("Deleting"), "{line}");
        assert_eq!(shown.tenants.len(), 1);
    }

    #[test]
    fn tenants_that_went_while_the_watch_was_interrupted_have_a_last_line() {
        let now = Timestamp::UNIX_EPOCH;
        let mut shown = Shown::new(
            vec![tenant("a", "1", "Ready"), tenant("b", "1", "Ready")],
            ListFormat::Name,
        );
        assert_eq!(shown.change(tenant("b", "1", "Ready"), now), None);
        assert_eq!(shown.delete_unlisted(now), ["tenantcluster.berth.dev/a"]);
        assert_eq!(shown.all(now), ["tenantcluster.berth.dev/b"]);
    }

    #[test]
    fn names_have_no_heading() {
        let mut shown = Shown::new(vec![tenant("b", "1", "Ready")], ListFormat::Name);
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(shown.all(now), ["tenantcluster.berth.dev/b"]);
        let line = shown.change(tenant("a", "2", "Ready"), now);
        assert_eq!(line.as_deref(), Some("tenantcluster.berth.dev/a"));
    }
}
