//! Memory that JSON takes as a tree.

use serde_json::Value;

/// A node of a map has room for eleven keys (24 bytes) and values (32 bytes), and the first two are texts with memory of their own.
const MAP: u64 = 720;
/// A list begins with room for four values.
const LIST: u64 = 192;
/// One more value of a list, which has room for twice as many and is copied when it grows; or one more entry of a map, whose nodes are half
/// full.
const ENTRY: u64 = 176;

/// Counts the memory that JSON takes at most as a tree, while it comes in parts. It can be a hundred times the text, as with `{"":0}`, so the
/// structure is counted; texts take what they are, whatever characters they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    bytes: u64,
    in_text: bool,
    /// Whether the next byte is what a backslash in a text is about.
    is_escaped: bool,
    /// Maps and lists that are open.
    depth: usize,
}

impl Tree {
    /// That of a whole text.
    pub fn of(text: &[u8]) -> Self {
        let mut tree = Self::default();
        tree.read(text);
        tree
    }

    /// Memory of a value in bytes: what is counted in its text, but for numbers and escapes, which are short.
    pub fn bytes_of(value: &Value) -> u64 {
        let commas = |entries: usize| ENTRY * entries.saturating_sub(1) as u64;
        match value {
            Value::Object(entries) => {
                let bytes = entries
                    .iter()
                    .map(|(key, value)| key.len() as u64 + Self::bytes_of(value));
                MAP + commas(entries.len()) + bytes.sum::<u64>()
            }
            Value::Array(items) => LIST + commas(items.len()) + items.iter().map(Self::bytes_of).sum::<u64>(),
            Value::String(text) => text.len() as u64,
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }

    /// Counts the next part of the text.
    pub fn read(&mut self, part: &[u8]) {
        let mut rest = part;
        while !rest.is_empty() {
            rest = self.read_run(rest);
        }
    }

    /// Counts the next part of the text up to where the last open map or list ends. Returns what comes after it: nothing if it does not end here,
    /// and all if none is open.
    pub fn read_open<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        let mut rest = part;
        while !self.is_closed() && !rest.is_empty() {
            rest = self.read_run(rest);
        }
        rest
    }

    /// Counts the next bytes of one kind, those of a text or those besides texts, and returns the others.
    fn read_run<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        if self.in_text {
            self.read_text(part)
        } else {
            self.read_structure(part)
        }
    }

    /// Counts the rest of a text, with the quote at its end. Returns what comes after it.
    fn read_text<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        let mut rest = part;
        while self.in_text && !rest.is_empty() {
            let length = if self.is_escaped {
                self.is_escaped = false;
                1
            } else if let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
                self.is_escaped = rest[at] == b'\\';
                self.in_text = self.is_escaped;
                at + 1
            } else {
                rest.len()
            };
            rest = &rest[length..];
        }
        self.count((part.len() - rest.len()) as u64);
        rest
    }

    /// Counts what is no text, up to the quote with which the next one begins, or up to where nothing is open. Returns what comes after it.
    fn read_structure<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        for (at, byte) in part.iter().enumerate() {
            match byte {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.count(match byte {
                b'{' => MAP,
                b'[' => LIST,
                b',' => ENTRY,
                _ => 1,
            });
            self.in_text = *byte == b'"';
            if self.in_text || (self.is_closed() && matches!(byte, b'}' | b']')) {
                return &part[at + 1..];
            }
        }
        &[]
    }

    fn count(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether every map and list of what was counted has ended.
    pub fn is_closed(&self) -> bool {
        self.depth == 0
    }

    /// The memory of what was counted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn memory_follows_the_structure() {
        let of = |text: &str| Tree::of(text.as_bytes()).bytes();
        let small_maps = format!("[{}{{}}]", r#"{"":0},"#.repeat(1000));
        assert!(of(&small_maps) > 1000 * (11 * (24 + 32)), "each has a node of its own");
        let numbers = format!("[{}0]", "0,".repeat(1000));
        assert!(of(&numbers) > 1000 * 3 * 32);
    }

    #[test]
    fn a_value_takes_what_its_text_takes() {
        let long = "x".repeat(5000);
        let value = json!({"maps": vec![json!({"a": "b", "c": {}}); 1000], "numbers": vec![1; 1000], "text": long});
        let (of_value, of_text) = (Tree::bytes_of(&value), Tree::of(value.to_string().as_bytes()).bytes());
        assert!(
            of_value <= of_text && of_value > of_text / 100 * 98,
            "{of_value} {of_text}"
        );
    }

    #[test]
    fn texts_take_what_they_are() {
        for text in ["x", ",", "{[", r#"\","#, r"\\", r#"\\\"["#] {
            let object = format!(r#"{{"a":"{}"}}"#, text.repeat(1000));
            let text_bytes = 1000 * u64::try_from(text.len()).unwrap();
            let bytes = Tree::of(object.as_bytes()).bytes();
            assert!((text_bytes..text_bytes + 1000).contains(&bytes), "{text}: {bytes}");
        }
        // What comes after such a text counts again.
        for text in [r#""\\",[[["#, r#""\"",[[["#, r#""",[[["#] {
            assert!(Tree::of(text.as_bytes()).bytes() > ENTRY + 3 * LIST, "{text}");
        }
    }

    /// What is known after these parts.
    fn read_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Tree {
        let mut tree = Tree::default();
        for part in parts {
            tree.read(part);
        }
        tree
    }

    #[test]
    fn it_does_not_matter_where_the_parts_end() {
        for text in [
            r#"{"a":["\"{,[","\\",{"b":1,"c":[]}],"d":"[\\\","}"#,
            r#"}],"\\\"",{"ä\u003c":"\\"}{[""#,
        ] {
            let text = text.as_bytes();
            let whole = Tree::of(text);
            for size in 1..=text.len() {
                assert_eq!(read_parts(text.chunks(size)), whole, "parts of {size}");
                let (before, after) = text.split_at(size);
                assert_eq!(read_parts([before, after]), whole, "cut at {size}");
            }
        }
    }

    #[test]
    fn each_byte_counts_once() {
        // Two maps, two lists, three commas, and 22 other bytes.
        let text = br#"{"a":["\"{,[",{"b":1},[2,3]]}"#;
        assert_eq!(Tree::of(text).bytes(), 2 * MAP + 2 * LIST + 3 * ENTRY + 22);
        // A bracket too many closes nothing, and what comes after it counts.
        assert_eq!(Tree::of(b"}][,").bytes(), 2 + LIST + ENTRY);
    }

    #[test]
    fn reading_what_is_open_ends_with_it() {
        let text = br#"{"a":["}]\"}"],"b":{}}"#;
        let around = [text.as_slice(), br#","c":{"d":[]}}"#].concat();
        for size in 1..around.len() {
            let mut tree = Tree::of(b"{");
            let mut rest = Vec::new();
            for part in around[1..].chunks(size) {
                rest.extend_from_slice(tree.read_open(part));
            }
            assert_eq!(rest, &around[text.len()..], "{size}");
            assert_eq!(tree, Tree::of(text), "{size}");
        }
        assert_eq!(Tree::default().read_open(b"[]"), b"[]");
    }

    #[test]
    fn brackets_in_texts_close_nothing() {
        assert!(Tree::of(br#"{"a":["}]\"}"],"b":{}}"#).is_closed());
        for open in [r#"{"a":{}"#, r#"{"a":"}"#, r#"{"a":"}","b":["]"]"#] {
            assert!(!Tree::of(open.as_bytes()).is_closed(), "{open}");
        }
    }
}
