//! Kubeconfigs of a home, which may be somebody else's: see [`Home::check_private`](crate::Home::check_private).

use std::fmt::Display;
use std::fs;
use std::path::Path;

use berth_pki::kubeconfig::find_foreign_field;
use kube::config::Kubeconfig;
use serde_json::Value;

use crate::Error;

/// A field of kubeconfigs from which nothing follows.
const PREFERENCES: &str = "preferences";

/// Reads a kubeconfig that this crate has written. One with anything else is not used: it could run commands, or read files of this machine.
///
/// # Errors
/// [`Error::Kubeconfig`] when there is none at `path` or it is damaged, [`Error::ForeignKubeconfig`] when this crate did not write it.
pub fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, Error> {
    let failed = |error: &dyn Display| Error::Kubeconfig(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut document: Value = serde_saphyr::from_str(&text).map_err(|error| failed(&error))?;
    // kubectl writes it when it changes the file, for example the namespace of a context.
    if let Some(fields) = document.as_object_mut() {
        fields.remove(PREFERENCES);
    }
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
    }
}
