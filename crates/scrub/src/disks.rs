//! Folders on local disks.

use crate::{
    Unclean,
    files::{self, folder_to_empty},
    node::Node,
};

/// Empties folders; the folders themselves stay.
pub(crate) fn empty(node: &Node, folders: &[String]) -> Result<String, Unclean> {
    for folder in folders {
        files::empty(&folder_to_empty(node, folder)?)?;
    }
    Ok(format!("emptied {} folders", folders.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn folders_are_emptied_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let node = Node::new(&root, []);
        fs::create_dir_all(root.join("mnt/nvme0/cache/deep")).unwrap();
        fs::write(root.join("mnt/nvme0/cache/deep/weights"), "x").unwrap();
        fs::create_dir_all(root.join("mnt/other")).unwrap();
        fs::write(root.join("mnt/other/file"), "x").unwrap();
        std::os::unix::fs::symlink(root.join("mnt/other"), root.join("mnt/nvme0/link")).unwrap();
        empty(&node, &["/mnt/nvme0".into()]).unwrap();
        assert_eq!(fs::read_dir(root.join("mnt/nvme0")).unwrap().count(), 0);
        assert!(root.join("mnt/other/file").exists(), "links are not followed");
        std::os::unix::fs::symlink(root.join("mnt/other"), root.join("mnt/alias")).unwrap();
        for refused in ["/mnt", "/", "/mnt/../etc", "/mnt/alias", "/mnt/absent"] {
            assert!(empty(&node, &[refused.into()]).is_err(), "{refused}");
        }
        assert!(root.join("mnt/other/file").exists());
    }
}
