//! Issuers with which an API server of the tenant has started: pure.
//!
//! Whether an API server starts with an issuer is known only once one has: Berth does not compile CEL. Of issuers with which one has started, it starts
//! with some as well.

use berth_api::JwtAuthenticator;

/// Whether each of the `wanted` issuers, exactly as it is, is among those with which an API server has started.
pub fn are_proven(proven: &[JwtAuthenticator], wanted: &[JwtAuthenticator]) -> bool {
    wanted.iter().all(|issuer| proven.contains(issuer))
}

/// The issuers that are in both, exactly as they are.
pub fn keep_proven(proven: &[JwtAuthenticator], wanted: &[JwtAuthenticator]) -> Vec<JwtAuthenticator> {
    wanted
        .iter()
        .filter(|issuer| proven.contains(issuer))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::Issuer;

    fn issuer(name: &str, audience: &str) -> JwtAuthenticator {
        JwtAuthenticator {
            issuer: Issuer {
                url: format!("https://{name}.example.com"),
                audiences: vec![audience.into()],
                ..Issuer::default()
            },
            ..JwtAuthenticator::default()
        }
    }

    #[test]
    fn an_issuer_that_was_changed_is_another_one() {
        let (a, b, changed) = (issuer("a", "x"), issuer("b", "x"), issuer("a", "y"));
        let proven = [a.clone(), b.clone()];
        assert!(are_proven(&proven, &[]) && are_proven(&proven, &[b.clone(), a.clone()]));
        assert!(are_proven(&[], &[]) && !are_proven(&[], std::slice::from_ref(&a)));
        assert!(!are_proven(&proven, &[b.clone(), changed.clone()]));
        assert_eq!(keep_proven(&proven, &[changed, b.clone()]), [b]);
        assert_eq!(keep_proven(&proven, &[]), []);
    }
}
