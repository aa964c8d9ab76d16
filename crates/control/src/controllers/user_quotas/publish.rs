//! The metrics of users. Their status is in that of the Project, which the controller of quotas writes.

use crate::{
    metrics::{Metrics, UserLabels, UserQuotaLabels},
    user_quota_ledger::ProjectUsers,
};
use std::collections::BTreeMap;

/// Sets what the listed users of each Project have.
pub(super) fn set_metrics(metrics: &Metrics, projects: &BTreeMap<String, ProjectUsers>) {
    let gauge = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    metrics.clear_user_quotas();
    for (project, ProjectUsers { users, not_listed: _ }) in projects {
        for status in users {
            let labels = UserLabels {
                project: project.clone(),
                user: status.user.clone(),
            };
            let waiting = metrics.user_waiting_pods.get_or_create(&labels);
            waiting.set(status.waiting_pods.into());
            for resource in &status.resources {
                let labels = UserQuotaLabels {
                    project: project.clone(),
                    user: status.user.clone(),
                    resource: resource.resource.clone(),
                };
                metrics
                    .user_quota_limit
                    .get_or_create(&labels)
                    .set(gauge(resource.limit));
                metrics.user_quota_used.get_or_create(&labels).set(gauge(resource.used));
            }
        }
    }
}
