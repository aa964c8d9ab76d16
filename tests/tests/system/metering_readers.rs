//! Who sees what tenants use: a team its own sums, in the status of its tenants; readers of the platform everything, with what is clear of the prices.

use crate::sign_in_kubeconfig::get_only;
use berth_api::{RateCard, TenantCluster, UsageRecord, labels};
use berth_metering::summarize;
use berth_tests::{
    command_line::CommandLine,
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "metering-readers";
const MEMBER: &str = "metering-member";
const READER: &str = "metering-reader";
/// No other test has prices in this currency, which is for tests.
const CURRENCY: &str = "XTS";

/// The tenant, once it shows what its record says.
async fn until_shown(host: &TestCluster, tenant: &Tenant) -> TenantCluster {
    let records: Api<UsageRecord> = Api::all(host.client.clone());
    let of_tenant = ListParams::default().labels(&format!("{}={}", labels::USAGE_TENANT, tenant.id.slug()));
    until("the tenant shows what its record says", SOON, async || {
        let mut recorded = records.list(&of_tenant).await.unwrap().items;
        recorded.sort_by(|a, b| b.spec.month.cmp(&a.spec.month));
        let expected: Vec<_> = recorded.iter().map(summarize).collect();
        let cluster = host.tenants(NAMESPACE).get("seen").await.unwrap();
        let shown = cluster.status.as_ref().map(|status| &status.monthly_usage);
        if !expected.is_empty() && shown == Some(&expected) {
            Ok(cluster)
        } else {
            Err((cluster.status, recorded))
        }
    })
    .await
}

/// Lets a user read all that is in the ClusterRole for readers.
async fn bind_reader(host: &TestCluster) {
    let rbac = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": READER},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "berth-usage-reader"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": READER}],
    });
    apply(&host.client, "", &binding).await.unwrap();
}

/// A card with one price list in the currency of this test, for all usage.
async fn apply_card(host: &TestCluster, name: &str) {
    let card = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "RateCard", "metadata": {"name": name},
        "spec": {"currency": CURRENCY, "prices": [{"rates": [{"resource": "ControlPlane", "price": "3600"}]}]},
    });
    apply(&host.client, "", &card).await.unwrap();
}

fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

pub(crate) async fn a_team_sees_its_own_usage_and_readers_that_of_all(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, NAMESPACE, &cluster("seen", &[])).await;
    get_only(&host, NAMESPACE, MEMBER).await;
    let shown = until_shown(&host, &tenant).await;

    let member = CommandLine::of_user(&host, MEMBER);
    let name = format!("{NAMESPACE}/seen");
    let (out, _) = member.run(&["usage", &name, "-o", "json"], 0).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(notes(&report).contains("you may not list them"), "{out}");
    // What was metered is in the status of the tenant alone, as far as the member knows.
    let earliest = serde_json::to_value(&shown.status.unwrap().monthly_usage[0].metered_through).unwrap();
    assert!(report["meteredThrough"].as_str() >= earliest.as_str(), "{out}");
    assert_eq!(report["currencies"], json!([]));
    let (_, err) = member.run(&["usage"], 1).await;
    assert!(
        err.contains("cannot list the UsageRecords") && err.contains("name your tenant"),
        "{err}"
    );
    let (_, err) = member.run(&["usage", &name, "--by", "day"], 1).await;
    assert!(err.contains("does not have usage by day"), "{err}");

    bind_reader(&host).await;
    let reader = CommandLine::of_user(&host, READER);
    let arguments = ["usage", "-n", NAMESPACE, "--currency", CURRENCY, "-o", "json"];
    apply_card(&host, "metering-one").await;
    let report = until("the user may read records and prices", SOON, async || {
        let output = reader.berth(&arguments).await;
        if output.status.success() {
            Ok(serde_json::from_slice::<Value>(&output.stdout).unwrap())
        } else {
            Err(output)
        }
    })
    .await;
    assert!(!notes(&report).contains("you may not list them"), "{report}");
    assert!(report["total"]["costs"][CURRENCY].is_string(), "{report}");

    // The report is printed, and its exit status says that costs are missing.
    apply_card(&host, "metering-two").await;
    let (out, err) = reader.run(&arguments, 1).await;
    assert!(err.contains("costs are missing"), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(
        notes(&report).contains("RateCards metering-one and metering-two both have prices"),
        "{out}"
    );
    assert!(report["total"]["unclearHours"]["ControlPlane"].is_string(), "{out}");
    assert_eq!(report["total"]["costs"], json!({}));

    let cards: Api<RateCard> = Api::all(host.client.clone());
    for card in ["metering-one", "metering-two"] {
        cards.delete(card, &DeleteParams::default()).await.unwrap();
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(host.client.clone());
    bindings.delete(READER, &DeleteParams::default()).await.unwrap();
    tenant.delete(&host).await;
}
