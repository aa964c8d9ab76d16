//! JSON in which control characters of texts are what they are. JSON writes most of them as six characters, and each is one byte in etcd: packed,
//! a text of a tenant that has nothing else would still take five times what it takes there, and what a syncer may keep follows from that.

use serde::Serialize;
use serde_json::{
    Value,
    ser::{CharEscape, Formatter, Serializer},
};
use std::{
    borrow::Cow,
    io::{self, Write},
};

/// Bytes below this are control characters. JSON itself has none: it is written without line breaks.
const FIRST_PRINTABLE: u8 = 0x20;

/// Writes JSON like that.
struct RawControls;

impl Formatter for RawControls {
    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        let byte = match escape {
            CharEscape::Quote => return writer.write_all(br#"\""#),
            CharEscape::ReverseSolidus => return writer.write_all(br"\\"),
            CharEscape::Solidus => b'/',
            CharEscape::Backspace => 0x08,
            CharEscape::FormFeed => 0x0c,
            CharEscape::LineFeed => b'\n',
            CharEscape::CarriageReturn => b'\r',
            CharEscape::Tab => b'\t',
            CharEscape::AsciiControl(byte) => byte,
        };
        writer.write_all(&[byte])
    }
}

/// The text of a value in this form.
pub(super) fn write(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    // No key of a `Value` is anything but a text, and there is memory to write to, so that it can always be written.
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, RawControls));
    if written.is_err() { Vec::new() } else { text }
}

/// The JSON text that a text in this form stands for.
pub(super) fn to_json(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = text.iter().position(|byte| *byte < FIRST_PRINTABLE) else {
        return Cow::Borrowed(text);
    };
    let mut json = text[..first].to_vec();
    for byte in &text[first..] {
        if *byte < FIRST_PRINTABLE {
            json.extend(format!("\\u{byte:04x}").into_bytes());
        } else {
            json.push(*byte);
        }
    }
    json.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// The value that is read from what is written of a value.
    fn read_back(value: &Value) -> Value {
        serde_json::from_slice(&to_json(&write(value))).unwrap()
    }

    proptest! {
        #[test]
        fn any_text_is_read_back(key in "\\PC{0,9}[\\x00-\\x7f]{0,9}", text in "(\\PC|[\\x00-\\x7f]){0,99}") {
            let value = json!({key: [text, 1.5, null, true, {}]});
            prop_assert_eq!(read_back(&value), value);
        }
    }

    #[test]
    fn control_characters_take_a_byte_each() {
        let controls: String = (0..0x20_u8).map(char::from).collect();
        let value = json!(controls);
        assert_eq!(write(&value).len(), controls.len() + 2);
        assert_eq!(read_back(&value), value);
        let ordinary = json!({"a": "\"\\/ä"});
        assert_eq!(write(&ordinary), ordinary.to_string().into_bytes());
        assert!(matches!(to_json(b"{}"), Cow::Borrowed(_)));
    }
}
