//! Which Kubernetes version a tenant is to run: pure.
//!
//! A tenant whose spec names no version has the one that was started last, and a new one the version that its class gives. So a class that changes
//! upgrades no tenant.

use super::{UNSUPPORTED_VERSION, reject};
use berth_api::{TenantClassSpec, TenantCluster, conditions::ConditionUpdate};

/// The version that a tenant is to run: the one that it has or asks for, or else the one that its class gives to new tenants. `class` is the name of
/// the class with these `rules`, and `available` are the versions that can be run here.
///
/// # Errors
/// The condition Accepted: the class does not allow the version, or there is none to choose.
pub(super) fn choose_version(
    cluster: &TenantCluster,
    (class, rules): (&str, &TenantClassSpec),
    available: &[String],
) -> Result<String, ConditionUpdate> {
    let of_class = || rules.version_of_new_tenants(available);
    let Some(version) = cluster.requested_version().or_else(of_class) else {
        return Err(reject(UNSUPPORTED_VERSION, describe_no_version(class, available)));
    };
    if rules.allows_version(version) {
        return Ok(version.to_owned());
    }
    let why = format!(
        "TenantClass {class} does not allow Kubernetes {version}; set spec.version to one of {}",
        rules.versions.join(", ")
    );
    Err(reject("VersionNotAllowed", why))
}

fn describe_no_version(class: &str, available: &[String]) -> String {
    if available.is_empty() {
        return "spec.version is empty, and no version is available yet".into();
    }
    format!(
        "spec.version is empty, and TenantClass {class} allows no Kubernetes version that is available here; ask the platform team to list one of \
         {} in the class's spec.versions",
        available.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{TenantClusterSpec, TenantClusterStatus};

    fn status(version: Option<&str>, upgrading_to: Option<&str>) -> TenantClusterStatus {
        TenantClusterStatus {
            version: version.map(Into::into),
            upgrading_to: upgrading_to.map(Into::into),
            ..TenantClusterStatus::default()
        }
    }

    /// What is chosen for a tenant of the class gold: the version, or the reason and the message.
    fn chosen(
        spec: Option<&str>,
        status: TenantClusterStatus,
        class: &TenantClassSpec,
        available: &[&str],
    ) -> Result<String, (&'static str, String)> {
        let spec = TenantClusterSpec {
            version: spec.map(Into::into),
            ..TenantClusterSpec::default()
        };
        let cluster = TenantCluster {
            status: Some(status),
            ..TenantCluster::new("vision", spec)
        };
        let available: Vec<String> = available.iter().map(ToString::to_string).collect();
        let chosen = choose_version(&cluster, ("gold", class), &available);
        chosen.map_err(|rejection| (rejection.reason, rejection.message))
    }

    fn class(default: Option<&str>, versions: &[&str]) -> TenantClassSpec {
        TenantClassSpec {
            default_version: default.map(Into::into),
            versions: versions.iter().map(ToString::to_string).collect(),
            ..TenantClassSpec::default()
        }
    }

    #[test]
    fn a_tenant_keeps_its_version_whatever_its_class_gives_to_new_ones() {
        let available = ["v1.37.1", "v1.36.4", "v1.35.0"];
        let gives = |default| class(default, &[]);
        let version =
            |spec, running, class: &TenantClassSpec| chosen(spec, status(running, None), class, &available).unwrap();
        assert_eq!(version(None, None, &gives(Some("v1.36.4"))), "v1.36.4");
        assert_eq!(version(None, None, &gives(None)), "v1.37.1");
        assert_eq!(version(Some("v1.35.0"), None, &gives(Some("v1.36.4"))), "v1.35.0");
        // The class has another default now, or none.
        for default in [Some("v1.37.1"), Some("v1.35.0"), None] {
            assert_eq!(version(None, Some("v1.36.4"), &gives(default)), "v1.36.4");
        }
        assert_eq!(version(Some("v1.37.1"), Some("v1.36.4"), &gives(None)), "v1.37.1");
        // Removed from the spec: before its upgrade was over, and after that.
        let upgraded = status(Some("v1.36.4"), Some("v1.37.1"));
        let found = chosen(None, upgraded, &gives(Some("v1.36.4")), &available);
        assert_eq!(found.as_deref(), Ok("v1.37.1"));
        assert_eq!(version(None, Some("v1.37.1"), &gives(Some("v1.36.4"))), "v1.37.1");
        // It is no longer available. Whether it can be run is checked elsewhere, and no other is chosen for it.
        let found = chosen(None, status(Some("v1.34.0"), None), &gives(None), &available);
        assert_eq!(found.as_deref(), Ok("v1.34.0"));
    }

    #[test]
    fn a_version_that_the_class_does_not_allow_is_rejected_wherever_it_comes_from() {
        let limited = class(None, &["v1.36.4"]);
        for (spec, running) in [(Some("v1.37.1"), None), (None, Some("v1.37.1"))] {
            let (reason, message) = chosen(spec, status(running, None), &limited, &["v1.36.4"]).unwrap_err();
            assert_eq!(reason, "VersionNotAllowed");
            assert!(message.ends_with("set spec.version to one of v1.36.4"), "{message}");
        }
        let (reason, message) = chosen(None, status(None, None), &limited, &["v1.37.1"]).unwrap_err();
        assert_eq!(reason, UNSUPPORTED_VERSION);
        assert!(message.contains("list one of v1.37.1 in the class's"), "{message}");
        let (reason, message) = chosen(None, status(None, None), &class(None, &[]), &[]).unwrap_err();
        assert_eq!(reason, UNSUPPORTED_VERSION);
        assert!(message.ends_with("no version is available yet"), "{message}");
    }
}
