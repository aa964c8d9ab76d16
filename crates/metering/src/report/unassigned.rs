//! What no tenant had of the nodes of pools.

use super::{
    Report, compile, name_of,
    scope::{Latest, Query, end_of, in_scope},
};
use crate::{
    calendar::{Month, day_of, start_of},
    item::LineKey,
    price::PriceBook,
    record::{Lines, Through, metered},
};
use berth_api::{UsageRecord, UsageResource};
use jiff::{Span, Timestamp, civil::Date};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes and GPUs of pools that no tenant had, and what they would cost by the prices for all: what the records of pools have, less what those of tenants have
/// of the same pool on the same day. Only of whole days of which everything is recorded, of all tenants and pools: the records end at different times, and what
/// a tenant used after its record ends would look as if nobody had it. [`Report::metered_through`] says which days these are.
/// What a tenant had is not subtracted where its record has lost the pool; [`Report::merged`] names such tenants. The tenants and the namespace of the query do not matter.
pub fn unassigned_report(records: &[UsageRecord], prices: &PriceBook, query: &Query) -> Report {
    let query = Query {
        namespace: None,
        tenants: Vec::new(),
        ..query.clone()
    };
    let mut latest = Latest::default();
    for record in records {
        latest.add(record, &query);
    }
    // The beginning of the first day that is not whole.
    let behind = latest.behind(&query).map(|behind| start_of(day_of(behind)));
    let merged = merged_tenants(records, &query);
    let records = records_of_unassigned(records, behind.unwrap_or(Timestamp::MAX));
    let mut report = compile(&records, prices, &query);
    report.merged = merged;
    if let Some(behind) = behind {
        report.metered_through = Some(behind);
        report.is_complete = false;
    }
    report
}

/// Tenants that had nodes of which their record does not say the pool, because it has too many lines.
fn merged_tenants(records: &[UsageRecord], query: &Query) -> BTreeSet<String> {
    let of_tenants = records.iter().filter(|record| !record.spec.tenant.is_pool());
    let merged = of_tenants
        .filter_map(|record| in_scope(record, query))
        .filter(|record| {
            let lines = record.lines();
            lines
                .iter()
                .any(|(key, days)| is_of_node(key.resource) && record.is_merged(key) && !days.is_empty())
        });
    merged.map(|record| name_of(record.tenant())).collect()
}

fn is_of_node(resource: UsageResource) -> bool {
    matches!(resource, UsageResource::Gpu | UsageResource::Node)
}

/// A day of a resource of a pool.
type Place<'a> = (&'a str, UsageResource, Date);

/// A record for each one of a pool, with what no tenant had on days that end by a time.
fn records_of_unassigned(records: &[UsageRecord], until: Timestamp) -> Vec<UsageRecord> {
    let mut used: BTreeMap<Place<'_>, i64> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.spec.tenant.is_pool()) {
        for_each_day(record, |place, amount| {
            let sum = used.entry(place).or_default();
            *sum = sum.saturating_add(amount);
        });
    }
    let mut all = Vec::new();
    for record in records.iter().filter(|record| record.spec.tenant.is_pool()) {
        let Some((month, _)) = metered(record) else { continue };
        let mut lines = Lines::default();
        for line in &record.spec.lines {
            let key = LineKey::of(line);
            let Some(pool) = line.pool_name.as_deref() else {
                continue;
            };
            for (position, (day, had)) in days_of(month, &line.daily).enumerate() {
                if end_of(day) > until {
                    continue;
                }
                // Another line of the pool may have the rest: its product has changed.
                let taken = used.get_mut(&(pool, line.resource, day)).map_or(0, |rest| {
                    let taken = had.min(*rest);
                    *rest -= taken;
                    taken
                });
                lines.add(&key, position, had - taken);
            }
        }
        let through = Through {
            at: record.spec.metered_through.0,
            is_in_use: record.spec.in_use,
        };
        all.push(lines.record(&record.spec.tenant, month, None, through));
    }
    all
}

/// The days of a month with the amounts of a line.
fn days_of(month: Month, daily: &[i64]) -> impl Iterator<Item = (Date, i64)> + '_ {
    let days = month.first_day().series(Span::new().days(1)).take(month.days());
    days.zip(daily.iter().copied())
}

/// Calls a function for each day on which a tenant had nodes of a pool, or their GPUs.
fn for_each_day<'a>(record: &'a UsageRecord, mut call: impl FnMut(Place<'a>, i64)) {
    let Some((month, _)) = metered(record) else { return };
    for line in &record.spec.lines {
        let Some(pool) = line.pool_name.as_deref().filter(|_| is_of_node(line.resource)) else {
            continue;
        };
        for (day, amount) in days_of(month, &line.daily) {
            call((pool, line.resource, day), amount.max(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{GroupBy, report};
    use berth_api::{MAX_USAGE_LINES, NodeMode, RateCard, UsageTenant};
    use jiff::civil::date;
    use serde_json::json;

    const DAY: i64 = 86_400;

    fn record(
        namespace: &str,
        name: &str,
        through: &str,
        in_use: bool,
        lines: &[(LineKey, usize, i64)],
    ) -> UsageRecord {
        let tenant = UsageTenant {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("{namespace}-{name}-{}", lines.len()),
            slug: format!("{name}-aaaaaaaaaaaaa"),
        };
        let mut made = Lines::default();
        for (key, position, amount) in lines {
            made.add(key, *position, *amount);
        }
        let through = Through {
            at: through.parse().unwrap(),
            is_in_use: in_use,
        };
        made.record(&tenant, "2026-11".parse().unwrap(), None, through)
    }

    fn key(resource: UsageResource, pool: &str, mode: Option<NodeMode>) -> LineKey {
        LineKey {
            pool_name: Some(pool.into()),
            gpu_product: Some("H100".into()),
            mode,
            ..LineKey::new(resource)
        }
    }

    fn gpus(pool: &str) -> LineKey {
        key(UsageResource::Gpu, pool, None)
    }

    fn gpus_of_tenant(pool: &str) -> LineKey {
        LineKey {
            project_name: Some("vision".into()),
            ..key(UsageResource::Gpu, pool, Some(NodeMode::Dynamic))
        }
    }

    fn query(group_by: &[GroupBy]) -> Query {
        Query {
            from: date(2026, 11, 1),
            to: date(2026, 11, 4),
            namespace: Some("elsewhere".into()),
            tenants: vec!["nobody".into()],
            group_by: group_by.to_vec(),
        }
    }

    fn by_day(records: &[UsageRecord]) -> Vec<(String, i128)> {
        let report = unassigned_report(records, &PriceBook::default(), &query(&[GroupBy::Pool, GroupBy::Day]));
        let rows = report.rows.iter();
        rows.map(|row| {
            let group: Vec<&str> = row.group.iter().flatten().map(String::as_str).collect();
            (group.join(" "), row.amounts.get(UsageResource::Gpu))
        })
        .collect()
    }

    #[test]
    fn what_all_tenants_leave_of_a_pool_is_counted() {
        let node = key(UsageResource::Node, "h100", None);
        let pool = record(
            "",
            "h100",
            "2026-11-05T00:00:00Z",
            true,
            &[
                (gpus("h100"), 0, 16 * DAY),
                (gpus("h100"), 1, 16 * DAY),
                (gpus("h100"), 2, 8 * DAY),
                (node, 0, 2 * DAY),
            ],
        );
        let other = record("", "l40s", "2026-11-05T00:00:00Z", true, &[(gpus("l40s"), 0, 4 * DAY)]);
        let vision = record(
            "team",
            "vision",
            "2026-11-05T00:00:00Z",
            true,
            &[
                (gpus_of_tenant("h100"), 0, 8 * DAY),
                (gpus_of_tenant("h100"), 1, 8 * DAY),
            ],
        );
        // It had something of a node that the pool lost while no control ran.
        let speech = record(
            "team",
            "speech",
            "2026-11-05T00:00:00Z",
            false,
            &[
                (gpus_of_tenant("h100"), 1, 8 * DAY),
                (gpus_of_tenant("h100"), 2, 9 * DAY),
                (LineKey::new(UsageResource::Cpu), 0, 500 * DAY),
            ],
        );
        let records = [pool, other, vision, speech];
        let expected = [("h100 2026-11-01", 8 * DAY), ("l40s 2026-11-01", 4 * DAY)];
        let expected = expected.map(|(group, amount)| (group.to_owned(), i128::from(amount)));
        assert_eq!(by_day(&records), expected);
        let all = unassigned_report(&records, &PriceBook::default(), &query(&[]));
        assert_eq!(all.total.amounts.get(UsageResource::Node), i128::from(2 * DAY));
        assert!(all.is_complete);
        // What pools have is usage of nobody.
        let used = report(
            &records,
            &PriceBook::default(),
            &Query {
                namespace: None,
                tenants: Vec::new(),
                ..query(&[])
            },
        );
        assert_eq!(used.total.amounts.get(UsageResource::Gpu), i128::from(33 * DAY));
    }

    #[test]
    fn only_days_count_of_which_everything_is_recorded() {
        let lines: Vec<_> = (0..4).map(|day| (gpus("h100"), day, 8 * DAY)).collect();
        let of_pool = |through| record("", "h100", through, true, &lines);
        let of_tenant = |through, in_use| {
            record(
                "team",
                "vision",
                through,
                in_use,
                &[(gpus_of_tenant("h100"), 0, 8 * DAY)],
            )
        };
        for (pool, tenant, in_use, days) in [
            ("2026-11-05T00:00:00Z", "2026-11-05T00:00:00Z", true, 3),
            ("2026-11-04T12:00:00Z", "2026-11-05T00:00:00Z", true, 2),
            ("2026-11-05T00:00:00Z", "2026-11-04T00:00:00Z", true, 2),
            // A tenant that may have nodes since then.
            ("2026-11-05T00:00:00Z", "2026-11-03T23:50:00Z", true, 1),
            ("2026-11-05T00:00:00Z", "2026-11-02T10:00:00Z", false, 3),
        ] {
            let records = [of_pool(pool), of_tenant(tenant, in_use)];
            assert_eq!(by_day(&records).len(), days, "{pool} {tenant}");
        }
        let report = unassigned_report(&[of_pool("2026-11-03T12:00:00Z")], &PriceBook::default(), &query(&[]));
        assert_eq!(report.metered_through, Some("2026-11-03T00:00:00Z".parse().unwrap()));
        assert!(!report.is_complete);
    }

    #[test]
    fn nodes_without_a_tenant_cost_what_they_cost_without_a_target_and_a_mode() {
        let card = |name: &str, spec| RateCard::new(name, serde_json::from_value(spec).unwrap());
        let rates = json!([
            {"resource": "GPU", "mode": "Dynamic", "price": "9"},
            {"resource": "GPU", "gpuProduct": "H100", "price": "2"},
        ]);
        let own = json!([{"rates": [{"resource": "GPU", "price": "1"}]}]);
        let prices = PriceBook::new(&[
            card("list", json!({"currency": "EUR", "prices": [{"rates": rates}]})),
            card(
                "vision",
                json!({"currency": "EUR", "targets": [{"kind": "Project", "name": "vision"}], "prices": own}),
            ),
        ]);
        let pool = record("", "h100", "2026-11-05T00:00:00Z", true, &[(gpus("h100"), 0, 3_600)]);
        let report = unassigned_report(&[pool], &prices, &query(&[GroupBy::Pool]));
        assert_eq!(report.rows[0].costs["EUR"].format(2), "2.00");
    }

    #[test]
    fn tenants_are_named_whose_records_do_not_say_of_which_pool_they_had_nodes() {
        let pool = record("", "h100", "2026-11-05T00:00:00Z", true, &[(gpus("h100"), 0, 8 * DAY)]);
        let of_tenant = |pools: usize| {
            let lines: Vec<_> = (0..pools)
                .map(|number| (gpus_of_tenant(&format!("pool-{number}")), 0, DAY))
                .collect();
            record("team", "vision", "2026-11-05T00:00:00Z", true, &lines)
        };
        let merged = |pools: usize| {
            let records = [pool.clone(), of_tenant(pools)];
            unassigned_report(&records, &PriceBook::default(), &query(&[])).merged
        };
        let most = MAX_USAGE_LINES - UsageResource::ALL.len();
        assert_eq!(merged(most), BTreeSet::new());
        assert_eq!(merged(most + 1), BTreeSet::from(["team/vision".to_owned()]));
    }

    #[test]
    fn a_pool_that_was_made_again_and_one_whose_product_changed_leave_nothing_out() {
        let other_product = LineKey {
            gpu_product: None,
            ..gpus("h100")
        };
        let first = record(
            "",
            "h100",
            "2026-11-05T00:00:00Z",
            false,
            &[(gpus("h100"), 0, 4 * DAY), (other_product, 0, 4 * DAY)],
        );
        let second = record("", "h100", "2026-11-05T00:00:00Z", true, &[(gpus("h100"), 0, 8 * DAY)]);
        let tenant = record(
            "team",
            "vision",
            "2026-11-05T00:00:00Z",
            true,
            &[(gpus_of_tenant("h100"), 0, 14 * DAY)],
        );
        let expected = [("h100 2026-11-01".to_owned(), i128::from(2 * DAY))];
        assert_eq!(by_day(&[first, second, tenant]), expected);
    }
}
