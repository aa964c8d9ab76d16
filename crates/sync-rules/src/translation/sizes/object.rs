//! How large an object of a kind that the class lists may become on the host. The host takes little more, for what it adds itself: an object that
//! is too large is denied in words.

use super::count_bytes;
use crate::{model::json, translation::fields::FieldIssues};
use serde_json::Value;

/// Most labels of the tenant's that such an object carries on the host, which takes 400.
pub const MAX_OBJECT_LABELS: usize = 390;

/// Most bytes of such an object on the host, as JSON, without its status and what Berth adds. The host takes 240 KiB, of which names, origin and
/// hash need less than eight.
pub const MAX_OBJECT_BYTES: usize = 232 << 10;

/// Denies an object that is too large for the host. `host` is what becomes of it.
pub fn check_object(host: &Value, issues: &mut FieldIssues) {
    let labels = json::strings(host, &["metadata", "labels"]).len();
    if labels > MAX_OBJECT_LABELS {
        let why = format!(
            "{labels} of them are copied to the host, where an object may have at most {MAX_OBJECT_LABELS}: remove some"
        );
        issues.deny("metadata.labels", why);
    }
    let bytes = count_bytes(host);
    if bytes > MAX_OBJECT_BYTES {
        let why = format!(
            "together they become {bytes} bytes on the host, and may have at most {MAX_OBJECT_BYTES} there: shorten annotations, or put data \
             into ConfigMaps and Secrets"
        );
        issues.deny("metadata and spec", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_has_the_limits_of_objects() {
        let page = include_str!("../../../../../docs/reference/object-sizes.md");
        assert_eq!((MAX_OBJECT_LABELS, MAX_OBJECT_BYTES), (390, 237_568));
        assert!(page.contains(" 390 labels") && page.contains(" 237,568 bytes"));
    }
}
