//! How much one object of a tenant may hold: many entries in one object cost components that all tenants share as much as many
//! objects.
//!
//! The host's admission policies enforce the same tables. Each limit has two numbers. Translation checks what the tenant wrote by
//! [`SizeLimit::in_tenant`]. It checks what becomes of it by [`SizeLimit::on_host`], as the admission policies do. The second is
//! higher, because Berth adds entries, and so do webhooks of the host. No reasonable workload reaches either.

mod bytes;
mod devices;
mod network;
mod object;
mod pod;
#[cfg(test)]
mod tests;

pub use bytes::{
    MAX_ADDED_POD_BYTES, MAX_NAMESPACE_LABELS, MAX_POD_SECRET_BYTES, MAX_POD_SPEC_BYTES, MAX_SERVICE_VARIABLE_BYTES,
    check_pod_bytes, count_bytes,
};
pub use devices::{RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, compilation_requests};
pub use network::{MOST_EXCEPTED, MOST_PEERS, NETWORK_POLICY_RULES, NETWORK_POLICY_SELECTOR, SERVICE, SERVICE_PORTS};
pub use object::{MAX_OBJECT_BYTES, MAX_OBJECT_LABELS, check_object};
pub use pod::{MOST_EPHEMERAL_CONTAINERS, MOST_NODE_FIELDS, MOST_NODE_TERMS, MOST_TOLERATIONS, POD, RUNNING_POD};

use super::fields::FieldIssues;
use crate::model::json;
use serde_json::Value;

/// A limit of entries in one object.
#[derive(Clone, Copy, Debug)]
pub struct SizeLimit {
    /// The field, or the fields, in messages.
    pub field: &'static str,
    /// What is counted.
    pub measure: Measure,
    /// Most in the tenant's object.
    pub in_tenant: usize,
    /// Most in the host's object.
    pub on_host: usize,
    /// What more would cost, as the end of a sentence.
    pub why: &'static str,
}

/// What a [`SizeLimit`] counts. Paths are those of [`json::each`]. The last step names what is counted: `[]` stands for the items of a
/// list, `{}` for the entries of a map, and `?` for an object that may be there.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// All `entries` below all `parents`.
    Total {
        /// Paths of objects.
        parents: &'static [&'static str],
        /// Paths within each of them.
        entries: &'static [&'static str],
    },
    /// The sum over objects of the product of two lists in each. An empty list counts as one entry.
    Products(&'static [(&'static str, [&'static str; 2])]),
}

impl Measure {
    /// How many there are in an object.
    pub fn count(&self, object: &Value) -> usize {
        let mut total: usize = 0;
        match self {
            Self::Total { parents, entries } => {
                for parent in *parents {
                    json::each(object, parent, &mut |parent| {
                        total += entries.iter().map(|path| count_entries(parent, path)).sum::<usize>();
                    });
                }
            }
            Self::Products(products) => {
                for (parent, factors) in *products {
                    json::each(object, parent, &mut |parent| {
                        let [one, other] = factors.map(|path| count_entries(parent, path).max(1));
                        total = total.saturating_add(one.saturating_mul(other));
                    });
                }
            }
        }
        total
    }
}

/// The entries at a path.
fn count_entries(object: &Value, path: &str) -> usize {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    let field = last.trim_end_matches("[]").trim_end_matches("{}");
    let mut total = 0;
    json::each(object, parent, &mut |parent| {
        if let Some(field) = last.strip_suffix('?') {
            total += usize::from(parent.get(field).is_some_and(|value| !value.is_null()));
            return;
        }
        total += match parent.get(field) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(entries)) => entries.len(),
            _ => 0,
        };
    });
    total
}

/// Denies what is beyond the limits in the tenant's object, or in the host's that it becomes.
pub fn check(limits: &[SizeLimit], tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        check_limit(limit, tenant, host, issues);
    }
}

/// The same for an object that is on the host as `live`, or null. What it holds there may stay: it may be older than these limits.
pub fn check_growth(limits: &[SizeLimit], live: &Value, tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        if limit.measure.count(live) < limit.measure.count(host) {
            check_limit(limit, tenant, host, issues);
        }
    }
}

/// Denies what is beyond the limits of the host.
pub fn check_on_host(limits: &[SizeLimit], host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        check_limit_on_host(limit, host, issues);
    }
}

fn check_limit(limit: &SizeLimit, tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    let SizeLimit {
        field,
        measure,
        in_tenant,
        on_host: _,
        why,
    } = limit;
    let written = measure.count(tenant);
    if written > *in_tenant {
        let why = format!("there are {written}, and one object may have at most {in_tenant}: {why}");
        issues.deny(*field, why);
    } else {
        check_limit_on_host(limit, host, issues);
    }
}

fn check_limit_on_host(limit: &SizeLimit, host: &Value, issues: &mut FieldIssues) {
    let SizeLimit {
        field,
        measure,
        in_tenant: _,
        on_host,
        why,
    } = limit;
    let translated = measure.count(host);
    if translated > *on_host {
        let why =
            format!("this becomes {translated} on the host, and one object may have at most {on_host} there: {why}");
        issues.deny(*field, why);
    }
}

/// Limits of a PodDisruptionBudget. All budgets of a tenant are in one namespace of the host, whose disruption controller compares every pod
/// that changes there with each of them, in one thread for all tenants: about 2 µs for each entry. This limit and the number of budgets in
/// `limits.podDisruptionBudgets` of a class bound what all of them take, by default to 2 ms. The host enforces both, so this holds for a stolen
/// syncer credential too. A limit of the sum would let a tenant have more budgets that are small. But no quota of the host counts a sum:
/// syncers alone could enforce it, and would have to decide again which budgets stay whenever one changes. Fewer budgets also mean fewer
/// writes of their status. On the host there is room for the two labels that Berth adds, and for nothing else.
///
/// Charts and operators use one to five entries. The most that we know is three and the names of the StatefulSets with data of one
/// Elasticsearch, in the budgets of its operator. With the longest keys and values that are valid, as many as the host takes have less than
/// 5 KiB, which that controller writes each time it counts: bytes need no limit of their own.
pub const DISRUPTION_BUDGET: &[SizeLimit] = &[SizeLimit {
    field: "spec.selector",
    measure: Measure::Total {
        parents: &["spec.selector"],
        entries: &["matchLabels{}", "matchExpressions[]", "matchExpressions[].values[]"],
    },
    in_tenant: 10,
    on_host: 12,
    why: "a controller of the host, which all tenants share, compares each with every pod that changes, and again at each eviction. Select the pods by a label of their own",
}];
