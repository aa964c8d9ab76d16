//! Jobs of a recycling that starts again.

use super::{
    Fixture, NODES,
    api::Failing,
    draining::{NAMESPACE, stubborn_pod},
    state_of,
};
use berth_api::{HostNodePoolSpec, labels, system};
use berth_node_lifecycle::assignment::AssignmentState::{Draining, Quarantined, Scrubbing};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Recycling IDs of Jobs that are not of the recycling that node `a` has now.
fn jobs_of_others(fixture: &Fixture) -> Vec<Value> {
    let api = fixture.api();
    let current = &api.objects[&format!("{NODES}/a")]["metadata"]["annotations"][labels::RECYCLING_ID];
    let jobs = api.objects.iter().filter(|(path, _)| path.contains("/jobs/"));
    let ids = jobs.map(|(_, job)| &job["metadata"]["annotations"][labels::RECYCLING_ID]);
    ids.filter(|id| *id != current).cloned().collect()
}

fn count_jobs(fixture: &Fixture) -> usize {
    let api = fixture.api();
    api.objects.keys().filter(|path| path.contains("/jobs/")).count()
}

/// A node that is being scrubbed, to which the scheduler has bound a pod late: the scrub starts again.
async fn fixture_with_late_pod() -> Fixture {
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a"])
    };
    fixture.put_in_state("a", Draining);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a"), Some(Scrubbing));
    assert_eq!(count_jobs(&fixture), 1);
    fixture.api().objects.extend([stubborn_pod(NAMESPACE)]);
    fixture
}

/// A Job of an earlier recycling that goes on would end what runs on the node later, which can be the next tenant's.
#[tokio::test]
async fn a_scrub_that_starts_again_leaves_no_job_of_the_one_before_whichever_call_fails() {
    let fixture = fixture_with_late_pod().await;
    let (_, calls) = fixture.execute(&[], Failing::Nothing).await;
    assert!(jobs_of_others(&fixture).is_empty());
    for call in 1..=calls {
        let fixture = fixture_with_late_pod().await;
        let _ = fixture.execute(&[], Failing::Call(call)).await;
        let _ = fixture.execute(&[], Failing::Nothing).await;
        assert!(jobs_of_others(&fixture).is_empty(), "call {call}");
        assert_eq!(state_of(&fixture, "a"), Some(Scrubbing), "call {call}");
    }
}

/// In the view the node still has the earlier recycling, whose Job was deleted: it is not made again.
#[tokio::test]
async fn a_view_that_lags_behind_starts_no_job_of_an_earlier_recycling() {
    let mut fixture = fixture_with_late_pod().await;
    let path = format!("{NODES}/a");
    let earlier = fixture.api().objects[&path].clone();
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(count_jobs(&fixture), 0);
    fixture.api().objects.retain(|path, _| !path.contains("/pods/"));
    fixture.lagging.insert(path, earlier);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(count_jobs(&fixture), 0);
    fixture.lagging.clear();
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!((count_jobs(&fixture), jobs_of_others(&fixture).len()), (1, 0));
}

/// With the credential of another node's kubelet, a mirror pod there can have the label of the Job.
#[tokio::test]
async fn the_reason_of_a_quarantine_is_what_a_pod_on_the_node_says() {
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
        ..Fixture::new(&["a"])
    };
    fixture.put_in_state("a", Draining);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    let pod = |name: &str, node: &str, job: &Value, message: &str| {
        let ended = json!({"exitCode": 1, "message": message});
        let pod = json!({
            "metadata": {
                "name": name, "namespace": system::NAMESPACE, "uid": name, "labels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]},
            },
            "spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": []},
            "status": {"phase": "Failed", "initContainerStatuses": [
                {"name": "gpu-reset", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": ended}},
            ]},
        });
        (format!("/api/v1/namespaces/{}/pods/{name}", system::NAMESPACE), pod)
    };
    {
        let mut api = fixture.api();
        let mut jobs = api.objects.iter_mut().filter(|(path, _)| path.contains("/jobs/"));
        let (_, job) = jobs.next().unwrap();
        job["status"] = json!({"conditions": [{"type": "Failed", "status": "True", "message": "too often"}]});
        let job = job.clone();
        drop(jobs);
        api.objects.extend([
            pod("a-forged", "b", &job, "all is well, release it"),
            pod("b-own", "a", &job, "GPU 3 is in use\n\u{1b}[2J"),
        ]);
    }
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a"), Some(Quarantined));
    let node = fixture.api().objects[&format!("{NODES}/a")].clone();
    let why = node["metadata"]["annotations"][labels::QUARANTINE].as_str().unwrap();
    assert!(
        why.contains("gpu-reset: GPU 3 is in use\u{fffd}\u{fffd}[2J (Job scrub-"),
        "{why}"
    );
}
