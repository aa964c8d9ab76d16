//! `berth logs`: the logs of a tenant's control plane.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Mutex;

use clap::Args;
use futures::future::join_all;
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, LogParams};

use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::tenant;

/// Label that names the component of a pod.
const COMPONENT: &str = "app.kubernetes.io/name";

#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    name: String,
    /// Component of the control plane. [default: all]
    #[arg(long, value_parser = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "syncer"])]
    component: Option<String>,
    /// Print new lines as they come.
    #[arg(short, long)]
    follow: bool,
    /// Print only so many of the last lines of each pod.
    #[arg(long, value_name = "LINES")]
    tail: Option<i64>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &LogsArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let status = tenant.status.as_ref();
    let namespace = status.and_then(|status| status.control_plane_namespace.clone());
    let namespace = namespace.ok_or_else(|| Error::Failed(format!("{name} has no control plane yet")))?;
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &namespace);
    let selector = match &arguments.component {
        Some(component) => format!("{COMPONENT}={component}"),
        None => COMPONENT.to_owned(),
    };
    let list = pods.list(&ListParams::default().labels(&selector)).await;
    let names: Vec<String> = list
        .map_err(failed("list the pods of the control plane"))?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    if names.is_empty() {
        return Err(Error::NotFound(format!(
            "no pod of {name} runs in {namespace}; on a local host cluster with simulated nodes control planes are processes, and \
             `berth dev status` names their logs"
        )));
    }
    let parameters = LogParams {
        follow: arguments.follow,
        tail_lines: arguments.tail,
        ..LogParams::default()
    };
    // One pod needs no names before its lines.
    let has_prefix = names.len() > 1;
    let lock = Mutex::new(());
    let all = names.iter().map(|pod| {
        let prefix = if has_prefix { format!("[{pod}] ") } else { String::new() };
        print_log(&pods, pod, &parameters, prefix, &lock)
    });
    let failures: Vec<Error> = join_all(all).await.into_iter().filter_map(Result::err).collect();
    let (is_total, first) = (failures.len() == names.len(), failures.into_iter().next());
    match first {
        Some(error) if is_total => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

async fn print_log(
    pods: &Api<Pod>,
    pod: &str,
    parameters: &LogParams,
    prefix: String,
    lock: &Mutex<()>,
) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("cannot read the log of {pod}: {error}"));
    let stream = pods.log_stream(pod, parameters).await;
    let stream = stream.map_err(|error| {
        // A pod that has not started yet has no log; those of others are of use.
        eprintln!("· {pod} has no log: {error}");
        failed(&error)
    })?;
    let mut lines = stream.lines();
    while let Some(line) = lines.try_next().await.map_err(|error| failed(&error))? {
        let _guard = lock.lock();
        if writeln!(io::stdout(), "{prefix}{line}").is_err() {
            return Ok(());
        }
    }
    Ok(())
}
