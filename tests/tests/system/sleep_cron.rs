//! A CronJob of a tenant that sleeps: the tenant wakes in time for the run, which happens once.

use berth_api::{SleepState, TenantClass};
use berth_tests::{
    objects::{apply, phase},
    sleep::{request_sleep, until_nothing_runs, until_state},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::sync::Arc;

/// Name of the namespace, the class and the tenant.
const NAME: &str = "sleep-cron";
/// Time until the run, at least: for the pod to end, the control plane to stop, and the tenant to wake a minute before.
const AHEAD: SignedDuration = SignedDuration::from_secs(130);
/// Annotation of a Job with the time of the run.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The first full minute that is far enough ahead, and the schedule of a CronJob that is due then and not again on that day.
fn next_minute(now: Timestamp) -> (Timestamp, String) {
    let earliest = (now + AHEAD).as_second();
    let due = Timestamp::from_second(earliest + (60 - earliest.rem_euclid(60)) % 60).unwrap();
    let clock = due.to_zoned(TimeZone::UTC);
    (due, format!("{} {} * * *", clock.minute(), clock.hour()))
}

pub(crate) async fn a_tenant_wakes_for_a_run_of_a_cron_job_which_happens_once(host: Arc<TestCluster>) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"sleep": {"stopsPods": true}}});
    apply(&host.client, "", &class).await.unwrap();
    let mut wanted = cluster(NAME, &[("train", "l40s", 1)]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAME, &wanted).await;
    // A tenant falls asleep only if no CronJob is due within minutes. This pod takes a while to end: the CronJob is created meanwhile.
    let container = json!({"name": "main", "image": "registry.example.com/any"});
    let slow = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "slow", "annotations": {"simulation.berth.dev/stop-after": "20s"}},
        "spec": {"terminationGracePeriodSeconds": 60, "containers": [container]}});
    apply(&tenant.client, "default", &slow).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    until_true("the pod runs", SOON, async || {
        pods.get("slow").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    request_sleep(&host, &tenant).await;
    until_state(&host, &tenant, SleepState::FallingAsleep).await;
    let (due, schedule) = next_minute(Timestamp::now());
    let template = json!({"metadata": {"annotations": {"simulation.berth.dev/run-for": "1s"}},
        "spec": {"restartPolicy": "Never", "containers": [container]}});
    let report = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "report"},
        "spec": {"schedule": schedule, "timeZone": "UTC", "jobTemplate": {"spec": {"template": template}}}});
    apply(&tenant.client, "default", &report).await.unwrap();

    until_nothing_runs(&host, &tenant).await;
    let asleep = until_state(&host, &tenant, SleepState::Sleeping).await.sleep.unwrap();
    let wakes_at = asleep.wakes_at.expect("the CronJob wakes it").0;
    assert_eq!(wakes_at, due - SignedDuration::from_secs(60));
    let awake = until_state(&host, &tenant, SleepState::Awake).await.sleep.unwrap();
    let woken_at = awake.since.unwrap().0;
    assert!((wakes_at..due).contains(&woken_at), "woken at {woken_at} for {due}");

    let tenant = Tenant::ready(&host, NAME, NAME).await;
    until_run(&tenant, due).await;
    assert_ran_once(&tenant, due).await;
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// Waits until the Job of the run is complete.
async fn until_run(tenant: &Tenant, due: Timestamp) {
    let jobs: Api<Job> = Api::namespaced(tenant.client.clone(), "default");
    until(&format!("the run of {due} is complete"), SOON, async || {
        let all = jobs
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let is_complete = |job: &Job| {
            job.status
                .as_ref()
                .is_some_and(|status| status.completion_time.is_some())
        };
        if all.iter().any(is_complete) {
            Ok(())
        } else {
            Err(format!("{:?}", all.items))
        }
    })
    .await;
}

/// There is one Job, of this run and not before its time, and it has had one pod.
async fn assert_ran_once(tenant: &Tenant, due: Timestamp) {
    let jobs: Api<Job> = Api::namespaced(tenant.client.clone(), "default");
    let all = jobs.list(&ListParams::default()).await.unwrap().items;
    let [job] = &all[..] else {
        panic!("{} Jobs: {all:?}", all.len())
    };
    let scheduled_at: Timestamp = job.annotations()[SCHEDULED_AT].parse().unwrap();
    assert_eq!(scheduled_at, due);
    assert!(job.creation_timestamp().unwrap().0 >= due, "{job:?}");
    let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
    assert_eq!(succeeded, Some(1), "{job:?}");
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let own = ListParams::default().labels(&format!("job-name={}", job.name_any()));
    assert_eq!(pods.list(&own).await.unwrap().items.len(), 1);
    let cron: Api<CronJob> = Api::namespaced(tenant.client.clone(), "default");
    let status = cron.get("report").await.unwrap().status.unwrap();
    assert_eq!(status.last_schedule_time.map(|time| time.0), Some(due));
}
