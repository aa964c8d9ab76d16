//! What a team sees of its own usage: the sums of this month and of the last one, in the status of its TenantClusters. UsageRecords are of all tenants,
//! and few may read them.

use berth_api::{TenantCluster, UsageRecord, UsageTenant};
use berth_metering::{GroupBy, Month, PriceBook, day_of, record_of_summary};
use jiff::Timestamp;
use jiff::civil::Date;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::arguments::{UsageArguments, UsageFormat};
use super::period::Period;
use super::view::{Request, Selection, Usage};
use crate::error::{Error, failed};
use crate::tenant::TenantName;

/// What has a row of its own in these sums.
const GROUPS: [GroupBy; 4] = [GroupBy::Tenant, GroupBy::Namespace, GroupBy::Resource, GroupBy::Month];

/// What a user who may not list UsageRecords asks for, of which tenants, and when. Only what sums of months can answer.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    selection: Selection,
    group_by: Vec<GroupBy>,
    period: Period,
    now: Timestamp,
    /// Why the user may not.
    refusal: &'a str,
}

impl<'a> Asked<'a> {
    /// What the arguments ask for. `refusal` is what the API server says of the UsageRecords.
    ///
    /// # Errors
    /// The sums do not answer that.
    pub(super) fn new(
        selection: Selection,
        arguments: &UsageArguments,
        (period, now): (Period, Timestamp),
        refusal: &'a str,
    ) -> Result<Self, Error> {
        let asked = Self {
            selection,
            group_by: arguments.group_by(),
            period,
            now,
            refusal,
        };
        if asked.selection.namespace.is_none() && asked.selection.tenants.is_empty() {
            return Err(asked.no_answer(
                "name your tenant, or your namespace with --namespace, to see what the status of your tenants says of this month and the last",
            ));
        }
        if arguments.output == UsageFormat::Focus || arguments.currency.is_some() {
            return Err(asked.no_costs());
        }
        if let Some(other) = asked.group_by.iter().find(|group| !GROUPS.contains(group)) {
            let names = GROUPS.map(GroupBy::name).join(", ");
            return Err(asked.no_answer(&format!(
                "the status of your tenants does not have usage by {}: use --by with {names}",
                other.name()
            )));
        }
        if !has_sums(period, day_of(now)) {
            return Err(asked.no_answer(
                "the status of your tenants has the whole of this month and of the last one, and nothing else: use --month, or no days",
            ));
        }
        Ok(asked)
    }

    /// The error for a question that only UsageRecords answer.
    fn no_answer(&self, advice: &str) -> Error {
        Error::Failed(format!(
            "cannot list the UsageRecords: {}; they are of all tenants, so a ClusterRole has to give this permission: ask the platform, and \
             check it with `kubectl auth can-i list usagerecords.berth.dev`. Without it, {advice}",
            self.refusal
        ))
    }

    /// The error for costs, which depend on days, pools and Projects.
    pub(super) fn no_costs(&self) -> Error {
        self.no_answer("there are no costs")
    }

    /// Reads the tenants that were named, or those of the namespace.
    ///
    /// # Errors
    /// One does not exist, the user may not read them, or the host does not answer.
    pub(super) async fn read_tenants(&self, client: &Client) -> Result<Vec<TenantCluster>, Error> {
        let Selection {
            namespace,
            tenants: named,
        } = &self.selection;
        if named.is_empty() {
            let own = Api::<TenantCluster>::namespaced(client.clone(), namespace.as_deref().unwrap_or_default());
            let list = own.list(&ListParams::default()).await;
            return Ok(list.map_err(failed("list the tenants"))?.items);
        }
        let mut tenants: Vec<TenantCluster> = Vec::new();
        for name in named {
            if tenants.iter().all(|tenant| TenantName::of(tenant) != *name) {
                tenants.push(name.find(client).await?);
            }
        }
        Ok(tenants)
    }

    /// The report of these tenants.
    pub(super) fn usage(&self, tenants: &[TenantCluster]) -> Usage {
        let records: Vec<UsageRecord> = tenants.iter().flat_map(records_of).collect();
        let note = format!(
            "This is what the status of the tenants says, in hours rounded to a tenth: without costs, and without tenants that are deleted. \
             UsageRecords say more, and you may not list them: {}.",
            self.refusal
        );
        let request = Request {
            period: self.period,
            group_by: self.group_by.clone(),
            months_without_records: Vec::new(),
            without_costs: Some(note),
        };
        Usage::new(&records, &PriceBook::default(), request, self.now)
    }
}

/// Whether days are whole months, up to now, of which a status has sums.
fn has_sums(period: Period, today: Date) -> bool {
    let Period { from, to } = period;
    let last_month = today.first_of_month().yesterday().map_or(Month::of(today), Month::of);
    let ends_with_month = to == to.last_of_month() || to >= today;
    from == from.first_of_month() && ends_with_month && Month::of(from) >= last_month
}

/// The sums of a tenant, as records that say no more than they do.
fn records_of(tenant: &TenantCluster) -> Vec<UsageRecord> {
    let TenantName { namespace, name } = TenantName::of(tenant);
    let of = UsageTenant {
        namespace,
        name,
        uid: tenant.uid().unwrap_or_default(),
        slug: String::new(),
    };
    let summaries = tenant.status.iter().flat_map(|status| &status.monthly_usage);
    summaries
        .filter_map(|summary| record_of_summary(&of, summary))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::text::{describe, describe_wide};
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser as _;
    use serde_json::json;

    const REFUSAL: &str = "usagerecords.berth.dev is forbidden";
    const NOW: &str = "2026-11-03T12:10:00Z";

    fn tenant(name: &str) -> TenantCluster {
        let hours = |gpus: &str| json!([{"resource": "GPU", "hours": gpus}, {"resource": "CPU", "hours": "1.5"}]);
        let usage = json!([
            {"month": "2026-11", "meteredThrough": "2026-11-03T12:00:00Z", "inUse": true, "hours": hours("288.1")},
            {"month": "2026-10", "meteredThrough": "2026-11-01T00:00:00Z", "hours": hours("10.0")},
        ]);
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name}, "spec": {}, "status": {"monthlyUsage": usage},
        }))
        .unwrap()
    }

    /// What a command line of a user who may not list UsageRecords asks for.
    fn ask(line: &str) -> Result<Asked<'static>, Error> {
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let namespace = arguments.host.namespace;
        let Command::Usage(arguments) = arguments.command else {
            panic!("not usage")
        };
        let named = arguments.tenants.iter().map(|text| TenantName::parse(text, "team"));
        let selection = Selection {
            namespace,
            tenants: named.collect::<Result<_, _>>()?,
        };
        let now: Timestamp = NOW.parse().unwrap();
        let period = Period::new(arguments.month, arguments.from, arguments.to, day_of(now))?;
        Asked::new(selection, &arguments, (period, now), REFUSAL)
    }

    #[test]
    fn a_team_sees_this_month_with_a_note_and_without_costs() {
        let asked = ask("berth usage -n team").unwrap();
        let expected = "\
Usage from 2026-11-01 to 2026-11-03 (UTC), recorded up to 2026-11-03T12:00:00Z

TENANT       GPU-HOURS  CORE-HOURS
team/speech  288.1      1.5
team/vision  288.1      1.5
total        576.2      3.0

This is what the status of the tenants says, in hours rounded to a tenth: without costs, and without tenants that are deleted. \
UsageRecords say more, and you may not list them: usagerecords.berth.dev is forbidden.";
        assert_eq!(describe(&asked.usage(&[tenant("vision"), tenant("speech")])), expected);
        let nothing = asked.usage(&[]);
        assert_eq!(nothing.notes.len(), 2);
        assert_eq!(
            nothing.notes[0],
            "No usage is recorded of these days for what you asked for."
        );
    }

    #[test]
    fn the_month_before_and_both_together_can_be_seen() {
        let text = |line: &str| describe_wide(&ask(line).unwrap().usage(&[tenant("vision")]));
        assert!(text("berth usage vision --month 2026-10").contains("team/vision  10.0"));
        let both = text("berth usage vision --from 2026-10-01 --by month,resource");
        for row in ["2026-10  GPU       10.0", "2026-11  GPU       288.1"] {
            assert!(both.contains(row), "{both}");
        }
    }

    #[test]
    fn what_the_status_does_not_say_is_an_error_that_says_what_to_ask_for() {
        for (line, advice) in [
            (
                "berth usage",
                "Without it, name your tenant, or your namespace with --namespace",
            ),
            ("berth usage vision -o focus", "Without it, there are no costs"),
            ("berth usage vision --currency EUR", "Without it, there are no costs"),
            ("berth usage vision --by tenant,pool", "does not have usage by pool"),
            ("berth usage vision --by day", "does not have usage by day"),
            ("berth usage vision --month 2026-09", "this month and of the last one"),
            ("berth usage vision --from 2026-11-02", "this month and of the last one"),
            ("berth usage vision --to 2026-11-02", "this month and of the last one"),
        ] {
            let error = ask(line).unwrap_err();
            assert!(matches!(error, Error::Failed(_)), "{line}");
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "cannot list the UsageRecords: usagerecords.berth.dev is forbidden; they are of all tenants"
                ),
                "{text}"
            );
            assert!(text.contains(advice), "{line}: {text}");
        }
        for line in [
            "berth usage vision --to 2026-11-30",
            "berth usage vision --month 2026-11 -o csv",
        ] {
            assert!(ask(line).is_ok(), "{line}");
        }
    }
}
