//! `berth list`: the tenants of a namespace, or of all.

mod text;
pub(crate) mod watch;

use std::process::ExitCode;

use berth_api::TenantCluster;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::watcher;

use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::node;
use crate::output::{ObjectFormat, keep_heading, list_of, print_objects, print_text};
use crate::tenant::{self, TenantName, resource_name};
use text::Columns;
use watch::{Listing, check_format};

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// List the tenants of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// List the tenants with these labels, as kubectl selects them: team=vision,stage!=prod.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// List the tenants with these fields: metadata.name, metadata.namespace, status.phase or status.className, as in status.phase!=Ready.
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,
    /// Print the tenants, and then each again when it changes, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// Print tables without their heading.
    #[arg(long)]
    no_headers: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ListFormat,
}

/// The form in which tenants are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// Text for people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
    /// Only resource and name.
    Name,
}

impl ListFormat {
    /// The format of one object, or of several without their columns.
    pub(crate) fn of_objects(self) -> ObjectFormat {
        match self {
            Self::Table | Self::Wide => ObjectFormat::Table,
            Self::Json => ObjectFormat::Json,
            Self::Yaml => ObjectFormat::Yaml,
            Self::Name => ObjectFormat::Name,
        }
    }

    fn columns(self) -> Columns {
        match self {
            Self::Wide => Columns::Wide,
            _ => Columns::Usual,
        }
    }
}

impl ListArguments {
    pub(crate) fn format(&self) -> ListFormat {
        self.output
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.watch
    }
}

pub(crate) async fn run(host: &HostArguments, arguments: &ListArguments) -> Result<ExitCode, Error> {
    let format = arguments.output;
    if arguments.watch {
        check_format(format, "tenantclusters")?;
    }
    let host = host.connect().await?;
    let api_of = |client: kube::Client| -> Api<TenantCluster> {
        if arguments.all_namespaces {
            Api::all(client)
        } else {
            Api::namespaced(client, &host.namespace)
        }
    };
    let selector = arguments.selector.as_deref().unwrap_or_default();
    let field_selector = arguments.field_selector.as_deref().unwrap_or_default();
    let parameters = ListParams::default().labels(selector).fields(field_selector);
    let list = api_of(host.client.clone()).list(&parameters).await;
    let tenants = list.map_err(failed("list the tenants"))?.items;
    let format_of_objects = format.of_objects();
    if tenants.is_empty() && format_of_objects == ObjectFormat::Table {
        print_text(format_args!("{}", describe_none(arguments, &host.namespace)));
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if arguments.watch {
        let config = watcher::Config::default().labels(selector).fields(field_selector);
        return watch::run(
            api_of(host.stream_client()?),
            config,
            tenants,
            |_| true,
            (listing(), format, !arguments.no_headers),
        )
        .await;
    }
    let nodes = match format_of_objects {
        ObjectFormat::Table => node::list_if_allowed(&host.client).await,
        _ => None,
    };
    let names: Vec<String> = tenants.iter().map(|tenant| resource_name(&tenant.name_any())).collect();
    let text = || {
        let table = text::describe(&tenants, nodes.as_ref(), format.columns(), Timestamp::now());
        keep_heading(table, !arguments.no_headers)
    };
    print_objects(&list_of(&tenants), &names, text, format_of_objects)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a tenant, and then again when it changes. `name` is what the user calls it.
pub(crate) async fn watch_one(host: &HostArguments, name: &str, arguments: &ListArguments) -> Result<ExitCode, Error> {
    let format = arguments.output;
    check_format(format, "tenantclusters")?;
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, name).await?;
    let config = watcher::Config::default().fields(&format!("metadata.name={}", name.name));
    let api = name.api(&host.stream_client()?);
    let style = (listing(), format, !arguments.no_headers);
    watch::run(api, config, vec![tenant], |_| true, style).await
}

/// How tenants are listed that are watched.
fn listing() -> Listing<TenantCluster> {
    Listing {
        key: |tenant| {
            let TenantName { namespace, name } = TenantName::of(tenant);
            vec![namespace, name]
        },
        resource_name: |tenant| resource_name(&tenant.name_any()),
        table: |tenants, format, now| text::describe(tenants, None, format.columns(), now),
    }
}

fn describe_none(arguments: &ListArguments, namespace: &str) -> String {
    let which = match (&arguments.selector, &arguments.field_selector) {
        (None, None) => "",
        (Some(_), None) => " with these labels",
        (None, Some(_)) => " with these fields",
        (Some(_), Some(_)) => " with these labels and fields",
    };
    if arguments.all_namespaces {
        format!("There are no TenantClusters{which}.")
    } else {
        format!("There are no TenantClusters{which} in {namespace}; -A lists those of all namespaces.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn an_empty_list_says_what_was_asked_for() {
        let text = |line: &str| {
            let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
            match arguments.command {
                crate::args::Command::List(arguments) => describe_none(&arguments, "team"),
                _ => panic!("not list"),
            }
        };
        assert_eq!(text("berth list -A"), "There are no TenantClusters.");
        assert_eq!(
            text("berth list -l a=b"),
            "There are no TenantClusters with these labels in team; -A lists those of all namespaces."
        );
        assert_eq!(
            text("berth list -A -l a=b --field-selector status.phase=Ready"),
            "There are no TenantClusters with these labels and fields."
        );
    }
}
