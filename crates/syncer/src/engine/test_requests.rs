//! Pods that ask for places, for unit tests: all in one namespace.

use super::window::{Gang, Request};
use berth_sync_rules::model::resource::Name;

/// The name of a pod, or of a gang.
pub(super) fn name(of: &str) -> Name {
    Name::new("team", of)
}

/// The request of a pod of no gang.
pub(super) fn request(of: &str) -> Request {
    Request {
        name: name(of),
        priority: 0,
        gang: None,
        user: None,
    }
}

/// The request of a member of a gang of so many pods.
pub(super) fn member(of: &str, gang: &str, size: usize) -> Request {
    let gang = Gang { name: name(gang), size };
    Request {
        gang: Some(gang),
        ..request(of)
    }
}
