//! Printing.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use berth_local::Home;
use berth_process::binaries;
use serde::Serialize;

use crate::args::OutputFormat;
use crate::error::Error;

/// Prints a line to stdout. A reader that has gone away (`| head`) is no error.
pub(crate) fn say(line: fmt::Arguments<'_>) -> Result<(), Error> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Output(error.to_string())),
        _ => Ok(()),
    }
}

/// Prints what a command found out in the form that was asked for. `describe` writes it for people.
pub(crate) fn print<T: Serialize>(found: &T, describe: fn(&T) -> String, format: OutputFormat) -> Result<(), Error> {
    let failed = |error: &dyn fmt::Display| Error::Output(error.to_string());
    let text = match format {
        OutputFormat::Table => describe(found),
        OutputFormat::Json => serde_json::to_string_pretty(found).map_err(|error| failed(&error))?,
        OutputFormat::Yaml => serde_saphyr::to_string(found).map_err(|error| failed(&error))?,
    };
    say(format_args!("{}", text.trim_end()))
}

/// What a cell of a table says of what may be absent.
pub(crate) fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".into())
}

/// How to use a cluster that is up.
pub(crate) fn usage(home: &Home) -> Result<(), Error> {
    // Commands in the same directory and environment find the home by themselves.
    let default = std::env::var_os("BERTH_HOME").unwrap_or_else(|| ".berth".into());
    let option = if Home::new(default) == *home {
        String::new()
    } else {
        format!(" --home {}", home.root().display())
    };
    say(format_args!(
        "\nUse it:\n  export KUBECONFIG={}\n  kubectl get nodes",
        home.admin_kubeconfig().display()
    ))?;
    say(format_args!(
        "\nLook at it, remove it:\n  berth status{option}\n  berth down{option}"
    ))
}

/// `berth version`.
pub(crate) fn version() -> Result<ExitCode, Error> {
    say(format_args!("berth {}", env!("CARGO_PKG_VERSION")))?;
    let available = binaries::available_versions();
    let kubernetes = if available.is_empty() {
        "none found; run `make kubernetes`".to_owned()
    } else {
        available.join(", ")
    };
    say(format_args!(
        "kubernetes {} (found: {kubernetes})",
        berth_kubernetes_versions::KUBERNETES_DEFAULT
    ))?;
    say(format_args!("etcd {}", berth_kubernetes_versions::ETCD))?;
    say(format_args!("kwok {}", berth_kubernetes_versions::KWOK))?;
    Ok(ExitCode::SUCCESS)
}

/// Left-aligned columns with a heading.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
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
        assert_eq!(table(["X", "Y"], &rows), "X       Y\na       long\nlonger");
    }
}
