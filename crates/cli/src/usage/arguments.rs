//! The arguments of `berth usage`.

use berth_metering::{GroupBy, Month};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use jiff::civil::Date;

use super::period::parse_day;
use crate::completion;
use crate::error::Error;
use crate::tenant::NamespacesArgument;

#[derive(Debug, Args)]
pub(crate) struct UsageArguments {
    /// Show the usage of these TenantClusters only, also of those that are deleted: their names, or NAMESPACE/NAME. [default: all, or those in --namespace]
    #[arg(value_name = "TENANT", add = completion::tenant_names(), conflicts_with = "all_namespaces")]
    pub(super) tenants: Vec<String>,
    #[command(flatten)]
    pub(super) namespaces: NamespacesArgument,
    /// The days of this month, in UTC.
    #[arg(long, value_name = "YYYY-MM", conflicts_with_all = ["from", "to"])]
    pub(super) month: Option<Month>,
    /// The first day, in UTC. [default: the first of the month of --to]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = parse_day)]
    pub(super) from: Option<Date>,
    /// The last day, in UTC. [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = parse_day)]
    pub(super) to: Option<Date>,
    /// What has a row of its own, separated by commas. [default: tenant, and pool with --unassigned]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUP")]
    pub(super) by: Vec<Group>,
    /// Show the nodes and GPUs that no tenant had, by pool, instead of those that tenants used. Of whole days.
    #[arg(long, conflicts_with = "tenants")]
    pub(super) unassigned: bool,
    /// Show costs in this currency only, for example EUR. [default: all that RateCards have]
    #[arg(long, value_name = "CODE")]
    pub(super) currency: Option<String>,
    /// Who charges for the usage, in the columns of FOCUS: the name of your platform or company.
    #[arg(long, value_name = "NAME", default_value = "Berth", value_parser = NonEmptyStringValueParser::new())]
    pub(super) provider: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: UsageFormat,
}

impl UsageArguments {
    /// What has a row of its own, without repetitions: tenants, unless something else was asked for.
    pub(super) fn group_by(&self) -> Vec<GroupBy> {
        self.groups_or(GroupBy::Tenant)
    }

    fn groups_or(&self, default: GroupBy) -> Vec<GroupBy> {
        if self.by.is_empty() {
            return vec![default];
        }
        let mut groups = Vec::new();
        for group in self.by.iter().copied().map(Group::group_by) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// What has a row of its own in a report of what no tenant had: pools, unless something else was asked for.
    ///
    /// # Errors
    /// Nodes that no tenant had have no such thing.
    pub(super) fn unassigned_group_by(&self) -> Result<Vec<GroupBy>, Error> {
        let groups = self.groups_or(GroupBy::Pool);
        let has = |group: &GroupBy| {
            matches!(
                group,
                GroupBy::Pool | GroupBy::Product | GroupBy::Resource | GroupBy::Day | GroupBy::Month
            )
        };
        match groups.iter().find(|&group| !has(group)) {
            None => Ok(groups),
            Some(group) => Err(Error::Usage(format!(
                "nodes that no tenant had have no {name}: leave out --unassigned, or --by {name}; with --unassigned, --by can be pool, product, \
                 resource, day and month",
                name = group.name()
            ))),
        }
    }
}

/// What rows of a report can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Group {
    /// TenantClusters.
    Tenant,
    /// Namespaces of TenantClusters.
    Namespace,
    /// Projects.
    Project,
    /// Organizations.
    Organization,
    /// HostNodePools.
    Pool,
    /// GPU products.
    Product,
    /// TenantClasses.
    Class,
    /// Modes of node groups.
    Mode,
    /// Resources.
    Resource,
    /// Days, in UTC.
    Day,
    /// Months, in UTC.
    Month,
}

impl Group {
    fn group_by(self) -> GroupBy {
        match self {
            Self::Tenant => GroupBy::Tenant,
            Self::Namespace => GroupBy::Namespace,
            Self::Project => GroupBy::Project,
            Self::Organization => GroupBy::Organization,
            Self::Pool => GroupBy::Pool,
            Self::Product => GroupBy::Product,
            Self::Class => GroupBy::Class,
            Self::Mode => GroupBy::Mode,
            Self::Resource => GroupBy::Resource,
            Self::Day => GroupBy::Day,
            Self::Month => GroupBy::Month,
        }
    }
}

/// The form in which usage is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum UsageFormat {
    /// Table for people.
    #[default]
    Table,
    /// The same with all resources.
    Wide,
    /// JSON for programs.
    Json,
    /// YAML for programs and people.
    Yaml,
    /// A table for spreadsheets, with a heading and without a total.
    Csv,
    /// CSV with the columns of FOCUS, the FinOps Open Cost and Usage Specification, for tools that import costs.
    Focus,
}
