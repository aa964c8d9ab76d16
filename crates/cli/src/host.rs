//! Which host cluster a command talks to. Every command that needs it asks here.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_local::{Home, read_kubeconfig};
use berth_runtime::{answers, client};
use clap::Args;
use jiff::Timestamp;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::response::reason;
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;

use crate::completion;
use crate::error::{Error, describe};
use crate::user_config::document;
use crate::user_config::file::user_paths;
use crate::user_config::read::{check_context, read_file, read_merged};
use crate::wait::parse_timeout;

/// Time to establish a connection to the host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that an answer may stand still: an API server that accepts a connection and then says nothing would hold a command forever.
/// `--request-timeout` changes it for the host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags that name the host cluster and a namespace in it. All commands take them, at any place.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct HostArguments {
    /// Kubeconfig of the host cluster. [default: the local host cluster unless KUBECONFIG is set, else as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the host cluster in the kubeconfig. [default: the current context, or the one before `berth connect`]
    #[arg(long, global = true, value_name = "NAME", add = completion::context_names())]
    pub(crate) context: Option<String>,
    /// Namespace of the TenantCluster. [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAMESPACE", add = completion::namespace_names())]
    pub(crate) namespace: Option<String>,
    /// Directory with the state of the local host cluster.
    #[arg(
        long,
        global = true,
        env = "BERTH_HOME",
        default_value = ".berth",
        value_name = "DIR"
    )]
    pub(crate) home: PathBuf,
    /// How long the host cluster may be silent before a request fails, for example 2m. 0 is forever. Does not limit what is followed or watched.
    #[arg(long, global = true, default_value = "30s", value_parser = parse_request_timeout, value_name = "DURATION")]
    pub(crate) request_timeout: Duration,
}

/// Where the credentials of the host cluster are.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// This kubeconfig.
    File(PathBuf),
    /// That of the local host cluster with this home.
    Local(Home),
    /// The files in KUBECONFIG, or the one in the home directory; in a pod the service account.
    Default,
}

/// A connection to the host cluster.
pub(crate) struct Host {
    pub(crate) client: Client,
    /// The namespace of the command: `--namespace`, or that of the context.
    pub(crate) namespace: String,
    /// Whether `--namespace` gives it.
    pub(crate) is_namespace_given: bool,
    /// How the host is reached, without a limit for answers.
    config: Config,
}

impl Host {
    /// A connection for streams, in which nothing may come for hours: logs that are followed and forwarded ports.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub(crate) fn stream_client(&self) -> Result<Client, Error> {
        Client::try_from(self.config.clone()).map_err(|error| unusable(&error))
    }

    /// The time by the clock of the host, or by that of this machine if the host does not say it. Control compares times of requests with
    /// its own.
    pub(crate) async fn now(&self) -> Timestamp {
        let Ok(request) = http::Request::get("/version").body(Body::empty()) else {
            return Timestamp::now();
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.client.send(request)).await;
        let time = answer
            .ok()
            .and_then(Result::ok)
            .and_then(|answer| answers::read_time(&answer));
        time.unwrap_or_else(Timestamp::now)
    }
}

impl HostArguments {
    /// Connects to the host cluster. No request is made yet.
    pub(crate) async fn connect(&self) -> Result<Host, Error> {
        let local = Home::new(&self.home);
        let local = local.exists().then_some(local);
        let is_set = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
        let source = choose(self.kubeconfig.as_deref(), self.context.is_some(), is_set, local);
        let mut config = self.read(&source).await?;
        limit_connecting(&mut config, self.request_timeout);
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = client::reading_all(with_answer_timeout(config.clone(), self.request_timeout));
        Ok(Host {
            client: client.map_err(|error| unusable(&error))?,
            namespace,
            is_namespace_given: self.namespace.is_some(),
            config,
        })
    }

    /// The kubeconfig of `--kubeconfig`, or else that of the user, with the context of `--context` as the current one: for commands that use the
    /// kubeconfig of a tenant.
    ///
    /// # Errors
    /// There is no such kubeconfig or context.
    pub(crate) fn read_for_tenant(&self) -> Result<Kubeconfig, Error> {
        let read = match &self.kubeconfig {
            Some(path) => read_file(path),
            None => read_merged(&user_paths()),
        };
        let read = read.map_err(|error| Error::Failed(format!("cannot use the kubeconfig of the tenant: {error}")));
        let mut kubeconfig = read?;
        if let Some(name) = &self.context {
            check_context(&kubeconfig, name)?;
            kubeconfig.current_context = Some(name.clone());
        }
        Ok(kubeconfig)
    }

    async fn read(&self, source: &Source) -> Result<Config, Error> {
        let kubeconfig = match source {
            Source::File(path) => read_file(path).map_err(|error| unusable(&error))?,
            // Nobody has named it: it is in the directory in which the command runs, whoever made that.
            Source::Local(home) => {
                home.check_private()?;
                read_kubeconfig(&home.admin_kubeconfig())?
            }
            Source::Default => match read_merged(&user_paths()) {
                Ok(kubeconfig) => kubeconfig,
                Err(error) => {
                    let in_cluster = Config::incluster().ok().filter(|_| self.context.is_none());
                    return in_cluster.ok_or_else(|| unusable(&error));
                }
            },
        };
        let context = if self.context.is_some() {
            self.context.clone()
        } else {
            let document = serde_json::to_value(&kubeconfig).map_err(|error| unusable(&error))?;
            let context = document::host_context(&document).map_err(Error::Usage)?;
            context.map(str::to_owned)
        };
        if let Some(name) = &context {
            check_context(&kubeconfig, name)?;
        }
        let options = KubeConfigOptions {
            context,
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        config.map_err(|error| unusable(&error))
    }
}

/// Reads an object; none if there is none of this name.
///
/// # Errors
/// The API server refuses or does not answer, or it does not know the kind: that says nothing of the name. [`Api::get_opt`] takes it for an object that
/// does not exist.
pub(crate) async fn find_object<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    match api.get(name).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.reason == reason::NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

/// An answer of the host, or why there is none within `limit`.
pub(crate) async fn answer_within<T>(
    limit: Duration,
    read: impl Future<Output = kube::Result<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, read).await {
        Ok(answer) => answer.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

/// A configuration whose requests end, also if nobody answers them. For all but streams.
pub(crate) fn limited(mut config: Config) -> Config {
    limit_connecting(&mut config, ANSWER_TIMEOUT);
    with_answer_timeout(config, ANSWER_TIMEOUT)
}

/// Nobody waits longer for a connection than for an answer, which `timeout` limits; zero is no limit.
fn limit_connecting(config: &mut Config, timeout: Duration) {
    let is_shorter = !timeout.is_zero() && timeout < CONNECT_TIMEOUT;
    config.connect_timeout = Some(if is_shorter { timeout } else { CONNECT_TIMEOUT });
    // What fails is said at once: the built-in retry takes minutes.
    config.default_retry = false;
}

/// The same, with a limit for how long an answer may stand still; zero is no limit. The time counts from the request: connections are used again.
fn with_answer_timeout(mut config: Config, timeout: Duration) -> Config {
    config.read_timeout = (!timeout.is_zero()).then_some(timeout);
    config.reset_reader_on_write = true;
    config
}

/// `--kubeconfig`; else what kubectl would use if somebody chose it by `--context` or KUBECONFIG; else the local host cluster if
/// there is one.
fn choose(kubeconfig: Option<&Path>, has_context: bool, is_set: bool, local: Option<Home>) -> Source {
    match (kubeconfig, local) {
        (Some(path), _) => Source::File(path.to_owned()),
        (None, Some(local)) if !has_context && !is_set => Source::Local(local),
        _ => Source::Default,
    }
}

/// `30s`, as other durations, or a number of seconds, as kubectl takes it.
fn parse_request_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().map(u64::from);
    seconds.map_or_else(|_| parse_timeout(text), |seconds| Ok(Duration::from_secs(seconds)))
}

fn unusable(error: &dyn std::fmt::Display) -> Error {
    Error::Failed(format!(
        "cannot find the host cluster: {error}; name its kubeconfig with --kubeconfig, or start a local one with `berth dev up`"
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::failed;
    use berth_api::TenantCluster;
    use serde_json::{Value, json};
    use std::os::unix::fs::PermissionsExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A host with this client, in a command without `--namespace`.
    pub(crate) fn host_of(client: Client, namespace: &str) -> Host {
        Host {
            client,
            namespace: namespace.into(),
            is_namespace_given: false,
            config: Config::new("http://127.0.0.1:1".parse().unwrap()),
        }
    }

    /// An API server that accepts connections and answers nothing.
    #[tokio::test]
    async fn a_host_that_does_not_answer_ends_the_command() {
        berth_runtime::install_crypto();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
            }
        });
        let mut config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        config.default_retry = false;
        let client = Client::try_from(with_answer_timeout(config, Duration::from_millis(50))).unwrap();
        let error = client.apiserver_version().await.unwrap_err();
        assert!(matches!(failed("ask")(error), Error::Unanswered(_)));
        server.abort();
    }

    #[tokio::test]
    async fn what_is_not_answered_in_time_is_not_waited_for() {
        let silent = std::future::pending::<kube::Result<()>>();
        let answer = answer_within(Duration::from_millis(10), silent).await;
        assert_eq!(answer, Err("no answer within 0 s".into()));
        let answer = answer_within(ANSWER_TIMEOUT, std::future::ready(Ok(1))).await;
        assert_eq!(answer, Ok(1));
    }

    /// A host whose API server refuses every request, with these headers.
    async fn host_that_answers(headers: &'static str) -> Host {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let answer =
                    format!("HTTP/1.1 403 Forbidden\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        Host {
            client: Client::try_from(config.clone()).unwrap(),
            namespace: "default".into(),
            is_namespace_given: false,
            config,
        }
    }

    /// Without its definitions Berth is not installed there, and a name is not wrong.
    #[tokio::test]
    async fn a_kind_that_the_host_does_not_have_is_no_object_that_does_not_exist() {
        let read = async |body: Value| {
            let text = body.as_str().map_or_else(|| body.to_string(), ToOwned::to_owned);
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let mut answer = http::Response::new(Body::from(text.clone().into_bytes()));
                *answer.status_mut() = http::StatusCode::NOT_FOUND;
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            let tenants: Api<TenantCluster> = Api::namespaced(Client::new(service, "default"), "team");
            find_object(&tenants, "vision").await.map_err(failed("get the tenant"))
        };
        let error = read("404 page not found\n".into()).await.unwrap_err();
        assert!(
            error.exit_code() == 1 && error.to_string().contains("`berth doctor`"),
            "{error}"
        );
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        assert!(read(status).await.unwrap().is_none());
    }

    /// The clock of this machine may be wrong; a request that is made with it would not count.
    #[tokio::test]
    async fn the_time_is_that_of_the_host() {
        berth_runtime::install_crypto();
        let host = host_that_answers("date: Tue, 05 May 2026 12:00:00 GMT\r\n").await;
        assert_eq!(host.now().await.to_string(), "2026-05-05T12:00:00Z");
        let before = Timestamp::now();
        for silent in ["", "date: soon\r\n"] {
            assert!(host_that_answers(silent).await.now().await >= before);
        }
    }

    #[test]
    fn zero_is_no_limit_for_answers_and_a_short_limit_counts_for_connections() {
        let limits = |text: &str| {
            let timeout = parse_request_timeout(text).unwrap();
            let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
            limit_connecting(&mut config, timeout);
            let config = with_answer_timeout(config, timeout);
            (config.connect_timeout, config.read_timeout)
        };
        let seconds = |number| Some(Duration::from_secs(number));
        assert_eq!(limits("0"), (seconds(10), None));
        assert_eq!(limits("0s"), (seconds(10), None));
        assert_eq!(limits("2m"), (seconds(10), seconds(120)));
        assert_eq!(limits("2s"), (seconds(2), seconds(2)));
        assert_eq!(limits("30"), (seconds(10), seconds(30)));
        assert!(parse_request_timeout("-1").is_err() && parse_request_timeout("soon").is_err());
    }

    /// Otherwise the credential would be for another tenant than the flags name.
    #[test]
    fn a_credential_for_a_tenant_is_got_with_the_kubeconfig_and_context_of_the_flags() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenants");
        let contexts =
            ["vision", "speech"].map(|name| json!({"name": name, "context": {"cluster": name, "user": name}}));
        std::fs::write(
            &path,
            json!({"current-context": "speech", "contexts": contexts}).to_string(),
        )
        .unwrap();
        let read = |context: Option<&str>| {
            let arguments = HostArguments {
                kubeconfig: Some(path.clone()),
                context: context.map(ToOwned::to_owned),
                namespace: None,
                home: folder.path().to_owned(),
                request_timeout: ANSWER_TIMEOUT,
            };
            arguments.read_for_tenant().map(|read| read.current_context)
        };
        assert_eq!(read(None).unwrap().as_deref(), Some("speech"));
        assert_eq!(read(Some("vision")).unwrap().as_deref(), Some("vision"));
        assert_eq!(read(Some("visoin")).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn flags_decide_before_the_environment_and_the_local_cluster() {
        let file = |path: &str| Source::File(path.into());
        let local = || Some(Home::new("local"));
        assert_eq!(choose(Some(Path::new("given")), true, true, local()), file("given"));
        assert_eq!(choose(None, false, false, local()), Source::Local(Home::new("local")));
        assert_eq!(choose(None, false, true, local()), Source::Default);
        assert_eq!(choose(None, true, false, local()), Source::Default);
        assert_eq!(choose(None, false, false, None), Source::Default);
    }

    /// It may be that of somebody else: in a directory into which others write, or in the copy of a repository.
    #[tokio::test]
    async fn a_home_in_the_directory_of_the_command_runs_no_command() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join(".berth"));
        home.create().unwrap();
        let read = async |user: Value| {
            let document = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "host",
                "clusters": [{"name": "host", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "host", "user": user}],
                "contexts": [{"name": "host", "context": {"cluster": "host", "user": "host"}}],
            });
            std::fs::write(home.admin_kubeconfig(), document.to_string()).unwrap();
            let arguments = HostArguments {
                kubeconfig: None,
                context: None,
                namespace: None,
                home: home.root().to_owned(),
                request_timeout: ANSWER_TIMEOUT,
            };
            let read = arguments.read(&Source::Local(home.clone())).await;
            read.map(|config| config.cluster_url.to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(read(json!({})).await.as_deref(), Ok("https://127.0.0.1:1/"));
        let command = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./evil"}});
        let error = read(command).await.unwrap_err();
        assert!(error.contains("users[].user.exec"), "{error}");
        std::fs::set_permissions(home.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = read(json!({})).await.unwrap_err();
        assert!(error.contains("chmod 700"), "{error}");
    }
}
