//! The order of rows in tables: who used most comes first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_api::UsageResource;
use berth_metering::{GroupBy, Row};

/// Amounts in the order of [`UsageResource::ALL`]: GPUs decide, and of as many GPUs the next resource.
type Used = [i128; UsageResource::ALL.len()];

/// The rows, those of the group that used most first, and in it those of the next group that used most. Days, months and resources keep their own
/// order.
pub(super) fn most_used_first<'a>(rows: &'a [Row], group_by: &[GroupBy]) -> Vec<&'a Row> {
    let mut used: BTreeMap<&[Option<String>], Used> = BTreeMap::new();
    for row in rows {
        for depth in 0..row.group.len() {
            let sums = used.entry(&row.group[..=depth]).or_default();
            for (sum, resource) in sums.iter_mut().zip(UsageResource::ALL) {
                *sum = sum.saturating_add(row.amounts.get(resource));
            }
        }
    }
    let mut ordered: Vec<&Row> = rows.iter().collect();
    ordered.sort_by_cached_key(|row| {
        let groups = group_by.iter().zip(&row.group).enumerate();
        let places = groups.map(|(depth, (by, name))| {
            let name = name.as_deref();
            let (used, position) = match by {
                GroupBy::Day | GroupBy::Month => (Used::default(), None),
                GroupBy::Resource => (Used::default(), position_of(name)),
                _ => (used.get(&row.group[..=depth]).copied().unwrap_or_default(), None),
            };
            (Reverse(used), position, name)
        });
        places.collect::<Vec<_>>()
    });
    ordered
}

/// The position of a resource in tables, by its name.
fn position_of(name: Option<&str>) -> Option<usize> {
    UsageResource::ALL
        .into_iter()
        .position(|resource| Some(resource.name()) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::UsageRecord;
    use berth_metering::{PriceBook, Query, report};
    use serde_json::json;

    /// GPU-seconds and CPU by tenant, pool and day.
    const USED: [(&str, &str, &str, [i64; 2]); 6] = [
        ("a", "GPU", "h100", [1, 1]),
        ("a", "GPU", "l40s", [2, 2]),
        ("b", "GPU", "h100", [9, 0]),
        ("c", "CPU", "cpu", [7, 7]),
        ("d", "CPU", "cpu", [9, 9]),
        ("e", "CPU", "cpu", [7, 7]),
    ];

    fn records() -> Vec<UsageRecord> {
        let record = |(name, resource, pool, daily): (&str, &str, &str, [i64; 2])| {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "UsageRecord", "metadata": {"name": name},
                "spec": {
                    "month": "2026-11", "tenant": {"namespace": "team", "name": name, "uid": name, "slug": name},
                    "meteredThrough": "2026-12-01T00:00:00Z", "gpuHours": "0.0",
                    "lines": [{"resource": resource, "poolName": pool, "daily": daily}],
                },
            }))
            .unwrap()
        };
        USED.map(record).into()
    }

    fn ordered(group_by: &[GroupBy]) -> Vec<String> {
        let query = Query {
            from: "2026-11-01".parse().unwrap(),
            to: "2026-11-30".parse().unwrap(),
            namespace: None,
            tenants: Vec::new(),
            group_by: group_by.to_vec(),
        };
        let report = report(&records(), &PriceBook::default(), &query);
        let rows = most_used_first(&report.rows, group_by);
        assert_eq!(rows.len(), report.rows.len());
        let group = |row: &&Row| row.group.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        rows.iter().map(group).collect()
    }

    #[test]
    fn who_used_most_gpus_is_first_and_then_who_used_most_of_the_rest() {
        assert_eq!(
            ordered(&[GroupBy::Tenant]),
            ["team/b", "team/a", "team/d", "team/c", "team/e"]
        );
        assert_eq!(ordered(&[GroupBy::Pool]), ["h100", "l40s", "cpu"]);
        assert_eq!(ordered(&[]), [""]);
    }

    #[test]
    fn rows_of_a_group_stay_together() {
        assert_eq!(
            ordered(&[GroupBy::Pool, GroupBy::Tenant]),
            [
                "h100 team/b",
                "h100 team/a",
                "l40s team/a",
                "cpu team/d",
                "cpu team/c",
                "cpu team/e"
            ]
        );
    }

    #[test]
    fn days_and_resources_have_their_own_order() {
        assert_eq!(
            ordered(&[GroupBy::Day, GroupBy::Pool]),
            [
                "2026-11-01 h100",
                "2026-11-01 l40s",
                "2026-11-01 cpu",
                "2026-11-02 l40s",
                "2026-11-02 h100",
                "2026-11-02 cpu"
            ]
        );
        assert_eq!(ordered(&[GroupBy::Resource]), ["GPU", "CPU"]);
    }
}
