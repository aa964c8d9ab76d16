//! How long the lines of a watch are, while they come.

use super::MAX_ANSWER;
use crate::tree::Tree;

/// How the lines of a watch begin that may be as long as an answer. All servers that are made with Kubernetes' libraries write them like this.
const OBJECTS: [&[u8]; 3] = [
    br#"{"type":"ADDED","object":{"#,
    br#"{"type":"MODIFIED","object":{"#,
    br#"{"type":"DELETED","object":{"#,
];
/// Bytes of a line of a watch besides the object: of a bookmark or an error, they are all. The client makes much larger trees of these than of
/// objects, and writes errors into the log.
pub(super) const MAX_AROUND: usize = 64 << 10;

/// What was read of a line of a watch.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Bytes of all.
    bytes: usize,
    /// Bytes besides the object.
    around: usize,
    object: Object,
}

/// Where in a line its object is.
#[derive(Debug)]
enum Object {
    /// Not yet: the line began with this.
    Ahead(Vec<u8>),
    /// Here.
    Here(Tree),
    /// It has ended, or the line has none.
    Over,
}

impl Default for Object {
    fn default() -> Self {
        Self::Ahead(Vec::new())
    }
}

impl Line {
    /// Reads the next part of the watch, which may be of several lines. Returns false if one of them is too long.
    pub(super) fn read(&mut self, part: &[u8]) -> bool {
        // JSON has no line break in a text.
        let mut lines = part.split(|byte| *byte == b'\n');
        let of_this = lines.next().unwrap_or_default();
        self.read_within(of_this)
            && lines.all(|line| {
                *self = Self::default();
                self.read_within(line)
            })
    }

    /// Reads the next part of this line. Returns false if it is too long.
    fn read_within(&mut self, part: &[u8]) -> bool {
        self.bytes += part.len();
        let mut rest = part;
        while let (Object::Ahead(start), Some((byte, after))) = (&mut self.object, rest.split_first()) {
            rest = after;
            self.around += 1;
            start.push(*byte);
            let start = start.as_slice();
            let expected = OBJECTS.iter().find(|object| object.starts_with(start));
            match expected.map(|object| object.len() == start.len()) {
                Some(true) => self.object = Object::Here(Tree::of(b"{")),
                Some(false) => {}
                None => self.object = Object::Over,
            }
        }
        if let Object::Here(tree) = &mut self.object {
            rest = tree.read_open(rest);
            if tree.is_closed() {
                self.object = Object::Over;
            }
        }
        self.around += rest.len();
        self.bytes <= MAX_ANSWER && self.around <= MAX_AROUND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether lines of a watch are read, in however many parts they come.
    fn are_read(text: &str) -> bool {
        let in_parts_of = |size| {
            let mut line = Line::default();
            text.as_bytes().chunks(size).all(|part| line.read(part))
        };
        let whole = in_parts_of(text.len());
        assert!([999, 4096].into_iter().all(|size| in_parts_of(size) == whole));
        whole
    }

    #[test]
    fn it_does_not_matter_where_the_parts_of_a_line_end() {
        const ADDED: &str = r#"{"type":"ADDED","object":{"a":"}\"}","b":[{}]}}"#;
        for text in [
            ADDED,
            r#"{"type":"BOOKMARK","object":{"a":1}}"#,
            "",
            &format!("{ADDED}\n{ADDED}\n"),
            &format!("{ADDED}\n\n{}", &ADDED[..30]),
        ] {
            let after = |parts: [&str; 2]| {
                let mut line = Line::default();
                assert!(parts.iter().all(|part| line.read(part.as_bytes())), "{parts:?}");
                format!("{line:?}")
            };
            for cut in 0..=text.len() {
                let (before, rest) = text.split_at(cut);
                assert_eq!(after([before, rest]), after([text, ""]), "{before}");
            }
        }
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limits() {
        let object = (r#"{"type":"ADDED","object":{"a":""#, "\"}}", MAX_ANSWER);
        for (start, end, most) in [object, ("", "", MAX_AROUND)] {
            let line = |bytes: usize| format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len()));
            assert!(are_read(&line(most - 1)) && are_read(&line(most)), "{most}");
            assert!(!are_read(&line(most + 1)), "{most}");
        }
    }

    #[test]
    fn objects_of_a_watch_may_be_long_and_nothing_else() {
        let event = |kind: &str, text: &str| format!("{{\"type\":\"{kind}\",\"object\":{{\"a\":\"{text}\"}}}}\n");
        let escaped = "\\u003c".repeat((3 << 20) / 2);
        assert!(are_read(&event("ADDED", &escaped)), "1.5 MiB in etcd");
        for kind in ["ADDED", "MODIFIED", "DELETED"] {
            assert!(are_read(&event(kind, "}]").repeat(1 << 17)), "many lines have no limit");
            assert!(!are_read(&event(kind, &"x".repeat(MAX_ANSWER))));
        }
        for kind in ["BOOKMARK", "ERROR"] {
            assert!(are_read(&event(kind, "x").repeat(1 << 17)));
            assert!(!are_read(&event(kind, &"x".repeat(MAX_AROUND))));
        }
        // What a client would try to read as an error.
        let causes = "{},".repeat(1 << 20);
        assert!(!are_read(&format!(
            r#"{{"type":"ADDED","object":{{"a":"}}"}},"details":{{"causes":[{causes}"#
        )));
        assert!(!are_read(&format!(r#"{{"object":{{"a":[{causes}"#)));
    }
}
