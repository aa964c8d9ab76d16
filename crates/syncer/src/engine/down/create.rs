//! Creating the host object.

use super::Step;
use crate::engine::{
    Done,
    api::{CallError, Delete},
};
use berth_api::labels;
use berth_sync_rules::{
    json,
    kinds::{Creation, Translated, refusal},
    resource::{Key, Side},
    store::Stored,
};
use serde_json::Value;
use std::time::Duration;

/// A resource version that no object has: as a precondition of an apply it says that nothing may exist yet.
pub(in crate::engine) const NOTHING_YET: &str = "1";
/// How long to wait for something that should be announced by a watch.
const SAFETY: Duration = Duration::from_secs(5);

/// Fields of the spec that the host's API server took and threw away: it knows them, but a feature that they belong to
/// is off there.
fn dropped(desired: &Value, created: &Value) -> Vec<refusal::Refusal> {
    let mut lost = Vec::new();
    find_dropped("spec", &desired["spec"], &created["spec"], &mut lost);
    lost
}

fn find_dropped(path: &str, desired: &Value, created: &Value, lost: &mut Vec<refusal::Refusal>) {
    match (desired, created) {
        (Value::Object(wanted), Value::Object(kept)) => {
            for (field, value) in wanted {
                let path = format!("{path}.{field}");
                match kept.get(field) {
                    Some(kept) => find_dropped(&path, value, kept, lost),
                    None if json::is_unset(value) => {}
                    None => {
                        let why = "the host cluster does not have this feature, so the field has no effect";
                        lost.push(refusal::Refusal::new(path, why));
                    }
                }
            }
        }
        // Webhooks of the host may add items; only those that can be told apart are compared.
        (Value::Array(wanted), Value::Array(kept)) => {
            for (index, item) in wanted.iter().enumerate() {
                let same = match item.get("name") {
                    Some(name) => kept.iter().find(|other| other.get("name") == Some(name)),
                    None => kept.get(index).filter(|_| wanted.len() == kept.len()),
                };
                if let Some(same) = same {
                    find_dropped(&format!("{path}[{index}]"), item, same, lost);
                }
            }
        }
        _ => {}
    }
}

impl Step<'_> {
    pub(super) async fn create(&self, stored: &Stored, object: &Value) -> Result<Done, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let host_has = |key: &Key| engine.world.stores.host(key.kind).contains(&key.name);
        let missing: Vec<Key> = kind
            .needs(&engine.world, name, object)
            .into_iter()
            .filter(|key| !host_has(key))
            .collect();
        if !missing.is_empty() {
            let refused: Vec<_> = missing.iter().filter_map(|key| self.cannot_come(key)).collect();
            if !refused.is_empty() {
                self.refuse(stored, object, &refused).await?;
            }
            for key in missing {
                engine.add(key);
            }
            return Ok(Done::again("waiting", SAFETY));
        }
        let Some(content) = self.content(stored, object).await? else {
            return Ok(Done::new("vanished"));
        };
        let translated = match kind.translate(&engine.world, name, &content) {
            Ok(translated) => translated,
            Err(refused) => {
                self.refuse(stored, object, &refused).await?;
                return Ok(Done::new("refused"));
            }
        };
        let Translated {
            object: desired,
            mut notes,
        } = translated;
        let desired = kind.at_creation(desired);
        let hash = json::hash(&kind.changeable(&desired));
        let mut desired = self.dressed(stored, desired, &hash);
        let (resource, host) = (kind.resource(), &engine.host);
        engine.need(*id);
        let created = match kind.creation() {
            Creation::Apply => {
                desired["metadata"]["resourceVersion"] = NOTHING_YET.into();
                host.apply(resource, self.namespace(), &self.host_name(), &desired)
                    .await
            }
            Creation::Post => host.create(resource, self.namespace(), &desired).await,
        };
        match created {
            Ok(created) => {
                engine.metrics.sync_down.observe(self.seen.elapsed().as_secs_f64());
                notes.extend(dropped(&desired, &created));
                engine.remember(Side::Host, *id, name, created);
                self.tell_notes(&notes).await;
                Ok(Done::new("created"))
            }
            Err(CallError::Conflict(_)) => self.taken(stored).await,
            Err(error) => Err(error),
        }
    }

    /// Whether something that must be on the host first will not come there, in words.
    fn cannot_come(&self, key: &Key) -> Option<refusal::Refusal> {
        let engine = self.engine;
        let needed = engine.world.stores.tenant(key.kind).get(&key.name)?.object();
        let rules = key.kind.down()?;
        let is_refused = || rules.translate(&engine.world, &key.name, &needed).is_err();
        let is_off = engine.off(key.kind).is_some();
        (is_off || is_refused()).then(|| {
            let what = format!("{} {}", rules.resource().kind, key.name.name);
            refusal::Refusal::new(
                "spec",
                format!("it needs the {what}, which is refused: see the Events of that"),
            )
        })
    }

    /// Something of the host name exists already.
    async fn taken(&self, stored: &Stored) -> Result<Done, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let found = engine
            .host
            .get(kind.resource(), self.namespace(), &self.host_name())
            .await;
        let Some(found) = CallError::found(found)? else {
            return Ok(Done::again("vanished", Duration::ZERO));
        };
        if json::text(&found, &["metadata", "labels", labels::MANAGED_BY]) != Some(labels::MANAGED_BY_SYNCER) {
            return Err(CallError::Refused(
                "an object of that name exists on the host and is not the tenant's".into(),
            ));
        }
        let origin = json::text(&found, &["metadata", "annotations", labels::ORIGIN_UID]);
        if origin == Some(&*stored.uid) {
            engine.remember(Side::Host, *id, name, found);
            return Ok(Done::again("adopted", Duration::ZERO));
        }
        let uid = json::text(&found, &["metadata", "uid"]).unwrap_or_default();
        let how = Delete {
            uid,
            grace_seconds: kind.orphan_grace(),
        };
        engine
            .host
            .delete(kind.resource(), self.namespace(), &self.host_name(), how)
            .await?;
        Ok(Done::again("replacing", Duration::from_millis(200)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_that_the_host_threw_away_are_named() {
        let desired = json!({"spec": {"kept": 1, "lost": {"a": 1}, "empty": [], "list": [{"name": "a", "new": 1, "old": 2}],
            "others": [{"new": 1}]}});
        let created = json!({"spec": {"kept": 1, "defaulted": 2, "list": [{"name": "injected"}, {"name": "a", "old": 2}],
            "others": [{"x": 1}, {"y": 1}]}});
        let fields: Vec<_> = dropped(&desired, &created)
            .into_iter()
            .map(|refusal| refusal.field)
            .collect();
        assert_eq!(fields, ["spec.list[0].new", "spec.lost"]);
    }
}
