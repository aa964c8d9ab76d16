//! Size of the Secret that carries the tokens, certificates and trust bundles of a pod.

use super::{
    certificate::{self, Sizes},
    token,
    trust::{Bundles, bundles},
};
use crate::{
    model::Cache,
    translation::{fields::FieldIssues, sizes::MAX_POD_SECRET_BYTES},
};
use serde_json::Value;

/// Bytes of a token without its audience, at most: about those of one with the longest names.
const TOKEN_BYTES: usize = 2 << 10;
/// Bytes of a key and its certificates before they are there: signers make them no larger without need.
const CERTIFICATE_BYTES: usize = 8 << 10;

/// Bytes of the Secret of a pod that selects these certificates, about. `sizes` are those of what its signers have issued.
pub fn secret_bytes(pod: &Value, bundles: &Bundles, sizes: &Sizes) -> usize {
    let tokens = token::asked(pod).into_iter();
    let tokens: usize = tokens
        .map(|token| TOKEN_BYTES + bytes_of_audience(&token.audience))
        .sum();
    let found: usize = bundles.found.values().map(String::len).sum();
    let issued = certificate::asked(pod).into_iter();
    let issued: usize = issued.map(|asked| counted(sizes, &asked.source)).sum();
    tokens + issued + found
}

/// What a Secret has once its certificates have the sizes `after`, if it has `bytes` with those of `before`.
pub fn bytes_with(bytes: usize, before: &Sizes, after: &Sizes) -> usize {
    let sum = |sizes| -> usize { after.keys().map(|source| counted(sizes, source)).sum() };
    bytes.saturating_add(sum(after)).saturating_sub(sum(before))
}

fn counted(sizes: &Sizes, source: &str) -> usize {
    sizes.get(source).copied().unwrap_or_default().max(CERTIFICATE_BYTES)
}

/// Bytes of an audience in a token: JSON as Go writes it, in base64 there and once more in the Secret. No API server limits how long it is.
fn bytes_of_audience(audience: &str) -> usize {
    let escaped: usize = audience.chars().map(bytes_in_json).sum();
    escaped * 16 / 9
}

fn bytes_in_json(character: char) -> usize {
    match character {
        '"' | '\\' => 2,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        control if control.is_ascii_control() => 6,
        other => other.len_utf8(),
    }
}

/// Denies a pod whose tokens and certificates would have more bytes than its Secret may have.
pub fn check_bytes(cache: &Cache, pod: &Value, issues: &mut FieldIssues) {
    let bundles = bundles(cache, pod);
    if bundles.are_too_large || secret_bytes(pod, &bundles, &Sizes::new()) > MAX_POD_SECRET_BYTES {
        let why = format!(
            "the {} tokens, the {} certificates and the ClusterTrustBundles of the projected volumes have more than {MAX_POD_SECRET_BYTES} \
             bytes together, which is the most that a pod may have: each pod has a copy of its own. Mount a ConfigMap with the certificates, \
             which pods share, and leave out what the pod does not need",
            token::asked(pod).len(),
            certificate::asked(pod).len()
        );
        issues.deny("spec.volumes", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::trust::{BEGIN, END, tests::cache};
    use serde_json::json;

    /// The message of a pod that is denied because of its Secret.
    fn denial(cache: &Cache, pod: &Value) -> Option<String> {
        let mut issues = FieldIssues::default();
        check_bytes(cache, pod, &mut issues);
        issues.denied.pop().map(|denied| denied.why)
    }

    #[test]
    fn a_pod_that_selects_more_than_its_secret_may_have_is_denied() {
        let certificate = |number: usize| format!("{BEGIN}\n{number:0>1000}\n{END}\n");
        let text = |count: usize| (0..count).map(certificate).collect::<String>();
        let cache = cache(&[("few", None, "a", text(100)), ("many", None, "a", text(300))]);
        let projections = |names: &[&str]| {
            let sources: Vec<Value> = names
                .iter()
                .map(|name| json!({"clusterTrustBundle": {"name": name, "path": name}}))
                .collect();
            json!({"spec": {"volumes": [{"name": "trust", "projected": {"sources": sources}}]}})
        };
        assert_eq!(denial(&cache, &projections(&["few", "few"])), None);
        let large = projections(&["many"]);
        assert!(denial(&cache, &large).unwrap().contains("ConfigMap"));
        assert_eq!(
            bundles(&cache, &large),
            Bundles {
                are_too_large: true,
                ..Bundles::default()
            }
        );
        assert!(
            denial(&cache, &projections(&["few", "few", "few"])).is_some(),
            "each is a copy"
        );
    }

    #[test]
    fn a_pod_with_too_many_tokens_is_denied() {
        let cache = cache(&[]);
        let pod = |tokens: usize| {
            let sources = vec![json!({"serviceAccountToken": {"path": "token"}}); tokens];
            json!({"spec": {"volumes": [{"name": "tokens", "projected": {"sources": sources}}]}})
        };
        assert_eq!(denial(&cache, &pod(100)), None);
        assert!(denial(&cache, &pod(200)).unwrap().contains("200 tokens"));
    }

    #[test]
    fn a_token_is_as_large_as_its_audience_makes_it() {
        let cache = cache(&[]);
        let pod = |audience: &str| {
            let sources = json!([{"serviceAccountToken": {"path": "token", "audience": audience}}]);
            json!({"spec": {"volumes": [{"name": "tokens", "projected": {"sources": sources}}]}})
        };
        let bytes = |audience: &str| secret_bytes(&pod(audience), &Bundles::default(), &Sizes::new());
        assert_eq!(bytes(""), TOKEN_BYTES);
        assert_eq!(bytes(&"a".repeat(900)), TOKEN_BYTES + 1600);
        assert_eq!(bytes(&"<".repeat(900)), TOKEN_BYTES + 9600, "six characters each");
        assert_eq!(bytes(&"\n".repeat(900)), TOKEN_BYTES + 9600);
        assert_eq!(bytes(&"\"".repeat(900)), TOKEN_BYTES + 3200);
        assert_eq!(bytes(&"\u{e9}".repeat(900)), TOKEN_BYTES + 3200);
        assert_eq!(denial(&cache, &pod(&"a".repeat(100_000))), None);
        assert!(denial(&cache, &pod(&"a".repeat(200_000))).is_some());
    }

    #[test]
    fn certificates_count_with_the_size_that_their_signer_gave_them() {
        let sources = json!([{"podCertificate": {}}, {"podCertificate": {}}]);
        let pod = json!({"spec": {"volumes": [{"name": "tls", "projected": {"sources": sources}}]}});
        let sizes =
            |of: &[(&str, usize)]| -> Sizes { of.iter().map(|(source, size)| ((*source).to_owned(), *size)).collect() };
        let (none, small, large) = (
            sizes(&[]),
            sizes(&[("0-0", 100)]),
            sizes(&[("0-0", 100), ("0-1", 600_000)]),
        );
        let bytes = |sizes: &Sizes| secret_bytes(&pod, &Bundles::default(), sizes);
        assert_eq!(
            [bytes(&none), bytes(&small), bytes(&large)],
            [16 << 10, 16 << 10, (8 << 10) + 600_000]
        );
        assert_eq!(
            bytes_with(20_000, &none, &small),
            20_000,
            "it was expected to be as large"
        );
        assert_eq!(bytes_with(20_000, &small, &large), 20_000 - (8 << 10) + 600_000);
        assert_eq!(
            bytes_with(620_000, &large, &sizes(&[("0-0", 9 << 10), ("0-1", 0)])),
            20_000 + (9 << 10),
            "the next is small"
        );
    }
}
