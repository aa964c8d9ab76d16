//! Whether an installation works: what `helm test` runs.

use berth_api::{
    GROUP, VERSION, is_pod_ready,
    system::{CONTROL, NAMESPACE},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::{Lease, LeaseSpec},
    core::v1::Pod,
};
use kube::{Api, Client};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// Interval between two observations.
const POLL: Duration = Duration::from_secs(2);

/// What the host says of an installation.
#[derive(Clone, Debug, Default)]
struct Observation {
    /// Plural names of the kinds of Berth's API that the host serves.
    served: BTreeSet<String>,
    /// Control's lease.
    lease: Option<LeaseSpec>,
    /// Whether the pod that holds the lease is ready.
    is_holder_ready: bool,
}

/// Waits until the host serves all kinds of Berth's API, and the replica of control that holds the lease is ready.
///
/// # Errors
/// What is missing after `timeout`, and what to do about it.
pub async fn check_installation(client: &Client, timeout: Duration) -> Result<(), String> {
    let expected: BTreeSet<String> = berth_api::crd::all()
        .into_iter()
        .map(|definition| definition.spec.names.plural)
        .collect();
    let deadline = Instant::now() + timeout;
    loop {
        let problems = match observe(client).await {
            Ok(observation) => find_problems(&observation, &expected, Timestamp::now()),
            Err(error) => vec![format!("the host's API server does not answer: {error}")],
        };
        if problems.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(problems.join("; "));
        }
        tracing::info!(problems = problems.join("; "), "not yet");
        tokio::time::sleep(POLL).await;
    }
}

async fn observe(client: &Client) -> kube::Result<Observation> {
    let group = client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await;
    let served = match group {
        Ok(list) => list.resources.into_iter().map(|resource| resource.name).collect(),
        // The host does not know the group.
        Err(kube::Error::Api(status)) if status.code == 404 => BTreeSet::new(),
        Err(error) => return Err(error),
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases.get_opt(CONTROL).await?.and_then(|lease| lease.spec);
    let is_holder_ready = match holder(lease.as_ref()) {
        Some(holder) => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
            pods.get_opt(holder).await?.is_some_and(|pod| is_pod_ready(&pod))
        }
        None => false,
    };
    Ok(Observation {
        served,
        lease,
        is_holder_ready,
    })
}

/// Name of the pod that holds the lease.
fn holder(lease: Option<&LeaseSpec>) -> Option<&str> {
    lease?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// What is missing, and what to do about it. Empty if the installation works.
fn find_problems(observation: &Observation, expected: &BTreeSet<String>, now: Timestamp) -> Vec<String> {
    let mut problems = Vec::new();
    let missing: Vec<&str> = expected.difference(&observation.served).map(String::as_str).collect();
    if !missing.is_empty() {
        problems.push(format!(
            "the host does not serve {} of {GROUP}/{VERSION}: run `helm upgrade` to apply the CustomResourceDefinitions",
            missing.join(", ")
        ));
    }
    let lease = observation.lease.as_ref();
    let Some(holder) = holder(lease) else {
        problems.push(format!(
            "no replica of control holds the Lease {NAMESPACE}/{CONTROL}: see `kubectl -n {NAMESPACE} logs deployment/berth-control`"
        ));
        return problems;
    };
    if !lease.is_some_and(|lease| is_renewed(lease, now)) {
        problems.push(format!(
            "{holder} has not renewed the Lease {NAMESPACE}/{CONTROL} in time: see `kubectl -n {NAMESPACE} get pods`"
        ));
    }
    if !observation.is_holder_ready {
        problems.push(format!(
            "the pod {NAMESPACE}/{holder}, which holds the lease, is not ready: see `kubectl -n {NAMESPACE} logs {holder}`"
        ));
    }
    problems
}

/// Whether a lease is valid at `now`.
fn is_renewed(lease: &LeaseSpec, now: Timestamp) -> bool {
    let (Some(renewed), Some(seconds)) = (&lease.renew_time, lease.lease_duration_seconds) else {
        return false;
    };
    now.duration_since(renewed.0) <= SignedDuration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    fn now() -> Timestamp {
        "2026-11-23T10:00:00Z".parse().unwrap()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn lease(renewed_before: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some("berth-control-0".into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(now() - SignedDuration::from_secs(renewed_before))),
            ..LeaseSpec::default()
        }
    }

    fn working() -> Observation {
        Observation {
            served: names(&["tenantclusters", "tenantclusters/status", "hostnodepools"]),
            lease: Some(lease(15)),
            is_holder_ready: true,
        }
    }

    fn problems(observation: &Observation) -> Vec<String> {
        find_problems(observation, &names(&["tenantclusters", "hostnodepools"]), now())
    }

    #[test]
    fn installation_works() {
        assert_eq!(problems(&working()), Vec::<String>::new());
    }

    #[test]
    fn kinds_that_the_host_does_not_serve_are_named() {
        let observation = Observation {
            served: names(&["tenantclusters"]),
            ..working()
        };
        let problems = problems(&observation);
        assert!(
            problems.len() == 1 && problems[0].contains("serve hostnodepools of"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_lease_needs_a_holder_that_renews_it() {
        let released = LeaseSpec {
            holder_identity: Some(String::new()),
            ..lease(0)
        };
        for (lease, message) in [
            (None, "no replica of control holds"),
            (Some(LeaseSpec::default()), "no replica of control holds"),
            (Some(released), "no replica of control holds"),
            (Some(lease(16)), "has not renewed"),
            (
                Some(LeaseSpec {
                    renew_time: None,
                    ..lease(0)
                }),
                "has not renewed",
            ),
        ] {
            let problems = problems(&Observation { lease, ..working() });
            assert!(problems.len() == 1 && problems[0].contains(message), "{problems:?}");
        }
    }

    #[test]
    fn the_holder_must_be_ready() {
        let problems = problems(&Observation {
            is_holder_ready: false,
            ..working()
        });
        assert!(
            problems.len() == 1 && problems[0].contains("berth-system/berth-control-0"),
            "{problems:?}"
        );
    }
}
