//! What kubectl reads: the user of a kubeconfig, and the credential that a plug-in prints.

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Flow;

/// API version of credential plug-ins.
const API_VERSION: &str = "client.authentication.k8s.io/v1";

/// Where and as what a kubeconfig signs in.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignIn<'a> {
    /// URL of the issuer.
    pub(crate) issuer: &'a str,
    /// ID of the client at the issuer.
    pub(crate) client_id: &'a str,
    /// Scopes besides `openid` and `offline_access`.
    pub(crate) scopes: &'a [String],
    /// The flow, if it is not to be chosen.
    pub(crate) flow: Option<Flow>,
    /// To where the browser returns, if that is not the default.
    pub(crate) redirect_url: Option<String>,
    /// File with certificates (PEM) that the issuer is verified with; none for those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// The same in the kubeconfig itself (PEM, in base64).
    pub(crate) ca_data: Option<String>,
    /// File with the secret of the client, if it has one.
    pub(crate) client_secret_file: Option<PathBuf>,
}

/// The entry `users[].user` of a kubeconfig that signs in with `berth token oidc`. It holds no secret.
pub(crate) fn exec_user(sign_in: &SignIn<'_>) -> Value {
    let SignIn {
        issuer,
        client_id,
        scopes,
        flow,
        redirect_url,
        ca_file,
        ca_data,
        client_secret_file,
    } = sign_in;
    let mut args = vec![
        "token".to_owned(),
        "oidc".to_owned(),
        format!("--issuer={issuer}"),
        format!("--client-id={client_id}"),
    ];
    args.extend(scopes.iter().map(|scope| format!("--scope={scope}")));
    args.extend(flow.map(|flow| format!("--flow={}", flow.name())));
    args.extend(redirect_url.as_ref().map(|url| format!("--redirect-url={url}")));
    for (flag, file) in [("ca-file", ca_file), ("client-secret-file", client_secret_file)] {
        args.extend(file.as_ref().map(|file| format!("--{flag}={}", file.display())));
    }
    args.extend(ca_data.as_ref().map(|data| format!("--ca-data={data}")));
    json!({"exec": {
        "apiVersion": API_VERSION,
        "command": "berth",
        "args": args,
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": false,
        "installHint": "Signing in to this cluster needs the command berth, in a directory of PATH.",
    }})
}

/// What the plug-in prints. `expires` is in seconds since the epoch.
pub(super) fn credential(token: &str, expires: i64) -> Value {
    let expires = Timestamp::from_second(expires).ok().map(|at| at.to_string());
    json!({
        "apiVersion": API_VERSION,
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": expires},
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The arguments with which a user of the tests signs in: at `https://id.example.com`, as `berth`, with the scope `groups`, and these.
    pub(crate) fn arguments_with(further: &[&str]) -> Value {
        let common = [
            "token",
            "oidc",
            "--issuer=https://id.example.com",
            "--client-id=berth",
            "--scope=groups",
        ];
        json!([&common[..], further].concat())
    }

    #[test]
    fn a_user_runs_berth_and_has_no_secret() {
        let user = exec_user(&SignIn {
            issuer: "https://id.example.com",
            client_id: "berth",
            scopes: &["groups".into()],
            ca_file: Some("/etc/ca.pem".into()),
            ..SignIn::default()
        });
        assert_eq!(user["exec"]["args"], arguments_with(&["--ca-file=/etc/ca.pem"]));
        assert_eq!(user["exec"]["apiVersion"], "client.authentication.k8s.io/v1");
    }

    #[test]
    fn a_credential_says_when_it_expires() {
        let credential = credential("t", 1_800_000_000);
        assert_eq!(credential["status"]["expirationTimestamp"], "2027-01-15T08:00:00Z");
        assert_eq!(credential["kind"], "ExecCredential");
    }
}
