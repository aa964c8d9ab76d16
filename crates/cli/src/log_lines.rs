//! Lines of the logs of pods. In those of the API servers of tenants, events of an audit log are among the messages.

use std::collections::VecDeque;
use std::io;

use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Name of the container, and of the component, in whose log there may be an audit log.
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// Bytes of a line that are read as one: a longer one becomes several. Events are shorter.
const MAX_LINE: u64 = 1 << 20;
/// What each event of an audit log begins with.
const AUDIT_EVENT: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/"#;

/// Which lines of a log are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Those that are no events of an audit log.
    Messages,
    /// Events of the audit log.
    AuditEvents,
}

impl Content {
    /// Whether a line is wanted.
    pub(crate) fn includes(self, line: &[u8]) -> bool {
        let is_event = line.starts_with(AUDIT_EVENT);
        match self {
            Self::Messages => !is_event,
            Self::AuditEvents => is_event,
        }
    }
}

/// Reads the next line, or the next [`MAX_LINE`] bytes of a longer one, in place of what is in `line`. Returns whether there is one.
pub(crate) async fn read_line(reader: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut part = reader.take(MAX_LINE);
    part.read_until(b'\n', line).await?;
    Ok(!line.is_empty())
}

/// The last wanted lines of a log.
#[derive(Debug, Default)]
pub(crate) struct LastLines {
    /// The lines, each with its end.
    pub(crate) lines: VecDeque<Vec<u8>>,
    /// Number of lines that were not wanted.
    pub(crate) left_out: u64,
    /// Bytes of `lines`.
    bytes: usize,
}

impl LastLines {
    fn push(&mut self, line: Vec<u8>, most_lines: usize, most_bytes: usize) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > most_lines || self.bytes > most_bytes {
            let Some(first) = self.lines.pop_front() else { return };
            self.bytes -= first.len();
        }
    }
}

/// Reads a log to its end, and keeps the last wanted lines: at most so many, with at most so many bytes together.
pub(crate) async fn read_last(
    reader: &mut (impl AsyncBufRead + Unpin),
    content: Content,
    most_lines: usize,
    most_bytes: usize,
) -> io::Result<LastLines> {
    let mut last = LastLines::default();
    let mut line = Vec::new();
    while read_line(reader, &mut line).await? {
        if content.includes(&line) {
            last.push(std::mem::take(&mut line), most_lines, most_bytes);
        } else {
            last.left_out += 1;
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata"}"#;

    async fn last(log: &str, content: Content, lines: usize, bytes: usize) -> (String, u64) {
        let mut reader = log.as_bytes();
        let LastLines {
            lines,
            left_out,
            bytes: kept,
        } = read_last(&mut reader, content, lines, bytes).await.unwrap();
        let text: Vec<u8> = lines.into_iter().flatten().collect();
        assert_eq!(text.len(), kept);
        (String::from_utf8(text).unwrap(), left_out)
    }

    #[tokio::test]
    async fn messages_and_events_differ_in_the_beginning_of_a_line() {
        let log =
            format!("first\n{EVENT}\nfailed: {EVENT}\n{{\"kind\":\"Event\",\"apiVersion\":\"v1\"}}\n{EVENT}\nlast");
        let messages = format!("first\nfailed: {EVENT}\n{{\"kind\":\"Event\",\"apiVersion\":\"v1\"}}\nlast");
        assert_eq!(last(&log, Content::Messages, 9, 999).await, (messages, 2));
        assert_eq!(
            last(&log, Content::AuditEvents, 9, 999).await,
            (format!("{EVENT}\n{EVENT}\n"), 4)
        );
        assert_eq!(last("", Content::Messages, 9, 999).await, (String::new(), 0));
    }

    #[tokio::test]
    async fn the_last_wanted_lines_are_kept_however_many_others_follow() {
        let mut log = "a\nbb\nccc\n".to_owned();
        log += &format!("{EVENT}\n").repeat(100);
        let kept = async |lines, bytes| last(&log, Content::Messages, lines, bytes).await;
        assert_eq!(kept(2, 99).await, ("bb\nccc\n".into(), 100));
        assert_eq!(kept(3, 99).await.0, "a\nbb\nccc\n");
        assert_eq!(kept(0, 99).await.0, "");
        assert_eq!(kept(9, 7).await.0, "bb\nccc\n");
        assert_eq!(kept(9, 6).await.0, "ccc\n");
        assert_eq!(kept(9, 3).await.0, "");
    }
}
