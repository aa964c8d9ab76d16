//! NVIDIA's driver on the node, and its tool nvidia-smi.

use crate::{Unclean, node::Node, program};
use std::path::PathBuf;

/// The argument that names the folder of the driver.
const ROOT_ARGUMENT: &str = "--driver-root=";
/// Where the driver may be, if no argument says it: in the driver container of the GPU Operator, on the node itself, and where GKE installs it. The tool
/// of a node with a driver container would be of another driver.
const ROOTS: [&str; 3] = ["/run/nvidia/driver", "/", "/home/kubernetes/bin/nvidia"];
/// Where nvidia-smi is in a folder that has a whole system in it.
const IN_SYSTEM: [&str; 2] = ["/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi"];

/// What nvidia-smi printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) is_done: bool,
    pub(crate) text: String,
}

/// Runs nvidia-smi with arguments.
pub(crate) type Smi<'a> = dyn Fn(&[&str]) -> Result<Printed, Unclean> + 'a;

/// How nvidia-smi is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Its root folder.
    root: PathBuf,
    /// Its path there.
    path: String,
    /// Where its libraries are, if the system does not find them.
    libraries: Option<String>,
}

impl Tool {
    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<Printed, Unclean> {
        let Self { root, path, libraries } = self;
        let libraries = libraries.as_deref().map(|folder| ("LD_LIBRARY_PATH", folder));
        let output = program::run_with(root, path, arguments, libraries.as_slice())
            .map_err(|error| Unclean::Program(format!("{path}: {error}")))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(Printed {
            is_done: output.status.success(),
            text,
        })
    }
}

/// Folders of the node in which the driver may be.
pub(crate) fn roots(arguments: &[String]) -> Vec<&str> {
    let named = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix(ROOT_ARGUMENT));
    named.map_or_else(|| ROOTS.to_vec(), |root| vec![root])
}

/// Finds nvidia-smi on the node.
pub(crate) fn find_smi(node: &Node, arguments: &[String]) -> Result<Tool, Unclean> {
    let roots = roots(arguments);
    let found = roots
        .iter()
        .find_map(|root| in_system(node, root).or_else(|| in_folder(node, root)));
    found.ok_or_else(|| {
        Unclean::Program(format!(
            "the node has NVIDIA GPUs but no nvidia-smi in {}, which is needed to clean and validate them: name the folder of the driver in \
             nvidia.driverRoot of the pool",
            roots.join(", ")
        ))
    })
}

/// nvidia-smi in a folder that has a whole system in it, as the root of the node and that of the driver container.
fn in_system(node: &Node, root: &str) -> Option<Tool> {
    let folder = node.path(root);
    // A link may lead to a path that exists only there.
    let exists = |path: &&str| folder.join(path.trim_start_matches('/')).symlink_metadata().is_ok();
    let path = IN_SYSTEM.into_iter().find(exists)?;
    Some(Tool {
        path: path.to_owned(),
        root: folder,
        libraries: None,
    })
}

/// nvidia-smi in a folder with the driver alone.
fn in_folder(node: &Node, root: &str) -> Option<Tool> {
    let root = root.trim_end_matches('/');
    let path = format!("{root}/bin/nvidia-smi");
    node.path(&path).symlink_metadata().ok()?;
    Some(Tool {
        root: node.root().to_owned(),
        path,
        libraries: Some(format!("{root}/lib64")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A node on which nvidia-smi is at these paths.
    fn machine(paths: &[&str]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        for path in paths {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    #[test]
    fn the_tool_is_found_where_drivers_are_installed() {
        const DRIVER_CONTAINER: &str = "run/nvidia/driver/usr/bin/nvidia-smi";
        const GKE: &str = "home/kubernetes/bin/nvidia/bin/nvidia-smi";
        let find = |paths: &[&str], arguments: &[&str]| {
            let (folder, node) = machine(paths);
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            let tool = find_smi(&node, &arguments).unwrap();
            let root = tool
                .root
                .strip_prefix(folder.path())
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            (root, tool.path, tool.libraries)
        };
        let found = |root: &str, path: &str, libraries: Option<&str>| {
            (root.to_owned(), path.to_owned(), libraries.map(str::to_owned))
        };
        assert_eq!(
            find(&["usr/bin/nvidia-smi", GKE], &[]),
            found("", "/usr/bin/nvidia-smi", None)
        );
        assert_eq!(
            find(&["usr/bin/nvidia-smi", DRIVER_CONTAINER, GKE], &[]),
            found("run/nvidia/driver", "/usr/bin/nvidia-smi", None)
        );
        let gke = "/home/kubernetes/bin/nvidia";
        assert_eq!(
            find(&[GKE], &[]),
            found("", &format!("{gke}/bin/nvidia-smi"), Some(&format!("{gke}/lib64")))
        );
        assert_eq!(
            find(
                &["usr/bin/nvidia-smi", "opt/driver/bin/nvidia-smi"],
                &["--driver-root=/opt/driver"]
            ),
            found("", "/opt/driver/bin/nvidia-smi", Some("/opt/driver/lib64"))
        );
        assert_eq!(
            find(
                &["usr/bin/nvidia-smi", DRIVER_CONTAINER],
                &["--mps-root=/mnt/mps", "--driver-root=/run/nvidia/driver"]
            ),
            found("run/nvidia/driver", "/usr/bin/nvidia-smi", None)
        );
    }

    #[test]
    fn where_it_was_looked_for_is_said() {
        let (_folder, node) = machine(&["usr/bin/nvidia-smi"]);
        let error = find_smi(&node, &["--driver-root=/opt/driver".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no nvidia-smi in /opt/driver,"), "{error}");
        let (_folder, node) = machine(&[]);
        let error = find_smi(&node, &[]).unwrap_err().to_string();
        assert!(
            error.contains("in /run/nvidia/driver, /, /home/kubernetes/bin/nvidia,"),
            "{error}"
        );
    }
}
