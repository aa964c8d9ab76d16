//! NVIDIA GPUs, by NVIDIA's own tool. Without such GPUs there is nothing to do; a node that has them but not the tool is not
//! clean.

mod driver;
pub(crate) mod mps;
mod persistence;
mod toolkit;
mod users;

use crate::{
    Unclean,
    files::{entries, text},
    node::Node,
    retry::wait,
};
use driver::{Printed, Smi};

/// NVIDIA's vendor ID on the PCI bus.
const NVIDIA: &str = "0x10de";
/// What nvidia-smi prints if a GPU is open in another process, in lower case.
const IN_USE: [&str; 3] = [
    "in use by another",
    "being used by one or more other processes",
    "being used by some other process",
];
/// What it prints if it has left out a GPU that it was to reset, in lower case.
const NOT_RESET: &str = "could not be reset";
/// What it prints if there are no MIG instances to destroy.
const NO_INSTANCES: [&str; 6] = [
    "No MIG-enabled",
    "No MIG-supported",
    "not found",
    "No GPU instances",
    "No compute instances",
    "Not Supported",
];

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

/// Destroys all MIG instances.
pub(crate) fn destroy_instances(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    if count(node)? == 0 {
        return Ok("no NVIDIA GPU on this node".into());
    }
    let tool = driver::find_smi(node, arguments)?;
    let smi = |arguments: &[&str]| tool.run(arguments);
    while_in_use(|| destroy_all(node, &smi))
}

fn destroy_all(node: &Node, smi: &Smi<'_>) -> Result<String, Unclean> {
    for arguments in [["mig", "-dci"], ["mig", "-dgi"]] {
        let printed = smi(&arguments)?;
        if !printed.is_done && !says_none(&printed.text) {
            return Err(refused(node, &arguments.join(" "), &printed.text));
        }
    }
    no_gpu_instances(node, &smi(&["mig", "-lgi"])?)?;
    no_instances(&smi(&["-L"])?)?;
    Ok("no MIG instance is left".into())
}

/// Whether nvidia-smi printed that MIG is off or that there are no instances. One GPU may have none, and another one some that are in use.
fn says_none(printed: &str) -> bool {
    NO_INSTANCES.iter().any(|known| printed.contains(known)) && !is_in_use(printed)
}

/// Whether nvidia-smi listed no GPU instances, which have profiles such as `MIG 1g.10gb`. One without compute instances is in no list of GPUs, and has
/// memory of its own. If it could not list them, nothing is known.
fn no_gpu_instances(node: &Node, listed: &Printed) -> Result<(), Unclean> {
    let is_profile = |rest: &str| rest.trim_start().starts_with(|first: char| first.is_ascii_digit());
    if listed.text.split("MIG ").skip(1).any(is_profile) {
        return Err(Unclean::Left("GPU instances of MIG are left".into()));
    }
    if !listed.is_done && !says_none(&listed.text) {
        return Err(refused(node, "mig -lgi", &listed.text));
    }
    Ok(())
}

/// Whether nvidia-smi listed GPUs without MIG instances. If it could not, for example because the driver does not answer, nothing is known.
fn no_instances(listed: &Printed) -> Result<(), Unclean> {
    if !listed.is_done {
        return Err(Unclean::Program(format!("nvidia-smi -L: {}", listed.text.trim())));
    }
    if listed.text.contains("MIG ") {
        return Err(Unclean::Left("MIG instances are left".into()));
    }
    Ok(())
}

/// Resets all GPUs, in one command: GPUs that NVLink connects may have to be reset together.
pub(crate) fn reset(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    let count = count(node)?;
    if count == 0 {
        return Ok("no NVIDIA GPU on this node".into());
    }
    let tool = driver::find_smi(node, arguments)?;
    let smi = |arguments: &[&str]| tool.run(arguments);
    persistence::switch_off(node, &smi)?;
    let done = while_in_use(|| reset_all(node, &smi));
    // Also if the reset failed.
    let restored = persistence::restore(node, &smi);
    done?;
    let without = restored?;
    if without.is_empty() {
        return Ok(format!("{count} GPUs were reset"));
    }
    Ok(format!(
        "{count} GPUs were reset; persistence mode is off now for {}",
        without.join(", ")
    ))
}

fn reset_all(node: &Node, smi: &Smi<'_>) -> Result<String, Unclean> {
    const RESET: &str = "--gpu-reset";
    let printed = smi(&[RESET])?;
    // Of several GPUs some may be reset: one that is not has the memory of a tenant, however the program ends.
    if printed.is_done && !printed.text.to_ascii_lowercase().contains(NOT_RESET) {
        return Ok(printed.text);
    }
    Err(refused(node, RESET, &printed.text))
}

/// Repeats an attempt while GPUs are in use: programs that only read what GPUs report have them open for moments.
fn while_in_use(mut attempt: impl FnMut() -> Result<String, Unclean>) -> Result<String, Unclean> {
    wait(|| match attempt() {
        Err(error @ Unclean::InUse(_)) => Err(error),
        outcome => Ok(outcome),
    })?
}

/// Whether nvidia-smi printed that a GPU is open in another process.
fn is_in_use(printed: &str) -> bool {
    let lower = printed.to_ascii_lowercase();
    IN_USE.iter().any(|known| lower.contains(known))
}

/// Why nvidia-smi did not do something. If GPUs are in use, the message begins with the processes that have them open: only its beginning may be kept.
fn refused(node: &Node, arguments: &str, printed: &str) -> Unclean {
    let command = format!("nvidia-smi {arguments}: {}", printed.trim());
    if !is_in_use(printed) {
        return Unclean::Program(command);
    }
    let users = match users::describe(node) {
        Ok(Some(users)) => users,
        Ok(None) => "no process of the node has one open".into(),
        Err(error) => format!("their processes cannot be read ({error})"),
    };
    Unclean::InUse(format!("GPUs are in use: {users}; {command}"))
}

/// Whether all GPUs answer, and what gives them to containers is safe.
pub(crate) fn answer(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    let count = count(node)?;
    if count == 0 {
        return Ok("clean; no NVIDIA GPU on this node".into());
    }
    let checked = toolkit::is_safe(node, &driver::roots(arguments))?;
    let listed = driver::find_smi(node, arguments)?.run(&["-L"])?;
    let answering = listed.text.lines().filter(|line| line.starts_with("GPU ")).count();
    if !listed.is_done || answering < count {
        return Err(Unclean::Left(format!("{answering} of {count} GPUs answer")));
    }
    Ok(format!("clean; {count} GPUs answer; {checked}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, fs, os::unix::fs::symlink};

    #[test]
    fn mig_instances_are_gone_only_if_the_gpus_were_listed() {
        let listed = |is_done, text: &str| no_instances(&printed(is_done, text));
        let gpu = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n";
        let instance = format!("{gpu}  MIG 1g.10gb     Device  0: (UUID: MIG-2)\n");
        assert!(listed(true, gpu).is_ok());
        assert!(listed(true, &instance).is_err());
        let error = listed(false, "NVIDIA-SMI has failed\n").unwrap_err().to_string();
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
        let steps = [reset, destroy_instances, answer];
        device("0000:00:01.0", "0x8086", "0x030000");
        device("0000:00:02.0", "0x10de", "0x040300");
        assert_eq!(count(&node).unwrap(), 0);
        assert!(steps.iter().all(|step| step(&node, &[]).is_ok()));
        device("0000:00:03.0", "0x10de", "0x030200");
        assert_eq!(count(&node).unwrap(), 1);
        assert!(steps.iter().all(|step| step(&node, &[]).is_err()));
    }

    /// What an nvidia-smi answers that a process on the node keeps from its work.
    const REFUSAL: &str = "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n";

    /// A node on which a process has a GPU open.
    fn machine_in_use() -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path().join("proc/812");
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::write(process.join("comm"), "nv-hostengine\n").unwrap();
        fs::write(process.join("cgroup"), "0::/system.slice/dcgm.service\n").unwrap();
        symlink("/dev/nvidia0", process.join("fd/3")).unwrap();
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    fn printed(is_done: bool, text: &str) -> Printed {
        Printed {
            is_done,
            text: text.to_owned(),
        }
    }

    #[test]
    fn who_uses_a_gpu_is_named_where_it_is_refused() {
        let (_folder, node) = machine_in_use();
        let smi = |_: &[&str]| Ok(printed(false, REFUSAL));
        for error in [
            reset_all(&node, &smi).unwrap_err(),
            destroy_all(&node, &smi).unwrap_err(),
        ] {
            assert!(matches!(error, Unclean::InUse(_)), "{error}");
            let message = error.to_string();
            let begin = "GPUs are in use: process 812 (nv-hostengine) of dcgm.service has nvidia0 open; nvidia-smi ";
            assert!(message.starts_with(begin) && message.contains("1A:00.0"), "{message}");
        }
        let smi = |_: &[&str]| Ok(printed(false, "Resetting GPU 00000000:1A:00.0 is not supported."));
        let error = reset_all(&node, &smi).unwrap_err();
        assert!(matches!(error, Unclean::Program(_)), "it is not tried again: {error}");
    }

    #[test]
    fn a_gpu_that_is_not_reset_beside_others_is_not_clean() {
        let (_folder, node) = machine_in_use();
        let done = "GPU 00000000:18:00.0 was successfully reset.\n";
        let reset = |text: &str| {
            let smi = |_: &[&str]| Ok(printed(true, &format!("{done}{text}")));
            reset_all(&node, &smi)
        };
        assert!(reset("All done.\n").is_ok());
        let not_supported = "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: Not Supported\n";
        assert!(matches!(reset(not_supported), Err(Unclean::Program(_))));
        let in_use = "Unable to reset GPU 00000000:1A:00.0 because it's being used by some other process (e.g. CUDA application).\n\
                      Some GPUs could not be reset.\n";
        let error = reset(in_use).unwrap_err();
        assert!(matches!(error, Unclean::InUse(_)), "it is tried again: {error}");
    }

    #[test]
    fn a_gpu_that_is_in_use_for_a_moment_is_tried_again() {
        let (_folder, node) = machine_in_use();
        let calls = RefCell::new(0);
        let smi = |_: &[&str]| {
            *calls.borrow_mut() += 1;
            let is_done = *calls.borrow() > 1;
            Ok(printed(is_done, if is_done { "All done.\n" } else { REFUSAL }))
        };
        while_in_use(|| reset_all(&node, &smi)).unwrap();
        assert_eq!(*calls.borrow(), 2);
    }

    #[test]
    fn instances_that_do_not_exist_are_destroyed() {
        let (_folder, node) = machine_in_use();
        let smi = |arguments: &[&str]| {
            Ok(match arguments {
                ["-L"] => printed(true, "GPU 0: NVIDIA H100 (UUID: GPU-a)\n"),
                _ => printed(false, "No MIG-enabled devices found.\n"),
            })
        };
        destroy_all(&node, &smi).unwrap();
        let instance = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n  MIG 1g.10gb Device 0: (UUID: MIG-b)\n";
        let left = |arguments: &[&str]| {
            Ok(match arguments {
                ["-L"] => printed(true, instance),
                _ => printed(true, ""),
            })
        };
        assert!(destroy_all(&node, &left).is_err());
    }

    #[test]
    fn a_gpu_without_instances_does_not_hide_those_of_another_one() {
        let (_folder, node) = machine_in_use();
        let smi = |arguments: &[&str]| {
            Ok(match arguments {
                ["-L"] => printed(true, "GPU 0: NVIDIA H100 (UUID: GPU-a)\n"),
                ["mig", "-dgi"] => printed(
                    false,
                    "No GPU instances found on GPU 0: Not Found\n\
                     Unable to destroy GPU instance ID 1 from GPU 1: In use by another client\n",
                ),
                _ => printed(false, "No MIG-enabled devices found.\n"),
            })
        };
        assert!(matches!(destroy_all(&node, &smi), Err(Unclean::InUse(_))));
    }

    #[test]
    fn gpu_instances_without_compute_instances_are_found() {
        let (_folder, node) = machine_in_use();
        let smi = |arguments: &[&str]| {
            Ok(match arguments {
                ["-L"] => printed(true, "GPU 0: NVIDIA H100 (UUID: GPU-a)\n"),
                ["mig", "-lgi"] => printed(true, "|   0  MIG 1g.10gb       19       13          6:1      |\n"),
                _ => printed(false, "Unable to destroy GPU instance ID 13: Not Supported\n"),
            })
        };
        let error = destroy_all(&node, &smi).unwrap_err().to_string();
        assert_eq!(error, "GPU instances of MIG are left");
    }

    #[test]
    fn a_list_of_gpu_instances_that_failed_proves_nothing() {
        let (_folder, node) = machine_in_use();
        for none in [
            printed(false, "No GPU instances found: Not Found\n"),
            printed(false, "No MIG-enabled devices found.\n"),
            printed(false, "No MIG-supported devices found.\n"),
            printed(true, "| GPU instances:                     |\n"),
        ] {
            assert!(no_gpu_instances(&node, &none).is_ok(), "{none:?}");
        }
        let failed = printed(false, "Failed to display GPU instances: Unknown Error\n");
        let error = no_gpu_instances(&node, &failed).unwrap_err();
        assert!(matches!(error, Unclean::Program(_)), "{error}");
        let partly = printed(
            false,
            "|   1  MIG  3g.20gb   9   1   4:4   |\nNo GPU instances found: Not Found\n",
        );
        assert!(no_gpu_instances(&node, &partly).is_err());
    }
}
