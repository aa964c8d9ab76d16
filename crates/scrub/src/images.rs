//! The image cache, by the tool of the node's runtime.

use crate::{Unclean, node::Node, program};

/// Removes images that no container uses and whose names have none of the prefixes to keep.
pub(crate) fn remove(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    let keep: Vec<&str> = arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix("--keep="))
        .collect();
    let used = program::ctr(node, &["containers", "ls"])?;
    let used: Vec<&str> = used.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let listed = program::ctr(node, &["images", "ls", "-q"])?;
    let mut removed = 0;
    for image in removable(&listed, &used, &keep) {
        program::ctr(node, &["images", "rm", "--sync", image])?;
        removed += 1;
    }
    Ok(format!("removed {removed} image names"))
}

/// Names of images to remove. The sandbox image is not among them: the pod of this program uses it.
fn removable<'a>(listed: &'a str, used: &[&str], keep: &[&str]) -> Vec<&'a str> {
    listed
        .lines()
        .map(str::trim)
        .filter(|image| !image.is_empty() && !used.contains(image))
        .filter(|image| !keep.iter().any(|prefix| image.starts_with(prefix)))
        // A name that is a digest belongs to an image with other names, and is removed with the last of them.
        .filter(|image| !image.starts_with("sha256:"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::removable;

    #[test]
    fn images_in_use_and_those_to_keep_stay() {
        let listed = "registry.k8s.io/pause:3\nexample.com/model:1\nghcr.io/berth-dev/x:1\nsha256:abc\nquay.io/dns:1\n";
        let removable = removable(
            listed,
            &["quay.io/dns:1", "registry.k8s.io/pause:3"],
            &["ghcr.io/berth-dev/"],
        );
        assert_eq!(removable, ["example.com/model:1"]);
    }
}
