//! Files of the node. A missing file is no error; a file that cannot be read is one.

use crate::{
    Unclean,
    node::Node,
    removal::{empty_folder, remove_folder},
};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Adds the path to an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Unclean + use<> {
    let path = path.to_owned();
    move |source| Unclean::File { path, source }
}

/// The device that a folder is on.
pub(crate) fn device(folder: &Path) -> Result<u64, Unclean> {
    fs::symlink_metadata(folder)
        .map(|metadata| metadata.dev())
        .map_err(at(folder))
}

/// What is in a folder; nothing if there is no such folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Unclean> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(folder)(error)),
    };
    let mut all = Vec::new();
    for entry in listed {
        all.push(entry.map_err(at(folder))?.path());
    }
    all.sort();
    Ok(all)
}

/// A file's text; nothing if there is no such file.
pub(crate) fn text(path: &Path) -> Result<Option<String>, Unclean> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// Where a path leads below a root other than that of this program, with the links on the way followed as programs with this root follow them.
pub(crate) fn resolve(root: &Path, path: &str) -> PathBuf {
    /// As many as the kernel follows.
    const MOST_LINKS: usize = 40;
    let mut ahead: Vec<OsString> = Path::new(path).iter().rev().map(OsString::from).collect();
    let (mut place, mut depth, mut links) = (root.to_owned(), 0_usize, 0);
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => {
                root.clone_into(&mut place);
                depth = 0;
            }
            Some(Component::ParentDir) if depth > 0 => {
                place.pop();
                depth -= 1;
            }
            Some(Component::Normal(_)) => {
                place.push(&part);
                depth += 1;
                if let Ok(target) = fs::read_link(&place)
                    && links < MOST_LINKS
                {
                    links += 1;
                    place.pop();
                    depth -= 1;
                    ahead.extend(target.iter().rev().map(OsString::from));
                }
            }
            _ => {}
        }
    }
    place
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Removes a file or a whole folder. Links are removed, not followed.
pub(crate) fn remove(path: &Path) -> Result<(), Unclean> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(path)(error)),
    };
    let removed = if metadata.is_dir() {
        remove_folder(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Removes everything in a folder, which stays. The entries are not kept in memory: a tenant can have made any number of them.
pub(crate) fn empty(folder: &Path) -> Result<(), Unclean> {
    empty_folder(folder).map_err(at(folder))
}

/// Where a folder is whose content may be removed, by its path on the node.
///
/// # Errors
/// The path is too short or not plain, leads over a link, or there is no such folder.
pub(crate) fn folder_to_empty(node: &Node, folder: &str) -> Result<PathBuf, Unclean> {
    let is_plain = Path::new(folder)
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !is_plain || Path::new(folder).components().count() < 3 {
        return Err(Unclean::Left(format!("{folder} must not be emptied")));
    }
    let path = node.path(folder);
    // A link could lead into this container, or to any other folder.
    let inside = path.canonicalize().map_err(at(&path))?;
    if inside != path {
        return Err(Unclean::Left(format!("the path {folder} contains a symbolic link")));
    }
    Ok(path)
}

/// The same; nothing if there is no such folder.
pub(crate) fn find_folder_to_empty(node: &Node, folder: &str) -> Result<Option<PathBuf>, Unclean> {
    let path = node.path(folder);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(&path)(error)),
        Ok(_) => folder_to_empty(node, folder).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_below_the_root_of_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("usr/sbin")).unwrap();
        symlink("/usr/sbin", root.join("sbin")).unwrap();
        symlink("sbin", root.join("bin")).unwrap();
        symlink("../../../../sbin/tool", root.join("usr/sbin/up")).unwrap();
        symlink("/endless", root.join("endless")).unwrap();
        for (path, expected) in [
            ("/usr/sbin/tool", "usr/sbin/tool"),
            ("/sbin/tool", "usr/sbin/tool"),
            ("/bin/tool", "usr/sbin/tool"),
            ("/bin/../tool", "usr/tool"),
            ("/usr/sbin/up", "usr/sbin/tool"),
            ("/nowhere/tool", "nowhere/tool"),
            ("/endless", "endless"),
        ] {
            assert_eq!(resolve(root, path), root.join(expected), "{path}");
        }
    }
}
