//! The kubeconfigs of the user, as kubectl reads them.

use std::io;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};

use crate::error::Error;
use crate::suggest;

/// The kubeconfig in a file.
///
/// # Errors
/// It cannot be read. The text quotes no line of the file, which may have keys and tokens.
pub(crate) fn read_file(path: &Path) -> Result<Kubeconfig, String> {
    Kubeconfig::read_from(path).map_err(|error| describe_file(path, &error))
}

/// A kubeconfig that is no file.
///
/// # Errors
/// What is wrong, without a line of it.
pub(crate) fn read_text(text: &str) -> Result<Kubeconfig, String> {
    Kubeconfig::from_yaml(text).map_err(|error| describe(&error))
}

/// The kubeconfigs of the user as one. As kubectl does it, a file that does not exist is left out, and an empty current context is none: the
/// next file may name one.
///
/// # Errors
/// None of the files exists, one cannot be read, or they do not fit together. The text quotes no line of the files.
pub(crate) fn read_merged(paths: &[PathBuf]) -> Result<Kubeconfig, String> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for path in paths {
        match Kubeconfig::read_from(path) {
            Ok(mut next) => {
                next.current_context = next.current_context.filter(|name| !name.is_empty());
                merged = Some(match merged {
                    Some(merged) => merged.merge(next).map_err(|error| describe_file(path, &error))?,
                    None => next,
                });
            }
            Err(error) if is_missing(&error) => missing = missing.or(Some(error.to_string())),
            Err(error) => return Err(describe_file(path, &error)),
        }
    }
    merged.ok_or_else(|| missing.unwrap_or_else(|| KubeconfigError::FindPath.to_string()))
}

/// What is wrong with a file. The text has its path.
fn describe_file(path: &Path, error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(..) => error.to_string(),
        error => format!("{}: {}", path.display(), describe(error)),
    }
}

/// What is wrong with a kubeconfig, without the lines that the parser quotes.
fn describe(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => error.without_snippet().to_string(),
        error => error.to_string(),
    }
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(error, KubeconfigError::ReadConfig(source, _) if source.kind() == io::ErrorKind::NotFound)
}

/// Checks that a kubeconfig has a context of this name.
///
/// # Errors
/// It has none; the text names those that may be meant.
pub(crate) fn check_context(kubeconfig: &Kubeconfig, name: &str) -> Result<(), Error> {
    let known = || kubeconfig.contexts.iter().map(|context| context.name.as_str());
    if known().any(|context| context == name) {
        return Ok(());
    }
    let question = suggest::ask(name, known());
    let advice = question.unwrap_or_else(|| "`kubectl config get-contexts` lists those that there are".into());
    Err(Error::Usage(format!("the kubeconfig has no context {name}; {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kubeconfigs_are_merged_as_kubectl_merges_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, current: &str| {
            let document = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": current,
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            });
            std::fs::write(path(name), document.to_string()).unwrap();
        };
        write("a", "");
        write("b", "b");
        write("c", "c");
        // `berth disconnect` leaves an empty current context behind.
        let merged = read_merged(&[path("none"), path("a"), path("b"), path("c")]).unwrap();
        let contexts: Vec<&str> = merged.contexts.iter().map(|context| context.name.as_str()).collect();
        assert_eq!(contexts, ["a", "b", "c"]);
        assert_eq!(merged.current_context.as_deref(), Some("b"));
        let error = read_merged(&[path("none"), path("neither")]).unwrap_err();
        assert!(error.contains("/none"), "{error}");
        assert!(read_merged(&[]).is_err());
    }

    #[test]
    fn what_is_wrong_with_a_kubeconfig_is_said_without_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
        std::fs::write(&whole, "{}").unwrap();
        let text = "users:\n- name: a\n  user:\n    token: \"CANARY\" x\n";
        std::fs::write(&broken, text).unwrap();
        let of_file = read_file(&broken).unwrap_err();
        let of_files = read_merged(&[whole, broken]).unwrap_err();
        assert!(
            of_file.contains("/broken: ") && of_file == of_files,
            "{of_file} {of_files}"
        );
        for error in [of_file, read_text(text).unwrap_err()] {
            assert!(!error.contains("CANARY"), "{error}");
        }
    }

    #[test]
    fn a_context_that_does_not_exist_is_named_with_those_that_may_be_meant() {
        let kubeconfig: Kubeconfig =
            serde_json::from_value(json!({"contexts": [{"name": "prod-eu"}, {"name": "dev"}]})).unwrap();
        assert!(check_context(&kubeconfig, "dev").is_ok());
        let error = |name: &str| check_context(&kubeconfig, name).unwrap_err();
        assert_eq!(error("x").exit_code(), 2);
        assert_eq!(
            error("prod-ue").to_string(),
            "the kubeconfig has no context prod-ue; did you mean prod-eu?"
        );
        assert!(
            error("staging")
                .to_string()
                .ends_with("get-contexts` lists those that there are")
        );
    }
}
