//! The kubelet's settings: whether it checks that a pod may use an image that is on the node already (Kubernetes 1.35 and
//! later, unless it is switched off). They are read from the files that its process was started with.

use crate::{
    Unclean,
    daemons::{self, Daemon},
    files::{entries, text},
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
/// The feature gate that sets all beta features which are not named themselves.
const ALL_BETA: &str = "AllBeta";

/// What the kubelet's configuration says about the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings {
    policy: Option<String>,
    gate: Option<bool>,
    all_beta: Option<bool>,
}

/// Whether the node's kubelet checks credentials. Versions without the check, which have none of these settings, pass.
pub(crate) fn checks_image_credentials(node: &Node) -> Result<(), Unclean> {
    for kubelet in kubelets(node)? {
        let settings = settings(&kubelet)?;
        let Some(setting) = settings.off() else {
            continue;
        };
        return Err(Unclean::Left(format!(
            "the kubelet has {setting}: a pod could run an image that another tenant has pulled with a Secret. Remove this \
             setting from the kubelet's configuration"
        )));
    }
    Ok(())
}

/// The kubelet of the node. Nodes that share a machine are distinguished by the name that the kubelet was given. Where the kubelet
/// is part of another program, there is none.
fn kubelets(node: &Node) -> Result<Vec<Daemon>, Unclean> {
    let mut all = daemons::find(node, "kubelet")?;
    let is_own = |kubelet: &Daemon| kubelet.flag("hostname-override") == Some(node.name());
    if all.iter().any(is_own) {
        all.retain(is_own);
    }
    Ok(all)
}

/// The kubeconfigs by which the kubelet asks for its first certificate, as its flags name them, and where these files are.
pub(crate) fn bootstrap_kubeconfigs(node: &Node) -> Result<Vec<(String, PathBuf)>, Unclean> {
    files_of_flag(node, "bootstrap-kubeconfig")
}

/// The files, or folders of files, that list the programs which the kubelet asks for credentials of registries.
pub(crate) fn credential_providers(node: &Node) -> Result<Vec<(String, PathBuf)>, Unclean> {
    files_of_flag(node, "image-credential-provider-config")
}

/// The files that a flag of the kubelet names, by their paths on the node, and where they are.
fn files_of_flag(node: &Node, flag: &str) -> Result<Vec<(String, PathBuf)>, Unclean> {
    let kubelets = kubelets(node)?;
    let named = { kubelets.iter() }.filter_map(|kubelet| Some((kubelet, kubelet.flag(flag)?)));
    Ok(named
        .filter(|(_, path)| !path.is_empty())
        .map(|(kubelet, path)| (path.to_owned(), kubelet.path(path)))
        .collect())
}

/// The settings of a kubelet: later files override earlier ones, and flags override files.
fn settings(kubelet: &Daemon) -> Result<Settings, Unclean> {
    let mut files = Vec::new();
    files.extend(kubelet.flag("config").map(|path| kubelet.path(path)));
    if let Some(folder) = kubelet.flag("config-dir") {
        drop_ins(&kubelet.path(folder), &mut files)?;
    }
    let mut settings = Settings::default();
    for file in files {
        let text = text(&file)?.ok_or_else(|| Unclean::Left(format!("{} does not exist", file.display())))?;
        let config: Value =
            serde_saphyr::from_str(&text).map_err(|error| Unclean::Left(format!("{}: {error}", file.display())))?;
        settings.read(&config);
    }
    // The kubelet merges repeated flags, and these with the gates of the files, gate by gate.
    for gate in kubelet
        .flags("feature-gates")
        .into_iter()
        .flat_map(|gates| gates.split(','))
    {
        settings.read_gate(gate);
    }
    Ok(settings)
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
        let gates = &config["featureGates"];
        self.gate = gates[GATE].as_bool().or(self.gate);
        self.all_beta = gates[ALL_BETA].as_bool().or(self.all_beta);
    }

    /// Takes over a gate of a flag, `name=value`. A value that is no boolean changes nothing: no kubelet starts with it.
    fn read_gate(&mut self, gate: &str) {
        let Some((name, value)) = gate.split_once('=') else {
            return;
        };
        match name.trim() {
            GATE => self.gate = boolean(value).or(self.gate),
            ALL_BETA => self.all_beta = boolean(value).or(self.all_beta),
            _ => {}
        }
    }

    /// The setting that switches the check off.
    fn off(&self) -> Option<String> {
        if self.policy.as_deref() == Some(OFF) {
            return Some(format!("{POLICY}: {OFF}"));
        }
        match (self.gate, self.all_beta) {
            (Some(false), _) => Some(format!("the feature gate {GATE} off")),
            (None, Some(false)) => Some(format!("the feature gate {ALL_BETA} off, and with it {GATE}")),
            _ => None,
        }
    }
}

/// The value of a gate in a flag, in any spelling that the kubelet accepts.
fn boolean(text: &str) -> Option<bool> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
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
    fn repeated_flags_are_merged() {
        let off = "--feature-gates=KubeletEnsureSecretPulledImages=false";
        let on = "--feature-gates=KubeletEnsureSecretPulledImages=true";
        for (more, passes) in [
            (&["--feature-gates=A=true", off] as &[&str], false),
            (&[off, "--feature-gates", "A=true"], false),
            (&[on, off], false),
            (&[off, on], true),
            (&["--feature-gates=A=true, KubeletEnsureSecretPulledImages = F"], false),
        ] {
            assert_eq!(error("{}\n", more).is_none(), passes, "{more:?}");
        }
        let (folder, node) = machine(&[("{}\n", &["--config=/off.yaml"])]);
        let file = folder.path().join("proc/100/root/off.yaml");
        fs::write(file, "imagePullCredentialsVerificationPolicy: NeverVerify\n").unwrap();
        assert!(
            checks_image_credentials(&node).is_err(),
            "of two paths the last one counts"
        );
    }

    #[test]
    fn the_gate_of_all_beta_features_counts_unless_the_check_has_its_own() {
        let all_off = "--feature-gates=AllBeta=false";
        for (config, more, passes) in [
            ("featureGates: {AllBeta: false}\n", &[] as &[&str], false),
            ("featureGates: {AllBeta: true}\n", &[], true),
            ("featureGates: {AllBeta: true}\n", &[all_off], false),
            (
                "featureGates: {AllBeta: false, KubeletEnsureSecretPulledImages: true}\n",
                &[],
                true,
            ),
            (
                "featureGates: {KubeletEnsureSecretPulledImages: true}\n",
                &[all_off],
                true,
            ),
            ("featureGates: {AllBeta: false}\n", &["--feature-gates=AllBeta=1"], true),
            (
                "featureGates: {KubeletEnsureSecretPulledImages: false}\n",
                &["--feature-gates=AllBeta=true"],
                false,
            ),
        ] {
            assert_eq!(error(config, more).is_none(), passes, "{config} {more:?}");
        }
        let error = error("{}\n", &[all_off]).unwrap_or_default();
        assert!(error.contains("AllBeta off"), "{error}");
    }

    #[test]
    fn other_gates_and_values_that_are_no_boolean_change_nothing() {
        let off = "featureGates: {KubeletEnsureSecretPulledImages: false}\n";
        for gate in [
            "KubeletEnsureSecretPulledImagesLonger=true",
            "KubeletEnsureSecretPulledImages=maybe",
            "KubeletEnsureSecretPulledImages",
        ] {
            let flag = format!("--feature-gates={gate}");
            assert!(error(off, &[&flag]).is_some(), "{gate}");
        }
        let longer = "--feature-gates=KubeletEnsureSecretPulledImagesLonger=false";
        assert_eq!(error("{}\n", &[longer]), None);
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
    fn the_kubeconfig_for_the_first_certificate_is_known_by_its_flag() {
        let (folder, node) = machine(&[("{}\n", &["--bootstrap-kubeconfig=/opt/bootstrap.conf"])]);
        let file = folder.path().join("proc/100/root/opt/bootstrap.conf");
        assert_eq!(
            bootstrap_kubeconfigs(&node).unwrap(),
            [("/opt/bootstrap.conf".to_owned(), file)]
        );
        for more in [&[] as &[&str], &["--bootstrap-kubeconfig="]] {
            let (_folder, node) = machine(&[("{}\n", more)]);
            assert!(bootstrap_kubeconfigs(&node).unwrap().is_empty(), "{more:?}");
        }
    }

    #[test]
    fn a_node_without_a_kubelet_of_its_own_passes() {
        let (_folder, node) = machine(&[]);
        assert!(checks_image_credentials(&node).is_ok());
    }
}
