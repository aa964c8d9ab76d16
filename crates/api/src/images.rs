//! Names of images that a class allows: patterns, with placeholders by which each tenant gets repositories of its own.
//!
//! A pattern is the full name of a repository, `registry.example.com/base/cuda`, or ends with `/*` for every repository below:
//! `registry.example.com/teams/*`. Placeholders are those of [host names](crate::hostnames), each as a whole part between slashes.

use crate::hostnames::{NAMESPACE, TENANT};

/// What a list of images may contain: `*`, or a registry and a path. Lists are joined with commas in
/// [policy annotations](crate::policy_annotations), so no entry has one.
pub const IMAGE_PATTERN: &str = concat!(
    // A registry: a domain, localhost, or a name with a port. Anything else would be a folder of Docker Hub.
    r"^(\*|(localhost|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+",
    r"|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*:[0-9]{1,5})",
    // Parts of the path.
    r"(/([a-z0-9]+([._-]+[a-z0-9]+)*|\{tenant\}|\{namespace\}))*",
    r"/([a-z0-9]+([._-]+[a-z0-9]+)*|\{tenant\}|\{namespace\}|\*))$"
);

/// A pattern of a class, for one tenant.
pub fn expand(template: &str, tenant: &str, namespace: &str) -> String {
    let parts = template.split('/').map(|part| match part {
        TENANT => tenant,
        NAMESPACE => namespace,
        other => other,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn placeholders_become_names() {
        for (template, expected) in [
            (
                "registry.example.com/{namespace}/{tenant}/*",
                "registry.example.com/team-a/vision/*",
            ),
            ("localhost:5000/{tenant}", "localhost:5000/vision"),
            ("docker.io/library/*", "docker.io/library/*"),
            ("*", "*"),
            // Only whole parts.
            ("registry.example.com/a-{tenant}/*", "registry.example.com/a-{tenant}/*"),
        ] {
            assert_eq!(expand(template, "vision", "team-a"), expected);
        }
    }

    proptest! {
        #[test]
        fn tenants_with_different_names_get_different_repositories(
            a in ("[a-c-]{1,4}", "[a-c-]{1,4}"), b in ("[a-c-]{1,4}", "[a-c-]{1,4}")
        ) {
            prop_assume!(a != b);
            let template = "registry.example.com/{namespace}/{tenant}/*";
            prop_assert_ne!(expand(template, &a.0, &a.1), expand(template, &b.0, &b.1));
        }
    }
}
