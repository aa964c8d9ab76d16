//! Programs of the node: this program is started again, changes its root to the node's files, and executes them.

use crate::{error::Unclean, node::Node};
use std::{
    env, io,
    os::unix::{fs::chroot, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

/// First argument by which this program becomes another one.
pub const INSIDE: &str = "inside";
/// Where tools of the node may be.
const FOLDERS: [&str; 5] = ["/usr/bin", "/usr/local/bin", "/bin", "/opt/bin", "/opt/containerd/bin"];

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
    tool(node, "ctr", &["--namespace", "k8s.io"], arguments)
}

/// Runs CRI-O's tool and gives its output.
pub(crate) fn crictl(node: &Node, arguments: &[&str]) -> Result<String, Unclean> {
    let endpoint = ["--runtime-endpoint", "unix:///run/crio/crio.sock"];
    tool(node, "crictl", &endpoint, arguments)
}

/// Runs a tool of the container runtime.
fn tool(node: &Node, name: &str, common: &[&str], arguments: &[&str]) -> Result<String, Unclean> {
    let paths = FOLDERS.map(|folder| format!("{folder}/{name}"));
    // A link may lead to a path that exists only on the node.
    let Some(tool) = paths.iter().find(|path| node.path(path).symlink_metadata().is_ok()) else {
        return Err(Unclean::Program(format!(
            "the node has no {name}, which is needed to remove images: install it, or list scrub.steps without Images"
        )));
    };
    let all = [common, arguments].concat();
    let output = run(node.root(), tool, &all).map_err(|error| Unclean::Program(format!("{tool}: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Unclean::Program(format!("{name} {}: {stderr}", arguments.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
