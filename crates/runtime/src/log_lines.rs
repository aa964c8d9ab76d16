//! Lines of logs: one for each event, whatever its fields are.
//!
//! Fields have texts that tenants write: messages of their webhooks, answers of their servers, also in what the libraries log of themselves. So of
//! each field nothing but its beginning is written, and control characters, which a terminal would carry out and with which a text could look like
//! further lines, are made visible.

use serde_json::json;
use std::fmt::{self, Debug, Write};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext,
        format::{FormatEvent, FormatFields, Writer},
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Characters of a field that are written. Messages of API servers about an object have some hundred.
const MAX_FIELD: usize = 4096;
/// Stands for what is left out.
const LEFT_OUT: char = '…';
/// Name of the field with the message.
const MESSAGE: &str = "message";

/// Passes on the first characters of what is written, with control characters made visible.
struct Short<'a> {
    to: &'a mut dyn Write,
    left: usize,
    is_cut: bool,
}

impl Write for Short<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.left == 0 {
                self.is_cut = true;
                break;
            }
            self.left -= 1;
            if letter.is_control() {
                write!(self.to, "{}", letter.escape_default())?;
            } else {
                self.to.write_char(letter)?;
            }
        }
        Ok(())
    }
}

/// Writes the first [`MAX_FIELD`] characters of a value on one line. An error if `to` takes no more.
fn write_short(to: &mut dyn Write, value: fmt::Arguments<'_>) -> fmt::Result {
    let mut short = Short {
        to,
        left: MAX_FIELD,
        is_cut: false,
    };
    short.write_fmt(value)?;
    if short.is_cut {
        short.to.write_char(LEFT_OUT)?;
    }
    Ok(())
}

/// The name of a field, without what Rust needs for words of its own.
fn name(field: &Field) -> &'static str {
    let name = field.name();
    name.strip_prefix("r#").unwrap_or(name)
}

/// Fields of a line of text: the message, and then `name=value`.
pub(crate) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = TextVisitor {
            writer: &mut writer,
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct TextVisitor<'a> {
    writer: &'a mut dyn Write,
    is_first: bool,
    result: fmt::Result,
}

impl TextVisitor<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if !self.is_first {
            self.writer.write_char(' ')?;
        }
        self.is_first = false;
        if field.name() != MESSAGE {
            write!(self.writer, "{}=", name(field))?;
        }
        write_short(self.writer, value)
    }
}

impl Visit for TextVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }
}

/// Lines that are JSON objects, with time, level, fields and target of the event. Berth has no spans, and those of libraries are left out.
pub(crate) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        write!(
            writer,
            "{{\"timestamp\":{},\"level\":\"{}\"",
            json!(time),
            metadata.level()
        )?;
        let mut visitor = JsonVisitor {
            writer: &mut writer,
            result: Ok(()),
        };
        event.record(&mut visitor);
        visitor.result?;
        writeln!(writer, ",\"target\":{}}}", json!(metadata.target()))
    }
}

struct JsonVisitor<'a> {
    writer: &'a mut dyn Write,
    result: fmt::Result,
}

impl JsonVisitor<'_> {
    /// Writes a field whose value is JSON.
    fn write(&mut self, field: &Field, value: &serde_json::Value) {
        if self.result.is_ok() {
            self.result = write!(self.writer, ",{}:{value}", json!(name(field)));
        }
    }

    /// Writes a field whose value is a text.
    fn write_text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let mut text = String::new();
        match write_short(&mut text, value) {
            Ok(()) => self.write(field, &json!(text)),
            Err(error) => self.result = Err(error),
        }
    }
}

impl Visit for JsonVisitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write(field, &json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, &json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, &json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, &json!(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write_text(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write_text(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{LogFormat, subscriber};
    use serde_json::Value;
    use std::{
        io,
        sync::{Arc, Mutex},
    };
    use tracing_subscriber::EnvFilter;

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What this logs.
    fn logged(format: LogFormat, log: impl FnOnce()) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = subscriber(format, EnvFilter::new("info"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn log_control_characters() {
        let error = "a\x1b[2J\u{9b}\r\nWARN b";
        tracing::warn!(%error, count = 3, is_odd = true, name = "ä\n", "no\x1bte");
        tracing::debug!("it is not asked for");
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let text = logged(LogFormat::Text, log_control_characters);
        let expected = r#" WARN berth_runtime::log_lines::tests: no\u{1b}te error=a\u{1b}[2J\u{9b}\r\nWARN b count=3 is_odd=true name="ä\n""#;
        assert!(text.ends_with(&format!("{expected}\n")), "{text}");
        assert_eq!(text.lines().count(), 1);

        let text = logged(LogFormat::Json, log_control_characters);
        assert!(!text.trim_end().contains(char::is_control), "{text}");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        let time = line.as_object_mut().unwrap().remove("timestamp").unwrap();
        assert!(time.as_str().unwrap().starts_with("20"), "{time}");
        let expected = json!({"level": "WARN", "message": r"no\u{1b}te", "error": r"a\u{1b}[2J\u{9b}\r\nWARN b", "count": 3, "is_odd": true,
            "name": r"ä\n", "target": "berth_runtime::log_lines::tests"});
        assert_eq!(line, expected);
    }

    #[test]
    fn fields_are_cut_and_do_not_take_the_room_of_others() {
        let log = || {
            let long = "ü".repeat(1 << 20);
            tracing::info!(error = %format_args!("{long}{long}"), ?long, after = 7, "{long}");
        };
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = logged(format, log);
            assert_eq!(text.lines().count(), 1);
            assert!(text.chars().count() < 3 * MAX_FIELD + 200, "{}", text.len());
            assert_eq!(text.matches(LEFT_OUT).count(), 3);
            assert!(text.contains("after=7") || text.contains("\"after\":7"), "{format:?}");
        }
    }

    #[test]
    fn a_field_of_the_most_characters_is_whole() {
        let short = |text: &str| {
            let mut written = String::new();
            write_short(&mut written, format_args!("{text}")).unwrap();
            written
        };
        let whole = "ü".repeat(MAX_FIELD);
        assert_eq!(short(&whole), whole);
        assert_eq!(short(&format!("{whole}x")), format!("{whole}…"));
        assert_eq!(short(""), "");
    }
}
