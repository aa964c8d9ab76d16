//! Credentials of a tenant, found where they belong, to look for them where they do not: in logs, arguments and bundles.

use crate::{tenant::Tenant, test_cluster::TestCluster};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use std::{collections::BTreeSet, fs, path::Path};

/// Characters of a line of a key, at least: shorter ones may be in any text.
const LINE: usize = 32;

/// Texts that give a right to everyone who reads them. None of them is ever printed.
#[derive(Default)]
pub struct Canaries(BTreeSet<String>);

impl Canaries {
    /// Private keys and tokens of a tenant: in its kubeconfig, in the Secrets of its namespaces on the host, and in the files of its
    /// components.
    pub async fn of(host: &TestCluster, tenant: &Tenant) -> Self {
        let mut canaries = Self::default();
        canaries.add(&tenant.kubeconfig);
        for namespace in [&tenant.id.control_plane_namespace(), &tenant.namespace] {
            let secrets: Api<Secret> = Api::namespaced(host.client.clone(), namespace);
            let secrets = secrets.list(&ListParams::default()).await.unwrap();
            for value in secrets
                .items
                .into_iter()
                .flat_map(|secret| secret.data.unwrap_or_default())
            {
                canaries.add(&String::from_utf8_lossy(&value.1.0));
            }
        }
        for (_, text) in texts_in(&host.home().tenants().join(tenant.id.hash())) {
            canaries.add(&text);
        }
        canaries
    }

    /// Adds the credentials in a text: private keys, tokens, and those of a kubeconfig.
    pub fn add(&mut self, text: &str) {
        let mut is_key = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("-----") {
                is_key = line.starts_with("-----BEGIN") && line.contains("PRIVATE KEY");
            } else if is_key && line.len() >= LINE {
                self.0.insert(line.into());
            } else if let Some(encoded) = line.strip_prefix("client-key-data:") {
                let encoded = encoded.trim().trim_matches('"');
                self.0.insert(encoded.into());
                self.add(&String::from_utf8_lossy(&STANDARD.decode(encoded).unwrap()));
            } else if let Some(token) = line.strip_prefix("token:") {
                self.add(token.trim().trim_matches('"'));
            } else if let Some((_, signature)) = line.rsplit_once('.').filter(|_| line.starts_with("eyJ")) {
                self.0.insert(signature.into());
            }
        }
    }

    /// Adds a text that is a credential as a whole.
    pub fn add_whole(&mut self, credential: &str) {
        self.0.insert(credential.into());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a text has one of them.
    pub fn are_in(&self, text: &str) -> bool {
        self.0.iter().any(|canary| text.contains(canary.as_str()))
    }

    /// Asserts that none is in a text, which is found at `place`.
    pub fn assert_not_in(&self, place: &str, text: &str) {
        let has = |line: &&str| self.are_in(line);
        // The beginning of the line says what wrote it; the rest may be the credential.
        let begin = |line: &str| line.chars().take(40).collect::<String>();
        if let Some(line) = text.lines().find(has) {
            panic!(
                "a credential is in {place}, in a line that begins with {:?}",
                begin(line)
            );
        }
    }

    /// Asserts that none is in a file below a folder. Returns how many files there are.
    pub fn assert_not_below(&self, folder: &Path) -> usize {
        let texts = texts_in(folder);
        for (path, text) in &texts {
            self.assert_not_in(path, text);
        }
        texts.len()
    }

    /// Asserts that none is in the arguments or the environment of a process.
    pub fn assert_not_in_process(&self, process: u32) {
        for part in ["cmdline", "environ"] {
            let path = format!("/proc/{process}/{part}");
            let text = fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            self.assert_not_in(&path, &String::from_utf8_lossy(&text));
        }
    }
}

/// The path and the text of every file below a folder. One that is removed meanwhile is left out.
pub fn texts_in(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut texts = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            texts.extend(texts_in(&path));
        } else if let Ok(bytes) = fs::read(&path) {
            texts.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_and_certificates_are_not() {
        let line = |of: char| String::from(of).repeat(64);
        let key = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\nshort==\n-----END PRIVATE KEY-----\n",
            line('K')
        );
        let certificate = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            line('C')
        );
        let encoded = STANDARD.encode(&key);
        let mut canaries = Canaries::default();
        canaries.add(&format!("{certificate}{key}"));
        canaries.add(&format!(
            "users:\n- user:\n    client-key-data: {encoded}\n    token: eyJhbGciOi.eyJpc3Mi.SIGNATURE\n"
        ));
        assert_eq!(canaries.len(), 3);
        for text in [
            line('K').as_str(),
            encoded.as_str(),
            "Authorization: Bearer eyJhbGciOi.eyJpc3Mi.SIGNATURE",
        ] {
            assert!(canaries.are_in(text), "{text}");
        }
        for text in [certificate.as_str(), "short==", "eyJhbGciOi.eyJpc3Mi."] {
            assert!(!canaries.are_in(text), "{text}");
        }
        canaries.assert_not_in("a log", "nothing\nof interest");
    }

    #[test]
    #[should_panic(expected = "a credential is in a log, in a line that begins with \"level=info")]
    fn a_credential_in_a_log_is_reported_without_it() {
        let mut canaries = Canaries::default();
        canaries.add_whole("hunter2hunter2");
        canaries.assert_not_in(
            "a log",
            "fine\nlevel=info a long message before the password hunter2hunter2",
        );
    }
}
