//! Traces: jobs that were submitted to a GPU cluster, with their tenants.

mod jobs;
mod pods;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use berth_planner::Seconds;
use csv::StringRecord;
use flate2::bufread::MultiGzDecoder;
use serde::Serialize;

/// A job: processes that need a number of GPUs at once, for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Index into the trace's tenants.
    pub tenant: usize,
    /// When it is submitted.
    pub arrival: Seconds,
    /// How long it runs, at least one second.
    pub duration: Seconds,
    /// GPUs that it holds while it runs, at least one.
    pub gpus: u32,
}

impl Job {
    /// GPU-seconds that it needs.
    pub fn work(&self) -> u64 {
        u64::from(self.gpus) * self.duration.unsigned_abs()
    }
}

/// Jobs in the order in which they arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Names of the tenants, sorted.
    pub tenants: Vec<String>,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Rows that are not replayed.
    pub left_out: LeftOut,
}

/// Rows that are not replayed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// They request no GPUs.
    pub without_gpus: u64,
    /// They did not run, so their duration is unknown.
    pub never_ran: u64,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Stop after this many jobs, in the order of their arrival.
    pub jobs: Option<usize>,
    /// How many tenants to make if the trace names none.
    pub tenants: u32,
    /// Seed of the assignment of pods to these tenants.
    pub seed: u64,
}

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// The first line names neither form's columns.
    #[error(
        "line 1: the columns are {found:?}; expected timestamp,duration,num_gpus,tenant (or cluster), \
         or those of Alibaba's pod lists: name,…,num_gpu,…,creation_time,deletion_time,scheduled_time"
    )]
    Columns {
        /// The columns of the first line.
        found: String,
    },
    /// A row that cannot be understood.
    #[error("line {line}: {what}")]
    Line {
        /// Line of the file, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// Nothing to replay.
    #[error("the trace has no job that requests GPUs")]
    Empty,
}

/// A job as in its row, with the tenant by name.
struct Row {
    tenant: String,
    arrival: Seconds,
    duration: Seconds,
    gpus: u32,
}

/// The contents of a row.
enum Parsed {
    Job(Row),
    WithoutGpus,
    NeverRan,
}

/// Parses the rows of one form.
trait Form {
    fn parse(&self, cells: &Cells<'_>) -> Result<Parsed, String>;
}

impl Trace {
    /// Reads a file, compressed with gzip or not.
    ///
    /// # Errors
    /// The file cannot be read, or is no trace: see [`Self::read`].
    pub fn open(path: &Path, reading: Reading) -> Result<Self, TraceError> {
        let mut file = BufReader::new(File::open(path)?);
        let packed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        if packed {
            Self::read(MultiGzDecoder::new(file), reading)
        } else {
            Self::read(file, reading)
        }
    }

    /// Reads CSV with a heading.
    ///
    /// # Errors
    /// The columns are those of no known form, a row cannot be understood, or no job requests GPUs.
    pub fn read(source: impl Read, reading: Reading) -> Result<Self, TraceError> {
        let mut csv = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(source);
        let heading = csv.headers().map_err(|error| malformed(&error))?.clone();
        let columns: HashMap<&str, usize> = heading.iter().enumerate().map(|(at, name)| (name, at)).collect();
        let form: Box<dyn Form> = if let Some(form) = jobs::form(&columns) {
            Box::new(form)
        } else if let Some(form) = pods::form(&columns, reading) {
            Box::new(form)
        } else {
            return Err(TraceError::Columns {
                found: heading.iter().collect::<Vec<_>>().join(","),
            });
        };
        let mut rows = Vec::new();
        let mut left_out = LeftOut::default();
        for record in csv.records() {
            let record = record.map_err(|error| malformed(&error))?;
            let cells = Cells {
                record: &record,
                columns: &columns,
            };
            match form.parse(&cells) {
                Ok(Parsed::Job(row)) => rows.push(row),
                Ok(Parsed::WithoutGpus) => left_out.without_gpus += 1,
                Ok(Parsed::NeverRan) => left_out.never_ran += 1,
                Err(what) => {
                    return Err(TraceError::Line {
                        line: record.position().map_or(0, csv::Position::line),
                        what,
                    });
                }
            }
        }
        if rows.is_empty() {
            return Err(TraceError::Empty);
        }
        // Stable: jobs that arrive at the same time stay in the order of the file.
        rows.sort_by_key(|row| row.arrival);
        rows.truncate(reading.jobs.unwrap_or(usize::MAX));
        Ok(Self::from_rows(rows, left_out))
    }

    fn from_rows(rows: Vec<Row>, left_out: LeftOut) -> Self {
        let mut numbers: BTreeMap<String, usize> = rows.iter().map(|row| (row.tenant.clone(), 0)).collect();
        for (number, value) in numbers.values_mut().enumerate() {
            *value = number;
        }
        let job = |row: Row| Job {
            tenant: numbers[&row.tenant],
            arrival: row.arrival,
            duration: row.duration,
            gpus: row.gpus,
        };
        let jobs = rows.into_iter().map(job).collect();
        Self {
            tenants: numbers.into_keys().collect(),
            jobs,
            left_out,
        }
    }
}

fn malformed(error: &csv::Error) -> TraceError {
    TraceError::Line {
        line: error.position().map_or(1, csv::Position::line),
        what: match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("{len} columns, but the header has {expected_len}")
            }
            csv::ErrorKind::Utf8 { .. } => "not UTF-8".into(),
            _ => error.to_string(),
        },
    }
}

/// The cells of a row by the names of their columns.
struct Cells<'a> {
    record: &'a StringRecord,
    columns: &'a HashMap<&'a str, usize>,
}

impl Cells<'_> {
    fn text(&self, column: &str) -> &str {
        self.columns
            .get(column)
            .and_then(|at| self.record.get(*at))
            .unwrap_or_default()
    }

    fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, String> {
        let text = self.text(column);
        text.parse()
            .map_err(|_| format!("{column} {text:?} is not a valid number"))
    }

    /// A duration or time in seconds, rounded up to whole seconds.
    fn seconds(&self, column: &str) -> Result<Seconds, String> {
        let value: f64 = self.number(column)?;
        // Beyond this a double cannot represent single seconds, and no time in a trace is that long ago.
        if !(0.0..=1e15).contains(&value) {
            return Err(format!("{column} {value} is out of range"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        Ok(value.ceil() as Seconds)
    }
}

#[cfg(test)]
mod tests;
