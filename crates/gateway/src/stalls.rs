//! Connections whose reader takes nothing. The buffers of each, here and in the kernel, are bounded, so that their number bounds the memory
//! that they have together.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// How long a reader may take nothing while there are too many of them: one that reads slowly takes something within this time.
pub const GRACE: Duration = Duration::from_secs(5);

/// Counts directions of connections with bytes that wait for their reader.
#[derive(Debug)]
pub struct Stalls {
    most: usize,
    count: AtomicUsize,
}

impl Stalls {
    /// With at most so many after [`GRACE`].
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            count: AtomicUsize::new(0),
        }
    }

    /// Counts a direction until the result is dropped.
    pub fn begin(&self) -> Stalled<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Stalled(self)
    }
}

/// A direction with bytes that wait.
#[derive(Debug)]
pub struct Stalled<'a>(&'a Stalls);

impl Stalled<'_> {
    /// Whether there are too many, so that one that has waited for [`GRACE`] has to end.
    pub fn is_too_many(&self) -> bool {
        self.0.count.load(Ordering::Relaxed) > self.0.most
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_end_leave_their_places() {
        let stalls = Stalls::new(1);
        let first = stalls.begin();
        assert!(!first.is_too_many());
        let second = stalls.begin();
        assert!(first.is_too_many() && second.is_too_many());
        drop(first);
        assert!(!second.is_too_many());
    }
}
