//! `berth debug bundle`: what is needed to find a fault, in one archive. Secrets are never read.

mod archive;
mod redact;
mod related;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use berth_api::text::printable;
use berth_api::{GROUP, TenantCluster, VERSION, system};
use berth_process::write_atomic;
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, LogParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::completion;
use crate::error::{Error, describe, failed};
use crate::host::{Host, HostArguments};
use crate::log_lines::{API_SERVER, Content, LastLines, Sorter, read_last};
use crate::output::print_line;
use crate::tenant;
use archive::Archive;
use related::{Objects, is_event_about, is_snapshot_of, keep_related, name_of};

/// Lines of each log, the last ones.
const LOG_LINES: i64 = 5000;
/// Bytes of each log that are kept, the last ones, and that are read at most: lines may be long.
const LOG_BYTES: usize = 2 << 20;
const MOST_READ_BYTES: i64 = 16 << 20;
/// The same of an API server of a tenant, where most lines may be events of an audit log: among so many lines its messages are looked for.
const SEARCHED_LINES: i64 = 200_000;
const SEARCHED_BYTES: i64 = 256 << 20;
/// Bytes of all files together, before they are compressed. What comes later is left out, and errors.txt says so.
const MOST_BYTES: usize = 256 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Collect objects of Berth, conditions, Events, versions and logs in an archive.
    ///
    /// Secrets are never read, and events of audit logs are left out. What looks like a token, a key, a certificate or a kubeconfig is removed from
    /// all text. Look at the archive before you give it to others all the same: names of teams, nodes and images are in it.
    #[command(
        after_help = "Examples:\n  berth debug bundle --output-file bundle.tar.gz\n  berth debug bundle team-vision/vision"
    )]
    Bundle(BundleArguments),
}

#[derive(Debug, Args)]
pub(crate) struct BundleArguments {
    /// Collect only what belongs to this TenantCluster, and Berth itself: its name, or NAMESPACE/NAME. [default: all tenants]
    #[arg(add = completion::tenant_names())]
    name: Option<String>,
    /// The archive.
    #[arg(long, value_name = "FILE", default_value = "berth-debug.tar.gz")]
    output_file: PathBuf,
}

pub(crate) async fn run(host: &HostArguments, command: &DebugCommand) -> Result<ExitCode, Error> {
    let DebugCommand::Bundle(arguments) = command;
    let host = host.connect().await?;
    let mut bundle = Bundle {
        archive: Archive::new(MOST_BYTES),
        failures: Vec::new(),
        client: host.client.clone(),
    };
    let tenants = find_tenants(&host, arguments.name.as_deref()).await?;
    bundle.collect(&tenants, arguments.name.is_none()).await;
    let failures = bundle.failures.len();
    let bytes = bundle.finish()?;
    write_atomic(&arguments.output_file, &bytes, 0o600)?;
    let missing = match failures {
        0 => String::new(),
        number => format!(" {number} reads failed; errors.txt in it says why."),
    };
    print_line(format_args!(
        "The archive is {}.{missing}",
        arguments.output_file.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

async fn find_tenants(host: &Host, name: Option<&str>) -> Result<Vec<TenantCluster>, Error> {
    if let Some(name) = name {
        return Ok(vec![tenant::find(host, name).await?.1]);
    }
    let all = Api::<TenantCluster>::all(host.client.clone());
    let list = all.list(&ListParams::default()).await;
    let list = list.map_err(failed("list all tenants (name one to collect what belongs to it)"))?;
    Ok(list.items)
}

/// The namespaces of Berth itself and of these tenants' control planes. Workload namespaces are not among them: what runs there is
/// the teams'.
fn own_namespaces(tenants: &[TenantCluster]) -> BTreeSet<String> {
    let control_planes = tenants
        .iter()
        .filter_map(|tenant| tenant.status.as_ref()?.control_plane_namespace.clone());
    control_planes.chain([system::NAMESPACE.to_owned()]).collect()
}

/// The namespaces of the TenantClusters, of which only Events and snapshots are collected.
fn team_namespaces(tenants: &[TenantCluster]) -> BTreeSet<String> {
    tenants.iter().filter_map(ResourceExt::namespace).collect()
}

struct Bundle {
    archive: Archive,
    failures: Vec<String>,
    client: Client,
}

impl Bundle {
    async fn collect(&mut self, tenants: &[TenantCluster], is_all: bool) {
        let version = self.client.apiserver_version().await;
        let version = self
            .note("the version of the host", version)
            .map(|version| version.git_version);
        self.add_object(
            "versions.yaml",
            json!({"berth": env!("CARGO_PKG_VERSION"), "host": version}),
        );
        let tenant_values = tenants
            .iter()
            .map(|tenant| serde_json::to_value(tenant).unwrap_or_default());
        self.add_object("objects/tenantclusters.yaml", tenant_values.collect());
        self.collect_platform(tenants, is_all).await;
        let nodes = resource("", "v1", "Node", "nodes");
        if is_all {
            self.add_list("objects/nodes.yaml", &nodes, None, &ListParams::default())
                .await;
        }
        for namespace in own_namespaces(tenants) {
            self.collect_namespace(&namespace).await;
        }
        for namespace in team_namespaces(tenants) {
            self.collect_team_namespace(&namespace, tenants, is_all).await;
        }
    }

    /// Snapshots, and Events about TenantClusters and snapshots: those of these tenants, or all.
    async fn collect_team_namespace(&mut self, namespace: &str, tenants: &[TenantCluster], is_all: bool) {
        let mut snapshot_names = BTreeSet::<String>::new();
        let snapshots = resource(GROUP, VERSION, "TenantSnapshot", "tenantsnapshots");
        let path = format!("namespaces/{namespace}/tenantsnapshots.yaml");
        let found = self
            .read_list(&path, &snapshots, Some(namespace), &ListParams::default())
            .await;
        if let Some(mut found) = found {
            found.retain(|snapshot| is_all || is_snapshot_of(snapshot, namespace, tenants));
            snapshot_names.extend(found.iter().filter_map(name_of).map(str::to_owned));
            self.add_object(&path, found.into());
        }
        let of_namespace = |tenant: &&TenantCluster| tenant.namespace().as_deref() == Some(namespace);
        let tenant_names: BTreeSet<String> = tenants.iter().filter(of_namespace).map(ResourceExt::name_any).collect();
        let events = resource("", "v1", "Event", "events");
        let path = format!("namespaces/{namespace}/events.yaml");
        let mut about: Option<Vec<Value>> = None;
        for (kind, names) in [("TenantCluster", tenant_names), ("TenantSnapshot", snapshot_names)] {
            let of_kind = ListParams::default().fields(&format!("involvedObject.kind={kind}"));
            let found = self.read_list(&path, &events, Some(namespace), &of_kind).await;
            if let Some(mut found) = found {
                found.retain(|event| is_all || is_event_about(event, kind, &names));
                about.get_or_insert_default().append(&mut found);
            }
        }
        if let Some(about) = about {
            self.add_object(&path, about.into());
        }
    }

    /// The objects of the platform.
    async fn collect_platform(&mut self, tenants: &[TenantCluster], is_all: bool) {
        let mut lists = Vec::new();
        for definition in berth_api::crd::all() {
            let names = definition.spec.names;
            // Those of this command's tenants are there; what is in control-plane namespaces follows.
            if names.kind == "TenantCluster" || definition.spec.scope == "Namespaced" {
                continue;
            }
            let resource = resource(GROUP, VERSION, &names.kind, &names.plural);
            let path = format!("objects/{}.yaml", names.plural);
            let items = self.read_list(&path, &resource, None, &ListParams::default()).await;
            lists.extend(items.map(|items| Objects {
                kind: names.kind,
                path,
                items,
            }));
        }
        if !is_all {
            keep_related(&mut lists, tenants);
        }
        for Objects { path, items, .. } in lists {
            self.add_object(&path, items.into());
        }
    }

    async fn collect_namespace(&mut self, namespace: &str) {
        for (group, version, kind, plural) in [
            ("", "v1", "Event", "events"),
            ("", "v1", "Pod", "pods"),
            ("", "v1", "Service", "services"),
            ("apps", "v1", "Deployment", "deployments"),
            ("apps", "v1", "StatefulSet", "statefulsets"),
            ("coordination.k8s.io", "v1", "Lease", "leases"),
            (GROUP, VERSION, "TenantNode", "tenantnodes"),
            (GROUP, VERSION, "TenantSchedule", "tenantschedules"),
        ] {
            let path = format!("namespaces/{namespace}/{plural}.yaml");
            let resource = resource(group, version, kind, plural);
            self.add_list(&path, &resource, Some(namespace), &ListParams::default())
                .await;
        }
        self.collect_logs(namespace).await;
    }

    async fn collect_logs(&mut self, namespace: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let list = pods.list(&ListParams::default()).await;
        let list = self.note(&format!("the pods of {namespace}"), list);
        for pod in list.map(|list| list.items).unwrap_or_default() {
            let name = pod.name_any();
            for status in pod
                .status
                .iter()
                .flat_map(|status| status.container_statuses.iter().flatten())
            {
                for previous in [false, true] {
                    if previous && status.restart_count == 0 {
                        continue;
                    }
                    let suffix = if previous { ".previous" } else { "" };
                    let path = format!("namespaces/{namespace}/logs/{name}/{}{suffix}.log", status.name);
                    let parameters = LogParams {
                        container: Some(status.name.clone()),
                        tail_lines: Some(LOG_LINES),
                        limit_bytes: Some(MOST_READ_BYTES),
                        previous,
                        ..LogParams::default()
                    };
                    let log = if status.name == API_SERVER {
                        read_messages(&pods, &name, parameters).await
                    } else {
                        pods.logs(&name, &parameters).await
                    };
                    if let Some(log) = self.note(&path, log) {
                        // Cut afterwards: a part of a secret may look like none. Somebody prints the file on a terminal.
                        let text = printable(&redact::redact_text(&log));
                        self.add_text(&path, keep_end(&text, LOG_BYTES).to_owned());
                    }
                }
            }
        }
    }

    async fn add_list(&mut self, path: &str, resource: &ApiResource, namespace: Option<&str>, parameters: &ListParams) {
        if let Some(values) = self.read_list(path, resource, namespace, parameters).await {
            self.add_object(path, values.into());
        }
    }

    /// The objects that are to be in the file at `path`; none if they cannot be read.
    async fn read_list(
        &mut self,
        path: &str,
        resource: &ApiResource,
        namespace: Option<&str>,
        parameters: &ListParams,
    ) -> Option<Vec<Value>> {
        let client = self.client.clone();
        let objects: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let list = objects.list(parameters).await;
        let items = self.note(path, list)?.items;
        let values = items
            .iter()
            .map(|object| serde_json::to_value(object).unwrap_or_default());
        Some(values.collect())
    }

    /// Adds an object, or several, without what looks like a secret.
    fn add_object(&mut self, path: &str, mut value: Value) {
        redact::redact_object(&mut value);
        match serde_saphyr::to_string(&value) {
            Ok(text) => self.add_text(path, text),
            Err(error) => self.failures.push(format!("{path}: {error}")),
        }
    }

    fn add_text(&mut self, path: &str, text: String) {
        if !self.archive.add(path, text) {
            let limit = MOST_BYTES >> 20;
            self.failures.push(format!(
                "{path}: left out, because the archive has {limit} MiB; name one tenant"
            ));
        }
    }

    /// Keeps the error of a read for errors.txt.
    fn note<T>(&mut self, what: &str, result: Result<T, kube::Error>) -> Option<T> {
        result
            .map_err(|error| {
                self.failures
                    .push(format!("{what}: {}", redact::redact_text(&describe(&error))));
            })
            .ok()
    }

    fn finish(mut self) -> Result<Vec<u8>, Error> {
        if !self.failures.is_empty() {
            let text = self.failures.join("\n") + "\n";
            self.archive.add_beyond("errors.txt", text);
        }
        let failed = |error: std::io::Error| Error::Output(error.to_string());
        self.archive.finish(jiff::Timestamp::now().as_second()).map_err(failed)
    }
}

/// The last messages of an API server of a tenant, without the events of its audit log, in which is what users did, and with which objects. The first
/// line says how many lines are left out.
async fn read_messages(pods: &Api<Pod>, name: &str, parameters: LogParams) -> Result<String, kube::Error> {
    let parameters = LogParams {
        tail_lines: Some(SEARCHED_LINES),
        limit_bytes: Some(SEARCHED_BYTES),
        ..parameters
    };
    let mut reader = pods.log_stream(name, &parameters).await?;
    let [lines, bytes] = [LOG_LINES, MOST_READ_BYTES].map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let last = read_last(&mut reader, Sorter::new(Content::MessagesAlone), lines, bytes).await;
    let LastLines { lines, left_out, .. } = last.map_err(kube::Error::ReadEvents)?;
    let messages: Vec<u8> = lines.into_iter().flatten().collect();
    let messages = String::from_utf8_lossy(&messages);
    Ok(match left_out {
        0 => messages.into_owned(),
        lines => format!("[{lines} lines of the audit log are left out]\n{messages}"),
    })
}

/// The last lines of a text, with at most so many bytes.
fn keep_end(text: &str, most: usize) -> &str {
    let Some(begin) = text.len().checked_sub(most).filter(|begin| *begin > 0) else {
        return text;
    };
    let begin = (begin..text.len()).find(|index| text.is_char_boundary(*index));
    let end = begin.map_or("", |begin| &text[begin..]);
    // The first line is a part of one.
    end.split_once('\n').map_or(end, |(_, lines)| lines)
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version,
        kind: kind.into(),
        plural: plural.into(),
    }
}

#[cfg(test)]
mod tests;
