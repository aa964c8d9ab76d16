//! What the watches record of pods and claims.

use super::*;
use berth_api::names::TenantId;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn using(tenant: &str, amount: u32, since: i64) -> Using<u32> {
    Using {
        tenant: tenant.into(),
        amount,
        since: at(since),
    }
}

/// What is read, as tenant, amount, since and until in seconds, in order.
fn read(log: &UseLog<u32>) -> Vec<(String, u32, i64, Option<i64>)> {
    let mut all = Vec::new();
    let lost = log.read(|using, until| {
        let until = until.map(Timestamp::as_second);
        all.push((using.tenant.clone(), using.amount, using.since.as_second(), until));
    });
    assert_eq!(lost, BTreeMap::new());
    all.sort();
    all
}

#[test]
fn a_use_that_ends_between_two_passes_is_read_once() {
    let log = UseLog::default();
    log.put("a/x", Some(using("a", 1, 5)), at(6));
    log.put("a/y", Some(using("a", 2, 7)), at(8));
    log.put("a/y", None, at(9));
    log.put("a/never", None, at(9));
    let first = [("a".to_owned(), 1, 5, None), ("a".to_owned(), 2, 7, Some(9))];
    assert_eq!(read(&log), first);
    assert_eq!(read(&log), first[..1]);
    log.retain(&HashSet::from(["a/z".to_owned()]), at(20));
    assert_eq!(read(&log), [("a".to_owned(), 1, 5, Some(20))]);
    assert!(read(&log).is_empty());
}

#[test]
fn an_amount_that_changes_counts_from_the_change_on() {
    let log = UseLog::default();
    log.put("a/x", Some(using("a", 1, 5)), at(6));
    log.put("a/x", Some(using("a", 1, 5)), at(7));
    log.put("a/x", Some(using("a", 4, 5)), at(10));
    let expected = [("a".to_owned(), 1, 5, Some(10)), ("a".to_owned(), 4, 10, None)];
    assert_eq!(read(&log), expected);
    // It was deleted and created again, and the watch saw neither.
    log.put("a/x", Some(using("a", 2, 30)), at(40));
    let expected = [("a".to_owned(), 2, 30, None), ("a".to_owned(), 4, 10, Some(30))];
    assert_eq!(read(&log), expected);
}

#[test]
fn a_list_that_is_read_again_does_not_move_the_beginning() {
    let log = UseLog::default();
    log.put("a/x", Some(using("a", 1, 6)), at(6));
    log.put("a/x", Some(using("a", 1, 3)), at(50));
    assert_eq!(read(&log), [("a".to_owned(), 1, 6, None)]);
}

#[test]
fn ends_that_nothing_reads_take_no_memory_without_end() {
    let log = UseLog::default();
    for number in 0..MOST_ENDED + 3 {
        log.put("a/x", Some(using("a", u32::try_from(number).unwrap(), 0)), at(1));
    }
    log.put("a/x", None, at(2));
    let mut ends = 0;
    assert_eq!(log.read(|_, _| ends += 1), BTreeMap::from([("a".to_owned(), 3)]));
    assert_eq!(ends, MOST_ENDED);
    assert_eq!(log.read(|_, _| ()), BTreeMap::new());
}

#[test]
fn ends_of_one_tenant_take_no_place_from_those_of_others() {
    let log = UseLog::default();
    for number in 0..=MOST_ENDED {
        log.put("a/x", Some(using("a", u32::try_from(number).unwrap(), 0)), at(1));
    }
    log.put("a/x", None, at(2));
    for (tenant, object) in [("b", "b/y"), ("c", "c/z")] {
        log.put(object, Some(using(tenant, 7, 3)), at(3));
        log.put(object, None, at(4));
    }
    let (mut of_others, mut of_first) = (Vec::new(), 0);
    let lost = log.read(|using, until| {
        if using.tenant == "a" {
            of_first += 1;
        } else {
            of_others.push((using.tenant.clone(), using.amount, until));
        }
    });
    of_others.sort();
    let expected = ["b", "c"].map(|tenant| (tenant.to_owned(), 7, Some(at(4))));
    assert_eq!(of_others, expected);
    assert_eq!(of_first, MOST_ENDED - 2);
    assert_eq!(lost, BTreeMap::from([("a".to_owned(), 3)]));
}

fn pod(more: &Value) -> Pod {
    let requests = json!({"cpu": "1500m", "memory": "1025Ki"});
    let mut pod = json!({
        "metadata": {"name": "p", "creationTimestamp": "1970-01-01T00:01:40Z",
            "labels": {labels::TENANT: "vision-abc", labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}},
        "spec": {"nodeName": "n1", "overhead": {"cpu": "100m"},
            "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    });
    for (pointer, value) in more.as_object().unwrap() {
        *pod.pointer_mut(pointer).unwrap() = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn scheduled(second: i64) -> Value {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(second).to_string()});
    json!({"/status": {"conditions": [condition]}})
}

#[test]
fn a_pod_counts_from_its_node_to_its_end_with_what_the_scheduler_counts() {
    let read = |more: &Value| read_pod(&pod(more), at(500));
    let expected = Using {
        tenant: "vision-abc".into(),
        amount: PodUse {
            node: "n1".into(),
            millicores: 1600,
            mebibytes: 2,
        },
        since: at(100),
    };
    assert_eq!(read(&json!({})), Some(expected));
    for (scheduled_at, since) in [(160, 160), (9, 100), (900, 500)] {
        assert_eq!(read(&scheduled(scheduled_at)).unwrap().since, at(since));
    }
    for nothing in [
        json!({"/spec/nodeName": ""}),
        json!({"/status/phase": "Succeeded"}),
        json!({"/metadata/labels": {labels::TENANT: "vision-abc"}}),
        json!({"/metadata/labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}),
    ] {
        assert_eq!(read(&nothing), None, "{nothing}");
    }
}

#[test]
fn a_claim_counts_if_it_has_a_volume_and_is_where_its_tenant_has_claims() {
    let id = TenantId::new("vision", "6f2c");
    let read = |namespace: &str, phase: &str, class: &str, size: &str| {
        let claim = json!({
            "metadata": {"name": "c", "namespace": namespace, "labels": {labels::TENANT: id.slug()},
                "creationTimestamp": "1970-01-01T00:01:40Z"},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
            "status": {"phase": phase},
        });
        read_claim(&serde_json::from_value(claim).unwrap(), at(500))
    };
    let own = id.workload_namespace();
    let using = |class: Option<&str>, mebibytes| {
        Some(Using {
            tenant: id.slug().to_owned(),
            amount: ClaimUse {
                class: class.map(ToOwned::to_owned),
                mebibytes,
            },
            since: at(100),
        })
    };
    assert_eq!(read(&own, "Bound", "fast", "10Gi"), using(Some("fast"), 10 * 1024));
    assert_eq!(read(&own, "Bound", "", "1"), using(None, 1));
    assert_eq!(read(&own, "Pending", "fast", "10Gi"), None, "it has no volume");
    assert_eq!(read("team", "Bound", "fast", "10Gi"), None, "a label that others wrote");
    assert_eq!(read(&own, "Bound", "fast", "lots"), None);
}

/// Drivers round up: the smallest volume of a shared file system may have a TiB.
#[test]
fn a_claim_counts_with_the_whole_volume_that_it_has() {
    let id = TenantId::new("vision", "6f2c");
    let mebibytes = |requested: &str, status: Value| {
        let claim = json!({
            "metadata": {"name": "c", "namespace": id.workload_namespace(), "labels": {labels::TENANT: id.slug()}},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": requested}}},
            "status": status,
        });
        let using = read_claim(&serde_json::from_value(claim).unwrap(), at(500));
        using.unwrap().amount.mebibytes
    };
    let bound = |capacity: &str| json!({"phase": "Bound", "capacity": {"storage": capacity}});
    assert_eq!(mebibytes("1Ki", bound("1Ti")), 1024 * 1024);
    assert_eq!(mebibytes("10Gi", bound("10Gi")), 10 * 1024);
    assert_eq!(mebibytes("20Gi", bound("10Gi")), 20 * 1024, "it is being expanded");
    for unknown in [
        bound("lots"),
        json!({"phase": "Bound", "capacity": {}}),
        json!({"phase": "Bound"}),
    ] {
        assert_eq!(mebibytes("10Gi", unknown.clone()), 10 * 1024, "{unknown}");
    }
}

#[test]
fn what_nothing_reads_is_not_written() {
    let metered = MeteredUse::new(Clock::at(at(500)), false);
    metered.put_pod("a/p", Some(&pod(&json!({}))));
    let mut count = 0;
    metered.pods.read(|_, _| count += 1);
    assert_eq!(count, 0);
    let metered = MeteredUse::new(Clock::at(at(500)), true);
    metered.put_pod("a/p", Some(&pod(&json!({}))));
    metered.pods.read(|_, _| count += 1);
    assert_eq!(count, 1);
}
