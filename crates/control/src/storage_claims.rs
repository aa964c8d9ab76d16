//! PersistentVolumeClaims of tenants on the host: of each only its StorageClass.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::{
    collections::{BTreeMap, HashSet},
    sync::{PoisonError, RwLock},
};

/// The StorageClass of each claim, by namespace and name.
#[derive(Debug, Default)]
pub struct StorageClaims(RwLock<BTreeMap<String, String>>);

impl StorageClaims {
    /// StorageClasses of the claims in a namespace of the host, with the number of claims of each.
    pub fn of(&self, namespace: &str) -> BTreeMap<String, usize> {
        let prefix = format!("{namespace}/");
        let claims = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = claims
            .range(prefix.clone()..)
            .take_while(|(name, _)| name.starts_with(&prefix));
        let mut classes = BTreeMap::new();
        for (_, class) in of_namespace {
            *classes.entry(class.clone()).or_default() += 1;
        }
        classes
    }

    /// Sets the class of a claim, given by its namespace and name; none: the claim is gone, or has no class.
    pub fn put(&self, claim: &str, class: Option<String>) {
        let mut claims = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match class {
            Some(class) => drop(claims.insert(claim.to_owned(), class)),
            None => drop(claims.remove(claim)),
        }
    }

    /// Forgets all claims but these.
    pub fn retain(&self, names: &HashSet<String>) {
        let mut claims = self.0.write().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|name, _| names.contains(name));
    }
}

/// The StorageClass of a claim.
pub fn class_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let class = claim.spec.as_ref()?.storage_class_name.clone()?;
    (!class.is_empty()).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_are_counted_for_one_namespace() {
        let claims = StorageClaims::default();
        for (name, class) in [("a/x", "fast"), ("a/y", "fast"), ("a/z", "slow"), ("a-b/x", "other")] {
            claims.put(name, Some(class.into()));
        }
        let expected = BTreeMap::from([("fast".to_owned(), 2), ("slow".to_owned(), 1)]);
        assert_eq!(claims.of("a"), expected);
        claims.put("a/z", None);
        claims.retain(&["a/x".to_owned()].into());
        assert_eq!(claims.of("a"), BTreeMap::from([("fast".to_owned(), 1)]));
        assert_eq!(claims.of("a-b"), BTreeMap::new());
    }

    #[test]
    fn a_claim_without_a_class_has_none() {
        let class = |spec: serde_json::Value| {
            class_of(&serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap())
        };
        assert_eq!(class(json!({"storageClassName": "fast"})), Some("fast".into()));
        assert_eq!(class(json!({"storageClassName": ""})), None);
        assert_eq!(class(json!({})), None);
    }
}
