//! Figures: a table for people, JSON for machines.

use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};

/// A benchmark's figures.
pub(crate) struct Report {
    name: &'static str,
    rows: Vec<(String, f64, &'static str)>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a figure with its unit.
    pub(crate) fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        // The sum of nothing is minus zero.
        self.rows.push((what.into(), value + 0.0, unit));
    }

    /// Adds a sentence on how the figures were measured.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Prints the table and writes the JSON.
    pub(crate) fn finish(self) {
        println!("\n{}", self.name);
        let width = self.rows.iter().map(|(what, ..)| what.len()).max().unwrap_or_default();
        for (what, value, unit) in &self.rows {
            println!("  {what:<width$}  {value:>10.2} {unit}");
        }
        for note in &self.notes {
            println!("  {note}");
        }
        let figures: Vec<Value> = self
            .rows
            .iter()
            .map(|(what, value, unit)| json!({"what": what, "value": value, "unit": unit}))
            .collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}.json", self.name));
        let text =
            serde_json::to_string_pretty(&json!({"name": self.name, "figures": figures, "notes": self.notes})).unwrap();
        fs::write(&path, text + "\n").unwrap();
        println!("  -> target/bench/{}.json", self.name);
    }
}

/// The value below which `percent` of the (unsorted) values lie, by the nearest-rank method.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank is a small whole number"
    )]
    let rank = ((percent / 100.0 * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn figure_of(count: usize) -> f64 {
    count as f64
}

/// Milliseconds with fractions.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
