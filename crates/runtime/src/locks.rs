//! Locks that stay usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also if a thread panicked while it held the lock. Use it for values that are complete after each statement: what the thread has
/// changed before it panicked stays.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread};

    #[test]
    fn a_lock_that_a_panicked_thread_held_is_taken_with_what_it_has_written() {
        let value = Arc::new(Mutex::new(1));
        let of_thread = Arc::clone(&value);
        let panicked = thread::spawn(move || {
            *lock(&of_thread) = 2;
            let _guard = lock(&of_thread);
            panic!("it holds the lock");
        });
        assert!(panicked.join().is_err());
        assert!(value.is_poisoned());
        assert_eq!(*lock(&value), 2);
    }
}
