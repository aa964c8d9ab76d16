//! What a tenant used in a month, in the few numbers that its TenantCluster shows.

use crate::{
    amounts::{Amounts, amount_of_hours, hours},
    calendar::{Month, second_of, timestamp_of},
    item::LineKey,
    record::{self, Lines, Through},
};
use berth_api::{MonthlyUsage, ResourceHours, UsageRecord, UsageTenant};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// Decimals of hours, as in [`UsageRecordSpec::gpu_hours`](berth_api::UsageRecordSpec::gpu_hours).
const DECIMALS: u32 = 1;
/// Months of a tenant of which summaries are kept: the latest one and the one before.
const KEPT: usize = 2;

/// The sums of a record. Its time has whole seconds, as API servers store it: a status that was read equals the one that was written.
pub fn summarize(record: &UsageRecord) -> MonthlyUsage {
    let mut amounts = Amounts::default();
    for line in &record.spec.lines {
        for amount in &line.daily {
            amounts.add(line.resource, i128::from(*amount));
        }
    }
    let hours = amounts.iter().map(|(resource, amount)| ResourceHours {
        resource,
        hours: hours(resource, amount, DECIMALS),
    });
    MonthlyUsage {
        month: record.spec.month.clone(),
        metered_through: Time(timestamp_of(second_of(record.spec.metered_through.0))),
        in_use: record.spec.in_use,
        hours: hours.collect(),
    }
}

/// A record that says no more than a summary does, to make reports of: everything was used on the first day of the month, and nothing has a pool, a
/// Project and so on. None if the summary has no month. Hours that are no number are left out.
pub fn record_of_summary(tenant: &UsageTenant, summary: &MonthlyUsage) -> Option<UsageRecord> {
    let month: Month = summary.month.parse().ok()?;
    let mut lines = Lines::default();
    for ResourceHours { resource, hours } in &summary.hours {
        let amount = amount_of_hours(*resource, hours).unwrap_or_default();
        lines.add(&LineKey::new(*resource), 0, amount);
    }
    let through = Through {
        at: summary.metered_through.0,
        is_in_use: summary.in_use,
    };
    Some(lines.record(tenant, month, None, through))
}

/// The summaries of the latest months of a tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summaries(BTreeMap<Month, MonthlyUsage>);

impl Summaries {
    /// Takes a stored record.
    pub(crate) fn store(&mut self, record: &UsageRecord) {
        let Some((month, _)) = record::metered(record) else {
            return;
        };
        self.0.insert(month, summarize(record));
        while self.0.len() > KEPT {
            self.0.pop_first();
        }
    }

    /// Those of a month and of the month before, the later one first.
    pub(crate) fn of_two_months(&self, month: Month) -> Vec<MonthlyUsage> {
        let two = month.number() - 1..=month.number();
        let of_months = self.0.iter().rev().filter(|(month, _)| two.contains(&month.number()));
        of_months.map(|(_, summary)| summary.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::testing::gpus;
    use berth_api::UsageResource;
    use jiff::Timestamp;

    fn tenant() -> UsageTenant {
        UsageTenant {
            namespace: "team".into(),
            name: "vision".into(),
            uid: "u1".into(),
            slug: "vision-aaaaaaaaaaaaa".into(),
        }
    }

    /// A record of a month that is metered up to its second day, with these amounts by line and day.
    fn record(month: &str, amounts: &[(LineKey, usize, i64)]) -> UsageRecord {
        let mut lines = Lines::default();
        for (key, day, amount) in amounts {
            lines.add(key, *day, *amount);
        }
        let through = Through {
            at: format!("{month}-02T00:00:00Z").parse::<Timestamp>().unwrap(),
            is_in_use: true,
        };
        lines.record(&tenant(), month.parse().unwrap(), None, through)
    }

    fn hours_of(summary: &MonthlyUsage) -> Vec<(UsageResource, &str)> {
        let hours = summary.hours.iter();
        hours.map(|of| (of.resource, of.hours.as_str())).collect()
    }

    #[test]
    fn a_summary_has_the_sums_of_all_lines_and_days() {
        let of_others = LineKey {
            project_name: None,
            ..gpus()
        };
        let cpu = LineKey::new(UsageResource::Cpu);
        let record = record(
            "2026-11",
            &[
                (gpus(), 0, 8 * 3600),
                (gpus(), 2, 3600),
                (of_others, 0, 180),
                (cpu, 1, 500 * 3600),
            ],
        );
        let summary = summarize(&record);
        assert_eq!(
            hours_of(&summary),
            [(UsageResource::Gpu, "9.1"), (UsageResource::Cpu, "0.5")]
        );
        assert_eq!(summary.hours[0].hours, record.spec.gpu_hours);
        assert_eq!((summary.month.as_str(), summary.in_use), ("2026-11", true));
        assert_eq!(summary.metered_through, record.spec.metered_through);
    }

    #[test]
    fn a_record_of_a_summary_has_the_same_summary() {
        let storage = LineKey::new(UsageResource::Storage);
        let control_plane = LineKey::new(UsageResource::ControlPlane);
        let amounts = [
            (gpus(), 3, 12_345),
            (storage, 7, 1024 * 3600 * 7),
            (control_plane, 0, 86_400),
        ];
        let summary = summarize(&record("2026-02", &amounts));
        let made = record_of_summary(&tenant(), &summary).unwrap();
        assert_eq!(summarize(&made), summary);
        assert_eq!(made.spec.tenant, tenant());
        assert!(made.spec.lines.iter().all(|line| line.daily.len() == 1));
    }

    #[test]
    fn a_summary_is_the_same_when_it_was_stored_and_read() {
        let mut record = record("2026-11", &[(gpus(), 0, 3600)]);
        // Somebody has edited it.
        record.spec.metered_through = Time("2026-11-02T00:00:00.75Z".parse::<Timestamp>().unwrap());
        let summary = summarize(&record);
        let stored = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<MonthlyUsage>(&stored).unwrap(), summary);
    }

    #[test]
    fn what_cannot_be_read_of_a_summary_is_left_out() {
        let mut summary = summarize(&record("2026-11", &[(gpus(), 0, 3600)]));
        summary.hours[0].hours = "many".into();
        assert!(record_of_summary(&tenant(), &summary).unwrap().spec.lines.is_empty());
        summary.month = "November".into();
        assert!(record_of_summary(&tenant(), &summary).is_none());
    }

    #[test]
    fn a_tenant_has_the_summaries_of_two_months_and_no_older_ones() {
        let mut summaries = Summaries::default();
        let months = |summaries: &Summaries, month: &str| -> Vec<String> {
            let found = summaries.of_two_months(month.parse().unwrap());
            found.into_iter().map(|summary| summary.month).collect()
        };
        for month in ["2026-12", "2026-10", "2026-11"] {
            summaries.store(&record(month, &[]));
        }
        assert_eq!(months(&summaries, "2026-12"), ["2026-12", "2026-11"]);
        assert_eq!(months(&summaries, "2027-01"), ["2026-12"]);
        assert!(months(&summaries, "2027-02").is_empty());
        // A clock that was ahead.
        assert_eq!(months(&summaries, "2026-11"), ["2026-11"]);
        summaries.store(&record("2026-12", &[(gpus(), 0, 3600)]));
        let latest = &summaries.of_two_months("2026-12".parse().unwrap())[0];
        assert_eq!(hours_of(latest), [(UsageResource::Gpu, "1.0")]);
    }
}
