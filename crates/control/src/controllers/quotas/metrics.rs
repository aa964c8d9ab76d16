//! The metrics of quotas: what each level and each tenant has reserved, and what it uses of that.

use super::{QuotasContext, report::Report};
use crate::metrics::{QuotaLabels, TenantQuotaLabels};
use berth_api::{Organization, Project};
use berth_quota::{Amounts, Key, LevelKind, QuotaUse};
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};
use tokio::time::Instant;

/// Sets the metrics of all levels before any status is written: writes take time, in which a scrape would miss levels.
pub(super) fn set_all_metrics(
    context: &QuotasContext,
    organizations: &[Arc<Organization>],
    projects: &[Arc<Project>],
    report: &Report<'_>,
) {
    let usage = &report.outcome.usage;
    let mut levels = LevelValues::default();
    levels.add((LevelKind::Root, ""), &usage.of_root());
    for organization in organizations {
        let name = organization.name_any();
        let level = (LevelKind::Organization, name.as_str());
        levels.add(level, &usage.of_organization(&name));
    }
    for project in projects {
        let name = project.name_any();
        let level = (LevelKind::Project, name.as_str());
        levels.add(level, &usage.of_project(&name));
    }
    // What is used is missing until it was measured.
    if report.measured.number == 0 {
        levels.used.clear();
    }
    let metrics = &context.metrics;
    metrics.quota_nominal.set_all(levels.nominal);
    metrics.quota_reserved.set_all(levels.reserved);
    metrics.quota_used.set_all(levels.used);
    metrics.quota_borrowed.set_all(levels.borrowed);
    if context.pace.begin_to_count_tenants(Instant::now()) {
        set_tenant_metrics(context, report);
    }
}

fn gauge(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// The values of all levels, by metric.
#[derive(Default)]
struct LevelValues {
    nominal: Vec<(QuotaLabels, i64)>,
    reserved: Vec<(QuotaLabels, i64)>,
    used: Vec<(QuotaLabels, i64)>,
    borrowed: Vec<(QuotaLabels, i64)>,
}

impl LevelValues {
    /// Adds what a level has.
    fn add(&mut self, (kind, name): (LevelKind, &str), quotas: &[QuotaUse]) {
        for quota in quotas {
            let labels = QuotaLabels {
                level: match kind {
                    LevelKind::Root => "root",
                    LevelKind::Organization => "organization",
                    LevelKind::Project => "project",
                },
                name: name.to_owned(),
                resource: quota.key.resource.as_str().to_owned(),
                pool: quota.key.pool.clone().unwrap_or_default(),
                product: quota.key.product.clone().unwrap_or_default(),
            };
            self.nominal.push((labels.clone(), gauge(quota.nominal)));
            self.reserved.push((labels.clone(), gauge(quota.reserved)));
            self.used.push((labels.clone(), gauge(quota.used)));
            // There is nothing above the root from which it could borrow.
            if kind != LevelKind::Root {
                self.borrowed.push((labels, gauge(quota.borrowed())));
            }
        }
    }
}

/// Sets what each tenant has and uses of what its Project or Organization limits.
fn set_tenant_metrics(context: &QuotasContext, report: &Report<'_>) {
    let metrics = &context.metrics;
    let (mut all_reserved, mut all_used) = (Vec::new(), Vec::new());
    let usage = &report.outcome.usage;
    let of_tenants = context.quotas.gpu_use();
    for claim in report.claims.values().flatten() {
        let Some((tenant_namespace, tenant)) = report.names.get(&claim.uid) else {
            continue;
        };
        let labels = |key: &Key| TenantQuotaLabels {
            tenant_namespace: tenant_namespace.clone(),
            tenant: tenant.clone(),
            resource: key.resource.as_str().to_owned(),
            pool: key.pool.clone().unwrap_or_default(),
        };
        let used = report.measured.tenants.get(&claim.uid);
        let amounts = |of: Option<&Amounts>| -> Vec<(Key, u64)> {
            let all = of.into_iter().flatten();
            all.map(|(resource, amount)| (Key::of(resource.clone()), *amount))
                .collect()
        };
        let gpus = |of: Option<&BTreeMap<String, u64>>| -> Vec<(Key, u64)> {
            let all = of.into_iter().flatten();
            all.map(|(pool, gpus)| (Key::gpus(pool), *gpus)).collect()
        };
        let reserved = [amounts(report.reserved(&claim.uid)), gpus(of_tenants.get(&claim.uid))].concat();
        let used = [
            amounts(used.map(|used| &used.amounts)),
            gpus(used.map(|used| &used.gpus)),
        ]
        .concat();
        for (values, known) in [(&mut all_reserved, reserved), (&mut all_used, used)] {
            let limited = { known.into_iter() }.filter(|(key, _)| usage.is_limited(&claim.project, key));
            values.extend(limited.map(|(key, amount)| (labels(&key), gauge(amount))));
        }
    }
    metrics.tenant_quota_reserved.set_all(all_reserved);
    metrics.tenant_quota_used.set_all(all_used);
}
