//! Counts what tenants use, and says which records are to be written.

mod pending;
mod tenant;
#[cfg(test)]
mod tests;

use crate::{
    calendar::{Month, second_of, timestamp_of},
    item::{Identity, Item},
};
use berth_api::{MonthlyUsage, UsageRecord, UsageTenant};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use tenant::Tenant;

/// Counts what tenants use.
///
/// It begins with the stored records ([`Meter::load`]), so that what tenants had meanwhile is counted and nothing is counted twice. Then it
/// observes again and again ([`Meter::observe`]), and says which records are to be written ([`Meter::due`]). Each answer of the API server is
/// given back to it: [`Meter::stored`] or [`Meter::missing`].
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// By UID.
    tenants: BTreeMap<String, Tenant>,
}

/// What was strange in an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Usage that was not counted because it is more than 31 days ago.
    pub cut: Vec<Cut>,
    /// UIDs of items whose tenants do not exist and have no record: nothing was counted for them.
    pub unknown: BTreeSet<String>,
    /// By how many seconds the clock is behind what is counted already, at most. Until it has reached that, nothing is counted.
    pub clock_behind: i64,
}

/// Usage of a tenant that is too long ago to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The tenant.
    pub tenant: UsageTenant,
    /// When the usage began.
    pub from: Timestamp,
    /// When the usage begins that is counted.
    pub counted_from: Timestamp,
}

impl Meter {
    /// Takes a stored record, at the start, before anything is observed. The order of the records does not matter. Of each tenant the latest
    /// is kept: what is before its end is counted already.
    pub fn load(&mut self, record: UsageRecord) {
        let uid = record.spec.tenant.uid.clone();
        if let Some(tenant) = self.tenants.get_mut(&uid) {
            tenant.store(record);
        } else if let Some(tenant) = Tenant::of_record(record) {
            self.tenants.insert(uid, tenant);
        }
    }

    /// Counts what all tenants use, from the last observation up to now. `identities` are all tenants that exist, `items` all that they use.
    /// What tenants used that do not exist any more is counted as well, if they have a record or were observed before.
    pub fn observe(&mut self, now: Timestamp, identities: &[Identity], items: &[Item]) -> Observed {
        let mut observed = Observed::default();
        for tenant in self.tenants.values_mut() {
            tenant.exists = false;
        }
        for identity in identities {
            let uid = identity.tenant.uid.clone();
            let tenant = self.tenants.entry(uid).or_insert_with(|| Tenant::new(identity));
            tenant.exists = true;
        }
        let mut of_tenants: BTreeMap<&str, Vec<&Item>> = BTreeMap::new();
        for item in items {
            of_tenants.entry(&item.tenant_uid).or_default().push(item);
        }
        for (uid, tenant) in &mut self.tenants {
            let items = of_tenants.get(uid.as_str()).map(Vec::as_slice).unwrap_or_default();
            observed.clock_behind = observed.clock_behind.max(tenant.seconds_ahead(second_of(now)));
            observed.cut.extend(tenant.observe(now, items));
        }
        let unknown = of_tenants.keys().filter(|uid| !self.tenants.contains_key(**uid));
        observed.unknown = unknown.map(|uid| (*uid).to_owned()).collect();
        self.tenants
            .retain(|uid, tenant| tenant.exists || !tenant.is_stored() || of_tenants.contains_key(uid.as_str()));
        observed
    }

    /// The records that are to be written now, at most one of each tenant. One with a resource version replaces the stored record of that
    /// version, one without is created. Each tenant has its turn in every quarter of an hour in which it used something. Its record is written at
    /// once if it has lost a node, if it begins or ends to use something, and if the month is over.
    pub fn due(&self, now: Timestamp) -> Vec<UsageRecord> {
        self.tenants.values().filter_map(|tenant| tenant.due(now)).collect()
    }

    /// The records that are not stored as they should be, at most one of each tenant, also those that could wait.
    pub fn unsaved(&self) -> Vec<UsageRecord> {
        self.tenants.values().filter_map(Tenant::unsaved).collect()
    }

    /// Takes a record as the API server has it: its answer to a write, or what was read after it refused to write because somebody else had
    /// written. Of what was counted here, only what is after its end remains to be written.
    pub fn stored(&mut self, record: UsageRecord) {
        if let Some(tenant) = self.tenants.get_mut(&record.spec.tenant.uid) {
            tenant.store(record);
        }
    }

    /// A record could not be replaced because it does not exist any more. It is made again, with everything that was in it.
    pub fn missing(&mut self, record: &UsageRecord) {
        if let Some(tenant) = self.tenants.get_mut(&record.spec.tenant.uid) {
            tenant.forget_version(record);
        }
    }

    /// What the stored records say of this month and of the month before, by the UID of each tenant that exists; the later month first. It changes only
    /// with a record, and when a month begins. Tenants without a record are missing: there may be one that could not be read.
    pub fn summaries(&self, now: Timestamp) -> BTreeMap<&str, Vec<MonthlyUsage>> {
        let month = Month::of_timestamp(now);
        let recorded = { self.tenants.iter() }.filter(|(_, tenant)| tenant.exists && tenant.has_record());
        recorded
            .map(|(uid, tenant)| (uid.as_str(), tenant.summaries(month)))
            .collect()
    }

    /// Since when something was used that is counted and in no stored record. None if there is no such usage.
    pub fn unrecorded_since(&self) -> Option<Timestamp> {
        let first = self.tenants.values().filter_map(Tenant::unrecorded_since).min();
        first.map(timestamp_of)
    }
}
