//! Which commands bring an image from a registry into a file, and from there into another registry or onto a node.

use std::path::Path;

use berth_local::images::StoredImage;
use clap::ValueEnum;

/// A program that talks to registries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Copies all architectures, and keeps the digests of Berth's images.
    Skopeo,
    /// Copies the architecture of this machine; digests change when images are pushed.
    Docker,
}

impl Tool {
    /// All, the better one first.
    pub(crate) const ALL: [Self; 2] = [Self::Skopeo, Self::Docker];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Skopeo => "skopeo",
            Self::Docker => "docker",
        }
    }
}

/// An image as a line of `images.txt` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedImage {
    /// Name with a tag.
    pub(crate) reference: String,
    /// `sha256:…`, if it is known.
    pub(crate) digest: Option<String>,
}

impl ListedImage {
    /// Reads the lines of `images.txt`. Empty lines and comments are left out.
    ///
    /// # Errors
    /// A line names no image. Names become file names and arguments of other programs, so what is none goes no further.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let lines = text.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (reference, digest) = match line.split_once('@') {
                    Some((reference, digest)) => (reference, Some(digest)),
                    None => (line, None),
                };
                if is_reference(reference) && digest.is_none_or(is_digest) {
                    Ok(Self {
                        reference: reference.to_owned(),
                        digest: digest.map(str::to_owned),
                    })
                } else {
                    Err(format!("{line:?} is not the name of an image with a tag"))
                }
            })
            .collect()
    }

    /// Its name with the digest in place of the tag, if the digest is known.
    fn by_digest(&self) -> Option<String> {
        let repository = self
            .reference
            .rsplit_once(':')
            .map_or(&*self.reference, |(name, _)| name);
        Some(format!("{repository}@{}", self.digest.as_ref()?))
    }

    /// The line.
    pub(crate) fn line(&self) -> String {
        match &self.digest {
            Some(digest) => format!("{}@{digest}", self.reference),
            None => self.reference.clone(),
        }
    }
}

/// Whether this is the name of an image with a registry and a tag (OCI distribution specification).
fn is_reference(text: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let Some((name, tag)) = text.rsplit_once(':') else {
        return false;
    };
    let Some((registry, path)) = name.split_once('/') else {
        return false;
    };
    let (host, port) = registry.split_once(':').unwrap_or((registry, "443"));
    is_word(host) && port.parse::<u16>().is_ok() && path.split('/').all(is_word) && is_word(tag)
}

/// Whether this is a digest of an image.
fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What is wrong with an archive that is to be loaded as this image; nothing if it fits. With `node`, the platform of a node
/// (`linux/amd64`), the archive must have that one.
pub(crate) fn find_mismatch(image: &ListedImage, stored: &StoredImage, node: Option<&str>) -> Option<String> {
    if let Some(name) = stored.name.as_ref().filter(|name| **name != image.reference) {
        return Some(format!("it has the image {name}, not {}", image.reference));
    }
    if let Some(digest) = image.digest.as_ref().filter(|digest| **digest != stored.digest) {
        return Some(format!("its image has the digest {}, not {digest}", stored.digest));
    }
    let node = node.filter(|node| !stored.platforms.contains(*node))?;
    let platforms: Vec<&str> = stored.platforms.iter().map(String::as_str).collect();
    Some(format!("it is for {}, and this node is {node}", platforms.join(", ")))
}

/// The name that an image has in another registry: as with the value `global.imageRegistry` of the chart, the registry is replaced
/// and the rest stays.
pub(crate) fn in_registry(reference: &str, registry: &str) -> String {
    let registry = registry.trim_end_matches('/');
    let path = match reference.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => reference,
    };
    format!("{registry}/{path}")
}

/// Commands that write an image to a file: that with its digest, if that is known, whatever its tag names. With a platform
/// (`linux/arm64`), only that one.
pub(crate) fn pull_commands(tool: Tool, image: &ListedImage, file: &Path, platform: Option<&str>) -> Vec<Vec<String>> {
    let file = file.display();
    let reference = &image.reference;
    // No program takes both a tag and a digest.
    let source = image.by_digest().unwrap_or_else(|| reference.clone());
    match tool {
        Tool::Skopeo => {
            let mut command = words(&["skopeo"]);
            if let Some((system, architecture)) = platform.and_then(|platform| platform.split_once('/')) {
                command.extend(words(&[
                    "--override-os",
                    system,
                    "--override-arch",
                    architecture,
                    "copy",
                ]));
            } else {
                // Without --preserve-digests: many images of upstream are not in the format of OCI, and are converted.
                command.extend(words(&["copy", "--all"]));
            }
            command.push(format!("docker://{source}"));
            command.push(format!("oci-archive:{file}:{reference}"));
            vec![command]
        }
        Tool::Docker => {
            let mut pull = words(&["docker", "pull"]);
            if let Some(platform) = platform {
                pull.extend(words(&["--platform", platform]));
            }
            pull.push(source.clone());
            let mut commands = vec![pull];
            if source != *reference {
                commands.push(words(&["docker", "tag", &source, reference]));
            }
            commands.push(words(&["docker", "save", "--output", &file.to_string(), reference]));
            commands
        }
    }
}

/// Commands that push the image in a file to a registry as `target`.
pub(crate) fn push_commands(tool: Tool, reference: &str, target: &str, file: &Path) -> Vec<Vec<String>> {
    let file = file.display();
    match tool {
        Tool::Skopeo => vec![words(&[
            "skopeo",
            "copy",
            "--all",
            "--preserve-digests",
            &format!("oci-archive:{file}"),
            &format!("docker://{target}"),
        ])],
        Tool::Docker => vec![
            words(&["docker", "load", "--input", &file.to_string()]),
            words(&["docker", "tag", reference, target]),
            words(&["docker", "push", target]),
        ],
    }
}

/// Commands that import the image in a file into the containerd of this node, for the kubelet. It is never collected: nodes could not
/// fetch it again.
pub(crate) fn import_commands(image: &ListedImage, file: &Path) -> Vec<Vec<String>> {
    let containerd = ["ctr", "--namespace", "k8s.io", "images"];
    let file = file.display().to_string();
    let import = ["import", "--label", "io.cri-containerd.pinned=pinned", &file];
    let mut commands = vec![words(&[&containerd[..], &import].concat())];
    if let Some(by_digest) = image.by_digest() {
        // Pods of the chart name the image by its digest, and an import gives it only the name with the tag.
        let tag = ["tag", "--force", &image.reference, &by_digest];
        commands.push(words(&[&containerd[..], &tag].concat()));
    }
    commands
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETCD: &str = "registry.k8s.io/etcd:3.6.16-0";
    const CONTROL: &str = "ghcr.io/berth-dev/berth-control:0.1.0";

    /// A digest of one digit.
    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn etcd(digest: Option<String>) -> ListedImage {
        let reference = ETCD.into();
        ListedImage { reference, digest }
    }

    fn lines(commands: &[Vec<String>]) -> Vec<String> {
        commands.iter().map(|command| command.join(" ")).collect()
    }

    #[test]
    fn the_registry_is_replaced_and_the_path_stays() {
        for (reference, registry, expected) in [
            (ETCD, "harbor.example.com", "harbor.example.com/etcd:3.6.16-0"),
            (
                "ghcr.io/berth-dev/berth-control:0.1.0",
                "harbor.example.com:5000/mirror/",
                "harbor.example.com:5000/mirror/berth-dev/berth-control:0.1.0",
            ),
            ("localhost/a:1", "r", "r/a:1"),
            ("library/a:1", "r", "r/library/a:1"),
            ("a:1", "r", "r/a:1"),
        ] {
            assert_eq!(in_registry(reference, registry), expected);
        }
    }

    #[test]
    fn lists_are_read_and_written() {
        let digest = digest('1');
        let control = format!("{CONTROL}@{digest}");
        let list = ListedImage::parse_list(&format!("# images\n\n{ETCD}\n{control}\n")).unwrap();
        let written: Vec<String> = list.iter().map(ListedImage::line).collect();
        assert_eq!(written, [ETCD.to_owned(), control]);
        assert_eq!(list[1].digest, Some(digest));
        assert!(ListedImage::parse_list("localhost:5000/a/b_c:v1.0-x").is_ok());
    }

    #[test]
    fn what_is_no_image_goes_no_further() {
        for line in [
            "etcd",
            "etcd:3",
            "registry.k8s.io/etcd",
            "registry.k8s.io/../etcd:3",
            "registry.k8s.io/etcd:../../3",
            "--address=x/y:z",
            "registry.k8s.io/--all:3",
            "registry.k8s.io//etcd:3",
            "registry.k8s.io:port/etcd:3",
            "registry.k8s.io/etcd:3 --all",
            "registry.k8s.io/etcd:3@sha256:1",
            "registry.k8s.io/etcd:3@",
        ] {
            let error = ListedImage::parse_list(line).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn an_archive_must_be_of_the_image_and_for_the_node() {
        let image = ListedImage {
            reference: CONTROL.into(),
            digest: Some(digest('1')),
        };
        let stored = StoredImage {
            name: Some(CONTROL.into()),
            digest: digest('1'),
            platforms: ["linux/amd64".to_owned()].into(),
        };
        let check = |stored: &StoredImage, node| find_mismatch(&image, stored, node);
        assert_eq!(check(&stored, None), None);
        assert_eq!(check(&stored, Some("linux/amd64")), None);
        let message = check(&stored, Some("linux/arm64")).unwrap();
        assert!(
            message.contains("for linux/amd64, and this node is linux/arm64"),
            "{message}"
        );
        let other = StoredImage {
            digest: digest('2'),
            ..stored.clone()
        };
        assert!(check(&other, None).unwrap().contains(&digest('2')));
        let other = StoredImage {
            name: Some(ETCD.into()),
            ..stored.clone()
        };
        assert!(check(&other, None).unwrap().contains(ETCD));
        // docker saves no name in some versions.
        assert_eq!(check(&StoredImage { name: None, ..stored }, None), None);
    }

    #[test]
    fn skopeo_copies_all_architectures_or_one() {
        let file = Path::new("/tmp/etcd.tar");
        assert_eq!(
            lines(&pull_commands(Tool::Skopeo, &etcd(None), file, None)),
            [format!(
                "skopeo copy --all docker://{ETCD} oci-archive:/tmp/etcd.tar:{ETCD}"
            )]
        );
        assert_eq!(
            lines(&pull_commands(Tool::Skopeo, &etcd(None), file, Some("linux/arm64"))),
            [format!(
                "skopeo --override-os linux --override-arch arm64 copy docker://{ETCD} oci-archive:/tmp/etcd.tar:{ETCD}"
            )]
        );
        assert_eq!(
            lines(&push_commands(Tool::Skopeo, ETCD, "r/etcd:3.6.16-0", file)),
            ["skopeo copy --all --preserve-digests oci-archive:/tmp/etcd.tar docker://r/etcd:3.6.16-0"]
        );
    }

    #[test]
    fn docker_pulls_and_pushes_by_name() {
        let file = Path::new("/tmp/etcd.tar");
        assert_eq!(
            lines(&pull_commands(Tool::Docker, &etcd(None), file, Some("linux/amd64"))),
            [
                format!("docker pull --platform linux/amd64 {ETCD}"),
                format!("docker save --output /tmp/etcd.tar {ETCD}")
            ]
        );
        assert_eq!(
            lines(&push_commands(Tool::Docker, ETCD, "r/etcd:3.6.16-0", file)),
            [
                "docker load --input /tmp/etcd.tar".to_owned(),
                format!("docker tag {ETCD} r/etcd:3.6.16-0"),
                "docker push r/etcd:3.6.16-0".to_owned()
            ]
        );
    }

    #[test]
    fn an_image_whose_digest_is_known_is_pulled_by_it() {
        let (file, digest) = (Path::new("/tmp/etcd.tar"), digest('1'));
        let image = etcd(Some(digest.clone()));
        assert_eq!(
            lines(&pull_commands(Tool::Skopeo, &image, file, None)),
            [format!(
                "skopeo copy --all docker://registry.k8s.io/etcd@{digest} oci-archive:/tmp/etcd.tar:{ETCD}"
            )]
        );
        assert_eq!(
            lines(&pull_commands(Tool::Docker, &image, file, None)),
            [
                format!("docker pull registry.k8s.io/etcd@{digest}"),
                format!("docker tag registry.k8s.io/etcd@{digest} {ETCD}"),
                format!("docker save --output /tmp/etcd.tar {ETCD}")
            ]
        );
    }

    #[test]
    fn nodes_find_an_imported_image_by_its_digest() {
        let digest = digest('1');
        let image = ListedImage {
            reference: CONTROL.into(),
            digest: Some(digest.clone()),
        };
        assert_eq!(
            lines(&import_commands(&image, Path::new("/tmp/c.tar"))),
            [
                "ctr --namespace k8s.io images import --label io.cri-containerd.pinned=pinned /tmp/c.tar".to_owned(),
                format!("ctr --namespace k8s.io images tag --force {CONTROL} ghcr.io/berth-dev/berth-control@{digest}")
            ]
        );
        let image = ListedImage {
            reference: ETCD.into(),
            digest: None,
        };
        assert_eq!(import_commands(&image, Path::new("/tmp/e.tar")).len(), 1);
    }
}
