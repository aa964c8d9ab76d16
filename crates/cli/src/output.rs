//! Printing.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use berth_api::text::{one_line, printable};
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;

/// The form in which a command prints its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// YAML for programs and people.
    Yaml,
}

/// The form in which a command prints objects of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    /// Text for people.
    #[default]
    Table,
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
    /// Only resource and name.
    Name,
}

/// The one form besides text in which a command prints what it has done to an object, as in kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NameOnly {
    /// Only resource and name.
    Name,
}

/// Prints a line to stdout, [without control characters](printable): tenants write parts of what is shown. A reader that has closed the pipe
/// (`| head`) is no error.
pub(crate) fn print_line(line: fmt::Arguments<'_>) -> Result<(), Error> {
    print_next_line(line).map(drop)
}

/// Prints a line as [`print_line`] does. Returns whether it may be read: what goes on without end ends with its reader.
pub(crate) fn print_next_line(line: fmt::Arguments<'_>) -> Result<bool, Error> {
    write_all(
        &mut io::stdout().lock(),
        (printable(&line.to_string()) + "\n").as_bytes(),
    )
}

/// Writes bytes to stdout as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    write_all(&mut io::stdout().lock(), bytes).map(drop)
}

/// Writes all, and returns whether the reader is still there.
fn write_all(writer: &mut impl io::Write, bytes: &[u8]) -> Result<bool, Error> {
    match writer.write_all(bytes).and_then(|()| writer.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::Output(error.to_string())),
    }
}

/// Prints a line about the progress of a command to stderr, whatever [the texts of others](one_line) in it say.
pub(crate) fn print_note(note: fmt::Arguments<'_>) {
    print_text(format_args!("· {}", one_line(&note.to_string())));
}

/// The end of a command that went on after a failure: all failures but the last, which the caller prints, as notes.
pub(crate) fn finish(mut failures: Vec<Error>) -> Result<ExitCode, Error> {
    let last = failures.pop();
    for failure in failures {
        print_note(format_args!("{failure}"));
    }
    last.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Prints lines to stderr, [without control characters](printable). That nobody reads them (`2>&1 | head`) ends no command: what it does goes on.
pub(crate) fn print_text(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(&text.to_string()));
}

/// Prints a question to stderr, behind which the answer is written.
pub(crate) fn print_question(question: fmt::Arguments<'_>) {
    let _ = write!(io::stderr().lock(), "{}", printable(&question.to_string()));
}

/// The lines of a text. None becomes several, or hides others: [parts of them are texts of others](one_line).
pub(crate) fn join_lines<Line: AsRef<str>>(lines: &[Line]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| one_line(line.as_ref())).collect();
    lines.join("\n")
}

/// Prints the result of a command in the requested format. `describe` formats it for people.
pub(crate) fn print<T: Serialize>(found: &T, describe: fn(&T) -> String, format: OutputFormat) -> Result<(), Error> {
    let failed = |error: &dyn fmt::Display| Error::Output(error.to_string());
    let text = match format {
        OutputFormat::Table => describe(found),
        OutputFormat::Json => serde_json::to_string_pretty(found).map_err(|error| failed(&error))?,
        OutputFormat::Yaml => serde_saphyr::to_string(found).map_err(|error| failed(&error))?,
    };
    print_line(format_args!("{}", text.trim_end()))
}

/// Prints a result that is about objects of the API. `names` are their names with the resource.
pub(crate) fn print_named<T: Serialize>(
    found: &T,
    names: &[String],
    describe: fn(&T) -> String,
    format: ObjectFormat,
) -> Result<(), Error> {
    let format = match format {
        ObjectFormat::Table => OutputFormat::Table,
        ObjectFormat::Json => OutputFormat::Json,
        ObjectFormat::Yaml => OutputFormat::Yaml,
        ObjectFormat::Name if names.is_empty() => return Ok(()),
        ObjectFormat::Name => return print_line(format_args!("{}", join_lines(names))),
    };
    print(found, describe, format)
}

/// Prints objects as their API has them, or in another form. `names` are their names with the resource; `text` is for people.
pub(crate) fn print_objects<T: Serialize>(
    objects: &T,
    names: &[String],
    text: impl FnOnce() -> String,
    format: ObjectFormat,
) -> Result<(), Error> {
    let failed = |error: &dyn fmt::Display| Error::Output(error.to_string());
    let mut value = serde_json::to_value(objects).map_err(|error| failed(&error))?;
    remove_managed_fields(&mut value);
    let text = match format {
        ObjectFormat::Table => text(),
        ObjectFormat::Name => join_lines(names),
        ObjectFormat::Json => serde_json::to_string_pretty(&value).map_err(|error| failed(&error))?,
        ObjectFormat::Yaml => serde_saphyr::to_string(&value).map_err(|error| failed(&error))?,
    };
    if text.is_empty() {
        return Ok(());
    }
    print_line(format_args!("{}", text.trim_end()))
}

/// A list of objects, as kubectl prints it.
pub(crate) fn list_of<T: Serialize>(items: &[T]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Who set which field is of no use to readers; kubectl does not show it either.
fn remove_managed_fields(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    for item in value
        .get_mut("items")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        remove_managed_fields(item);
    }
}

/// A duration of whole seconds in one or two units, as kubectl writes ages.
pub(crate) fn format_age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, name: &str, rest: i64, small: &str| match rest {
        0 => format!("{large}{name}"),
        rest => format!("{large}{name}{rest}{small}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// The age of something that began at `since`; a dash if that is not known.
pub(crate) fn format_age_since(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "-".into(), |since| format_age(now.as_second() - since.as_second()))
}

/// A moment in UTC, to the second.
pub(crate) fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The text, or a dash in its place.
pub(crate) fn format_optional(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".into())
}

/// A number with its noun, which takes an s if there is not one.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Left-aligned columns with a heading. Each row is [one line](one_line).
pub(crate) fn format_table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    format_columns(&heading, rows)
}

/// The same for a number of columns that depends on what is shown. Each row has as many cells as the heading.
pub(crate) fn format_columns<Row: AsRef<[String]>>(heading: &[&str], rows: &[Row]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.as_ref().iter().map(|cell| one_line(cell)).collect())
        .collect();
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[&str]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths.iter().copied())
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(heading)];
    lines.extend(rows.iter().map(|row| {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells)
    }));
    lines.join("\n")
}

/// A table as it is, or without its heading.
pub(crate) fn keep_heading(table: String, is_kept: bool) -> String {
    if is_kept {
        return table;
    }
    table
        .split_once('\n')
        .map(|(_, rows)| rows.to_owned())
        .unwrap_or_default()
}

/// A table with a row for each item; none without items.
pub(crate) fn format_rows<T, const N: usize>(
    heading: [&str; N],
    items: &[T],
    row: impl FnMut(&T) -> [String; N],
) -> Option<String> {
    let rows: Vec<_> = items.iter().map(row).collect();
    (!rows.is_empty()).then(|| format_table(heading, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(io::ErrorKind);

    impl io::Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_noticed() {
        assert!(!write_all(&mut Failing(io::ErrorKind::BrokenPipe), b"a").unwrap());
        let error = write_all(&mut Failing(io::ErrorKind::StorageFull), b"a").unwrap_err();
        assert!(matches!(error, Error::Output(_)), "{error}");
        let mut written = Vec::new();
        assert!(write_all(&mut written, b"a").unwrap());
        assert_eq!(written, b"a");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "long".into()], ["longer".into(), String::new()]];
        let table = "X       Y\na       long\nlonger";
        assert_eq!(format_table(["X", "Y"], &rows), table);
        assert_eq!(format_rows(["X", "Y"], &rows, Clone::clone).as_deref(), Some(table));
        assert_eq!(format_rows(["X"], &[], |row: &[String; 1]| row.clone()), None);
        assert_eq!(format_columns(&["X", "Y"], &rows.map(Vec::from)), table);
        assert_eq!(format_columns::<Vec<String>>(&["X"], &[]), "X");
        assert_eq!(keep_heading(table.to_owned(), true), table);
        assert_eq!(keep_heading(table.to_owned(), false), "a       long\nlonger");
        assert_eq!(keep_heading("X".to_owned(), false), "");
    }

    #[test]
    fn a_cell_and_a_line_forge_no_others() {
        let rows = [
            ["a\nb  True".into(), "x\ty\u{202e}".into()],
            ["c".into(), String::new()],
        ];
        let table = "X          Y\na\u{fffd}b  True  x\u{fffd}y\u{fffd}\nc";
        assert_eq!(format_table(["X", "Y"], &rows), table);
        assert_eq!(
            join_lines(&["User a\nUser b: 8", "User c"]),
            "User a\u{fffd}User b: 8\nUser c"
        );
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, text) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (3600, "60m"),
            (3 * 3600, "3h"),
            (4 * 3600 + 60, "4h1m"),
            (9 * 3600, "9h"),
            (3 * 86400 + 3600, "3d1h"),
            (30 * 86400, "30d"),
        ] {
            assert_eq!(format_age(seconds), text);
        }
    }

    #[test]
    fn managed_fields_are_not_shown() {
        let mut value = json!({"items": [{"metadata": {"name": "a", "managedFields": [{}]}}]});
        remove_managed_fields(&mut value);
        assert_eq!(value, json!({"items": [{"metadata": {"name": "a"}}]}));
    }
}
