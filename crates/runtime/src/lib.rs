//! Code that Berth's long-running programs share: Kubernetes clients with time limits, whose answers are made readable, a keyed queue, a leader
//! lease, threads with runtimes of their own, objects of watches, the admin server (`/healthz`, `/readyz`, `/metrics`) and a client of it, common
//! metrics, and logs.
//!
//! | modules | what is in them |
//! |---|---|
//! | [`client`], [`discovery`], [`corrected`], `present_lists` | clients of API servers, and what their requests and answers are changed to |
//! | [`answers`], `page_limit`, [`long_answers`], [`extension_answers`] | how long answers may be, and how many long ones are read at a time |
//! | [`watched`], [`tree`] | objects of lists and watches, and the memory that they take |
//! | [`queue`] | the queue of keys |
//! | [`lease`], [`thread`], [`shutdown`] | how programs start, lead and end |
//! | [`locks`], [`hashes`] | locks that stay usable after a panic, and hashes that show changes |
//! | [`admin`], `http`, [`metrics`], [`telemetry`] | the admin server, its client, metrics and logs |
//! | [`places`], [`sockets`] | connections: which of them end when there are too many, and their options |

pub mod admin;
pub mod answers;
pub mod client;
pub mod corrected;
pub mod discovery;
pub mod extension_answers;
pub mod hashes;
pub mod http;
pub mod lease;
pub mod locks;
mod log_lines;
pub mod long_answers;
pub mod metrics;
mod page_limit;
pub mod places;
mod present_lists;
pub mod queue;
pub mod shutdown;
pub mod sockets;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod tree;
pub mod watched;

/// Installs aws-lc-rs as the crypto provider of the process, for every TLS connection. Call it first in `main`; further
/// calls are harmless.
pub fn install_crypto() {
    // An error means that a provider is installed already, which is this one: no other is linked.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
}
