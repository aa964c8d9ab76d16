//! NVIDIA GPUs, by NVIDIA's own tool. Without such GPUs there is nothing to do; a node that has them but not the tool is not
//! clean.

use crate::{
    Unclean,
    files::{entries, text},
    node::Node,
    program, toolkit,
};
use std::path::PathBuf;

/// NVIDIA's vendor ID on the PCI bus.
const NVIDIA: &str = "0x10de";
/// Where the driver container of the GPU Operator has its files.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

/// How many NVIDIA GPUs are on the PCI bus.
fn count(node: &Node) -> Result<usize, Unclean> {
    let mut count = 0;
    for device in entries(&node.path("/sys/bus/pci/devices"))? {
        let vendor = text(&device.join("vendor"))?.unwrap_or_default();
        let class = text(&device.join("class"))?.unwrap_or_default();
        // Display and 3D controllers: not bridges, not sound.
        if vendor.trim() == NVIDIA && class.trim().starts_with("0x03") {
            count += 1;
        }
    }
    Ok(count)
}

/// Runs nvidia-smi on the node and gives its output.
fn smi(node: &Node, arguments: &[&str]) -> Result<(bool, String), Unclean> {
    let Some((root, tool)) = find_smi(node) else {
        return Err(Unclean::Program(
            "the node has NVIDIA GPUs but no nvidia-smi, which is needed to clean and validate them".into(),
        ));
    };
    let output = program::run(&root, tool, arguments).map_err(|error| Unclean::Program(format!("{tool}: {error}")))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

/// The root in which nvidia-smi runs, and its path there. That of a driver container comes first: one of the node would be of another driver.
fn find_smi(node: &Node) -> Option<(PathBuf, &'static str)> {
    const TOOLS: [&str; 2] = ["/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi"];
    [node.path(DRIVER_CONTAINER), node.root().to_owned()]
        .into_iter()
        .find_map(|root| {
            // A link may lead to a path that exists only on the node, as with packages of Debian.
            let is_there = |tool: &&str| root.join(tool.trim_start_matches('/')).symlink_metadata().is_ok();
            let tool = TOOLS.into_iter().find(is_there)?;
            Some((root, tool))
        })
}

/// Destroys all MIG instances.
pub(crate) fn destroy_instances(node: &Node) -> Result<String, Unclean> {
    if count(node)? == 0 {
        return Ok("no NVIDIA GPU on this node".into());
    }
    for arguments in [["mig", "-dci"], ["mig", "-dgi"]] {
        let (is_done, output) = smi(node, &arguments)?;
        // If MIG is off or there are no instances, there is nothing to destroy.
        let is_nothing = [
            "No MIG-enabled",
            "not found",
            "No GPU instances",
            "No compute instances",
            "Not Supported",
        ]
        .iter()
        .any(|known| output.contains(known));
        if !is_done && !is_nothing {
            return Err(Unclean::Program(format!(
                "nvidia-smi {}: {}",
                arguments.join(" "),
                output.trim()
            )));
        }
    }
    let (is_done, listed) = smi(node, &["-L"])?;
    no_instances(is_done, &listed)?;
    Ok("no MIG instance is left".into())
}

/// Whether nvidia-smi listed GPUs without MIG instances. If it could not, for example because the driver does not answer, nothing is known.
fn no_instances(is_done: bool, listed: &str) -> Result<(), Unclean> {
    if !is_done {
        return Err(Unclean::Program(format!("nvidia-smi -L: {}", listed.trim())));
    }
    if listed.contains("MIG ") {
        return Err(Unclean::Left("MIG instances are left".into()));
    }
    Ok(())
}

/// Resets all GPUs.
pub(crate) fn reset(node: &Node) -> Result<String, Unclean> {
    let count = count(node)?;
    if count == 0 {
        return Ok("no NVIDIA GPU on this node".into());
    }
    let (is_done, output) = smi(node, &["--gpu-reset"])?;
    if !is_done {
        return Err(Unclean::Program(format!("nvidia-smi --gpu-reset: {}", output.trim())));
    }
    Ok(format!("{count} GPUs were reset"))
}

/// Whether all GPUs answer, and what gives them to containers is safe.
pub(crate) fn answer(node: &Node) -> Result<String, Unclean> {
    let count = count(node)?;
    if count == 0 {
        return Ok("clean; no NVIDIA GPU on this node".into());
    }
    toolkit::is_safe(node)?;
    let (is_done, listed) = smi(node, &["-L"])?;
    let answering = listed.lines().filter(|line| line.starts_with("GPU ")).count();
    if !is_done || answering < count {
        return Err(Unclean::Left(format!("{answering} of {count} GPUs answer")));
    }
    Ok(format!("clean; {count} GPUs answer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn the_tool_may_be_a_link_that_leads_somewhere_on_the_node_alone() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        assert_eq!(find_smi(&node), None);
        for root in [folder.path().to_owned(), node.path(DRIVER_CONTAINER)] {
            fs::create_dir_all(root.join("usr/bin")).unwrap();
            symlink("/etc/alternatives/absent", root.join("usr/bin/nvidia-smi")).unwrap();
            assert_eq!(find_smi(&node), Some((root, "/usr/bin/nvidia-smi")));
        }
    }

    #[test]
    fn mig_instances_are_gone_only_if_the_gpus_were_listed() {
        let gpu = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n";
        let instance = format!("{gpu}  MIG 1g.10gb     Device  0: (UUID: MIG-2)\n");
        assert!(no_instances(true, gpu).is_ok());
        assert!(no_instances(true, &instance).is_err());
        let error = no_instances(false, "NVIDIA-SMI has failed\n").unwrap_err().to_string();
        assert_eq!(error, "nvidia-smi -L: NVIDIA-SMI has failed");
    }

    #[test]
    fn gpus_without_their_tool_are_not_clean() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let device = |name: &str, vendor: &str, class: &str| {
            let path = folder.path().join("sys/bus/pci/devices").join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(path.join("class"), format!("{class}\n")).unwrap();
        };
        device("0000:00:01.0", "0x8086", "0x030000");
        device("0000:00:02.0", "0x10de", "0x040300");
        assert_eq!(count(&node).unwrap(), 0);
        assert!(reset(&node).is_ok() && destroy_instances(&node).is_ok() && answer(&node).is_ok());
        device("0000:00:03.0", "0x10de", "0x030200");
        assert_eq!(count(&node).unwrap(), 1);
        assert!(reset(&node).is_err() && destroy_instances(&node).is_err() && answer(&node).is_err());
    }
}
