use super::*;
use crate::model::{store::Stored, tenant::test_tenant};
use crate::registry;
use berth_api::sync_policy::{FieldReference, PriorityBand};
use jiff::Timestamp;
use std::sync::Arc;

fn cache() -> Cache {
    let reference = |path: &str, kind: &str| FieldReference {
        path: path.into(),
        kind: kind.into(),
    };
    let mut tenant = test_tenant();
    tenant.policy = Arc::new(SyncPolicy {
        kinds: vec![SyncedKind {
            group: "example.com".into(),
            version: "v1".into(),
            kind: "Gang".into(),
            resource: "gangs".into(),
            fields: vec!["spec".into()],
            status: true,
            references: vec![
                reference("spec.tls[].secretName", "Secret"),
                reference("spec.parent", "Gang.example.com"),
                reference("spec.unknown", "Nothing"),
                reference("status.parent", "Gang.example.com"),
            ],
            selectors: vec!["spec.selector".into()],
            denied_fields: vec!["spec.hostPath".into()],
            annotations: vec!["example.com/*".into()],
            labels: vec!["tier".into()],
        }],
        ..SyncPolicy::default()
    });
    registry::new_cache(tenant)
}

fn rules(cache: &Cache) -> (KindId, &'static dyn ToHost) {
    let id = cache.find_kind_by_name("Gang.example.com").unwrap();
    (id, cache.rules_to_host(id).unwrap())
}

#[test]
fn each_definition_is_made_once() {
    let pointer = |id: KindId| match id {
        KindId::Custom(custom) => std::ptr::from_ref(custom),
        _ => panic!("{id:?}"),
    };
    let policy = cache().tenant.policy;
    let [first, again] = [(); 2].map(|()| kind_ids(&policy).into_iter().map(pointer).collect::<Vec<_>>());
    assert_eq!(first, again);
    let mut changed = SyncPolicy::clone(&policy);
    changed.kinds[0].status = false;
    assert_ne!(first, kind_ids(&changed).into_iter().map(pointer).collect::<Vec<_>>());
}

#[test]
fn references_and_selectors_are_the_hosts() {
    let cache = cache();
    let (id, rules) = rules(&cache);
    let name = Name::new("research", "g");
    let object = json!({"metadata": {"labels": {"a": "b", "tier": "front"}, "ownerReferences": [{}]}, "spec": {
        "tls": [{"secretName": "cert"}, {"secretName": ""}], "parent": "p", "selector": {"matchLabels": {"a": "b"}}, "count": 3},
        "status": {"phase": "x"}});
    let translated = rules.translate(&cache, &name, &object).unwrap().object;
    insta::assert_yaml_snapshot!(translated);
    let targets: Vec<_> = rules
        .references(&cache, &name, &object)
        .into_iter()
        .map(|target| (target.kind, target.name.to_string()))
        .collect();
    assert_eq!(
        targets,
        [
            (KindId::Secret, "research/cert".to_owned()),
            (id, "research/p".to_owned())
        ]
    );
}

#[test]
fn a_selector_that_is_missing_selects_the_pods_of_the_namespace() {
    let cache = cache();
    let (_, rules) = rules(&cache);
    let translate = |object: Value| rules.translate(&cache, &Name::new("research", "g"), &object);
    let all = json!({"matchLabels": {"berth.dev/tenant": "vision-aaaaaaaaaaaaa", "berth.dev/namespace": "research"}});
    for object in [
        json!({"metadata": {}, "spec": {"count": 3}}),
        json!({"metadata": {}, "spec": {"selector": null}}),
        json!({"metadata": {}, "spec": {"selector": {}}}),
        json!({"metadata": {}, "spec": {}}),
        json!({"metadata": {}, "spec": null}),
        json!({"metadata": {}}),
    ] {
        assert_eq!(
            translate(object.clone()).unwrap().object["spec"]["selector"],
            all,
            "{object}"
        );
    }
    for odd in [json!("app=a"), json!([{"matchLabels": {}}]), json!(true)] {
        let denied = translate(json!({"metadata": {}, "spec": {"selector": odd}})).unwrap_err();
        assert_eq!(denied[0].field, "spec.selector");
    }
}

#[test]
fn selectors_without_end_are_denied_before_they_are_made() {
    let mut tenant = cache().tenant;
    Arc::make_mut(&mut tenant.policy).kinds[0].selectors = vec!["spec.groups[].selector".into()];
    let cache = registry::new_cache(tenant);
    let (_, rules) = rules(&cache);
    let translate = |count: usize| {
        let object = json!({"metadata": {}, "spec": {"groups": vec![json!({}); count]}});
        rules.translate(&cache, &Name::new("research", "g"), &object)
    };
    assert!(translate(1000).is_ok());
    let denied = translate(200_000).unwrap_err();
    assert!(denied[0].why.starts_with("there are 200000 selectors"), "{denied:?}");
    let words: Vec<&str> = denied[1].why.split(' ').collect();
    let bytes: usize = words[3].parse().unwrap();
    assert!(bytes < 2_000_000, "most are not made: {}", denied[1].why);
}

#[test]
fn annotations_that_the_class_lists_are_copied() {
    let cache = cache();
    let (_, rules) = rules(&cache);
    let object =
        json!({"metadata": {"annotations": {"example.com/a": "1", "note": "n", "velero.io/x": "y"}}, "spec": {}});
    let translated = rules.translate(&cache, &Name::new("a", "g"), &object).unwrap();
    assert_eq!(
        translated.object["metadata"]["annotations"],
        json!({"example.com/a": "1"})
    );
    assert_eq!(translated.ignored[0].field, "metadata.annotations[velero.io/x]");
}

#[test]
fn fields_that_the_class_does_not_list_are_denied() {
    let cache = cache();
    let (_, rules) = rules(&cache);
    let object = json!({"metadata": {}, "spec": {"hostPath": "/", "unknown": "u"}, "extra": 1});
    let denied = rules.translate(&cache, &Name::new("a", "g"), &object).unwrap_err();
    let fields: Vec<_> = denied.iter().map(|denied| denied.field.as_str()).collect();
    assert_eq!(fields, ["extra", "spec.hostPath", "spec.unknown"]);
}

/// Of a tenant whose class lists groups of pods.
fn cache_with_groups(change: impl FnOnce(&mut SyncPolicy)) -> Cache {
    let mut policy = SyncPolicy {
        kinds: vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1beta1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            fields: vec!["spec".into()],
            ..SyncedKind::default()
        }],
        ..SyncPolicy::default()
    };
    change(&mut policy);
    let mut tenant = test_tenant();
    tenant.policy = Arc::new(policy);
    registry::new_cache(tenant)
}

#[test]
fn no_class_gives_groups_of_pods_devices() {
    let cache = cache_with_groups(|_| {});
    let id = cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
    let rules = cache.rules_to_host(id).unwrap();
    let name = Name::new("research", "ring");
    let group = |claims: Value| json!({"metadata": {}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims}});
    let with_claims = group(json!([{"name": "gpu", "resourceClaimName": "one"}]));
    let denied = rules.translate(&cache, &name, &with_claims).unwrap_err();
    let denied: Vec<_> = denied.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&denied[..], [one] if one.starts_with("spec.resourceClaims: a group keeps its devices")),
        "{denied:?}"
    );
    assert!(rules.translate(&cache, &name, &group(json!([]))).is_ok());
    // One that is on the host already ends.
    let when_denied = rules.when_denied(&cache, &name, &Value::Null, &with_claims);
    assert_eq!(when_denied, WhenDenied::Withdraw);
}

/// The scheduler goes by the priority of the group in its queue and when it looks for pods to preempt, and places none whose pods have another one.
#[test]
fn groups_of_pods_have_priorities_of_the_band() {
    let name = Name::new("research", "ring");
    let translate = |cache: &Cache, group: &Value| {
        let id = cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
        let rules = cache.rules_to_host(id).unwrap();
        rules.translate(cache, &name, group).unwrap()
    };
    let class = |cache: &Cache, group: &Value| translate(cache, group).object["spec"]["priorityClassName"].clone();
    let plain = json!({"schedulingPolicy": {"gang": {"minCount": 2}}});
    let with = |priority: i64, class: &str, preemption: &str| {
        let mut group = json!({"metadata": {}, "spec": plain});
        group["spec"]["priority"] = priority.into();
        group["spec"]["priorityClassName"] = class.into();
        group["spec"]["preemptionPolicy"] = preemption.into();
        group
    };
    let critical = with(2_000_001_000, "system-node-critical", "PreemptLowerPriority");
    let without_band = translate(&cache_with_groups(|_| {}), &critical);
    assert_eq!(without_band.object["spec"], plain);
    assert_eq!(without_band.ignored[0].field, "spec.priorityClassName");

    let band = |policy: &mut SyncPolicy| policy.pods.priority = Some(PriorityBand { lowest: 0, highest: 11 });
    let cache = cache_with_groups(band);
    let mut expected = plain.clone();
    expected["priorityClassName"] = "berth-default-11".into();
    assert_eq!(translate(&cache, &critical).object["spec"], expected);
    assert_eq!(class(&cache, &with(0, "low", "Never")), "berth-default-1-never");
    // A class that lists fields of priority as denied loses nothing by what the tenant's API server fills in.
    let denies = cache_with_groups(|policy| policy.kinds[0].denied_fields = vec!["spec.priority".into()]);
    assert_eq!(translate(&denies, &critical).object["spec"], plain);

    let shared = cache_with_groups(|policy| {
        band(policy);
        policy.shared_nodes.pools = vec!["cpu".into()];
    });
    assert_eq!(
        class(&shared, &critical),
        "berth-default-11-never",
        "others' pods are there"
    );
}

/// An API server refuses a group whose priority changes, and an apply removes what it leaves out.
#[test]
fn groups_of_pods_on_the_host_keep_their_priority() {
    let cache = cache_with_groups(|policy| policy.pods.priority = Some(PriorityBand { lowest: 0, highest: 11 }));
    let id = cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
    let rules = cache.rules_to_host(id).unwrap();
    let name = Name::new("research", "ring");
    let spec = |count: u32| json!({"schedulingPolicy": {"gang": {"minCount": count}}, "priority": 7});
    let translate = |count: u32| {
        let group = json!({"metadata": {}, "spec": spec(count)});
        rules.translate(&cache, &name, &group).unwrap().object
    };
    let created = translate(2);
    assert_eq!(created["spec"]["priorityClassName"], "berth-default-2");
    for (version, kept) in [
        ("1", json!({"priorityClassName": "berth-default-2", "priority": 2})),
        (
            "2",
            json!({"priorityClassName": "berth-other-3", "priority": 3, "preemptionPolicy": "Never"}),
        ),
        // By the host's default, and of a host whose groups have none.
        ("3", json!({"priorityClassName": "normal", "priority": 5})),
        ("4", json!({})),
    ] {
        let mut live = json!({"metadata": {"name": "x", "namespace": "h", "resourceVersion": version}, "spec": kept});
        live["spec"]["schedulingPolicy"] = created["spec"]["schedulingPolicy"].clone();
        cache.stores.host(id).written(name.clone(), Stored::new(&live));
        let same = translate(2);
        assert_eq!(same["spec"], live["spec"], "{kept}");
        // It is not written because of that.
        assert_eq!(rules.mutable_part(&same), rules.mutable_part(&created), "{kept}");
        assert_ne!(rules.mutable_part(&translate(3)), rules.mutable_part(&created));
    }
}

#[test]
fn priorities_of_other_kinds_are_fields_like_others() {
    let cache = cache();
    let (_, rules) = rules(&cache);
    let object = json!({"spec": {"priority": 7, "priorityClassName": "high"}});
    assert_eq!(rules.mutable_part(&object), object);
}

#[test]
fn what_is_too_large_for_the_host_is_denied_in_words() {
    let mut policy = SyncPolicy::clone(&cache().tenant.policy);
    policy.kinds[0].labels = vec!["many.example.com/*".into()];
    let mut tenant = test_tenant();
    tenant.policy = Arc::new(policy);
    let cache = registry::new_cache(tenant);
    let (_, rules) = rules(&cache);
    let object = |labels: usize, annotation: usize, text: usize| {
        let labels: Map<String, Value> = (0..labels)
            .map(|number| (format!("many.example.com/{number}"), "".into()))
            .collect();
        let annotations = json!({"example.com/a": "a".repeat(annotation), "not-copied": "a".repeat(250_000)});
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"text": "a".repeat(text)}})
    };
    let denied = |object: Value| {
        let denied = rules.translate(&cache, &Name::new("a", "g"), &object).err();
        let denied = denied.into_iter().flatten();
        denied.map(|denied| denied.field).collect::<Vec<_>>()
    };
    assert_eq!(denied(object(390, 100_000, 100_000)), [""; 0]);
    assert_eq!(denied(object(391, 0, 0)), ["metadata.labels"]);
    assert_eq!(denied(object(0, 240_000, 0)), ["metadata and spec"]);
    assert_eq!(denied(object(0, 120_000, 120_000)), ["metadata and spec"]);
}

#[test]
fn the_status_has_the_tenants_names() {
    let cache = cache();
    let (id, rules) = rules(&cache);
    let (name, parent) = (Name::new("research", "g"), Name::new("research", "p"));
    let host = host_name(id, &parent);
    let known = json!({"metadata": {"name": host, "resourceVersion": "1"}});
    cache
        .stores
        .host(id)
        .written(parent, crate::model::store::Stored::new(&known));
    let observation = Observation {
        tenant: &json!({"metadata": {"generation": 4}}),
        host: &json!({"status": {"parent": host, "observedGeneration": 9, "message": format!("waits for {host}")}}),
        in_sync: true,
        denied: &[],
        now: Timestamp::UNIX_EPOCH,
    };
    let writes = rules.sync_status(&cache, &name, &observation);
    let status = json!({"parent": "p", "observedGeneration": 4, "message": "waits for p"});
    assert_eq!(writes, [TenantWrite::Status(status)]);
}

#[test]
fn what_the_class_took_away_is_withdrawn() {
    let cache = cache();
    let KindId::Custom(kind) = kind_ids(&cache.tenant.policy)[0] else {
        panic!("a kind of the class")
    };
    let name = Name::new("shop", "one");
    let when_denied = |host: Value| kind.when_denied(&cache, &name, &Value::Null, &host);
    assert_eq!(
        when_denied(json!({"metadata": {"name": "x"}, "spec": {"size": 3}})),
        WhenDenied::Keep
    );
    assert_eq!(
        when_denied(json!({"metadata": {"name": "x"}, "spec": {}, "extra": 1})),
        WhenDenied::Withdraw
    );
}
