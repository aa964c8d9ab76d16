//! What the syncer has written itself: the response is stored at once, and the event by which the watch reports it is no news if it contains
//! nothing else.

use super::Engine;
use crate::store::{TreeSize, most_of_side};
use berth_sync_rules::{
    model::{
        KindId, json,
        resource::{Name, Side},
        store::Stored,
    },
    translation::sizes::count_bytes,
};
use serde_json::Value;
use std::sync::Arc;

impl Engine {
    /// Stores what a write returned, and adds the keys that depend on it.
    pub(super) fn store_written(&self, side: Side, id: KindId, name: &Name, mut object: Value) {
        let kind = self.cache.kind(id);
        let spec = match side {
            Side::Tenant => kind.tenant,
            Side::Host => kind.host.map(|(_, spec)| spec),
        };
        // Of an object with too much structure the watch keeps the metadata; the answer has all of it.
        let is_cut = |known: Arc<Stored>| side == Side::Tenant && known.is_cut;
        if self.cache.stores.of(side, id).get(name).is_some_and(is_cut) {
            return;
        }
        if let Some(spec) = spec {
            // It has grown since: the watch reports it, and keeps a part.
            let most = most_of_side(side);
            if most < u64::MAX && TreeSize::of_value(&object).exceeds(most) {
                return;
            }
            // Nobody asks for the size of a tenant's object.
            let bytes = if side == Side::Host { count_bytes(&object) } else { 0 };
            (spec.trim)(&mut object);
            let tree_bytes = TreeSize::of_value(&object).all;
            let stored = Stored::from(object).of_bytes(bytes).of_tree_bytes(tree_bytes);
            self.cache.stores.of(side, id).written(name.clone(), stored);
            self.add_dependents(side, id, name);
        }
    }

    /// Stores what a patch of the syncer returned. If it contains nothing but that patch, the watch reports nothing new.
    pub(super) fn store_patched(
        &self,
        side: Side,
        id: KindId,
        name: &Name,
        (before, patch): (&Value, Value),
        after: Value,
    ) {
        self.store_written(side, id, name, after);
        let store = self.cache.stores.of(side, id);
        let Some(after) = store.get(name).filter(|after| !after.is_cut) else {
            return;
        };
        let object = after.object();
        let mut changes = patch;
        for counter in ["generation", "resourceVersion"] {
            if let Some(value) = object["metadata"].get(counter) {
                changes["metadata"][counter] = value.clone();
            }
        }
        let version = json::text(before, &["metadata", "resourceVersion"]).and_then(|version| version.parse().ok());
        if let Some(version) = version
            && json::is_merged(before, &changes, &object)
        {
            store.expect(&after.uid, version, after.version);
        }
    }

    /// Stores an object that the syncer has created: the watch reports nothing new.
    pub(super) fn store_created(&self, side: Side, id: KindId, name: &Name, created: Value) {
        self.store_written(side, id, name, created);
        let store = self.cache.stores.of(side, id);
        if let Some(created) = store.get(name) {
            store.expect(&created.uid, 0, created.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{lock, test_engine::engine};
    use berth_api::labels;
    use berth_sync_rules::kinds::pod::token;
    use serde_json::json;

    #[tokio::test]
    async fn a_patched_secret_that_comes_back_is_no_news() {
        let engine = engine();
        let (name, id) = (Name::new("team", "train"), KindId::PodToken);
        let secret = |version: &str, annotations: Value, owners: Value| {
            json!({"metadata": {"name": "train-x", "uid": "s", "resourceVersion": version, "annotations": annotations,
                "ownerReferences": owners, "labels": {"berth.dev/tenant": "a"}}, "data": {"token-0-0": "eA=="}})
        };
        let annotations = |node: Option<&str>, note: Option<&str>| {
            json!({labels::ORIGIN_UID: "t", labels::TOKEN_RENEW_AT: "2026-05-01T10:00:00Z", labels::TOKEN_NODE: node,
                labels::TRUST_HASH: note})
        };
        let store = engine.cache.stores.host(id);
        engine.store_created(Side::Host, id, &name, secret("5", annotations(None, None), json!([])));
        assert!(store.is_expected("s", 5));
        let owners = token::owner_references("train-x", "h");
        let patch = |owners: &Value| json!({"metadata": {"uid": "s", "annotations": {labels::TOKEN_NODE: "gpu-1"}, "ownerReferences": owners}});
        let patched = |version, note| secret(version, annotations(Some("gpu-1"), note), owners.clone());
        let before = store.get(&name).unwrap().object();
        engine.store_patched(Side::Host, id, &name, (&before, patch(&owners)), patched("7", None));
        assert!(store.is_expected("s", 7), "it is what was written");
        let before = store.get(&name).unwrap().object();
        engine.store_patched(
            Side::Host,
            id,
            &name,
            (&before, patch(&owners)),
            patched("9", Some("x")),
        );
        assert!(!store.is_expected("s", 9), "somebody else has changed it as well");
    }

    #[tokio::test]
    async fn of_a_cut_object_an_answer_keeps_no_more() {
        let engine = engine();
        let (name, id) = (Name::new("team", "train"), KindId::Pod);
        let pod = |version: &str| json!({"metadata": {"name": "train", "namespace": "team", "uid": "t", "resourceVersion": version}});
        let store = engine.cache.stores.tenant(id);
        store.watched(name.clone(), Stored::from(pod("5")).cut());
        let before = store.get(&name).unwrap().object();
        let patch = json!({"metadata": {"uid": "t"}, "status": {"phase": "Failed"}});
        let mut whole = pod("7");
        whole["spec"] = json!({"containers": []});
        whole["status"] = json!({"phase": "Failed"});
        engine.store_patched(Side::Tenant, id, &name, (&before, patch), whole);
        let known = store.get(&name).unwrap();
        assert!(known.is_cut && known.version == 5 && !store.is_expected("t", 7));
    }

    /// A pod with so many small maps of 900 bytes.
    fn pod_of_maps(name: &str, maps: usize) -> Value {
        let variables = vec![json!({"name": "a"}); maps];
        json!({"metadata": {"name": name, "namespace": "team", "uid": "t", "resourceVersion": "5"},
            "spec": {"containers": [{"name": "main", "env": variables}]}})
    }

    #[tokio::test]
    async fn an_answer_with_too_much_structure_is_left_to_the_watch() {
        let engine = engine();
        let name = Name::new("team", "train");
        // A definition of the tenant's own can let the second have as many.
        for id in [KindId::Pod, KindId::HttpRoute] {
            engine.store_written(Side::Tenant, id, &name, pod_of_maps("train", 20_000));
            assert!(engine.cache.stores.tenant(id).get(&name).is_none(), "{}", id.label());
        }
    }

    #[tokio::test]
    async fn of_answers_with_much_structure_few_stay_trees() {
        let engine = engine();
        let id = KindId::Pod;
        let names: Vec<Name> = (0..6).map(|number| Name::new("team", &number.to_string())).collect();
        for name in &names {
            engine.store_written(Side::Tenant, id, name, pod_of_maps(&name.name, 15_000));
        }
        let is_tree = |name: &Name| {
            engine
                .cache
                .stores
                .tenant(id)
                .get(name)
                .unwrap()
                .fresh_object()
                .is_some()
        };
        let trees: Vec<bool> = names.iter().map(is_tree).collect();
        assert_eq!(trees, [false, false, true, true, true, true], "of 64 MiB");
    }

    #[tokio::test]
    async fn a_pod_that_was_only_bound_is_not_compared() {
        let engine = engine();
        let id = KindId::Pod;
        let key = id.key(Name::new("team", "train"));
        engine.add_for_status(key.clone());
        assert!(!lock(&engine.to_compare).contains(&key));
        engine.add(key.clone());
        engine.add_for_status(key.clone());
        assert!(lock(&engine.to_compare).contains(&key), "another reason stays");
        assert_eq!(engine.queue_of(id).len(), 1);
    }
}
