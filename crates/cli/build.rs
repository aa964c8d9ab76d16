//! Puts the chart of this checkout into the program, so that `berth dev up` installs it wherever the program is.

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
        let path = chart.join(&file);
        let (Some(file), Some(path)) = (file.to_str(), path.to_str()) else {
            return Err(io::Error::other(format!("{} is no text", path.display())));
        };
        // As literals of strings. Writing to one cannot fail.
        let _ = writeln!(code, "({file:?}, include_bytes!({path:?}) as &[u8]),");
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
