//! `berth token`: credentials that expire, for kubectl and other clients of a tenant.
//!
//! `berth token oidc` is a credential plug-in of kubectl (`client.authentication.k8s.io/v1`): it signs a person in at an OIDC issuer and
//! prints an ID token. Tokens are kept in a cache that only the user can read, are refreshed, and are never in arguments, errors or logs. A
//! lock lets many kubectls at the same time sign in once.
//!
//! `berth token service-account` prints a kubeconfig with a token of a ServiceAccount, for machines.

mod browser;
mod cache;
mod claims;
mod device;
mod exchange;
pub(crate) mod exec;
mod provider;
pub(crate) mod service_account;
mod trust;

pub(crate) use exec::{SignIn, exec_user};

use std::path::PathBuf;
use std::process::ExitCode;

use berth_api::LoopbackUrl;
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{print_line, print_text};
use cache::{Cache, Tokens};
use provider::{Provider, SignInError};
use service_account::ServiceAccountArguments;

/// Seconds before its end at which a token counts as expired: a request may take a while, and clocks differ.
const LEEWAY: i64 = 60;

/// Kinds of credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Sign in at an OIDC issuer, and print the credential for kubectl. Kubeconfigs call this as a credential plug-in.
    ///
    /// Prints nothing but an ExecCredential (client.authentication.k8s.io/v1) to stdout, and what you must do to stderr. Tokens are
    /// kept in the directory berth/tokens of your cache (XDG_CACHE_HOME, or ~/.cache), and refreshed until the issuer asks you to
    /// sign in again. Remove the directory to sign out.
    #[command(
        after_help = "Examples:\n  berth token oidc --issuer https://id.example.com --client-id berth\n  berth token oidc --issuer https://id.example.com --client-id berth --print-user"
    )]
    Oidc(OidcArguments),
    /// Print a kubeconfig with a token of a ServiceAccount in a tenant, for machines.
    ///
    /// Uses the kubeconfig of the tenant in --kubeconfig or KUBECONFIG, and its current context or that of --context. Delete the ServiceAccount to revoke its tokens.
    #[command(after_help = "Example:\n  berth token service-account ci/deploy --ttl 1h --output-file deploy.yaml")]
    ServiceAccount(ServiceAccountArguments),
}

/// How to sign in.
#[derive(Debug, Default, Args)]
pub(crate) struct OidcArguments {
    /// URL of the issuer.
    #[arg(long, value_name = "URL")]
    issuer: String,
    /// ID of the client at the issuer.
    #[arg(long, value_name = "ID")]
    client_id: String,
    /// Scope to request besides openid, and offline_access where the issuer has it. Repeat for several.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// How to sign in. [default: browser where there is a display, else device]
    #[arg(long, value_enum)]
    flow: Option<Flow>,
    /// To where the browser returns, as it is registered at the issuer: http://127.0.0.1 or http://localhost, a port and a path. Without
    /// a port, a free one is taken. [default: http://127.0.0.1/callback]
    #[arg(long, value_name = "URL")]
    redirect_url: Option<LoopbackUrl>,
    /// Certificates (PEM) of the authorities that the issuer is verified with. [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The same in base64, as kubeconfigs have it that `berth kubeconfig` prints.
    #[arg(long, value_name = "BASE64", conflicts_with = "ca_file")]
    ca_data: Option<String>,
    /// File with the secret of the client, for issuers that have no public clients.
    #[arg(long, value_name = "FILE")]
    client_secret_file: Option<PathBuf>,
    /// Print the user of a kubeconfig that signs in like this, as JSON, and do nothing else.
    #[arg(long)]
    print_user: bool,
}

/// A way to sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flow {
    /// In a browser on this machine (authorization code with PKCE).
    Browser,
    /// With a code that you enter in a browser anywhere (RFC 8628).
    Device,
}

impl Flow {
    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Device => "device",
        }
    }
}

pub(crate) async fn run(host: &HostArguments, command: TokenCommand) -> Result<ExitCode, Error> {
    match command {
        TokenCommand::Oidc(arguments) if arguments.print_user => {
            let user = exec_user(&arguments.sign_in()?);
            let text = serde_json::to_string_pretty(&user).map_err(|error| Error::Output(error.to_string()))?;
            print_line(format_args!("{text}"))?;
        }
        TokenCommand::Oidc(arguments) => {
            let tokens = get_tokens(&arguments).await?;
            let credential = exec::credential(&tokens.id_token, claims::read(&tokens.id_token)?.exp);
            print_line(format_args!("{credential}"))?;
        }
        TokenCommand::ServiceAccount(arguments) => service_account::run(host, &arguments).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl OidcArguments {
    /// How a kubeconfig signs in as these arguments do. It is used from any directory, so paths are absolute.
    fn sign_in(&self) -> Result<SignIn<'_>, Error> {
        let absolute = |path: &Option<PathBuf>| {
            let absolute = path.as_ref().map(std::path::absolute).transpose();
            absolute.map_err(|error| Error::SignIn(format!("cannot find the current directory: {error}")))
        };
        Ok(SignIn {
            issuer: &self.issuer,
            client_id: &self.client_id,
            scopes: &self.scopes,
            flow: self.flow,
            redirect_url: self.redirect_url.as_ref().map(ToString::to_string),
            ca_file: absolute(&self.ca_file)?,
            ca_data: self.ca_data.clone(),
            client_secret_file: absolute(&self.client_secret_file)?,
        })
    }
}

/// Tokens that are valid: from the cache, refreshed, or new ones.
async fn get_tokens(arguments: &OidcArguments) -> Result<Tokens, SignInError> {
    let cache = Cache::open(arguments)?;
    let is_fresh = |tokens: &Tokens| {
        let claims = claims::read(&tokens.id_token);
        claims.is_ok_and(|claims| claims.exp > Timestamp::now().as_second() + LEEWAY)
    };
    if let Some(tokens) = cache.read().filter(is_fresh) {
        return Ok(tokens);
    }
    // Until this process ends.
    let _lock = cache.lock().await?;
    let cached = cache.read();
    if let Some(tokens) = cached.filter(is_fresh) {
        return Ok(tokens);
    }
    let provider = Provider::discover(arguments).await?;
    let refreshed = match cache.read() {
        Some(Tokens {
            id_token,
            refresh_token: Some(refresh_token),
        }) => {
            let subject = claims::read(&id_token).ok().and_then(|claims| claims.sub);
            provider.refresh(&refresh_token, subject.as_deref()).await?
        }
        _ => None,
    };
    let tokens = match refreshed {
        Some(tokens) => tokens,
        None => sign_in(&provider, arguments).await?,
    };
    if let Err(error) = cache.write(&tokens) {
        // The user has signed in, so the token is used.
        print_text(format_args!("The sign-in is not kept for later: {error}"));
    }
    Ok(tokens)
}

async fn sign_in(provider: &Provider, arguments: &OidcArguments) -> Result<Tokens, SignInError> {
    let flow = arguments
        .flow
        .unwrap_or_else(|| choose_flow(has_display(), provider.device_endpoint().is_some()));
    match flow {
        Flow::Browser => browser::sign_in(provider, arguments.redirect_url.clone().unwrap_or_default()).await,
        Flow::Device => device::sign_in(provider).await,
    }
}

/// The flow of a user who chooses none.
fn choose_flow(has_display: bool, has_device_flow: bool) -> Flow {
    if has_display || !has_device_flow {
        Flow::Browser
    } else {
        Flow::Device
    }
}

/// Whether a browser that this process starts is seen by the user.
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_remote = is_set("SSH_CONNECTION") || is_set("SSH_TTY");
    !is_remote && (cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_signs_in_as_the_arguments_say_from_any_directory() {
        let arguments = OidcArguments {
            issuer: "https://id.example.com".into(),
            client_id: "berth".into(),
            scopes: vec!["groups".into()],
            flow: Some(Flow::Browser),
            redirect_url: Some("http://localhost:8000".parse().unwrap()),
            ca_file: Some("ca.pem".into()),
            ca_data: None,
            client_secret_file: Some("/etc/secret".into()),
            print_user: true,
        };
        let user = exec_user(&arguments.sign_in().unwrap());
        let here = std::env::current_dir().unwrap();
        let expected = exec::tests::arguments_with(&[
            "--flow=browser",
            "--redirect-url=http://localhost:8000",
            &format!("--ca-file={}", here.join("ca.pem").display()),
            "--client-secret-file=/etc/secret",
        ]);
        assert_eq!(user["exec"]["args"], expected);
    }

    #[test]
    fn without_a_display_a_code_is_entered_elsewhere() {
        assert_eq!(choose_flow(true, true), Flow::Browser);
        assert_eq!(choose_flow(false, true), Flow::Device);
        assert_eq!(choose_flow(false, false), Flow::Browser);
    }
}
