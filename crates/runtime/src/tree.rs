//! Memory that JSON takes as a tree.

/// A node of a map has room for eleven keys (24 bytes) and values (32 bytes), and the first two are texts with memory of their own.
const MAP: u64 = 720;
/// A list begins with room for four values.
const LIST: u64 = 192;
/// One more value of a list, which has room for twice as many and is copied when it grows; or one more entry of a map, whose nodes are half
/// full.
const ENTRY: u64 = 176;

/// Counts the memory that JSON takes at most as a tree, while it comes in parts. It can be a hundred times the text, as with `{"":0}`, so the
/// structure is counted; texts take what they are, whatever characters they have.
#[derive(Clone, Copy, Debug, Default)]
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

    /// Counts the next part of the text.
    pub fn read(&mut self, part: &[u8]) {
        for byte in part {
            let bytes = if self.in_text {
                self.in_text = self.is_escaped || *byte != b'"';
                self.is_escaped = !self.is_escaped && *byte == b'\\';
                1
            } else {
                match byte {
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                match byte {
                    b'{' => MAP,
                    b'[' => LIST,
                    b',' => ENTRY,
                    _ => {
                        self.in_text = *byte == b'"';
                        1
                    }
                }
            };
            self.bytes = self.bytes.saturating_add(bytes);
        }
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

    #[test]
    fn memory_follows_the_structure() {
        let of = |text: &str| Tree::of(text.as_bytes()).bytes();
        let small_maps = format!("[{}{{}}]", r#"{"":0},"#.repeat(1000));
        assert!(of(&small_maps) > 1000 * (11 * (24 + 32)), "each has a node of its own");
        let numbers = format!("[{}0]", "0,".repeat(1000));
        assert!(of(&numbers) > 1000 * 3 * 32);
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

    #[test]
    fn it_does_not_matter_where_the_parts_end() {
        let text = br#"{"a":["\"{,[","\\",{"b":1,"c":[]}],"d":"[\\\","}"#;
        for size in 1..text.len() {
            let mut tree = Tree::default();
            for part in text.chunks(size) {
                tree.read(part);
            }
            assert_eq!(tree.bytes(), Tree::of(text).bytes(), "{size}");
        }
    }

    #[test]
    fn brackets_in_texts_close_nothing() {
        assert!(Tree::of(br#"{"a":["}]\"}"],"b":{}}"#).is_closed());
        for open in [r#"{"a":{}"#, r#"{"a":"}"#, r#"{"a":"}","b":["]"]"#] {
            assert!(!Tree::of(open.as_bytes()).is_closed(), "{open}");
        }
    }
}
