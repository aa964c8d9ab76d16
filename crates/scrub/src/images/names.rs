//! Names of images and of containers, of which there can be many.

use crate::error::Unclean;

/// Names in one call. A command line has a limited length, and a tenant can pull thousands of images.
const NAMES_PER_CALL: usize = 200;

/// Whether a name has one of the prefixes. One without a slash is the whole name of a registry: anybody could have one whose name only begins
/// with it.
pub(super) fn has_prefix(name: &str, prefixes: &[String]) -> bool {
    let matches = |prefix: &String| {
        let rest = name.strip_prefix(prefix.as_str());
        rest.is_some_and(|rest| prefix.contains('/') || rest.starts_with('/'))
    };
    prefixes.iter().any(matches)
}

/// The name under which containerd has the image that a pod asks for: with a registry, and with a tag or a digest, not with both.
pub(super) fn complete(asked: &str) -> String {
    const DOCKER: &str = "docker.io";
    let (name, digest) = asked
        .split_once('@')
        .map_or((asked, None), |(name, digest)| (name, Some(digest)));
    let (registry, path) = name
        .split_once('/')
        .filter(|(first, _)| *first == "localhost" || first.contains(['.', ':']))
        .unwrap_or((DOCKER, name));
    let library = if registry == DOCKER && !path.contains('/') {
        "library/"
    } else {
        ""
    };
    let (repository, tag) = path.rsplit_once(':').unwrap_or((path, "latest"));
    match digest {
        Some(digest) => format!("{registry}/{library}{repository}@{digest}"),
        None => format!("{registry}/{library}{repository}:{tag}"),
    }
}

/// An error that names the first few of what is left.
pub(super) fn left(what: &str, all: &[String]) -> Unclean {
    let shown: Vec<&str> = all.iter().take(5).map(String::as_str).collect();
    Unclean::Left(format!("{} {what}: {}", all.len(), shown.join(", ")))
}

/// Calls with these arguments and the names behind them, as often as there are parts of the names, and gives the outputs.
/// Without names there is no call.
pub(super) fn in_parts(
    arguments: &[&str],
    names: &[String],
    mut call: impl FnMut(&[&str]) -> Result<String, Unclean>,
) -> Result<Vec<String>, Unclean> {
    let mut outputs = Vec::new();
    for part in names.chunks(NAMES_PER_CALL) {
        let part: Vec<&str> = part.iter().map(String::as_str).collect();
        outputs.push(call(&[arguments, part.as_slice()].concat())?);
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pods_are_completed() {
        for (asked, completed) in [
            ("q.example/dns:1", "q.example/dns:1"),
            ("q.example/dns", "q.example/dns:latest"),
            ("q.example:5000/a/dns:1@sha256:ab", "q.example:5000/a/dns@sha256:ab"),
            ("localhost/dns@sha256:ab", "localhost/dns@sha256:ab"),
            ("busybox", "docker.io/library/busybox:latest"),
            ("docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("team/app:1", "docker.io/team/app:1"),
        ] {
            assert_eq!(complete(asked), completed, "{asked}");
        }
    }

    #[test]
    fn a_prefix_does_not_end_within_the_name_of_a_registry() {
        let keep = ["registry.example.com", "ghcr.io/berth-dev/base-"].map(str::to_owned);
        for (name, stays) in [
            ("registry.example.com/os:1", true),
            ("ghcr.io/berth-dev/base-os:1", true),
            ("registry.example.com.attacker.example/os:1", false),
            ("registry.example.com:5000/os:1", false),
            ("ghcr.io/berth-dev/other:1", false),
        ] {
            assert_eq!(has_prefix(name, &keep), stays, "{name}");
        }
    }

    #[test]
    fn a_call_has_a_limited_number_of_names() {
        let names: Vec<String> = (0..=2 * NAMES_PER_CALL).map(|number| number.to_string()).collect();
        let mut called = Vec::new();
        let outputs = in_parts(&["images", "ls"], &names, |arguments| {
            assert!(arguments.starts_with(&["images", "ls"]), "{arguments:?}");
            let part = &arguments[2..];
            called.extend(part.iter().copied().map(str::to_owned));
            Ok(part.len().to_string())
        });
        assert_eq!(outputs.unwrap(), ["200", "200", "1"]);
        assert_eq!(called, names, "each name once");
    }

    #[test]
    fn there_is_no_call_without_names() {
        // A list without filters would be of all images.
        let outputs = in_parts(&["images", "ls"], &[], |_| Err(Unclean::Left("a call".into())));
        assert!(outputs.unwrap().is_empty());
    }
}
