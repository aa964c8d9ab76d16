//! Places of tenants that sleep and whose class has changed: few of them are started for that at the same time, in the order in which they asked.
//!
//! One that does not follow its class in its time sleeps again, and is started again after a pause: if no syncer can do its work at all, the tenants that sleep
//! must not all run in the end. The pauses grow, and end when the rules are others, but not too often in a row: who may use several classes could change
//! between them. They are lost with the process, as its places are.

use crate::key::Key;
use berth_runtime::locks::lock;
use berth_sleep::Turn;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// Tenants that have a place at the same time. Each needs it for some seconds.
const MOST: usize = 10;
/// How long a tenant has its place. One whose API server does not start, or whose syncer cannot list, goes on and keeps others from nothing.
const HELD: Duration = Duration::from_mins(2);
/// How long a tenant runs for the same rules at most. Longer than alerts need that say why it does not follow them.
const RUNS: Duration = Duration::from_mins(30);
/// First and longest pause before it is started again for the same rules. The pauses double.
const PAUSES: (Duration, Duration) = (Duration::from_mins(30), Duration::from_hours(4));
/// How often in a row other rules get a time of their own, and end a pause.
const MOST_OTHERS: u32 = 4;
/// How long one is remembered that does not ask again. Each asks about once a minute.
const REMEMBERED: Duration = Duration::from_mins(3);

/// Who has a place, and who waits for one. Lost with the process: those that were started have one again as soon as they are looked at.
#[derive(Debug, Default)]
pub(super) struct EnforcementPlaces(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Who was started, until it leaves. Once its time is over, it keeps nobody waiting.
    started: HashMap<Key, Start>,
    /// Who waits, and when each has asked last, in the order in which they came.
    waiting: Vec<(Key, Instant)>,
    /// Who did not follow its class in its time, until it leaves.
    failed: HashMap<Key, Failure>,
}

/// A tenant that was started.
#[derive(Clone, Debug)]
struct Start {
    /// Since when it has its place.
    since: Instant,
    /// Hash of the rules that it is to follow.
    rules: String,
    /// Since when it runs for them.
    tried_since: Instant,
    /// How often other rules got a time of their own, or ended a pause, since it has followed its class.
    others: u32,
}

/// A tenant that did not follow its class in its time.
#[derive(Clone, Debug)]
struct Failure {
    /// Hash of the rules.
    rules: String,
    /// How often in a row, for the same rules or since other ones end no pause.
    count: u32,
    /// How often the rules were other ones, as [`Start::others`].
    others: u32,
    /// When its pause ends.
    until: Instant,
}

impl Start {
    /// Whether its place is held at `now`.
    fn is_held(&self, now: Instant) -> bool {
        now.duration_since(self.since) < HELD
    }

    /// Whether it has run for its rules as long as it may.
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.tried_since) >= RUNS
    }
}

impl Places {
    fn free(&self, now: Instant) -> usize {
        let held = self.started.values().filter(|start| start.is_held(now)).count();
        MOST.saturating_sub(held)
    }

    fn forget_waiting(&mut self, tenant: &Key) {
        self.waiting.retain(|(waiting, _)| waiting != tenant);
    }

    /// Forgets that a tenant was started. If it has had its time, its pause begins.
    fn end(&mut self, tenant: &Key, now: Instant) {
        let Some(ended) = self.started.remove(tenant).filter(|start| start.is_over(now)) else {
            return;
        };
        let is_same = |failure: &&Failure| failure.rules == ended.rules || ended.others >= MOST_OTHERS;
        let before = self.failed.get(tenant).filter(is_same);
        let count = before.map_or(1, |failure| failure.count.saturating_add(1));
        let pause = PAUSES.0.saturating_mul(1 << (count - 1).min(16)).min(PAUSES.1);
        let failure = Failure {
            rules: ended.rules,
            count,
            others: ended.others,
            until: now + pause,
        };
        self.failed.insert(tenant.clone(), failure);
    }

    /// Whether a tenant is not started for these rules until a pause is over.
    fn is_in_pause(&self, tenant: &Key, rules: &str, now: Instant) -> bool {
        let is_for = |failure: &&Failure| failure.rules == rules || failure.others >= MOST_OTHERS;
        let failure = self.failed.get(tenant).filter(is_for);
        failure.is_some_and(|failure| now < failure.until)
    }
}

impl EnforcementPlaces {
    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.0)
    }

    /// Asks for a place for a tenant that sleeps, so that it follows these rules. [`Turn::Now`]: it has one.
    pub(super) fn ask(&self, tenant: &Key, rules: &str, now: Instant) -> Turn {
        let mut places = self.places();
        if places.started.get(tenant).is_some_and(|start| start.is_held(now)) {
            return Turn::Now;
        }
        places.end(tenant, now);
        if places.is_in_pause(tenant, rules, now) {
            places.forget_waiting(tenant);
            return Turn::Over;
        }
        places
            .waiting
            .retain(|(_, asked)| now.duration_since(*asked) < REMEMBERED);
        let known = places.waiting.iter().position(|(waiting, _)| waiting == tenant);
        let position = known.unwrap_or(places.waiting.len());
        if position < places.free(now) {
            places.forget_waiting(tenant);
            let failed = places.failed.get(tenant);
            let others = failed.map_or(0, |failure| failure.others + u32::from(failure.rules != rules));
            let start = Start {
                since: now,
                rules: rules.to_owned(),
                tried_since: now,
                others: others.min(MOST_OTHERS),
            };
            places.started.insert(tenant.clone(), start);
            return Turn::Now;
        }
        match places.waiting.get_mut(position) {
            Some((_, asked)) => *asked = now,
            None => places.waiting.push((tenant.clone(), now)),
        }
        Turn::Later
    }

    /// The turn of a tenant that sleeps and may not ask yet.
    pub(super) fn find_turn(&self, tenant: &Key, rules: &str, now: Instant) -> Turn {
        let places = self.places();
        let has_ended = places
            .started
            .get(tenant)
            .is_some_and(|start| (start.rules == rules || start.others >= MOST_OTHERS) && start.is_over(now));
        if has_ended || places.is_in_pause(tenant, rules, now) {
            Turn::Over
        } else {
            Turn::Later
        }
    }

    /// A tenant was started so that it follows these rules. It has a place from now on, unless it is known to have had one: an earlier process may have
    /// started it. Returns whether it goes on.
    pub(super) fn note_started(&self, tenant: &Key, rules: &str, now: Instant) -> Turn {
        let mut places = self.places();
        places.forget_waiting(tenant);
        let start = places.started.entry(tenant.clone()).or_insert_with(|| Start {
            since: now,
            rules: rules.to_owned(),
            tried_since: now,
            others: 0,
        });
        if start.rules != rules {
            rules.clone_into(&mut start.rules);
            if start.others < MOST_OTHERS {
                start.others += 1;
                start.tried_since = now;
            }
        }
        if start.is_over(now) { Turn::Over } else { Turn::Now }
    }

    /// Whether a tenant that was started has its place still. One that has not follows its class much later than others, or never.
    pub(super) fn has_place(&self, tenant: &Key, now: Instant) -> bool {
        let places = self.places();
        places.started.get(tenant).is_some_and(|start| start.is_held(now))
    }

    /// A tenant needs no place, or none any more. Returns those that get one if they ask now.
    pub(super) fn leave(&self, tenant: &Key, now: Instant) -> Vec<Key> {
        let mut places = self.places();
        places.forget_waiting(tenant);
        places.failed.remove(tenant);
        if places.started.remove(tenant).is_none() {
            return Vec::new();
        }
        let next = places.waiting.iter().take(places.free(now));
        next.map(|(waiting, _)| waiting.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const RULES: &str = "rules";

    fn tenant(number: usize) -> Key {
        Key::Tenant {
            namespace: "team".into(),
            name: number.to_string(),
        }
    }

    /// Whether a tenant that asks has a place.
    fn ask(places: &EnforcementPlaces, tenant: &Key, now: Instant) -> bool {
        places.ask(tenant, RULES, now) == Turn::Now
    }

    /// Places that are all taken, and a tenant that waits.
    fn taken(now: Instant) -> EnforcementPlaces {
        let places = EnforcementPlaces::default();
        for number in 0..MOST {
            assert!(ask(&places, &tenant(number), now));
        }
        assert!(!ask(&places, &tenant(MOST), now));
        places
    }

    #[test]
    fn of_a_thousand_tenants_few_have_a_place_and_all_get_one() {
        let (places, now) = (EnforcementPlaces::default(), Instant::now());
        let mut done = Vec::new();
        let mut asking: Vec<Key> = (0..1000).map(tenant).collect();
        while !asking.is_empty() {
            let have: Vec<Key> = asking.iter().filter(|key| ask(&places, key, now)).cloned().collect();
            assert!((1..=MOST).contains(&have.len()), "{}", have.len());
            for key in &have {
                assert!(ask(&places, key, now), "it keeps its place");
                places.leave(key, now);
            }
            asking.retain(|key| !have.contains(key));
            done.extend(have);
        }
        assert_eq!(done, (0..1000).map(tenant).collect::<Vec<_>>(), "in their order");
    }

    #[test]
    fn a_tenant_that_asks_again_and_again_comes_after_those_that_wait() {
        let now = Instant::now();
        let places = taken(now);
        assert_eq!(places.leave(&tenant(0), now), [tenant(MOST)]);
        assert!(!ask(&places, &tenant(0), now), "the place is that of another one");
        assert!(ask(&places, &tenant(MOST), now));
        assert!(!ask(&places, &tenant(0), now));
    }

    #[test]
    fn a_tenant_that_is_not_done_keeps_no_place_for_ever() {
        let now = Instant::now();
        let places = taken(now);
        assert!(!ask(&places, &tenant(MOST), now + HELD / 2));
        assert!(places.has_place(&tenant(0), now + HELD / 2));
        assert!(ask(&places, &tenant(MOST), now + HELD));
        assert!(!places.has_place(&tenant(0), now + HELD));
        assert!(places.has_place(&tenant(MOST), now + HELD));
    }

    #[test]
    fn who_does_not_ask_again_keeps_nobody_waiting() {
        let now = Instant::now();
        let places = taken(now);
        let later = now + REMEMBERED;
        for number in 0..MOST {
            assert!(ask(&places, &tenant(100 + number), later), "{number}");
        }
        assert!(!ask(&places, &tenant(MOST), later));
        places.leave(&tenant(MOST), later);
        assert!(places.leave(&tenant(100), later).is_empty(), "nobody waits");
    }

    #[test]
    fn those_that_an_earlier_process_has_started_have_places_for_their_time() {
        let (places, now) = (EnforcementPlaces::default(), Instant::now());
        for number in 0..=MOST {
            places.note_started(&tenant(number), RULES, now);
        }
        let other = tenant(100);
        assert!(!ask(&places, &other, now));
        // They are looked at again and again.
        for number in 0..=MOST {
            places.note_started(&tenant(number), RULES, now + HELD / 2);
        }
        assert!(!ask(&places, &other, now + HELD / 2));
        assert!(ask(&places, &other, now + HELD));
    }

    #[test]
    fn a_tenant_that_is_started_again_later_waits_as_others_do() {
        let now = Instant::now();
        let places = taken(now);
        let later = now + HELD;
        for number in MOST..2 * MOST {
            assert!(ask(&places, &tenant(number), later), "{number}");
        }
        assert!(!ask(&places, &tenant(0), later), "it has had its time");
    }

    /// Starts a tenant, and lets it run as long as it may. Returns when that is over, and asserts that nothing ends it before.
    fn run_until_over(places: &EnforcementPlaces, rules: &str, start: Instant) -> Instant {
        assert_eq!(places.ask(&tenant(0), rules, start), Turn::Now);
        let almost = start + RUNS.saturating_sub(Duration::from_secs(1));
        assert_eq!(places.note_started(&tenant(0), rules, almost), Turn::Now);
        assert_eq!(places.find_turn(&tenant(0), rules, almost), Turn::Later);
        let over = start + RUNS;
        assert_eq!(places.note_started(&tenant(0), rules, over), Turn::Over);
        assert_eq!(places.find_turn(&tenant(0), rules, over), Turn::Over);
        over
    }

    #[test]
    fn a_tenant_that_is_not_done_in_its_time_is_started_again_after_pauses_that_grow() {
        let places = EnforcementPlaces::default();
        let mut now = Instant::now();
        for pause in [30, 60, 120, 240, 240, 240].map(Duration::from_mins) {
            let over = run_until_over(&places, RULES, now);
            assert_eq!(places.ask(&tenant(0), RULES, over), Turn::Over);
            now = over + pause;
            let almost = now.checked_sub(Duration::from_secs(1)).unwrap();
            assert_eq!(places.ask(&tenant(0), RULES, almost), Turn::Over, "{pause:?}");
            assert_eq!(places.find_turn(&tenant(0), RULES, almost), Turn::Over);
            assert_eq!(places.find_turn(&tenant(0), RULES, now), Turn::Later);
        }
        assert_eq!(places.places().failed.len(), 1);
        places.leave(&tenant(0), now);
        assert!(places.places().failed.is_empty());
    }

    #[test]
    fn other_rules_are_tried_at_once_and_for_the_whole_time() {
        let (places, start) = (EnforcementPlaces::default(), Instant::now());
        let over = run_until_over(&places, RULES, start);
        assert_eq!(places.ask(&tenant(0), RULES, over), Turn::Over);
        run_until_over(&places, "others", over);
        // They come while it runs.
        let (places, almost) = (EnforcementPlaces::default(), start + RUNS / 2);
        assert!(ask(&places, &tenant(0), start));
        for (time, turn) in [
            (almost, Turn::Now),
            (start + RUNS, Turn::Now),
            (almost + RUNS, Turn::Over),
        ] {
            assert_eq!(places.note_started(&tenant(0), "others", time), turn);
        }
    }

    /// Who may use two classes changes between them again and again.
    #[test]
    fn who_changes_between_rules_does_not_run_for_ever() {
        let (places, start) = (EnforcementPlaces::default(), Instant::now());
        let (mut is_running, mut minutes) = (false, 0);
        for minute in 0..48 * 60 {
            let now = start + Duration::from_mins(minute);
            let rules = if minute / 29 % 2 == 0 { "one" } else { "other" };
            let turn = if is_running {
                places.note_started(&tenant(0), rules, now)
            } else {
                places.ask(&tenant(0), rules, now)
            };
            is_running = turn == Turn::Now;
            minutes += u32::from(is_running);
        }
        assert!(minutes < 16 * 60, "{minutes}");
        places.leave(&tenant(0), start);
        assert_eq!(
            places.ask(&tenant(0), "one", start),
            Turn::Now,
            "it has followed its class"
        );
    }

    /// A syncer that fails for long is no reason to make the rules wait that repair it.
    #[test]
    fn rules_that_change_for_the_first_time_end_a_pause_however_often_it_has_failed() {
        let (places, mut now) = (EnforcementPlaces::default(), Instant::now());
        for _ in 0..10 {
            while places.ask(&tenant(0), RULES, now) != Turn::Now {
                now += PAUSES.0;
            }
            now += RUNS;
            assert_eq!(places.note_started(&tenant(0), RULES, now), Turn::Over);
            assert_eq!(places.ask(&tenant(0), RULES, now), Turn::Over);
        }
        // It may be changed some times until it is right.
        for number in 1..=MOST_OTHERS {
            let rules = number.to_string();
            assert_eq!(places.ask(&tenant(0), &rules, now), Turn::Now, "{number}");
            now += RUNS;
            assert_eq!(places.note_started(&tenant(0), &rules, now), Turn::Over);
            assert_eq!(places.ask(&tenant(0), &rules, now), Turn::Over);
        }
        assert_eq!(places.ask(&tenant(0), RULES, now), Turn::Over);
        assert_eq!(places.find_turn(&tenant(0), RULES, now), Turn::Over);
        assert_eq!(places.ask(&tenant(0), RULES, now + 2 * PAUSES.0), Turn::Now);
    }

    /// No syncer can run at all.
    #[test]
    fn of_many_tenants_that_are_never_done_not_all_run_and_each_is_tried() {
        let (places, start) = (EnforcementPlaces::default(), Instant::now());
        let (mut running, mut tried, mut most) = (Vec::<Key>::new(), HashSet::new(), 0);
        for minute in 0..8 * 60 {
            let now = start + Duration::from_mins(minute);
            running.retain(|key| places.note_started(key, RULES, now) == Turn::Now);
            for key in (0..200).map(tenant) {
                if !running.contains(&key) && ask(&places, &key, now) {
                    tried.insert(key.clone());
                    running.push(key);
                }
            }
            most = most.max(running.len());
        }
        assert_eq!(tried.len(), 200);
        assert!(most <= 16 * MOST, "{most}");
    }
}
