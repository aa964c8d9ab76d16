//! Images that stay although no container uses them.

use super::names::{complete, has_prefix};
use std::collections::BTreeSet;

/// The argument with a prefix of names.
const PREFIX: &str = "--keep=";
/// The argument with the whole name of an image, as a pod asks for it.
const NAME: &str = "--keep-image=";

/// Images that stay although no container uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keep {
    /// Prefixes of names, which the pool lists.
    prefixes: Vec<String>,
    /// Names of images of the platform whose pods are away for the scrub.
    names: BTreeSet<String>,
}

impl Keep {
    /// What the arguments of the step say.
    pub(super) fn from_arguments(arguments: &[String]) -> Self {
        let values = |key: &'static str| arguments.iter().filter_map(move |argument| argument.strip_prefix(key));
        Self {
            prefixes: values(PREFIX).map(str::to_owned).collect(),
            names: values(NAME)
                .flat_map(|name| [name.to_owned(), complete(name)])
                .collect(),
        }
    }

    /// Whether an image with this name stays.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name) || has_prefix(name, &self.prefixes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_prefixes_and_as_pods_ask_for_them() {
        let arguments = [
            "--keep=ghcr.io/base/",
            "--keep-image=q.example/plugin:1",
            "--keep-image=q.example/dcgm:4@sha256:ab",
            "--keep-image=busybox",
        ]
        .map(str::to_owned);
        let keep = Keep::from_arguments(&arguments);
        for (name, stays) in [
            ("ghcr.io/base/os:1", true),
            ("q.example/plugin:1", true),
            ("q.example/plugin:1-of-a-tenant", false),
            ("q.example/dcgm@sha256:ab", true),
            ("docker.io/library/busybox:latest", true),
            ("docker.io/library/busybox:1", false),
        ] {
            assert_eq!(keep.has(name), stays, "{name}");
        }
        assert!(!Keep::default().has("busybox"));
    }
}
