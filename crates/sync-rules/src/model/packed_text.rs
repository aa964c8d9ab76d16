//! The text of kept objects, packed. Objects of one kind are much alike, the pods of one Deployment nearly the same, so
//! each store packs against a typical object: what is left of a pod of 3 KB is some hundred bytes.

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use std::sync::{Arc, Mutex, PoisonError};

/// Texts shorter than this are kept as they are.
const WORTH_PACKING: usize = 256;
/// Longest dictionary. Packing searches every text for parts of it.
const LONGEST: usize = 8 * 1024;

/// What the texts of a store are packed against: the beginning of the first typical one, until then of the first one. A pod that waits
/// has no status to speak of, and is a poor pattern for those that run.
#[derive(Debug, Default)]
pub(super) struct Dictionary(Mutex<Option<Pattern>>);

#[derive(Clone, Debug)]
struct Pattern {
    text: Arc<[u8]>,
    is_typical: bool,
}

impl Dictionary {
    /// The pattern for a text, which is this text if there is no better one. Texts that are packed keep theirs.
    fn pattern_for(&self, text: &[u8], is_typical: bool) -> Arc<[u8]> {
        let mut chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pattern) = chosen.as_ref().filter(|pattern| pattern.is_typical || !is_typical) {
            return Arc::clone(&pattern.text);
        }
        let text: Arc<[u8]> = text[..text.len().min(LONGEST)].into();
        *chosen = Some(Pattern {
            text: Arc::clone(&text),
            is_typical,
        });
        text
    }
}

/// A text, packed or not.
#[derive(Clone, Debug)]
pub(super) enum Text {
    Plain(Box<[u8]>),
    Packed(Box<[u8]>, Arc<[u8]>),
}

impl Text {
    pub(super) fn new(text: impl Into<Vec<u8>>) -> Self {
        Self::Plain(text.into().into_boxed_slice())
    }

    /// The same text, packed if that is worth it. `is_typical` says whether it is a good pattern for others.
    pub(super) fn packed(self, dictionary: &Dictionary, is_typical: bool) -> Self {
        match self {
            Self::Plain(text) if text.len() >= WORTH_PACKING => {
                let pattern = dictionary.pattern_for(&text, is_typical);
                let packed = compress_prepend_size_with_dict(&text, &pattern);
                Self::Packed(packed.into_boxed_slice(), pattern)
            }
            other => other,
        }
    }

    /// Calls `read` with the plain text.
    pub(super) fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Plain(text) => read(text),
            // It was packed here with the same dictionary, so it unpacks.
            Self::Packed(packed, dictionary) => {
                read(&decompress_size_prepended_with_dict(packed, dictionary).unwrap_or_default())
            }
        }
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Plain(text) | Self::Packed(text, _) => text.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_text_unpacks_to_the_original(texts in prop::collection::vec(("[a-f\\PC]{0,600}", any::<bool>()), 1..6)) {
            let dictionary = Dictionary::default();
            let packed: Vec<Text> = texts
                .iter()
                .map(|(text, is_typical)| Text::new(text.clone()).packed(&dictionary, *is_typical))
                .collect();
            for ((text, _), packed) in texts.iter().zip(packed) {
                prop_assert!(packed.read(|bytes| bytes == text.as_bytes()));
            }
        }
    }

    #[test]
    fn similar_texts_take_little_space() {
        let dictionary = Dictionary::default();
        let fields: Vec<_> = (0..300_u64).map(|i| format!("{:x}:{}", i * 7919, i * i * i)).collect();
        let fields = fields.join(",");
        let first = Text::new(format!("worker-1 {fields}")).packed(&dictionary, true);
        let second = Text::new(format!("worker-2 {fields}")).packed(&dictionary, true);
        assert!(
            first.len() < 100 && second.len() < 100,
            "{} {}",
            first.len(),
            second.len()
        );
    }

    #[test]
    fn the_first_typical_text_is_the_pattern() {
        let dictionary = Dictionary::default();
        let text = |seed: u64| {
            let fields = (0..300_u64).map(|i| format!("{:x}", (i + seed) * 7919 * (seed + 1)));
            fields.collect::<Vec<_>>().join(",")
        };
        let packed = |text: &str, is_typical| Text::new(text.to_owned()).packed(&dictionary, is_typical);
        let (waiting, running, other) = (text(1), text(2), text(3));
        assert!(packed(&waiting, false).len() < 100, "there is no other");
        assert!(packed(&running, false).len() > 300, "it is not like the first one");
        assert!(packed(&running, true).len() < 100, "a typical one replaces it");
        assert!(packed(&other, true).len() > 300, "the first typical one stays");
        assert!(packed(&running, false).len() < 100 && packed(&waiting, false).len() > 300);
    }
}
