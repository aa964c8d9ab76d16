//! The kubelet's settings: whether it checks that a pod may use an image that is on the node already (Kubernetes 1.35 and
//! later, unless it is switched off). They are read from the files that its process was started with.

use crate::{
    Unclean,
    files::{entries, name, text},
    node::Node,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The field of the kubelet's configuration.
const POLICY: &str = "imagePullCredentialsVerificationPolicy";
/// Its value that switches the check off.
const OFF: &str = "NeverVerify";
/// The feature gate without which the field does nothing.
const GATE: &str = "KubeletEnsureSecretPulledImages";

/// What the kubelet's configuration says about the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings {
    policy: Option<String>,
    gate: Option<bool>,
}

/// Whether the node's kubelet checks credentials. Versions without the check, which have neither setting, pass.
pub(crate) fn checks_image_credentials(node: &Node) -> Result<(), Unclean> {
    for process in kubelets(node)? {
        let settings = process.settings()?;
        let setting = if settings.policy.as_deref() == Some(OFF) {
            format!("{POLICY}: {OFF}")
        } else if settings.gate == Some(false) {
            format!("the feature gate {GATE} off")
        } else {
            continue;
        };
        return Err(Unclean::Left(format!(
            "the kubelet has {setting}: a pod could run an image that another tenant has pulled with a Secret. Remove this \
             setting from the kubelet's configuration"
        )));
    }
    Ok(())
}

/// A running kubelet.
struct Process {
    /// Its folder in `/proc`.
    folder: PathBuf,
    arguments: Vec<String>,
}

/// The kubelet of the node. Nodes that share a machine are distinguished by the name that the kubelet was given. Where the kubelet
/// is part of another program, there is none.
fn kubelets(node: &Node) -> Result<Vec<Process>, Unclean> {
    let mut all = Vec::new();
    for folder in entries(&node.path("/proc"))? {
        if name(&folder).parse::<u32>().is_err() {
            continue;
        }
        // The process may have ended meanwhile.
        let Ok(Some(line)) = text(&folder.join("cmdline")) else {
            continue;
        };
        let arguments: Vec<String> = line.split('\0').map(str::to_owned).collect();
        if arguments
            .first()
            .is_some_and(|program| name(Path::new(program)) == "kubelet")
        {
            all.push(Process { folder, arguments });
        }
    }
    let is_own = |process: &Process| process.flag("hostname-override").as_deref() == Some(node.name());
    if all.iter().any(is_own) {
        all.retain(is_own);
    }
    Ok(all)
}

impl Process {
    /// The value of a flag, `--name=value` or `--name value`.
    fn flag(&self, flag: &str) -> Option<String> {
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            let Some(rest) = argument.strip_prefix("--").and_then(|text| text.strip_prefix(flag)) else {
                continue;
            };
            match rest.strip_prefix('=') {
                Some(value) => return Some(value.to_owned()),
                None if rest.is_empty() => return arguments.next().cloned(),
                None => {}
            }
        }
        None
    }

    /// A path as the process sees it.
    fn path(&self, path: &str) -> PathBuf {
        match path.strip_prefix('/') {
            Some(path) => self.folder.join("root").join(path),
            None => self.folder.join("cwd").join(path),
        }
    }

    /// Its settings: later files override earlier ones, and flags override files.
    fn settings(&self) -> Result<Settings, Unclean> {
        let mut files = Vec::new();
        files.extend(self.flag("config").map(|path| self.path(&path)));
        if let Some(folder) = self.flag("config-dir") {
            drop_ins(&self.path(&folder), &mut files)?;
        }
        let mut settings = Settings::default();
        for file in files {
            let text = text(&file)?.ok_or_else(|| Unclean::Left(format!("{} does not exist", file.display())))?;
            let config: Value =
                serde_saphyr::from_str(&text).map_err(|error| Unclean::Left(format!("{}: {error}", file.display())))?;
            settings.read(&config);
        }
        let gates = self.flag("feature-gates").unwrap_or_default();
        if let Some(value) = gates.split(',').find_map(|gate| gate.trim().strip_prefix(GATE)) {
            settings.gate = value.trim_start_matches('=').parse().ok();
        }
        Ok(settings)
    }
}

/// Files of a drop-in folder, as the kubelet orders them: by path, folders included.
fn drop_ins(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Unclean> {
    for path in entries(folder)? {
        if path.is_dir() {
            drop_ins(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
    }
    Ok(())
}

impl Settings {
    /// Takes over what a configuration sets.
    fn read(&mut self, config: &Value) {
        if let Some(policy) = config[POLICY].as_str() {
            self.policy = Some(policy.to_owned());
        }
        if let Some(gate) = config["featureGates"][GATE].as_bool() {
            self.gate = Some(gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    /// A node on whose machine these kubelets run: what is in their configuration, and their command line after it.
    fn machine(kubelets: &[(&str, &[&str])]) -> (TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        for (index, (config, more)) in kubelets.iter().enumerate() {
            let process = folder.path().join("proc").join((100 + index).to_string());
            fs::create_dir_all(process.join("root/var/lib/kubelet/conf.d")).unwrap();
            fs::write(process.join("root/var/lib/kubelet/config.yaml"), config).unwrap();
            let mut line = vec!["/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"];
            line.extend(*more);
            fs::write(process.join("cmdline"), line.join("\0") + "\0").unwrap();
        }
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    fn error(config: &str, more: &[&str]) -> Option<String> {
        let (_folder, node) = machine(&[(config, more)]);
        checks_image_credentials(&node).err().map(|error| error.to_string())
    }

    #[test]
    fn a_kubelet_without_the_check_fails_validation() {
        for passes in [
            "kind: KubeletConfiguration\n",
            "imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages\n",
            "# imagePullCredentialsVerificationPolicy: NeverVerify\nmaxPods: 110\n",
            "featureGates: {KubeletEnsureSecretPulledImages: true}\n",
        ] {
            assert_eq!(error(passes, &[]), None, "{passes}");
        }
        let off = "imagePullCredentialsVerificationPolicy: NeverVerify\n";
        for (config, more) in [
            (off, &[] as &[&str]),
            (r#"{"imagePullCredentialsVerificationPolicy": "NeverVerify"}"#, &[]),
            ("featureGates: {KubeletEnsureSecretPulledImages: false}\n", &[]),
            (
                "{}\n",
                &["--feature-gates=A=true,KubeletEnsureSecretPulledImages=false"],
            ),
            ("{}\n", &["--feature-gates", "KubeletEnsureSecretPulledImages=false"]),
        ] {
            let error = error(config, more).unwrap_or_default();
            assert!(
                error.contains("another tenant has pulled"),
                "{config} {more:?}: {error}"
            );
        }
        assert!(error("{", &[]).is_some(), "what cannot be read is not known");
    }

    #[test]
    fn drop_ins_override_the_file() {
        let (folder, node) = machine(&[("{}\n", &["--config-dir", "/var/lib/kubelet/conf.d"])]);
        let file = folder
            .path()
            .join("proc/100/root/var/lib/kubelet/conf.d/10-images.conf");
        fs::write(&file, "imagePullCredentialsVerificationPolicy: NeverVerify\n").unwrap();
        assert!(checks_image_credentials(&node).is_err());
        fs::write(
            file.with_file_name("20-images.conf"),
            "imagePullCredentialsVerificationPolicy: AlwaysVerify\n",
        )
        .unwrap();
        assert!(checks_image_credentials(&node).is_ok());
    }

    #[test]
    fn kubelets_of_other_nodes_do_not_count() {
        let off = "imagePullCredentialsVerificationPolicy: NeverVerify\n";
        let (_folder, node) = machine(&[("{}\n", &["--hostname-override=a"]), (off, &["--hostname-override=b"])]);
        for (name, passes) in [("a", true), ("b", false)] {
            let node = node.clone().named(name);
            assert_eq!(checks_image_credentials(&node).is_ok(), passes, "{name}");
        }
    }

    #[test]
    fn a_node_without_a_kubelet_of_its_own_passes() {
        let (_folder, node) = machine(&[]);
        assert!(checks_image_credentials(&node).is_ok());
    }
}
