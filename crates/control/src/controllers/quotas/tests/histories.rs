//! Random histories: tenants come and go, watches are behind, the Project loses its namespace and gets it back, reservations are recorded
//! and tenants created one by one, and control ends between any two of these steps. There are never more tenants than the quota allows,
//! and in the end there are as many.

use super::{Fixture, PROJECT, tenant_path};
use crate::{
    controllers::quotas::{Pace, reconcile},
    quota_ledger::{LEFT_PROJECT, Verdict},
};
use berth_api::{TenantCluster, conditions::QUOTA_RESERVED};
use jiff::Timestamp;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// Tenants for which there is quota.
const QUOTA: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// A tenant is created, in this second.
    Create(u32),
    Delete(usize),
    /// The Project loses the namespace, or gets it back.
    Move,
    /// The watches show what there is.
    Observe,
    Decide,
    /// The reconcile of a tenant records its reservation and its condition.
    Record(usize),
    /// The reconcile of a tenant creates its first objects.
    Build(usize),
    /// Control ends, and the next one starts.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..60_u32).prop_map(Step::Create),
        1 => (0..8_usize).prop_map(Step::Delete),
        1 => Just(Step::Move),
        4 => Just(Step::Observe),
        4 => Just(Step::Decide),
        5 => (0..8_usize).prop_map(Step::Record),
        5 => (0..8_usize).prop_map(Step::Build),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

struct World {
    fixture: Fixture,
    created: u32,
    /// Names of the tenants of which something exists.
    built: BTreeSet<String>,
    /// Names of the tenants whose status says that they belong to a Project, or did.
    shown: BTreeSet<String>,
    is_named: bool,
}

impl World {
    fn new() -> Self {
        Self {
            fixture: Fixture::new(QUOTA),
            created: 0,
            built: BTreeSet::new(),
            shown: BTreeSet::new(),
            is_named: true,
        }
    }

    async fn follow(&mut self, step: &Step) {
        match *step {
            Step::Create(second) => {
                self.created += 1;
                let name = format!("t{}", self.created);
                self.fixture.add_tenant(&name, "team", second, &Value::Null);
            }
            Step::Delete(index) => {
                let all = self.fixture.host.find("/tenantclusters/");
                if let Some(found) = all.get(index) {
                    let name = found["metadata"]["name"].as_str().unwrap().to_owned();
                    self.fixture.host.remove(&tenant_path(&name, "team"));
                    self.built.remove(&name);
                }
            }
            Step::Move => self.name_namespace(!self.is_named),
            Step::Observe => self.observe(),
            Step::Decide => {
                reconcile(&self.fixture.context).await.unwrap();
            }
            Step::Record(index) => self.with_tenant(index, Self::record),
            Step::Build(index) => self.with_tenant(index, Self::build),
            Step::Restart => {
                self.fixture.context.quotas = Arc::default();
                self.fixture.context.pace = Pace::default();
                self.observe();
            }
        }
    }

    fn name_namespace(&mut self, is_named: bool) {
        self.is_named = is_named;
        let namespaces = if is_named { json!(["team"]) } else { json!([]) };
        self.fixture
            .change(PROJECT, |project| project["spec"]["namespaces"] = namespaces);
    }

    fn observe(&mut self) {
        self.fixture.writers.update(&self.fixture.host);
    }

    /// Calls `step` with a tenant as the watches show it, and what was decided about it.
    fn with_tenant(&mut self, index: usize, step: fn(&mut Self, &TenantCluster, &Verdict)) {
        let stores = &self.fixture.context.stores;
        let mut shown = stores.tenants.state();
        shown.sort_by_key(|cluster| cluster.name_any());
        let Some(cluster) = shown.get(index) else { return };
        let now = self.fixture.context.clock.now();
        if let Some(verdict) = self.fixture.context.quotas.verdict(stores, cluster, now) {
            step(self, cluster, &verdict);
        }
    }

    /// Only over the version that the watch has shown.
    fn record(&mut self, cluster: &TenantCluster, verdict: &Verdict) {
        let path = tenant_path(&cluster.name_any(), "team");
        let Some(mut object) = self.fixture.host.get(&path) else {
            return;
        };
        let is_newer = object["metadata"]["resourceVersion"].as_str() != cluster.resource_version().as_deref();
        let condition = condition(verdict);
        let shown = shown_reason(cluster);
        let is_recorded = recorded(cluster) == verdict.reservation()
            && condition
                .as_ref()
                .is_none_or(|condition| condition["reason"].as_str() == shown);
        if !is_newer && !is_recorded {
            object["status"]["quota"] = json!(verdict.reservation());
            if let Some(condition) = condition {
                object["status"]["conditions"] = json!([condition]);
                self.shown.insert(cluster.name_any());
            }
            self.fixture.host.insert(&path, object);
        }
    }

    /// Only what the watch shows as recorded.
    fn build(&mut self, cluster: &TenantCluster, verdict: &Verdict) {
        let path = tenant_path(&cluster.name_any(), "team");
        if *verdict == Verdict::NoProject && !self.built.contains(&cluster.name_any()) {
            assert!(
                !self.shown.contains(&cluster.name_any()),
                "it belonged to a Project and would be created without quota"
            );
        }
        let may_exist = matches!(verdict, Verdict::Reserved { .. }) && recorded(cluster) == verdict.reservation();
        if let Some(mut object) = self.fixture.host.get(&path).filter(|_| may_exist) {
            object["status"]["controlPlaneNamespace"] = "berth-cp".into();
            self.fixture.host.insert(&path, object);
            self.built.insert(cluster.name_any());
        }
    }

    fn count_recorded(&self) -> usize {
        let all = self.fixture.host.find("/tenantclusters/");
        all.iter()
            .filter(|cluster| !cluster["status"]["quota"].is_null())
            .count()
    }

    fn check(&self) {
        let quota = QUOTA as usize;
        assert!(self.built.len() <= quota, "{:?}", self.built);
        assert!(self.count_recorded() <= quota);
    }

    /// Lets everything happen that is due.
    async fn settle(&mut self) {
        let count = self.fixture.host.find("/tenantclusters/").len();
        self.name_namespace(true);
        for _ in 0..3 {
            self.follow(&Step::Observe).await;
            self.follow(&Step::Decide).await;
            for index in 0..count {
                self.follow(&Step::Record(index)).await;
            }
            self.check();
        }
        assert_eq!(self.count_recorded(), count.min(QUOTA as usize));
    }
}

/// What the status says of a decision.
fn condition(verdict: &Verdict) -> Option<Value> {
    let (status, reason) = match verdict {
        Verdict::NoProject => return None,
        Verdict::Reserved { .. } => ("True", "Reserved"),
        Verdict::Waiting {
            reason: LEFT_PROJECT, ..
        } => ("Unknown", LEFT_PROJECT),
        Verdict::Waiting { reason, .. } => ("False", *reason),
    };
    Some(json!({
        "type": QUOTA_RESERVED, "status": status, "reason": reason, "message": "", "lastTransitionTime": Timestamp::now(),
    }))
}

fn shown_reason(cluster: &TenantCluster) -> Option<&str> {
    let conditions = &cluster.status.as_ref()?.conditions;
    conditions.first().map(|condition| condition.reason.as_str())
}

fn recorded(cluster: &TenantCluster) -> Option<&berth_api::QuotaReservation> {
    cluster.status.as_ref()?.quota.as_ref()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_history_exceeds_the_quota(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                world.follow(step).await;
                world.check();
            }
            world.settle().await;
        });
    }
}

#[tokio::test]
async fn each_call_of_a_decision_may_fail_and_what_was_decided_counts() {
    for number in 0.. {
        let mut fixture = Fixture::new(1);
        for (name, second) in [("old", 1), ("young", 2)] {
            fixture.add_tenant(name, "team", second, &Value::Null);
        }
        fixture.script.fail_call(number);
        fixture.writers.update(&fixture.host);
        let result = reconcile(&fixture.context).await;
        assert_eq!(fixture.reserved(), ["old"]);
        if fixture.script.failed().is_none() {
            assert!(number > 1 && result.is_ok(), "{number} calls: {result:?}");
            return;
        }
        fixture.reconcile().await;
        assert_eq!(fixture.reserved(), ["old"]);
        assert_eq!(fixture.status(PROJECT)["waitingTenants"], 1, "call {number}");
    }
}

#[tokio::test]
async fn a_write_of_an_earlier_control_that_comes_late_has_no_effect() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("first", "team", 1, &Value::Null);
    fixture.add_tenant("second", "team", 2, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["first"]);
    let late = json!({"projectName": "vision", "reserved": {"tenantclusters": 1}});
    fixture.change(&tenant_path("second", "team"), |cluster| {
        cluster["status"] = json!({"quota": late});
    });
    fixture.context.pace.repeat();
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["first"]);
    let verdicts = fixture.context.quotas.verdicts();
    assert!(
        matches!(verdicts["second"], Verdict::Waiting { kept: None, .. }),
        "{verdicts:?}"
    );
}
