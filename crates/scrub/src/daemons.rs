//! Programs that run on the node all the time, such as the kubelet: their flags, and files and variables as they see them.

use crate::{
    Unclean,
    files::{entries, name, resolve, text},
    node::Node,
};
use std::path::{Path, PathBuf};

/// A running program.
pub(crate) struct Daemon {
    /// Its folder in `/proc`.
    folder: PathBuf,
    arguments: Vec<String>,
}

/// The processes of the node whose program has this name.
pub(crate) fn find(node: &Node, program: &str) -> Result<Vec<Daemon>, Unclean> {
    let mut all = Vec::new();
    for folder in entries(&node.path("/proc"))? {
        if name(&folder).parse::<u32>().is_err() {
            continue;
        }
        // The process may have ended meanwhile.
        let Ok(Some(line)) = text(&folder.join("cmdline")) else {
            continue;
        };
        let arguments: Vec<String> = line.split('\0').map(str::to_owned).collect();
        if arguments.first().is_some_and(|path| name(Path::new(path)) == program) {
            all.push(Daemon { folder, arguments });
        }
    }
    Ok(all)
}

impl Daemon {
    /// The value of a flag of which the last one counts.
    pub(crate) fn flag(&self, flag: &str) -> Option<&str> {
        self.flags(flag).pop()
    }

    /// All values of a flag, `--name=value` or `--name value`, in their order. A flag of one letter has one dash.
    pub(crate) fn flags(&self, flag: &str) -> Vec<&str> {
        let dashes = if flag.len() == 1 { "-" } else { "--" };
        let mut values = Vec::new();
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            let Some(rest) = argument.strip_prefix(dashes).and_then(|text| text.strip_prefix(flag)) else {
                continue;
            };
            match rest.strip_prefix('=') {
                Some(value) => values.push(value),
                None if rest.is_empty() => values.extend(arguments.next().map(String::as_str)),
                None => {}
            }
        }
        values
    }

    /// A path as the process sees it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        if path.starts_with('/') {
            resolve(&self.folder.join("root"), path)
        } else {
            self.folder.join("cwd").join(path)
        }
    }

    /// A variable of its environment, if the process has it and did not end meanwhile.
    pub(crate) fn variable(&self, variable: &str) -> Option<String> {
        let all = text(&self.folder.join("environ")).ok()??;
        let mut all = all.split('\0').filter_map(|entry| entry.split_once('='));
        all.find(|(name, _)| *name == variable)
            .map(|(_, value)| value.to_owned())
    }
}
