//! The content of a kept object: a tree while it is fresh, packed text later. A pod changes several times within a second of
//! its creation, and each time rules read it more than once. What is replaced before it is packed costs no packing at all.

use super::{
    json,
    packed_text::{Dictionary, Text},
    raw_controls,
};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The content of an object.
#[derive(Debug)]
pub(super) struct Content(Mutex<State>);

#[derive(Debug)]
enum State {
    Tree(Arc<Value>),
    Packed(Text),
}

impl Content {
    pub(super) fn new(object: Arc<Value>) -> Self {
        Self(Mutex::new(State::Tree(object)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tree.
    pub(super) fn tree(&self) -> Arc<Value> {
        match &*self.state() {
            State::Tree(object) => Arc::clone(object),
            // The text was made from a JSON value, so it parses.
            State::Packed(text) => {
                Arc::new(text.read(|text| serde_json::from_slice(&raw_controls::to_json(text)).unwrap_or_default()))
            }
        }
    }

    /// The tree, if it is one now.
    pub(super) fn fresh_tree(&self) -> Option<Arc<Value>> {
        match &*self.state() {
            State::Tree(object) => Some(Arc::clone(object)),
            State::Packed(_) => None,
        }
    }

    /// Whether `text` occurs in a key or string.
    pub(super) fn mentions(&self, text: &str) -> bool {
        match &*self.state() {
            State::Tree(object) => json::mentions(object, text),
            State::Packed(packed) => {
                packed.read(|json| std::str::from_utf8(json).is_ok_and(|json| json.contains(text)))
            }
        }
    }

    /// Packs the tree.
    pub(super) fn pack(&self, dictionary: &Dictionary) {
        let mut state = self.state();
        if let State::Tree(object) = &*state {
            *state = State::Packed(Text::new(raw_controls::write(object)).packed(dictionary, is_typical(object)));
        }
    }

    /// Bytes of the text; 0 while it is a tree, whose size is not known.
    #[cfg(test)]
    pub(super) fn packed_bytes(&self) -> usize {
        match &*self.state() {
            State::Tree(_) => 0,
            State::Packed(text) => text.len(),
        }
    }
}

/// Whether an object is in the phase in which most objects of its kind are for most of their time, if its kind has phases.
fn is_typical(object: &Value) -> bool {
    let phase = json::text(object, &["status", "phase"]);
    phase.is_none_or(|phase| ["Running", "Bound", "Active"].contains(&phase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn content_reads_the_same_before_and_after_packing() {
        let long = "x".repeat(1000);
        let object = Arc::new(json!({"spec": {"nodeName": "gpu-1", "list": ["10.0.0.1", 7, null, long]}}));
        let content = Content::new(Arc::clone(&object));
        let check = || {
            assert_eq!(content.tree(), object);
            for text in ["nodeName", "odeNam", "10.0.0", "gpu-1"] {
                assert!(content.mentions(text), "{text}");
            }
            assert!(!content.mentions("gpu-2"));
        };
        check();
        assert_eq!(
            (content.packed_bytes(), content.fresh_tree()),
            (0, Some(Arc::clone(&object)))
        );
        content.pack(&Dictionary::default());
        check();
        assert_eq!(content.fresh_tree(), None);
        assert!((1..200).contains(&content.packed_bytes()), "{}", content.packed_bytes());
    }

    #[test]
    fn control_characters_take_no_more_than_in_etcd() {
        // They have little in common, so that packing saves nothing.
        let mut random = 1_u32;
        let controls: String = (0..20_000)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(u8::try_from((random >> 24) % 31).unwrap() + 1)
            })
            .collect();
        let object = Arc::new(json!({"spec": controls}));
        let content = Content::new(Arc::clone(&object));
        content.pack(&Dictionary::default());
        assert!(
            content.packed_bytes() < controls.len() * 5 / 4,
            "{}",
            content.packed_bytes()
        );
        assert_eq!(content.tree(), object);
    }
}
