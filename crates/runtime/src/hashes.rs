//! Hashes by which a process notices that something has changed.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The hash of a value: the same for equal values as long as the process runs. Another version of the program may have another one, so it is not stored.
pub fn hash_of<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_the_same_hash_and_others_have_another_one() {
        assert_eq!(hash_of("team"), hash_of(&"team".to_owned()));
        assert_eq!(hash_of(&("team", 1)), hash_of(&("team", 1)));
        assert_ne!(hash_of(&("team", 1)), hash_of(&("team", 2)));
    }
}
