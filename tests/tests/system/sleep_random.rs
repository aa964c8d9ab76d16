//! Random sleeps and wakes of a tenant with a Deployment, a StatefulSet with volumes, Jobs that are half done, a CronJob and a Lease, while
//! control is killed at random. What the API server accepted is there afterwards, each workload runs again, and no part of a Job that
//! has succeeded runs twice.
//!
//! `BERTH_SLEEP_ROUNDS` sets the number of sleeps (default 2), `BERTH_RANDOM_SEED` the seed.

use crate::sleep::kill_control;
use berth_api::{SleepState, TenantClass, labels, names::host_name};
use berth_tests::{
    dice::Dice,
    objects::{apply, phase},
    sleep::{request, request_sleep, status, until_nothing_runs, until_state},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    coordination::v1::Lease,
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;

/// Name of the namespace, the classes and the tenant.
const NAME: &str = "sleep-random";
/// Pods of the StatefulSet, each with a volume.
const MEMBERS: i32 = 2;
/// Parts of each Job. One runs at a time.
const PARTS: i32 = 3;
/// How long a part runs.
const PART_RUNS: &str = "700ms";

pub(crate) async fn nothing_is_lost_in_random_sleeps_and_nothing_runs_twice(host: Arc<TestCluster>) {
    let rounds = std::env::var("BERTH_SLEEP_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|text| text.parse().ok()).unwrap_or(2);
    eprintln!("BERTH_SLEEP_ROUNDS={rounds}");
    let mut dice = Dice::from_environment();
    let mut model = Model::begin(&host).await;
    for round in 0..rounds {
        model.change(&mut dice, round).await;
        model.sleep_and_wake(&mut dice, round).await;
        model.check().await;
    }
    model.end().await;
}

/// What must be there.
struct Model<'a> {
    host: &'a TestCluster,
    tenant: Tenant,
    /// Data of the ConfigMaps whose creation was answered.
    maps: BTreeMap<String, String>,
    /// Replicas of the Deployment.
    replicas: i32,
    /// Names of the Jobs.
    jobs: Vec<String>,
    /// Claims of the StatefulSet by name: the UID in the tenant, and the volume on the host.
    volumes: BTreeMap<String, (String, String)>,
    succeeded: Succeeded,
}

/// UIDs of pods, by Job and part.
type Uids = BTreeMap<(String, String), BTreeSet<String>>;

/// Pods of the host that have succeeded, by Job and part: the UIDs of each.
struct Succeeded {
    seen: Arc<Mutex<Uids>>,
    watch: JoinHandle<()>,
}

impl Succeeded {
    /// Follows the pods of a namespace of the host, also while control and the syncer are down.
    fn follow(host: &TestCluster, namespace: &str) -> Self {
        let pods: Api<Pod> = Api::namespaced(host.client.clone(), namespace);
        let seen: Arc<Mutex<BTreeMap<_, BTreeSet<String>>>> = Arc::default();
        let kept = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            let config = watcher::Config::default();
            let mut changed = watcher(pods, config).default_backoff().touched_objects().boxed();
            while let Some(next) = changed.next().await {
                let Ok(pod) = next else { continue };
                let label = |name: &str| pod.labels().get(name).cloned();
                let part = label("job-name").zip(label("batch.kubernetes.io/job-completion-index"));
                if let Some(part) = part
                    && phase(&pod) == "Succeeded"
                {
                    let mut seen = kept.lock().unwrap();
                    seen.entry(part)
                        .or_insert_with(BTreeSet::new)
                        .insert(pod.uid().unwrap());
                }
            }
        });
        Self { seen, watch }
    }

    /// Asserts that no part has succeeded twice. Returns how many have.
    fn count(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        for ((job, part), pods) in seen.iter() {
            assert_eq!(pods.len(), 1, "part {part} of {job} has succeeded more than once");
        }
        seen.len()
    }
}

impl<'a> Model<'a> {
    async fn begin(host: &'a TestCluster) -> Self {
        offer_volumes(host).await;
        let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
            "spec": {"sleep": {"stopsPods": true}, "sync": {"storage": {"classes": [NAME]}}}});
        apply(&host.client, "", &class).await.unwrap();
        let mut wanted = cluster(NAME, &[("train", "h100", 1)]);
        wanted.spec.class_name = Some(NAME.into());
        let tenant = Tenant::create(host, NAME, &wanted).await;
        let succeeded = Succeeded::follow(host, &tenant.id.workload_namespace());
        let mut model = Self {
            host,
            tenant,
            maps: BTreeMap::new(),
            replicas: 1,
            jobs: Vec::new(),
            volumes: BTreeMap::new(),
            succeeded,
        };
        model.create_workloads().await;
        model.until_workloads_run().await;
        model.volumes = model.find_volumes().await;
        assert_eq!(model.volumes.len(), usize::try_from(MEMBERS).unwrap());
        model
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.tenant.client.clone(), "default")
    }

    async fn apply(&self, object: &Value) {
        let name = &object["metadata"]["name"];
        let what = format!("{} {name} is applied", object["kind"]);
        // The API server may be stopped this moment.
        until(&what, SOON, async || {
            apply(&self.tenant.client, "default", object).await
        })
        .await;
    }

    async fn create_workloads(&self) {
        let template = |app: &str, spec: Value| json!({"metadata": {"labels": {"app": app}}, "spec": spec});
        let selector = |app: &str| json!({"matchLabels": {"app": app}});
        let container = json!({"name": "main", "image": "registry.example.com/any"});
        let server = json!({"containers": [container], "terminationGracePeriodSeconds": 1});
        self.apply(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 1, "selector": selector("web"), "template": template("web", server)}}),
        )
        .await;
        let mounting = json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "main",
            "image": "registry.example.com/any", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]});
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": NAME,
            "resources": {"requests": {"storage": "1Gi"}}}});
        self.apply(&json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {"replicas": MEMBERS, "serviceName": "db", "selector": selector("db"), "template": template("db", mounting),
                "volumeClaimTemplates": [claim]}}))
            .await;
        let job = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}});
        self.apply(
            &json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "yearly"},
            "spec": {"schedule": "0 0 1 1 *", "timeZone": "UTC", "jobTemplate": {"spec": job}}}),
        )
        .await;
        self.apply(
            &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "mine"},
            "spec": {"holderIdentity": "somebody", "leaseTransitions": 7}}),
        )
        .await;
    }

    /// The team works: it writes, scales, and starts a Job, which is half done when the tenant falls asleep.
    async fn change(&mut self, dice: &mut Dice, round: u64) {
        self.write(dice, round).await;
        self.replicas = i32::try_from(dice.below(4)).unwrap();
        let scale = Patch::Merge(json!({"spec": {"replicas": self.replicas}}));
        let deployments: Api<Deployment> = self.api();
        deployments.patch("web", &PatchParams::default(), &scale).await.unwrap();
        let name = format!("job-{round}");
        let annotations = json!({"simulation.berth.dev/run-for": PART_RUNS});
        let container = json!({"name": "main", "image": "registry.example.com/any"});
        // A part that a stop ends is no failure of the Job.
        let ignored = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
        self.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completions": PARTS, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 100,
                "podFailurePolicy": ignored, "template": {"metadata": {"annotations": annotations},
                    "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}}}))
            .await;
        self.jobs.push(name);
        tokio::time::sleep(Duration::from_millis(dice.below(2500))).await;
    }

    async fn write(&mut self, dice: &mut Dice, round: u64) {
        for number in 0..=dice.below(5) {
            let (name, value) = (format!("map-{round}-{number}"), dice.below(1_000_000).to_string());
            self.apply(
                &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}),
            )
            .await;
            self.maps.insert(name, value);
        }
    }

    async fn sleep_and_wake(&mut self, dice: &mut Dice, round: u64) {
        let (host, tenant) = (self.host, &self.tenant);
        request_sleep(host, tenant).await;
        if dice.below(3) == 0 {
            kill_control(host, &[dice.below(1500)]).await;
        }
        // The first one sleeps in any case; others are woken while they fall asleep.
        if round == 0 || dice.below(4) > 0 {
            until_nothing_runs(host, tenant).await;
            let sleep = status(host, tenant).await.unwrap().sleep.unwrap();
            let wakes_at = sleep.wakes_at.expect("the CronJob wakes it").0.to_string();
            assert!(wakes_at.ends_with("-12-31T23:59:00Z"), "{wakes_at}");
            tokio::time::sleep(Duration::from_millis(dice.below(500))).await;
        } else {
            tokio::time::sleep(Duration::from_millis(dice.below(4000))).await;
        }
        for _ in 0..=dice.below(20) {
            request(host, tenant, labels::WAKE_REQUESTED_AT).await;
        }
        if dice.below(3) == 0 {
            kill_control(host, &[dice.below(3000)]).await;
        }
        until_state(host, tenant, SleepState::Awake).await;
        self.tenant = Tenant::ready(host, NAME, NAME).await;
    }

    async fn check(&self) {
        let maps: Api<ConfigMap> = self.api();
        let all = maps.list(&ListParams::default()).await.unwrap();
        for (name, value) in &self.maps {
            let found = all.iter().find(|map| map.name_any() == *name);
            let found = found.and_then(|map| map.data.as_ref()?.get("value"));
            assert_eq!(found, Some(value), "{name}");
        }
        let lease = self.api::<Lease>().get("mine").await.unwrap().spec.unwrap();
        assert_eq!(
            (lease.holder_identity.as_deref(), lease.lease_transitions),
            (Some("somebody"), Some(7))
        );
        let cron = self.api::<CronJob>().get("yearly").await.unwrap();
        assert!(cron.status.unwrap_or_default().last_schedule_time.is_none());
        self.until_workloads_run().await;
        assert_eq!(self.find_volumes().await, self.volumes);
        self.succeeded.count();
    }

    async fn until_workloads_run(&self) {
        until("the Deployment is available", SOON, async || {
            let web = self
                .api::<Deployment>()
                .get("web")
                .await
                .map_err(|error| error.to_string())?;
            let (spec, status) = (web.spec, web.status.unwrap_or_default());
            let is_available = status.available_replicas.unwrap_or_default() == self.replicas;
            if is_available
                && spec.replicas == Some(self.replicas)
                && status.replicas.unwrap_or_default() == self.replicas
            {
                return Ok(());
            }
            Err(format!("{:?} {status:?}, {}", spec.replicas, self.pods().await?))
        })
        .await;
        until("the StatefulSet is ready", SOON, async || {
            let db = self
                .api::<StatefulSet>()
                .get("db")
                .await
                .map_err(|error| error.to_string())?;
            let status = db.status.unwrap_or_default();
            if status.ready_replicas == Some(MEMBERS) {
                return Ok(());
            }
            Err(format!("{status:?}, {}", self.pods().await?))
        })
        .await;
    }

    /// The pods on both sides, for a failure.
    async fn pods(&self) -> Result<String, String> {
        let in_tenant = self.api::<Pod>().list(&ListParams::default()).await;
        let on_host: Api<Pod> = Api::namespaced(self.host.client.clone(), &self.tenant.id.workload_namespace());
        let on_host = on_host.list(&ListParams::default()).await;
        let sides = json!({"tenant": in_tenant.map_err(|error| error.to_string())?.items,
            "host": on_host.map_err(|error| error.to_string())?.items});
        Ok(sides.to_string())
    }

    async fn find_volumes(&self) -> BTreeMap<String, (String, String)> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        let on_host: Api<PersistentVolumeClaim> =
            Api::namespaced(self.host.client.clone(), &self.tenant.id.workload_namespace());
        let mut volumes = BTreeMap::new();
        let bound = on_host.list(&ListParams::default()).await.unwrap();
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            let name = claim.name_any();
            let host_name = host_name("PersistentVolumeClaim", "default", &name);
            let host_claim = bound.iter().find(|bound| bound.name_any() == host_name);
            let volume = host_claim.and_then(|bound| bound.spec.as_ref()?.volume_name.clone());
            volumes.insert(name, (claim.uid().unwrap(), volume.expect("a bound claim on the host")));
        }
        volumes
    }

    /// All Jobs end, each with every part done once.
    async fn end(self) {
        let jobs: Api<Job> = self.api();
        for name in &self.jobs {
            until(&format!("{name} is complete"), SOON, async || {
                let status = jobs.get(name).await.map_err(|error| error.to_string())?.status;
                let status = status.unwrap_or_default();
                if status.succeeded == Some(PARTS) && status.completion_time.is_some() {
                    Ok(())
                } else {
                    Err(format!("{status:?}"))
                }
            })
            .await;
        }
        let expected = self.jobs.len() * usize::try_from(PARTS).unwrap();
        until("the watch has seen every part", SOON, async || {
            let seen = self.succeeded.count();
            if seen == expected { Ok(()) } else { Err(seen) }
        })
        .await;
        let of_cron = jobs.list(&ListParams::default()).await.unwrap().items.len();
        assert_eq!(of_cron, self.jobs.len(), "the CronJob has run");
        self.succeeded.watch.abort();
        self.tenant.delete(self.host).await;
        let (classes, storage): (Api<TenantClass>, Api<StorageClass>) =
            (Api::all(self.host.client.clone()), Api::all(self.host.client.clone()));
        let volumes: Api<PersistentVolume> = Api::all(self.host.client.clone());
        let now = DeleteParams::default();
        classes.delete(NAME, &now).await.unwrap();
        storage.delete(NAME, &now).await.unwrap();
        for number in 0..MEMBERS {
            volumes.delete(&volume_name(number), &now).await.unwrap();
        }
    }
}

fn volume_name(number: i32) -> String {
    format!("{NAME}-{number}")
}

/// A StorageClass of the host, and as many volumes of it as the StatefulSet has pods.
async fn offer_volumes(host: &TestCluster) {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": NAME},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"});
    apply(&host.client, "", &class).await.unwrap();
    for number in 0..MEMBERS {
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", 
            "metadata": {"name": volume_name(number), "labels": {labels::ALLOW_ANY_CLAIM: "true"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": NAME,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": format!("/tmp/{}", volume_name(number))}}});
        apply(&host.client, "", &volume).await.unwrap();
    }
}
