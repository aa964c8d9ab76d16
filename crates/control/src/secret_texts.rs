//! Secrets whose values are texts, such as keys and certificates.

use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;

/// The values of a Secret by key. Those that are no text are left out.
pub(crate) fn read_texts(secret: Secret) -> BTreeMap<String, String> {
    let data = secret.data.unwrap_or_default();
    data.into_iter()
        .filter_map(|(name, bytes)| Some((name, String::from_utf8(bytes.0).ok()?)))
        .collect()
}
