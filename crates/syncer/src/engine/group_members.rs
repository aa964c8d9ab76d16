//! Which pods name which group, as a PodGroup: when it gets another size, these pods are compared, and no others of the namespace.

use super::{Engine, lock};
use berth_sync_rules::{
    kinds::pod::gang,
    model::{KindId, resource::Name},
};
use std::collections::{BTreeSet, HashMap};

/// The groups that pods name, whatever their kind, and whether they exist or not.
#[derive(Debug, Default)]
pub(super) struct GroupMembers {
    groups: HashMap<Name, BTreeSet<Name>>,
    pods: HashMap<Name, Vec<Name>>,
}

impl GroupMembers {
    /// A pod names these groups, and no others.
    fn set(&mut self, pod: &Name, groups: Vec<Name>) {
        for group in self.pods.remove(pod).unwrap_or_default() {
            if let Some(members) = self.groups.get_mut(&group) {
                members.remove(pod);
                if members.is_empty() {
                    self.groups.remove(&group);
                }
            }
        }
        for group in &groups {
            self.groups.entry(group.clone()).or_default().insert(pod.clone());
        }
        if !groups.is_empty() {
            self.pods.insert(pod.clone(), groups);
        }
    }

    /// The pods that name a group.
    fn of(&self, group: &Name) -> Vec<Name> {
        self.groups.get(group).into_iter().flatten().cloned().collect()
    }
}

impl Engine {
    /// Notes which groups a pod names, after it has changed in the tenant.
    pub(super) fn update_group_members(&self, pod: &Name) {
        if self.groups.is_empty() {
            return;
        }
        // While they are locked: the last one that notes it has read the last state.
        let mut members = lock(&self.group_members);
        let stored = self.cache.stores.tenant(KindId::Pod).get(pod);
        // Most pods name none: to know that, they are not unpacked.
        let object = stored.filter(|pod| gang::may_have_one(pod)).map(|pod| pod.object());
        let groups = object.iter().flat_map(|pod| gang::named_groups(pod));
        let groups = groups.map(|group| Name::new(&pod.namespace, group)).collect();
        members.set(pod, groups);
    }

    /// Puts the pods that name a group into the queue if it has another size than before: it is on the host pods.
    pub(super) fn compare_members(&self, id: KindId, name: &Name) {
        if !self.groups.contains(&id) {
            return;
        }
        let key = id.key(name.clone());
        let is = gang::size_of_group(&self.cache, &key);
        let was = match is {
            Some(size) => lock(&self.group_sizes).insert(key, size),
            None => lock(&self.group_sizes).remove(&key),
        };
        if was != is {
            let members = lock(&self.group_members).of(name);
            for pod in members {
                self.update_device_claims(&pod);
                self.add(KindId::Pod.key(pod));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::{engine_of, tenant};
    use berth_api::sync_policy::{SyncPolicy, SyncedKind};
    use berth_sync_rules::model::{resource::Side, store::Stored};
    use serde_json::{Value, json};

    fn put(engine: &Engine, kind: KindId, name: &str, object: &Value) {
        let name = Name::new("team", name);
        let store = engine.cache.stores.tenant(kind);
        store.watched(name.clone(), Stored::new(object));
        engine.add_dependents(Side::Tenant, kind, &name);
    }

    fn put_pod(engine: &Engine, name: &str, version: &str, spec: &Value) {
        let pod = json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}, "spec": spec});
        put(engine, KindId::Pod, name, &pod);
    }

    #[tokio::test]
    async fn a_group_of_another_size_concerns_the_pods_that_name_it() {
        let kinds = vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1beta1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            ..SyncedKind::default()
        }];
        let policy = SyncPolicy {
            kinds,
            ..SyncPolicy::default()
        };
        let engine = engine_of(tenant(policy));
        let kind = engine.cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
        let of_group = |group: &str| json!({"schedulingGroup": {"podGroupName": group}});
        for number in 0..1000 {
            put_pod(&engine, &format!("plain-{number}"), "1", &json!({}));
            put_pod(&engine, &format!("other-{number}"), "1", &of_group("other"));
        }
        for member in ["m0", "m1"] {
            put_pod(&engine, member, "1", &of_group("ring"));
        }
        put_pod(&engine, "m1", "2", &of_group("other"));
        let members = |group: &str| lock(&engine.group_members).of(&Name::new("team", group)).len();
        assert_eq!((members("ring"), members("other")), (1, 1001));
        let sized = |size: u64, version: &str| {
            json!({"metadata": {"name": "ring", "uid": "ring", "resourceVersion": version},
                "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}})
        };
        lock(&engine.to_compare).clear();
        put(&engine, kind, "ring", &sized(4, "3"));
        let compared = |name: &str| lock(&engine.to_compare).contains(&KindId::Pod.key(Name::new("team", name)));
        assert!(compared("m0") && !compared("m1") && !compared("plain-0") && !compared("other-0"));
        for number in 0..1000 {
            let name = Name::new("team", &format!("other-{number}"));
            engine.cache.stores.tenant(KindId::Pod).forget(&name);
            engine.add_dependents(Side::Tenant, KindId::Pod, &name);
        }
        assert_eq!((members("ring"), members("other")), (1, 1));
    }
}
