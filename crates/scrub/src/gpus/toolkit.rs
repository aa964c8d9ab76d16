//! The version of NVIDIA's container toolkit, which gives containers their GPUs as root: with an older one, an image of a tenant can take
//! over the node.

use crate::{Unclean, node::Node, program, version::Version};

/// The first version without CVE-2024-0132 (fixed in 1.16.2), CVE-2025-23359 (1.17.4), CVE-2025-23266 (1.17.8) and CVE-2026-24260 (1.19.1);
/// from NVIDIA's security bulletins.
const SAFE: Version = Version([1, 19, 1]);
/// Where the GPU Operator and packages install its command.
const TOOLS: [&str; 3] = [
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/usr/bin/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
];
/// Where it is in the folder of the driver, if it is installed there, as on GKE. The driver container has a toolkit of its own, in its system, which gives
/// no container its GPUs.
const BESIDE_DRIVER: [&str; 2] = ["toolkit/nvidia-ctk", "bin/nvidia-ctk"];
/// The root of the node, whose folders are among [`TOOLS`].
const NODE: &str = "/";
/// The root of the driver container of the GPU Operator.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

/// Whether every toolkit on a node with NVIDIA GPUs is one without known ways out of a container. A node without a toolkit passes: its
/// GPUs are given to containers by something else. Returns what was found. `driver_roots`: folders in which the driver may be.
pub(crate) fn is_safe(node: &Node, driver_roots: &[&str]) -> Result<String, Unclean> {
    let looked_at = paths(driver_roots);
    let mut found = Vec::new();
    for tool in &looked_at {
        // A link may lead to a path that exists only on the node.
        if node.path(tool).symlink_metadata().is_err() {
            continue;
        }
        let output = program::run(node.root(), tool, &["--version"])
            .map_err(|error| Unclean::Program(format!("{tool}: {error}")))?;
        let version = check(tool, &String::from_utf8_lossy(&output.stdout))?;
        found.push(format!("{tool} is of version {version}"));
    }
    if found.is_empty() {
        return Ok(format!(
            "no container toolkit was checked: there is no nvidia-ctk in {}",
            looked_at.join(", ")
        ));
    }
    Ok(found.join(", "))
}

/// Where the command may be, by paths of the node.
fn paths(driver_roots: &[&str]) -> Vec<String> {
    let in_folder = |root: &&str| BESIDE_DRIVER.map(|path| format!("{}/{path}", root.trim_end_matches('/')));
    let folders = driver_roots
        .iter()
        .filter(|root| ![NODE, DRIVER_CONTAINER].contains(*root));
    TOOLS
        .map(str::to_owned)
        .into_iter()
        .chain(folders.flat_map(in_folder))
        .collect()
}

/// Whether the command that printed this is of a safe version.
fn check(tool: &str, printed: &str) -> Result<Version, Unclean> {
    let version = version(printed)
        .ok_or_else(|| Unclean::Program(format!("{tool} --version: no version in {:?}", printed.trim())))?;
    if version < SAFE {
        return Err(Unclean::Left(format!(
            "{tool} is of version {version}: an image can take over the node. Update NVIDIA's container toolkit to {SAFE} or later \
             (with the GPU Operator: to a release that installs it)"
        )));
    }
    Ok(version)
}

/// The version in the first line, as in `NVIDIA Container Toolkit CLI version 1.19.1`.
fn version(printed: &str) -> Option<Version> {
    Version::parse(printed.lines().next()?.rsplit_once("version ")?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (printed, is_safe) in [
            ("NVIDIA Container Toolkit CLI version 1.19.1\ncommit: abc", true),
            ("NVIDIA Container Toolkit CLI version 1.20.0-rc.2", true),
            ("NVIDIA Container Toolkit CLI version v2.0.0", true),
            ("NVIDIA Container Toolkit CLI version 1.19.0\ncommit: abc", false),
            ("NVIDIA Container Toolkit CLI version 1.18.2", false),
            ("NVIDIA Container Toolkit CLI version 1.17.8", false),
            ("NVIDIA Container Toolkit CLI version 1.9.12", false),
            ("NVIDIA Container Toolkit CLI version 0.99.99", false),
        ] {
            let result = check("nvidia-ctk", printed);
            assert_eq!(result.is_ok(), is_safe, "{printed}: {result:?}");
        }
    }

    #[test]
    fn an_old_version_is_named_with_what_to_do() {
        let error = check("/usr/bin/nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.16.1").unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("/usr/bin/nvidia-ctk is of version 1.16.1") && message.contains("1.19.1 or later"),
            "{message}"
        );
    }

    #[test]
    fn a_version_that_cannot_be_read_is_an_error() {
        for printed in [
            "",
            "nvidia-ctk",
            "NVIDIA Container Toolkit CLI version ",
            "version 1.17",
        ] {
            assert!(
                matches!(check("nvidia-ctk", printed), Err(Unclean::Program(_))),
                "{printed}"
            );
        }
    }

    #[test]
    fn a_node_without_a_toolkit_passes_and_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let roots = ["/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"];
        let message = is_safe(&Node::new(folder.path(), []), &roots).unwrap();
        assert_eq!(
            message,
            "no container toolkit was checked: there is no nvidia-ctk in /usr/local/nvidia/toolkit/nvidia-ctk, /usr/bin/nvidia-ctk, \
             /usr/local/bin/nvidia-ctk, /home/kubernetes/bin/nvidia/toolkit/nvidia-ctk, /home/kubernetes/bin/nvidia/bin/nvidia-ctk"
        );
    }

    #[test]
    fn a_toolkit_beside_the_driver_is_looked_for() {
        let paths = paths(&["/opt/driver/"]);
        assert_eq!(paths[..3], TOOLS);
        assert_eq!(
            paths[3..],
            ["/opt/driver/toolkit/nvidia-ctk", "/opt/driver/bin/nvidia-ctk"]
        );
        assert_eq!(super::paths(&["/", "/run/nvidia/driver"]), TOOLS);
    }
}
