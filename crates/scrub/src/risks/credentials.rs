//! Credentials that are left on the node, and with which root on the node can do more than the node's own kubelet: those with which a node joins the
//! cluster, and those of administrators and control planes. Messages name files and IDs of tokens, which are no secrets, and nothing that is one.

use super::{names_in, read, read_at, some_of};
use crate::{Unclean, files::resolve, kubelet, node::Node};
use serde_json::Value;
use std::path::Path;

/// Kubeconfigs with which kubelets ask for their first certificate: those of kubeadm, and of installers that keep it.
const OF_BOOTSTRAP: [&str; 4] = [
    "/etc/kubernetes/bootstrap-kubelet.conf",
    "/etc/kubernetes/bootstrap-kubeconfig",
    "/etc/kubernetes/bootstrap.kubeconfig",
    "/var/lib/kubelet/bootstrap-kubeconfig",
];
/// Kubeconfigs of administrators and of components of the host's control plane: those of kubeadm, of K3s, RKE2 and k0s, and of `kubectl` for root.
const OF_ADMINS: [&str; 8] = [
    "/etc/kubernetes/admin.conf",
    "/etc/kubernetes/super-admin.conf",
    "/etc/kubernetes/controller-manager.conf",
    "/etc/kubernetes/scheduler.conf",
    "/etc/rancher/k3s/k3s.yaml",
    "/etc/rancher/rke2/rke2.yaml",
    "/var/lib/k0s/pki/admin.conf",
    "/root/.kube/config",
];
/// Keys of the host's control plane, with which any credential can be made.
const KEYS: [&str; 2] = ["/etc/kubernetes/pki/ca.key", "/etc/kubernetes/pki/sa.key"];
/// Folders whose files have the data that a machine was started with, in folders by the machine's ID: those of cloud-init.
const INSTANCES: [&str; 2] = ["/var/lib/cloud/instances", "/var/lib/cloud/seed"];
/// Folders below them with such files: scripts that cloud-init takes out of the data.
const SCRIPTS: &str = "scripts";
/// Further folders and files with such data: of kubeadm, as Cluster API starts it, and of cloud-init.
const STARTED_WITH: [&str; 2] = ["/run/kubeadm", "/run/cloud-init"];
/// How many files with such data are read.
const MOST_FILES: usize = 500;
/// Where the kubelet has its own keys, which are not left by anybody.
const KEYS_OF_KUBELET: &str = "/var/lib/kubelet/pki/";

/// The credentials for joining the cluster on the node; none if there are none.
pub(super) fn find_of_bootstrap(node: &Node) -> Result<Option<String>, Unclean> {
    let mut found = Vec::new();
    for path in OF_BOOTSTRAP {
        found.extend(in_kubeconfig(path, read(node, path)?.as_deref()));
    }
    for (path, file) in kubelet::bootstrap_kubeconfigs(node)? {
        if !OF_BOOTSTRAP.contains(&path.as_str()) {
            found.extend(in_kubeconfig(&path, read_at(&file)?.as_deref()));
        }
    }
    for path in started_with(node)? {
        let text = read(node, &path)?.unwrap_or_default();
        found.extend(find_token(&text).map(|id| format!("{path} (bootstrap token {id})")));
    }
    Ok((!found.is_empty()).then(|| {
        let found = some_of(&found);
        format!("credentials to join the cluster are left in {found}")
    }))
}

/// The credentials of administrators and control planes on the node; none if there are none.
pub(super) fn find_of_admins(node: &Node) -> Result<Option<String>, Unclean> {
    let mut found = Vec::new();
    for path in OF_ADMINS {
        found.extend(in_kubeconfig(path, read(node, path)?.as_deref()));
    }
    let keys = KEYS.into_iter().filter(|path| resolve(node.root(), path).is_file());
    found.extend(keys.map(|path| format!("{path} (key of the control plane)")));
    Ok((!found.is_empty()).then(|| {
        let found = some_of(&found);
        format!("credentials of administrators or of the control plane are left in {found}")
    }))
}

/// The files with the data that the machine was started with.
fn started_with(node: &Node) -> Result<Vec<String>, Unclean> {
    let mut folders = Vec::new();
    for folder in INSTANCES {
        for instance in names_in(node, folder)? {
            let instance = format!("{folder}/{instance}");
            folders.extend([format!("{instance}/{SCRIPTS}"), instance]);
        }
    }
    folders.extend(STARTED_WITH.map(str::to_owned));
    let mut files = Vec::new();
    for folder in folders {
        let names = names_in(node, &folder)?;
        files.extend(names.iter().map(|name| format!("{folder}/{name}")));
        if files.len() > MOST_FILES {
            let folders = [INSTANCES, STARTED_WITH].concat().join(", ");
            return Err(Unclean::Left(format!("more than {MOST_FILES} files in {folders}")));
        }
    }
    Ok(files)
}

/// What a kubeconfig has that is a credential, if it is none of the kubelet's own. Programs that get credentials are none: what they need is not in the file.
fn in_kubeconfig(path: &str, text: Option<&str>) -> Option<String> {
    let text = text.filter(|text| !text.trim().is_empty())?;
    let config: Result<Value, _> = serde_saphyr::from_str(text);
    let Ok(config) = config else {
        return Some(format!("{path} (no kubeconfig)"));
    };
    let users = config["users"].as_array().into_iter().flatten();
    let kind = users.map(|user| &user["user"]).find_map(credential_of)?;
    Some(format!("{path} ({kind})"))
}

/// The kind of credential that a user of a kubeconfig has.
fn credential_of(user: &Value) -> Option<String> {
    let has = |field: &str| user[field].as_str().is_some_and(|value| !value.is_empty());
    if let Some(token) = user["token"].as_str().filter(|token| !token.is_empty()) {
        return Some(token_in(token, true).map_or_else(|| "token".to_owned(), |id| format!("bootstrap token {id}")));
    }
    if has("tokenFile") {
        return Some("token in a file".into());
    }
    if has("password") {
        return Some("password".into());
    }
    let is_own = |key: &str| Path::new(key).starts_with(KEYS_OF_KUBELET);
    let names_key = user["client-key"]
        .as_str()
        .is_some_and(|key| !key.is_empty() && !is_own(key));
    (has("client-key-data") || names_key).then(|| "client key".into())
}

/// The ID of the first bootstrap token in a text. What has the form of a token without a digit is one only in a line that names one.
fn find_token(text: &str) -> Option<&str> {
    let names_token = |line: &str| line.to_ascii_lowercase().contains("token");
    text.lines().find_map(|line| token_in(line, names_token(line)))
}

/// The ID of the first bootstrap token in a line: a word of six small letters and digits, in front of a dot and sixteen others. `with_letters_alone`: also
/// if it has no digit.
fn token_in(line: &str, with_letters_alone: bool) -> Option<&str> {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let is_of_token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str, length: usize| part.len() == length && part.bytes().all(is_of_token);
    let has_digit = |secret: &str| secret.bytes().any(|byte| byte.is_ascii_digit());
    line.split(|letter: char| !is_of_word(letter))
        .filter_map(|word| word.trim_matches('.').split_once('.'))
        .filter(|(id, secret)| is_part(id, 6) && is_part(secret, 16))
        .find(|(_, secret)| with_letters_alone || has_digit(secret))
        .map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};
    use tempfile::TempDir;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn node() -> (TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    fn kubeconfig(user: &str) -> String {
        format!("kind: Config\nusers:\n- name: a\n  user: {user}\n")
    }

    #[test]
    fn a_node_with_its_kubelets_credential_alone_has_none() {
        let (_folder, node) = node();
        let own =
            kubeconfig("{client-certificate: /var/lib/kubelet/pki/c.pem, client-key: /var/lib/kubelet/pki/c.pem}");
        node.write(
            "/etc/kubernetes/kubelet.conf",
            &kubeconfig("{client-key-data: c2VjcmV0}"),
        );
        node.write("/root/.kube/config", &own);
        node.write(OF_BOOTSTRAP[3], &kubeconfig("{exec: {command: tpm-credential}}"));
        node.write("/etc/kubernetes/pki/ca.crt", "certificate");
        node.write(
            "/var/lib/cloud/instances/i-1/user-data.txt",
            "#cloud-config\npackages: [docker.io]\n",
        );
        assert_eq!(find_of_bootstrap(&node).unwrap(), None);
        assert_eq!(find_of_admins(&node).unwrap(), None);
    }

    #[test]
    fn files_with_credentials_are_named_and_secrets_are_not() {
        let (_folder, node) = node();
        node.write(OF_BOOTSTRAP[0], &kubeconfig(&format!("{{token: {TOKEN}}}")));
        node.write(
            "/var/lib/cloud/instances/i-1/user-data.txt",
            &format!("runcmd: [kubeadm join --token {TOKEN}]"),
        );
        node.write(
            "/var/lib/cloud/instances/i-1/scripts/part-001",
            &format!("TOKEN={TOKEN}"),
        );
        node.write("/run/kubeadm/kubeadm-join-config.yaml", &format!("token: \"{TOKEN}\""));
        let found = find_of_bootstrap(&node).unwrap().unwrap();
        for path in [
            OF_BOOTSTRAP[0],
            "/var/lib/cloud/instances/i-1/user-data.txt",
            "/var/lib/cloud/instances/i-1/scripts/part-001",
            "/run/kubeadm/kubeadm-join-config.yaml",
        ] {
            assert!(found.contains(&format!("{path} (bootstrap token abcdef)")), "{found}");
        }
        assert!(!found.contains("0123456789"), "{found}");
        assert_eq!(find_of_admins(&node).unwrap(), None);

        node.write(
            "/etc/kubernetes/super-admin.conf",
            &kubeconfig("{client-key-data: c2VjcmV0}"),
        );
        node.write("/etc/kubernetes/pki/ca.key", "c2VjcmV0");
        let found = find_of_admins(&node).unwrap().unwrap();
        assert!(
            found.ends_with(
                "/etc/kubernetes/super-admin.conf (client key), /etc/kubernetes/pki/ca.key (key of the control plane)"
            ),
            "{found}"
        );
        assert!(!found.contains("c2Vj"), "{found}");
    }

    #[test]
    fn a_folder_with_too_many_files_is_not_read() {
        let (_folder, node) = node();
        for number in 0..=MOST_FILES {
            let (instance, file) = (number % 5, number / 5);
            node.write(&format!("{}/{instance}/{file}", INSTANCES[0]), "");
        }
        let error = find_of_bootstrap(&node).unwrap_err().to_string();
        assert!(error.starts_with("more than 500 files in /var/lib/cloud/"), "{error}");
    }

    #[test]
    fn the_file_that_the_kubelets_flag_names_is_read() {
        let (_folder, node) = node();
        node.write(
            "/proc/9/cmdline",
            "/usr/bin/kubelet\0--bootstrap-kubeconfig=/opt/b.conf\0",
        );
        assert_eq!(find_of_bootstrap(&node).unwrap(), None);
        node.write("/proc/9/root/opt/b.conf", &kubeconfig("{token: secret}"));
        let found = find_of_bootstrap(&node).unwrap().unwrap();
        assert!(found.ends_with("/opt/b.conf (token)"), "{found}");
    }

    #[test]
    fn links_are_followed_on_the_node() {
        let (_folder, node) = node();
        node.write("/srv/admin", &kubeconfig("{client-key-data: c2VjcmV0}"));
        fs::create_dir_all(node.path("/root/.kube")).unwrap();
        symlink("/srv/admin", node.path("/root/.kube/config")).unwrap();
        let found = find_of_admins(&node).unwrap().unwrap();
        assert!(found.contains("/root/.kube/config (client key)"), "{found}");
    }

    #[test]
    fn kinds_of_credentials_are_distinguished() {
        for (user, kind) in [
            ("{token: secret}", Some("token")),
            ("{token: abcdef.abcdefghijklmnop}", Some("bootstrap token abcdef")),
            ("{tokenFile: /t}", Some("token in a file")),
            ("{username: a, password: b}", Some("password")),
            ("{client-key: /etc/kubernetes/pki/a.key}", Some("client key")),
            ("{client-key: /var/lib/kubelet/pki/a.pem}", None),
            ("{token: \"\"}", None),
            ("{exec: {command: aws}}", None),
        ] {
            let found = in_kubeconfig("/a", Some(&kubeconfig(user)));
            assert_eq!(found, kind.map(|kind| format!("/a ({kind})")), "{user}");
        }
        assert_eq!(in_kubeconfig("/a", None), None);
        assert_eq!(in_kubeconfig("/a", Some("\n")), None);
        assert_eq!(in_kubeconfig("/a", Some("{")), Some("/a (no kubeconfig)".to_owned()));
    }

    #[test]
    fn bootstrap_tokens_are_found_in_text() {
        for (text, id) in [
            ("kubeadm join --token abcdef.0123456789abcdef", Some("abcdef")),
            ("\"abcdef.0123456789abcdef\"", Some("abcdef")),
            ("token: abcdef.abcdefghijklmnop", Some("abcdef")),
            ("name: python.readconfiguratio", None),
            ("token: abcdefg.0123456789abcdef", None),
            ("token: abcdef.0123456789abcdefg", None),
            ("token: abcdef.0123456789.abcde", None),
            ("token: ABCDEF.0123456789ABCDEF", None),
            ("token: eyJabcdef.0123456789abcdefQ", None),
            ("", None),
        ] {
            assert_eq!(find_token(text), id, "{text}");
        }
    }
}
