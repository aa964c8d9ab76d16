//! `berth sleep` and `berth wake`, as people use them.

use berth_api::SleepState;
use berth_tests::{
    command_line::CommandLine,
    sleep::{until_nothing_runs, until_state},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use serde_json::json;
use std::sync::Arc;

const NAMESPACE: &str = "sleep-commands";
const NAME: &str = "sleep-commands/napper";

async fn set_mode(host: &TestCluster, mode: &str) {
    host.patch_tenant(NAMESPACE, "napper", &json!({"sleep": {"mode": mode}}))
        .await;
}

pub(crate) async fn the_command_line_lets_a_tenant_sleep_and_wakes_it(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, NAMESPACE, &cluster("napper", &[])).await;
    let user = CommandLine::of_administrator(&host);
    // The second sleep is asked for in the second in which the tenant was woken, or a little later.
    for _ in 0..2 {
        let (out, err) = user.run(&["sleep", NAME, "--wait"], 0).await;
        assert_eq!(out, format!("TenantCluster {NAME} is Sleeping.\n"));
        assert!(err.contains("· Awake is False (Requested)"), "{err}");
        until_nothing_runs(&host, &tenant).await;
        let (out, _) = user.run(&["sleep", NAME], 0).await;
        assert!(out.contains("is Sleeping already"), "{out}");
        assert!(tenant.client.apiserver_version().await.is_err());

        let (out, err) = user.run(&["wake", NAME, "--wait"], 0).await;
        assert_eq!(out, format!("TenantCluster {NAME} is Ready.\n"));
        assert!(err.contains("· Awake is True"), "{err}");
        tenant.client.apiserver_version().await.unwrap();
    }

    set_mode(&host, "Awake").await;
    let (_, err) = user.run(&["sleep", NAME, "--wait"], 1).await;
    assert!(err.contains("spec.sleep.mode is Awake"), "{err}");
    set_mode(&host, "Asleep").await;
    let (_, err) = user.run(&["wake", NAME, "--wait"], 1).await;
    assert!(err.contains("spec.sleep.mode is Asleep"), "{err}");
    // Nobody has to ask.
    user.run(&["sleep", NAME, "--wait"], 0).await;
    let (_, err) = user.run(&["connect", NAME, "--", "true"], 1).await;
    assert!(
        err.contains("no connection wakes it") && err.contains("kubectl patch"),
        "{err}"
    );
    set_mode(&host, "Auto").await;
    until_state(&host, &tenant, SleepState::Awake).await;
    tenant.delete(&host).await;
}
