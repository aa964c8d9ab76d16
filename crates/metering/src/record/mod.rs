//! `UsageRecord`s: how they are made of what was counted, and how long they are kept.

#[cfg(test)]
mod tests;

use crate::{
    amounts::hours,
    calendar::{Month, second_of},
    item::LineKey,
};
use berth_api::{MAX_USAGE_LINES, UsageLine, UsageRecord, UsageRecordSpec, UsageResource, UsageTenant, labels};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::collections::BTreeMap;

/// Lines from which on further keys lose their class. A team that moves between pools and classes again and again would otherwise have a record that the
/// API server refuses. No price depends on the class.
const MOST_WITH_CLASS: usize = 384;
/// Lines from which on further keys lose the mode as well.
const MOST_WITH_MODE: usize = 448;
/// Lines from which on further keys get a line with nothing but their resource, one for each resource.
const MOST_KEYS: usize = MAX_USAGE_LINES - UsageResource::ALL.len();

/// Whether a record is older than it has to be kept: the month and that many whole months after it are over. With 0 no record is, as then
/// usage is not recorded.
pub fn is_expired(record: &UsageRecord, now: Timestamp, retention_months: u32) -> bool {
    let Ok(month) = record.spec.month.parse::<Month>() else {
        return false;
    };
    let age = i64::from(Month::of_timestamp(now).number()) - i64::from(month.number());
    retention_months > 0 && age > i64::from(retention_months)
}

/// Name of the record of a tenant and month. The slug has a hash of the tenant's UID.
pub(crate) fn name(tenant: &UsageTenant, month: Month) -> String {
    format!("{}-{month}", tenant.slug)
}

/// The metadata of a record that is not stored.
pub(crate) fn metadata(tenant: &UsageTenant, month: Month) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(tenant, month)),
        labels: Some(labels_of(tenant, month).into()),
        ..ObjectMeta::default()
    }
}

fn labels_of(tenant: &UsageTenant, month: Month) -> [(String, String); 2] {
    [
        (labels::USAGE_MONTH.into(), month.to_string()),
        (labels::USAGE_TENANT.into(), tenant.slug.clone()),
    ]
}

/// The month of a record, and up to when it is metered: never outside of that month. None if it has no month.
pub(crate) fn metered(record: &UsageRecord) -> Option<(Month, i64)> {
    let month: Month = record.spec.month.parse().ok()?;
    let (start, end) = (second_of(month.start()), second_of(month.end()));
    Some((month, second_of(record.spec.metered_through.0).clamp(start, end)))
}

/// Whether a line with this key has what belongs to other keys, because the record has too many lines: it has nothing but a resource.
pub(crate) fn is_merged(record: &UsageRecord, key: &LineKey) -> bool {
    record.spec.lines.len() > MOST_KEYS && *key == LineKey::new(key.resource)
}

/// A record that is being made.
#[derive(Debug, Default)]
pub(crate) struct Lines(BTreeMap<LineKey, Vec<i64>>);

impl Lines {
    /// The lines of a stored record.
    pub(crate) fn of(record: &UsageRecord) -> Self {
        let mut lines = Self::default();
        for line in &record.spec.lines {
            let daily = lines.0.entry(LineKey::of(line)).or_default();
            for (position, amount) in line.daily.iter().enumerate() {
                add_to_day(daily, position, *amount);
            }
        }
        lines
    }

    /// Adds an amount to a day, which is given by its position in the month, from 0.
    pub(crate) fn add(&mut self, key: &LineKey, position: usize, amount: i64) {
        if amount <= 0 {
            return;
        }
        let key = self.shorten(key);
        add_to_day(self.0.entry(key).or_default(), position, amount);
    }

    /// The key of the line to which something is added: the key itself, or in a record with many lines what is left of it. What prices depend on goes last.
    fn shorten(&self, key: &LineKey) -> LineKey {
        let has_room = |key: &LineKey, most: usize| self.0.len() < most || self.0.contains_key(key);
        let mut shortened = key.clone();
        if has_room(&shortened, MOST_WITH_CLASS) {
            return shortened;
        }
        shortened.class_name = None;
        if has_room(&shortened, MOST_WITH_MODE) {
            return shortened;
        }
        shortened.mode = None;
        if has_room(&shortened, MOST_KEYS) {
            return shortened;
        }
        LineKey::new(key.resource)
    }

    /// The record of a tenant and month, with the metadata of the stored one, if there is one.
    pub(crate) fn record(
        self,
        tenant: &UsageTenant,
        month: Month,
        stored: Option<&UsageRecord>,
        through: Through,
    ) -> UsageRecord {
        let lines: Vec<UsageLine> = self.0.into_iter().map(|(key, daily)| key.line(daily)).collect();
        let mut metadata = stored.map_or_else(|| metadata(tenant, month), |record| record.metadata.clone());
        metadata.managed_fields = None;
        metadata.labels.get_or_insert_default().extend(labels_of(tenant, month));
        UsageRecord {
            metadata,
            spec: UsageRecordSpec {
                month: month.to_string(),
                tenant: stored.map_or_else(|| tenant.clone(), |record| record.spec.tenant.clone()),
                metered_through: Time(through.at),
                in_use: through.is_in_use,
                gpu_hours: gpu_hours(&lines),
                lines,
            },
        }
    }
}

fn add_to_day(daily: &mut Vec<i64>, position: usize, amount: i64) {
    if daily.len() <= position {
        daily.resize(position + 1, 0);
    }
    daily[position] = daily[position].saturating_add(amount);
}

/// Up to when a record is metered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Through {
    /// The time.
    pub(crate) at: Timestamp,
    /// Whether something is used then.
    pub(crate) is_in_use: bool,
}

/// GPU-hours of all lines together, with one decimal.
fn gpu_hours(lines: &[UsageLine]) -> String {
    let gpus = lines.iter().filter(|line| line.resource == UsageResource::Gpu);
    let sum = gpus
        .flat_map(|line| &line.daily)
        .fold(0_i128, |sum, amount| sum.saturating_add(i128::from(*amount)));
    hours(UsageResource::Gpu, sum, 1)
}
