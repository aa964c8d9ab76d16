//! Generates the Rust code of gRPC APIs from protocol buffers.
//!
//! The code is kept in the repository, so that building Berth needs neither a protocol buffer compiler nor the crates of
//! a code generator. A test of each crate that has such code generates it again and compares.

use std::{error::Error, fs, path::Path};

/// Which code is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Messages and clients.
    Client,
    /// Servers too.
    ClientAndServer,
}

/// Fails if `generated` is not what `proto` generates. With `BERTH_GENERATE=1` in the environment it writes the file.
///
/// # Errors
/// The protocol buffers are wrong, a file cannot be read or written, or the generated code is out of date.
pub fn check_generated(proto: &Path, sides: Sides, generated: &Path) -> Result<(), Box<dyn Error>> {
    let code = generate(proto, sides)?;
    if std::env::var_os("BERTH_GENERATE").is_some_and(|value| value == "1") {
        return Ok(fs::write(generated, code)?);
    }
    if fs::read_to_string(generated)? == code {
        return Ok(());
    }
    Err(format!(
        "{} is out of date: run this test again with BERTH_GENERATE=1",
        generated.display()
    )
    .into())
}

/// The code of one file of protocol buffers.
fn generate(proto: &Path, sides: Sides) -> Result<String, Box<dyn Error>> {
    let folder = proto.parent().ok_or("the file is in no folder")?;
    let descriptors = protox::compile([proto], [folder])?;
    let out = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .out_dir(out.path())
        .build_server(sides == Sides::ClientAndServer)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    let mut files = fs::read_dir(out.path())?;
    let file = files.next().ok_or("nothing was generated")??;
    Ok(fs::read_to_string(file.path())?)
}
