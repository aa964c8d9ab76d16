//! The next step of a change, and what it changes in the Secret.

use super::{
    Encryption, EncryptionError, EncryptionPhase, EncryptionState, KEY, OF_BACKUP, STATE, Target,
    configuration::store_configuration, key_name,
};
use berth_pki::create_symmetric_key;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// A change of how objects are to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Resources whose objects are to be encrypted.
    pub resources: BTreeSet<String>,
    /// The request for another key that it carries out.
    pub requested_at: Option<Timestamp>,
    /// The phase in which it begins: Rewriting if nothing is stored yet, as nothing has to be read then.
    pub begins_with: EncryptionPhase,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncryptionStep {
    /// Nothing: everything is stored as it is to be.
    Rest,
    /// Nothing yet: this is waited for.
    Wait(String),
    /// Rewrite objects that are stored otherwise. Once none is left, enter Completed.
    Rewrite,
    /// Begin a change.
    Begin(Change),
    /// Go on to this phase.
    Enter(EncryptionPhase),
}

impl Encryption {
    /// What to do next. `wanted` are the resources whose objects are to be encrypted, `due` is a request for another key, and `api_servers` says
    /// whether every API server that runs, also one that ends, has what was rendered last.
    ///
    /// A change that only waits for API servers is completed before the next one begins. One that waits for objects to be rewritten, which a
    /// webhook in the tenant may refuse, gives way to another list of resources: all keys stay until all objects were rewritten.
    pub fn next_step(
        &self,
        wanted: &BTreeSet<String>,
        due: Option<Timestamp>,
        api_servers: &Result<(), String>,
    ) -> EncryptionStep {
        let begin = |requested_at| {
            EncryptionStep::Begin(Change {
                resources: wanted.clone(),
                requested_at,
                begins_with: EncryptionPhase::Distributing,
            })
        };
        let Some(state) = &self.state else {
            // With keys of a backup and without the state, somebody has to look for what they have encrypted.
            return if wanted.is_empty() && self.keys.is_empty() {
                EncryptionStep::Rest
            } else {
                begin(due)
            };
        };
        let after = |step| match api_servers {
            Ok(()) => step,
            Err(missing) => EncryptionStep::Wait(missing.clone()),
        };
        let is_other = state.target.resources != *wanted;
        match state.phase {
            EncryptionPhase::Distributing => after(EncryptionStep::Enter(EncryptionPhase::Writing)),
            EncryptionPhase::Writing => after(EncryptionStep::Enter(EncryptionPhase::Rewriting)),
            // The next change takes for granted that every API server writes as this one says.
            EncryptionPhase::Rewriting if is_other => after(begin(None)),
            EncryptionPhase::Rewriting => after(EncryptionStep::Rewrite),
            EncryptionPhase::Completed if is_other || due.is_some() && state.target.key.is_some() => after(begin(due)),
            // Somebody has restored a key, so that objects of a backup can be read.
            EncryptionPhase::Completed if self.has_further_keys() => {
                after(EncryptionStep::Enter(EncryptionPhase::Rewriting))
            }
            EncryptionPhase::Completed => EncryptionStep::Rest,
        }
    }
}

impl EncryptionStep {
    /// Changes what is stored at the time `now`.
    ///
    /// # Errors
    /// What is stored is damaged, or no key can be made.
    pub fn carry_out(&self, stored: &mut BTreeMap<String, String>, now: Timestamp) -> Result<(), EncryptionError> {
        let read = Encryption::read(stored)?;
        let resources = read.resources().into_iter().map(ToOwned::to_owned).collect();
        let after = match (self, read.state) {
            (Self::Rest | Self::Wait(_) | Self::Rewrite, _) => return Ok(()),
            (Self::Begin(change), before) => begin(change, before, stored, now)?,
            (Self::Enter(_), None) => return Err(EncryptionError::Missing(STATE.into())),
            (Self::Enter(EncryptionPhase::Completed), Some(before)) => {
                stored.retain(|name, _| !name.starts_with(KEY) || Some(name) == before.target.key.as_ref());
                EncryptionState {
                    phase: EncryptionPhase::Completed,
                    since: now,
                    previous: before.target.clone(),
                    resources: before.target.resources.clone(),
                    ..before
                }
            }
            (Self::Enter(phase), Some(before)) => EncryptionState {
                phase: *phase,
                since: now,
                resources,
                ..before
            },
        };
        // It cannot fail: there are only texts.
        stored.insert(STATE.into(), serde_json::to_string(&after).unwrap_or_default());
        store_configuration(stored)
    }
}

/// The state with which a change begins. Its key is a new one if one was asked for or if there is none; otherwise it stays.
fn begin(
    change: &Change,
    before: Option<EncryptionState>,
    stored: &mut BTreeMap<String, String>,
    now: Timestamp,
) -> Result<EncryptionState, EncryptionError> {
    let requested_at = change
        .requested_at
        .or(before.as_ref().and_then(|before| before.requested_at));
    let (previous, earlier, mut resources, mut ever) = match before {
        Some(before) => (before.target, before.previous.key, before.resources, before.ever),
        None => (Target::default(), None, of_backup(stored), BTreeSet::new()),
    };
    let is_rotation = change.requested_at.is_some() && previous.key.is_some();
    // With the earlier key if encryption was turned off and everything is not decrypted yet.
    let kept = previous.key.clone().or(earlier).filter(|_| !is_rotation);
    let key = match kept {
        _ if change.resources.is_empty() => None,
        Some(kept) => Some(kept),
        None => Some(add_key(stored)?),
    };
    resources.extend(change.resources.iter().cloned());
    ever.extend(resources.iter().cloned());
    Ok(EncryptionState {
        phase: change.begins_with,
        since: now,
        requested_at,
        target: Target {
            key,
            resources: change.resources.clone(),
        },
        previous,
        resources,
        ever,
    })
}

/// Resources of which stored objects may be encrypted with keys that are stored without a state.
fn of_backup(stored: &BTreeMap<String, String>) -> BTreeSet<String> {
    let has_keys = stored.keys().any(|name| name.starts_with(KEY));
    let resources = OF_BACKUP.iter().filter(|_| has_keys);
    resources.map(ToString::to_string).collect()
}

/// Makes a key. Returns its name.
fn add_key(stored: &mut BTreeMap<String, String>) -> Result<String, EncryptionError> {
    let key = create_symmetric_key()?;
    let name = key_name(&key);
    stored.insert(name.clone(), key);
    Ok(name)
}
