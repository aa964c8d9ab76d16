//! Host names of a class that contain placeholders: each tenant gets names of its own.
//!
//! A placeholder is a whole label of a host name. Names of `TenantCluster`s and namespaces are DNS labels, so two tenants get the same
//! name from the same template only if they have the same values for all of its placeholders. Within parts of labels, `a-b` and `c`
//! would give the same as `a` and `b-c`.

/// Placeholder for the name of the `TenantCluster`.
pub const TENANT: &str = "{tenant}";
/// Placeholder for the namespace of the `TenantCluster`.
pub const NAMESPACE: &str = "{namespace}";

/// A host name of a class, for one tenant.
pub fn expand(template: &str, tenant: &str, namespace: &str) -> String {
    let labels = template.split('.').map(|label| match label {
        TENANT => tenant,
        NAMESPACE => namespace,
        other => other,
    });
    labels.collect::<Vec<_>>().join(".")
}

/// Whether braces in a host name are nothing but placeholders.
pub fn has_only_known_placeholders(template: &str) -> bool {
    template
        .split('.')
        .all(|label| label == TENANT || label == NAMESPACE || !label.contains(['{', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn placeholders_become_names() {
        for (template, expected) in [
            ("*.{tenant}.apps.example.com", "*.vision.apps.example.com"),
            ("{tenant}.{namespace}.example.com", "vision.team-a.example.com"),
            ("*.example.com", "*.example.com"),
            ("*", "*"),
            ("{team}.example.com", "{team}.example.com"),
        ] {
            assert_eq!(expand(template, "vision", "team-a"), expected);
        }
    }

    #[test]
    fn placeholders_are_whole_labels_and_known() {
        for good in [
            "*",
            "a.example.com",
            "*.{tenant}.{namespace}.example.com",
            "{tenant}.example.com",
        ] {
            assert!(has_only_known_placeholders(good), "{good}");
        }
        for bad in [
            "{team}.example.com",
            "app-{tenant}.example.com",
            "{tenant}{namespace}.example.com",
            "*.{tenant.example.com",
            "{Tenant}.example.com",
        ] {
            assert!(!has_only_known_placeholders(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn tenants_with_different_names_get_different_host_names(
            a in ("[a-c-]{1,4}", "[a-c-]{1,4}"), b in ("[a-c-]{1,4}", "[a-c-]{1,4}")
        ) {
            prop_assume!(a != b);
            let template = "*.{tenant}.{namespace}.example.com";
            prop_assert_ne!(expand(template, &a.0, &a.1), expand(template, &b.0, &b.1));
        }
    }
}
