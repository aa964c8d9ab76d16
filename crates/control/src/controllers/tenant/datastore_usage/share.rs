//! How much of its share a tenant uses, and what its API server denies for that reason: pure.
//!
//! At [`WARNING_PERCENT`] the team is warned. At [`FULL_PERCENT`] the API server creates nothing more until less than
//! [`ROOM_PERCENT`] is used. At [`GROWTH_PERCENT`] it also denies updates that make an object larger, until less than
//! [`GROWTH_ROOM_PERCENT`] is used.

use super::super::percent::{STEP_PERCENT, WARNING_PERCENT, magnitude, mebibytes, percent};
use berth_api::{
    DatastoreUsage, TenantLimits,
    conditions::{ConditionUpdate, DATASTORE_WITHIN_LIMITS},
};

/// From here on nothing is created.
const FULL_PERCENT: u32 = 100;
/// Below this, objects are created again.
const ROOM_PERCENT: u32 = 95;
/// From here on no object may grow. A tenant gets here by updates, or by what it writes between two measurements.
const GROWTH_PERCENT: u32 = 110;
/// Below this, objects may grow again.
const GROWTH_ROOM_PERCENT: u32 = 105;

/// What was measured of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Measurement {
    /// Size of all objects.
    pub(super) bytes: u64,
    /// Number of all objects.
    pub(super) objects: u64,
    /// Number of CustomResourceDefinitions.
    pub(super) definitions: u64,
    /// Whether there may be more than was measured.
    pub(super) is_incomplete: bool,
}

/// The usage that follows from a measurement. A change of less than a step leaves it as it was.
pub(super) fn next(before: Option<DatastoreUsage>, measurement: &Measurement, limits: &TenantLimits) -> DatastoreUsage {
    let Measurement {
        bytes,
        objects,
        definitions,
        is_incomplete,
    } = *measurement;
    let earlier = before.unwrap_or_default();
    let at_least = if is_incomplete {
        earlier.custom_resource_definitions
    } else {
        0
    };
    let measured = DatastoreUsage {
        bytes,
        objects,
        custom_resource_definitions: definitions.max(at_least),
        ..earlier
    };
    let mut after = judge(measured, limits);
    if is_incomplete && after.percent < earlier.percent {
        // Otherwise the restart that makes a full API server refuse objects would also end that.
        after = DatastoreUsage {
            custom_resource_definitions: after.custom_resource_definitions,
            definitions_full: after.definitions_full,
            ..earlier
        };
    }
    match before {
        Some(before) if published(&before, limits) == published(&after, limits) => before,
        _ => after,
    }
}

/// A usage by these limits: the class may have changed since it was measured.
pub(super) fn judge(usage: DatastoreUsage, limits: &TenantLimits) -> DatastoreUsage {
    let bytes = percent(usage.bytes, limits.datastore_size());
    let objects = percent(usage.objects, limits.datastore_objects);
    let used = bytes.max(objects);
    let definitions = definitions_percent(&usage, limits);
    DatastoreUsage {
        percent: used,
        full: is_reached(usage.full, used, FULL_PERCENT, ROOM_PERCENT),
        growth_denied: is_reached(usage.growth_denied, used, GROWTH_PERCENT, GROWTH_ROOM_PERCENT),
        definitions_full: is_reached(usage.definitions_full, definitions, FULL_PERCENT, ROOM_PERCENT),
        ..usage
    }
}

/// Whether a limit is in force: from one percentage on, until less than another is used.
const fn is_reached(before: bool, used: u32, from: u32, until: u32) -> bool {
    used >= from || before && used >= until
}

fn definitions_percent(usage: &DatastoreUsage, limits: &TenantLimits) -> u32 {
    percent(usage.custom_resource_definitions, limits.custom_resource_definitions)
}

/// What must differ for a usage to be published.
fn published(usage: &DatastoreUsage, limits: &TenantLimits) -> ([bool; 3], [u32; 2], [u32; 2]) {
    let denied = [usage.full, usage.growth_denied, usage.definitions_full];
    let steps = [usage.percent, definitions_percent(usage, limits)].map(|percent| percent / STEP_PERCENT);
    let magnitudes = [mebibytes(usage.bytes), usage.objects].map(magnitude);
    (denied, steps, magnitudes)
}

/// The condition of a usage.
pub(super) fn condition(usage: &DatastoreUsage) -> ConditionUpdate {
    let DatastoreUsage {
        bytes,
        objects,
        percent,
        full,
        growth_denied,
        custom_resource_definitions: definitions,
        definitions_full,
    } = usage;
    let used = format!(
        "the tenant stores {objects} objects of {} MiB, {percent} % of what its class allows",
        mebibytes(*bytes)
    );
    let advice = "delete objects that are no longer needed, or ask the platform team to raise spec.limits.datastoreBytes or \
                  datastoreObjects of the class";
    let (reason, message) = if *growth_denied {
        let denied = "Its API server creates nothing more and denies updates that make an object larger";
        ("DatastoreLimitExceeded", format!("{used}. {denied}: {advice}"))
    } else if *full {
        let denied = "Its API server creates nothing more";
        ("DatastoreLimitReached", format!("{used}. {denied}: {advice}"))
    } else if *definitions_full {
        let message = format!(
            "the tenant has {definitions} CustomResourceDefinitions, as many as its class allows. Its API server creates no more: \
             delete those that are no longer needed, or ask the platform team to raise \
             spec.limits.customResourceDefinitions of the class"
        );
        ("DefinitionLimitReached", message)
    } else if *percent >= WARNING_PERCENT {
        let denied = format!("At {FULL_PERCENT} % its API server creates nothing more");
        ("DatastoreLimitNear", format!("{used}. {denied}: {advice}"))
    } else {
        return ConditionUpdate::mark_true(DATASTORE_WITHIN_LIMITS, "WithinLimits", used);
    };
    ConditionUpdate::mark_false(DATASTORE_WITHIN_LIMITS, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of a class that allows 100 bytes and 20 definitions.
    fn limits() -> TenantLimits {
        TenantLimits {
            datastore_bytes: "100".into(),
            custom_resource_definitions: 20,
            ..TenantLimits::default()
        }
    }

    fn step(before: Option<DatastoreUsage>, bytes: u64) -> DatastoreUsage {
        let measurement = Measurement {
            bytes,
            ..Measurement::default()
        };
        next(before, &measurement, &limits())
    }

    #[test]
    fn the_larger_share_counts() {
        let limits = TenantLimits {
            datastore_bytes: "120Mi".into(),
            datastore_objects: 30,
            ..TenantLimits::default()
        };
        let measurement = Measurement {
            bytes: 12 << 20,
            objects: 15,
            ..Measurement::default()
        };
        let usage = next(None, &measurement, &limits);
        assert_eq!((usage.percent, usage.objects, usage.full), (50, 15, false));
    }

    #[test]
    fn a_full_tenant_stays_full_until_there_is_room_again() {
        let near = step(None, 99);
        assert!(!near.full);
        let full = step(Some(near), 100);
        assert!(full.full && !full.growth_denied);
        let still = step(Some(full), 96);
        assert!(still.full);
        assert!(!step(Some(still), 94).full);
        assert!(!step(None, 96).full);
    }

    #[test]
    fn above_the_limit_growth_is_denied_until_less_is_used() {
        let full = step(None, 109);
        assert!(full.full && !full.growth_denied);
        let above = step(Some(full), 110);
        assert!(above.full && above.growth_denied);
        let still = step(Some(above), 106);
        assert!(still.growth_denied);
        let below = step(Some(still), 104);
        assert!(below.full && !below.growth_denied);
    }

    #[test]
    fn definitions_have_a_limit_of_their_own() {
        let count = |before, definitions, is_incomplete| {
            let measurement = Measurement {
                definitions,
                is_incomplete,
                ..Measurement::default()
            };
            next(before, &measurement, &limits())
        };
        assert!(!count(None, 19, false).definitions_full);
        let reached = count(None, 20, false);
        assert!(reached.definitions_full && !reached.full);
        assert_eq!(condition(&reached).reason, "DefinitionLimitReached");
        // An API server that has just started may not have counted them.
        assert!(count(Some(reached), 0, true).definitions_full);
        assert!(count(Some(reached), 19, false).definitions_full);
        assert!(!count(Some(reached), 18, false).definitions_full);
    }

    #[test]
    fn a_class_that_allows_more_counts_at_once() {
        let full = step(None, 100);
        let more = TenantLimits {
            datastore_bytes: "200".into(),
            ..limits()
        };
        let judged = judge(full, &more);
        assert_eq!((judged.percent, judged.full), (50, false));
    }

    #[test]
    fn small_changes_are_not_published() {
        let before = step(None, 51);
        assert_eq!(step(Some(before), 54), before);
        assert_eq!(step(Some(before), 55).percent, 55);
    }

    #[test]
    fn a_small_part_of_a_large_limit_is_published_once_it_has_doubled() {
        let limits = TenantLimits {
            datastore_bytes: "4Gi".into(),
            datastore_objects: 100_000,
            ..TenantLimits::default()
        };
        let measure = |before, bytes, objects| {
            let measurement = Measurement {
                bytes,
                objects,
                ..Measurement::default()
            };
            next(before, &measurement, &limits)
        };
        // A new API server has counted its objects before their bytes.
        let counted = measure(None, 0, 219);
        let sized = measure(Some(counted), 600_000, 220);
        assert_eq!((sized.bytes, sized.objects, sized.percent), (600_000, 220, 0));
        assert_eq!(measure(Some(sized), 900_000, 250), sized);
        assert_eq!(measure(Some(sized), 900_000, 260).objects, 260);
    }

    #[test]
    fn what_is_not_measured_completely_can_only_be_more() {
        let before = step(None, 100);
        let report = |bytes, is_incomplete| {
            let measurement = Measurement {
                bytes,
                is_incomplete,
                ..Measurement::default()
            };
            next(Some(before), &measurement, &limits()).percent
        };
        assert_eq!(report(10, true), 100);
        assert_eq!(report(150, true), 150);
        assert_eq!(report(10, false), 10);
    }

    #[test]
    fn the_team_is_warned_before_its_share_is_full() {
        for (bytes, status, reason) in [
            (79, true, "WithinLimits"),
            (80, false, "DatastoreLimitNear"),
            (100, false, "DatastoreLimitReached"),
            (110, false, "DatastoreLimitExceeded"),
        ] {
            let condition = condition(&step(None, bytes));
            assert_eq!((condition.is_true(), condition.reason), (status, reason));
        }
    }
}
