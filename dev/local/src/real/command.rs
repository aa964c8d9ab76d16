//! The programs that make namespaces, links and mounts: `ip` of iproute2, `unshare`, `mount` and `umount` of util-linux.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::Error;

/// Runs a program to its end. What it says on stderr becomes the error's text. Blocks for the few milliseconds it takes.
pub(super) fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let line = format!("{command:?}").replace('"', "");
    let failed = |why: String| Error::Node {
        line: line.clone(),
        why,
    };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// `ip`, with the arguments in one text: none of them holds a space.
pub(super) fn ip(args: &str) -> Result<String, Error> {
    run("ip", args.split_ascii_whitespace())
}
