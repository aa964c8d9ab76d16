//! A small part of a kept object that rules need for many other objects: to unpack and parse all of it each time would take as long as there is
//! of it, and the tenant decides how much that is.

use super::json;
use lz4_flex::block::{compress_prepend_size, decompress_size_prepended};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// Parts whose text is shorter are kept as they are.
const WORTH_PACKING: usize = 256;

/// The part, once it was needed.
#[derive(Debug, Default)]
pub(super) struct Extract(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    key: u64,
    is_packed: bool,
    text: Box<[u8]>,
}

impl Kept {
    fn new(key: u64, value: &Value) -> Self {
        let text = json::to_text(value).into_bytes();
        let is_packed = text.len() >= WORTH_PACKING;
        let text = if is_packed { compress_prepend_size(&text) } else { text };
        Self {
            key,
            is_packed,
            text: text.into_boxed_slice(),
        }
    }

    /// The text was made from a JSON value here, so it unpacks and parses.
    fn value(&self) -> Value {
        let parse = |text: &[u8]| serde_json::from_slice(text).unwrap_or_default();
        if self.is_packed {
            parse(&decompress_size_prepended(&self.text).unwrap_or_default())
        } else {
            parse(&self.text)
        }
    }
}

impl Extract {
    /// The part for this key: the one that is known, or what `make` returns. A part for another key is forgotten.
    pub(super) fn get(&self, key: u64, make: impl FnOnce() -> Value) -> Value {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref().filter(|known| known.key == key) {
            return known.value();
        }
        let value = make();
        *kept = Some(Kept::new(key, &value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_part_is_made_once_for_each_key() {
        let extract = Extract::default();
        for (key, value) in [(1, json!({"ports": [80]})), (2, json!("x".repeat(1000)))] {
            assert_eq!(extract.get(key, || value.clone()), value);
            assert_eq!(extract.get(key, || unreachable!("it is known")), value);
        }
        assert_eq!(
            extract.get(1, || json!("new")),
            json!("new"),
            "the first one is forgotten"
        );
    }
}
