//! Names of images without a registry, which CRI-O completes by the node's configuration. A class that lists images of Docker Hub takes such a name for
//! one of Docker Hub.

use super::{
    read_at,
    runtime_files::{Runtime, in_folder, last_list, of_file},
    some_of,
    toml::settings,
};
use crate::{Unclean, files::resolve, node::Node};

/// The registry that names without a registry belong to.
const DOCKER_HUB: &str = "docker.io";
/// Files of the library that CRI-O pulls with. The first one that exists counts.
const FILES: [&str; 2] = [
    "/etc/containers/registries.conf",
    "/usr/share/containers/registries.conf",
];
/// Folders with further files, whose settings override the earlier ones.
const FOLDERS: [&str; 2] = [
    "/usr/share/containers/registries.conf.d",
    "/etc/containers/registries.conf.d",
];
/// Aliases that tools have recorded.
const RECORDED: &str = "/var/cache/containers/short-name-aliases.conf";
/// The table of aliases.
const ALIASES: &str = "aliases";

/// Where names without a registry lead besides Docker Hub; none if they do not.
pub(super) fn find(node: &Node) -> Result<Option<String>, Unclean> {
    if Runtime::of(node) != Runtime::CriO {
        return Ok(None);
    }
    let mut all = Vec::new();
    for file in FILES {
        let file = resolve(node.root(), file);
        if let Some(text) = read_at(&file)? {
            all.extend(settings(&file, &text)?);
            break;
        }
    }
    for folder in FOLDERS {
        all.extend(in_folder(node, folder, ".conf")?);
    }
    all.extend(of_file(&resolve(node.root(), RECORDED))?);
    let registries = last_list(&all, "unqualified-search-registries");
    let others: Vec<String> = { registries.into_iter() }
        .filter(|registry| registry != DOCKER_HUB)
        .collect();
    let aliases: Vec<String> = { all.iter() }
        .filter(|setting| setting.table == ALIASES && !is_same(setting.key(), &setting.value()))
        .map(|setting| format!("{} to {}", setting.key(), setting.value()))
        .collect();
    let mut found = Vec::new();
    if !others.is_empty() {
        let others = some_of(&others);
        found.push(format!("unqualified-search-registries of CRI-O has {others}"));
    }
    if !aliases.is_empty() {
        found.push(format!("aliases of CRI-O lead from {}", some_of(&aliases)));
    }
    Ok((!found.is_empty()).then(|| found.join(", and ")))
}

/// Whether an alias leads to the image of Docker Hub that its name means without it. An empty one has no effect.
fn is_same(name: &str, image: &str) -> bool {
    let completed = if name.contains('/') {
        format!("{DOCKER_HUB}/{name}")
    } else {
        format!("{DOCKER_HUB}/library/{name}")
    };
    image.is_empty() || image == completed
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A node with CRI-O and these files.
    fn node(files: &[(&str, &str)]) -> (TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        for (path, content) in [("/run/crio/crio.sock", "")].iter().chain(files) {
            node.write(path, content);
        }
        (folder, node)
    }

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let (_folder, node) = node(files);
        find(&node).unwrap()
    }

    #[test]
    fn docker_hub_alone_is_no_risk() {
        assert_eq!(found(&[]), None);
        assert_eq!(
            found(&[(FILES[0], "unqualified-search-registries = [\"docker.io\"]\n")]),
            None
        );
        let aliases =
            "[aliases]\n\"hello\" = \"docker.io/library/hello\"\n\"a/b\" = \"docker.io/a/b\"\n\"gone\" = \"\"\n";
        assert_eq!(found(&[("/etc/containers/registries.conf.d/1.conf", aliases)]), None);
    }

    #[test]
    fn other_registries_and_aliases_are_named() {
        let list = "unqualified-search-registries = [\"docker.io\",\n \"q.example\"]\n";
        let of_list = Some("unqualified-search-registries of CRI-O has q.example".to_owned());
        assert_eq!(found(&[(FILES[0], list)]), of_list);
        assert_eq!(found(&[(FILES[1], list)]), of_list);
        let aliases = "[aliases]\n\"base\" = \"q.example/base\"\nnginx = 'docker.io/evil/nginx'\n";
        for file in ["/etc/containers/registries.conf.d/1.conf", RECORDED] {
            assert_eq!(
                found(&[(file, aliases)]).unwrap(),
                "aliases of CRI-O lead from base to q.example/base, nginx to docker.io/evil/nginx"
            );
        }
        let both = found(&[(FILES[0], list), (RECORDED, aliases)]).unwrap();
        assert!(both.contains("q.example, and aliases"), "{both}");
        // A table of another name is none of aliases.
        assert_eq!(found(&[(RECORDED, "[other]\nbase = \"q.example/base\"\n")]), None);
    }

    #[test]
    fn the_last_list_counts_and_the_file_of_the_platform() {
        let bad = "unqualified-search-registries = [\"q.example\"]\n";
        let good = "unqualified-search-registries = [\"docker.io\"]\n";
        let drop_in = "/etc/containers/registries.conf.d/9.conf";
        assert_eq!(found(&[(FILES[0], bad), (drop_in, good)]), None);
        assert!(found(&[(FILES[0], good), (drop_in, bad)]).is_some());
        assert_eq!(found(&[(FILES[0], good), (FILES[1], bad)]), None);
    }

    #[test]
    fn containerd_completes_names_by_itself() {
        let (_folder, node) = node(&[(FILES[0], "unqualified-search-registries = [\"q.example\"]\n")]);
        std::fs::remove_file(node.path("/run/crio/crio.sock")).unwrap();
        assert_eq!(find(&node).unwrap(), None);
    }
}
