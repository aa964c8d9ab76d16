//! The supervisor in the background: owns the host's processes and control.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use berth_control::install::install;
use berth_local::{ChartInstall, Datastore, Home, HostCluster, HostClusterConfig};
use berth_process::ProcessSpec;
use berth_runtime::telemetry::{self, LogFormat};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::chart;
use super::gateway::{self, GATEWAY};
use super::kubeconfigs;
use super::options::Options;
use super::probe;
use super::progress::{Progress, SupervisorLock};
use crate::error::Error;

/// Name of control among the supervised processes, and of its user on the host.
pub(crate) const CONTROL: &str = "berth-control";
/// How long control may take to get ready.
const CONTROL_TIMEOUT: Duration = Duration::from_mins(1);
/// Environment variables that control gets.
const FORWARDED: [&str; 4] = ["BERTH_KUBE_BIN_DIR", "KUBEBUILDER_ASSETS", "BERTH_CACHE", "RUST_LOG"];

/// Brings everything up, then keeps it up until SIGTERM. The supervised processes survive this one.
pub(crate) async fn run(home: &Path) -> Result<ExitCode, Error> {
    // Leaves the terminal's session: closing it, or Ctrl-C in it, must not stop this process. Fails if that is done already.
    let _ = rustix::process::setsid();
    // Probes of an API server that is starting fail many times, and the client would log each of them.
    telemetry::init_with(LogFormat::Text, "info,kube_client::client::builder=off");
    let failed = |source| Error::File {
        action: "listen for signals of",
        path: "berth".into(),
        source,
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;

    let home = Home::new(home);
    home.create()?;
    let _lock = SupervisorLock::acquire(&home).await?;
    let options = Options::load(&home)?.unwrap_or_default();
    let cluster = tokio::select! {
        up = bring_up(&home, &options) => up.inspect_err(|error| Progress::Failed(error.to_string()).write(&home))?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    Progress::Ready.write(&home);
    tracing::info!(server = cluster.server(), "up");
    let kubeconfigs = async {
        if options.real_nodes
            && let Ok(client) = cluster.client().await
        {
            kubeconfigs::write_all(&home, client).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = kubeconfigs => {}
    }
    cluster.supervisor().release();
    Ok(ExitCode::SUCCESS)
}

async fn bring_up(home: &Home, options: &Options) -> Result<HostCluster, Error> {
    let report = |step: &str| {
        tracing::info!(step);
        Progress::Starting(step.to_owned()).write(home);
    };
    let mut config = HostClusterConfig::new(home.root());
    config.nodes.clone_from(&options.nodes);
    config.real_nodes = options.real_nodes;
    config.kubernetes_version.clone_from(&options.kubernetes_version);
    let cluster = HostCluster::start(config, report).await?;
    if !options.has_gateway() {
        cluster.supervisor().stop(GATEWAY, None).await?;
    }
    if !options.control {
        cluster.supervisor().stop(CONTROL, None).await?;
        return Ok(cluster);
    }
    start_control(&cluster, options, report).await?;
    if options.has_gateway() {
        report("starting berth-gateway");
        gateway::start(&cluster, options).await?;
    }
    Ok(cluster)
}

/// Starts control, as a process or with the chart, and waits until it is ready.
async fn start_control(cluster: &HostCluster, options: &Options, report: impl Fn(&str)) -> Result<(), Error> {
    let home = cluster.home();
    let gateway_flags = options.has_gateway().then(|| gateway::control_flags(cluster.ports()));
    let gateway_flags = gateway_flags.as_ref().map_or(&[][..], |flags| &flags[..]);
    if options.real_nodes {
        report("making images and installing Berth's chart");
        let programs = find_beside(CONTROL)?;
        find_beside("berth-syncer")?;
        let programs = programs.parent().unwrap_or(Path::new("/"));
        let chart = chart::write(home.root().join("chart"))?;
        let mut install = ChartInstall::new(chart, programs);
        // The gateway is no pod, as names of this machine lead to none.
        install.values = json!({"control": {"extraArgs": gateway_flags}});
        cluster.install_chart(&install).await?;
        return Ok(());
    }
    report("starting berth-control");
    let client = cluster.client().await?;
    install(&client, CONTROL).await?;
    cluster.ensure_kubeconfig(&home.control_kubeconfig(), CONTROL, &[])?;
    let mut spec = control_process(cluster)?;
    spec.args.extend(gateway_flags.iter().cloned());
    cluster.supervisor().ensure(spec).await?;
    wait_until_ready(cluster, CONTROL, cluster.ports().control, CONTROL_TIMEOUT).await
}

/// Waits until a process says at its port on this machine that it is ready.
pub(super) async fn wait_until_ready(
    cluster: &HostCluster,
    process: &'static str,
    port: u16,
    limit: Duration,
) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    while !probe::is_ready(port).await {
        if Instant::now() > deadline {
            return Err(Error::ProcessNotReady {
                process,
                seconds: limit.as_secs(),
                log: cluster.home().log(process),
            });
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// An executable that was built beside this one.
pub(crate) fn find_beside(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|source| Error::File {
        action: "find",
        path: "berth".into(),
        source,
    })?;
    let path = own.with_file_name(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::ProgramMissing(path))
    }
}

/// Control as a process. A newly built one replaces the one that runs.
fn control_process(cluster: &HostCluster) -> Result<ProcessSpec, Error> {
    let (program, syncer) = (find_beside(CONTROL)?, find_beside("berth-syncer")?);
    let home = cluster.home();
    let Datastore {
        endpoint,
        ca_cert,
        ca_key,
        ..
    } = cluster.datastore();
    let snapshots = home.snapshots();
    fs::create_dir_all(&snapshots).map_err(|source| Error::File {
        action: "create",
        path: snapshots.clone(),
        source,
    })?;
    let mut spec = ProcessSpec::new(CONTROL, &program, home.log(CONTROL));
    let path = |path: PathBuf| path.display().to_string();
    spec.args = [
        ("--kubeconfig", path(home.control_kubeconfig())),
        ("--runtime", "process".into()),
        ("--runtime-dir", path(home.tenants())),
        ("--log-dir", path(home.logs())),
        ("--kubeconfig-dir", path(home.kubeconfigs())),
        ("--datastore-endpoint", endpoint),
        ("--datastore-ca", path(ca_cert)),
        ("--datastore-ca-key", path(ca_key)),
        ("--syncer-binary", path(syncer.clone())),
        ("--snapshot-store", format!("file://{}", snapshots.display())),
        ("--admin-address", format!("127.0.0.1:{}", cluster.ports().control)),
        // There is only one: after a restart it takes its own lease at once.
        ("--identity", "local".into()),
        ("--without-class", "BuiltInDefaults".into()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect();
    spec.env = FORWARDED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect();
    spec.revision = format!(
        "{} {} {}",
        modified_at(&program),
        modified_at(&syncer),
        modified_at(&home.control_kubeconfig())
    );
    Ok(spec)
}

/// When a file was last written, in milliseconds.
pub(super) fn modified_at(path: &Path) -> u128 {
    let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    written
        .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        .unwrap_or_default()
        .as_millis()
}
