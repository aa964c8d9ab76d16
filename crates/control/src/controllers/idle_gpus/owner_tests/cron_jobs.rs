//! Jobs that a CronJob made: suspended, resumed and replaced.

use super::*;

const JOB: &str = "/apis/batch/v1/namespaces/ml/jobs/batch";

/// A pod of a Job that a CronJob made.
fn with_cron_job(concurrency_policy: &str) -> World {
    let world = World::new();
    world.own_pod(&controller("batch/v1", "Job", "batch"));
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "batch", "namespace": "ml", "uid": "batch-uid",
        "ownerReferences": controller("batch/v1", "CronJob", "nightly")}, "spec": {"parallelism": 1}, "status": {"active": 1}});
    world.tenant.insert(JOB, job);
    let cron_job = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "ml",
        "uid": "nightly-uid"}, "spec": {"concurrencyPolicy": concurrency_policy}});
    world
        .tenant
        .insert("/apis/batch/v1/namespaces/ml/cronjobs/nightly", cron_job);
    world
}

#[tokio::test]
async fn a_job_of_a_cron_job_is_suspended_and_resumed() {
    for concurrency_policy in ["Allow", "Replace"] {
        let mut world = with_cron_job(concurrency_policy);
        world.fleet.run(UNTIL_DUE - 1).await;
        let job = world.tenant.get(JOB).unwrap();
        assert_eq!((&job["spec"]["suspend"], world.fleet.evictions()), (&json!(true), 0));
        world.remove_pod();
        world.ask_on(JOB);
        world.fleet.run(1).await;
        assert_eq!(world.tenant.get(JOB).unwrap()["spec"]["suspend"], false);
    }
}

#[tokio::test]
async fn a_job_for_which_its_cron_job_waits_is_not_suspended() {
    // A Job that is suspended never ends, so that the CronJob would make no other one any more.
    let mut world = with_cron_job("Forbid");
    world.fleet.run(UNTIL_DUE - 1).await;
    let job = world.tenant.get(JOB).unwrap();
    assert_eq!((&job["spec"]["suspend"], world.listed()), (&Value::Null, 0));
    assert_eq!(world.fleet.evictions(), 1);
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert!(
        pod["metadata"]["annotations"]["berth.dev/gpus-idle"].is_string(),
        "it was warned"
    );
}

#[tokio::test]
async fn a_job_that_its_cron_job_replaced_is_forgotten() {
    let mut world = with_cron_job("Replace");
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!(world.listed(), 1);
    world.remove_pod();
    world.tenant.remove(JOB);
    world.fleet.run(2).await;
    assert_eq!(world.listed(), 0);
}
