//! Keys of symmetric encryption.

use crate::Error;
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Bytes of a key, as `secretbox` takes it.
const KEY_BYTES: usize = 32;

/// A new random key of 32 bytes in base64. Secret.
///
/// # Errors
/// [`Error::Random`] when the library gives no random bytes.
pub fn create_symmetric_key() -> Result<String, Error> {
    let mut bytes = [0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_length_of_secretbox_and_differ() {
        let keys = [create_symmetric_key().unwrap(), create_symmetric_key().unwrap()];
        assert_ne!(keys[0], keys[1]);
        for key in keys {
            assert_eq!(STANDARD.decode(key).unwrap().len(), KEY_BYTES);
        }
    }
}
