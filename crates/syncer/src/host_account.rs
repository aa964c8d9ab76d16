//! Which `ServiceAccount` of the host the syncer has, by its token.
//!
//! Once the account was replaced, because somebody has stolen a token of it, everything on the host is written again: see [`Tenant::applied_hash`]. The API
//! server checks the token. The syncer only reads its own.
//!
//! [`Tenant::applied_hash`]: berth_sync_rules::model::Tenant::applied_hash

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use kube::config::AuthInfo;
use serde_json::Value;

/// Why the account is not known. The syncer does not run then: with another answer at each start it would write everything again each time.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    File(String, #[source] std::io::Error),
    /// It names no account.
    #[error("{0} has no token of a ServiceAccount")]
    NoAccount(String),
}

/// The UID of the account whose token is in the file that a kubeconfig names; empty if it names none, as with a client certificate.
///
/// # Errors
/// As [`TokenError`] says.
pub(crate) fn read_uid(auth: &AuthInfo) -> Result<String, TokenError> {
    let Some(file) = &auth.token_file else {
        return Ok(String::new());
    };
    let token = std::fs::read_to_string(file).map_err(|error| TokenError::File(file.clone(), error))?;
    uid_in(token.trim()).ok_or_else(|| TokenError::NoAccount(file.clone()))
}

/// The UID of the account in a token.
fn uid_in(token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let uid = claims.pointer("/kubernetes.io/serviceaccount/uid")?.as_str()?;
    (!uid.is_empty()).then(|| uid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    fn account(uid: &str, expires: u64) -> Value {
        let account = json!({"name": "syncer", "uid": uid});
        json!({"exp": expires, "kubernetes.io": {"namespace": "a-cp", "serviceaccount": account}})
    }

    #[test]
    fn each_token_of_an_account_has_its_uid() {
        assert_eq!(uid_in(&token(&account("one", 1))).as_deref(), Some("one"));
        assert_eq!(uid_in(&token(&account("one", 2))).as_deref(), Some("one"));
        assert_eq!(uid_in(&token(&account("two", 2))).as_deref(), Some("two"));
        for odd in ["", "a.b.c", "e30", &token(&json!({})), &token(&account("", 1))] {
            assert_eq!(uid_in(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_kubeconfig_without_a_token_has_no_account() {
        assert_eq!(read_uid(&AuthInfo::default()).unwrap(), "");
    }

    #[test]
    fn a_token_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let auth = AuthInfo {
            token_file: Some(path.display().to_string()),
            ..AuthInfo::default()
        };
        assert!(matches!(read_uid(&auth), Err(TokenError::File(..))));
        std::fs::write(&path, "opaque").unwrap();
        assert!(matches!(read_uid(&auth), Err(TokenError::NoAccount(_))));
        std::fs::write(&path, format!("{}\n", token(&account("one", 1)))).unwrap();
        assert_eq!(read_uid(&auth).unwrap(), "one");
    }
}
