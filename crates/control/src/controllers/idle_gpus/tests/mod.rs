//! Passes with a host and a Prometheus in memory.

mod evictions;
mod nodes;
mod schedules;
mod steps;

use super::*;
use crate::{
    clock::Clock,
    controllers::schedule_policy::Schedules,
    events::EventRecorder,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_api::{IdleReclaim, TenantClass, TenantClassSpec, TenantCluster, TenantClusterSpec, labels, names::TenantId};
use berth_idle_reclaim::query::QuerySettings;
use berth_prometheus::Prometheus;
use berth_runtime::locks::lock;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::{Client, client::Body};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Mutex};

pub(super) const CLUSTER: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
pub(super) const POD: &str = "/api/v1/namespaces/berth-w/pods/train-host";

/// The one GPU of the fleet, as Prometheus knows it.
#[derive(Clone, Default)]
pub(super) struct Gpu(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// How active it is; none: Prometheus answers with an error.
    activity: Option<f64>,
    /// Queries that were answered.
    answered: usize,
    /// How often Prometheus was asked for its time, with which a pass begins and then what is asked before an eviction.
    begun: usize,
    /// What it does from the time on that Prometheus was asked for its time so often.
    later: Option<(usize, Option<f64>)>,
    /// How long each answer takes from then on.
    slow: Option<(usize, Duration)>,
    /// Namespaces and names of further pods, each with a GPU that is as active.
    others: Vec<(String, String)>,
}

impl Gpu {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        lock(&self.0)
    }

    pub(super) fn set(&self, activity: Option<f64>) {
        let mut known = self.known();
        known.activity = activity;
        known.later = None;
    }

    /// Changes what it does after the queries of the next pass.
    fn set_after_pass(&self, activity: Option<f64>) {
        let mut known = self.known();
        known.later = Some((known.begun + 2, activity));
    }

    /// Lets each answer take a while after the queries of the next pass.
    fn delay_after_pass(&self, delay: Duration) {
        let mut known = self.known();
        known.slow = Some((known.begun + 2, delay));
    }

    /// Notes a query. Returns how long its answer takes.
    fn begin(&self, query: &str) -> Duration {
        let mut known = self.known();
        known.begun += usize::from(query.contains("vector"));
        let slow = known.slow.filter(|(from, _)| known.begun >= *from);
        slow.map(|(_, delay)| delay).unwrap_or_default()
    }

    /// Queries that were answered until now.
    fn answered(&self) -> usize {
        self.known().answered
    }

    fn activity(&self) -> Option<f64> {
        let mut known = self.known();
        if let Some((_, activity)) = known.later.filter(|(from, _)| known.begun >= *from) {
            known.activity = activity;
        }
        known.answered += 1;
        known.activity
    }

    /// The answer to a query, by what it aggregates.
    fn answer(&self, query: &str) -> (StatusCode, Value) {
        let Some(activity) = self.activity() else {
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                json!({"status": "error", "error": "starting"}),
            );
        };
        let time = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("time="))
            .unwrap_or("0");
        let value = if query.contains("timestamp") {
            time.to_owned()
        } else if query.contains("count_over_time") {
            "60".to_owned()
        } else if query.contains("POWER") {
            "80".to_owned()
        } else {
            activity.to_string()
        };
        let row = |number: usize, namespace: &str, pod: &str| {
            let labels = json!({"UUID": format!("GPU-{number}"), "modelName": "NVIDIA H100", "exported_namespace": namespace,
                "exported_pod": pod, "namespace": "gpu-operator", "pod": "dcgm-exporter-1"});
            json!({"metric": labels, "value": [0, value]})
        };
        let mut rows = vec![row(1, "berth-w", "train-host")];
        for (number, (namespace, pod)) in self.known().others.iter().enumerate() {
            rows.push(row(number + 2, namespace, pod));
        }
        (
            StatusCode::OK,
            json!({"status": "success", "data": {"resultType": "vector", "result": rows}}),
        )
    }

    fn prometheus(&self) -> Prometheus {
        let gpu = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let gpu = gpu.clone();
            async move {
                let bytes = request.into_body().collect_bytes().await.unwrap();
                let query = String::from_utf8_lossy(&bytes);
                tokio::time::sleep(gpu.begin(&query)).await;
                let (status, answer) = gpu.answer(&query);
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        Prometheus::with_client(Client::new(service, "default"), Duration::from_secs(30))
    }
}

/// One tenant with one pod, whose class reclaims idle GPUs.
pub(super) struct Fleet {
    pub(super) host: ScriptedApi,
    pub(super) script: Script,
    writers: StoreWriters,
    pub(super) context: IdleGpusContext,
    pub(super) memory: Memory,
    pub(super) gpu: Gpu,
    minutes: i64,
}

impl Fleet {
    pub(super) fn new(mode: IdleReclaimMode) -> Self {
        let script = Script::default();
        let host = ScriptedApi::new("host", &script);
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.spec.class_name = Some("gold".into());
        cluster.metadata.namespace = Some("team".into());
        cluster.metadata.uid = Some("tenant-uid".into());
        host.insert(CLUSTER, serde_json::to_value(cluster).unwrap());
        let (stores, writers) = StoreWriters::new();
        let client = host.client();
        let (gpu, clock) = (Gpu::default(), Clock::default());
        let context = IdleGpusContext {
            stores,
            tenants: Arc::default(),
            schedules: Arc::new(Schedules::new({
                let clock = clock.clone();
                move || clock.now()
            })),
            clock,
            source: Some(GpuMetricsSource {
                prometheus: gpu.prometheus(),
                settings: QuerySettings::default(),
                interval: INTERVAL,
            }),
            metrics: Metrics::new(&mut Registry::default()),
            recorder: EventRecorder::new(client.clone()),
            client,
        };
        let fleet = Self {
            host,
            script,
            writers,
            context,
            memory: Memory::default(),
            gpu,
            minutes: 0,
        };
        fleet.set_mode(mode);
        fleet.run_pod(&TenantId::new("vision", "tenant-uid"), "berth-w", "train");
        fleet
    }

    /// One whose GPU has done nothing for so many minutes, with a pass in each of them.
    async fn idle_for(minutes: i64, mode: IdleReclaimMode) -> Self {
        let mut fleet = Self::new(mode);
        fleet.gpu.set(Some(0.0));
        fleet.run(minutes).await;
        fleet
    }

    /// One whose pod is due in the next pass.
    async fn due_next() -> Self {
        Self::idle_for(40, IdleReclaimMode::Enforce).await
    }

    fn set_mode(&self, mode: IdleReclaimMode) {
        self.set_rules(IdleReclaim {
            mode,
            ..IdleReclaim::default()
        });
    }

    /// Sets the rules of the class.
    pub(super) fn set_rules(&self, rules: IdleReclaim) {
        let spec = TenantClassSpec {
            idle_reclaim: rules,
            ..TenantClassSpec::default()
        };
        let class = TenantClass::new("gold", spec);
        let path = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
        self.host.insert(path, serde_json::to_value(class).unwrap());
    }

    /// A policy that lets no pod of these workloads of the tenant start, or with `null` no pod at all.
    fn put_policy(&self, workloads: &Value) {
        let mut target = json!({"kind": "TenantClass", "name": "gold"});
        if !workloads.is_null() {
            target["workloads"] = workloads.clone();
        }
        let window = json!({"name": "always", "action": "Forbid", "schedule": "0 0 * * *", "duration": "24h"});
        let spec = json!({"timeZone": "UTC", "targets": [target], "windows": [window]});
        let path = "/apis/berth.dev/v1alpha1/schedulepolicies/closed";
        let metadata = json!({"name": "closed", "uid": "p", "generation": 1});
        self.host.insert(path, json!({"metadata": metadata, "spec": spec}));
    }

    /// Another tenant of the class, with such a pod as the first one has, of this name. Nothing is known of what the host pod says.
    pub(super) fn add_tenant(&self, name: &str) {
        let uid = format!("{name}-uid");
        let mut cluster = self.host.get(CLUSTER).unwrap();
        cluster["metadata"]["name"] = name.into();
        cluster["metadata"]["uid"] = uid.as_str().into();
        let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/{name}");
        self.host.insert(&path, cluster);
        let namespace = "berth-others".to_owned();
        let host_name = self.run_pod(&TenantId::new(name, &uid), &namespace, name);
        self.gpu.known().others.push((namespace, host_name));
    }

    /// A host pod in this namespace, which has run for a day, of a pod of a tenant with this name. Returns its own name.
    fn run_pod(&self, tenant: &TenantId, namespace: &str, name: &str) -> String {
        let started = Timestamp::now() - jiff::SignedDuration::from_hours(24);
        let host_name = format!("{name}-host");
        let pod = json!({
            "metadata": {
                "name": host_name, "namespace": namespace, "uid": format!("{name}-pod"), "labels": {labels::TENANT: tenant.slug()},
                "annotations": {
                    labels::ORIGIN_NAMESPACE: "ml", labels::ORIGIN_NAME: name, labels::ORIGIN_UID: format!("{name}-uid"),
                },
            },
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}},
            ]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
                "ready": true, "restartCount": 0, "state": {"running": {"startedAt": started.to_string()}}}]},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{host_name}");
        self.host.insert(&path, pod.clone());
        let read = crate::gpu_pods::read_pod(&serde_json::from_value(pod).unwrap());
        self.context
            .stores
            .gpu_pods
            .put(&format!("{namespace}/{host_name}"), read);
        host_name
    }

    /// What the controller of tenants and watches do between two passes.
    fn update_views(&mut self) {
        for path in self.host.paths() {
            if path.contains("/tenantclusters/") {
                let mut cluster = self.host.get(&path).unwrap();
                cluster["status"]["className"] = json!("gold");
                self.host.insert(&path, cluster);
            }
        }
        self.writers.update(&self.host);
        let conditions = self.host.get(POD).map(|pod| pod["status"]["conditions"].clone());
        let pods = self.context.stores.gpu_pods.by_tenant();
        let Some(pod) = pods.values().flatten().find(|pod| pod.name == "train-host") else {
            return;
        };
        let mut pod = GpuPod::clone(pod);
        pod.condition = conditions
            .as_ref()
            .and_then(|conditions| conditions.get(0))
            .map(|condition| berth_idle_reclaim::pod::ObservedCondition {
                is_true: condition["status"] == "True",
                reason: condition["reason"].as_str().unwrap_or_default().to_owned(),
            });
        self.context.stores.gpu_pods.put("berth-w/train-host", Some(pod));
    }

    /// One pass in each of these minutes.
    pub(super) async fn run(&mut self, minutes: i64) {
        for _ in 0..minutes {
            self.update_views();
            self.context.clock.set_ahead(self.minutes * 60);
            run_pass(&self.context, &mut self.memory).await;
            self.minutes += 1;
        }
    }

    /// The last step, as the status has it.
    pub(super) fn step(&self) -> Option<String> {
        let cluster = self.host.get(CLUSTER)?;
        Some(cluster["status"]["idle"]["workloads"][0]["step"].as_str()?.to_owned())
    }

    fn condition(&self) -> Value {
        self.host.get(POD).unwrap()["status"]["conditions"][0].clone()
    }

    fn events(&self) -> usize {
        self.host.find("/events.k8s.io/v1/namespaces/berth-w/").len()
    }

    pub(super) fn evictions(&self) -> usize {
        let calls = self.script.calls();
        calls.iter().filter(|call| call.text.ends_with("/eviction")).count()
    }
}
