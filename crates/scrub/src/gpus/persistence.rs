//! Persistence mode of GPUs: NVIDIA's persistence daemon has a GPU with it open for good, and such a GPU is not reset. So it is switched off before the
//! reset, and on again after it. A file on the node remembers the GPUs until then: a step that is killed, or fails, leaves it to the next one. Neither the
//! file nor the mode outlasts a reboot.

use super::driver::Smi;
use crate::{
    Unclean,
    files::{at, remove, text},
    node::Node,
};
use std::{collections::BTreeSet, fs};

/// The file with the UUIDs of the GPUs.
const RECORD: &str = "/run/berth-scrub/persistence-mode";

/// Switches the mode off for all GPUs that have it. What fails is seen by the reset: a GPU that does not answer may need it.
pub(crate) fn switch_off(node: &Node, smi: &Smi<'_>) -> Result<(), Unclean> {
    let printed = smi(&["--query-gpu=uuid,persistence_mode", "--format=csv,noheader"])?;
    let on: BTreeSet<String> = printed.text.lines().filter_map(with_persistence).collect();
    if on.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = recorded(node)?.union(&on).cloned().collect();
    let path = node.path(RECORD);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(at(folder))?;
    }
    fs::write(&path, all.join("\n")).map_err(at(&path))?;
    for gpu in &on {
        smi(&["-pm", "0", "-i", gpu.as_str()])?;
    }
    Ok(())
}

/// Switches the mode on again for the GPUs that had it. Returns those for which that failed: they work, but are slow to start.
pub(crate) fn restore(node: &Node, smi: &Smi<'_>) -> Result<Vec<String>, Unclean> {
    let mut failed = Vec::new();
    for gpu in recorded(node)? {
        if !smi(&["-pm", "1", "-i", gpu.as_str()])?.is_done {
            failed.push(gpu);
        }
    }
    remove(&node.path(RECORD))?;
    Ok(failed)
}

/// The GPUs for which the mode was switched off.
fn recorded(node: &Node) -> Result<BTreeSet<String>, Unclean> {
    let recorded = text(&node.path(RECORD))?.unwrap_or_default();
    Ok(recorded.lines().map(str::to_owned).collect())
}

/// The UUID in a line such as `GPU-1b2c, Enabled`, if the GPU has the mode.
fn with_persistence(line: &str) -> Option<String> {
    let (gpu, mode) = line.split_once(',')?;
    (gpu.starts_with("GPU-") && mode.trim() == "Enabled").then(|| gpu.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::driver::Printed;
    use std::cell::RefCell;

    /// An nvidia-smi that answers the query, and fails or not when it changes something.
    fn run<T>(answer: &str, is_done: bool, used: impl FnOnce(&Smi<'_>) -> T) -> (T, Vec<String>) {
        let calls = RefCell::new(Vec::new());
        let smi = |arguments: &[&str]| {
            let is_query = arguments[0].starts_with("--query");
            if !is_query {
                calls.borrow_mut().push(arguments.join(" "));
            }
            Ok(Printed {
                is_done: is_query || is_done,
                text: if is_query { answer.to_owned() } else { String::new() },
            })
        };
        let outcome = used(&smi);
        (outcome, calls.into_inner())
    }

    #[test]
    fn the_mode_is_restored_on_the_gpus_that_had_it() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let answer = "GPU-a, Enabled\nGPU-b, Disabled\nGPU-c, Enabled\nUnable to determine the device handle\n";
        let (outcome, calls) = run(answer, true, |smi| switch_off(&node, smi));
        outcome.unwrap();
        assert_eq!(calls, ["-pm 0 -i GPU-a", "-pm 0 -i GPU-c"]);
        // That step was killed. The next one finds only the third one switched on.
        let (outcome, _) = run("GPU-a, Disabled\nGPU-d, Enabled\n", true, |smi| switch_off(&node, smi));
        outcome.unwrap();
        let (failed, calls) = run("", true, |smi| restore(&node, smi));
        assert!(failed.unwrap().is_empty());
        assert_eq!(calls, ["-pm 1 -i GPU-a", "-pm 1 -i GPU-c", "-pm 1 -i GPU-d"]);
        let (failed, calls) = run("", true, |smi| restore(&node, smi));
        assert!(failed.unwrap().is_empty() && calls.is_empty(), "once");
    }

    #[test]
    fn a_gpu_without_the_mode_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let (outcome, calls) = run("GPU-a, Disabled\n", true, |smi| switch_off(&node, smi));
        outcome.unwrap();
        assert!(calls.is_empty() && !node.path(RECORD).exists());
    }

    #[test]
    fn gpus_that_stay_without_it_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let (outcome, _) = run("GPU-a, Enabled\n", false, |smi| switch_off(&node, smi));
        outcome.unwrap();
        let (failed, _) = run("", false, |smi| restore(&node, smi));
        assert_eq!(failed.unwrap(), ["GPU-a"]);
    }
}
