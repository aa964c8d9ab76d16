//! Hashes of JSON values.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A hash of a JSON value that does not depend on the order of keys: 26 lower-case hexadecimal characters (104 bits).
pub fn hash(value: &Value) -> String {
    salted_hash("", value)
}

/// The same, but another one for each salt. Without a salt it is [`hash`].
pub fn salted_hash(salt: &str, value: &Value) -> String {
    let (mut digest, mut buffer) = (Sha256::new(), Vec::new());
    if !salt.is_empty() {
        feed_scalar(&salt, &mut digest, &mut buffer);
    }
    feed(value, &mut digest, &mut buffer);
    let mut text = String::with_capacity(26);
    for byte in digest.finalize().iter().take(13) {
        // Writing to a String cannot fail.
        let _: std::fmt::Result = write!(text, "{byte:02x}");
    }
    text
}

/// Feeds a value to a digest. `text` is a buffer.
fn feed(value: &Value, digest: &mut Sha256, text: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(a, _)| *a);
            digest.update(b"{");
            for (key, value) in fields {
                feed_scalar(key, digest, text);
                feed(value, digest, text);
            }
            digest.update(b"}");
        }
        Value::Array(items) => {
            digest.update(b"[");
            for item in items {
                feed(item, digest, text);
            }
            digest.update(b"]");
        }
        scalar => feed_scalar(scalar, digest, text),
    }
}

/// Feeds the JSON text of a key or scalar to a digest, with its length before it.
fn feed_scalar(scalar: &impl Serialize, digest: &mut Sha256, text: &mut Vec<u8>) {
    text.clear();
    // Writing a scalar to a Vec cannot fail.
    let _: serde_json::Result<()> = serde_json::to_writer(&mut *text, scalar);
    digest.update((text.len() as u64).to_be_bytes());
    digest.update(&*text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hashes_depend_on_values_and_not_on_key_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[1,2]}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":[1,2],"a":1}"#).unwrap();
        assert_eq!(hash(&one), hash(&two));
        assert_ne!(hash(&one), hash(&json!({"a": 1, "b": [2, 1]})));
        assert_ne!(hash(&json!(["a", "b"])), hash(&json!(["ab"])));
    }

    #[test]
    fn a_hash_that_is_on_record_stays_valid() {
        // Host objects have it as an annotation: another one would write all of them again after an upgrade.
        let value = json!({"z": [true, "é\n", null, -7], "a\"b": 1.5});
        assert_eq!(hash(&value), "efa68dbfcc1ac6154a21ee5e9f");
    }

    #[test]
    fn a_salt_changes_every_hash() {
        let value = json!({"a": 1});
        assert_eq!(salted_hash("", &value), hash(&value));
        assert_eq!(salted_hash("s", &value), salted_hash("s", &value));
        assert_ne!(salted_hash("s", &value), hash(&value));
        assert_ne!(salted_hash("s", &value), salted_hash("t", &value));
    }
}
