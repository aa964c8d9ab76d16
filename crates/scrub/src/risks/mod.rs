//! Risks in the set-up of the node: what lets a tenant do more than its class says, or root on the node do more than the node may. Nothing of a tenant is
//! left, so they are reported, and keep the node from the next tenant only where its pool says so.

mod checkpoints;
mod credentials;
mod registries;
mod runtime_files;
mod short_names;
mod toml;

use crate::{Unclean, files::resolve, node::Node};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// What begins the line of a risk in the report.
const RISK: &str = "risk: ";
/// The report of a node without risks. An earlier version of this program reports nothing.
const NO_RISK: &str = "no risk";
/// The argument for pools whose nodes go to no tenant if they have a risk.
const REFUSE: &str = "--refuse-risks";
/// What begins the argument that names a risk which the pool accepts.
const ACCEPT: &str = "--accept-risk=";
/// The argument that says that a class has a list of images.
const IMAGES_ARE_LISTED: &str = "--images-are-listed";
/// The argument that says that a class lets tenants run every image.
const ALL_IMAGES: &str = "--all-images-are-allowed";
/// How many bytes of a file are read: what is longer is no configuration, and no data of cloud-init.
const MOST_BYTES: u64 = 1 << 20;

/// One check: the name of its risk, and what it finds.
type Check = (&'static str, fn(&Node) -> Result<Option<String>, Unclean>);

const CHECKS: [Check; 3] = [
    ("CheckpointRestore", checkpoints::find),
    ("BootstrapCredentials", credentials::find_of_bootstrap),
    ("AdminCredentials", credentials::find_of_admins),
];
/// Matters only where a class has a list of images.
const SHORT_NAMES: Check = ("ShortNames", short_names::find);
/// Matters only where a class lets tenants run every image.
const REGISTRIES: Check = ("RegistryCredentials", registries::find);

/// Looks for risks and reports those that the pool does not accept. Returns a message about them; none if there are none.
///
/// # Errors
/// There is a risk, and the pool refuses nodes with risks; or the report cannot be written.
pub(crate) fn report(node: &Node, arguments: &[String]) -> Result<Option<String>, Unclean> {
    let found = find(node, arguments);
    if !found.is_empty() && arguments.iter().any(|argument| argument == REFUSE) {
        return Err(Unclean::Left(found.join("; ")));
    }
    if found.is_empty() {
        node.report(NO_RISK)?;
        return Ok(None);
    }
    let lines: Vec<String> = found.iter().map(|risk| format!("{RISK}{risk}")).collect();
    node.report(&lines.join("\n"))?;
    Ok(Some(format!("risks: {}", found.join("; "))))
}

/// All risks that the pool does not accept, each with its name. What cannot be checked counts: nothing is known of it.
fn find(node: &Node, arguments: &[String]) -> Vec<String> {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let is_accepted = |name: &str| {
        let mut accepted = arguments.iter().filter_map(|argument| argument.strip_prefix(ACCEPT));
        accepted.any(|accepted| accepted == name)
    };
    let checks = CHECKS
        .into_iter()
        .chain(has(IMAGES_ARE_LISTED).then_some(SHORT_NAMES))
        .chain(has(ALL_IMAGES).then_some(REGISTRIES));
    checks
        .filter(|(name, _)| !is_accepted(name))
        .filter_map(|(name, check)| match check(node) {
            Ok(None) => None,
            Ok(Some(risk)) => Some(format!("{name}: {risk}")),
            Err(error) => Some(format!("{name}: not checked: {error}")),
        })
        .collect()
}

/// The text of a file of the node, with links as the node follows them; nothing if there is no such file.
fn read(node: &Node, path: &str) -> Result<Option<String>, Unclean> {
    read_at(&resolve(node, path))
}

/// The text of a file; nothing if there is no such file. What is no file is not opened: a pipe would never end.
fn read_at(path: &Path) -> Result<Option<String>, Unclean> {
    let read = || -> io::Result<Option<String>> {
        if !path.metadata()?.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    };
    read().or_else(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
        _ => Err(crate::files::at(path)(error)),
    })
}

/// The first entries of a list, and how many there are besides.
fn some_of(all: &[String]) -> String {
    const NAMED: usize = 4;
    let named = all[..all.len().min(NAMED)].join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
