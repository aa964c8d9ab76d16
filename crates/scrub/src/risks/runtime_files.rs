//! Which container runtime the node has, and its files with settings.

use super::{
    names_in, read_at,
    toml::{Setting, settings},
};
use crate::{
    Unclean,
    daemons::{self, Daemon},
    files::{name, resolve},
    images,
    node::Node,
};
use std::path::{Path, PathBuf};

/// A container runtime that kubelets use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    Containerd,
    CriO,
}

impl Runtime {
    /// The runtime of the node.
    pub(super) fn of(node: &Node) -> Self {
        if images::is_of_cri_o(node) {
            Self::CriO
        } else {
            Self::Containerd
        }
    }

    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::CriO => "CRI-O",
        }
    }

    /// Its processes on the node.
    pub(super) fn daemons(self, node: &Node) -> Result<Vec<Daemon>, Unclean> {
        daemons::find(
            node,
            match self {
                Self::Containerd => "containerd",
                Self::CriO => "crio",
            },
        )
    }

    /// The settings in all its files, later files after earlier ones, which they override.
    pub(super) fn settings(self, node: &Node, daemons: &[Daemon]) -> Result<Vec<Setting>, Unclean> {
        match self {
            Self::Containerd => of_containerd(node, daemons),
            Self::CriO => {
                let mut all = Vec::new();
                for (_, file) in main_files(node, daemons, "/etc/crio/crio.conf") {
                    all.extend(of_file(&file)?);
                }
                let folders: Vec<&str> = { daemons.iter() }
                    .filter_map(|daemon| daemon.flag("config-dir").or_else(|| daemon.flag("d")))
                    .collect();
                all.extend(in_folder(node, "/etc/crio/crio.conf.d", "")?);
                for folder in folders {
                    all.extend(in_folder(node, folder, "")?);
                }
                Ok(all)
            }
        }
    }
}

/// The files that processes were started with, by their paths on the node, and where they are; the usual one of a process without such a flag, and if there
/// is no process. Other programs than the kubelet's may have a process of the same name, such as Docker's.
fn main_files(node: &Node, daemons: &[Daemon], usual: &str) -> Vec<(String, PathBuf)> {
    if daemons.is_empty() {
        return vec![(usual.to_owned(), resolve(node.root(), usual))];
    }
    let of_daemon = |daemon: &Daemon| {
        let path = daemon.flag("config").or_else(|| daemon.flag("c")).unwrap_or(usual);
        (path.to_owned(), daemon.path(path))
    };
    daemons.iter().map(of_daemon).collect()
}

/// The settings of a file; none if there is no such file.
pub(super) fn of_file(file: &Path) -> Result<Vec<Setting>, Unclean> {
    match read_at(file)? {
        Some(text) => settings(file, &text),
        None => Ok(Vec::new()),
    }
}

/// The settings of containerd, with those of the files that its file imports, and of the folder that it imports by default.
fn of_containerd(node: &Node, daemons: &[Daemon]) -> Result<Vec<Setting>, Unclean> {
    let mut all = Vec::new();
    for (path, file) in main_files(node, daemons, "/etc/containerd/config.toml") {
        let own = of_file(&file)?;
        let imported = imports(&path, &own);
        all.extend(own);
        for import in imported {
            all.extend(of_import(node, &import)?);
        }
    }
    Ok(all)
}

/// What a file of containerd imports, by paths on the node: those that are not absolute are beside the file.
fn imports(path: &str, own: &[Setting]) -> Vec<String> {
    const BY_DEFAULT: &str = "/etc/containerd/conf.d/*.toml";
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    let named = { own.iter() }.filter(|setting| setting.is("imports") && setting.table.is_empty());
    named
        .flat_map(Setting::list)
        .map(|import| folder.join(import).to_string_lossy().into_owned())
        .chain([BY_DEFAULT.to_owned()])
        .collect()
}

/// The settings of a file, or of the files whose names have the end of a pattern.
fn of_import(node: &Node, import: &str) -> Result<Vec<Setting>, Unclean> {
    let path = Path::new(import);
    match name(path).split_once('*') {
        Some((_, end)) => in_folder(node, &path.parent().unwrap_or(path).to_string_lossy(), end),
        None => of_file(&resolve(node.root(), import)),
    }
}

/// The settings of the files in a folder whose names have this end, in the order of their names.
pub(super) fn in_folder(node: &Node, folder: &str, end: &str) -> Result<Vec<Setting>, Unclean> {
    let mut all = Vec::new();
    for file in names_in(node, folder)? {
        if !file.ends_with(end) {
            continue;
        }
        all.extend(of_file(&resolve(
            node.root(),
            &format!("{}/{file}", folder.trim_end_matches('/')),
        ))?);
    }
    Ok(all)
}

/// The value of an option that counts: the last one.
pub(super) fn last(all: &[Setting], option: &str) -> Option<String> {
    let mut latest_first = all.iter().rev();
    latest_first.find(|setting| setting.is(option)).map(Setting::value)
}

/// The entries of a list that count: those of the last one.
pub(super) fn last_list(all: &[Setting], option: &str) -> Vec<String> {
    let mut latest_first = all.iter().rev();
    let found = latest_first.find(|setting| setting.is(option));
    found.map(Setting::list).unwrap_or_default()
}
