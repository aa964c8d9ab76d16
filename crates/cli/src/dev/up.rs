//! `berth dev up`.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use berth_local::{Home, client_from, read_kubeconfig};
use berth_process::MARKER;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::UpArguments;
use super::gateway::{self, GATEWAY};
use super::options::Options;
use super::probe;
use super::progress::{Progress, SupervisorLock};
use super::supervise::{CONTROL, find_beside};
use crate::error::Error;
use crate::output::{print_line, print_text};

/// How long everything together may take. Each step of the supervisor has a shorter limit of its own.
const TIMEOUT: Duration = Duration::from_mins(5);
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn run(home: &Path, arguments: &UpArguments) -> Result<ExitCode, Error> {
    let begin = Instant::now();
    let home = Home::new(home);
    home.create()?;
    // The directory exists now: links in its path can be followed.
    let home = Home::new(home.root());
    let before = Options::load(&home)?;
    let options = Options::after(before.as_ref(), arguments)?;
    if options.control {
        find_beside(CONTROL)?;
        find_beside("berth-syncer")?;
    }
    if options.has_gateway() {
        find_beside(GATEWAY)?;
    }
    options.save(&home)?;
    let unchanged = before.as_ref() == Some(&options);
    let child = match SupervisorLock::holder(&home) {
        Some(pid) if unchanged && Progress::read(&home, pid) == Some(Progress::Ready) => {
            if !is_answering(&home, &options).await {
                print_text(format_args!("· waiting until the stopped processes run again"));
                wait_for_answers(&home, &options).await?;
            }
            print_line(format_args!("The host cluster is already up."))?;
            return finish(&home, &options);
        }
        // Another `up` has started it a moment ago.
        Some(_) if unchanged => None,
        Some(pid) => {
            // It runs with other options: its successor takes over the processes as they are.
            stop_supervisor(&home, pid).await?;
            Some(start_supervisor(&home)?)
        }
        None => Some(start_supervisor(&home)?),
    };
    print_progress(&home, child).await?;
    // With other options a process is replaced after its predecessor has answered.
    wait_for_answers(&home, &options).await?;
    print_line(format_args!(
        "The host cluster is up after {:.1} s.",
        begin.elapsed().as_secs_f64()
    ))?;
    finish(&home, &options)
}

fn finish(home: &Home, options: &Options) -> Result<ExitCode, Error> {
    print_usage(home, options)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints how to use a cluster that is up.
fn print_usage(home: &Home, options: &Options) -> Result<(), Error> {
    // Commands in the same directory and environment find the home by themselves.
    let default = std::env::var_os("BERTH_HOME").unwrap_or_else(|| ".berth".into());
    let option = if Home::new(default) == *home {
        String::new()
    } else {
        format!(" --home {}", home.root().display())
    };
    print_line(format_args!(
        "\nUse it:\n  export KUBECONFIG={}\n  kubectl get nodes",
        home.admin_kubeconfig().display()
    ))?;
    if let Some(ports) = home.ports().filter(|_| options.has_gateway()) {
        let url = gateway::url_of_tenants(ports);
        print_line(format_args!("\nTenants are at the gateway:\n  {url}"))?;
    }
    print_line(format_args!(
        "\nShow its state, remove it:\n  berth dev status{option}\n  berth dev down{option}"
    ))
}

/// Stops a supervisor. The processes that it supervises go on.
async fn stop_supervisor(home: &Home, pid: u32) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut signal = Signal::TERM;
    while SupervisorLock::holder(home) == Some(pid) {
        if Instant::now() > deadline {
            signal = Signal::KILL;
        }
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
        sleep(INTERVAL).await;
    }
    Ok(())
}

/// Starts a supervisor that outlives this command.
fn start_supervisor(home: &Home) -> Result<Child, Error> {
    let log_path = home.log("supervisor");
    let failed = |action| {
        let path = log_path.clone();
        move |source| Error::File { action, path, source }
    };
    let log = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(failed("open"))?;
    let errors = log.try_clone().map_err(failed("open"))?;
    let own = std::env::current_exe().map_err(|source| Error::File {
        action: "find",
        path: "berth".into(),
        source,
    })?;
    Command::new(&own)
        .args(["dev", "supervise"])
        .arg("--home")
        .arg(home.root())
        // By this marker `down` finds it in any state.
        .env(MARKER, home.root().join("supervisor"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|source| Error::File {
            action: "start",
            path: own,
            source,
        })
}

/// Prints what the supervisor does until it is done.
async fn print_progress(home: &Home, mut child: Option<Child>) -> Result<(), Error> {
    let log = home.log("supervisor");
    let not_up = |message: String| Error::NotUp {
        message,
        log: log.clone(),
    };
    let deadline = Instant::now() + TIMEOUT;
    let mut shown = String::new();
    loop {
        let ended = child
            .as_mut()
            .is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        let supervisor = child.as_ref().map(Child::id).or_else(|| SupervisorLock::holder(home));
        match supervisor.and_then(|pid| Progress::read(home, pid)) {
            Some(Progress::Ready) => return Ok(()),
            Some(Progress::Failed(message)) => return Err(not_up(message)),
            Some(Progress::Starting(step)) if step != shown => {
                print_text(format_args!("· {step}"));
                shown = step;
            }
            _ => {}
        }
        if ended || supervisor.is_none() {
            // Another `up` at the same time may have started one.
            if SupervisorLock::holder(home).is_none() {
                return Err(not_up(read_last_line(&log)));
            }
            child = None;
        }
        if Instant::now() > deadline {
            return Err(not_up(format!("still not ready after {} s", TIMEOUT.as_secs())));
        }
        sleep(INTERVAL).await;
    }
}

fn read_last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .next_back()
        .unwrap_or("the supervisor ended without a message")
        .to_owned()
}

/// Whether API server, control and gateway answer.
async fn is_answering(home: &Home, options: &Options) -> bool {
    let api_server = async {
        let Ok(client) = client_from(&home.admin_kubeconfig()).await else {
            return false;
        };
        matches!(
            tokio::time::timeout(Duration::from_secs(2), client.apiserver_version()).await,
            Ok(Ok(_))
        )
    };
    let as_process = options.control && !options.real_nodes;
    let ports = home.ports();
    let control = async { !as_process || probe::is_ready(ports.map_or(0, |ports| ports.control)).await };
    let gateway =
        async { !options.has_gateway() || probe::is_ready(ports.map_or(0, |ports| ports.gateway_admin)).await };
    let (api_server, control, gateway) = tokio::join!(api_server, control, gateway);
    api_server && control && gateway
}

async fn wait_for_answers(home: &Home, options: &Options) -> Result<(), Error> {
    // Somebody has changed it since the cluster is up. Time does not help.
    if let Err(error @ berth_local::Error::ForeignKubeconfig { .. }) = read_kubeconfig(&home.admin_kubeconfig()) {
        return Err(error.into());
    }
    let deadline = Instant::now() + Duration::from_mins(2);
    while !is_answering(home, options).await {
        if Instant::now() > deadline {
            let message = "it does not answer although its supervisor runs".into();
            return Err(Error::NotUp {
                message,
                log: home.log("supervisor"),
            });
        }
        sleep(INTERVAL).await;
    }
    Ok(())
}
