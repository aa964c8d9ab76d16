//! `berth logs`: the logs of a tenant's control plane.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Mutex;

use berth_api::text::printable;
use berth_api::{TenantClass, TenantCluster};
use clap::Args;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};

use crate::completion;
use crate::error::{Error, describe, failed};
use crate::host::HostArguments;
use crate::log_lines::{API_SERVER, Content, Sorter, read_last, read_line};
use crate::output::print_note;
use crate::tenant::{self, TenantName};
use crate::wait::parse_timeout;

/// Label that names the component of a pod.
const COMPONENT: &str = "app.kubernetes.io/name";

#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Component of the control plane. [default: all]
    #[arg(short, long, value_parser = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "syncer"])]
    component: Option<String>,
    /// Print new lines as they come.
    #[arg(short, long)]
    follow: bool,
    /// Print only the events of the audit log of the API servers. Without this flag they are left out.
    #[arg(long)]
    audit: bool,
    #[command(flatten)]
    lines: LineArguments,
    /// Print the log of the container that ran before, for example the one that crashed.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
}

/// Which lines are printed, and how.
#[derive(Debug, Args)]
struct LineArguments {
    /// Print only so many of the last lines of each pod; -1 is all. With --follow, lines of an API server that are left out count as well.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(-1..), allow_negative_numbers = true)]
    tail: Option<i64>,
    /// Print only lines that are not older than this, for example 5m or 1h30m; 0s is no limit.
    #[arg(long, value_name = "DURATION", value_parser = parse_age)]
    since: Option<i64>,
    /// Print only lines since this time, for example 2026-11-30T14:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with = "since")]
    since_time: Option<Timestamp>,
    /// Print the time of the kubelet before each line.
    #[arg(long)]
    timestamps: bool,
}

/// A log: a container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    pod: String,
    container: String,
}

pub(crate) async fn run(host: &HostArguments, arguments: &LogsArguments) -> Result<ExitCode, Error> {
    let component = wanted_component(arguments.component.as_deref(), arguments.audit)?;
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    if arguments.audit
        && let Some(note) = find_missing_audit(&host.client, &name, &tenant).await
    {
        print_note(format_args!("{note}"));
    }
    let status = tenant.status.as_ref();
    let namespace = status.and_then(|status| status.control_plane_namespace.clone());
    let namespace = namespace.ok_or_else(|| Error::Failed(format!("{name} has no control plane yet")))?;
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &namespace);
    let selector = match component {
        Some(component) => format!("{COMPONENT}={component}"),
        None => COMPONENT.to_owned(),
    };
    let list = pods.list(&ListParams::default().labels(&selector)).await;
    let list = list.map_err(failed("list the pods of the control plane"))?;
    let mut sources = find_sources(&list.items);
    sources.retain(|source| !arguments.audit || source.container == API_SERVER);
    if sources.is_empty() {
        return Err(Error::NotFound(if tenant::is_asleep(&tenant) {
            format!("no pod of {name} runs, because it sleeps; `berth wake {name} --wait` wakes it")
        } else {
            format!(
                "no pod of {name} runs in {namespace}; on a local host cluster with simulated nodes control planes are processes, and \
                 `berth dev status` names their logs"
            )
        }));
    }
    let parameters = read_parameters(arguments);
    let pods: Api<Pod> = if arguments.follow {
        Api::namespaced(host.stream_client()?, &namespace)
    } else {
        pods
    };
    let content = if arguments.audit {
        Content::AuditEvents
    } else {
        Content::Messages
    };
    let lock = Mutex::new(());
    let all = sources.iter().map(|source| {
        let prefix = prefix_of(source, &sources);
        print_log(&pods, source, (&parameters, content), prefix, &lock)
    });
    let mut failures: Vec<Error> = join_all(all).await.into_iter().filter_map(Result::err).collect();
    if failures.len() == sources.len() {
        return Err(failures.swap_remove(0));
    }
    // A pod that has not started yet has no log; those of others are of use.
    for failure in failures {
        print_note(format_args!("{failure}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// What is asked of the kubelet. As with kubectl, 0 seconds and -1 lines are no limits: API servers refuse them.
fn read_parameters(arguments: &LogsArguments) -> LogParams {
    let lines = &arguments.lines;
    LogParams {
        follow: arguments.follow,
        tail_lines: lines.tail.filter(|lines| *lines >= 0),
        since_seconds: lines.since.filter(|seconds| *seconds > 0),
        since_time: lines.since_time,
        timestamps: lines.timestamps,
        previous: arguments.previous,
        ..LogParams::default()
    }
}

/// `5m`, `1h30m`: an age in whole seconds. A part of a second counts as one.
fn parse_age(text: &str) -> Result<i64, String> {
    let age = parse_timeout(text)?;
    let seconds = age.as_secs() + u64::from(age.subsec_nanos() > 0);
    i64::try_from(seconds).map_err(|_| "expected a shorter duration".into())
}

/// A time, without the part of a second: API servers read none, and the next second would leave out lines.
fn parse_moment(text: &str) -> Result<Timestamp, String> {
    let moment = text.parse::<Timestamp>();
    let moment = moment.and_then(|moment| Timestamp::from_second(moment.as_second()));
    moment.map_err(|_| "expected a time such as 2026-11-30T14:00:00Z".into())
}

/// The component whose logs are printed; none: all of them. Only API servers write audit logs.
fn wanted_component(component: Option<&str>, is_audit: bool) -> Result<Option<&str>, Error> {
    match component {
        Some(other) if is_audit && other != API_SERVER => Err(Error::Usage(format!(
            "--audit prints what {API_SERVER} logs of requests: leave out --component {other}"
        ))),
        _ if is_audit => Ok(Some(API_SERVER)),
        component => Ok(component),
    }
}

/// Why the API servers of a tenant log no requests, and what to do; none if they do, or if the user may not read the class.
async fn find_missing_audit(client: &Client, name: &TenantName, tenant: &TenantCluster) -> Option<String> {
    let status = tenant.status.as_ref();
    let class_name = status.and_then(|status| status.class_name.as_deref());
    let Some(class_name) = class_name.or(tenant.spec.class_name.as_deref()) else {
        return Some(format!(
            "{name} has no TenantClass, and without one API servers log no requests; name a class that has spec.audit"
        ));
    };
    let classes: Api<TenantClass> = Api::all(client.clone());
    let class = classes.get_opt(class_name).await.ok().flatten()?;
    describe_missing_audit(name, &class)
}

/// The same for the class of a tenant. What the class said before may be in the logs of API servers that are still to be replaced.
fn describe_missing_audit(name: &TenantName, class: &TenantClass) -> Option<String> {
    let class_name = class.name_any();
    class.spec.audit.is_none().then(|| {
        format!(
            "the TenantClass {class_name} of {name} has no audit log, so API servers log no requests; the platform can set spec.audit: `kubectl \
             patch tenantclass {class_name} --type=merge -p '{{\"spec\":{{\"audit\":{{\"preset\":\"Writes\"}}}}}}'` replaces the API servers of all \
             its tenants"
        )
    })
}

/// The number of last lines that are kept here, because the kubelet would count others of the API server as well; none: it is asked for them.
fn lines_kept_here(source: &Source, parameters: &LogParams) -> Option<usize> {
    let lines = parameters.tail_lines?;
    let is_kept = source.container == API_SERVER && !parameters.follow;
    is_kept.then(|| usize::try_from(lines).unwrap_or(usize::MAX))
}

/// Every container of every pod.
fn find_sources(pods: &[Pod]) -> Vec<Source> {
    let containers = pods.iter().flat_map(|pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers.map(|container| Source {
            pod: pod.name_any(),
            container: container.name.clone(),
        })
    });
    containers.collect()
}

/// What stands before the lines of a log: nothing if it is the only one, and the container only where the pod has several.
fn prefix_of(source: &Source, all: &[Source]) -> String {
    let Source { pod, container } = source;
    let of_pod = all.iter().filter(|other| other.pod == *pod).count();
    match (all.len(), of_pod) {
        (1, _) => String::new(),
        (_, 1) => format!("[{pod}] "),
        _ => format!("[{pod}/{container}] "),
    }
}

async fn print_log(
    pods: &Api<Pod>,
    source: &Source,
    (parameters, content): (&LogParams, Content),
    prefix: String,
    lock: &Mutex<()>,
) -> Result<(), Error> {
    let Source { pod, container } = source;
    let failed = |error: &dyn std::fmt::Display| {
        Error::Failed(format!(
            "cannot read the log of container {container} of {pod}: {error}"
        ))
    };
    let kept = lines_kept_here(source, parameters);
    let parameters = LogParams {
        container: Some(container.clone()),
        tail_lines: parameters.tail_lines.filter(|_| kept.is_none()),
        ..parameters.clone()
    };
    let stream = pods.log_stream(pod, &parameters).await;
    let mut reader = stream.map_err(|error| failed(&describe(&error)))?;
    // A reader that has closed the pipe (`| head`) is no error.
    let print = |line: &[u8]| {
        let _guard = lock.lock();
        writeln!(io::stdout(), "{prefix}{}", text_of(line)).is_ok()
    };
    let mut sorter = Sorter::new(content).with_timestamps(parameters.timestamps);
    if let Some(lines) = kept {
        let last = read_last(&mut reader, sorter, lines, usize::MAX).await;
        let last = last.map_err(|error| failed(&error))?;
        for line in &last.lines {
            if !print(line) {
                break;
            }
        }
        return Ok(());
    }
    let mut line = Vec::new();
    while read_line(&mut reader, &mut line)
        .await
        .map_err(|error| failed(&error))?
    {
        let is_wanted = *container != *API_SERVER || sorter.wants(&line);
        if is_wanted && !print(&line) {
            return Ok(());
        }
    }
    Ok(())
}

/// A line as it is printed: programs of the control plane log what servers and webhooks of the tenant answer.
fn text_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    printable(text.trim_end_matches(['\n', '\r']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use serde_json::json;

    #[tokio::test]
    async fn lines_do_nothing_to_the_terminal_and_are_read_in_parts() {
        let mut log = b"failed calling webhook: \x1b[2J\x9b\xff\tno\r\n\n".to_vec();
        log.resize(log.len() + 1_500_000, b'x');
        let mut reader = log.as_slice();
        let mut line = Vec::new();
        let mut lines = Vec::new();
        while read_line(&mut reader, &mut line).await.unwrap() {
            lines.push(text_of(&line));
        }
        let replaced = '\u{fffd}';
        let first = format!("failed calling webhook: {replaced}[2J{replaced}{replaced}\tno");
        assert_eq!(lines[..2], [first, String::new()]);
        let lengths: Vec<usize> = lines[2..].iter().map(String::len).collect();
        assert_eq!(lengths, [1 << 20, 1_500_000 - (1 << 20)]);
    }

    #[test]
    fn an_age_is_in_whole_seconds() {
        assert_eq!(parse_age("5m"), Ok(300));
        assert_eq!(parse_age("1h30m"), Ok(5400));
        assert_eq!(parse_age("1500ms"), Ok(2));
        assert!(parse_age("-5m").is_err() && parse_age("5").is_err());
    }

    #[test]
    fn what_is_no_limit_for_kubectl_is_none() {
        let parameters = |line: &str| {
            let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
            let crate::args::Command::Logs(arguments) = arguments.command else {
                panic!("not logs")
            };
            let LogParams {
                tail_lines,
                since_seconds,
                since_time,
                ..
            } = read_parameters(&arguments);
            (tail_lines, since_seconds, since_time.map(|time| time.to_string()))
        };
        assert_eq!(parameters("berth logs a --since 0s --tail -1"), (None, None, None));
        assert_eq!(parameters("berth logs a --since 0 --tail=-1"), (None, None, None));
        assert_eq!(
            parameters("berth logs a --since 5m --tail 0"),
            (Some(0), Some(300), None)
        );
        for time in [
            "2026-11-30T14:00:00Z",
            "2026-11-30T14:00:00.7Z",
            "2026-11-30T15:00:00+01:00",
        ] {
            let since = parameters(&format!("berth logs a --since-time {time}"));
            assert_eq!(since, (None, None, Some("2026-11-30T14:00:00Z".into())));
        }
    }

    #[test]
    fn an_audit_log_is_only_that_of_api_servers() {
        assert_eq!(wanted_component(None, false).unwrap(), None);
        assert_eq!(wanted_component(Some("coredns"), false).unwrap(), Some("coredns"));
        for component in [None, Some("kube-apiserver")] {
            assert_eq!(wanted_component(component, true).unwrap(), Some("kube-apiserver"));
        }
        let wrong = wanted_component(Some("coredns"), true);
        assert!(matches!(wrong, Err(Error::Usage(_))), "{wrong:?}");
    }

    #[test]
    fn without_an_audit_log_people_learn_what_to_set() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let describe = |spec: serde_json::Value| {
            let class: TenantClass = serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "gold"}, "spec": spec,
            }))
            .unwrap();
            describe_missing_audit(&name, &class)
        };
        let text = describe(json!({})).unwrap();
        assert!(
            text.starts_with("the TenantClass gold of team/vision has no audit log")
                && text.contains(
                    r#"kubectl patch tenantclass gold --type=merge -p '{"spec":{"audit":{"preset":"Writes"}}}'"#
                ),
            "{text}"
        );
        assert_eq!(describe(json!({"audit": {"preset": "Writes"}})), None);
    }

    #[test]
    fn last_lines_of_an_api_server_are_counted_without_those_that_are_left_out() {
        let kept = |container: &str, tail_lines: Option<i64>, follow: bool| {
            let source = Source {
                pod: "pod".into(),
                container: container.into(),
            };
            let parameters = LogParams {
                follow,
                tail_lines,
                ..LogParams::default()
            };
            lines_kept_here(&source, &parameters)
        };
        assert_eq!(kept("kube-apiserver", Some(100), false), Some(100));
        assert_eq!(kept("kube-apiserver", Some(0), false), Some(0));
        assert_eq!(kept("kube-apiserver", None, false), None);
        assert_eq!(kept("kube-apiserver", Some(100), true), None);
        assert_eq!(kept("coredns", Some(100), false), None);
    }

    #[test]
    fn every_container_has_a_log_and_as_short_a_prefix_as_is_clear() {
        let pod = |name: &str, containers: &[&str]| -> Pod {
            let containers: Vec<_> = containers.iter().map(|name| json!({ "name": name })).collect();
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"containers": containers}})).unwrap()
        };
        let prefixes = |pods: &[Pod]| -> Vec<String> {
            let sources = find_sources(pods);
            sources.iter().map(|source| prefix_of(source, &sources)).collect()
        };
        assert_eq!(prefixes(&[pod("a", &["x"])]), [""]);
        assert_eq!(prefixes(&[pod("a", &["x"]), pod("b", &["x"])]), ["[a] ", "[b] "]);
        assert_eq!(
            prefixes(&[pod("a", &["x", "y"]), pod("b", &["x"])]),
            ["[a/x] ", "[a/y] ", "[b] "]
        );
        assert!(find_sources(&[]).is_empty());
    }
}
