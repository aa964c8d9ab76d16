//! The metrics of users. Their status is in that of the Project, which the controller of quotas writes.

use crate::{
    metrics::{Metrics, UserLabels, UserQuotaLabels},
    user_quota_ledger::ProjectUsers,
};
use std::collections::BTreeMap;

/// Sets what the listed users of each Project have.
pub(super) fn set_metrics(metrics: &Metrics, projects: &BTreeMap<String, ProjectUsers>) {
    let gauge = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let (mut waiting, mut limits, mut used) = (Vec::new(), Vec::new(), Vec::new());
    for (project, ProjectUsers { users, not_listed: _ }) in projects {
        for status in users {
            let labels = UserLabels {
                project: project.clone(),
                user: status.user.clone(),
            };
            waiting.push((labels, status.waiting_pods.into()));
            for resource in &status.resources {
                let labels = UserQuotaLabels {
                    project: project.clone(),
                    user: status.user.clone(),
                    resource: resource.resource.clone(),
                };
                limits.push((labels.clone(), gauge(resource.limit)));
                used.push((labels, gauge(resource.used)));
            }
        }
    }
    metrics.user_waiting_pods.set_all(waiting);
    metrics.user_quota_limit.set_all(limits);
    metrics.user_quota_used.set_all(used);
}
