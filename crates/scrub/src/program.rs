//! Programs of the node: this program is started again, changes its root to the node's files, and executes them.

use crate::{error::Unclean, node::Node};
use std::{
    env,
    io::{self, Read},
    os::unix::{fs::chroot, process::CommandExt},
    path::Path,
    process::{Command, Output, Stdio},
};

/// First argument by which this program becomes another one.
pub const INSIDE: &str = "inside";
/// Where tools of the node may be.
const FOLDERS: [&str; 5] = ["/usr/bin", "/usr/local/bin", "/bin", "/opt/bin", "/opt/containerd/bin"];
/// First arguments of containerd's tool: the kubelet's containers and images.
const CTR: [&str; 2] = ["--namespace", "k8s.io"];

/// Runs a program with `root` as its root.
pub(crate) fn run(root: &Path, program: &str, arguments: &[&str]) -> io::Result<Output> {
    command(root, program, arguments)?.output()
}

/// The command that runs a program with `root` as its root.
fn command(root: &Path, program: &str, arguments: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(INSIDE).arg(root).arg(program).args(arguments);
    Ok(command)
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
    tool(node, "ctr", &CTR, arguments, |command| command.output().map(Some))
}

/// Runs containerd's tool and gives its output; nothing if the output is longer than `limit` bytes.
pub(crate) fn ctr_at_most(node: &Node, limit: u64, arguments: &[&str]) -> Result<String, Unclean> {
    tool(node, "ctr", &CTR, arguments, |command| output_at_most(command, limit))
}

/// Runs CRI-O's tool and gives its output.
pub(crate) fn crictl(node: &Node, arguments: &[&str]) -> Result<String, Unclean> {
    let endpoint = ["--runtime-endpoint", "unix:///run/crio/crio.sock"];
    tool(node, "crictl", &endpoint, arguments, |command| {
        command.output().map(Some)
    })
}

/// Runs a tool of the container runtime, as `execute` does it.
fn tool(
    node: &Node,
    name: &str,
    common: &[&str],
    arguments: &[&str],
    execute: impl FnOnce(&mut Command) -> io::Result<Option<Output>>,
) -> Result<String, Unclean> {
    let paths = FOLDERS.map(|folder| format!("{folder}/{name}"));
    // A link may lead to a path that exists only on the node.
    let Some(tool) = paths.iter().find(|path| node.path(path).symlink_metadata().is_ok()) else {
        return Err(Unclean::Program(format!(
            "the node has no {name}, which is needed to remove images: install it, or list scrub.steps without Images"
        )));
    };
    let all = [common, arguments].concat();
    let output = command(node.root(), tool, &all)
        .and_then(|mut command| execute(&mut command))
        .map_err(|error| Unclean::Program(format!("{tool}: {error}")))?;
    let Some(output) = output else {
        return Ok(String::new());
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Unclean::Program(format!("{name} {}: {stderr}", arguments.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end and gives its output. A program that writes more than `limit` bytes is killed, and there is no
/// output.
fn output_at_most(command: &mut Command, limit: u64) -> io::Result<Option<Output>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdout = Vec::new();
    let read = match child.stdout.take() {
        Some(pipe) => pipe.take(limit.saturating_add(1)).read_to_end(&mut stdout),
        None => Ok(0),
    };
    let is_whole = matches!(read, Ok(length) if u64::try_from(length).is_ok_and(|length| length <= limit));
    // Whatever fails, the child is waited for. One that could not be killed ends when it writes to the closed pipe.
    let killed = if is_whole { Ok(()) } else { child.kill() };
    let output = child.wait_with_output()?;
    read?;
    killed?;
    Ok(is_whole.then_some(Output { stdout, ..output }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_up_to_the_limit_is_given() {
        let output = output_at_most(&mut shell("head -c 1000 /dev/zero"), 1000)
            .unwrap()
            .unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, [0; 1000]);
        let output = output_at_most(&mut shell("head -c 1001 /dev/zero"), 1000).unwrap();
        assert!(output.is_none(), "one byte too many");
    }

    #[test]
    fn a_program_that_writes_without_end_is_killed() {
        assert!(output_at_most(&mut Command::new("yes"), 1000).unwrap().is_none());
    }

    #[test]
    fn a_failure_and_its_message_are_given() {
        let output = output_at_most(&mut shell("echo not found >&2; exit 3"), 1000)
            .unwrap()
            .unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stderr, b"not found\n");
    }
}
