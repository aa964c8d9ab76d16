//! Keys that control knows, and that somebody has taken out of the Secret while it runs.

use super::{KEY, STATE, configuration::store_configuration};
use std::collections::BTreeMap;

/// What was found in a Secret that somebody has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Entries were put back, so that the Secret has to be stored.
    pub is_changed: bool,
    /// It has keys that control does not know.
    pub has_further_keys: bool,
}

/// Puts the keys and the state back into what is stored that control has read or written last, as `known` has them. API servers run with these keys:
/// a restored or edited Secret may lack one, and the next control would start API servers without it. Keys that somebody has added stay.
pub fn keep(known: &BTreeMap<String, String>, stored: &mut BTreeMap<String, String>) -> Kept {
    let mut kept = Kept {
        is_changed: false,
        has_further_keys: stored
            .keys()
            .any(|name| name.starts_with(KEY) && !known.contains_key(name)),
    };
    for (name, text) in known.iter().filter(|(name, _)| name.starts_with(KEY) || *name == STATE) {
        if stored.get(name) != Some(text) {
            stored.insert(name.clone(), text.clone());
            kept.is_changed = true;
        }
    }
    if kept.is_changed {
        // What somebody has added may be damaged. The next one that reads the keys says so.
        drop(store_configuration(stored));
    }
    kept
}
