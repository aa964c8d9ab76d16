//! How long tenants of a class exist. Part of a [`TenantClass`](crate::TenantClass).

use crate::KubeDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long tenants of a class exist: what applies to a tenant that sets nothing, and what a tenant may set at most.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.defaultTTL) || duration(self.defaultTTL) >= duration('1m')")
    .message("must be at least 1m; leave it out for no limit")
    .field_path(".defaultTTL"))]
#[x_kube(validation = Rule::new("!has(self.maxTTL) || duration(self.maxTTL) >= duration('1m')")
    .message("must be at least 1m; leave it out for no limit")
    .field_path(".maxTTL"))]
#[x_kube(validation = Rule::new("!has(self.defaultExpireAfterIdle) || duration(self.defaultExpireAfterIdle) >= duration('1m')")
    .message("must be at least 1m; leave it out for no limit")
    .field_path(".defaultExpireAfterIdle"))]
#[x_kube(validation = Rule::new("!has(self.maxExpireAfterIdle) || duration(self.maxExpireAfterIdle) >= duration('1m')")
    .message("must be at least 1m; leave it out for no limit")
    .field_path(".maxExpireAfterIdle"))]
pub struct ExpirationPolicy {
    /// `spec.ttl` of tenants that do not set it. Defaults to `maxTTL`.
    #[serde(default, rename = "defaultTTL", skip_serializing_if = "Option::is_none")]
    pub default_ttl: Option<KubeDuration>,
    /// How long a tenant may exist at most, whatever its `spec.ttl` says. It holds for existing tenants, too, after
    /// `enforcementGracePeriod`. Absent: no limit.
    #[serde(default, rename = "maxTTL", skip_serializing_if = "Option::is_none")]
    pub max_ttl: Option<KubeDuration>,
    /// `spec.expireAfterIdle` of tenants that do not set it. Defaults to `maxExpireAfterIdle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_expire_after_idle: Option<KubeDuration>,
    /// How long a tenant may have no pods at most, whatever its `spec.expireAfterIdle` says. It holds for existing tenants, too,
    /// after `enforcementGracePeriod`. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_expire_after_idle: Option<KubeDuration>,
}

/// How long a tenant may exist and have no pods, as control saw it last. Part of the status of a
/// [`TenantCluster`](crate::TenantCluster).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpirationLimits {
    /// How long it may exist.
    #[serde(default, rename = "ttl", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<ExpirationLimit>,
    /// How long it may have no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<ExpirationLimit>,
}

/// A time that a tenant has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpirationLimit {
    /// The time.
    pub limit: KubeDuration,
    /// What it was before the platform reduced it, as long as the grace period of the class lasts. Absent: it was not reduced, or there
    /// was no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_limit: Option<KubeDuration>,
    /// When control first saw that the platform had reduced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced_at: Option<Time>,
}

impl ExpirationPolicy {
    /// Seconds that a tenant exists which asks for `requested`; none: without end.
    pub fn ttl_seconds(&self, requested: Option<&KubeDuration>) -> Option<i64> {
        limit(requested, self.default_ttl.as_ref(), self.max_ttl.as_ref())
    }

    /// Seconds without pods after which a tenant ends which asks for `requested`; none: it may have none without end.
    pub fn idle_seconds(&self, requested: Option<&KubeDuration>) -> Option<i64> {
        limit(
            requested,
            self.default_expire_after_idle.as_ref(),
            self.max_expire_after_idle.as_ref(),
        )
    }

    /// The field of a default that is greater than its maximum, with the field of the maximum.
    pub fn find_contradiction(&self) -> Option<(&'static str, &'static str)> {
        if exceeds(self.default_ttl.as_ref(), self.max_ttl.as_ref()) {
            return Some(("defaultTTL", "maxTTL"));
        }
        let (default, max) = (&self.default_expire_after_idle, &self.max_expire_after_idle);
        exceeds(default.as_ref(), max.as_ref()).then_some(("defaultExpireAfterIdle", "maxExpireAfterIdle"))
    }
}

fn exceeds(default: Option<&KubeDuration>, max: Option<&KubeDuration>) -> bool {
    let pair = default.zip(max);
    pair.is_some_and(|(default, max)| default.seconds() > max.seconds())
}

/// A duration of zero, or one that cannot be read, is none: it must not delete every tenant of a class at once.
fn limit(requested: Option<&KubeDuration>, default: Option<&KubeDuration>, max: Option<&KubeDuration>) -> Option<i64> {
    let wanted = requested.or(default).map(KubeDuration::seconds);
    let max = max.map(KubeDuration::seconds);
    let all = wanted.into_iter().chain(max);
    all.filter(|seconds| *seconds > 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(default: Option<&str>, max: Option<&str>) -> ExpirationPolicy {
        ExpirationPolicy {
            default_ttl: default.map(KubeDuration::from),
            max_ttl: max.map(KubeDuration::from),
            default_expire_after_idle: default.map(KubeDuration::from),
            max_expire_after_idle: max.map(KubeDuration::from),
        }
    }

    #[test]
    fn a_tenant_gets_what_it_asks_for_or_the_default_up_to_the_maximum() {
        for (requested, default, max, seconds) in [
            (None, None, None, None),
            (Some("2h"), None, None, Some(7200)),
            (None, Some("1h"), None, Some(3600)),
            (Some("2h"), Some("1h"), None, Some(7200)),
            (Some("2h"), None, Some("30m"), Some(1800)),
            (None, None, Some("30m"), Some(1800)),
            (Some("10m"), Some("1h"), Some("30m"), Some(600)),
            // No limit, and no end of all tenants.
            (None, None, Some("0s"), None),
            (None, Some("0s"), None, None),
            (Some("2h"), None, Some("x"), Some(7200)),
        ] {
            let policy = policy(default, max);
            let requested = requested.map(KubeDuration::from);
            assert_eq!(policy.ttl_seconds(requested.as_ref()), seconds, "{policy:?}");
            assert_eq!(policy.idle_seconds(requested.as_ref()), seconds, "{policy:?}");
        }
    }

    #[test]
    fn a_default_above_the_maximum_is_found() {
        assert_eq!(policy(Some("1h"), Some("1h")).find_contradiction(), None);
        assert_eq!(
            policy(Some("2h"), Some("1h")).find_contradiction(),
            Some(("defaultTTL", "maxTTL"))
        );
        let idle = ExpirationPolicy {
            default_ttl: None,
            ..policy(Some("2h"), Some("1h"))
        };
        assert_eq!(
            idle.find_contradiction(),
            Some(("defaultExpireAfterIdle", "maxExpireAfterIdle"))
        );
    }
}
