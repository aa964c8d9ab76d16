use crate::entry::Entry;
use futures::{Stream, StreamExt as _, stream};
use std::convert::Infallible;

mod bucket;
mod directory;

const LOCATION: &str = "5f0c/91ab";

/// Entries of so many bytes, which cannot be compressed, and differ with the seed.
fn entries(count: u32, size: usize, seed: u32) -> Vec<Entry> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..count)
        .map(|number| Entry {
            key: format!("secrets/{number:06}").into_bytes(),
            value: (0..size).map(|_| next()).collect(),
        })
        .collect()
}

fn source(entries: &[Entry]) -> impl Stream<Item = Result<Entry, Infallible>> + Send + use<> {
    stream::iter(entries.to_vec()).map(Ok)
}
