//! The text of kept objects, packed. Objects of one kind are much alike, the pods of one Deployment nearly the same, so
//! each store packs against the first object it saw: what is left of a pod of 3 KB is some hundred bytes.

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use std::sync::{Arc, OnceLock};

/// Texts shorter than this are kept as they are.
const WORTH_PACKING: usize = 256;
/// Longest dictionary. Packing searches every text for parts of it.
const LONGEST: usize = 8 * 1024;

/// What the texts of a store are packed against: the beginning of the first of them.
#[derive(Debug, Default)]
pub(super) struct Dictionary(OnceLock<Arc<[u8]>>);

/// A text, packed or not.
#[derive(Clone, Debug)]
pub(super) enum Text {
    Plain(Box<[u8]>),
    Packed(Box<[u8]>, Arc<[u8]>),
}

impl Text {
    pub(super) fn new(text: String) -> Self {
        Self::Plain(text.into_bytes().into_boxed_slice())
    }

    /// The same text, packed if that is worth it.
    pub(super) fn packed(self, dictionary: &Dictionary) -> Self {
        match self {
            Self::Plain(text) if text.len() >= WORTH_PACKING => {
                let dictionary = dictionary.0.get_or_init(|| text[..text.len().min(LONGEST)].into());
                let packed = compress_prepend_size_with_dict(&text, dictionary);
                Self::Packed(packed.into_boxed_slice(), Arc::clone(dictionary))
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
        fn packed_text_unpacks_to_the_original(texts in prop::collection::vec("[a-f\\PC]{0,600}", 1..6)) {
            let dictionary = Dictionary::default();
            for text in texts {
                let packed = Text::new(text.clone()).packed(&dictionary);
                prop_assert!(packed.read(|bytes| bytes == text.as_bytes()));
            }
        }
    }

    #[test]
    fn similar_texts_take_little_space() {
        let dictionary = Dictionary::default();
        let fields: Vec<_> = (0..300_u64).map(|i| format!("{:x}:{}", i * 7919, i * i * i)).collect();
        let fields = fields.join(",");
        let first = Text::new(format!("worker-1 {fields}")).packed(&dictionary);
        let second = Text::new(format!("worker-2 {fields}")).packed(&dictionary);
        assert!(
            first.len() < 100 && second.len() < 100,
            "{} {}",
            first.len(),
            second.len()
        );
    }
}
