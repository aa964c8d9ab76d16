//! The controller against an API server in memory.

use super::*;
use crate::{
    events::EventRecorder,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_api::{ScheduleState, TenantCluster};
use berth_runtime::queue::Queue;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

const POLICY: &str = "/apis/berth.dev/v1alpha1/schedulepolicies/nights";
const CLASS: &str = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
const TENANT: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
/// 5 May 2026, 12:00 in UTC.
const NOON: i64 = 1_777_982_400;

struct Fixture {
    host: ScriptedApi,
    context: SchedulePolicyContext,
    writers: StoreWriters,
    clock: Arc<AtomicI64>,
}

impl Fixture {
    fn new() -> Self {
        let host = ScriptedApi::new("host", &Script::default());
        host.insert(CLASS, json!({"metadata": {"name": "gold"}, "spec": {}}));
        host.insert(
            TENANT,
            json!({
                "metadata": {"name": "vision", "namespace": "team", "uid": "u"},
                "spec": {"className": "gold"},
            }),
        );
        let (stores, writers) = StoreWriters::new();
        let clock = Arc::new(AtomicI64::new(NOON));
        let of_schedules = Arc::clone(&clock);
        let context = SchedulePolicyContext {
            client: host.client(),
            stores,
            schedules: Arc::new(Schedules::new(move || {
                Timestamp::from_second(of_schedules.load(Ordering::Relaxed)).unwrap()
            })),
            queue: Queue::new(),
            recorder: EventRecorder::new(host.client()),
        };
        Self {
            host,
            context,
            writers,
            clock,
        }
    }

    fn put(&self, generation: i64, zone: &str, class: &str) {
        self.put_for(generation, zone, &json!({"kind": "TenantClass", "name": class}));
    }

    fn put_for(&self, generation: i64, zone: &str, target: &Value) {
        let spec = json!({
            "timeZone": zone, "targets": [target],
            "windows": [{"name": "night", "action": "Stop", "schedule": "0 22 * * *", "duration": "8h"}],
        });
        let mut policy = self.host.get(POLICY).unwrap_or_else(|| json!({}));
        policy["metadata"] = json!({"name": "nights", "uid": "p", "generation": generation});
        policy["spec"] = spec;
        self.host.insert(POLICY, policy);
    }

    async fn reconcile(&mut self) -> Option<Duration> {
        self.writers.update(&self.host);
        reconcile(&self.context, "nights").await.unwrap()
    }

    fn ready(&self) -> (Value, Value, String) {
        let policy = self.host.get(POLICY).unwrap();
        let condition = policy["status"]["conditions"][0].clone();
        let message = condition["message"].as_str().unwrap_or_default().to_owned();
        (condition["status"].clone(), condition["reason"].clone(), message)
    }

    /// What the planner reads.
    fn state(&self) -> ScheduleState {
        let now = self.context.schedules.now();
        let observed = self.context.schedules.observe(&self.context.stores, now);
        observed.state(&self.tenant())
    }

    fn tenant(&self) -> TenantCluster {
        serde_json::from_value(self.host.get(TENANT).unwrap()).unwrap()
    }

    fn set_clock(&self, hours_after_noon: i64) {
        self.clock.store(NOON + hours_after_noon * 3600, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn the_status_shows_the_state_and_the_next_changes() {
    let mut fixture = Fixture::new();
    fixture.put(1, "UTC", "gold");
    let pause = fixture.reconcile().await;
    assert_eq!(pause, Some(Duration::from_secs(60)), "a change of the clock is noticed");
    assert_eq!(fixture.ready().1, "Ready");
    let status = fixture.host.get(POLICY).unwrap()["status"].clone();
    assert_eq!(status["state"], "Running");
    let next: Vec<(&str, &str)> = status["nextTransitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|next| (next["time"].as_str().unwrap(), next["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        next,
        [
            ("2026-05-05T22:00:00Z", "Stopped"),
            ("2026-05-06T06:00:00Z", "Running"),
            ("2026-05-06T22:00:00Z", "Stopped"),
        ]
    );
    // Control was down for half a day.
    fixture.set_clock(14);
    fixture.reconcile().await;
    let status = fixture.host.get(POLICY).unwrap()["status"].clone();
    assert_eq!(
        (&status["state"], &status["window"]),
        (&json!("Stopped"), &json!("night"))
    );
    assert_eq!(status["nextTransitions"][0]["time"], "2026-05-06T06:00:00Z");
}

#[tokio::test]
async fn a_pass_without_a_change_writes_nothing() {
    let mut fixture = Fixture::new();
    fixture.put(1, "UTC", "gold");
    fixture.reconcile().await;
    let before = fixture.host.get(POLICY);
    fixture.set_clock(1);
    fixture.reconcile().await;
    assert_eq!(fixture.host.get(POLICY), before);
}

#[tokio::test]
async fn tenants_of_a_target_follow_the_clock_and_the_newest_spec() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.state(), ScheduleState::Running);
    fixture.put(1, "UTC", "gold");
    fixture.reconcile().await;
    assert_eq!(fixture.state(), ScheduleState::Running);
    fixture.set_clock(11);
    assert_eq!(fixture.state(), ScheduleState::Stopped);
    // Another class.
    fixture.put(2, "UTC", "silver");
    fixture.reconcile().await;
    assert_eq!(fixture.state(), ScheduleState::Running);
    assert_eq!(fixture.ready().1, "TargetNotFound");
    assert!(fixture.ready().2.contains("TenantClass silver"));
    fixture.put(3, "UTC", "gold");
    fixture.reconcile().await;
    assert_eq!(fixture.state(), ScheduleState::Stopped);
    fixture.host.remove(POLICY);
    assert_eq!(fixture.reconcile().await, None);
    assert_eq!(fixture.state(), ScheduleState::Running);
}

#[tokio::test]
async fn tenants_of_a_project_and_of_its_organization_are_stopped_as_soon_as_these_exist() {
    for kind in ["Project", "Organization"] {
        let mut fixture = Fixture::new();
        fixture.set_clock(11);
        fixture.put_for(1, "UTC", &json!({"kind": kind, "name": "research"}));
        fixture.reconcile().await;
        assert_eq!(fixture.ready().1, "TargetNotFound");
        assert_eq!(fixture.state(), ScheduleState::Running);
        // A Project and an Organization may have the same name.
        fixture.host.insert(
            "/apis/berth.dev/v1alpha1/projects/research",
            json!({
                "metadata": {"name": "research"}, "spec": {"organizationName": "research", "namespaces": ["team"]},
            }),
        );
        let organization = "/apis/berth.dev/v1alpha1/organizations/research";
        fixture
            .host
            .insert(organization, json!({"metadata": {"name": "research"}, "spec": {}}));
        fixture.reconcile().await;
        assert_eq!(fixture.ready().1, "Ready");
        assert_eq!(fixture.state(), ScheduleState::Stopped);
        fixture.host.remove(organization);
        fixture.reconcile().await;
        let of_project = kind == "Project";
        let (reason, state) = if of_project {
            ("Ready", ScheduleState::Stopped)
        } else {
            ("TargetNotFound", ScheduleState::Running)
        };
        assert_eq!((fixture.ready().1, fixture.state()), (json!(reason), state));
    }
}

#[tokio::test]
async fn an_invalid_policy_says_so_and_stops_nobody() {
    let mut fixture = Fixture::new();
    fixture.put(1, "UTC", "gold");
    fixture.reconcile().await;
    fixture.set_clock(11);
    fixture.put(2, "Europe/Bonn", "gold");
    fixture.reconcile().await;
    assert_eq!(fixture.state(), ScheduleState::Running);
    let (status, reason, message) = fixture.ready();
    assert_eq!((status, reason), (json!("False"), json!("InvalidSpec")));
    assert!(message.contains("spec.timeZone: \"Europe/Bonn\""), "{message}");
    let events = fixture
        .host
        .find("/apis/events.k8s.io/v1/namespaces/default/events/nights.");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["type"], "Warning");
}

#[tokio::test]
async fn a_change_wakes_nodes_and_tenants_once() {
    let mut fixture = Fixture::new();
    for generation in [1, 2] {
        fixture.state();
        fixture.put(generation, "UTC", "gold");
        fixture.reconcile().await;
        assert_eq!(fixture.context.queue.len(), 2, "the nodes and the tenant");
        fixture.context.queue = Queue::new();
        fixture.state();
        fixture.reconcile().await;
        assert_eq!(fixture.context.queue.len(), 0, "nothing has changed");
    }
}

#[tokio::test]
async fn the_nodes_are_planned_again_at_the_next_change() {
    let mut fixture = Fixture::new();
    fixture.put(1, "UTC", "gold");
    fixture.reconcile().await;
    let now = fixture.context.schedules.now();
    let observed = fixture.context.schedules.observe(&fixture.context.stores, now);
    assert_eq!(observed.next_change, Some(now + SignedDuration::from_hours(10)));
}

#[tokio::test]
async fn projects_are_read_once_for_all_tenants() {
    let mut fixture = Fixture::new();
    fixture.put(1, "UTC", "gold");
    fixture.reconcile().await;
    let computed = |fixture: &Fixture| fixture.context.schedules.hierarchy.computed();
    let before = computed(&fixture);
    for _ in 0..10 {
        let stack = fixture
            .context
            .schedules
            .of_tenant(&fixture.context.stores, &fixture.tenant());
        assert!(!stack.is_empty());
        fixture.state();
    }
    assert_eq!(computed(&fixture), before);
    fixture.reconcile().await;
    fixture.state();
    assert_eq!(computed(&fixture), before + 1, "the watches have seen something");
}
