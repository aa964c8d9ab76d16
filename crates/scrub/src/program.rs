//! Programs of the node: this program is started again, changes its root to the node's files, and executes them.

use crate::{Unclean, node::Node};
use std::{
    env, io,
    os::unix::{fs::chroot, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

/// First argument by which this program becomes another one.
pub const INSIDE: &str = "inside";
/// Where containerd's tool may be.
const CTR: [&str; 3] = ["/usr/bin/ctr", "/usr/local/bin/ctr", "/bin/ctr"];

/// Runs a program with `root` as its root.
pub(crate) fn run(root: &Path, program: &str, arguments: &[&str]) -> io::Result<Output> {
    Command::new(env::current_exe()?)
        .arg(INSIDE)
        .arg(root)
        .arg(program)
        .args(arguments)
        .output()
}

/// Changes the root to the first argument and executes the program that the others name. Returns only if that fails.
pub fn become_program(arguments: &[String]) -> io::Error {
    let [root, program, rest @ ..] = arguments else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    if let Err(error) = chroot(root).and_then(|()| env::set_current_dir("/")) {
        return error;
    }
    Command::new(program).args(rest).exec()
}

/// Runs containerd's tool for the kubelet's containers and gives its output.
pub(crate) fn ctr(node: &Node, arguments: &[&str]) -> Result<String, Unclean> {
    let Some(tool) = CTR.iter().find(|tool| node.path(tool).is_file()) else {
        return Err(Unclean::Program(
            "the node has no ctr, which is needed to remove images".into(),
        ));
    };
    let all: Vec<&str> = ["--namespace", "k8s.io"]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    let output = run(node.root(), tool, &all).map_err(|error| Unclean::Program(format!("{tool}: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Unclean::Program(format!("ctr {}: {stderr}", arguments.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
