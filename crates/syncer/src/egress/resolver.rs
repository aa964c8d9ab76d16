//! Resolves the names of external hosts. The system's resolver blocks a thread, and goes on when nobody waits for it any more: the tenant
//! decides how often it is asked, and the owner of a name how long it takes. The threads are those of this process, where names
//! of the host are looked up as well. So few names are looked up at a time.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};
use tokio::sync::Semaphore;

/// Names that are looked up at a time.
const LOOKUPS: usize = 16;
/// Time in which a name must be resolved.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a name was not resolved.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookupError {
    /// It has no address, or its servers do not answer.
    #[error("the name cannot be resolved")]
    Failed,
    /// Earlier lookups have not ended.
    #[error("too many names are being resolved for your API server; try again")]
    Busy,
}

/// Looks names up.
pub(super) struct Resolver {
    /// One for each thread that looks a name up, until it is done.
    lookups: Arc<Semaphore>,
    timeout: Duration,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(LOOKUPS, TIMEOUT)
    }
}

impl Resolver {
    fn new(lookups: usize, timeout: Duration) -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(lookups)),
            timeout,
        }
    }

    /// The addresses of a name; one at least.
    ///
    /// # Errors
    /// As [`LookupError`] says.
    pub(super) async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, LookupError> {
        // The dot at the end: the class lists full names.
        let name = format!("{name}.");
        self.run(move || Ok((name.as_str(), port).to_socket_addrs()?.collect()))
            .await
    }

    async fn run<Lookup>(&self, lookup: Lookup) -> Result<Vec<SocketAddr>, LookupError>
    where
        Lookup: FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    {
        let until = tokio::time::Instant::now() + self.timeout;
        let acquired = tokio::time::timeout_at(until, Arc::clone(&self.lookups).acquire_owned()).await;
        let Ok(Ok(place)) = acquired else {
            return Err(LookupError::Busy);
        };
        let looking = tokio::task::spawn_blocking(move || {
            let found = lookup();
            drop(place);
            found
        });
        match tokio::time::timeout_at(until, looking).await {
            Ok(Ok(Ok(addresses))) if !addresses.is_empty() => Ok(addresses),
            _ => Err(LookupError::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_lookup_counts_until_its_thread_is_done() {
        let resolver = Resolver::new(1, Duration::from_millis(50));
        let (answer, slow) = mpsc::channel::<SocketAddr>();
        let address: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let found = resolver.run(move || Ok(slow.recv().into_iter().collect())).await;
        assert_eq!(found, Err(LookupError::Failed), "nobody waits for it any more");
        let started = resolver.run(|| panic!("it must not start")).await;
        assert_eq!(started, Err(LookupError::Busy));
        answer.send(address).unwrap();
        let found = resolver.run(move || Ok(vec![address])).await;
        assert_eq!(found, Ok(vec![address]));
    }

    #[tokio::test]
    async fn a_name_without_addresses_is_not_resolved() {
        let resolver = Resolver::default();
        assert_eq!(resolver.run(|| Ok(Vec::new())).await, Err(LookupError::Failed));
        let failed = || Err(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(resolver.run(failed).await, Err(LookupError::Failed));
    }
}
