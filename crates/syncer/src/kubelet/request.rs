//! Requests of the tenant's API server to kubelets, and the requests to the host's API server that answer them. Only
//! what is listed here passes.
//!
//! | kubelet | host |
//! |---|---|
//! | `/containerLogs/{namespace}/{pod}/{container}` | `log`: `follow`, `previous`, `timestamps`, `tailLines`, `limitBytes`, `sinceSeconds`, `sinceTime`, `stream` |
//! | `/exec/{namespace}/{pod}/{container}` | `exec`: `input`, `output`, `error` as `stdin`, `stdout`, `stderr`; `tty`, `command` |
//! | `/attach/{namespace}/{pod}/{container}` | `attach`: the same without `command` |
//! | `/portForward/{namespace}/{pod}` | `portforward`: `port` as `ports` |

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use berth_sync_rules::model::resource::Name;

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// HTTP status code.
    pub status: StatusCode,
    /// Message for the tenant.
    pub message: String,
}

impl Denial {
    /// A denial with a status and a message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }
}

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is done with the pod.
    pub action: Action,
    /// The pod, under its name in the tenant.
    pub pod: Name,
    /// The container; none for port forwarding.
    pub container: Option<String>,
    /// The host's query.
    pub query: Vec<(&'static str, String)>,
}

/// What is done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Its log is read.
    Log,
    /// A command is run in it.
    Exec,
    /// Its streams are attached to.
    Attach,
    /// Connections are made to its ports.
    PortForward,
}

impl Action {
    /// The subresource of the pod on the host.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    /// Whether it needs a connection in both directions.
    pub fn is_stream(self) -> bool {
        self != Self::Log
    }
}

/// Reads a request.
///
/// # Errors
/// Why the request is denied.
pub fn read(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Result<Request, Denial> {
    let (action, pod, container) = read_path(path)?;
    let method_is_good = match action {
        Action::Log => method == Method::GET,
        _ => method == Method::GET || method == Method::POST,
    };
    if !method_is_good {
        let message = format!("method {method} is not allowed for {}", action.subresource());
        return Err(Denial::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    if action.is_stream() && !is_upgrade(headers) {
        let message = format!("{} needs a connection that can be upgraded", action.subresource());
        return Err(Denial::new(StatusCode::BAD_REQUEST, message));
    }
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut query = Vec::new();
    for (key, value) in pairs {
        push_query(action, &key, &value, &mut query)?;
    }
    if let Some(container) = &container {
        query.push(("container", container.clone()));
    }
    Ok(Request {
        action,
        pod,
        container,
        query,
    })
}

fn read_path(path: &str) -> Result<(Action, Name, Option<String>), Denial> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (action, namespace, pod, container) = match parts.as_slice() {
        ["containerLogs", namespace, pod, container] => (Action::Log, namespace, pod, Some(container)),
        ["exec", namespace, pod, container] => (Action::Exec, namespace, pod, Some(container)),
        ["attach", namespace, pod, container] => (Action::Attach, namespace, pod, Some(container)),
        ["portForward", namespace, pod] => (Action::PortForward, namespace, pod, None),
        _ => return Err(Denial::new(StatusCode::FORBIDDEN, not_served(&parts))),
    };
    let mut named = [Some(namespace), Some(pod), container].into_iter().flatten();
    if !named.all(|name| is_name(name)) {
        return Err(Denial::new(
            StatusCode::BAD_REQUEST,
            "the path does not name a pod and a container",
        ));
    }
    Ok((
        action,
        Name::new(namespace, pod),
        container.map(|name| (*name).to_owned()),
    ))
}

fn not_served(parts: &[&str]) -> String {
    let what = match parts.first().copied().unwrap_or_default() {
        "stats" | "metrics" => "metrics of nodes are reserved for the platform; use the metrics API (kubectl top)",
        "pods" | "runningpods" => {
            "the pod list of a node is reserved for the platform; list your pods through the API server"
        }
        "run" | "cri" => "commands are run with exec",
        "logs" | "configz" | "debug" | "checkpoint" => "the node belongs to the platform",
        _ => "only requests for pods are served: logs, exec, attach and port-forward",
    };
    format!("this is not served: {what}")
}

/// Names of Kubernetes objects; none needs escapes in a URL.
fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    (1..=253).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('.') && !text.ends_with('.')
}

fn push_query(action: Action, key: &str, value: &str, query: &mut Vec<(&'static str, String)>) -> Result<(), Denial> {
    let bad = || {
        let message = format!("{}: the parameter {key:?} cannot have this value", action.subresource());
        Denial::new(StatusCode::BAD_REQUEST, message)
    };
    let flag = || match value {
        "1" | "true" => Ok(Some("true".to_owned())),
        "" | "0" | "false" => Ok(None),
        _ => Err(bad()),
    };
    let is_number = !value.is_empty() && value.len() <= 19 && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = || {
        if is_number {
            Ok(Some(value.to_owned()))
        } else {
            Err(bad())
        }
    };
    let (name, value) = match (action, key) {
        (Action::Log, "follow") => ("follow", flag()?),
        (Action::Log, "previous") => ("previous", flag()?),
        (Action::Log, "timestamps") => ("timestamps", flag()?),
        (Action::Log, "tailLines") => ("tailLines", number()?),
        (Action::Log, "limitBytes") => ("limitBytes", number()?),
        (Action::Log, "sinceSeconds") => ("sinceSeconds", number()?),
        (Action::Log, "sinceTime") => {
            let time: jiff::Timestamp = value.parse().map_err(|_| bad())?;
            ("sinceTime", Some(time.to_string()))
        }
        (Action::Log, "stream") if matches!(value, "All" | "Stdout" | "Stderr") => ("stream", Some(value.to_owned())),
        (Action::Exec | Action::Attach, "input") => ("stdin", flag()?),
        (Action::Exec | Action::Attach, "output") => ("stdout", flag()?),
        (Action::Exec | Action::Attach, "error") => ("stderr", flag()?),
        (Action::Exec | Action::Attach, "tty") => ("tty", flag()?),
        (Action::Exec, "command") => ("command", Some(value.to_owned())),
        (Action::PortForward, "port") => {
            for port in value.split(',') {
                let port: u16 = port.parse().map_err(|_| bad())?;
                query.push(("ports", port.to_string()));
            }
            return Ok(());
        }
        _ => {
            let message = format!("{}: the parameter {key:?} is not known", action.subresource());
            return Err(Denial::new(StatusCode::BAD_REQUEST, message));
        }
    };
    query.extend(value.map(|value| (name, value)));
    Ok(())
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let names_it = |value: &HeaderValue| {
        let mut tokens = value.to_str().unwrap_or_default().split(',');
        tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
    };
    headers.contains_key(header::UPGRADE) && headers.get_all(header::CONNECTION).iter().any(names_it)
}

const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The headers of a request that are forwarded to the host: those that ask for an upgrade. The caller is never named.
pub fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let passing = [
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        STREAM_PROTOCOL,
    ];
    let mut result = copied(headers, &passing);
    if result.contains_key(header::UPGRADE) {
        result.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    // Browsers put tokens among the protocols.
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let protocols: Vec<&str> = protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| is_stream_protocol(protocol))
        .collect();
    if let Ok(value) = HeaderValue::from_str(&protocols.join(", "))
        && !protocols.is_empty()
    {
        result.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    result
}

fn is_stream_protocol(protocol: &str) -> bool {
    ["channel.k8s.io", "portforward.k8s.io"].iter().any(|known| {
        let version = protocol.strip_suffix(known);
        version.is_some_and(|version| {
            matches!(version, "" | "base64." | "v4.base64." | "SPDY/3.1+") || is_version(version)
        })
    })
}

/// `v4.` and the like.
fn is_version(text: &str) -> bool {
    let number = text.strip_prefix('v').and_then(|text| text.strip_suffix('.'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The headers of the host's response that are returned.
pub fn returned(headers: &HeaderMap) -> HeaderMap {
    copied(
        headers,
        &[
            header::CONNECTION,
            header::UPGRADE,
            header::SEC_WEBSOCKET_ACCEPT,
            header::SEC_WEBSOCKET_PROTOCOL,
            header::SEC_WEBSOCKET_EXTENSIONS,
            STREAM_PROTOCOL,
        ],
    )
}

fn copied(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let mut result = HeaderMap::new();
    for name in names {
        for value in headers.get_all(name) {
            result.append(name, value.clone());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn upgrade() -> HeaderMap {
        HeaderMap::from_iter([
            (header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade")),
            (header::UPGRADE, HeaderValue::from_static("SPDY/3.1")),
        ])
    }

    fn ask(target: &str) -> Result<Request, Denial> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        read(&Method::GET, path, Some(query), &upgrade())
    }

    fn query(target: &str) -> String {
        let request = ask(target).unwrap();
        let pairs = request.query.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join("&")
    }

    #[test]
    fn kubelet_queries_become_queries_of_the_host() {
        let logs = "/containerLogs/a/web/main?follow=true&previous=false&tailLines=5&sinceTime=2026-01-02T03:04:05Z&stream=Stderr";
        assert_eq!(
            query(logs),
            "follow=true&tailLines=5&sinceTime=2026-01-02T03:04:05Z&stream=Stderr&container=main"
        );
        assert_eq!(
            query("/exec/a/web/main?command=sh&command=-c&command=echo+1%262&input=1&output=1&tty=1"),
            "command=sh&command=-c&command=echo 1&2&stdin=true&stdout=true&tty=true&container=main"
        );
        assert_eq!(
            query("/attach/a/web/main?output=1&error=1"),
            "stdout=true&stderr=true&container=main"
        );
        assert_eq!(query("/portForward/a/web?port=80,443"), "ports=80&ports=443");
        assert_eq!(query("/portForward/a/web"), "");
    }

    #[test]
    fn only_listed_requests_pass() {
        for (target, status) in [
            ("/", 403),
            ("/pods", 403),
            ("/run/a/web/main?cmd=id", 403),
            ("/stats/summary", 403),
            ("/metrics/cadvisor", 403),
            ("/exec/a/web/uid/main?command=id", 403),
            ("/containerLogs/a/web/main/extra", 403),
            ("/containerLogs/a//main", 400),
            ("/containerLogs/../web/main", 400),
            ("/containerLogs/a/web%2F..%2Fother/main", 400),
            ("/containerLogs/a/web/main?insecureSkipTLSVerifyBackend=true", 400),
            ("/containerLogs/a/web/main?container=other", 400),
            ("/containerLogs/a/web/main?tailLines=-1", 400),
            ("/containerLogs/a/web/main?sinceTime=yesterday", 400),
            ("/containerLogs/a/web/main?stream=both", 400),
            ("/exec/a/web/main?command=id&container=other", 400),
            ("/exec/a/web/main?stdin=true", 400),
            ("/attach/a/web/main?command=id", 400),
            ("/portForward/a/web?port=70000", 400),
        ] {
            assert_eq!(ask(target).unwrap_err().status, status, "{target}");
        }
        let exec = |method| read(&method, "/exec/a/web/main", Some("command=id"), &upgrade());
        assert!(exec(Method::POST).is_ok());
        assert_eq!(exec(Method::DELETE).unwrap_err().status, 405);
        let plain = read(&Method::POST, "/exec/a/web/main", Some("command=id"), &HeaderMap::new());
        assert_eq!(plain.unwrap_err().status, 400);
        assert!(read(&Method::GET, "/containerLogs/a/web/main", None, &HeaderMap::new()).is_ok());
        let post = read(&Method::POST, "/containerLogs/a/web/main", None, &HeaderMap::new());
        assert_eq!(post.unwrap_err().status, 405);
    }

    #[test]
    fn identity_headers_are_not_forwarded() {
        let mut headers = upgrade();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("x-remote-user", "system:admin"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-scopes", "x"),
            ("impersonate-user", "admin"),
            ("cookie", "x"),
            ("forwarded", "for=x"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            (
                "sec-websocket-protocol",
                "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.abc, SPDY/3.1+portforward.k8s.io",
            ),
            (
                "sec-websocket-protocol",
                "bearer.channel.k8s.io, v4.base64.channel.k8s.io",
            ),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let mut lines: Vec<String> = forwarded(&headers)
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "connection: Upgrade",
                "sec-websocket-protocol: v5.channel.k8s.io, SPDY/3.1+portforward.k8s.io, v4.base64.channel.k8s.io",
                "upgrade: SPDY/3.1",
                "x-stream-protocol-version: v4.channel.k8s.io",
            ]
        );
    }

    proptest! {
        #[test]
        fn parsed_requests_name_one_pod_and_known_parameters(path in "/[ -~]{0,80}", query in "[ -~]{0,120}") {
            let paths = [path.clone(), format!("/exec{path}"), format!("/containerLogs/a{path}"), format!("/portForward/a{path}")];
            for path in paths {
                if let Ok(request) = read(&Method::GET, &path, Some(&query), &upgrade()) {
                    prop_assert!(is_name(&request.pod.namespace) && is_name(&request.pod.name));
                    prop_assert!(request.container.as_deref().is_none_or(is_name));
                    prop_assert!(request.query.iter().filter(|(key, _)| *key == "container").count() <= 1);
                }
            }
        }
    }
}
