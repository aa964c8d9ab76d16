//! Risks in the set-up of the node: what lets a tenant do more than its class says, or root on the node do more than the node may. Nothing of a tenant is
//! left, so they are reported, and keep the node from the next tenant only where its pool says so.

mod checkpoints;
mod credentials;
mod registries;
mod runtime_files;
mod short_names;
mod toml;

use crate::{
    Unclean,
    files::{at, resolve},
    node::Node,
};
use std::{
    fs::{self, File},
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
/// How many entries of a folder are read: folders of configuration have a few.
const MOST_ENTRIES: usize = 200;
/// How many bytes of text a report has. Control keeps as many characters, and the kubelet 12 KiB of the messages of all containers of a pod, which are ten
/// at most: what is longer would be cut without a sign, at its beginning.
const MOST_OF_REPORT: usize = 1_000;

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
    let found = shorten(&find(node, arguments));
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

/// The same texts, each with an equal share of what a report has. None has more lines than one, or what separates risks.
fn shorten(found: &[String]) -> Vec<String> {
    const CUT: &str = "…";
    let most = MOST_OF_REPORT / found.len().max(1) - RISK.len();
    let shortened = |risk: &String| {
        let text = risk.replace(|letter: char| letter.is_control() || letter == ';', " ");
        if text.len() <= most {
            return text;
        }
        let end = text.floor_char_boundary(most - CUT.len());
        format!("{}{CUT}", &text[..end])
    };
    found.iter().map(shortened).collect()
}

/// The text of a file of the node, with links as the node follows them; nothing if there is no such file.
fn read(node: &Node, path: &str) -> Result<Option<String>, Unclean> {
    read_at(&resolve(node.root(), path))
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
        _ => Err(at(path)(error)),
    })
}

/// The names in a folder of the node, in order; none if there is no such folder.
fn names_in(node: &Node, folder: &str) -> Result<Vec<String>, Unclean> {
    names_at(&resolve(node.root(), folder))
}

/// The names in a folder, in order; none if it is no folder.
///
/// # Errors
/// It cannot be read, or has more entries than a folder of configuration.
fn names_at(folder: &Path) -> Result<Vec<String>, Unclean> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))?.take(MOST_ENTRIES + 1) {
        let entry = entry.map_err(at(folder))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    if names.len() > MOST_ENTRIES {
        let folder = folder.display();
        return Err(Unclean::Left(format!("{folder} has more than {MOST_ENTRIES} entries")));
    }
    names.sort();
    Ok(names)
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
