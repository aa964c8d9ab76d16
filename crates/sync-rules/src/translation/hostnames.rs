//! Host names that a tenant's Ingresses and routes may serve.

use crate::{model::Cache, translation::fields::FieldIssues};

/// Whether one of `patterns` covers the host name `wanted`, which may be a wildcard itself. `*.example.com` covers every
/// name below `example.com`, `*` every name.
pub fn serves(patterns: &[String], wanted: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    patterns.iter().any(|pattern| {
        pattern == "*"
            || *pattern == wanted
            || pattern
                .strip_prefix('*')
                .filter(|domain| domain.starts_with('.'))
                .and_then(|domain| wanted.strip_suffix(domain))
                .is_some_and(|below| !below.is_empty())
    })
}

/// A message that names what is offered.
pub fn offered<S: AsRef<str>>(names: &[S]) -> String {
    if names.is_empty() {
        return "none is offered here".to_owned();
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    format!("offered here: {}", names.join(", "))
}

/// Denies a host name that the class does not list. An empty one means every name.
pub fn check(cache: &Cache, wanted: &str, path: &str, issues: &mut FieldIssues) {
    let patterns = &cache.tenant.policy.ingress.hostnames;
    let offered = || offered(patterns);
    if wanted.is_empty() {
        if !serves(patterns, "*") {
            issues.deny(
                path,
                format!("without a host name this would apply to every name; {}", offered()),
            );
        }
    } else if !serves(patterns, wanted) {
        issues.deny(path, format!("the host name {wanted} is not offered; {}", offered()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_wildcards() {
        let patterns = ["app.example.com".to_owned(), "*.team.example.com".to_owned()];
        for good in [
            "app.example.com",
            "APP.example.com",
            "a.team.example.com",
            "a.b.team.example.com",
            "*.team.example.com",
            "*.a.team.example.com",
        ] {
            assert!(serves(&patterns, good), "{good}");
        }
        for bad in [
            "example.com",
            "team.example.com",
            "xapp.example.com",
            "*.example.com",
            "xteam.example.com",
            "*",
            "",
            "a.team.example.com.evil.org",
        ] {
            assert!(!serves(&patterns, bad), "{bad}");
        }
        assert!(serves(&["*".into()], "anything.org") && serves(&["*".into()], "*"));
        assert!(!serves(&["*example.com".into()], "notexample.com"));
    }
}
