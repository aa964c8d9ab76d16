//! `berth get`: everything about one tenant; without a name the list of all, as kubectl has it.

mod text;

use std::process::ExitCode;

use berth_api::{SchedulePeriod, TENANT_SCHEDULE, TenantCluster, TenantNode, TenantSchedule};
use clap::Args;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};

use crate::completion;
use crate::error::Error;
use crate::events::{self, EventView};
use crate::host::{Host, HostArguments};
use crate::list::{self, ListArguments};
use crate::output::{ObjectFormat, print_objects};
use crate::tenant::{self, TenantName};

/// How many of the next changes of the schedule are shown.
const TRANSITIONS: usize = 3;

#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME. Without a name, list the tenants.
    #[arg(add = completion::tenant_names(), conflicts_with_all = ["all_namespaces", "selector", "field_selector"])]
    name: Option<String>,
    /// Succeed if there is no such tenant.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    ignore_not_found: bool,
    #[command(flatten)]
    list: ListArguments,
}

/// What is shown beside the TenantCluster itself. The user may not be allowed to read it: then it is missing.
#[derive(Debug, Default)]
struct Details {
    nodes: Option<Vec<TenantNode>>,
    transitions: Vec<SchedulePeriod>,
    events: Vec<EventView>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &GetArguments) -> Result<ExitCode, Error> {
    let Some(name) = &arguments.name else {
        return list::run(host, &arguments.list).await;
    };
    if arguments.list.is_watching() {
        return list::watch_one(host, name, &arguments.list).await;
    }
    let format = arguments.list.format().of_objects();
    let host = host.connect().await?;
    let (name, tenant) = match tenant::find(&host, name).await {
        Err(Error::NotFound(_)) if arguments.ignore_not_found => return Ok(ExitCode::SUCCESS),
        found => found?,
    };
    let now = Timestamp::now();
    let details = match format {
        ObjectFormat::Table => read_details(&host, &name, &tenant, now).await,
        _ => Details::default(),
    };
    let names = [tenant::resource_name(&tenant.name_any())];
    print_objects(&tenant, &names, || text::describe(&tenant, &details, now), format)?;
    Ok(ExitCode::SUCCESS)
}

async fn read_details(host: &Host, name: &TenantName, tenant: &TenantCluster, now: Timestamp) -> Details {
    let about = ("TenantCluster", name.name.as_str());
    let events = events::list(&host.client, &name.namespace, about, tenant.metadata.uid.as_deref());
    let control_plane = Box::pin(read_control_plane(host, tenant, now));
    let ((nodes, transitions), events) = tokio::join!(control_plane, events);
    Details {
        nodes,
        transitions,
        events: events.unwrap_or_default(),
    }
}

/// What control writes for the syncer: the nodes, and the next changes of the schedule. There is nothing before the control plane has a
/// namespace.
async fn read_control_plane(
    host: &Host,
    tenant: &TenantCluster,
    now: Timestamp,
) -> (Option<Vec<TenantNode>>, Vec<SchedulePeriod>) {
    let status = tenant.status.as_ref();
    let Some(namespace) = status.and_then(|status| status.control_plane_namespace.as_ref()) else {
        return (None, Vec::new());
    };
    let nodes: Api<TenantNode> = Api::namespaced(host.client.clone(), namespace);
    let schedules: Api<TenantSchedule> = Api::namespaced(host.client.clone(), namespace);
    let parameters = ListParams::default();
    let (nodes, schedule) = tokio::join!(nodes.list(&parameters), schedules.get_opt(TENANT_SCHEDULE));
    let periods = schedule.ok().flatten().map(|schedule| schedule.spec.tenant);
    let transitions = next_transitions(periods.unwrap_or_default(), now);
    (nodes.ok().map(|nodes| nodes.items), transitions)
}

/// The periods that begin after `now`.
fn next_transitions(periods: Vec<SchedulePeriod>, now: Timestamp) -> Vec<SchedulePeriod> {
    let later = periods.into_iter().filter(|period| period.from.0 > now);
    later.take(TRANSITIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    /// Before the host is asked.
    #[tokio::test]
    async fn objects_are_not_watched() {
        for line in ["berth get a -w -o json", "berth get -w -o yaml"] {
            let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
            let crate::args::Command::Get(get) = arguments.command else {
                panic!("not get")
            };
            let error = run(&arguments.host, &get).await.unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{error}");
        }
    }
}
