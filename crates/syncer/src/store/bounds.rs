//! How much is kept of kinds that a tenant may serve by itself.
//!
//! What the API server stores is limited by it. A server of the tenant's own can name objects without end, of any size, and with more structure
//! than the syncer has memory for.

use super::object::Object;
use berth_runtime::answers::MAX_TREE;
use kube::runtime::watcher::Event;
use std::time::Duration;

/// Memory of a parsed object after which nobody waits. A store keeps few objects as trees, for two seconds.
const SMALL: u64 = 1 << 20;
/// MiB of the memory of larger ones that are parsed in a second.
const RATE: u32 = 32;

/// How much there may be.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// Bytes of all objects.
    pub bytes: u64,
    /// The bytes of those that are there.
    pub kept: &'a (dyn Fn() -> u64 + Send + Sync),
}

impl Bounds<'_> {
    /// Whether there is room for the object of an event. Waits after a large one, so that the memory of others is free.
    pub(super) async fn leave_room_for<const METADATA_ONLY: bool>(self, event: &Event<Object<METADATA_ONLY>>) -> bool {
        let (object, is_kept) = match event {
            Event::InitApply(object) | Event::Apply(object) => (object, true),
            Event::Delete(object) => (object, false),
            Event::Init | Event::InitDone => return true,
        };
        let memory = object.memory();
        if memory > MAX_TREE || is_kept && self.are_exceeded_by(object.bytes()) {
            return false;
        }
        if memory > SMALL {
            tokio::time::sleep(wait_after(memory)).await;
        }
        true
    }

    fn are_exceeded_by(self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        (self.kept)().saturating_add(bytes) > self.bytes
    }
}

/// How long the memory of an object counts.
fn wait_after(memory: u64) -> Duration {
    Duration::from_secs(memory >> 20) / RATE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object<false> {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"a"}},"spec":"{text}"}}"#)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_room_up_to_the_limit() {
        let kept = || 90_000;
        let bounds = Bounds {
            bytes: 100_000,
            kept: &kept,
        };
        let (small, large) = (object("x"), object(&"x".repeat(20_000)));
        assert!(bounds.leave_room_for(&Event::Apply(small.clone())).await);
        assert!(bounds.leave_room_for(&Event::InitApply(small)).await);
        assert!(!bounds.leave_room_for(&Event::Apply(large.clone())).await);
        assert!(!bounds.leave_room_for(&Event::InitApply(large.clone())).await);
        assert!(bounds.leave_room_for(&Event::Delete(large)).await, "it makes room");
        assert!(bounds.leave_room_for(&Event::<Object<false>>::InitDone).await);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_with_much_structure_take_time_or_have_no_room() {
        let kept = || 0;
        let bounds = Bounds {
            bytes: u64::MAX,
            kept: &kept,
        };
        let of_maps = |count: usize| {
            let text = format!(r#"{{"metadata":{{}},"spec":[{}{{}}]}}"#, "{},".repeat(count));
            serde_json::from_str::<Object<false>>(&text).unwrap()
        };
        let start = tokio::time::Instant::now();
        assert!(bounds.leave_room_for(&Event::Apply(of_maps(100))).await);
        assert!(start.elapsed().is_zero());
        assert!(bounds.leave_room_for(&Event::Apply(of_maps(40_000))).await);
        assert!(start.elapsed() >= Duration::from_secs(1));
        assert!(!bounds.leave_room_for(&Event::Apply(of_maps(100_000))).await);
        assert!(!bounds.leave_room_for(&Event::Delete(of_maps(100_000))).await);
    }
}
