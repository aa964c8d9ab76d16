//! `berth snapshot list`: the snapshots of a tenant, of a namespace, or of all.

use std::process::ExitCode;

use berth_api::TenantSnapshot;
use clap::Args;
use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};

use super::text::{format_snapshots, resource_name};
use crate::completion;
use crate::error::{Error, failed};
use crate::host::Host;
use crate::list::ListFormat;
use crate::list::watch::{self, Listing, check_format};
use crate::output::{ObjectFormat, keep_heading, list_of, print_objects, print_text};
use crate::tenant::TenantName;

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME. It need not exist any more. [default: all of the namespace]
    #[arg(value_name = "TENANT", add = completion::tenant_names(), conflicts_with = "all_namespaces")]
    tenant: Option<String>,
    /// List the snapshots of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// List the snapshots with these labels, as kubectl selects them: berth.dev/snapshot-trigger=schedule.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Print the snapshots, and then each again when it changes, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// Print tables without their heading.
    #[arg(long)]
    no_headers: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ListFormat,
}

/// Where snapshots are listed.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    All,
    Namespace(String),
    Tenant(TenantName),
}

impl Place {
    /// `is_given` says that `namespace` is that of `--namespace`.
    fn of(arguments: &ListArguments, namespace: &str, is_given: bool) -> Result<Self, Error> {
        match &arguments.tenant {
            Some(text) => Ok(Self::Tenant(TenantName::parse_given(text, namespace, is_given)?)),
            None if arguments.all_namespaces => Ok(Self::All),
            None => Ok(Self::Namespace(namespace.to_owned())),
        }
    }

    fn api(&self, client: Client) -> Api<TenantSnapshot> {
        match self {
            Self::All => Api::all(client),
            Self::Namespace(namespace) | Self::Tenant(TenantName { namespace, .. }) => {
                Api::namespaced(client, namespace)
            }
        }
    }

    fn has(&self, snapshot: &TenantSnapshot) -> bool {
        match self {
            Self::Tenant(tenant) => snapshot.spec.tenant_cluster_name == tenant.name,
            Self::All | Self::Namespace(_) => true,
        }
    }

    /// What is said if there are none.
    fn describe_none(&self, has_selector: bool) -> String {
        let which = if has_selector { " with these labels" } else { "" };
        match self {
            Self::All => format!("There are no TenantSnapshots{which}."),
            Self::Namespace(namespace) => {
                format!("There are no TenantSnapshots{which} in {namespace}; -A lists those of all namespaces.")
            }
            Self::Tenant(tenant) => format!(
                "There are no TenantSnapshots{which} of {tenant}; `berth snapshot create {tenant} --wait` takes one."
            ),
        }
    }
}

pub(super) async fn run(host: &Host, arguments: &ListArguments) -> Result<ExitCode, Error> {
    let place = Place::of(arguments, &host.namespace, host.is_namespace_given)?;
    if arguments.watch {
        check_format(arguments.output, "tenantsnapshots")?;
    }
    let selector = arguments.selector.as_deref().unwrap_or_default();
    let parameters = ListParams::default().labels(selector);
    let listed = place.api(host.client.clone()).list(&parameters).await;
    let mut snapshots = listed.map_err(failed("list the snapshots"))?.items;
    snapshots.retain(|snapshot| place.has(snapshot));
    sort(&mut snapshots);
    let format = arguments.output.of_objects();
    if snapshots.is_empty() && format == ObjectFormat::Table {
        print_text(format_args!("{}", place.describe_none(arguments.selector.is_some())));
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if arguments.watch {
        let api = place.api(host.stream_client()?);
        let is_listed = |snapshot: &TenantSnapshot| place.has(snapshot);
        let config = watcher::Config::default().labels(selector);
        let style = (listing(), arguments.output, !arguments.no_headers);
        return watch::run(api, config, snapshots, is_listed, style).await;
    }
    let names: Vec<String> = snapshots
        .iter()
        .map(|snapshot| resource_name(&snapshot.name_any()))
        .collect();
    let now = host.now().await;
    let is_wide = arguments.output == ListFormat::Wide;
    let text = || keep_heading(format_snapshots(&snapshots, is_wide, now), !arguments.no_headers);
    print_objects(&list_of(&snapshots), &names, text, format)?;
    Ok(ExitCode::SUCCESS)
}

/// By namespace and tenant, and those of a tenant by age.
fn sort(snapshots: &mut [TenantSnapshot]) {
    snapshots.sort_by_cached_key(key);
}

/// The place of a snapshot in a list: texts of it that never change.
fn key(snapshot: &TenantSnapshot) -> Vec<String> {
    let created = snapshot.creation_timestamp().map(|created| created.0.to_string());
    vec![
        snapshot.namespace().unwrap_or_default(),
        snapshot.spec.tenant_cluster_name.clone(),
        // Of the same length for years, and in whole seconds.
        created.unwrap_or_default(),
        snapshot.name_any(),
    ]
}

/// How snapshots are listed that are watched.
fn listing() -> Listing<TenantSnapshot> {
    Listing {
        key,
        resource_name: |snapshot| resource_name(&snapshot.name_any()),
        table: |snapshots, format, now| format_snapshots(snapshots, format == ListFormat::Wide, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use crate::snapshot::SnapshotCommand;
    use clap::Parser as _;
    use serde_json::json;

    fn arguments(line: &str) -> ListArguments {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Snapshot {
                command: SnapshotCommand::List(arguments),
            } => arguments,
            _ => panic!("not snapshot list"),
        }
    }

    fn snapshot(namespace: &str, tenant: &str, name: &str, created: &str) -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
            "spec": {"tenantClusterName": tenant},
        }))
        .unwrap()
    }

    #[test]
    fn snapshots_are_those_of_a_tenant_a_namespace_or_all() {
        let place = |line: &str| Place::of(&arguments(line), "team", false).unwrap();
        assert_eq!(place("berth snapshot list -A"), Place::All);
        assert_eq!(place("berth snapshot list"), Place::Namespace("team".into()));
        let of_tenant = place("berth snapshot list other/vision -o wide -l a=b");
        assert_eq!(
            of_tenant.describe_none(true),
            "There are no TenantSnapshots with these labels of other/vision; `berth snapshot create other/vision --wait` takes one."
        );
        let taken = snapshot("other", "vision", "a", "2026-11-30T00:00:00Z");
        let others = snapshot("other", "speech", "a", "2026-11-30T00:00:00Z");
        assert!(of_tenant.has(&taken) && !of_tenant.has(&others));
        assert!(Place::All.has(&others));
        assert!(
            place("berth snapshot list")
                .describe_none(false)
                .ends_with("in team; -A lists those of all namespaces.")
        );
        let wrong = Place::of(&arguments("berth snapshot list a/b/c"), "team", true).unwrap_err();
        assert_eq!(wrong.exit_code(), 2);
        let elsewhere = Place::of(&arguments("berth snapshot list other/vision"), "team", true);
        assert_eq!(elsewhere.unwrap_err().exit_code(), 2);
        let both = Arguments::try_parse_from("berth snapshot list vision -A".split(' ')).unwrap_err();
        assert_eq!(both.exit_code(), 2);
    }

    #[test]
    fn snapshots_can_be_watched_as_tenants() {
        assert!(!arguments("berth snapshot list").watch);
        assert!(arguments("berth snapshot list vision -w").watch);
        assert!(arguments("berth snapshot list -A --watch -o wide").watch);
        let listing = listing();
        let one = snapshot("a", "vision", "a", "2026-11-03T00:00:00Z");
        assert_eq!((listing.resource_name)(&one), "tenantsnapshot.berth.dev/a");
        let table = |format| (listing.table)(std::slice::from_ref(&one), format, jiff::Timestamp::UNIX_EPOCH);
        let (usual, wide) = (table(ListFormat::Table), table(ListFormat::Wide));
        assert_eq!((usual.lines().count(), wide.lines().count()), (2, 2));
        assert!(
            !usual.contains("TRIGGER") && wide.contains("TRIGGER"),
            "{usual}\n{wide}"
        );
        let mut all = [snapshot("b", "vision", "a", "2026-11-01T00:00:00Z"), one];
        // Those that are watched are in the order of a list.
        let first = (listing.key)(&all[1]);
        sort(&mut all);
        assert_eq!((listing.key)(&all[0]), first);
    }

    #[test]
    fn snapshots_of_a_tenant_are_in_the_order_of_their_age() {
        let mut all = [
            snapshot("b", "vision", "a", "2026-11-01T00:00:00Z"),
            snapshot("a", "vision", "a", "2026-11-03T00:00:00Z"),
            snapshot("a", "vision", "z", "2026-11-02T00:00:00Z"),
            snapshot("a", "speech", "q", "2026-11-09T00:00:00Z"),
        ];
        sort(&mut all);
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["q", "z", "a", "a"]);
    }
}
