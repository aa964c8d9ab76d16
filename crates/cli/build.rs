//! Puts the chart of this checkout into the program, so that `berth dev up` installs it wherever the program is.
#![expect(clippy::print_stdout, reason = "cargo reads what a build script prints")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = |variable| PathBuf::from(env::var_os(variable).unwrap_or_default());
    let chart = folder("CARGO_MANIFEST_DIR").join("../../charts/berth").canonicalize()?;
    println!("cargo:rerun-if-changed={}", chart.display());
    let mut files = Vec::new();
    collect(&chart, Path::new(""), &mut files)?;
    // The same chart gives the same program.
    files.sort();
    let mut code = String::from("&[\n");
    for file in files {
        // Writing to a string cannot fail.
        let _ = writeln!(code, "({file:?}, include_bytes!({:?}) as &[u8]),", chart.join(&file));
    }
    code.push_str("]\n");
    fs::write(folder("OUT_DIR").join("chart.rs"), code)
}

/// Adds the paths of all files below a folder of the chart.
fn collect(chart: &Path, below: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(chart.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(chart, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
