//! Which container runtime the node has, and its files with settings.

use super::{
    read, read_at,
    toml::{Setting, settings},
};
use crate::{
    Unclean,
    daemons::{self, Daemon},
    files::{entries, name, resolve},
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
                let mut all = main_settings(node, daemons, "/etc/crio/crio.conf")?;
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

/// The settings of the files that processes were started with; without such a flag, those of the usual file.
fn main_settings(node: &Node, daemons: &[Daemon], usual: &str) -> Result<Vec<Setting>, Unclean> {
    let named: Vec<PathBuf> = { daemons.iter() }
        .filter_map(|daemon| Some(daemon.path(daemon.flag("config").or_else(|| daemon.flag("c"))?)))
        .collect();
    if named.is_empty() {
        return Ok(read(node, usual)?.map(|text| settings(&text)).unwrap_or_default());
    }
    let mut all = Vec::new();
    for path in named {
        all.extend(read_at(&path)?.map(|text| settings(&text)).unwrap_or_default());
    }
    Ok(all)
}

/// The settings of containerd, with those of the files that its file imports, and of the folder that it imports by default.
fn of_containerd(node: &Node, daemons: &[Daemon]) -> Result<Vec<Setting>, Unclean> {
    const USUAL: &str = "/etc/containerd/config.toml";
    let mut all = main_settings(node, daemons, USUAL)?;
    let imports: Vec<String> = { all.iter() }
        .filter(|setting| setting.is("imports") && setting.table.is_empty())
        .flat_map(Setting::list)
        .map(|path| Path::new("/etc/containerd").join(path).to_string_lossy().into_owned())
        .chain(["/etc/containerd/conf.d/*.toml".to_owned()])
        .collect();
    for import in imports {
        let path = Path::new(&import);
        match name(path).split_once('*') {
            Some((_, end)) => {
                let folder = path.parent().unwrap_or(path);
                all.extend(in_folder(node, &folder.to_string_lossy(), end)?);
            }
            None => all.extend(read(node, &import)?.map(|text| settings(&text)).unwrap_or_default()),
        }
    }
    Ok(all)
}

/// The settings of the files in a folder whose names have this end, in the order of their names.
pub(super) fn in_folder(node: &Node, folder: &str, end: &str) -> Result<Vec<Setting>, Unclean> {
    let mut all = Vec::new();
    for path in entries(&resolve(node, folder))? {
        let file = name(&path);
        if !file.ends_with(end) {
            continue;
        }
        let text = read(node, &format!("{}/{file}", folder.trim_end_matches('/')))?;
        all.extend(text.map(|text| settings(&text)).unwrap_or_default());
    }
    Ok(all)
}

/// The value of an option that counts: the last one.
pub(super) fn last<'s>(all: &'s [Setting], option: &str) -> Option<&'s str> {
    let mut latest_first = all.iter().rev();
    latest_first.find(|setting| setting.is(option)).map(Setting::value)
}

/// The entries of a list that count: those of the last one.
pub(super) fn last_list<'s>(all: &'s [Setting], option: &str) -> Vec<&'s str> {
    let mut latest_first = all.iter().rev();
    let found = latest_first.find(|setting| setting.is(option));
    found.map(Setting::list).unwrap_or_default()
}
