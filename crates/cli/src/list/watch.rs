//! Lists that go on: `berth list --watch` and others print objects as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::process::ExitCode;

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::ListFormat;
use crate::error::{Error, failed};
use crate::output::{print_next_line, print_note};

/// How the objects of a kind are listed.
pub(crate) struct Listing<K> {
    /// By what an object is found again, and in which order objects are listed: texts of it that never change.
    pub(crate) key: fn(&K) -> Vec<String>,
    /// Resource and name of an object.
    pub(crate) resource_name: fn(&K) -> String,
    /// A table of objects, with its heading.
    pub(crate) table: fn(&[K], ListFormat, Timestamp) -> String,
}

/// Refuses formats in which a watch cannot print. `resource` is that of the objects.
///
/// # Errors
/// The format is one of whole objects.
pub(crate) fn check_format(format: ListFormat, resource: &str) -> Result<(), Error> {
    match format {
        ListFormat::Table | ListFormat::Wide | ListFormat::Name => Ok(()),
        ListFormat::Json | ListFormat::Yaml => Err(Error::Usage(format!(
            "--watch prints a table or names; `kubectl get {resource} --watch -o json` prints objects"
        ))),
    }
}

/// Prints `objects`, and then each object of the watch for which `is_listed` holds again when it changes. Ends when nobody reads any more,
/// or with the process. A table has its heading if the last argument says so.
///
/// # Errors
/// The user may not list or watch these objects, or is not signed in any more. Other errors of the watch are passing.
pub(crate) async fn run<K>(
    api: Api<K>,
    config: watcher::Config,
    objects: Vec<K>,
    is_listed: impl Fn(&K) -> bool,
    (listing, format, has_heading): (Listing<K>, ListFormat, bool),
) -> Result<ExitCode, Error>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut shown = Shown::new(objects, listing, format);
    let lines = shown.all(Timestamp::now());
    let left_out = if has_heading { 0 } else { shown.count_headings() };
    if !print_lines(lines.get(left_out..).unwrap_or_default())? {
        return Ok(ExitCode::SUCCESS);
    }
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let now = Timestamp::now();
        let lines: Vec<String> = match event {
            Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) if !is_listed(&object) => {
                Vec::new()
            }
            Ok(Event::Apply(object) | Event::InitApply(object)) => shown.change(object, now).into_iter().collect(),
            Ok(Event::Delete(object)) => shown.delete(object, now).into_iter().collect(),
            Ok(Event::Init) => {
                shown.listed.clear();
                Vec::new()
            }
            Ok(Event::InitDone) => shown.delete_unlisted(now),
            Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error))
                if is_refused(&error) =>
            {
                return Err(failed("watch the objects")(error));
            }
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

/// Whether the user may not list or watch, or is not signed in any more: the same request fails again.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
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

/// What was printed.
struct Shown<K> {
    objects: BTreeMap<Vec<String>, K>,
    /// Those that there were since the watch began, or began again.
    listed: BTreeSet<Vec<String>>,
    listing: Listing<K>,
    format: ListFormat,
}

impl<K: Resource + Clone> Shown<K> {
    fn new(objects: Vec<K>, listing: Listing<K>, format: ListFormat) -> Self {
        let objects = { objects.into_iter() }.map(|object| ((listing.key)(&object), object));
        Self {
            objects: objects.collect(),
            listed: BTreeSet::new(),
            listing,
            format,
        }
    }

    /// The lines of all objects, with the heading of a table.
    fn all(&self, now: Timestamp) -> Vec<String> {
        if self.format == ListFormat::Name {
            return self.objects.values().map(self.listing.resource_name).collect();
        }
        let objects: Vec<K> = self.objects.values().cloned().collect();
        let text = (self.listing.table)(&objects, self.format, now);
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// The line of an object, as wide as those of all others; none if it was printed as it is.
    fn change(&mut self, object: K, now: Timestamp) -> Option<String> {
        let key = (self.listing.key)(&object);
        let version = object.resource_version();
        self.listed.insert(key.clone());
        let before = self.objects.insert(key.clone(), object);
        let is_new = before.is_none_or(|before| before.resource_version() != version);
        is_new.then(|| self.line_of(&key, now)).flatten()
    }

    /// The last line of an object that is gone.
    fn delete(&mut self, object: K, now: Timestamp) -> Option<String> {
        let key = (self.listing.key)(&object);
        self.objects.insert(key.clone(), object);
        let line = self.line_of(&key, now);
        self.objects.remove(&key);
        line
    }

    /// The last lines of the objects that went while the watch was interrupted.
    fn delete_unlisted(&mut self, now: Timestamp) -> Vec<String> {
        let all = self.objects.iter();
        let gone = all.filter(|(key, _)| !self.listed.contains(*key));
        let gone: Vec<K> = gone.map(|(_, object)| object.clone()).collect();
        gone.into_iter().filter_map(|object| self.delete(object, now)).collect()
    }

    fn line_of(&self, key: &[String], now: Timestamp) -> Option<String> {
        let position = self.objects.keys().position(|known| known == key)?;
        self.all(now).into_iter().nth(position + self.count_headings())
    }

    /// Lines before the first object.
    fn count_headings(&self) -> usize {
        usize::from(self.format != ListFormat::Name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing;
    use super::*;
    use crate::testing::{client, refusal};
    use berth_api::TenantCluster;
    use serde_json::json;

    fn tenant(name: &str, version: &str, phase: &str) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": name, "namespace": "team", "resourceVersion": version}, "spec": {},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_watch_that_is_refused_ends() {
        for code in [401_u16, 403] {
            let tenants: Api<TenantCluster> = Api::namespaced(client(move |_| refusal(code, "no")), "team");
            let how = (listing(), ListFormat::Name, false);
            let ended = run(tenants, watcher::Config::default(), Vec::new(), |_| true, how).await;
            let error = ended.unwrap_err();
            assert!(error.to_string().starts_with("cannot watch the objects: "), "{error}");
        }
    }

    #[test]
    fn each_change_is_one_line_below_the_table() {
        let now = Timestamp::UNIX_EPOCH;
        let mut shown = Shown::new(vec![tenant("vision", "1", "Provisioning")], listing(), ListFormat::Wide);
        let table = shown.all(now);
        assert_eq!(table.len(), 2, "{table:?}");
        assert!(
            table[0].starts_with("NAMESPACE") && table[1].contains("Provisioning"),
            "{table:?}"
        );
        // A watch begins with everything that there is.
        assert_eq!(shown.change(tenant("vision", "1", "Provisioning"), now), None);
        let line = shown.change(tenant("vision", "2", "Ready"), now).unwrap();
        assert!(
            line.starts_with("team       vision ") && line.contains("Ready"),
            "{line}"
        );
        let line = shown.change(tenant("audio", "3", "Pending"), now).unwrap();
        assert!(
            line.starts_with("team       audio ") && line.contains("Pending"),
            "{line}"
        );
        let line = shown.delete(tenant("vision", "4", "Deleting"), now).unwrap();
        assert!(line.contains("vision") && line.contains("Deleting"), "{line}");
        assert_eq!(shown.objects.len(), 1);
    }

    #[test]
    fn tenants_that_went_while_the_watch_was_interrupted_have_a_last_line() {
        let now = Timestamp::UNIX_EPOCH;
        let mut shown = Shown::new(
            vec![tenant("a", "1", "Ready"), tenant("b", "1", "Ready")],
            listing(),
            ListFormat::Name,
        );
        assert_eq!(shown.change(tenant("b", "1", "Ready"), now), None);
        assert_eq!(shown.delete_unlisted(now), ["tenantcluster.berth.dev/a"]);
        assert_eq!(shown.all(now), ["tenantcluster.berth.dev/b"]);
    }

    #[test]
    fn names_have_no_heading() {
        let mut shown = Shown::new(vec![tenant("b", "1", "Ready")], listing(), ListFormat::Name);
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(shown.all(now), ["tenantcluster.berth.dev/b"]);
        let line = shown.change(tenant("a", "2", "Ready"), now);
        assert_eq!(line.as_deref(), Some("tenantcluster.berth.dev/a"));
    }

    #[test]
    fn whole_objects_cannot_be_watched() {
        assert!(check_format(ListFormat::Wide, "tenantclusters").is_ok());
        assert!(check_format(ListFormat::Name, "tenantclusters").is_ok());
        for format in [ListFormat::Json, ListFormat::Yaml] {
            let error = check_format(format, "tenantclusters").unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(
                error.to_string().contains("`kubectl get tenantclusters --watch"),
                "{error}"
            );
        }
    }
}
