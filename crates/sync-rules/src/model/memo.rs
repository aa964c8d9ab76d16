//! What is derived from whole stores, computed once for each state of them.

use super::store::Store;
use std::sync::{Arc, Mutex, PoisonError};

/// A value that is computed again when a store from which it is derived has changed.
#[derive(Debug)]
pub struct Memo<T>(Mutex<Option<Computed<T>>>);

#[derive(Debug)]
struct Computed<T> {
    /// The states of the stores from which it was computed.
    states: Vec<u64>,
    value: Arc<T>,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Memo<T> {
    /// The value: the last one, or what `compute` makes of the stores as they are now.
    pub fn get(&self, stores: &[&Store], compute: impl FnOnce() -> T) -> Arc<T> {
        // Read before the stores are: a change in between is seen by the next call.
        let states: Vec<u64> = stores.iter().map(|store| store.state()).collect();
        let mut computed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(computed) = computed.as_ref().filter(|computed| computed.states == states) {
            return Arc::clone(&computed.value);
        }
        let value = Arc::new(compute());
        *computed = Some(Computed {
            states,
            value: Arc::clone(&value),
        });
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::Name, stored::Stored};
    use serde_json::json;

    #[test]
    fn a_value_is_computed_once_for_each_state_of_the_stores() {
        let (memo, store, other) = (Memo::default(), Store::default(), Store::default());
        let count = || *memo.get(&[&store, &other], || store.len());
        let put = |name: &str, version: &str| {
            let object = json!({"metadata": {"name": name, "resourceVersion": version}});
            store.watched(Name::new("", name), Stored::from(object));
        };
        assert_eq!(count(), 0);
        put("a", "1");
        put("b", "2");
        assert_eq!(count(), 2);
        assert_eq!(*memo.get(&[&store, &other], || unreachable!("nothing has changed")), 2);
        store.forget(&Name::new("", "a"));
        assert_eq!(count(), 1);
    }
}
