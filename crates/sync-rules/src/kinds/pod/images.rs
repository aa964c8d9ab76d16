//! Images of a pod: those that the tenant's class lists, in containers of every kind and in volumes. Without a list only their length is limited.
//!
//! The class may take an image away that the host pod runs. It goes on with that, and only changes to another image that is not listed are denied: what
//! the host pod has is read there when it matters.

use super::placement;
use crate::{
    model::{Cache, DeniedField, json, resource::Name},
    translation::{fields::FieldIssues, images},
};
use serde_json::{Map, Value};
use std::fmt;

/// The containers whose images can change.
const CHANGING: [&str; 2] = ["initContainers", "containers"];

/// Denies images in the spec of a tenant's pod that its class does not list. Whether those of a host pod that has a node are denied is in doubt. Ephemeral
/// containers are checked [one by one](check_container).
pub fn check(cache: &Cache, name: &Name, source: &Value, issues: &mut FieldIssues) {
    let patterns = cache.tenant.policy.pods.images.as_deref();
    let mut of_containers = FieldIssues::default();
    for list in CHANGING {
        for (index, container) in json::items(source, &[list]).iter().enumerate() {
            check_container(
                cache,
                container,
                format_args!("spec.{list}[{index}]"),
                &mut of_containers,
            );
        }
    }
    let denied = of_containers.denied;
    if !denied.is_empty() && placement::is_placed(cache, name) {
        issues.parts.in_doubt = denied;
    } else {
        issues.denied.extend(denied);
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

/// Denies the image of one container, which `path` names. Most images are allowed, so that no text is made of it before.
pub fn check_container(cache: &Cache, container: &Value, path: fmt::Arguments<'_>, issues: &mut FieldIssues) {
    let image = json::text(container, &["image"]).unwrap_or_default();
    if let Some(why) = images::denial(cache.tenant.policy.pods.images.as_deref(), image) {
        issues.deny(format!("{path}.image"), why);
    }
}

/// Whether the host pod `live` has the image that is at the path `field` of `desired`.
pub fn is_on_host(field: &str, desired: &Value, live: &Value) -> bool {
    let has_image = || {
        let (list, wanted) = container_at(field, desired)?;
        let mut containers = json::items(live, &["spec", list]).iter();
        let now = containers.find(|other| other.get("name") == wanted.get("name"))?;
        Some(now.get("image") == wanted.get("image"))
    };
    has_image().unwrap_or_default()
}

/// The images at these paths of `desired`, for [`update::DENIED_IMAGES`](super::update::DENIED_IMAGES).
pub fn images_at(denied: &[DeniedField], desired: &Value) -> Map<String, Value> {
    let images = denied.iter().filter_map(|denied| {
        let (_, container) = container_at(&denied.field, desired)?;
        Some((denied.field.clone(), container.get("image")?.clone()))
    });
    images.collect()
}

/// The list and the container of a path such as `spec.containers[0].image`.
fn container_at<'a>(field: &str, pod: &'a Value) -> Option<(&'static str, &'a Value)> {
    let (list, index) = field.strip_prefix("spec.")?.strip_suffix("].image")?.split_once('[')?;
    let list = CHANGING.into_iter().find(|known| *known == list)?;
    let index: usize = index.parse().ok()?;
    Some((list, json::items(pod, &["spec", list]).get(index)?))
}
