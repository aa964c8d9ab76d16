//! Which Kubernetes version a tenant has: the one that its spec names, or the one that was chosen for it before it ran first.

use crate::{KubernetesVersion, TenantClassSpec, TenantCluster, TenantClusterStatus};

impl TenantClusterStatus {
    /// The version that was started last, or is about to start; none if none was.
    pub fn started_version(&self) -> Option<&str> {
        self.upgrading_to.as_deref().or(self.version.as_deref())
    }
}

impl TenantCluster {
    /// The version that the tenant is to run: that of its spec, or else the one that was started last. None: the spec names none and nothing
    /// was started, so that its class decides ([`TenantClassSpec::version_of_new_tenants`]).
    pub fn requested_version(&self) -> Option<&str> {
        let started = self.status.as_ref().and_then(TenantClusterStatus::started_version);
        self.spec.version.as_deref().or(started)
    }

    /// The version that the tenant has, for people: the one that runs, or else the requested one.
    pub fn shown_version(&self) -> Option<&str> {
        let running = self.status.as_ref().and_then(|status| status.version.as_deref());
        running.or_else(|| self.requested_version())
    }
}

impl TenantClassSpec {
    /// Whether tenants may run a version.
    pub fn allows_version(&self, version: &str) -> bool {
        self.versions.is_empty() || self.versions.iter().any(|allowed| allowed == version)
    }

    /// The version of a new tenant whose spec names none: the default of the class, also one that cannot be run, or else the newest of the
    /// `available` versions that the class allows. None: it allows none of them.
    pub fn version_of_new_tenants<'a>(&'a self, available: &'a [String]) -> Option<&'a str> {
        let allowed = available.iter().filter(|version| self.allows_version(version));
        let newest = allowed.max_by_key(|version| version.parse::<KubernetesVersion>().ok());
        self.default_version.as_deref().or(newest.map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantClusterSpec;

    fn tenant(spec: Option<&str>, running: Option<&str>, upgrading_to: Option<&str>) -> TenantCluster {
        let spec = TenantClusterSpec {
            version: spec.map(Into::into),
            ..TenantClusterSpec::default()
        };
        let status = TenantClusterStatus {
            version: running.map(Into::into),
            upgrading_to: upgrading_to.map(Into::into),
            ..TenantClusterStatus::default()
        };
        TenantCluster {
            status: Some(status),
            ..TenantCluster::new("vision", spec)
        }
    }

    #[test]
    fn a_tenant_without_a_version_keeps_what_was_started_last() {
        let (old, next) = (Some("v1.36.4"), Some("v1.37.1"));
        for (spec, running, upgrading_to, requested, shown) in [
            (None, None, None, None, None),
            (old, None, None, old, old),
            // It was chosen, and does not run yet.
            (None, None, old, old, old),
            (None, old, None, old, old),
            // Removed while an upgrade is under way.
            (None, old, next, next, old),
            (next, old, None, next, old),
        ] {
            let tenant = tenant(spec, running, upgrading_to);
            let found = (tenant.requested_version(), tenant.shown_version());
            assert_eq!(found, (requested, shown), "{spec:?} {running:?} {upgrading_to:?}");
        }
        let without_status = TenantCluster::new("vision", TenantClusterSpec::default());
        assert_eq!(without_status.requested_version(), None);
    }

    #[test]
    fn new_tenants_get_the_default_of_the_class_or_the_newest_version_that_it_allows() {
        let available = ["v1.9.1", "v1.37.1", "v1.37.10", "v1.35.0"].map(String::from);
        let chosen = |default: Option<&str>, versions: &[&str]| {
            let class = TenantClassSpec {
                default_version: default.map(Into::into),
                versions: versions.iter().map(ToString::to_string).collect(),
                ..TenantClassSpec::default()
            };
            class.version_of_new_tenants(&available).map(ToOwned::to_owned)
        };
        assert_eq!(chosen(None, &[]).as_deref(), Some("v1.37.10"));
        assert_eq!(
            chosen(None, &["v1.35.0", "v1.37.1", "v1.38.0"]).as_deref(),
            Some("v1.37.1")
        );
        assert_eq!(chosen(Some("v1.35.0"), &[]).as_deref(), Some("v1.35.0"));
        // What the platform set is not replaced by another version.
        assert_eq!(
            chosen(Some("v1.36.4"), &["v1.36.4", "v1.37.1"]).as_deref(),
            Some("v1.36.4")
        );
        assert_eq!(chosen(None, &["v1.38.0"]), None);
    }

    #[test]
    fn a_class_without_versions_allows_all() {
        let mut class = TenantClassSpec::default();
        assert!(class.allows_version("v1.36.4"));
        class.versions = vec!["v1.37.1".into()];
        assert!(class.allows_version("v1.37.1") && !class.allows_version("v1.36.4"));
    }
}
