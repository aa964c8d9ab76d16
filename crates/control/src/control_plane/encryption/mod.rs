//! Encryption of what a tenant stores: its keys, what its API servers do with them, and the steps in which that changes, so that every stored
//! object can be read all the time: pure.
//!
//! | phase | API servers write | ends when |
//! |---|---|---|
//! | Distributing | as before; they can read what the next phase writes | every API server that runs can |
//! | Writing | as they are to | every API server that runs does |
//! | Rewriting | as they are to | every stored object was found in etcd to be written so |
//! | Completed | as they are to; keys that no object needs are gone | |
//!
//! In all phases API servers read objects that are encrypted with any key that is stored, and those that are not encrypted. They do so for every
//! resource that was ever encrypted, as a backup may have such objects, and all of these are looked at before a key goes. Keys and state are in
//! the Secret of the authorities, and each step is one write of it. Everything else is rendered from it again and again, so that it does not
//! matter where a process is killed.

mod configuration;
mod kept;
mod step;

pub(super) use configuration::for_api_server;
pub use kept::{Kept, keep};
pub use step::{Change, EncryptionStep};

use berth_api::{EncryptionPhase, RotationRequest, names, text::printable_start};
use berth_pki::Error as PkiError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Entry of the Secret with the state.
const STATE: &str = "encryption.json";
/// Entry with what an API server needs to read everything: for people who read a backup.
const CONFIGURATION: &str = "encryption-configuration.json";
/// Entries of the Secret that are keys begin with this, as do their names. The rest is a hash of the key: a name never stands for two keys.
const KEY: &str = "encryption-key-";
/// What etcd has of an encrypted object begins with this.
const ENCRYPTED: &str = "k8s:enc:";
/// The same of one that is encrypted as Berth does it, before the name of the key and a colon.
const SECRETBOX: &str = "k8s:enc:secretbox:v1:";
/// Resources of which objects may be encrypted if there are keys of a backup, and no state that names any.
const OF_BACKUP: [&str; 2] = ["configmaps", "secrets"];
/// Bytes of the name of a key that are shown.
const MAX_NAME: usize = 64;

/// Why the encryption of a tenant cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// No key can be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// An entry is missing.
    #[error("the Secret `pki` of the control-plane namespace lacks {0}; restore this entry from a backup")]
    Missing(String),
    /// An entry is damaged.
    #[error(
        "the encryption in the Secret `pki` of the control-plane namespace cannot be read ({0}); restore the entries that begin with \
         encryption from a backup"
    )]
    Damaged(String),
}

/// What is encrypted, and with which key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of the key; none: nothing is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Resources whose objects are encrypted.
    #[serde(default)]
    pub resources: BTreeSet<String>,
}

/// The last change of the encryption of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EncryptionState {
    /// Its step.
    pub phase: EncryptionPhase,
    /// Since when it is at this step.
    pub since: Timestamp,
    /// The last request for another key that was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// How objects are to be stored.
    pub target: Target,
    /// How they were to be stored before.
    pub previous: Target,
    /// Resources of which stored objects may be encrypted.
    pub resources: BTreeSet<String>,
    /// Resources of which objects were ever encrypted: a backup may have some.
    #[serde(default)]
    pub ever: BTreeSet<String>,
}

/// The encryption of a tenant, as it is stored beside its authorities.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Encryption {
    /// Keys in base64, by their names. Secret.
    keys: BTreeMap<String, String>,
    state: Option<EncryptionState>,
}

impl std::fmt::Debug for Encryption {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Encryption")
            .field("keys", &self.keys.keys())
            .field("state", &self.state)
            .finish()
    }
}

impl Encryption {
    /// The encryption that is stored beside the authorities.
    ///
    /// # Errors
    /// A key is missing or is another one than its name says, or the state is damaged.
    pub fn read(stored: &BTreeMap<String, String>) -> Result<Self, EncryptionError> {
        let damaged = EncryptionError::Damaged;
        let keys: BTreeMap<String, String> = stored
            .iter()
            .filter(|(name, _)| name.starts_with(KEY))
            .map(|(name, key)| (name.clone(), key.clone()))
            .collect();
        if let Some((name, _)) = keys.iter().find(|(name, key)| **name != key_name(key)) {
            return Err(damaged(format!("{name} is another key than its name says")));
        }
        let state: Option<EncryptionState> = stored
            .get(STATE)
            .map(|text| serde_json::from_str(text))
            .transpose()
            .map_err(|error| damaged(error.to_string()))?;
        let Some(state) = state else {
            // Keys of a backup.
            return Ok(Self { keys, state: None });
        };
        let named = [&state.target.key, &state.previous.key];
        if let Some(missing) = named.into_iter().flatten().find(|key| !keys.contains_key(*key)) {
            return Err(EncryptionError::Missing(missing.clone()));
        }
        Ok(Self {
            keys,
            state: Some(state),
        })
    }

    /// The last change; none if nothing was ever to be encrypted.
    pub fn state(&self) -> Option<&EncryptionState> {
        self.state.as_ref()
    }

    /// The key with which objects are to be encrypted, and the resources whose objects are; none if nothing is.
    pub fn target(&self) -> Option<(&str, &BTreeSet<String>)> {
        let target = &self.state.as_ref()?.target;
        Some((target.key.as_deref()?, &target.resources))
    }

    /// Resources of which stored objects may be encrypted: those of the last change, and as long as there is a key all that ever were, as objects of a
    /// backup may need it.
    pub fn resources(&self) -> BTreeSet<&str> {
        let Some(state) = &self.state else {
            return BTreeSet::new();
        };
        let of_backup = state.ever.iter().filter(|_| !self.keys.is_empty());
        state.resources.iter().chain(of_backup).map(String::as_str).collect()
    }

    /// Names of all keys that are stored.
    pub fn key_names(&self) -> BTreeSet<String> {
        self.keys.keys().cloned().collect()
    }

    /// The time of a request for another key that is to be carried out now: it is later than the last one that was begun, and not in the future.
    pub fn due_request(&self, request: RotationRequest, now: Timestamp) -> Option<Timestamp> {
        let RotationRequest::At(at) = request else { return None };
        let last = self.state.as_ref().and_then(|state| state.requested_at);
        (last.is_none_or(|last| at > last) && at <= now).then_some(at)
    }

    /// Whether what etcd has of an object of a resource, of which this is the beginning, is stored as it is to be.
    pub fn is_current(&self, resource: &str, head: &[u8]) -> bool {
        match self.target() {
            Some((key, resources)) if resources.contains(resource) => head.starts_with(&head_of(key)),
            _ => !head.starts_with(ENCRYPTED.as_bytes()),
        }
    }

    /// Whether the keys that are stored are enough to read an object of which this is the beginning.
    pub fn can_read(&self, head: &[u8]) -> bool {
        !head.starts_with(ENCRYPTED.as_bytes()) || self.keys.keys().any(|key| head.starts_with(&head_of(key)))
    }

    /// Whether keys are stored that are not needed once every object is stored as it is to be.
    fn has_further_keys(&self) -> bool {
        let target = self.target().map(|(key, _)| key);
        self.keys.keys().any(|key| Some(key.as_str()) != target)
    }
}

/// The name of a key.
fn key_name(key: &str) -> String {
    format!("{KEY}{}", names::hash(&[key]))
}

/// What etcd has of an object that is encrypted with a key begins with this.
fn head_of(key: &str) -> Vec<u8> {
    format!("{SECRETBOX}{key}:").into_bytes()
}

/// The name of the key with which an object is encrypted of which this is the beginning, for people.
pub fn describe_key(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let name = text.split(':').nth(4).unwrap_or("of an unknown provider");
    printable_start(name, MAX_NAME)
}

/// The name of the key with which an object is encrypted of which this is the beginning; none if it is not encrypted.
pub fn key_of(head: &[u8]) -> Option<String> {
    head.starts_with(ENCRYPTED.as_bytes()).then(|| describe_key(head))
}

/// Where the objects of a resource are below the prefix of a tenant. `resource`: as a class names it.
pub fn folder(resource: &str) -> String {
    match resource.split_once('.') {
        Some((plural, group)) => format!("{group}/{plural}/"),
        None => format!("{resource}/"),
    }
}

#[cfg(test)]
mod tests;
