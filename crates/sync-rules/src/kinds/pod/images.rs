//! Images of a pod: those that the tenant's class lists, in containers of every kind and in volumes.

use super::tables::CONTAINERS;
use crate::{
    model::{Cache, json},
    translation::{fields::FieldIssues, images},
};
use serde_json::Value;

/// Denies images in the spec of a tenant's pod that its class does not list.
pub fn check(cache: &Cache, source: &Value, issues: &mut FieldIssues) {
    let patterns = cache.tenant.policy.pods.images.as_deref();
    if patterns.is_none() {
        return;
    }
    for list in CONTAINERS {
        for (index, container) in json::items(source, &[list]).iter().enumerate() {
            let image = json::text(container, &["image"]).unwrap_or_default();
            if let Some(why) = images::denial(patterns, image) {
                issues.deny(format!("spec.{list}[{index}].image"), why);
            }
        }
    }
    for (index, volume) in json::items(source, &["volumes"]).iter().enumerate() {
        let Some(source) = volume.get("image").filter(|image| !image.is_null()) else {
            continue;
        };
        let image = json::text(source, &["reference"]).unwrap_or_default();
        if let Some(why) = images::denial(patterns, image) {
            issues.deny(format!("spec.volumes[{index}].image.reference"), why);
        }
    }
}
