//! The status of a claim, as the tenant sees it.
//!
//! | field | rule |
//! |---|---|
//! | `allocation` | the host's; nodes have the same names. It can only be set and cleared, never changed |
//! | `reservedFor` | the tenant's objects, by name and UID, in place of the host's |
//! | `devices` | the host's; host names in conditions mapped back |

use crate::{
    model::{Cache, json, resource::Name},
    translation::host_text,
};
use serde_json::{Value, json};

/// The status of a claim of the tenant called `about`, which has the status `before`.
pub fn sync_status(cache: &Cache, about: &Name, host: &Value, before: &Value) -> Value {
    let mut status = host
        .get("status")
        .filter(|status| status.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    let allocated = before.get("allocation").filter(|allocation| !allocation.is_null());
    if let (Some(old), Some(new)) = (allocated, status.get("allocation")) {
        if devices(old) != devices(new) {
            // The host has allocated other devices. An API server takes a new allocation only after the old one is cleared.
            return json!({});
        }
        // Fields that the tenant's API server does not know must not cause a write that it rejects.
        status["allocation"] = old.clone();
    }
    let reserved: Vec<Value> = json::items(&status, &["reservedFor"])
        .iter()
        .filter_map(|consumer| tenants(cache, consumer))
        .collect();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("reservedFor");
        if !reserved.is_empty() {
            fields.insert("reservedFor".into(), reserved.into());
        }
    }
    json::each_mut(&mut status, "devices[].conditions", &mut |conditions| {
        host_text::translate_texts(cache, about, conditions);
    });
    status
}

/// Which devices are allocated for which requests.
fn devices(allocation: &Value) -> Vec<[Option<&str>; 5]> {
    json::items(allocation, &["devices", "results"])
        .iter()
        .map(|result| ["request", "driver", "pool", "device", "shareID"].map(|field| json::text(result, &[field])))
        .collect()
}

/// The tenant's object for an object that uses a claim on the host; `None` if it is not known yet or not the tenant's.
fn tenants(cache: &Cache, consumer: &Value) -> Option<Value> {
    let field = |name: &str| json::text(consumer, &[name]).unwrap_or_default();
    let (group, plural) = (field("apiGroup"), field("resource"));
    let kind = cache.kinds.iter().copied().find(|id| {
        cache.rules_to_host(*id).is_some_and(|rules| {
            let resource = rules.resource();
            resource.group == group && resource.plural == plural
        })
    })?;
    let store = cache.stores.host(kind);
    let name = store.tenant_name(field("name"))?;
    let host = store.get(&name).filter(|host| *host.uid == *field("uid"))?;
    let mut consumer = consumer.clone();
    consumer["name"] = (*name.name).into();
    consumer["uid"] = host.origin_uid.as_deref()?.into();
    Some(consumer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::host_name, store::Stored, tenant::test_tenant};
    use crate::{model::KindId, registry};
    use berth_api::labels;

    fn cache() -> Cache {
        let cache = registry::new_cache(test_tenant());
        let name = Name::new("research", "train-0");
        let host = json!({"metadata": {"name": host_name(KindId::Pod, &name), "uid": "host-uid", "resourceVersion": "1",
            "annotations": {labels::ORIGIN_UID: "tenant-uid"}}});
        cache.stores.host(KindId::Pod).written(name, Stored::new(&host));
        cache
    }

    fn allocation(device: &str) -> Value {
        json!({"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "gpu-1", "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]}})
    }

    fn sync_status(before: &Value, status: &Value) -> Value {
        super::sync_status(
            &cache(),
            &Name::new("research", "claim"),
            &json!({"status": status}),
            before,
        )
    }

    #[test]
    fn users_of_a_claim_have_the_tenants_name_and_uid() {
        let host = host_name(KindId::Pod, &Name::new("research", "train-0"));
        let status = json!({"allocation": allocation("gpu-0"),
            "reservedFor": [
                {"resource": "pods", "name": host, "uid": "host-uid"},
                {"resource": "pods", "name": host, "uid": "an-earlier-pod"},
                {"resource": "pods", "name": "other-aaaaaaaaaaaaa", "uid": "x"},
                {"apiGroup": "other", "resource": "pods", "name": host, "uid": "host-uid"}],
            "devices": [{"driver": "d", "pool": "gpu-1", "device": "gpu-0", "data": {"a": host},
                "conditions": [{"type": "Ready", "status": "True", "message": format!("prepared for {host}")}]}]});
        insta::assert_yaml_snapshot!(sync_status(&json!({}), &status));
    }

    #[test]
    fn a_new_allocation_follows_a_cleared_one() {
        let now = json!({"allocation": allocation("gpu-1")});
        assert_eq!(
            sync_status(&json!({"allocation": allocation("gpu-0")}), &now),
            json!({})
        );
        assert_eq!(sync_status(&json!({}), &now), now);
        let mut newer = now.clone();
        newer["allocation"]["devices"]["results"][0]["novelty"] = 1.into();
        assert_eq!(sync_status(&now, &newer), now);
        assert_eq!(sync_status(&now, &Value::Null), json!({}));
    }
}
