//! The commands of docs/operations/backup.md, on a host whose control planes are processes.

pub(crate) mod copy;
pub(crate) mod datastore;
pub(crate) mod encryption;
pub(crate) mod keys;

use berth_tests::{page::find_commands, shell::Shell, test_cluster::TestCluster};
use std::{fs, os::unix::fs::PermissionsExt};

const PAGE: &str = include_str!("../../../../docs/operations/backup.md");
const TROUBLESHOOTING: &str = include_str!("../../../../docs/operations/troubleshooting.md");

/// The commands of the page that have these words, with texts in the place of others.
fn commands(words: &str, replaced: &[(&str, &str)]) -> String {
    let found = find_commands(PAGE, words).unwrap_or_else(|| panic!("the page has no commands with {words:?}"));
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    replaced.iter().fold(found.to_owned(), replace)
}

/// The shell of an administrator of the host, connected to the tenants' etcd.
async fn administrator(host: &TestCluster) -> Shell {
    let mut shell = Shell::within(host.home().root());
    let datastore = host.datastore();
    fs::copy(&datastore.ca_cert, shell.folder().join("ca.crt")).unwrap();
    fs::copy(&datastore.ca_key, shell.folder().join("ca.key")).unwrap();
    let connect = find_commands(TROUBLESHOOTING, "-subj /CN=root").expect("the page says how to connect");
    // The authority is in these files, and etcd is reached without a port that is forwarded.
    let is_run = |line: &&str| !line.contains("kubectl") && !line.contains("export");
    let own: Vec<&str> = connect.lines().filter(is_run).collect();
    shell.run(&own.join("\n")).await;
    shell.set("ETCDCTL_ENDPOINTS", &datastore.endpoint);
    for (name, file) in [("CACERT", "ca.crt"), ("CERT", "root.crt"), ("KEY", "root.key")] {
        shell.set(&format!("ETCDCTL_{name}"), file);
    }
    shell.set("KUBECONFIG", host.home().admin_kubeconfig());
    let cache = shell.folder().to_owned();
    shell.set("KUBECACHEDIR", cache);
    shell
}

/// Backs up, where other users may read files by default. They cannot read those of the backup.
async fn back_up(shell: &Shell) {
    let backup = commands("etcdctl snapshot save", &[]);
    shell.run(&format!("umask 022\n{backup}")).await;
    let files = fs::read_dir(shell.folder()).unwrap().map(Result::unwrap);
    let is_of_backup = |name: &str| name.starts_with("pki-") || ["berth.db", "tenantclusters.yaml"].contains(&name);
    let mut count = 0;
    for file in files.filter(|file| file.file_name().to_str().is_some_and(is_of_backup)) {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", file.path().display());
        count += 1;
    }
    assert!(count >= 3, "of a tenant, the snapshot and the TenantClusters: {count}");
}
