//! Programs of the node: this program is started again, changes its root to the node's files, and executes them.

use crate::{error::Unclean, node::Node, retry::pause};
use std::{
    env,
    io::{self, Read},
    os::unix::{fs::chroot, process::CommandExt},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// First argument by which this program becomes another one.
pub const INSIDE: &str = "inside";
/// Where tools of the node may be.
const FOLDERS: [&str; 5] = ["/usr/bin", "/usr/local/bin", "/bin", "/opt/bin", "/opt/containerd/bin"];
/// First arguments of containerd's tool: the kubelet's containers and images.
const CTR: [&str; 2] = ["--namespace", "k8s.io"];

/// How long a program may run: to remove many large images takes minutes. One that hangs must not use up the time of the whole Job, whose failure
/// would not say what hangs.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Pause between two looks at a program that has closed its output and has not ended.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs a program with `root` as its root.
pub(crate) fn run(root: &Path, program: &str, arguments: &[&str]) -> io::Result<Output> {
    run_with(root, program, arguments, &[])
}

/// The same with these variables in its environment.
pub(crate) fn run_with(
    root: &Path,
    program: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> io::Result<Output> {
    let mut command = command(root, program, arguments)?;
    command.envs(variables.iter().copied());
    let output = output(&mut command, u64::MAX, TIME_LIMIT)?;
    output.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
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
    ctr_at_most(node, u64::MAX, arguments)
}

/// Runs containerd's tool and gives its output; nothing if the output is longer than `limit` bytes.
pub(crate) fn ctr_at_most(node: &Node, limit: u64, arguments: &[&str]) -> Result<String, Unclean> {
    tool(node, "ctr", &CTR, limit, arguments)
}

/// Runs CRI-O's tool and gives its output.
pub(crate) fn crictl(node: &Node, arguments: &[&str]) -> Result<String, Unclean> {
    let endpoint = ["--runtime-endpoint", "unix:///run/crio/crio.sock"];
    tool(node, "crictl", &endpoint, u64::MAX, arguments)
}

/// Runs a tool of the container runtime and gives its output; nothing if the output is longer than `limit` bytes.
fn tool(node: &Node, name: &str, common: &[&str], limit: u64, arguments: &[&str]) -> Result<String, Unclean> {
    let paths = FOLDERS.map(|folder| format!("{folder}/{name}"));
    // A link may lead to a path that exists only on the node.
    let Some(tool) = paths.iter().find(|path| node.path(path).symlink_metadata().is_ok()) else {
        return Err(Unclean::Program(format!(
            "the node has no {name}, which is needed to remove images: install it, or list scrub.steps without Images"
        )));
    };
    let all = [common, arguments].concat();
    let output = command(node.root(), tool, &all)
        .and_then(|mut command| output(&mut command, limit, TIME_LIMIT))
        .map_err(|error| Unclean::Program(format!("{tool} {}: {error}", shorten(arguments))))?;
    let Some(output) = output else {
        return Ok(String::new());
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Unclean::Program(format!("{name} {}: {stderr}", shorten(arguments))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first arguments of a call, as text: the others are names, of which there can be many.
fn shorten(arguments: &[&str]) -> String {
    const SHOWN: usize = 5;
    let more = if arguments.len() > SHOWN { " …" } else { "" };
    let shown = &arguments[..arguments.len().min(SHOWN)];
    format!("{}{more}", shown.join(" "))
}

/// Runs a program to its end and gives its output. A program that writes more than `limit` bytes is killed, and there is no output.
///
/// # Errors
/// The program cannot be started, or runs longer than `time`: then it is killed.
fn output(command: &mut Command, limit: u64, time: Duration) -> io::Result<Option<Output>> {
    let deadline = Instant::now() + time;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdout, stderr) = (
        read_aside(child.stdout.take(), limit.saturating_add(1)),
        read_aside(child.stderr.take(), u64::MAX),
    );
    let ended = wait_for(&mut child, &stdout, &stderr, limit, deadline);
    if !matches!(ended, Ok(Some(_))) {
        // Whatever fails, the child is waited for.
        let killed = child.kill();
        child.wait()?;
        killed?;
    }
    ended
}

/// Waits until a program has ended; nothing if it writes more than `limit` bytes.
fn wait_for(
    child: &mut Child,
    stdout: &Receiver<io::Result<Vec<u8>>>,
    stderr: &Receiver<io::Result<Vec<u8>>>,
    limit: u64,
    deadline: Instant,
) -> io::Result<Option<Output>> {
    let stdout = receive(stdout, deadline)?;
    if !u64::try_from(stdout.len()).is_ok_and(|length| length <= limit) {
        return Ok(None);
    }
    let stderr = receive(stderr, deadline)?;
    let status = status(child, deadline)?;
    Ok(Some(Output { status, stdout, stderr }))
}

/// Reads from a pipe in a thread of its own, up to `limit` bytes, and closes it.
fn read_aside(pipe: Option<impl Read + Send + 'static>, limit: u64) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = match pipe {
            Some(pipe) => pipe.take(limit).read_to_end(&mut bytes),
            None => Ok(0),
        };
        // Nobody receives it if the time is over.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}

fn receive(bytes: &Receiver<io::Result<Vec<u8>>>, deadline: Instant) -> io::Result<Vec<u8>> {
    bytes
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .unwrap_or_else(|_| Err(too_long()))
}

/// How a program ended that has closed its output.
fn status(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Err(too_long());
        }
        pause(PAUSE);
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "did not end in time and was killed")
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
        let whole = output(&mut shell("head -c 1000 /dev/zero"), 1000, TIME_LIMIT);
        let whole = whole.unwrap().unwrap();
        assert!(whole.status.success());
        assert_eq!(whole.stdout, [0; 1000]);
        let longer = output(&mut shell("head -c 1001 /dev/zero"), 1000, TIME_LIMIT).unwrap();
        assert!(longer.is_none(), "one byte too many");
    }

    #[test]
    fn a_program_that_writes_without_end_is_killed() {
        assert!(output(&mut Command::new("yes"), 1000, TIME_LIMIT).unwrap().is_none());
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let brief = Duration::from_millis(50);
        let mut silent = Command::new("sleep");
        silent.arg("10000");
        for mut command in [silent, shell("exec >&- 2>&- sleep 10000")] {
            let error = output(&mut command, u64::MAX, brief).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{command:?}");
        }
    }

    #[test]
    fn a_failure_and_its_message_are_given() {
        let failed = output(&mut shell("echo not found >&2; exit 3"), 1000, TIME_LIMIT);
        let failed = failed.unwrap().unwrap();
        assert_eq!(failed.status.code(), Some(3));
        assert_eq!(failed.stderr, b"not found\n");
    }

    #[test]
    fn an_error_names_a_few_arguments_only() {
        assert_eq!(shorten(&["images", "ls"]), "images ls");
        assert_eq!(
            shorten(&["images", "rm", "--sync", "a", "b", "c"]),
            "images rm --sync a b …"
        );
    }
}
