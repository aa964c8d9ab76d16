//! The life of one process, in order.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::handle::Handle;
use crate::backoff::Backoff;
use crate::record::{Identity, Record};
use crate::spec::{Ensured, ProcessSpec, ProcessState, ProcessStatus};
use crate::{Error, procfs, reap, spawn};

/// How long a killed process may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// What the supervisor asks of a worker.
pub(crate) enum Command {
    Ensure(Box<ProcessSpec>, oneshot::Sender<Result<Ensured, Error>>),
    Stop(Option<Duration>, oneshot::Sender<Result<(), Error>>),
}

/// A process that runs, with its record.
pub(crate) struct Current {
    pub(crate) record: Record,
    pub(crate) handle: Handle,
}

/// What a worker waits for between commands.
enum Event {
    Ended(String),
    RestartDue,
}

enum State {
    Stopped,
    Running(Box<Current>),
    Restarting { record: Box<Record>, at: Instant },
}

/// The only task that starts, stops and records the process of one name.
pub(crate) struct Worker {
    path: PathBuf,
    die_with_parent: bool,
    state: State,
    backoff: Backoff,
}

impl Worker {
    /// `path` is where the record lies, `adopted` a process that runs already.
    pub(crate) fn new(path: PathBuf, die_with_parent: bool, adopted: Option<Current>) -> Self {
        let state = adopted.map_or(State::Stopped, |current| State::Running(Box::new(current)));
        Self {
            path,
            die_with_parent,
            state,
            backoff: Backoff::new(),
        }
    }

    /// Serves commands and follows the process until the supervisor is gone.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Command>, publish: watch::Sender<ProcessStatus>) {
        loop {
            tokio::select! {
                biased;
                command = queue.recv() => match command {
                    // The caller may not wait for the reply any more: that is not an error.
                    Some(Command::Ensure(spec, reply)) => {
                        let result = self.ensure(*spec).await;
                        publish.send_replace(self.status());
                        let _ = reply.send(result);
                    }
                    Some(Command::Stop(grace, reply)) => {
                        let result = self.stop(grace).await;
                        publish.send_replace(self.status());
                        let _ = reply.send(result);
                    }
                    None => return,
                },
                event = self.next_event() => {
                    match event {
                        Event::Ended(how) => self.plan_restart(how).await,
                        Event::RestartDue => self.restart_process().await,
                    }
                    publish.send_replace(self.status());
                }
            }
        }
    }

    /// The public status of the process.
    pub(crate) fn status(&self) -> ProcessStatus {
        match &self.state {
            State::Running(current) => current.record.status(ProcessState::Running),
            State::Restarting { record, .. } => record.status(ProcessState::Restarting),
            State::Stopped => ProcessStatus {
                name: self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                state: ProcessState::Stopped,
                pid: None,
                restarts: 0,
                started_at: None,
                last_exit: None,
                log_file: PathBuf::new(),
                revision: String::new(),
            },
        }
    }

    /// Waits for the next event. Changes nothing, so it may be dropped for a command.
    async fn next_event(&self) -> Event {
        match &self.state {
            State::Stopped => std::future::pending().await,
            State::Running(current) => Event::Ended(current.handle.wait_for_end().await),
            State::Restarting { at, .. } => {
                sleep_until(*at).await;
                Event::RestartDue
            }
        }
    }

    /// The process ended by itself: plan its next start.
    async fn plan_restart(&mut self, how: String) {
        let State::Running(current) = std::mem::replace(&mut self.state, State::Stopped) else {
            return;
        };
        let mut record = current.record;
        let uptime = record
            .started_at
            .and_then(|at| Duration::try_from(Timestamp::now().duration_since(at)).ok());
        let pause = self.backoff.after_crash(uptime.unwrap_or_default());
        tracing::warn!(process = record.spec.name, how, ?pause, "process ended; restarting it");
        record.identity = None;
        record.last_exit = Some(how);
        if let Err(error) = record.write(&self.path) {
            tracing::warn!(process = record.spec.name, %error, "cannot write the record");
        }
        // Its children would block its successor (ports, locks).
        if !record.spec.spares_children
            && let Err(error) = self.end_leftovers().await
        {
            tracing::warn!(process = record.spec.name, %error, "cannot end what the process left behind");
        }
        self.state = State::Restarting {
            record: Box::new(record),
            at: Instant::now() + pause,
        };
    }

    /// The pause after a crash is over.
    async fn restart_process(&mut self) {
        let State::Restarting { record, .. } = std::mem::replace(&mut self.state, State::Stopped) else {
            return;
        };
        let mut next = record.as_ref().clone();
        next.restarts += 1;
        if let Err(error) = self.start_process(next).await {
            let pause = self.backoff.after_crash(Duration::ZERO);
            tracing::warn!(process = record.spec.name, %error, ?pause, "cannot start the process; retrying");
            let record = Record {
                last_exit: Some(error.to_string()),
                ..*record
            };
            self.state = State::Restarting {
                record: Box::new(record),
                at: Instant::now() + pause,
            };
        }
    }

    async fn ensure(&mut self, spec: ProcessSpec) -> Result<Ensured, Error> {
        let ensured = match &mut self.state {
            State::Stopped => Ensured::Started,
            State::Running(current) if current.record.spec.same_process(&spec) => {
                if current.record.spec != spec {
                    current.record.spec = spec;
                    current.record.write(&self.path)?;
                }
                return Ok(Ensured::Unchanged);
            }
            State::Restarting { record, .. } if record.spec.same_process(&spec) => {
                record.spec = spec;
                return Ok(Ensured::Unchanged);
            }
            State::Running(_) | State::Restarting { .. } => {
                self.end_process(None).await?;
                Ensured::Replaced
            }
        };
        self.backoff = Backoff::new();
        let record = Record {
            spec,
            identity: None,
            started_at: None,
            restarts: 0,
            last_exit: None,
        };
        match self.start_process(record).await {
            Ok(()) => Ok(ensured),
            Err(error) => {
                self.remove_record()?;
                Err(error)
            }
        }
    }

    async fn stop(&mut self, grace: Option<Duration>) -> Result<(), Error> {
        self.end_process(grace).await?;
        self.remove_record()
    }

    /// Starts the process and records it: the intention first, then the identity.
    async fn start_process(&mut self, mut record: Record) -> Result<(), Error> {
        record.identity = None;
        record.write(&self.path)?;
        let spawned = spawn::spawn(&record.spec, &self.path, self.die_with_parent).await;
        let pid = spawned.map_err(|source| Error::Spawn {
            program: record.spec.program.clone(),
            source,
        })?;
        // The process is an uncollected child, so its id cannot have been given to another yet, even if it has ended.
        let start_ticks = procfs::read_stat(pid).map_or(0, |stat| stat.start_ticks);
        let identity = Identity { pid, start_ticks };
        record.identity = Some(identity);
        record.started_at = Some(Timestamp::now());
        match Handle::open(identity).and_then(|handle| record.write(&self.path).map(|()| handle)) {
            Ok(handle) => {
                tracing::info!(process = record.spec.name, pid, "started");
                self.state = State::Running(Box::new(Current { record, handle }));
                Ok(())
            }
            Err(error) => {
                // A process that cannot be watched or recorded must not run.
                self.end_leftovers().await?;
                Err(error)
            }
        }
    }

    /// Ends the process, with force after the grace period. Afterwards the state is stopped.
    async fn end_process(&mut self, grace: Option<Duration>) -> Result<(), Error> {
        if let State::Running(current) = &self.state {
            let Current {
                record: Record { spec, identity, .. },
                handle,
            } = current.as_ref();
            handle.request_end(spec.stop_signal)?;
            if timeout(grace.unwrap_or(spec.stop_grace), handle.wait_for_end())
                .await
                .is_err()
            {
                tracing::warn!(process = spec.name, "process did not stop in time; killing it");
                handle.kill()?;
                let pids = identity.iter().map(|identity| identity.pid).collect();
                timeout(KILL_TIMEOUT, handle.wait_for_end())
                    .await
                    .map_err(|_| Error::Unkillable(pids))?;
            }
            tracing::info!(process = spec.name, "stopped");
        }
        self.state = State::Stopped;
        self.end_leftovers().await
    }

    /// Kills the children of the ended process, which carry its marker.
    async fn end_leftovers(&self) -> Result<(), Error> {
        let path = self.path.clone();
        let kill = move || reap::kill_processes(|_, marker| marker == path);
        tokio::task::spawn_blocking(kill).await.map_err(|_| Error::Closed)?
    }

    fn remove_record(&self) -> Result<(), Error> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::File {
                action: "remove",
                path: self.path.clone(),
                source,
            }),
            _ => Ok(()),
        }
    }
}
