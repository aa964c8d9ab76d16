//! Components of a tenant that was set back start at once, although the snapshot has the Leases of those before.

use super::{super::memory::Tenants, restore::Case};
use crate::control_plane::{CONTROLLER_MANAGER, Form};
use serde_json::json;
use std::sync::Arc;

/// A component that is elected would wait until the Lease in the snapshot is over, which nobody renews.
#[tokio::test(start_paused = true)]
async fn components_in_pods_do_not_wait_for_those_of_the_snapshot() {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{CONTROLLER_MANAGER}");
    let insert = |case: &Case| {
        let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": CONTROLLER_MANAGER, "namespace": "kube-system"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}});
        case.fixture.tenant.insert(&lease, object);
    };
    for (form, is_released) in [(Form::Pods { replicas: 1 }, true), (Form::Process, false)] {
        let mut case = Case::in_form(form).await;
        insert(&case);
        case.reconcile().await;
        assert!(case.fixture.tenant.get(&lease).is_some(), "nobody was set back");
        case.request(false);
        case.reconcile_until("Restored").await;
        assert_eq!(case.fixture.tenant.get(&lease).is_none(), is_released, "{form:?}");
        // It ran until it was stopped, also while the snapshot was compared.
        let calls = case.fixture.script.calls();
        let last = |part: &str| calls.iter().rposition(|call| call.text.contains(part)).unwrap();
        let stopped = last("runtime stop everything");
        let run = format!("runtime run {CONTROLLER_MANAGER}");
        let begun = stopped + calls.iter().skip(stopped).position(|call| call.text == run).unwrap();
        if is_released {
            let released = last(&format!("DELETE {lease}"));
            assert!(
                stopped < released && released < begun,
                "{:?}",
                calls.split_at(stopped).1
            );
        }
        // Those that run now renew theirs, and a control that begins leaves them alone.
        insert(&case);
        case.fixture.context.tenants = Arc::new(Tenants::default());
        for _ in 0..3 {
            case.reconcile().await;
        }
        assert!(case.fixture.tenant.get(&lease).is_some());
    }
}
