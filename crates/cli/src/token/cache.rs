//! Tokens of earlier sign-ins: files that only the user can read, one for each issuer, client and set of scopes.
//!
//! A kubeconfig may bring certificates that the issuer is verified with (`--ca-data`). It has tokens of its own then: who wrote the
//! certificates could be in the place of the issuer, and would get refresh tokens that were given by the true one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_process::{create_private_dir, write_atomic};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::OidcArguments;
use super::provider::SignInError;
use crate::output::print_text;

/// Permissions of files with tokens.
const PRIVATE: u32 = 0o600;
/// What is before certificates in the name of a file. No scope has spaces.
const CERTIFICATES: &str = "verified with";

/// The tokens of a sign-in. It has no `Debug`, so that nothing can print them.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tokens {
    /// What the API server accepts.
    pub(super) id_token: String,
    /// With which the issuer gives another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
}

/// The file of one issuer, client and set of scopes.
pub(super) struct Cache {
    path: PathBuf,
}

impl Cache {
    /// The file in the user's cache.
    pub(super) fn open(arguments: &OidcArguments) -> Result<Self, SignInError> {
        let var = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let dir = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
        let dir =
            dir.ok_or_else(|| SignInError::Local("there is no cache directory; set HOME or XDG_CACHE_HOME".into()))?;
        Self::open_in(&dir.join("berth/tokens"), arguments)
    }

    fn open_in(dir: &Path, arguments: &OidcArguments) -> Result<Self, SignInError> {
        create_private_dir(dir)?;
        let mut scopes: Vec<&str> = arguments.scopes.iter().map(String::as_str).collect();
        scopes.sort_unstable();
        scopes.dedup();
        let mut hash = Sha256::new();
        let named = [arguments.issuer.as_str(), &arguments.client_id];
        let certificates = arguments.ca_data.iter().flat_map(|data| [CERTIFICATES, data]);
        for part in named.into_iter().chain(scopes).chain(certificates) {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        let name = URL_SAFE_NO_PAD.encode(hash.finalize());
        Ok(Self {
            path: dir.join(format!("{name}.json")),
        })
    }

    /// The tokens, if there are some that can be read.
    pub(super) fn read(&self) -> Option<Tokens> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Keeps tokens. Readers see the old ones or the new ones.
    pub(super) fn write(&self, tokens: &Tokens) -> Result<(), SignInError> {
        // The user may have removed it while signing in.
        if let Some(dir) = self.path.parent() {
            create_private_dir(dir)?;
        }
        let text = serde_json::to_vec(tokens).map_err(|error| SignInError::Local(error.to_string()))?;
        Ok(write_atomic(&self.path, &text, PRIVATE)?)
    }

    /// Waits until no other process signs in, and keeps others from it until the file is dropped or this process ends.
    pub(super) async fn lock(&self) -> Result<File, SignInError> {
        let path = self.path.with_extension("lock");
        let failed = |error: std::io::Error| SignInError::Local(format!("cannot lock {}: {error}", path.display()));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(PRIVATE)
            .open(&path)
            .map_err(failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        print_text(format_args!("Another process signs in; waiting for it."));
        let waiting = tokio::task::spawn_blocking(move || -> Result<File, rustix::io::Errno> {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        let locked = waiting.await.map_err(|error| failed(error.into()))?;
        locked.map_err(|error| failed(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn tokens(id: &str) -> Tokens {
        Tokens {
            id_token: id.into(),
            refresh_token: Some("r".into()),
        }
    }

    fn arguments(client: &str, scopes: &[&str]) -> OidcArguments {
        OidcArguments {
            issuer: "https://id.example.com".into(),
            client_id: client.into(),
            scopes: scopes.iter().map(ToString::to_string).collect(),
            ..OidcArguments::default()
        }
    }

    fn open(dir: &Path, client: &str, scopes: &[&str]) -> Cache {
        Cache::open_in(dir, &arguments(client, scopes)).unwrap()
    }

    #[test]
    fn who_brings_certificates_gets_no_tokens_of_others() {
        let home = tempfile::tempdir().unwrap();
        let with = |data: Option<&str>| {
            let arguments = OidcArguments {
                ca_data: data.map(Into::into),
                ..arguments("a", &["x"])
            };
            Cache::open_in(home.path(), &arguments).unwrap()
        };
        with(None).write(&tokens("1")).unwrap();
        assert!(with(Some("Y2E=")).read().is_none());
        with(Some("Y2E=")).write(&tokens("2")).unwrap();
        assert!(with(Some("b3RoZXI=")).read().is_none());
        assert_eq!(with(None).read().unwrap().id_token, "1");
        // Nor as a scope.
        assert!(open(home.path(), "a", &["Y2E=", "x"]).read().is_none());
    }

    #[test]
    fn tokens_are_kept_for_the_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("tokens");
        let cache = open(&dir, "a", &["x", "y"]);
        assert!(cache.read().is_none());
        cache.write(&tokens("1")).unwrap();
        cache.write(&tokens("2")).unwrap();
        let read = open(&dir, "a", &["y", "x", "x"]).read().unwrap();
        assert_eq!(
            (read.id_token.as_str(), read.refresh_token.as_deref()),
            ("2", Some("r"))
        );
        assert!(open(&dir, "b", &["x", "y"]).read().is_none());
        assert!(open(&dir, "a", &["x"]).read().is_none());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&cache.path)), (0o700, 0o600));
    }

    #[test]
    fn tokens_are_kept_also_if_the_directory_was_removed_meanwhile() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("tokens");
        let cache = open(&dir, "a", &[]);
        std::fs::remove_dir_all(&dir).unwrap();
        cache.write(&tokens("1")).unwrap();
        assert!(cache.read().is_some());
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_damaged_file_is_like_none() {
        let home = tempfile::tempdir().unwrap();
        let cache = open(home.path(), "a", &[]);
        std::fs::write(&cache.path, "{").unwrap();
        assert!(cache.read().is_none());
    }

    #[tokio::test]
    async fn one_process_at_a_time_has_the_lock() {
        let home = tempfile::tempdir().unwrap();
        let cache = open(home.path(), "a", &[]);
        let held = cache.lock().await.unwrap();
        let second = open(home.path(), "a", &[]);
        let waiting = tokio::spawn(async move { second.lock().await.map(drop) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap().unwrap();
    }
}
