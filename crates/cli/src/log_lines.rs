//! Lines of the logs of pods. In those of the API servers of tenants, events of an audit log are among the messages.

use std::collections::VecDeque;
use std::io;

use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use serde::de::IgnoredAny;

/// Name of the container, and of the component, in whose log there may be an audit log.
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// Bytes of a line that are read as one: a longer one becomes several. Events are shorter.
const MAX_LINE: u64 = 1 << 20;
/// What each event of an audit log begins with.
const AUDIT_EVENT: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/"#;
/// Bytes of the parts in which container runtimes write a line. Between two of them there may be a line of the other stream.
const PART: usize = 16 << 10;
/// What messages of an API server begin with, before the month and the day.
const LEVELS: &[u8] = b"IWEF";

/// Which lines of a log are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Messages, and the lines that may have a part of one.
    Messages,
    /// Messages, and no line that may have a part of an event: those who get it do not have to know what users do.
    MessagesAlone,
    /// Events of the audit log, and the lines that may have a part of one.
    AuditEvents,
}

/// What is in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Event,
    /// A part of an event, and perhaps a message.
    Mixed,
}

/// Where a line begins.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At the beginning of what is read of a log, which may be in the middle of an event.
    Start,
    Between,
    /// In an event of which the end was not there yet.
    InEvent,
}

/// Finds the wanted lines among all lines of a log, one after the other. A message may be between two [parts](PART) of an event, and an event between two
/// of a message.
#[derive(Debug)]
pub(crate) struct Sorter {
    content: Content,
    /// Whether each line begins with a time and a space, which are no part of what a program wrote.
    has_timestamps: bool,
    place: Place,
    /// What the line had that is not at its end yet.
    continued: Option<Kind>,
}

impl Sorter {
    pub(crate) fn new(content: Content) -> Self {
        Self {
            content,
            has_timestamps: false,
            place: match content {
                Content::MessagesAlone => Place::Start,
                Content::Messages | Content::AuditEvents => Place::Between,
            },
            continued: None,
        }
    }

    /// The same for a log in which the kubelet has put the time before each line.
    pub(crate) fn with_timestamps(self, has_timestamps: bool) -> Self {
        Self { has_timestamps, ..self }
    }

    /// Whether the next line is wanted.
    pub(crate) fn wants(&mut self, line: &[u8]) -> bool {
        let kind = self.continued.unwrap_or_else(|| self.classify(self.written(line)));
        self.continued = (!line.ends_with(b"\n")).then_some(kind);
        match self.content {
            Content::Messages => kind != Kind::Event,
            Content::MessagesAlone => kind == Kind::Message,
            Content::AuditEvents => kind != Kind::Message,
        }
    }

    /// A line as the program wrote it.
    fn written<'l>(&self, line: &'l [u8]) -> &'l [u8] {
        let space = line.iter().position(|byte| *byte == b' ');
        let begin = space.filter(|_| self.has_timestamps).map_or(0, |space| space + 1);
        &line[begin..]
    }

    fn classify(&mut self, line: &[u8]) -> Kind {
        let is_end = line.trim_ascii_end().ends_with(b"}");
        let (kind, place) = match self.place {
            _ if line.starts_with(AUDIT_EVENT) && is_json(line) => (Kind::Event, Place::Between),
            _ if line.starts_with(AUDIT_EVENT) => (Kind::Mixed, Place::InEvent),
            place if self.content == Content::MessagesAlone && is_event_as_text(line) => (Kind::Mixed, place),
            Place::InEvent if is_message(line) => (Kind::Message, Place::InEvent),
            Place::InEvent if !is_end => (Kind::Mixed, Place::InEvent),
            Place::InEvent => (Kind::Mixed, Place::Between),
            Place::Start if is_end && !is_message(line) => (Kind::Mixed, Place::Between),
            _ if has_event_behind_part(line) => (Kind::Mixed, Place::Between),
            Place::Start | Place::Between => (Kind::Message, Place::Between),
        };
        self.place = place;
        kind
    }
}

/// Whether a line is an event to its end.
fn is_json(line: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

/// Whether a line has an event that is missing from the audit log, behind the message that says so.
fn is_event_as_text(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    words.nth(1) == Some(b"AUDIT:".as_slice())
}

/// Whether there may be an event behind the first part of a line.
fn has_event_behind_part(line: &[u8]) -> bool {
    let rest = line.get(PART..).unwrap_or_default();
    rest.windows(AUDIT_EVENT.len()).any(|text| text == AUDIT_EVENT)
}

/// Whether a line begins as messages do. Further lines of a message do not.
fn is_message(line: &[u8]) -> bool {
    let Some((level, rest)) = line.split_first() else {
        return false;
    };
    let date = rest.get(..4).unwrap_or_default();
    LEVELS.contains(level) && date.len() == 4 && date.iter().all(u8::is_ascii_digit)
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

/// Reads a log to its end, and keeps the last lines that `sorter` wants: at most so many, with at most so many bytes together.
pub(crate) async fn read_last(
    reader: &mut (impl AsyncBufRead + Unpin),
    mut sorter: Sorter,
    most_lines: usize,
    most_bytes: usize,
) -> io::Result<LastLines> {
    let mut last = LastLines::default();
    let mut line = Vec::new();
    while read_line(reader, &mut line).await? {
        if sorter.wants(&line) {
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
        } = read_last(&mut reader, Sorter::new(content), lines, bytes)
            .await
            .unwrap();
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

    /// A line that goes on has none.
    #[tokio::test]
    async fn times_of_the_kubelet_are_no_part_of_a_line() {
        let time = "2026-11-30T14:00:00.000000001Z";
        let filler = "x".repeat(usize::try_from(MAX_LINE).unwrap());
        let log = format!("{time} I1130 first\n{time} {EVENT}\n{time} {filler} {EVENT}\n{time} \n{time}\n");
        let kept = async |content| {
            let sorter = Sorter::new(content).with_timestamps(true);
            let last = read_last(&mut log.as_bytes(), sorter, 9, usize::MAX).await.unwrap();
            String::from_utf8(last.lines.into_iter().flatten().collect()).unwrap()
        };
        assert_eq!(kept(Content::AuditEvents).await, format!("{time} {EVENT}\n"));
        let messages = kept(Content::Messages).await;
        assert!(
            messages == log.replacen(&format!("{time} {EVENT}\n"), "", 1),
            "{}",
            messages.len()
        );
        let without = last(&log, Content::AuditEvents, 9, usize::MAX).await;
        assert_eq!(without.0, "", "they would hide events");
    }

    #[tokio::test]
    async fn a_message_between_two_parts_of_an_event_is_not_hidden_and_no_part_is_a_message() {
        let (begin, end) = EVENT.split_at(60);
        let log = format!(
            "I1130 first\n{begin}E1130 second\nW1130 third\n{end}\nI1130 fourth\n{EVENT}\n  of the fourth }}\n"
        );
        let kept = async |content| last(&log, content, 9, 999).await;
        let mixed = format!("{begin}E1130 second\nW1130 third\n{end}\n");
        let expected = format!("I1130 first\n{mixed}I1130 fourth\n  of the fourth }}\n");
        assert_eq!(kept(Content::Messages).await, (expected, 1));
        let expected = "I1130 first\nW1130 third\nI1130 fourth\n  of the fourth }\n";
        assert_eq!(kept(Content::MessagesAlone).await, (expected.into(), 3));
        let expected = format!("{begin}E1130 second\n{end}\n{EVENT}\n");
        assert_eq!(kept(Content::AuditEvents).await, (expected, 4));
        // The end of the event never came: another one begins.
        let log = format!("{begin}E1130 first\npanic\n{EVENT}\ngoroutine 1\n");
        let alone = last(&log, Content::MessagesAlone, 9, 999).await;
        assert_eq!(alone, ("goroutine 1\n".into(), 3));
    }

    #[tokio::test]
    async fn an_event_between_two_parts_of_a_message_is_not_hidden_and_not_taken_for_a_message() {
        let part = format!("I1130 {}", "x".repeat(PART - 6));
        let (mixed, rest) = (format!("{part}{EVENT}\n"), "the rest\n");
        let log = mixed.clone() + rest;
        let kept = async |content| last(&log, content, 9, usize::MAX).await;
        assert_eq!(kept(Content::Messages).await, (log.clone(), 0));
        assert_eq!(kept(Content::MessagesAlone).await, (rest.into(), 1));
        assert_eq!(kept(Content::AuditEvents).await, (mixed, 1));
    }

    #[tokio::test]
    async fn an_event_that_is_missing_from_the_audit_log_is_a_message_for_those_who_may_know_it() {
        let text = "2026-05-05T12:00:00Z AUDIT: id=\"a\" stage=\"ResponseComplete\" user=\"CANARY\"\n";
        let message = "E1130 Error in audit plugin 'buffered' affecting 1 audit events\nImpacted events:\n";
        let log = format!("{message}{text}I1130 last\n");
        let kept = async |content| last(&log, content, 9, 999).await;
        assert_eq!(kept(Content::Messages).await, (log.clone(), 0));
        let expected = format!("{message}I1130 last\n");
        assert_eq!(kept(Content::MessagesAlone).await, (expected, 1));
        assert_eq!(kept(Content::AuditEvents).await, (String::new(), 4));
    }

    #[tokio::test]
    async fn a_log_may_begin_in_an_event() {
        let end = "\"username\":\"CANARY\"}\n";
        let log = format!("{end}I1130 first\n{{\"a\":1}}\n");
        let alone = last(&log, Content::MessagesAlone, 9, 999).await;
        assert_eq!(alone, ("I1130 first\n{\"a\":1}\n".into(), 1));
        assert_eq!(last(&log, Content::Messages, 9, 999).await, (log.clone(), 0));
        let log = "Flag --a has been deprecated\n{\"a\":1}\n";
        assert_eq!(last(log, Content::MessagesAlone, 9, 999).await, (log.into(), 0));
        let log = "I1130 first {\"a\":1}\n";
        assert_eq!(last(log, Content::MessagesAlone, 9, 999).await, (log.into(), 0));
    }

    /// A URL may have a MiB, and is in messages.
    #[tokio::test]
    async fn no_part_of_a_long_line_is_an_event() {
        let filler = "x".repeat(usize::try_from(MAX_LINE).unwrap());
        let log = format!("{filler}{EVENT}\n{EVENT}\n");
        let (messages, left_out) = last(&log, Content::Messages, 9, usize::MAX).await;
        assert!(messages == format!("{filler}{EVENT}\n") && left_out == 1);
        let (events, left_out) = last(&log, Content::AuditEvents, 9, usize::MAX).await;
        assert!(events == format!("{EVENT}\n") && left_out == 2);
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
