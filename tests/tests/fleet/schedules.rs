//! Schedules, by a clock that the test sets.

use crate::setup::{CLOCK, NAMESPACE, SOON, Team, until_all_free};
use berth_api::{
    NodeGroup, SchedulePeriod, SchedulePolicy, ScheduleState, TENANT_SCHEDULE, TenantCluster, TenantSchedule,
    conditions,
};
use berth_tests::{observer::Observer, test_cluster::TestCluster, wait::until_true};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAME: &str = "scheduled";

/// The policy, and the moments around its window.
struct Nights {
    tenants: Api<TenantCluster>,
    policies: Api<SchedulePolicy>,
    /// When the test began.
    began: i64,
    /// When the window opens.
    opens: i64,
}

impl Nights {
    /// A policy that stops the tenant, or these workloads of it, two hours from now, for an hour.
    async fn create(host: &TestCluster, workloads: Option<Value>) -> Self {
        let began = Timestamp::now().as_second();
        let opens = (began + 7200) / 60 * 60;
        let (minute, hour) = (opens / 60 % 60, opens / 3600 % 24);
        let policies: Api<SchedulePolicy> = Api::all(host.client.clone());
        let mut target = json!({"kind": "TenantCluster", "namespace": NAMESPACE, "name": NAME});
        if let Some(workloads) = workloads {
            target["workloads"] = workloads;
        }
        let policy = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "SchedulePolicy", "metadata": {"name": "nights"},
            "spec": {
                "timeZone": "UTC", "targets": [target],
                "windows": [{"name": "night", "action": "Stop", "schedule": format!("{minute} {hour} * * *"), "duration": "1h"}],
            },
        }));
        policies.create(&PostParams::default(), &policy.unwrap()).await.unwrap();
        Self {
            tenants: host.tenants(NAMESPACE),
            policies,
            began,
            opens,
        }
    }

    /// Sets control's clock to so many seconds after the window opens.
    fn set_clock(&self, after_opening: i64) {
        CLOCK.set_ahead(self.opens + after_opening - self.began);
    }

    /// The reason of the condition of the tenant. A change of the objects makes control look at its clock at once.
    async fn reason(&self) -> String {
        let touched = json!({"metadata": {"annotations": {"example.com/touched": Timestamp::now().to_string()}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&touched));
        let tenant = self.tenants.patch(NAME, &params, &patch).await.unwrap();
        self.policies.patch("nights", &params, &patch).await.unwrap();
        let status = tenant.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let found = conditions.find(|condition| condition.type_ == conditions::WITHIN_SCHEDULE);
        found.map(|condition| condition.reason).unwrap_or_default()
    }

    async fn until_reason(&self, reason: &str) {
        until_true(&format!("the schedule says {reason}"), SOON, async || {
            self.reason().await == reason
        })
        .await;
    }
}

pub(crate) async fn a_stop_releases_the_nodes_and_gives_them_back(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let team = Team::create(&host, NAME, None, vec![NodeGroup::private("train", "h100", 1)]).await;
    until_true("it has its node", SOON, async || team.group().await.assigned == 1).await;
    let nights = Nights::create(&host, None).await;
    nights.until_reason("Running").await;
    until_true("the policy shows its next changes", SOON, async || {
        let status = nights.policies.get("nights").await.unwrap().status.unwrap_or_default();
        let next = status
            .next_transitions
            .first()
            .map(|next| (next.time.0.as_second(), next.state));
        status.state == Some(ScheduleState::Running) && next == Some((nights.opens, ScheduleState::Stopped))
    })
    .await;
    team.run("before", 8, &json!({})).await;
    until_true("its pod runs", SOON, async || team.running().await == 1).await;

    nights.set_clock(-5 * 60);
    nights.until_reason("StopsSoon").await;
    assert_eq!(
        (team.held().await, team.running().await),
        (1, 1),
        "a warning takes nothing"
    );
    let events: Api<Event> = Api::namespaced(host.client.clone(), NAMESPACE);
    until_true("the team is warned", SOON, async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.iter().any(|event| event.reason.as_deref() == Some("StopsSoon"))
    })
    .await;

    nights.set_clock(60);
    nights.until_reason("Stopped").await;
    until_true("the tenant has no node", SOON, async || team.held().await == 0).await;
    assert_eq!(team.running().await, 0);
    until_true("no pod can be made", SOON, async || {
        let pod = team.pod("during", 8, &json!({}));
        let made = team.pods.create(&PostParams::default(), &pod).await;
        if made.is_ok() {
            team.stop("during").await;
        }
        made.is_err_and(|error| error.to_string().contains("exceeded quota"))
    })
    .await;

    nights.set_clock(3600 + 60);
    nights.until_reason("Running").await;
    until_true("the tenant has its node again", SOON, async || {
        team.group().await.assigned == 1
    })
    .await;
    until_true("pods can be made again", SOON, async || {
        let pod = team.pod("after", 8, &json!({}));
        team.pods.create(&PostParams::default(), &pod).await.is_ok()
    })
    .await;
    until_true("its pod runs", SOON, async || team.running().await == 1).await;

    CLOCK.set_ahead(0);
    nights
        .policies
        .delete("nights", &DeleteParams::default())
        .await
        .unwrap();
    until_true("no schedule is left", SOON, async || {
        let status = team.cluster().await.status.unwrap_or_default();
        let schedule = status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == conditions::WITHIN_SCHEDULE);
        schedule.is_some_and(|condition| condition.reason == "NoSchedule")
    })
    .await;
    team.delete(&host).await;
    until_all_free(&host).await;
    observer.finish().await;
}

/// The periods of the one policy for workloads, as control publishes them.
async fn published(schedules: &Api<TenantSchedule>) -> Vec<(i64, ScheduleState)> {
    let schedule = schedules.get_opt(TENANT_SCHEDULE).await.unwrap();
    let rules = schedule.map(|schedule| schedule.spec.workloads).unwrap_or_default();
    let [rule] = &rules[..] else { return Vec::new() };
    let facts = |period: &SchedulePeriod| (period.from.0.as_second(), period.state);
    rule.periods.iter().map(facts).collect()
}

pub(crate) async fn a_stop_of_workloads_is_published_and_keeps_the_nodes(host: Arc<TestCluster>) {
    let team = Team::create(&host, NAME, None, vec![NodeGroup::private("train", "h100", 1)]).await;
    until_true("it has its node", SOON, async || team.group().await.assigned == 1).await;
    team.run("before", 8, &json!({})).await;
    until_true("its pod runs", SOON, async || team.running().await == 1).await;
    let nights = Nights::create(&host, Some(json!({"namespaces": ["jobs"]}))).await;
    let schedules: Api<TenantSchedule> = Api::namespaced(host.client.clone(), &team.id.control_plane_namespace());
    let (opens, closes) = (nights.opens, nights.opens + 3600);
    until_true("the next changes are published", SOON, async || {
        nights.reason().await;
        let periods = published(&schedules).await;
        periods.len() == 8
            && periods[0].1 == ScheduleState::Running
            && periods[1..3] == [(opens, ScheduleState::Stopped), (closes, ScheduleState::Running)]
    })
    .await;

    nights.set_clock(60);
    until_true("the stop is published, with its beginning", SOON, async || {
        nights.reason().await;
        published(&schedules).await.first() == Some(&(opens, ScheduleState::Stopped))
    })
    .await;
    assert_eq!(nights.reason().await, "", "the tenant as a whole runs");
    assert_eq!((team.held().await, team.running().await), (1, 1), "it keeps its node");

    CLOCK.set_ahead(0);
    nights
        .policies
        .delete("nights", &DeleteParams::default())
        .await
        .unwrap();
    until_true("nothing is published any more", SOON, async || {
        schedules.get_opt(TENANT_SCHEDULE).await.unwrap().is_none()
    })
    .await;
    team.delete(&host).await;
    until_all_free(&host).await;
}
