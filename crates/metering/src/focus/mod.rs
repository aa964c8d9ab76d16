//! Usage and costs as rows of FOCUS, the FinOps Open Cost and Usage Specification (<https://focus.finops.org>).
//!
//! The rows have all columns that version 1.3 of the dataset Cost and Usage makes mandatory, those recommended and conditional ones that apply,
//! and the columns that 1.3 has renamed (`ProviderName`, `PublisherName`), which are mandatory in 1.2. A row is what one line of a `UsageRecord`
//! has for one day, priced in one currency.

#[cfg(test)]
mod conformance_tests;
mod service;
#[cfg(test)]
mod tests;

use crate::{
    amounts::{Amounts, hours},
    calendar::start_of,
    item::LineKey,
    price::{PriceBook, Priced},
    report::{Query, RecordInScope, in_scope},
};
use berth_api::{UsageRecord, labels};
use jiff::{Timestamp, civil::Date};
use serde_json::{Map, Value};

/// The version of FOCUS.
pub const VERSION: &str = "1.3";

/// Decimals of quantities and costs, at most.
const DECIMALS: u32 = 10;

/// The columns, in the order of the alphabet, as FOCUS wants them. What it does not define begins with `x_` and is at the end.
pub const COLUMNS: [&str; 40] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_RateCard",
];

/// Values of [`COLUMNS`]. An empty one is null.
pub type FocusRow = [String; COLUMNS.len()];

/// Usage and costs in the form of FOCUS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Focus {
    /// The rows: by record, line and day.
    pub rows: Vec<FocusRow>,
    /// What was used and has no row, as no RateCard has a price for it. Nodes are left out if their GPUs have a price, and GPUs if their nodes have
    /// one.
    pub unpriced: Amounts,
    /// What was used and has no row in some currency, as RateCards are wrong. It is not in `unpriced`.
    pub unclear: Amounts,
}

/// The rows of the usage that a query is about, whatever its groups. `provider` is the name of the platform team or its company.
///
/// Usage that has prices in several currencies has a row in each. For one row, make the book of the RateCards of one currency.
pub fn focus<'a>(
    records: impl IntoIterator<Item = &'a UsageRecord>,
    prices: &PriceBook,
    query: &Query,
    provider: &str,
) -> Focus {
    let mut focus = Focus::default();
    // What pools had is no charge.
    for record in records.into_iter().filter(|record| !record.spec.tenant.is_pool()) {
        let Some(record) = in_scope(record, query) else {
            continue;
        };
        let lines = record.lines();
        for (key, days) in lines.iter() {
            for (day, amount) in days {
                let priced = prices.price(key, *day, *amount);
                if prices.is_unclear(key, *day) {
                    focus.unclear.add(key.resource, i128::from(*amount));
                } else if priced.is_empty() && !lines.is_priced_otherwise(key, *day, prices) {
                    focus.unpriced.add(key.resource, i128::from(*amount));
                }
                let charge = Charge {
                    record: &record,
                    key,
                    day: *day,
                    quantity: without_zeros(hours(key.resource, i128::from(*amount), DECIMALS)),
                };
                focus
                    .rows
                    .extend(priced.iter().map(|priced| charge.row(priced, provider)));
            }
        }
    }
    focus
}

/// What a line has for one day.
struct Charge<'a> {
    record: &'a RecordInScope<'a>,
    key: &'a LineKey,
    day: Date,
    /// Hours.
    quantity: String,
}

impl Charge<'_> {
    fn row(&self, priced: &Priced<'_>, provider: &str) -> FocusRow {
        let (key, tenant, month) = (self.key, self.record.tenant(), self.record.month());
        let resource = key.resource;
        let cost = || without_zeros(priced.cost.format(DECIMALS));
        let unit = || service::unit(resource).to_owned();
        let (account_type, account) = self.account();
        let (category, subcategory) = service::category(resource);
        let provider = || provider.to_owned();
        [
            cost(),
            format!("{account_type}/{account}"),
            account.into(),
            account_type.into(),
            priced.currency.into(),
            month.end().to_string(),
            month.start().to_string(),
            "Usage".into(),
            String::new(),
            self.description(priced),
            "Usage-Based".into(),
            self.day.tomorrow().map_or(Timestamp::MAX, start_of).to_string(),
            start_of(self.day).to_string(),
            self.quantity.clone(),
            unit(),
            cost(),
            priced.price.to_string(),
            cost(),
            provider(),
            provider(),
            without_zeros(priced.list_cost.format(DECIMALS)),
            priced.list_price.to_string(),
            // A price list is agreed beforehand, also one for some.
            "Standard".into(),
            self.quantity.clone(),
            unit(),
            provider(),
            provider(),
            category.into(),
            service::name(resource).into(),
            provider(),
            subcategory.into(),
            sku(key),
            resource.name().into(),
            price_details(key),
            sku(key),
            tenant.uid.clone(),
            format!("{}/{}", tenant.namespace, tenant.name),
            "TenantCluster".into(),
            self.tags(),
            priced.card.into(),
        ]
    }

    /// Who pays: the Organization, or else the Project, or else the namespace. Kind and name.
    fn account(&self) -> (&str, &str) {
        if let Some(organization) = &self.key.organization_name {
            ("Organization", organization)
        } else if let Some(project) = &self.key.project_name {
            ("Project", project)
        } else {
            ("Namespace", &self.record.tenant().namespace)
        }
    }

    fn description(&self, priced: &Priced<'_>) -> String {
        let of = sku_parts(self.key).skip(1).collect::<Vec<_>>().join(", ");
        let of = if of.is_empty() { of } else { format!(" ({of})") };
        format!(
            "{}{of}: {} {} at {} {}",
            self.key.resource.name(),
            self.quantity,
            service::unit(self.key.resource),
            priced.price,
            priced.currency,
        )
    }

    /// What the tenant belongs to, under keys of Berth.
    fn tags(&self) -> String {
        let (tenant, key) = (self.record.tenant(), self.key);
        let own = |name: &str| format!("{}{name}", labels::RESERVED_PREFIX);
        object([
            (labels::TENANT_NAMESPACE.to_owned(), Some(&tenant.namespace)),
            (labels::TENANT_NAME.to_owned(), Some(&tenant.name)),
            (labels::CLASS.to_owned(), key.class_name.as_ref()),
            (own("project"), key.project_name.as_ref()),
            (own("organization"), key.organization_name.as_ref()),
        ])
    }
}

/// What is priced, without its price: the resource and what it was used of.
fn sku(key: &LineKey) -> String {
    sku_parts(key).collect::<Vec<_>>().join("/")
}

fn sku_parts(key: &LineKey) -> impl Iterator<Item = String> {
    let parts = [
        Some(key.resource.name().to_owned()),
        key.pool_name.clone(),
        key.gpu_product.clone(),
        key.mode.map(|mode| format!("{mode:?}")),
        key.storage_class_name.clone(),
    ];
    parts.into_iter().flatten()
}

/// What is priced. It is the same for everybody who uses it: the RateCard is not part of it. Keys that FOCUS does not define begin with `x_`.
fn price_details(key: &LineKey) -> String {
    let mode = key.mode.map(|mode| format!("{mode:?}"));
    object([
        ("StorageClass".to_owned(), key.storage_class_name.as_ref()),
        ("x_PoolName".to_owned(), key.pool_name.as_ref()),
        ("x_GpuProduct".to_owned(), key.gpu_product.as_ref()),
        ("x_NodeMode".to_owned(), mode.as_ref()),
    ])
}

/// A JSON object of the keys that have a value; null if none has one.
fn object<const N: usize>(fields: [(String, Option<&String>); N]) -> String {
    let present = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key, Value::from(value?.as_str()))));
    let object: Map<String, Value> = present.collect();
    if object.is_empty() {
        return String::new();
    }
    Value::Object(object).to_string()
}

/// A decimal number without zeros at its end.
fn without_zeros(number: String) -> String {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        number
    }
}
