//! Connections that have not said yet for which tenant they are.
//!
//! Clients of TLS send their ClientHello at once, so those that stay silent are the oldest. Where there are too many, the oldest make room
//! for the next: many silent connections keep nobody else out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Connections whose ClientHello is not complete, in the order of their acceptance. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// A connection whose sender is dropped is displaced.
    open: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Handshakes {
    /// Adds a connection until the result is dropped. If there are `limit` already, displaces the oldest.
    pub fn add(&self, limit: usize) -> Handshake {
        let mut state = self.state();
        while state.open.len() >= limit.max(1) {
            state.open.pop_first();
        }
        let (sender, displaced) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, sender);
        Handshake {
            handshakes: self.clone(),
            number,
            displaced,
        }
    }

    /// Displaces the oldest connection, if there is one.
    pub fn displace_oldest(&self) {
        self.state().open.pop_first();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose ClientHello is not complete.
#[derive(Debug)]
pub struct Handshake {
    handshakes: Handshakes,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl Handshake {
    /// Completes, once, when the place of the connection is needed for another one.
    pub async fn displaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.state().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneshot::error::TryRecvError;

    fn is_displaced(handshake: &mut Handshake) -> bool {
        handshake.displaced.try_recv() == Err(TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_make_room() {
        let handshakes = Handshakes::default();
        let mut open: Vec<Handshake> = (0..3).map(|_| handshakes.add(3)).collect();
        assert!(!open.iter_mut().any(is_displaced));
        open.push(handshakes.add(3));
        let displaced: Vec<bool> = open.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false, false]);
        // One that is through leaves its place to the next.
        drop(open.remove(2));
        open.push(handshakes.add(3));
        let displaced: Vec<bool> = open.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false, false]);
        handshakes.displace_oldest();
        assert!(is_displaced(&mut open[1]) && !is_displaced(&mut open[2]));
    }

    #[test]
    fn none_is_remembered() {
        let handshakes = Handshakes::default();
        handshakes.displace_oldest();
        let first = handshakes.add(1);
        let second = handshakes.add(1);
        drop((first, second));
        assert!(handshakes.state().open.is_empty());
    }
}
