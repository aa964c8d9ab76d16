//! Projects with quotas, and when tenants get what they reserve.

use berth_api::{Project, TenantCluster, conditions};
use berth_tests::wait::{SOON, until};
use futures::StreamExt;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(120);

/// A quota that borrows nothing.
pub(crate) fn quota(resource: &str, pool: Option<&str>, nominal: usize) -> Value {
    let mut quota = json!({"resource": resource, "nominalQuota": nominal, "borrowingLimit": 0});
    if let Some(pool) = pool {
        quota["poolName"] = pool.into();
    }
    quota
}

/// Creates a Project, or changes its quotas. Returns its generation.
pub(crate) async fn set_project(client: &Client, name: &str, namespace: &str, quotas: &[Value]) -> Option<i64> {
    let projects: Api<Project> = Api::all(client.clone());
    let project = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
        "spec": {"namespaces": [namespace], "quotas": quotas},
    });
    let params = PatchParams::apply("berth-bench").force();
    let written = projects.patch(name, &params, &Patch::Apply(&project)).await.unwrap();
    written.metadata.generation
}

/// Waits until control has decided with this generation of a Project. A tenant that is created before may still get the quota of an earlier
/// one.
pub(crate) async fn until_observed(client: &Client, name: &str, generation: Option<i64>) {
    let projects: Api<Project> = Api::all(client.clone());
    until(&format!("the quotas of {name} apply"), SOON, async || {
        let project = projects.get(name).await.map_err(|error| error.to_string())?;
        let observed = project.status.and_then(|status| status.observed_generation);
        if observed >= generation {
            Ok(())
        } else {
            Err(format!("{observed:?} of {generation:?}"))
        }
    })
    .await;
}

/// What quota says of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// It waits, and its status says so.
    Waiting,
    /// The reservation is in its status: from here on it is created.
    Reserved,
}

/// When each tenant was first seen in each step. No two have the same name.
pub(crate) struct Reservations {
    seen: Arc<Mutex<BTreeMap<(String, Step), Instant>>>,
    watch: tokio::task::JoinHandle<()>,
}

impl Drop for Reservations {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Reservations {
    /// Starts to watch.
    pub(crate) fn follow(tenants: Api<TenantCluster>) -> Self {
        let seen: Arc<Mutex<BTreeMap<(String, Step), Instant>>> = Arc::default();
        let moments = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            let mut stream = watcher(tenants, watcher::Config::default())
                .default_backoff()
                .applied_objects()
                .boxed();
            // An error ends one watch, and the stream begins another one.
            while let Some(event) = stream.next().await {
                let Ok(cluster) = event else { continue };
                if let (Some(name), Some(step)) = (cluster.metadata.name.clone(), step(&cluster)) {
                    let mut moments = moments.lock().unwrap();
                    moments.entry((name, step)).or_insert_with(Instant::now);
                }
            }
        });
        Self { seen, watch }
    }

    /// How many tenants were seen in a step.
    pub(crate) fn count(&self, step: Step) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.keys().filter(|(_, of_tenant)| *of_tenant == step).count()
    }

    /// Waits until a tenant is seen in a step.
    pub(crate) async fn until(&self, name: &str, step: Step) -> Instant {
        let begun = Instant::now();
        let key = (name.to_owned(), step);
        loop {
            if let Some(at) = self.seen.lock().unwrap().get(&key) {
                return *at;
            }
            assert!(begun.elapsed() < LIMIT, "{name} is not seen as {step:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn step(cluster: &TenantCluster) -> Option<Step> {
    let status = cluster.status.as_ref()?;
    if status.quota.is_some() {
        return Some(Step::Reserved);
    }
    let mut conditions = status.conditions.iter();
    let waits =
        conditions.any(|condition| condition.type_ == conditions::QUOTA_RESERVED && condition.status == "False");
    waits.then_some(Step::Waiting)
}
