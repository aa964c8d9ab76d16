//! The chart as Helm packages it, as an OCI archive, and rendered for people without Helm.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_local::images::layout::{self, Blob, Layout};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Error;
use crate::package::Entry;

/// Media types of Helm's charts in registries.
const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
/// Namespace of the release, which the chart requires.
const NAMESPACE: &str = "berth-system";
/// File with the values.
const VALUES: &str = "berth/values.yaml";

/// The files of a chart by their paths in the package, with the digests of images in its values.
///
/// # Errors
/// A file cannot be read, the version of the chart is another one, or the values lack an image.
pub(crate) fn read(folder: &Path, digests: &BTreeMap<String, String>) -> Result<BTreeMap<String, Entry>, Error> {
    let mut files = BTreeMap::new();
    let ignored = fs::read_to_string(folder.join(".helmignore")).unwrap_or_default();
    collect(folder, "", &ignored, &mut files)?;
    let chart = metadata(&files)?;
    for field in ["version", "appVersion"] {
        if chart[field] != env!("CARGO_PKG_VERSION") {
            return Err(Error::Chart(format!(
                "{field} in Chart.yaml is {} and the version in Cargo.toml is {}: make them equal",
                chart[field],
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    let values = files
        .get_mut(VALUES)
        .ok_or_else(|| Error::Chart("values.yaml is missing".into()))?;
    let text = String::from_utf8_lossy(&values.content).into_owned();
    values.content = pin_images(&text, digests)?.into_bytes();
    Ok(files)
}

/// Adds the files below a folder. Links are followed.
fn collect(folder: &Path, below: &str, ignored: &str, files: &mut BTreeMap<String, Entry>) -> Result<(), Error> {
    let failed = Error::file("read", folder);
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::Chart(format!("{} has a name that is not UTF-8", path.display())));
        };
        let relative = format!("{below}{name}");
        if is_ignored(ignored, name, path.is_dir()) {
            continue;
        }
        if path.is_dir() {
            collect(&path, &format!("{relative}/"), ignored, files)?;
        } else {
            let content = fs::read(&path).map_err(Error::file("read", &path))?;
            files.insert(format!("berth/{relative}"), Entry::text(content));
        }
    }
    Ok(())
}

/// Whether a name matches a line of `.helmignore`: a name, `folder/`, or `*.ending`.
fn is_ignored(ignored: &str, name: &str, is_folder: bool) -> bool {
    ignored.lines().map(str::trim).any(|line| match line.strip_suffix('/') {
        _ if line.is_empty() || line.starts_with('#') => false,
        Some(folder) => is_folder && folder == name,
        None => line == name || line.strip_prefix('*').is_some_and(|ending| name.ends_with(ending)),
    })
}

/// What Chart.yaml says.
fn metadata(files: &BTreeMap<String, Entry>) -> Result<Value, Error> {
    let file = files.get("berth/Chart.yaml");
    let file = file.ok_or_else(|| Error::Chart("Chart.yaml is missing".into()))?;
    serde_saphyr::from_str(&String::from_utf8_lossy(&file.content))
        .map_err(|error| Error::Chart(format!("Chart.yaml: {error}")))
}

/// Writes digests into values: beside each repository in `digests`. Comments and order stay.
fn pin_images(values: &str, digests: &BTreeMap<String, String>) -> Result<String, Error> {
    let (mut lines, mut found, mut pending) = (Vec::new(), 0, None);
    for line in values.lines() {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        if let Some(repository) = text.strip_prefix("repository: ") {
            pending = digests.get(repository.trim());
        }
        match pending {
            Some(digest) if text == "digest: \"\"" => {
                lines.push(format!("{indent}digest: {digest}"));
                found += 1;
                pending = None;
            }
            _ => lines.push(line.to_owned()),
        }
    }
    if found == digests.len() {
        return Ok(lines.join("\n") + "\n");
    }
    let names: Vec<&str> = digests.keys().map(String::as_str).collect();
    Err(Error::Chart(format!(
        "values.yaml has digests for {found} of the images {}: each repository is followed by tag and digest",
        names.join(", ")
    )))
}

/// Writes the packaged chart as an OCI archive, as `helm push` stores it in a registry.
pub(crate) fn write_oci(
    files: &BTreeMap<String, Entry>,
    package: &[u8],
    created: &str,
    reference: &str,
    path: &Path,
) -> Result<(), Error> {
    let chart = metadata(files)?;
    let config = Blob::from_json(&chart);
    let content = Blob::new(package.to_vec());
    let manifest = Blob::from_json(&json!({
        "schemaVersion": 2,
        "mediaType": layout::MANIFEST,
        "config": config.descriptor(CONFIG),
        "layers": [content.descriptor(CONTENT)],
        "annotations": {
            "org.opencontainers.image.title": chart["name"],
            "org.opencontainers.image.version": chart["version"],
            "org.opencontainers.image.description": chart["description"],
            "org.opencontainers.image.source": chart["home"],
            "org.opencontainers.image.created": created,
        },
    }));
    let top = manifest.descriptor(layout::MANIFEST);
    Layout::new(reference, top, vec![manifest, config, content]).write(path)?;
    Ok(())
}

/// What a packaged chart renders with its default values, without hooks, and the namespace it needs.
pub(crate) fn render(helm: &Path, package: &Path) -> Result<String, Error> {
    // Not the user's own.
    let home = TempDir::new().map_err(Error::file("create", std::env::temp_dir()))?;
    let output = Command::new(helm)
        .args(["template", "berth"])
        .arg(package)
        // Jobs that run when Helm uninstalls would run at once.
        .args([
            "--namespace",
            NAMESPACE,
            "--no-hooks",
            "--kube-version",
            KUBERNETES_DEFAULT,
        ])
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .env("KUBECONFIG", home.path().join("none"))
        .stdin(Stdio::null())
        .output()
        .map_err(Error::file("run", helm))?;
    if !output.status.success() {
        return Err(Error::Command {
            command: "helm template".into(),
            reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let rendered = String::from_utf8_lossy(&output.stdout);
    let version = env!("CARGO_PKG_VERSION");
    // The Jobs that clean nodes between two tenants are privileged, and some hosts enforce another level where a namespace names none.
    Ok(format!(
        "# Berth {version} with the default values of its chart: kubectl apply --server-side -f install.yaml\n\
         # Use Helm if you need other values. See docs/guides/install.md.\n\
         apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
         pod-security.kubernetes.io/enforce: privileged\n{rendered}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests() -> BTreeMap<String, String> {
        BTreeMap::from([("ghcr.io/berth-dev/berth-control".to_owned(), "sha256:1".to_owned())])
    }

    #[test]
    fn digests_are_written_beside_their_repositories() {
        let values = "control:\n  image:\n    # Image.\n    repository: ghcr.io/berth-dev/berth-control\n    tag: \"\"\n    \
                      # Digest.\n    digest: \"\"\netcd:\n  repository: registry.k8s.io/etcd\n  digest: \"\"\n";
        let pinned = pin_images(values, &digests()).unwrap();
        assert_eq!(pinned, values.replacen("digest: \"\"", "digest: sha256:1", 1));
        assert_eq!(pin_images(values, &BTreeMap::new()).unwrap(), values);
    }

    #[test]
    fn an_image_that_the_values_lack_is_an_error() {
        for values in [
            "a: 1\n",
            "repository: ghcr.io/berth-dev/berth-control\nrepository: other\ndigest: \"\"\n",
        ] {
            let error = pin_images(values, &digests()).unwrap_err().to_string();
            assert!(
                error.contains("0 of the images ghcr.io/berth-dev/berth-control"),
                "{error}"
            );
        }
    }

    #[test]
    fn ignored_files_are_as_helm_reads_them() {
        let ignored = "# comment\n\ntests/\n*.swp\nnotes.txt\n";
        for (name, is_folder, expected) in [
            ("tests", true, true),
            ("tests", false, false),
            ("a.swp", false, true),
            ("notes.txt", false, true),
            ("# comment", false, false),
            ("values.yaml", false, false),
        ] {
            assert_eq!(is_ignored(ignored, name, is_folder), expected, "{name}");
        }
    }
}
