//! The configuration from which an API server reads how to encrypt.

use super::{CONFIGURATION, Encryption, EncryptionError, EncryptionPhase};
use crate::control_plane::component::file_flag;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// File of the API server. API servers read files that end with `.json` or `.yaml` as admission policies.
const FILE: &str = "encryption.conf";

/// The flag of an API server, whose file is added to its files; none if no stored object may be encrypted. API servers are not to read the file again by
/// themselves: a runtime never changes files for one that runs, and knows of each which it has.
pub(in crate::control_plane) fn for_api_server(
    encryption: &Encryption,
    files: &mut BTreeMap<String, String>,
) -> Option<String> {
    files.insert(FILE.into(), encryption.configuration()?);
    Some(file_flag("encryption-provider-config", FILE))
}

/// Stores the configuration beside the keys from which it follows.
///
/// # Errors
/// What is stored is damaged.
pub(super) fn store_configuration(stored: &mut BTreeMap<String, String>) -> Result<(), EncryptionError> {
    match Encryption::read(stored)?.configuration() {
        Some(text) => stored.insert(CONFIGURATION.into(), text),
        None => stored.remove(CONFIGURATION),
    };
    Ok(())
}

impl Encryption {
    /// The `EncryptionConfiguration` of an API server; none if no stored object may be encrypted.
    pub fn configuration(&self) -> Option<String> {
        let state = self.state.as_ref()?;
        let resources = self.resources();
        if resources.is_empty() {
            return None;
        }
        let written = match state.phase {
            EncryptionPhase::Distributing => &state.previous,
            EncryptionPhase::Writing | EncryptionPhase::Rewriting | EncryptionPhase::Completed => &state.target,
        };
        let (encrypted, plain): (BTreeSet<&str>, BTreeSet<&str>) = resources
            .into_iter()
            .partition(|resource| written.key.is_some() && written.resources.contains(*resource));
        let entries = [(encrypted, written.key.as_deref()), (plain, None)];
        let entries: Vec<Value> = entries
            .into_iter()
            .filter(|(resources, _)| !resources.is_empty())
            .map(|(resources, key)| json!({"resources": resources, "providers": self.providers(key)}))
            .collect();
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": entries,
        });
        Some(configuration.to_string())
    }

    /// The providers of resources that are written with a key, or as they are. The first one writes, and all read.
    fn providers(&self, key: Option<&str>) -> Vec<Value> {
        let first = self.keys.iter().filter(|(name, _)| Some(name.as_str()) == key);
        let others = self.keys.iter().filter(|(name, _)| Some(name.as_str()) != key);
        let keys: Vec<Value> = first
            .chain(others)
            .map(|(name, secret)| json!({"name": name, "secret": secret}))
            .collect();
        let secretbox = (!keys.is_empty()).then(|| json!({"secretbox": {"keys": keys}}));
        let identity = Some(json!({"identity": {}}));
        let providers = if key.is_some() {
            [secretbox, identity]
        } else {
            [identity, secretbox]
        };
        providers.into_iter().flatten().collect()
    }
}
