//! Starting a process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::procfs::MARKER;
use crate::spec::ProcessSpec;

/// A log that has grown beyond this is set aside (one generation) when its process starts.
const LOG_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// The variables that children inherit from the supervisor. `GOGC` lets the tests of a machine with much memory collect garbage
/// less often.
const INHERITED: [&str; 6] = ["PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GOGC"];

type Job = (Command, oneshot::Sender<io::Result<u32>>);

/// All processes are started by one thread that lives as long as this process, because the kernel delivers a parent-death
/// signal when the *thread* that started the child ends.
static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
    let (jobs, queue) = mpsc::channel::<Job>();
    let run = move || {
        for (mut command, reply) in queue {
            let _ = reply.send(start(&mut command));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("berth-spawner".into()).spawn(run) {
        tracing::error!(%error, "cannot start the thread that starts processes");
    }
    jobs
});

/// The ended child is collected through its process handle.
fn start(command: &mut Command) -> io::Result<u32> {
    Ok(command.spawn()?.id())
}

/// Starts the process that `spec` describes and returns its id.
///
/// It leads its own process group, so that a Ctrl-C at the supervisor's terminal does not reach it.
pub(crate) async fn spawn(spec: &ProcessSpec, record: &Path, die_with_parent: bool) -> io::Result<u32> {
    // With the wrapper below a missing program would only show in the log.
    fs::metadata(&spec.program)?;
    let log = open_log(&spec.log_file)?;
    let mut command = if die_with_parent {
        // Without unsafe code nothing can request the signal between fork and exec: setpriv does, then executes the program.
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--pdeathsig", "KILL", "--"]).arg(&spec.program);
        wrapped
    } else {
        Command::new(&spec.program)
    };
    command
        .args(&spec.args)
        .env_clear()
        .envs(
            INHERITED
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .envs(&spec.env)
        .env(MARKER, record)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    let (reply, answer) = oneshot::channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    SPAWNER.send((command, reply)).map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_LIMIT_BYTES) {
        let mut older = path.as_os_str().to_owned();
        older.push(".1");
        fs::rename(path, older)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overgrown_log_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        File::create(&path).unwrap().set_len(LOG_LIMIT_BYTES + 1).unwrap();
        let log = open_log(&path).unwrap();
        assert_eq!(log.metadata().unwrap().len(), 0);
        assert!(dir.path().join("etcd.log.1").exists());
    }
}
