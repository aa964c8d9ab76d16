//! Images that a tenant's pods may run and mount.
//!
//! Container runtimes complete a name before they look for the image: `nginx` is `docker.io/library/nginx`. Names are compared when they are
//! complete, without tag and digest. A runtime also takes the start of an image's ID, and starts an image that somebody else has pulled: what could be one is
//! denied. The host's admission policies do the same with the same expressions.

use super::{hostnames::offered, pattern::Pattern};
use berth_api::sync_policy::ANY;

/// The registry of names without one.
pub const HUB: &str = "docker.io";
/// An older name of [`HUB`].
pub const OLD_HUB: &str = "index.docker.io";
/// The folder of [`HUB`] for names without one.
pub const LIBRARY: &str = "library/";
/// A registry that needs no dot and no port.
pub const LOCALHOST: &str = "localhost";
/// The end of a pattern for every repository of a folder.
pub const ALL_BELOW: &str = "/*";

/// Most bytes of an image, with tag and digest. No container runtime takes a longer one: 255 bytes of registry and repository, 128 of a tag, and a digest. The
/// image of a pod that runs can change, and without a limit such a pod could become as large as etcd allows.
pub const MOST_BYTES: usize = 600;

/// The part of an image that fits [`REFERENCE`], without tag and digest, for the admission policy.
pub const WITHOUT_TAG: &str = "^([^/@]+/)*[^/:@]+";
/// Names without tag and digest that begin with a registry, for the admission policy.
pub const WITH_REGISTRY: &str = "^([^/]*[.:][^/]*|localhost)/";

/// Names of images, with tag and digest. The excluded ones could be IDs of images: they have no slash, and are an algorithm or hexadecimal digits.
pub static REFERENCE: Pattern = Pattern::limited(
    concat!(
        r"^[a-z0-9]+([._-]+[a-z0-9]+)*((:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+)?",
        r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?$"
    ),
    &["^(sha[0-9]+|[0-9a-f]+)([:@][^/]*)?$"],
    MOST_BYTES,
    "names such as registry.example.com/team/app:1. IDs of images are none, and names that could be an ID need a registry, as in docker.io/library/cafe",
);

/// The name of an image as container runtimes complete it, without tag and digest. `None` if it is no name.
pub fn full_name(image: &str) -> Option<String> {
    if !REFERENCE.is_match(image) {
        return None;
    }
    let name = without_tag(image);
    let (registry, path) = match name.split_once('/') {
        Some((HUB | OLD_HUB, path)) => (HUB, path),
        Some((registry, path)) if registry == LOCALHOST || registry.contains(['.', ':']) => (registry, path),
        _ => (HUB, name),
    };
    let folder = if registry == HUB && !path.contains('/') {
        LIBRARY
    } else {
        ""
    };
    Some(format!("{registry}/{folder}{path}"))
}

fn without_tag(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last_part = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last_part..].find(':') {
        Some(colon) => &name[..last_part + colon],
        None => name,
    }
}

/// Why an image is denied in a tenant that may use those of `patterns`; `None` if it may be used. Without patterns, every image may that is not too long.
pub fn denial(patterns: Option<&[String]>, image: &str) -> Option<String> {
    let bytes = image.len();
    if bytes > MOST_BYTES {
        return Some(format!(
            "it has {bytes} bytes, and may have at most {MOST_BYTES}: no container runtime takes a longer name of an image"
        ));
    }
    let patterns = patterns?;
    if patterns.iter().any(|pattern| pattern == ANY) {
        return None;
    }
    let Some(name) = full_name(image) else {
        return REFERENCE.denial(image);
    };
    let is_offered = patterns.iter().any(|pattern| covers(pattern, &name));
    (!is_offered).then(|| format!("the image {name} is not offered; {}", offered(patterns)))
}

/// Whether a pattern covers the full name of an image.
fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix(ALL_BELOW) {
        Some(folder) => name.strip_prefix(folder).is_some_and(|below| below.starts_with('/')),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::pattern::assert_usable;
    use berth_api::images::IMAGE_PATTERN;
    use proptest::prelude::*;
    use regex::Regex;

    const DIGEST: &str = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn patterns(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn is_allowed(list: &[&str], image: &str) -> bool {
        denial(Some(patterns(list).as_slice()), image).is_none()
    }

    #[test]
    fn names_are_completed_as_container_runtimes_do() {
        assert_usable(&REFERENCE);
        for (image, expected) in [
            ("nginx", "docker.io/library/nginx"),
            ("nginx:1.27", "docker.io/library/nginx"),
            ("library/nginx", "docker.io/library/nginx"),
            ("docker.io/nginx:latest", "docker.io/library/nginx"),
            ("index.docker.io/nginx", "docker.io/library/nginx"),
            ("index.docker.io/library/nginx", "docker.io/library/nginx"),
            ("index.docker.io/team/index.docker.io", "docker.io/team/index.docker.io"),
            ("docker.io/docker.io/nginx", "docker.io/docker.io/nginx"),
            ("pytorch/pytorch:2.9-cuda13", "docker.io/pytorch/pytorch"),
            ("localhost", "docker.io/library/localhost"),
            ("localhost:5000", "docker.io/library/localhost"),
            ("localhost/x", "localhost/x"),
            ("localhost:5000/x:1", "localhost:5000/x"),
            ("registry:5000/x", "registry:5000/x"),
            ("registry/x", "docker.io/registry/x"),
            ("cafe:5000/x", "cafe:5000/x"),
            ("sha256:5000/x:1", "sha256:5000/x"),
            ("cafe/x:1", "docker.io/cafe/x"),
            ("10.0.0.1/x", "10.0.0.1/x"),
            ("registry.example.com/teams/a/b:v1_2", "registry.example.com/teams/a/b"),
            ("registry.example.com:443/a__b", "registry.example.com:443/a__b"),
        ] {
            assert_eq!(full_name(image).as_deref(), Some(expected), "{image}");
            let with_digest = format!("{image}{DIGEST}");
            assert_eq!(full_name(&with_digest).as_deref(), Some(expected), "{with_digest}");
        }
    }

    #[test]
    fn an_image_that_is_too_long_is_denied_also_without_a_list() {
        let any = patterns(&[ANY]);
        for patterns in [None, Some(any.as_slice())] {
            assert_eq!(denial(patterns, &"a".repeat(MOST_BYTES)), None);
            assert!(denial(patterns, &"a".repeat(MOST_BYTES + 1)).is_some());
        }
    }

    #[test]
    fn ids_and_what_is_no_name_are_no_names() {
        for image in [
            "",
            "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "sha256:0123",
            "sha512:0123",
            "sha256",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "cafe",
            "cafe:latest",
            "cafe@sha256:0123",
            "cafe:latest@sha256:0123",
            "7",
            "Registry.example.com/x",
            "Foo/x",
            "registry.example.com./x",
            "registry.example.com//x",
            "registry.example.com/../x",
            "registry.example.com/teams/../x",
            "registry.example.com/teams/./x",
            "registry.example.com/teams/",
            "/registry.example.com/x",
            "https://registry.example.com/x",
            "user@registry.example.com/x",
            "[::1]:5000/x",
            "registry.example.com:/x",
            "registry.example.com/x y",
            " nginx",
            "nginx\n",
            "nginx@",
            "nginx:",
            "nginx:a:b",
            "nginx@sha256:0123/x",
            "registry.example.com/ｘ",
        ] {
            assert_eq!(full_name(image), None, "{image:?}");
            assert!(
                !is_allowed(&["docker.io/*", "registry.example.com/*"], image),
                "{image:?}"
            );
            assert!(is_allowed(&["*"], image), "the runtime decides about {image:?}");
        }
        // With a registry it can only be a name.
        assert!(is_allowed(&["docker.io/library/*"], "docker.io/library/cafe"));
        assert!(is_allowed(&["docker.io/library/*"], "library/sha256:0123"));
        assert_eq!(full_name(&format!("docker.io{}", "/ab".repeat(200))), None, "too long");
    }

    #[test]
    fn a_pattern_covers_a_repository_or_all_below_a_folder() {
        let list = [
            "registry.example.com/teams/*",
            "registry.example.com/base/cuda",
            "localhost:5000/*",
        ];
        for good in [
            "registry.example.com/teams/a",
            "registry.example.com/teams/a/b/c:1",
            "registry.example.com/base/cuda",
            "registry.example.com/base/cuda:13",
            "localhost:5000/x",
        ] {
            assert!(is_allowed(&list, good), "{good}");
        }
        for bad in [
            "registry.example.com/teams",
            "registry.example.com/teams-b/x",
            "registry.example.com/base/cuda/x",
            "registry.example.com/base/cuda-devel",
            "registry.example.com/platform/x",
            "registry.example.com.evil.org/teams/x",
            "evil.org/registry.example.com/teams/x",
            "xregistry.example.com/teams/x",
            "registry.example.com:443/teams/x",
            "localhost/x",
            "localhost:50000/x",
            "localhost:5000",
            "nginx",
            "teams/x",
        ] {
            let denial = denial(Some(patterns(&list).as_slice()), bad).unwrap_or_else(|| panic!("{bad}"));
            assert!(
                denial.contains("is not offered; offered here: registry.example.com/teams/*, "),
                "{denial}"
            );
        }
    }

    #[test]
    fn without_a_list_every_image_is_allowed_and_with_an_empty_one_none() {
        assert_eq!(denial(None, "nginx"), None);
        assert_eq!(denial(None, "sha256:0123"), None);
        assert!(!is_allowed(&[], "nginx"));
    }

    #[test]
    fn classes_list_full_names() {
        let pattern = Regex::new(IMAGE_PATTERN).unwrap();
        for good in [
            "*",
            "docker.io/*",
            "docker.io/library/nginx",
            "localhost/x",
            "localhost:5000/*",
            "registry:5000/x",
            "10.0.0.1:5000/x/*",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/teams/{namespace}/{tenant}/*",
            "registry.example.com/{tenant}",
            "registry.example.com/{namespace}/a__b.c-d",
        ] {
            assert!(pattern.is_match(good), "{good}");
        }
        for bad in [
            "",
            "nginx",
            "library/nginx",
            "team/*",
            "registry.example.com",
            "registry.example.com/",
            "registry.example.com*",
            "registry.example.com/teams*",
            "registry.example.com/*/x",
            "*/x",
            "*.example.com/*",
            "{tenant}.example.com/*",
            "registry.example.com/{team}/*",
            "registry.example.com/a-{tenant}/*",
            "registry.example.com/x:1",
            "registry.example.com/x@sha256:0123",
            "registry.example.com/../x",
            "registry.example.com//x",
            "Registry.example.com/x",
            "https://registry.example.com/x",
            "registry.example.com/a,b",
            "registry.example.com/x\n",
        ] {
            assert!(!pattern.is_match(bad), "{bad:?}");
        }
    }

    /// The name as the expression of the policy `berth-images` makes it, step by step.
    fn full_name_in_the_policy(image: &str) -> Option<String> {
        if !REFERENCE.is_match(image) {
            return None;
        }
        let [without_tag, with_registry] = [WITHOUT_TAG, WITH_REGISTRY].map(|text| Regex::new(text).unwrap());
        let name = without_tag.find(image).unwrap().as_str();
        let is_hub = [HUB, OLD_HUB].iter().any(|hub| name.starts_with(&format!("{hub}/")));
        if with_registry.is_match(name) && !is_hub {
            return Some(name.to_owned());
        }
        let path = if is_hub {
            &name[name.find('/').unwrap() + 1..]
        } else {
            name
        };
        let folder = if path.contains('/') { "" } else { LIBRARY };
        Some(format!("{HUB}/{folder}{path}"))
    }

    proptest! {
        #[test]
        fn the_policy_completes_names_as_translation_does(
            start in "((index[.])?docker[.]io|localhost|a[.]b|a)?(:[0-9]{1,2})?/?",
            rest in "[a-c7.:/@_-]{0,8}(:[A-c7._-]{1,3})?(@[a-c]{1,2}:[0-9a-f]{1,3})?",
        ) {
            let image = format!("{start}{rest}");
            prop_assert_eq!(full_name(&image), full_name_in_the_policy(&image), "{}", image);
        }

        /// Else an entry would allow nothing.
        #[test]
        fn an_entry_of_a_class_is_a_name_that_is_complete(
            entry in "(docker[.]io/library|localhost|localhost:5000|a[.]b|a:1|a-b:1|10[.]0[.]0[.]1)(/[a-c0-9]{1,3}([._-]{1,2}[a-c]){0,2}){1,3}"
        ) {
            prop_assert!(Regex::new(IMAGE_PATTERN).unwrap().is_match(&entry));
            prop_assert_eq!(full_name(&entry), Some(entry.clone()));
            let tagged = format!("{entry}:1{DIGEST}");
            prop_assert!(is_allowed(&[entry.as_str()], &tagged));
        }

        /// What is compared is what a runtime pulls: completing a complete name changes nothing, and it never leaves its registry.
        #[test]
        fn complete_names_stay_as_they_are(image in "[a-c.:/@-]{1,12}") {
            if let Some(name) = full_name(&image) {
                prop_assert_eq!(full_name(&name), Some(name.clone()));
                let (registry, path) = name.split_once('/').unwrap();
                prop_assert!(!registry.is_empty() && !path.is_empty());
                let folder = format!("{registry}/*");
                prop_assert!(is_allowed(&[folder.as_str()], &image));
            }
        }
    }
}
