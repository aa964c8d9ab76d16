//! Kubeconfigs of a home, which may be somebody else's: see [`Home::check_private`](crate::Home::check_private).

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use berth_pki::kubeconfig::find_foreign_field;
use kube::config::Kubeconfig;
use rustix::process::geteuid;
use serde_json::Value;

use crate::Error;

/// A field of kubeconfigs from which nothing follows.
const PREFERENCES: &str = "preferences";

/// Reads a kubeconfig that this crate has written. One with anything else is not used: it could run commands, or read files of this machine.
///
/// # Errors
/// [`Error::Kubeconfig`] when there is none at `path`, it is damaged, or it belongs to another user, [`Error::ForeignKubeconfig`] when this crate did
/// not write it.
pub fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, Error> {
    let failed = |error: &dyn Display| Error::Kubeconfig(format!("{}: {error}", path.display()));
    let mut file = File::open(path).map_err(|error| failed(&error))?;
    // Who can rename what is above the home can put another one in its place after it was checked, but owns no file of this user.
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(failed(&"it belongs to another user"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| failed(&error))?;
    let parsed: Result<Value, serde_saphyr::Error> = serde_saphyr::from_str(&text);
    // Without the lines that the parser quotes: they may have keys.
    let mut document = parsed.map_err(|error| failed(error.without_snippet()))?;
    let Some(fields) = document.as_object_mut() else {
        return Err(failed(&"it is not a mapping"));
    };
    // kubectl writes it when it changes the file, for example the namespace of a context.
    fields.remove(PREFERENCES);
    if let Some(field) = find_foreign_field(&document) {
        return Err(Error::ForeignKubeconfig {
            path: path.to_owned(),
            field,
        });
    }
    serde_json::from_value(document).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::chown;

    #[test]
    fn a_kubeconfig_that_runs_a_command_or_reads_a_file_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.kubeconfig");
        let read = |user: Value| {
            let document = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "host", "preferences": {},
                "clusters": [{"name": "host", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "host", "user": user}],
                "contexts": [{"name": "host", "context": {"cluster": "host", "user": "host"}}],
            });
            fs::write(&path, document.to_string()).unwrap();
            read_kubeconfig(&path)
        };
        let own = read(json!({"client-certificate-data": "Y2E=", "client-key-data": "a2V5"})).unwrap();
        assert_eq!(own.current_context.as_deref(), Some("host"));
        for (field, value) in [
            ("exec", json!({"command": "./evil"})),
            ("auth-provider", json!({"name": "gcp"})),
            ("tokenFile", json!("/home/me/token")),
        ] {
            let Err(Error::ForeignKubeconfig { field: found, .. }) = read(json!({(field): value})) else {
                panic!("{field} is used");
            };
            assert_eq!(found, format!("users[].user.{field}"));
        }
        assert!(matches!(
            read_kubeconfig(&folder.path().join("none")),
            Err(Error::Kubeconfig(_))
        ));
        fs::write(&path, "- apiVersion: v1\n").unwrap();
        assert!(matches!(read_kubeconfig(&path), Err(Error::Kubeconfig(_))));
        fs::write(&path, "key: \"CANARY\" x\n").unwrap();
        let error = read_kubeconfig(&path).unwrap_err().to_string();
        assert!(!error.contains("CANARY"), "{error}");
        // Only root can give a file away.
        read(json!({})).unwrap();
        if chown(&path, Some(12_345), None).is_ok() {
            let error = read_kubeconfig(&path).unwrap_err().to_string();
            assert!(error.contains("another user"), "{error}");
        }
    }
}
