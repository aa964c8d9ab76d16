//! Kinds of which the host refuses every further object for now: they are not tried again at once, so that thousands of
//! objects beyond a limit do not become thousands of refused requests.

use super::lock;
use berth_sync_rules::{model::KindId, translation::quota::QuotaExceeded};
use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Time for which a kind is not tried again, unless an object of it goes away.
const PAUSE: Duration = Duration::from_secs(5);

/// What the host refused last of each kind.
#[derive(Default)]
pub(super) struct RefusedKinds(Mutex<HashMap<KindId, (QuotaExceeded, Instant)>>);

impl RefusedKinds {
    /// Notes a refusal. One that is about the size of the object says nothing about others.
    pub(super) fn refuse(&self, kind: KindId, why: &QuotaExceeded) {
        if why.refuses_every_object() {
            lock(&self.0).insert(kind, (why.clone(), Instant::now()));
        }
    }

    /// Lets the kind be tried again: an object of it is gone.
    pub(super) fn allow(&self, kind: KindId) {
        lock(&self.0).remove(&kind);
    }

    /// Why no object of the kind can be created now.
    pub(super) fn refusal(&self, kind: KindId) -> Option<QuotaExceeded> {
        let mut refused = lock(&self.0);
        let (why, since) = refused.get(&kind)?;
        if since.elapsed() < PAUSE {
            return Some(why.clone());
        }
        refused.remove(&kind);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::exceeded;

    #[test]
    fn a_kind_at_its_limit_is_tried_again_once_an_object_is_gone() {
        let refused = RefusedKinds::default();
        assert_eq!(refused.refusal(KindId::Pod), None);
        refused.refuse(KindId::Pod, &exceeded("count/pods"));
        assert_eq!(refused.refusal(KindId::Pod), Some(exceeded("count/pods")));
        assert_eq!(refused.refusal(KindId::Service), None);
        refused.allow(KindId::Pod);
        assert_eq!(refused.refusal(KindId::Pod), None);
    }

    #[test]
    fn an_object_that_is_too_large_does_not_hold_up_others() {
        let refused = RefusedKinds::default();
        refused.refuse(KindId::PersistentVolumeClaim, &exceeded("requests.storage"));
        assert_eq!(refused.refusal(KindId::PersistentVolumeClaim), None);
    }
}
