//! The owner of the processes of one directory.

mod handle;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::record::{Identity, Record};
use crate::spec::{Ensured, ProcessSpec, ProcessState, ProcessStatus};
use crate::{Error, create_private_dir, procfs, reap};
use handle::Handle;
use worker::{Command, Current, Worker};

/// How long a process may take to get its marker after its supervisor was killed in the middle of the start.
const MARKER_TIMEOUT: Duration = Duration::from_millis(500);

/// How a supervisor works.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// Where records and the lock lie. Created with mode 0700 when missing. One supervisor at a time.
    pub dir: PathBuf,
    /// Whether processes are killed when this program ends. For tests: nothing outlives a test run, however it ends.
    pub die_with_parent: bool,
}

/// Keeps processes running. Cheap to clone; all clones are the same supervisor.
///
/// Must be used within a tokio runtime. When the last clone is dropped the processes go on running, unsupervised (unless
/// [`SupervisorConfig::die_with_parent`]); see [`Supervisor::shutdown`].
#[derive(Clone, Debug)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    die_with_parent: bool,
    /// Held for its lock, which the kernel releases however this program ends. None if it never supervised anything.
    _lock: Option<File>,
    /// None after shutdown.
    workers: Mutex<Option<BTreeMap<String, WorkerHandle>>>,
}

/// One task per process: operations on a process run in order, and processes do not wait for each other.
#[derive(Debug)]
struct WorkerHandle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<ProcessStatus>,
    task: JoinHandle<()>,
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Supervisor {
    /// Takes over a directory: adopts the processes in its records, and ends marked ones without a record.
    ///
    /// # Errors
    /// [`Error::Locked`] when another supervisor owns the directory, [`Error::File`] when it cannot be used,
    /// [`Error::Process`] when a process can be neither adopted nor ended.
    pub async fn open(config: SupervisorConfig) -> Result<Self, Error> {
        let SupervisorConfig { dir, die_with_parent } = config;
        create_private_dir(&dir)?;
        // Markers hold absolute paths: two spellings of one directory must not be taken for two directories.
        let dir = dir.canonicalize().map_err(Error::file("resolve", &dir))?;
        let lock = lock_directory(&dir)?;
        let adoptable = {
            let dir = dir.clone();
            tokio::task::spawn_blocking(move || adopt_processes(&dir))
                .await
                .map_err(|_| Error::Closed)??
        };
        let mut workers = BTreeMap::new();
        for (path, record) in adoptable {
            let Some(identity) = record.identity else { continue };
            // It may have ended since: then it is started again as after any crash.
            let handle = Handle::open(identity)?;
            tracing::info!(process = record.spec.name, pid = identity.pid, "adopted");
            let name = record.spec.name.clone();
            let worker = Worker::new(path, die_with_parent, Some(Current { record, handle }));
            workers.insert(name, spawn_worker(worker));
        }
        let inner = Inner {
            dir,
            die_with_parent,
            _lock: Some(lock),
            workers: Mutex::new(Some(workers)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A supervisor of nothing, as after [`Supervisor::shutdown`]: for a program that only uses what another one supervises.
    pub fn closed(dir: PathBuf) -> Self {
        let inner = Inner {
            dir,
            die_with_parent: false,
            _lock: None,
            workers: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Makes a process run as `spec` says: starts it, leaves it alone, or stops it and starts it anew.
    ///
    /// Returns once it has been started, not once it is ready to serve. From then on it is started again whenever it ends.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Spawn`] when the program cannot be started (it is not tried again by itself),
    /// [`Error::File`] when log or record cannot be written, [`Error::Closed`] after [`Supervisor::shutdown`].
    pub async fn ensure(&self, spec: ProcessSpec) -> Result<Ensured, Error> {
        spec.check()?;
        let commands = {
            let mut workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
            let workers = workers.as_mut().ok_or(Error::Closed)?;
            if let Some(worker) = workers.get(&spec.name) {
                worker.commands.clone()
            } else {
                let path = Record::path(&self.inner.dir, &spec.name);
                let worker = spawn_worker(Worker::new(path, self.inner.die_with_parent, None));
                let commands = worker.commands.clone();
                workers.insert(spec.name.clone(), worker);
                commands
            }
        };
        let (reply, answer) = oneshot::channel();
        commands
            .send(Command::Ensure(Box::new(spec), reply))
            .await
            .map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Stops a process and forgets it. It gets its stop signal, `grace` to end (none: what its specification says), then
    /// SIGKILL. Returns when it is gone. A process that is not known is stopped already.
    ///
    /// # Errors
    /// [`Error::Process`] or [`Error::Unkillable`] when it cannot be ended, [`Error::Closed`] after [`Supervisor::shutdown`].
    pub async fn stop(&self, name: &str, grace: Option<Duration>) -> Result<(), Error> {
        let commands = {
            let workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(worker) = workers.as_ref().ok_or(Error::Closed)?.get(name) else {
                return Ok(());
            };
            worker.commands.clone()
        };
        let (reply, answer) = oneshot::channel();
        commands
            .send(Command::Stop(grace, reply))
            .await
            .map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// What is known about a process; none when it is not supervised (any more).
    pub fn status(&self, name: &str) -> Option<ProcessStatus> {
        let workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let status = workers.as_ref()?.get(name)?.status.borrow().clone();
        (status.state != ProcessState::Stopped).then_some(status)
    }

    /// All supervised processes, adopted ones included, sorted by name.
    pub fn list(&self) -> Vec<ProcessStatus> {
        let workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let all = workers
            .iter()
            .flatten()
            .map(|(_, worker)| worker.status.borrow().clone());
        all.filter(|status| status.state != ProcessState::Stopped).collect()
    }

    /// Ends supervision at once; the processes go on running for the next supervisor to adopt.
    pub fn release(&self) {
        drop(self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Ends supervision. With `stop_children` all processes are stopped first, at the same time; without, they go on
    /// running for the next supervisor to adopt.
    ///
    /// # Errors
    /// The first process that could not be stopped; the others are stopped nevertheless.
    pub async fn shutdown(&self, stop_children: bool) -> Result<(), Error> {
        let workers = self
            .inner
            .workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_default();
        if !stop_children {
            return Ok(());
        }
        let mut answers = Vec::with_capacity(workers.len());
        for worker in workers.values() {
            let (reply, answer) = oneshot::channel();
            if worker.commands.send(Command::Stop(None, reply)).await.is_ok() {
                answers.push(answer);
            }
        }
        let mut result = Ok(());
        for answer in answers {
            result = result.and(answer.await.unwrap_or(Err(Error::Closed)));
        }
        result
    }
}

fn spawn_worker(worker: Worker) -> WorkerHandle {
    let (commands, queue) = mpsc::channel(8);
    let (publish, status) = watch::channel(worker.status());
    WorkerHandle {
        commands,
        status,
        task: tokio::spawn(worker.run(queue, publish)),
    }
}

fn lock_directory(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(Error::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(Error::File {
            action: "lock",
            path,
            source,
        }),
    }
}

/// The process that was started for a record, if there is exactly one.
fn find_leader(record: &Path) -> Option<Identity> {
    let mut leaders = procfs::find_marked()
        .into_iter()
        .filter(|(_, marker)| marker == record)
        .filter_map(|(pid, _)| Some((pid, procfs::read_stat(pid)?)))
        .filter(|(pid, stat)| stat.group == *pid && !stat.zombie);
    let (pid, stat) = leaders.next()?;
    leaders.next().is_none().then_some(Identity {
        pid,
        start_ticks: stat.start_ticks,
    })
}

/// Decides which processes are adopted, and ends other marked processes of the directory. Removes records of dead processes.
fn adopt_processes(dir: &Path) -> Result<Vec<(PathBuf, Record)>, Error> {
    let mut adoptable = Vec::new();
    for (path, mut record) in Record::read_all(dir) {
        record.identity = record.identity.filter(|identity| identity.is_alive(&path)).or_else(|| {
            // The supervisor was killed after it had started the process and before it had recorded which one.
            if record.identity.is_some() {
                return None;
            }
            // The process may not have executed its program yet.
            let deadline = Instant::now() + MARKER_TIMEOUT;
            loop {
                let found = find_leader(&path);
                if found.is_some() || Instant::now() > deadline {
                    return found;
                }
                #[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        if record.identity.is_some() {
            record.write(&path)?;
            adoptable.push((path, record));
        } else {
            std::fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    let adopted: BTreeSet<u32> = adoptable
        .iter()
        .filter_map(|(_, record)| record.identity)
        .map(|identity| identity.pid)
        .collect();
    let spared = |marker: &Path| {
        let record = adoptable.iter().find(|(path, _)| path == marker);
        record.is_some_and(|(_, record)| record.spec.spares_children)
    };
    reap::kill_processes(|pid, marker| {
        let is_adopted = procfs::read_stat(pid).is_some_and(|stat| adopted.contains(&stat.group));
        marker.parent() == Some(dir) && !is_adopted && !spared(marker)
    })?;
    Ok(adoptable)
}
