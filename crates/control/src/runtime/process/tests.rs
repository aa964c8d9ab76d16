//! When a component has been rolled out, with processes that end or listen as the test says.

use super::*;
use crate::{
    apply::Applier,
    control_plane::SYNCER,
    testing::{Script, ScriptedApi},
};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A runtime whose syncer is a shell, and a tenant without components.
struct Fixture {
    runtime: Arc<ProcessRuntime>,
    tenant: TenantId,
    labels: BTreeMap<String, String>,
    applier: Applier,
    dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = ScriptedApi::new("host", &Script::default()).client();
        let config = ProcessRuntimeConfig {
            dir: dir.path().join("state"),
            log_dir: dir.path().join("logs"),
            kubeconfig_dir: None,
            syncer: "/bin/sh".into(),
            die_with_parent: true,
        };
        Self {
            runtime: Arc::new(ProcessRuntime::open(config, client.clone()).await.unwrap()),
            tenant: TenantId::new("vision", "uid"),
            labels: BTreeMap::new(),
            applier: Applier::new(client),
            dir,
        }
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            tenant: &self.tenant,
            labels: &self.labels,
            host: &self.applier,
        }
    }

    async fn apply(&self, component: &Component) {
        self.runtime.apply_component(self.owner(), component).await.unwrap();
    }

    async fn is_rolled_out(&self, component: &Component) -> bool {
        self.runtime.is_rolled_out(self.owner(), component).await.unwrap()
    }

    fn status(&self) -> Option<ProcessStatus> {
        self.runtime.supervisor.status(&process_name(&self.tenant, SYNCER))
    }

    /// Waits until this holds.
    async fn eventually(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..300 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?}", self.status());
    }

    /// Ends all processes.
    async fn stop(self) {
        self.runtime.stop_components(&self.tenant).await.unwrap();
    }
}

/// A component that runs a command of the shell.
fn component(command: &str, port: Option<u16>) -> Component {
    Component {
        name: SYNCER,
        program: Program::Syncer,
        args: vec!["-c".into(), command.into()],
        env: BTreeMap::new(),
        files: BTreeMap::new(),
        host_service_account: None,
        memory_limit: None,
        replicas: 1,
        overlaps: false,
        health: port.map(|port| Health {
            port,
            tls: false,
            live: "/livez",
            ready: "/readyz",
        }),
    }
}

const RUNS: &str = "exec sleep 600";

#[tokio::test]
async fn a_process_that_was_only_just_started_is_not_rolled_out() {
    let fixture = Fixture::new().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let listening = component(RUNS, Some(port));
    assert!(!fixture.is_rolled_out(&listening).await, "it was not started");
    fixture.apply(&listening).await;
    assert!(fixture.is_rolled_out(&listening).await);
    drop(listener);
    assert!(!fixture.is_rolled_out(&listening).await, "it does not listen yet");
    let without_health = component(RUNS, None);
    assert!(fixture.is_rolled_out(&without_health).await, "its supervisor knows");
    fixture.runtime.stop_components(&fixture.tenant).await.unwrap();
    assert!(!fixture.is_rolled_out(&without_health).await, "it was stopped");
    fixture.stop().await;
}

#[tokio::test]
async fn a_process_that_crashes_is_not_rolled_out() {
    let fixture = Fixture::new().await;
    let crashing = component("exit 1", None);
    fixture.apply(&crashing).await;
    fixture
        .eventually("it waits for its next start", async || {
            fixture
                .status()
                .is_some_and(|status| status.state == ProcessState::Restarting)
        })
        .await;
    assert!(!fixture.is_rolled_out(&crashing).await);
    fixture.stop().await;
}

#[tokio::test]
async fn a_process_that_crashed_is_rolled_out_once_it_runs_for_a_while() {
    let fixture = Fixture::new().await;
    let marker = fixture.dir.path().join("crashed").display().to_string();
    let once = format!("test -e '{marker}' && {RUNS}; touch '{marker}'; exit 1");
    let crashed = component(&once, None);
    fixture.apply(&crashed).await;
    fixture
        .eventually("it runs again", async || {
            let status = fixture.status();
            status.is_some_and(|status| status.state == ProcessState::Running && status.restarts == 1)
        })
        .await;
    assert!(!fixture.is_rolled_out(&crashed).await, "it may crash again");
    fixture
        .eventually("it is rolled out", async || fixture.is_rolled_out(&crashed).await)
        .await;
    let started = fixture.status().unwrap().started_at.unwrap();
    assert!(Timestamp::now().duration_since(started) >= STEADY_AFTER);
    fixture.stop().await;
}

#[tokio::test]
async fn a_process_with_other_files_has_replaced_the_one_before() {
    let fixture = Fixture::new().await;
    let before = component(RUNS, None);
    fixture.apply(&before).await;
    let pid = fixture.status().unwrap().pid;
    let after = Component {
        files: BTreeMap::from([("ca.crt".into(), "new".into())]),
        ..before
    };
    fixture.apply(&after).await;
    assert!(fixture.is_rolled_out(&after).await);
    let replaced = fixture.status().unwrap();
    assert_ne!(replaced.pid, pid);
    assert!(!Path::new(&format!("/proc/{}", pid.unwrap())).exists(), "it has ended");
    fixture.stop().await;
}
