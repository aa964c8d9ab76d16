//! Host objects that are made or changed before the tenant's object is stored, because the host gives something out
//! that is written into it.
//!
//! What is made for an object that does not exist yet is a reservation: it carries no UID of a tenant object but the
//! time at which it was made. The step that sees the tenant's object makes it that object's; a reservation for which
//! none comes is swept after a while. So a crash, or a refusal in the tenant later on, leaves nothing but what the sweep
//! takes.
//!
//! While the tenant's API server stores what was answered, the tenant's object as it is known here is out of date. Until
//! it arrives, steps leave the host object alone: it is *held*.

use super::{Engine, api::CallError, api::Delete, down, lock};
use berth_api::labels;
use berth_sync_rules::{
    json,
    kinds::Down,
    resource::{KindId, Name, Side, host_name},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Age at which a reservation that no tenant object has come for is removed.
pub(super) const GRACE: Duration = Duration::from_secs(60);
/// Longest time for which a host object is held: the API server has given up by then.
const HOLD: Duration = Duration::from_secs(30);
/// How long a creation waits for another one of the same name to end in an object.
const TURN: Duration = Duration::from_secs(2);
/// Pause between looks at whether that has happened.
const LOOK: Duration = Duration::from_millis(20);
/// Attempts against others that change the same object.
const ATTEMPTS: usize = 5;

/// What is to be reserved.
pub(crate) struct Wish<'a> {
    /// The kind.
    pub(crate) id: KindId,
    /// Its rules.
    pub(crate) rules: &'static dyn Down,
    /// Name in the tenant.
    pub(crate) name: &'a Name,
    /// UID of the tenant's object, if it exists.
    pub(crate) origin: Option<&'a str>,
    /// The host object as translated.
    pub(crate) object: Value,
    /// Whether nothing may be kept.
    pub(crate) dry_run: bool,
}

/// Why nothing was reserved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// The tenant's object exists already.
    #[error("the object exists")]
    Exists,
    /// The host object of an earlier tenant object of the name is not gone yet.
    #[error("the earlier object is being deleted")]
    Ending,
    /// Something that is not the tenant's has the name.
    #[error("the name is taken")]
    Foreign,
    /// Not everything is listed yet.
    #[error("starting")]
    Starting,
    /// An API server did not do it.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Host objects that steps leave alone.
#[derive(Default)]
pub(super) struct Holds(Mutex<HashMap<Name, Hold>>);

struct Hold {
    since: Instant,
    /// What the tenant's object will say was given to it; null until that is known.
    given: Value,
}

impl Holds {
    /// Holds an object, unless it was held a moment ago already.
    fn begin(&self, name: &Name, turn: Duration) -> bool {
        let mut holds = lock(&self.0);
        holds.retain(|_, hold| hold.since.elapsed() < HOLD);
        if holds.get(name).is_some_and(|hold| hold.since.elapsed() < turn) {
            return false;
        }
        let hold = Hold {
            since: Instant::now(),
            given: Value::Null,
        };
        holds.insert(name.clone(), hold);
        true
    }

    fn expect(&self, name: &Name, given: Value) {
        if let Some(hold) = lock(&self.0).get_mut(name) {
            hold.given = given;
        }
    }

    pub(super) fn end(&self, name: &Name) {
        lock(&self.0).remove(name);
    }

    /// For how long the object must still be left alone, given what the tenant's says now. Ends the hold if that is what
    /// was waited for.
    pub(super) fn left(&self, name: &Name, given: &Value) -> Option<Duration> {
        let mut holds = lock(&self.0);
        let hold = holds.get(name)?;
        let left = HOLD.saturating_sub(hold.since.elapsed());
        if left.is_zero() || hold.given == *given {
            holds.remove(name);
            return None;
        }
        Some(left)
    }
}

/// How much of its time is left to a reservation made at `reserved_at` (seconds since the epoch).
pub(super) fn grace_left(reserved_at: i64, now: Timestamp) -> Duration {
    let age = SignedDuration::from_secs(now.as_second().saturating_sub(reserved_at));
    GRACE.saturating_sub(age.unsigned_abs())
}

impl Engine {
    /// Makes or changes the host object of a tenant object that is about to be stored. Returns it as the host has it.
    ///
    /// # Errors
    /// As [`ReserveError`] says; then nothing is held, and what may have been made is swept.
    pub(crate) async fn reserve(&self, wish: Wish<'_>) -> Result<Value, ReserveError> {
        let stores = &self.world.stores;
        if !stores.tenant(wish.id).is_listed() {
            return Err(ReserveError::Starting);
        }
        self.need(wish.id);
        if wish.origin.is_none() {
            self.wait_for_turn(&wish).await?;
        } else if !wish.dry_run {
            self.holds.begin(wish.name, Duration::ZERO);
        }
        let placed = self.place(&wish).await;
        if wish.dry_run {
            return placed;
        }
        match &placed {
            Ok(host) => {
                self.holds.expect(wish.name, wish.rules.given(host));
                self.remember(Side::Host, wish.id, wish.name, host.clone());
            }
            Err(_) => self.holds.end(wish.name),
        }
        placed
    }

    /// Lets one creation of a name at a time pass. The next one finds the object that the first has led to, if any.
    async fn wait_for_turn(&self, wish: &Wish<'_>) -> Result<(), ReserveError> {
        let store = self.world.stores.tenant(wish.id);
        loop {
            if store.contains(wish.name) {
                let Name { namespace, name } = wish.name;
                let live = self.tenant.get(wish.rules.resource(), namespace, name).await;
                if CallError::found(live)?.is_some() {
                    return Err(ReserveError::Exists);
                }
                // The watch is about to say that it is gone.
                if !wish.dry_run {
                    self.holds.begin(wish.name, Duration::ZERO);
                }
                return Ok(());
            }
            if wish.dry_run || self.holds.begin(wish.name, TURN) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Makes the host object, or changes the one there is.
    async fn place(&self, wish: &Wish<'_>) -> Result<Value, ReserveError> {
        let (resource, namespace) = (wish.rules.resource(), self.world.tenant.workload_namespace.as_str());
        let name = host_name(wish.id, wish.name);
        let hash = json::hash(&wish.rules.changeable(&wish.object));
        let dressed = down::dressed(
            &self.world,
            (wish.id, wish.rules),
            wish.name,
            wish.origin,
            wish.object.clone(),
            &hash,
        );
        if wish.dry_run && wish.origin.is_none() {
            // Under a name that nothing has, because what is there of an earlier object cannot be taken away for this.
            let other = Name::new(&wish.name.namespace, &format!("{}/dry-run", wish.name.name));
            let mut object = dressed;
            let name = host_name(wish.id, &other);
            object["metadata"]["name"] = name.as_str().into();
            return Ok(self.host.apply_dry_run(resource, namespace, &name, &object).await?);
        }
        let mut found = None;
        if self.world.stores.host(wish.id).contains(wish.name) {
            found = CallError::found(self.host.get(resource, namespace, &name).await)?;
        }
        for _ in 0..ATTEMPTS {
            let mut object = dressed.clone();
            let Some(live) = found.take() else {
                object["metadata"]["resourceVersion"] = down::NOTHING_YET.into();
                let made = if wish.dry_run {
                    self.host.apply_dry_run(resource, namespace, &name, &object).await
                } else {
                    self.host.apply(resource, namespace, &name, &object).await
                };
                match made {
                    Err(CallError::Conflict(_)) => {
                        found = CallError::found(self.host.get(resource, namespace, &name).await)?;
                        continue;
                    }
                    made => return Ok(made?),
                }
            };
            let meta = |path: &[&str]| json::text(&live["metadata"], path);
            if meta(&["labels", labels::MANAGED_BY]) != Some(labels::MANAGED_BY_SYNCER) {
                return Err(ReserveError::Foreign);
            }
            if meta(&["deletionTimestamp"]).is_some() {
                return Err(ReserveError::Ending);
            }
            let uid = meta(&["uid"]).unwrap_or_default();
            let origin = meta(&["annotations", labels::ORIGIN_UID]);
            if origin.is_none_or(|origin| Some(origin) == wish.origin) && !wish.rules.must_replace(&dressed, &live) {
                object["metadata"]["uid"] = uid.into();
                let changed = if wish.dry_run {
                    self.host.apply_dry_run(resource, namespace, &name, &object).await
                } else {
                    self.host.apply(resource, namespace, &name, &object).await
                };
                match changed {
                    Err(CallError::Conflict(_)) => {
                        found = CallError::found(self.host.get(resource, namespace, &name).await)?;
                        continue;
                    }
                    changed => return Ok(changed?),
                }
            }
            if wish.dry_run {
                return Err(ReserveError::Ending);
            }
            let how = Delete {
                uid,
                grace_seconds: wish.rules.orphan_grace(),
            };
            match self.host.delete(resource, namespace, &name, how).await {
                Ok(_) | Err(CallError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
            found = CallError::found(self.host.get(resource, namespace, &name).await)?;
        }
        Err(CallError::Conflict("the host object keeps changing".into()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hold_ends_when_what_was_given_arrives() {
        let holds = Holds::default();
        let name = Name::new("shop", "web");
        assert!(holds.begin(&name, TURN));
        assert!(!holds.begin(&name, TURN), "one at a time");
        assert!(holds.begin(&name, Duration::ZERO), "an update does not wait");
        assert!(holds.left(&name, &json!("old")).is_some());
        holds.expect(&name, json!("new"));
        assert!(holds.left(&name, &json!("old")).is_some());
        assert!(holds.left(&name, &json!("new")).is_none());
        assert!(holds.left(&name, &json!("old")).is_none(), "it has ended");
    }

    #[test]
    fn a_reservation_has_its_time_whatever_the_clock_did() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(grace_left(1_000_000 - 10, now), Duration::from_secs(50));
        assert_eq!(grace_left(1_000_000 - 60, now), Duration::ZERO);
        assert_eq!(
            grace_left(1_000_000 + 100, now),
            Duration::ZERO,
            "made in the future: it is no use"
        );
    }
}
