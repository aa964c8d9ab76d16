//! Kubeconfigs for machines: with a token of a ServiceAccount in the tenant, whose lifetime its API server enforces.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::KubeDuration;
use berth_runtime::client;
use clap::Args;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::error::{Error, describe};
use crate::host::{HostArguments, limited};
use crate::output::print_text;
use crate::user_config::cluster::Cluster;
use crate::user_config::document;
use crate::user_config::file::print_or_write;

/// Shortest lifetime in seconds that API servers give.
const SHORTEST: i64 = 600;

/// The ServiceAccount and how long its token is valid.
#[derive(Debug, Args)]
pub(crate) struct ServiceAccountArguments {
    /// Namespace and name of the ServiceAccount in the tenant.
    #[arg(value_name = "NAMESPACE/NAME")]
    account: String,
    /// How long the token is valid: at least 10m. The API server may shorten it.
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = parse_ttl)]
    ttl: i64,
    /// Write it to this file, which only you can read, in place of stdout.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
}

pub(super) async fn run(host: &HostArguments, arguments: &ServiceAccountArguments) -> Result<(), Error> {
    // Before anything is read, so that wrong arguments are reported first.
    let account = read_account(&arguments.account)?;
    let text = expiring_kubeconfig(host.read_for_tenant()?, account, arguments.ttl).await?;
    print_or_write(&text, arguments.output_file.as_deref(), &arguments.account)
}

/// Namespace and name of a ServiceAccount, from `NAMESPACE/NAME`.
pub(crate) fn read_account(text: &str) -> Result<(&str, &str), Error> {
    let parts = text.split_once('/');
    let parts = parts.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
    parts.ok_or_else(|| Error::Usage(format!("{text:?} is not NAMESPACE/NAME of a ServiceAccount")))
}

/// Requests a token of a ServiceAccount with the credentials of `kubeconfig`, that is valid for so many `seconds`, and returns a kubeconfig with it. Secret.
/// Says on stderr until when it is valid.
///
/// # Errors
/// The kubeconfig cannot be used, or the API server gives no token.
pub(crate) async fn expiring_kubeconfig(
    kubeconfig: Kubeconfig,
    (namespace, name): (&str, &str),
    seconds: i64,
) -> Result<String, Error> {
    let unusable = |error: &dyn std::fmt::Display| Error::SignIn(format!("cannot use the kubeconfig: {error}"));
    let cluster = find_cluster(&kubeconfig).map_err(Error::SignIn)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let config = limited(config.map_err(|error| unusable(&error))?);
    let client = client::for_person_in_tenant(config).map_err(|error| unusable(&error))?;
    let value = service_account_kubeconfig(&client, &cluster, namespace, name, seconds).await?;
    document::render(&value).map_err(Error::Output)
}

/// `1h`, `12h30m`: the lifetime of a token, in seconds.
pub(crate) fn parse_ttl(text: &str) -> Result<i64, String> {
    let seconds = KubeDuration::from(text).seconds();
    if seconds < SHORTEST {
        return Err("expected at least 10m, for example 1h or 12h30m".into());
    }
    Ok(seconds)
}

/// Requests a token of a ServiceAccount that is valid for so many `seconds`, and returns a kubeconfig with it. Secret.
async fn service_account_kubeconfig(
    tenant: &Client,
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    seconds: i64,
) -> Result<Value, Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(tenant.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(seconds),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await;
    let answer = answer.map_err(|error| {
        Error::SignIn(format!(
            "cannot get a token of the ServiceAccount: {}",
            describe(&error)
        ))
    })?;
    let status = answer.status.unwrap_or_default();
    let token = status.token.filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| Error::SignIn(format!("the API server gave no token for {namespace}/{name}")))?;
    if let Some(expires) = status.expiration_timestamp {
        // The API server may have shortened it.
        print_text(format_args!(
            "The token of {namespace}/{name} is valid until {}.",
            expires.0
        ));
    }
    Ok(kubeconfig(cluster, namespace, name, &token))
}

fn kubeconfig(cluster: &Cluster, namespace: &str, account: &str, token: &str) -> Value {
    let user = json!({ "token": token });
    cluster.kubeconfig(&format!("{namespace}-{account}"), &user, Some(namespace))
}

/// The cluster of the current context.
fn find_cluster(kubeconfig: &Kubeconfig) -> Result<Cluster, String> {
    let name = kubeconfig.current_context.clone().unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|context| context.name == name);
    let context = context.and_then(|context| context.context.as_ref());
    let context = context.ok_or("the kubeconfig has no current context; set one with kubectl config use-context")?;
    let found = kubeconfig.clusters.iter().find(|one| one.name == context.cluster);
    let found = found.and_then(|one| one.cluster.as_ref());
    let found = found.ok_or_else(|| format!("the kubeconfig has no cluster {:?}", context.cluster))?;
    let from_file = found.certificate_authority.as_ref().map(|path| {
        let read = fs::read(path).map_err(|error| format!("cannot read {path}: {error}"));
        read.map(|pem| STANDARD.encode(pem))
    });
    Ok(Cluster {
        name,
        server: found.server.clone().unwrap_or_default(),
        ca_data: match &found.certificate_authority_data {
            Some(data) => Some(data.clone()),
            None => from_file.transpose()?,
        },
        tls_name: found.tls_server_name.clone(),
        proxy: found.proxy_url.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    #[test]
    fn lifetimes_are_those_that_api_servers_give() {
        assert_eq!(parse_ttl("1h30m"), Ok(5400));
        for bad in ["", "9m", "x", "-1h"] {
            assert!(parse_ttl(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_need_not_go_through_a_shell_into_a_file_that_others_read() {
        use clap::Parser as _;
        let line = "berth token service-account ci/deploy --output-file deploy.yaml";
        let arguments = crate::args::Arguments::try_parse_from(line.split(' '));
        assert!(arguments.is_ok());
    }

    #[test]
    fn an_account_has_a_namespace_and_a_name() {
        assert_eq!(read_account("ci/deploy").unwrap(), ("ci", "deploy"));
        for bad in ["", "deploy", "/deploy", "ci/", "ci/deploy/token", "ci//x"] {
            assert!(matches!(read_account(bad), Err(Error::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn the_kubeconfig_has_the_token_and_no_other_credential() {
        let read = Kubeconfig::from_yaml(
            "apiVersion: v1\nkind: Config\ncurrent-context: vision\ncontexts: [{name: vision, context: {cluster: c, user: admin}}]\n\
             clusters: [{name: c, cluster: {server: 'https://a', certificate-authority-data: Y2E=, tls-server-name: b, proxy-url: 'http://p'}}]\n\
             users: [{name: admin, user: {client-key-data: a2V5}}]\n",
        )
        .unwrap();
        let cluster = find_cluster(&read).unwrap();
        assert_eq!(cluster.ca_data.as_deref(), Some("Y2E="));
        let value = kubeconfig(&cluster, "ci", "deploy", "t");
        assert_eq!(value["users"], json!([{"name": "ci-deploy", "user": {"token": "t"}}]));
        // How the server is reached and verified is the same.
        let expected = json!({
            "server": "https://a", "certificate-authority-data": "Y2E=", "tls-server-name": "b", "proxy-url": "http://p",
        });
        assert_eq!(value["clusters"][0]["cluster"], expected);
        assert!(!value.to_string().contains("a2V5"));
        let again = Kubeconfig::from_yaml(&value.to_string()).unwrap();
        assert_eq!(again.current_context.as_deref(), Some("vision"));
    }

    /// Who can change the kubeconfig of a tenant can lead it to a server that fills the memory of this machine.
    #[tokio::test]
    async fn an_answer_without_end_is_not_read_to_its_end() {
        berth_runtime::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
            let _ = stream.write_all(head).await;
            let part = vec![b' '; 1 << 16];
            // The client hangs up before all of them are sent.
            for _ in 0..1024 {
                if stream.write_all(&part).await.is_err() {
                    break;
                }
            }
        });
        let kubeconfig = Kubeconfig::from_yaml(&format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: a, user: {{token: t}}}}]\n"
        ));
        let asked = expiring_kubeconfig(kubeconfig.unwrap(), ("ci", "deploy"), 3600);
        let answer = tokio::time::timeout(Duration::from_mins(1), asked).await;
        let error = answer.expect("reading ends").unwrap_err().to_string();
        assert!(error.contains("length limit exceeded"), "{error}");
    }

    #[test]
    fn a_kubeconfig_without_a_context_is_reported() {
        assert!(
            find_cluster(&Kubeconfig::default())
                .unwrap_err()
                .contains("use-context")
        );
    }
}
