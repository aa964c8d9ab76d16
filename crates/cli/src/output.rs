//! Printing.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use berth_local::Home;
use berth_process::binaries;
use clap::ValueEnum;
use serde::Serialize;

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

/// Prints a line to stdout. A reader that has closed the pipe (`| head`) is no error.
pub(crate) fn print_line(line: fmt::Arguments<'_>) -> Result<(), Error> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Output(error.to_string())),
        _ => Ok(()),
    }
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

/// The text, or a dash in its place.
pub(crate) fn format_optional(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".into())
}

/// Prints how to use a cluster that is up.
pub(crate) fn print_usage(home: &Home) -> Result<(), Error> {
    // Commands in the same directory and environment find the home by themselves.
    let default = std::env::var_os("BERTH_HOME").unwrap_or_else(|| ".berth".into());
    let option = if Home::new(default) == *home {
        String::new()
    } else {
        format!(" --home {}", home.root().display())
    };
    print_line(format_args!(
        "\nUse it:\n  export KUBECONFIG={}\n  kubectl get nodes",
        home.admin_kubeconfig().display()
    ))?;
    print_line(format_args!(
        "\nShow its state, remove it:\n  berth status{option}\n  berth down{option}"
    ))
}

/// What `berth version` prints. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    berth: &'static str,
    /// The version of host clusters, and of tenants that do not ask for one.
    kubernetes: &'static str,
    /// The versions whose binaries are on this machine.
    kubernetes_found: Vec<String>,
    etcd: &'static str,
    kwok: &'static str,
}

/// `berth version`.
pub(crate) fn print_version(format: OutputFormat) -> Result<ExitCode, Error> {
    let versions = Versions {
        berth: env!("CARGO_PKG_VERSION"),
        kubernetes: berth_kubernetes_versions::KUBERNETES_DEFAULT,
        kubernetes_found: binaries::available_versions(),
        etcd: berth_kubernetes_versions::ETCD,
        kwok: berth_kubernetes_versions::KWOK,
    };
    print(&versions, format_versions, format)?;
    Ok(ExitCode::SUCCESS)
}

fn format_versions(versions: &Versions) -> String {
    let Versions {
        berth,
        kubernetes,
        kubernetes_found,
        etcd,
        kwok,
    } = versions;
    let found = if kubernetes_found.is_empty() {
        "none; run `make kubernetes`".to_owned()
    } else {
        kubernetes_found.join(", ")
    };
    format!("berth {berth}\nkubernetes {kubernetes} (found: {found})\netcd {etcd}\nkwok {kwok}")
}

/// Left-aligned columns with a heading.
pub(crate) fn format_table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(heading)];
    lines.extend(rows.iter().map(|row| line(row.each_ref().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "long".into()], ["longer".into(), String::new()]];
        assert_eq!(format_table(["X", "Y"], &rows), "X       Y\na       long\nlonger");
    }
}
