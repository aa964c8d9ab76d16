//! Places that those who have them for longest leave to others.
//!
//! Clients send their request, or their ClientHello, at once, and readers take some of what waits for them from time to time. So where there are
//! too many connections that are silent, or whose reader takes nothing, those make room that have been so for longest: many of them keep nobody
//! else out, and do not have more memory than their number allows.

use crate::locks::lock;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::oneshot;

/// A number of places, and those who have one, in the order in which they got it. Clones share them.
#[derive(Clone, Debug)]
pub struct Places {
    most: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// One whose sender is dropped is displaced.
    taken: BTreeMap<u64, oneshot::Sender<()>>,
}

impl State {
    /// Adds one behind all others.
    fn push(&mut self, sender: oneshot::Sender<()>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, sender);
        number
    }
}

impl Places {
    /// So many, but at least one.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            state: Arc::default(),
        }
    }

    /// Takes a place until the result is dropped. If there is none left, displaces the oldest.
    pub fn take(&self) -> Place {
        let (sender, displaced) = oneshot::channel();
        let mut state = self.state();
        while state.taken.len() >= self.most {
            state.taken.pop_first();
        }
        Place {
            number: state.push(sender),
            places: self.clone(),
            displaced,
        }
    }

    /// Displaces the oldest, if there is one.
    pub fn displace_oldest(&self) {
        self.state().taken.pop_first();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A place.
#[derive(Debug)]
pub struct Place {
    places: Places,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl Place {
    /// Completes, once, when the place is needed for another connection.
    pub async fn displaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.displaced).await;
    }

    /// Makes this the newest place. One that is displaced already stays so.
    pub fn renew(&mut self) {
        let mut state = self.places.state();
        if let Some(sender) = state.taken.remove(&self.number) {
            self.number = state.push(sender);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneshot::error::TryRecvError;

    fn is_displaced(place: &mut Place) -> bool {
        place.displaced.try_recv() == Err(TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_make_room() {
        let places = Places::new(3);
        let mut taken: Vec<Place> = (0..3).map(|_| places.take()).collect();
        assert!(!taken.iter_mut().any(is_displaced));
        taken.push(places.take());
        let displaced: Vec<bool> = taken.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false, false]);
        // One that is through leaves its place to the next.
        drop(taken.remove(2));
        taken.push(places.take());
        let displaced: Vec<bool> = taken.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false, false]);
        places.displace_oldest();
        assert!(is_displaced(&mut taken[1]) && !is_displaced(&mut taken[2]));
    }

    #[test]
    fn however_many_come_no_more_have_a_place() {
        let places = Places::new(10);
        let mut taken: Vec<Place> = (0..1000).map(|_| places.take()).collect();
        let displaced = taken.iter_mut().map(is_displaced).filter(|displaced| *displaced);
        assert_eq!(displaced.count(), 990);
    }

    #[test]
    fn one_that_is_renewed_is_not_the_oldest() {
        let places = Places::new(2);
        let (mut first, mut second) = (places.take(), places.take());
        first.renew();
        let mut third = places.take();
        let displaced = [&mut first, &mut second, &mut third].map(is_displaced);
        assert_eq!(displaced, [false, true, false]);
        second.renew();
        assert!(is_displaced(&mut second), "its place is another's");
        assert!(!is_displaced(&mut first));
    }

    #[test]
    fn none_is_remembered() {
        let places = Places::new(1);
        places.displace_oldest();
        let (first, mut second) = (places.take(), places.take());
        second.renew();
        drop((first, second));
        assert!(places.state().taken.is_empty());
    }
}
