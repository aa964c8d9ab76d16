//! Digests of images that the user knows, and the values of the chart that have them. Nodes then run exactly these images.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use berth_local::images::catalog::{ETCD, PAUSE, berth_reference};
use serde_json::{Value, json};

use super::plan::ListedImage;
use crate::error::Error;

/// Digests by the names of images, with tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digests(BTreeMap<String, String>);

impl Digests {
    /// Reads the digests of a list such as `images.txt`. Images without one are left out.
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(file).map_err(|source| Error::File {
            action: "read",
            path: file.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|error| Error::Images(format!("{}: {error}", file.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let images = ListedImage::parse_list(text)?.into_iter();
        Ok(Self(
            images
                .filter_map(|image| Some((image.reference, image.digest?)))
                .collect(),
        ))
    }

    /// The digest of an image by any of its names.
    pub(super) fn find(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.0.get(*name).cloned())
    }
}

/// The values of the chart that name images by their digests. `images` are pairs of an image, as upstream names it, and its digest, if it is
/// known.
pub(super) fn chart_values<'a>(
    images: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    registry: Option<&str>,
) -> Value {
    let mut values = json!({});
    if let Some(registry) = registry {
        values["global"]["imageRegistry"] = registry.into();
    }
    for (reference, digest) in images {
        let Some(digest) = digest else { continue };
        let mut place = &mut values;
        for field in fields_of(reference) {
            place = &mut place[field];
        }
        *place = digest.into();
    }
    values
}

/// The fields that lead to the value for the digest of an image.
fn fields_of(reference: &str) -> Vec<String> {
    let own = [
        (berth_reference("berth-control"), "control.image.digest"),
        (berth_reference("berth-syncer"), "tenants.syncerImage.digest"),
        (berth_reference("berth-scrub"), "nodes.scrubImage.digest"),
        (berth_reference("berth-gateway"), "gateway.image.digest"),
        (ETCD.to_owned(), "datastore.etcd.image.digest"),
        (PAUSE.to_owned(), "nodes.placeholderImage.digest"),
    ];
    if let Some((_, path)) = own.iter().find(|(image, _)| image == reference) {
        return path.split('.').map(str::to_owned).collect();
    }
    // An image of control planes, of which there may be several versions.
    let name = reference.rsplit('/').next().unwrap_or(reference);
    ["tenants", "imageDigests", name].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_digests_of_some_images() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let digests = Digests::parse(&format!("{ETCD}@{digest}\n{PAUSE}\n")).unwrap();
        assert_eq!(digests.find(&["mirror.example.com/etcd:3", ETCD]), Some(digest));
        assert_eq!(digests.find(&[PAUSE]), None);
        let error = Digests::parse(&format!("{ETCD}@sha256:1")).unwrap_err();
        assert!(error.contains("sha256:1"), "{error}");
    }

    #[test]
    fn digests_are_values_of_the_chart() {
        let control = berth_reference("berth-control");
        let images = [
            (control.as_str(), Some("sha256:1")),
            (ETCD, Some("sha256:2")),
            (PAUSE, None),
            ("registry.k8s.io/kube-apiserver:v1.37.1", Some("sha256:3")),
            ("registry.k8s.io/coredns/coredns:v1.14.7", Some("sha256:4")),
        ];
        assert_eq!(
            chart_values(images, Some("harbor.example.com/m")),
            json!({
                "global": {"imageRegistry": "harbor.example.com/m"},
                "control": {"image": {"digest": "sha256:1"}},
                "datastore": {"etcd": {"image": {"digest": "sha256:2"}}},
                "tenants": {"imageDigests": {"kube-apiserver:v1.37.1": "sha256:3", "coredns:v1.14.7": "sha256:4"}},
            })
        );
        assert_eq!(chart_values([(PAUSE, None)], None), json!({}));
    }
}
