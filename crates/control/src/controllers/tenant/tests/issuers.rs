//! Issuers with which no API server starts, while something else changes.

use super::fixture::Fixture;
use crate::{
    control_plane::{API_SERVER, Component, Form},
    testing::{Applied, ScriptedRuntime},
};
use berth_runtime::locks::lock;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Enough reconciles for each change.
const MAX_RECONCILES: usize = 6;
/// Part of an expression that no API server compiles.
const BROKEN: &str = "claims.(";

/// A tenant whose control plane is pods, and what its runtime has.
struct Tenant {
    fixture: Fixture,
    applied: Arc<Mutex<BTreeMap<&'static str, Applied>>>,
    refused: Arc<Mutex<Option<String>>>,
}

impl Tenant {
    /// A tenant that runs with these issuers.
    async fn with(jwt: &Value) -> Self {
        let mut fixture = Fixture::new();
        let runtime = pods(&fixture);
        let (applied, refused) = (Arc::clone(&runtime.applied), Arc::clone(&runtime.refused));
        fixture.context.runtime = Arc::new(runtime);
        fixture.give_class(&json!({"limits": {"maxRequestsInFlight": 100}}));
        let mut tenant = Self {
            fixture,
            applied,
            refused,
        };
        tenant.set(jwt);
        tenant.fixture.reconcile_until_ready().await;
        tenant.reconcile().await;
        tenant
    }

    fn set(&self, jwt: &Value) {
        self.fixture
            .change_tenant(|cluster| cluster["spec"]["authentication"] = json!({ "jwt": jwt }));
    }

    async fn reconcile(&mut self) {
        for _ in 0..MAX_RECONCILES {
            Box::pin(self.fixture.reconcile()).await.unwrap();
        }
    }

    fn api_server(&self) -> Applied {
        lock(&self.applied)[API_SERVER].clone()
    }

    /// The API server that has started last, whether or not it is the one that was applied last.
    fn started(&self) -> Component {
        self.api_server().started.unwrap()
    }

    /// Control that has forgotten everything.
    fn restart(&mut self) {
        self.fixture.context.tenants = Arc::default();
    }

    fn authentication(&self) -> (Value, Value) {
        self.fixture.reason("AuthenticationApplied")
    }
}

/// A runtime of pods, in which no API server starts with the expression.
fn pods(fixture: &Fixture) -> ScriptedRuntime {
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.form = Form::Pods { replicas: 1 };
    *lock(&runtime.refused) = Some(BROKEN.into());
    runtime
}

fn issuer(name: &str, username: &str) -> Value {
    json!({
        "issuer": {"url": format!("https://{name}.svc"), "audiences": ["vision"]},
        "claimMappings": {"username": {"expression": username}},
    })
}

fn good(name: &str) -> Value {
    issuer(name, "'x:' + claims.sub")
}

fn broken(name: &str) -> Value {
    issuer(name, BROKEN)
}

fn names(component: &Component) -> Vec<String> {
    let read: Value = serde_json::from_str(&component.files["authentication.conf"]).unwrap();
    let issuers = read["jwt"].as_array().cloned().unwrap_or_default();
    { issuers.iter() }
        .map(|one| {
            let url = one["issuer"]["url"].as_str().unwrap();
            let is_broken = one.to_string().contains(BROKEN);
            format!("{}{}", &url[8..9], if is_broken { "!" } else { "" })
        })
        .collect()
}

fn has_flag(component: &Component, flag: &str) -> bool {
    component.args.iter().any(|arg| arg == flag)
}

#[tokio::test]
async fn other_changes_are_rolled_out_although_no_api_server_starts_with_the_new_issuers() {
    let mut tenant = Tenant::with(&json!([good("a")])).await;
    assert_eq!(names(&tenant.started()), ["a"]);
    assert_eq!(tenant.authentication(), (json!("True"), json!("Applied")));
    tenant.set(&json!([good("a"), broken("b")]));
    tenant.reconcile().await;
    assert_eq!(names(&tenant.api_server().last), ["a", "b!"], "it is tried");
    assert_eq!(names(&tenant.started()), ["a"]);
    assert_eq!(tenant.authentication(), (json!("False"), json!("NotStarted")));
    assert_eq!(tenant.fixture.reason("Ready"), (json!("True"), json!("Ready")));
    for (is_restarted, most) in [(false, 200), (true, 300)] {
        if is_restarted {
            tenant.restart();
        }
        tenant
            .fixture
            .set_class(&json!({"limits": {"maxRequestsInFlight": most}}));
        tenant.reconcile().await;
        let flag = format!("--max-requests-inflight={most}");
        assert!(has_flag(&tenant.started(), &flag), "{most}");
        assert_eq!(names(&tenant.started()), ["a"]);
        assert_eq!(names(&tenant.api_server().last), ["a", "b!"], "it is tried again");
    }
    tenant.set(&json!([good("a"), good("b")]));
    tenant.reconcile().await;
    assert_eq!(names(&tenant.started()), ["a", "b"]);
    assert_eq!(tenant.authentication(), (json!("True"), json!("Applied")));
    tenant.set(&json!([]));
    tenant.reconcile().await;
    assert_eq!(names(&tenant.started()), [""; 0]);
    assert_eq!(tenant.fixture.condition("AuthenticationApplied"), None);
}

#[tokio::test]
async fn an_issuer_that_was_removed_or_changed_signs_nobody_in_although_the_next_api_server_does_not_start() {
    let mut tenant = Tenant::with(&json!([good("a"), good("b"), good("c")])).await;
    tenant.set(&json!([broken("a"), good("b")]));
    tenant.reconcile().await;
    assert_eq!(names(&tenant.started()), ["b"]);
    assert_eq!(names(&tenant.api_server().last), ["a!", "b"]);
}

/// A team that changes its issuers all the time must not keep an API server from before a change of the class.
#[tokio::test]
async fn issuers_that_change_all_the_time_keep_nothing_else_from_being_rolled_out() {
    let mut tenant = Tenant::with(&json!([good("a"), good("b")])).await;
    for round in 0..10 {
        let others = [broken("c"), issuer("d", &format!("{BROKEN}{round}"))];
        tenant.set(&json!([
            good(if round % 2 == 0 { "a" } else { "b" }),
            others[round % 2]
        ]));
        Box::pin(tenant.fixture.reconcile()).await.unwrap();
        if round == 3 {
            tenant
                .fixture
                .set_class(&json!({"limits": {"maxRequestsInFlight": 200}}));
        }
    }
    assert!(has_flag(&tenant.started(), "--max-requests-inflight=200"));
    assert_eq!(names(&tenant.started()), [""; 0], "neither is listed all the time");
}

#[tokio::test]
async fn an_api_server_that_cannot_be_replaced_says_so_and_is_ready() {
    let mut tenant = Tenant::with(&json!([])).await;
    assert_eq!(
        tenant.fixture.reason("ControlPlaneReady"),
        (json!("True"), json!("Running"))
    );
    *lock(&tenant.refused) = Some("AuthenticationConfiguration".into());
    tenant
        .fixture
        .set_class(&json!({"limits": {"maxRequestsInFlight": 200}}));
    tenant.reconcile().await;
    assert_eq!(
        tenant.fixture.reason("ControlPlaneReady"),
        (json!("True"), json!("RolloutStuck"))
    );
    let message = tenant.fixture.condition("ControlPlaneReady").unwrap()["message"].to_string();
    assert!(message.contains("the new kube-apiserver does not start"), "{message}");
}

#[tokio::test]
async fn issuers_that_are_good_are_replaced_at_once() {
    let mut tenant = Tenant::with(&json!([])).await;
    for jwt in [
        json!([good("a")]),
        json!([issuer("a", "claims.sub"), good("b")]),
        json!([good("b")]),
    ] {
        tenant.set(&jwt);
        tenant.reconcile().await;
        assert_eq!(names(&tenant.api_server().last).len(), jwt.as_array().unwrap().len());
        assert_eq!(tenant.authentication(), (json!("True"), json!("Applied")));
        // Also those of an API server of which control has seen nothing yet.
        tenant.restart();
    }
}

#[tokio::test]
async fn a_tenant_whose_first_api_server_does_not_start_starts_once_its_issuers_are_corrected() {
    let mut fixture = Fixture::new();
    let runtime = pods(&fixture);
    let applied = Arc::clone(&runtime.applied);
    fixture.context.runtime = Arc::new(runtime);
    fixture.give_class(&json!({}));
    let set = |fixture: &Fixture, jwt: Value| {
        fixture.change_tenant(|cluster| cluster["spec"]["authentication"] = json!({ "jwt": jwt }));
    };
    set(&fixture, json!([broken("a")]));
    let reconcile = async |fixture: &mut Fixture| {
        for _ in 0..MAX_RECONCILES {
            Box::pin(fixture.reconcile()).await.unwrap();
        }
    };
    reconcile(&mut fixture).await;
    assert_eq!(names(&lock(&applied)[API_SERVER].last), ["a!"]);
    set(&fixture, json!([good("a")]));
    reconcile(&mut fixture).await;
    assert_eq!(names(lock(&applied)[API_SERVER].started.as_ref().unwrap()), ["a"]);
}
