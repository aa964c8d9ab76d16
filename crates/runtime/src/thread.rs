//! A thread with a runtime of its own, for work that must not wait for what another runtime does.
//!
//! Listeners, connections and clients are served by the runtime in which they were made. So the work makes its own, and
//! takes none from elsewhere.

use std::{future::Future, io};
use tokio::{runtime::Builder, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// Stack of the thread, and of those that resolve names for it: less than a huge page, all of which would be resident.
/// Code that is not optimised needs more.
const STACK: usize = if cfg!(debug_assertions) { 4 << 20 } else { 1 << 20 };

/// A thread that works until it is dropped.
#[derive(Debug)]
pub struct Thread<T> {
    stop: CancellationToken,
    ended: oneshot::Receiver<T>,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread that runs the future that `work` returns.
    ///
    /// # Errors
    /// The operating system provides no thread, or no means to wait for connections.
    pub fn start<Work>(name: &str, work: impl FnOnce() -> Work + Send + 'static) -> io::Result<Self>
    where
        Work: Future<Output = T>,
    {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_stack_size(STACK)
            .build()?;
        let (end, ended) = oneshot::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = move || {
            let result = runtime.block_on(async move {
                tokio::select! {
                    () = stopped.cancelled() => None,
                    result = work() => Some(result),
                }
            });
            // Ends what the work has spawned, and does not wait for names that are being resolved.
            runtime.shutdown_background();
            if let Some(result) = result {
                // Nobody waits for it if the thread is being dropped.
                drop(end.send(result));
            }
        };
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(run)?;
        Ok(Self {
            stop,
            ended,
            handle: Some(handle),
        })
    }

    /// Waits until the work ends by itself, and returns its result; `None` if it panicked.
    pub async fn ended(&mut self) -> Option<T> {
        (&mut self.ended).await.ok()
    }
}

impl<T> Drop for Thread<T> {
    /// Ends the work, and waits until all that it has opened is closed: its addresses can be listened on again.
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!("a thread ended with a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test]
    async fn the_end_of_the_work_and_a_panic_are_reported() {
        let mut thread = Thread::start("test", || async { 7 }).unwrap();
        assert_eq!(thread.ended().await, Some(7));
        let mut thread: Thread<()> = Thread::start("test", || async { panic!("on purpose") }).unwrap();
        assert_eq!(thread.ended().await, None);
    }

    #[tokio::test]
    async fn what_the_work_has_spawned_ends_with_the_thread() {
        let (started, is_started) = oneshot::channel();
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let thread: Thread<()> = Thread::start("test", move || async move {
            tokio::spawn(async move {
                let _guard = guard;
                let _: Result<(), ()> = started.send(());
                pending::<()>().await;
            });
            pending::<()>().await;
        })
        .unwrap();
        is_started.await.unwrap();
        assert!(!ended.is_cancelled());
        drop(thread);
        assert!(ended.is_cancelled());
    }
}
