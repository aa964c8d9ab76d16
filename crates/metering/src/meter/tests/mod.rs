//! What is counted, and which records are written.

mod counting;
mod histories;
mod writing;

use super::Meter;
use crate::item::{Identity, Item, LineKey};
use berth_api::{NodeMode, UsageRecord, UsageResource, UsageTenant};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(super) fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

pub(super) fn tenant(uid: &str) -> UsageTenant {
    UsageTenant {
        namespace: "ai".into(),
        name: format!("tenant-{uid}"),
        uid: uid.into(),
        slug: format!("tenant-{uid}-aaaaaaaaaaaaa"),
    }
}

pub(super) fn identity(uid: &str, created: &str) -> Identity {
    Identity {
        tenant: tenant(uid),
        created: at(created),
    }
}

/// GPUs of a node of the pool h100.
pub(super) fn gpus(uid: &str, amount: i64, since: &str) -> Item {
    Item {
        tenant_uid: uid.into(),
        key: LineKey {
            pool_name: Some("h100".into()),
            gpu_product: Some("H100".into()),
            mode: Some(NodeMode::Private),
            ..LineKey::new(UsageResource::Gpu)
        },
        amount,
        since: Some(at(since)),
        until: None,
    }
}

/// Cores of pods, of which nothing shows since when they run.
pub(super) fn cpu(uid: &str, amount: i64) -> Item {
    Item {
        tenant_uid: uid.into(),
        key: LineKey::new(UsageResource::Cpu),
        amount,
        since: None,
        until: None,
    }
}

/// An API server that has records.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) records: BTreeMap<String, UsageRecord>,
    pub(super) writes: u64,
}

impl Server {
    /// Writes a record as control does. None if the API server refuses it because it has another one.
    pub(super) fn write(&mut self, record: &UsageRecord) -> Option<UsageRecord> {
        let name = record.metadata.name.clone().unwrap();
        let stored = self.records.get(&name);
        let version = stored.and_then(|stored| stored.metadata.resource_version.clone());
        if version != record.metadata.resource_version {
            return None;
        }
        if let Some(stored) = stored {
            assert!(
                stored.spec.metered_through <= record.spec.metered_through,
                "time goes back"
            );
        }
        self.writes += 1;
        let mut written = record.clone();
        written.metadata.resource_version = Some(self.writes.to_string());
        self.records.insert(name, written.clone());
        Some(written)
    }

    /// Writes what is due, until nothing is.
    pub(super) fn write_due(&mut self, meter: &mut Meter, now: Timestamp) -> usize {
        let mut count = 0;
        for _ in 0..100 {
            let due = meter.due(now);
            if due.is_empty() {
                return count;
            }
            count += due.len();
            self.write_all(meter, &due);
        }
        panic!("something stays due");
    }

    /// Writes everything that is not stored, once.
    pub(super) fn write_unsaved(&mut self, meter: &mut Meter) {
        let records = meter.unsaved();
        self.write_all(meter, &records);
    }

    pub(super) fn write_all(&mut self, meter: &mut Meter, records: &[UsageRecord]) {
        for record in records {
            let name = record.metadata.name.clone().unwrap();
            match self.write(record) {
                Some(written) => meter.stored(written),
                None => match self.records.get(&name) {
                    Some(stored) => meter.stored(stored.clone()),
                    None => meter.missing(record),
                },
            }
        }
    }

    /// A meter that begins with what is stored.
    pub(super) fn load(&self) -> Meter {
        let mut meter = Meter::default();
        for record in self.records.values().rev() {
            meter.load(record.clone());
        }
        meter
    }

    /// The amounts of a resource, by day of the month.
    pub(super) fn daily(&self, uid: &str, month: &str, resource: UsageResource) -> Vec<i64> {
        let Some(record) = self.records.get(&format!("tenant-{uid}-aaaaaaaaaaaaa-{month}")) else {
            return Vec::new();
        };
        let lines = record.spec.lines.iter().filter(|line| line.resource == resource);
        let mut sum: Vec<i64> = Vec::new();
        for line in lines {
            sum.resize(sum.len().max(line.daily.len()), 0);
            line.daily
                .iter()
                .enumerate()
                .for_each(|(day, amount)| sum[day] += amount);
        }
        sum
    }

    /// The amount of a resource of all months.
    pub(super) fn total(&self, resource: UsageResource) -> i64 {
        let lines = self.records.values().flat_map(|record| &record.spec.lines);
        let lines = lines.filter(|line| line.resource == resource);
        lines.flat_map(|line| &line.daily).sum()
    }
}
