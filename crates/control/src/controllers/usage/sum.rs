//! Sums up what tenants use: what begins and ends at the same time and belongs to the same line is one item.

use super::memory::Facts;
use berth_api::{HostNodePool, NodeMode, UsageResource};
use berth_metering::{Item, LineKey};
use jiff::Timestamp;
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// What tenants use.
pub(super) struct Sum<'a> {
    tenants: &'a HashMap<String, Facts>,
    amounts: BTreeMap<Entry<'a>, i64>,
}

/// What is one item.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry<'a> {
    slug: &'a str,
    resource: UsageResource,
    /// The pool, or the StorageClass.
    place: Option<Cow<'a, str>>,
    mode: Option<NodeMode>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// Which tenants were counted until when.
#[derive(Debug, Default)]
pub(super) struct CountedUntil {
    at: Option<Timestamp>,
    /// By UID.
    tenants: HashSet<String>,
}

impl CountedUntil {
    /// These tenants are counted until now. A clock that goes back changes nothing of what is counted already.
    pub(super) fn advance(&mut self, now: Timestamp, tenants: HashSet<String>) {
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.tenants = tenants;
    }

    /// The later of a time and the one until which the tenant is counted. For the meter both are the same, and things that began at different times are one
    /// item.
    fn raise(&self, tenant: &Facts, since: Timestamp) -> Timestamp {
        match self.at {
            Some(at) if self.tenants.contains(&tenant.tenant.uid) => since.max(at),
            _ => since,
        }
    }
}

impl<'a> Sum<'a> {
    pub(super) fn new(tenants: &'a HashMap<String, Facts>) -> Self {
        Self {
            tenants,
            amounts: BTreeMap::new(),
        }
    }

    /// Adds an amount that a tenant has on nodes of a pool since a time of its own. What is of tenants that nobody knows is left out.
    pub(super) fn add(
        &mut self,
        slug: &str,
        (resource, place, mode): (UsageResource, Option<Cow<'a, str>>, Option<NodeMode>),
        amount: i64,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
    ) {
        let is_empty = since.zip(until).is_some_and(|(since, until)| until <= since);
        let Some((slug, _)) = self.tenants.get_key_value(slug).filter(|_| amount > 0 && !is_empty) else {
            return;
        };
        let entry = Entry {
            slug,
            resource,
            place,
            mode,
            since,
            until,
        };
        let sum = self.amounts.entry(entry).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// The same of objects of which there are many: since when each has it does not matter if it is counted already.
    pub(super) fn add_one_of_many(
        &mut self,
        counted: &CountedUntil,
        slug: &str,
        key: (UsageResource, Option<Cow<'a, str>>, Option<NodeMode>),
        amount: i64,
        (since, until): (Timestamp, Option<Timestamp>),
    ) {
        if let Some(tenant) = self.tenants.get(slug) {
            self.add(slug, key, amount, Some(counted.raise(tenant, since)), until);
        }
    }

    /// All of it.
    pub(super) fn items(self, pools: &HashMap<String, Arc<HostNodePool>>) -> Vec<Item> {
        let Self { tenants, amounts } = self;
        let items = amounts.into_iter().filter_map(|(entry, amount)| {
            let tenant = tenants.get(entry.slug)?;
            let place = entry.place.map(Cow::into_owned);
            let is_storage = entry.resource == UsageResource::Storage;
            let has_product = matches!(entry.resource, UsageResource::Gpu | UsageResource::Node);
            let pool = place.as_ref().filter(|_| has_product).and_then(|pool| pools.get(pool));
            let key = LineKey {
                gpu_product: pool.and_then(|pool| pool.spec.gpu_product.clone()),
                pool_name: place.clone().filter(|_| !is_storage),
                storage_class_name: place.filter(|_| is_storage),
                mode: entry.mode,
                class_name: tenant.place.class.clone(),
                project_name: tenant.place.project.clone(),
                organization_name: tenant.place.organization.clone(),
                ..LineKey::new(entry.resource)
            };
            Some(Item {
                tenant_uid: tenant.tenant.uid.clone(),
                key,
                amount,
                since: entry.since,
                until: entry.until,
            })
        });
        items.collect()
    }
}
