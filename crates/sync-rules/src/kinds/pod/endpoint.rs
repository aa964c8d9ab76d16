//! Pods as endpoints of the tenant's Services: what the [index](crate::model::endpoint_pods) of them says follows both sides.

use super::metadata_size::MAX_LABELS;
use crate::model::{
    Cache, KindId,
    endpoint_pods::{EndpointPod, OnHost},
    resource::{Name, Side},
    store::is_origin,
};

/// Notes what a pod is as an endpoint, after it has changed on one side. Of the other side what is known still holds.
pub(super) fn note(cache: &Cache, name: &Name, changed: Side) {
    let (tenant, host) = (
        cache.stores.tenant(KindId::Pod).get(name),
        cache.stores.host(KindId::Pod).get(name),
    );
    let mut pods = cache.endpoint_pods();
    let known = pods.remove(name);
    let both = tenant.zip(host);
    let Some((tenant, host)) = both.filter(|(tenant, host)| tenant.deletion.is_none() && is_origin(tenant, host))
    else {
        return;
    };
    let (on_host, in_tenant) = match (known, changed) {
        (Some(EndpointPod { in_tenant, .. }), Side::Host) => (OnHost::of(&host), Some(in_tenant)),
        (Some(EndpointPod { on_host, .. }), Side::Tenant) => (Some(on_host), None),
        (None, _) => (OnHost::of(&host), None),
    };
    if let Some(on_host) = on_host {
        let in_tenant = in_tenant.unwrap_or_else(|| pods.read(&tenant.object(), MAX_LABELS));
        pods.set(name, EndpointPod { on_host, in_tenant });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{
            endpoint_pods::{Selection, TargetPort},
            store::Stored,
            tenant::test_tenant,
        },
        registry,
    };
    use serde_json::{Map, Value, json};

    #[test]
    fn a_pod_with_too_many_labels_is_selected_here_as_little_as_on_the_host() {
        let cache = registry::new_cache(test_tenant());
        let name = Name::new("team", "p");
        let host = json!({
            "metadata": {"name": "h", "annotations": {"berth.dev/origin-uid": "u"}},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        cache.stores.host(KindId::Pod).watched(name.clone(), Stored::from(host));
        let endpoints = |labels: usize| {
            let labels: Map<String, Value> = (0..labels).map(|label| (format!("l{label}"), "".into())).collect();
            let pod = json!({"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {}});
            cache
                .stores
                .tenant(KindId::Pod)
                .watched(name.clone(), Stored::from(pod));
            cache.update_dependents(Side::Tenant, KindId::Pod, &name);
            let selection = Selection {
                namespace: "team",
                selector: &[("l0".to_owned(), String::new())].into(),
                even_unready: false,
                family: None,
                port: TargetPort::Number(80),
            };
            cache.endpoint_pods().select(&selection).len()
        };
        assert_eq!([1, MAX_LABELS, MAX_LABELS + 1, 2].map(endpoints), [1, 1, 0, 1]);
    }
}
