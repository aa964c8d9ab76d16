use super::*;
use crate::kinds::schemas;
use crate::model::tenant::test_tenant;
use crate::registry;
use berth_api::SyncPolicy;
use std::sync::Arc;

fn translate(spec: &Value) -> Result<Value, Vec<String>> {
    translate_with(ServicePolicy::default(), spec)
}

fn translate_with(services: ServicePolicy, spec: &Value) -> Result<Value, Vec<String>> {
    let mut tenant = test_tenant();
    let policy = SyncPolicy {
        services,
        ..SyncPolicy::default()
    };
    tenant.policy = Arc::new(policy);
    let cache = registry::new_cache(tenant);
    let service = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}}, "spec": spec});
    Services
        .translate(&cache, &Name::new("shop", "web"), &service)
        .map(|translated| translated.object)
        .map_err(|denied| denied.iter().map(ToString::to_string).collect())
}

#[test]
fn the_address_stays_and_the_selector_is_narrowed() {
    let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"], "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}], "sessionAffinity": "None",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"});
    insta::assert_yaml_snapshot!(translate(&spec).unwrap());
}

#[test]
fn addresses_that_the_host_keeps_are_denied_however_they_are_written_but_stay() {
    let mut tenant = test_tenant();
    tenant.reserved_service_addresses = vec!["10.96.0.0/24".parse().unwrap(), "fd00::/120".parse().unwrap()];
    let cache = registry::new_cache(tenant);
    let name = Name::new("shop", "web");
    let service = |addresses: &[&str]| {
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
            "clusterIP": addresses.first(), "clusterIPs": addresses, "selector": {"app": "web"}, "ports": [{"port": 80}]}})
    };
    let why = |addresses: &[&str]| {
        let denied = Services.translate(&cache, &name, &service(addresses)).err();
        denied.map(|denied| denied[0].to_string())
    };
    for addresses in [&[][..], &[""], &["None"], &["10.96.1.0"], &["10.96.1.0", "fd00::1:1"]] {
        assert_eq!(why(addresses), None, "{addresses:?}");
    }
    for addresses in [&["10.96.0.10"][..], &["10.96.1.0", "fd00::a"], &["::ffff:10.96.0.10"]] {
        let why = why(addresses).unwrap();
        assert!(
            why.contains("is one of the addresses that the host cluster keeps"),
            "{why}"
        );
    }
    assert_eq!(
        why(&["10.96.0.010"]).as_deref(),
        Some("spec.clusterIP: 10.96.0.010 is not written as an IP address")
    );
    // The host may have given it, when no other one was left.
    let host = Stored::from(service(&["10.96.0.10"]));
    cache.stores.host(KindId::Service).watched(name.clone(), host);
    assert_eq!(why(&["10.96.0.10"]), None);
    assert!(why(&["10.96.0.11"]).is_some());
}

#[test]
fn service_fields_that_leave_the_tenant_are_denied() {
    let spec = json!({"type": "NodePort", "externalIPs": ["1.2.3.4"], "loadBalancerIP": "1.2.3.4", "ports": [{"port": 1, "nodePort": 30000}]});
    insta::assert_yaml_snapshot!(translate(&spec).unwrap_err());
}

#[test]
fn a_class_may_offer_ways_in_from_outside() {
    let policy = ServicePolicy {
        node_ports: true,
        load_balancers: true,
        load_balancer_classes: vec!["metallb".into()],
        ..ServicePolicy::default()
    };
    let spec = json!({"type": "LoadBalancer", "clusterIP": "10.96.7.7", "loadBalancerClass": "metallb",
        "allocateLoadBalancerNodePorts": true, "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
        "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": [{"port": 80, "nodePort": 30000}]});
    insta::assert_yaml_snapshot!(translate_with(policy.clone(), &spec).unwrap());
    assert!(translate_with(policy.clone(), &json!({"type": "NodePort", "ports": [{"port": 80}]})).is_ok());
    let other = json!({"type": "LoadBalancer", "loadBalancerClass": "f5"});
    assert_eq!(
        translate_with(policy, &other).unwrap_err(),
        ["spec.loadBalancerClass: f5 is not offered: leave it out for the default one, or use one of metallb"]
    );
    // A load balancer class that is left over from an earlier type has no effect.
    assert!(translate(&json!({"type": "ClusterIP"})).is_ok());
}

#[test]
fn ports_that_somebody_else_has_added_are_removed() {
    let desired = json!({"spec": {"ports": [{"name": "web", "port": 443}, {"port": 53, "protocol": "UDP"}]}});
    let own = json!({"name": "web", "port": 443, "protocol": "TCP", "targetPort": 8443, "nodePort": 30443});
    let dns = json!({"port": 53, "protocol": "UDP", "targetPort": 53});
    let removed = |ports: Value| Services.without_foreign_fields(&desired, &json!({"spec": {"ports": ports}}));
    assert_eq!(removed(json!([own, dns])), None);
    let shell = json!({"name": "shell", "port": 22, "protocol": "TCP", "nodePort": 30022});
    let other = json!({"port": 53, "protocol": "TCP"});
    assert_eq!(
        removed(json!([own, shell, dns, other])),
        Some(json!({"spec": {"ports": [own, dns]}}))
    );
    // The syncer looks for them after a start.
    assert!(!Services.exclusive_fields().is_empty());
}

#[test]
fn ports_and_source_ranges_are_limited() {
    let policy = ServicePolicy {
        load_balancers: true,
        ..ServicePolicy::default()
    };
    let denied = |ports: u32, ranges: u32| {
        let ports: Vec<Value> = (1..=ports)
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .collect();
        let ranges: Vec<String> = (0..ranges).map(|number| format!("192.0.2.{number}/32")).collect();
        let spec = json!({"type": "LoadBalancer", "ports": ports, "loadBalancerSourceRanges": ranges});
        translate_with(policy.clone(), &spec).err().unwrap_or_default()
    };
    assert!(denied(250, 20).is_empty() && denied(20, 250).is_empty());
    for (ports, ranges, field) in [
        (251, 0, "spec.ports: "),
        (1, 251, "spec.loadBalancerSourceRanges: "),
        (201, 25, "spec.ports by spec.loadBalancerSourceRanges: "),
    ] {
        let denied = denied(ports, ranges);
        assert!(denied.len() == 1 && denied[0].starts_with(field), "{denied:?}");
    }
}

#[test]
fn a_service_from_before_the_limits_stays_and_headless_services_may_have_more_ports() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let service = |count: u32, address: &str| {
        let ports: Vec<Value> = (1..=count)
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .collect();
        json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "1"},
            "spec": {"clusterIP": address, "ports": ports}})
    };
    let is_denied = |service: &Value| Services.translate(&cache, &name, service).is_err();
    assert!(is_denied(&service(251, "10.96.7.7")) && !is_denied(&service(300, "None")));
    let live = Stored::new(&service(300, "10.96.7.7"));
    cache.stores.host(KindId::Service).written(name.clone(), live);
    assert!(!is_denied(&service(300, "10.96.7.7")) && is_denied(&service(301, "10.96.7.7")));
}

#[test]
fn annotations_reach_the_host_only_if_the_class_lists_them() {
    let translate = |listed: &[&str], kind: &str| {
        let mut tenant = test_tenant();
        let policy = Arc::make_mut(&mut tenant.policy);
        policy.services.load_balancers = true;
        policy.services.annotations = listed.iter().map(ToString::to_string).collect();
        let cache = registry::new_cache(tenant);
        let service = json!({"metadata": {"annotations": {"note": "n", "service.kubernetes.io/topology-mode": "Auto",
            "external-dns.alpha.kubernetes.io/hostname": "www.bank.example.com", "metallb.io/address-pool": "other",
            "service.beta.kubernetes.io/aws-load-balancer-internal": "true"}}, "spec": {"type": kind}});
        Services.translate(&cache, &Name::new("shop", "web"), &service)
    };
    let fields = |list: &[DeniedField]| list.iter().map(|issue| issue.field.clone()).collect::<Vec<_>>();
    let [dns, pool, internal] = [
        "metadata.annotations[external-dns.alpha.kubernetes.io/hostname]",
        "metadata.annotations[metallb.io/address-pool]",
        "metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-internal]",
    ];

    let inside = translate(&[], "ClusterIP").unwrap();
    assert_eq!(
        inside.object["metadata"]["annotations"],
        json!({"service.kubernetes.io/topology-mode": "Auto"})
    );
    assert_eq!(fields(&inside.ignored), [dns, pool, internal]);

    // Left out, an internal load balancer would be open to the internet.
    let denied = translate(&[], "LoadBalancer").unwrap_err();
    assert_eq!(fields(&denied), [pool, internal]);
    assert!(denied[0].why.contains("sync.services.annotations"), "{}", denied[0].why);

    let listed = ["metallb.io/address-pool", "service.beta.kubernetes.io/*"];
    let offered = translate(&listed, "LoadBalancer").unwrap();
    let copied = offered.object["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(copied.len(), 3);
    assert_eq!(fields(&offered.ignored), [dns]);
}

#[test]
fn a_service_has_only_labels_that_the_class_lists() {
    let labels_with = |listed: &[&str]| {
        let mut tenant = test_tenant();
        std::sync::Arc::make_mut(&mut tenant.policy).services.labels = listed.iter().map(ToString::to_string).collect();
        let service = json!({"metadata": {"labels": {"pool": "public", "app.kubernetes.io/name": "web",
            "service.kubernetes.io/service-proxy-name": "none"}}, "spec": {}});
        let translated = Services.translate(&registry::new_cache(tenant), &Name::new("shop", "web"), &service);
        translated.unwrap().object["metadata"]["labels"].take()
    };
    let proxy = "service.kubernetes.io/service-proxy-name";
    assert_eq!(labels_with(&[]), json!({proxy: "none"}));
    assert_eq!(labels_with(&["pool"]), json!({proxy: "none", "pool": "public"}));
}

#[test]
fn a_condition_says_what_is_denied_as_long_as_it_is() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let denied = [DeniedField::new("spec.type", "NodePort is not offered: use ClusterIP")];
    let sync_status = |tenant: &Value, denied: &[DeniedField]| {
        let observation = Observation {
            tenant,
            host: &json!({}),
            in_sync: denied.is_empty(),
            denied,
            now: Timestamp::UNIX_EPOCH,
        };
        Services.sync_status(&cache, &name, &observation)
    };
    let other = json!({"type": "example.com/checked", "status": "True"});
    let mut service = json!({"spec": {"type": "NodePort"}, "status": {"conditions": [other], "loadBalancer": {}}});
    assert_eq!(sync_status(&service, &[]), []);
    let reported = sync_status(&service, &denied);
    let [TenantWrite::Status(status)] = reported.as_slice() else {
        panic!("{reported:?}")
    };
    // A Service that is not on the host at all says the same.
    let not_created = Services.denied_status(&cache, &name, &service, &denied, Timestamp::UNIX_EPOCH);
    assert_eq!(not_created.as_ref(), Some(status));
    assert_eq!(status["conditions"][0], other);
    assert_eq!(
        status["conditions"][1],
        json!({"type": "berth.dev/Synced", "status": "False", "reason": "FieldDenied",
            "message": "spec.type: NodePort is not offered: use ClusterIP", "lastTransitionTime": "1970-01-01T00:00:00Z"})
    );
    service["status"] = status.clone();
    let corrected = json!({"conditions": [other], "loadBalancer": {}});
    assert_eq!(sync_status(&service, &[]), [TenantWrite::Status(corrected)]);
}

#[test]
fn the_load_balancers_address_is_synced_back() {
    let cache = registry::new_cache(test_tenant());
    let sync_status = |kind: &str, host: Value| {
        let tenant = json!({"spec": {"type": kind}, "status": {"conditions": [{"type": "X"}], "loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}}});
        let observation = Observation {
            tenant: &tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        Services.sync_status(&cache, &Name::new("shop", "web"), &observation)
    };
    let host = json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP", "node": "host-1"}]}}});
    let status =
        json!({"conditions": [{"type": "X"}], "loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}]}});
    assert_eq!(sync_status("LoadBalancer", host.clone()), [TenantWrite::Status(status)]);
    assert_eq!(
        sync_status("LoadBalancer", json!({})),
        [TenantWrite::Status(
            json!({"conditions": [{"type": "X"}], "loadBalancer": {}})
        )]
    );
    assert_eq!(sync_status("ClusterIP", host), []);
}

#[test]
fn a_service_without_selector_stays_without() {
    assert_eq!(
        translate(&json!({"type": "ClusterIP", "clusterIP": "None"})).unwrap()["spec"].get("selector"),
        None
    );
}

#[test]
fn services_of_the_control_plane_are_never_synced() {
    let cache = registry::new_cache(test_tenant());
    let want = |namespace, name| Services.desired_state(&cache, &Name::new(namespace, name), &Value::Null);
    for (namespace, name) in OF_THE_CONTROL_PLANE {
        assert_eq!(want(namespace, name), DesiredState::Absent);
    }
    assert_eq!(want("shop", "kube-dns"), DesiredState::Sync);
}

#[test]
fn external_names_stay_in_the_tenant() {
    let cache = registry::new_cache(test_tenant());
    for external in ["db.example.com", "db.other.svc", "169-254-169-254.nip.io", "10.0.0.1"] {
        let service = json!({"spec": {"type": "ExternalName", "externalName": external}});
        let state = Services.desired_state(&cache, &Name::new("shop", "db"), &service);
        assert_eq!(state, DesiredState::Absent, "{external}");
    }
}

#[test]
fn what_a_class_offers_no_longer_becomes_a_service_inside() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let when_denied = |spec: Value| {
        Services.when_denied(
            &cache,
            &name,
            &json!({"metadata": {"name": "web"}, "spec": spec}),
            &Value::Null,
        )
    };
    let exposed = json!({"type": "LoadBalancer", "clusterIP": "10.96.7.7", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
        "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "x/y", "selector": {"app": "web"},
        "ports": [{"port": 80, "nodePort": 30080}]});
    let WhenDenied::Reduce(reduced) = when_denied(exposed) else {
        panic!("it keeps its address")
    };
    let spec = &reduced["spec"];
    assert_eq!(
        (&spec["type"], &spec["clusterIP"]),
        (&json!("ClusterIP"), &json!("10.96.7.7"))
    );
    assert_eq!(spec["ports"], json!([{"port": 80}]));
    assert!(OF_EXPOSED.iter().all(|field| spec.get(field).is_none()), "{spec}");
    assert_eq!(
        when_denied(json!({"externalIPs": ["203.0.113.7"]})),
        WhenDenied::Withdraw
    );
}

#[test]
fn a_service_with_denied_annotations_stays_inside_without_annotations() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let annotations = json!({"k8s.v1.cni.cncf.io/networks": "host", "metallb.io/address-pool": "other",
        "service.kubernetes.io/topology-mode": "Auto"});
    let service = json!({"metadata": {"annotations": annotations, "labels": {"a": "b"}},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.7.7"}});
    assert!(Services.translate(&cache, &name, &service).is_err());
    let WhenDenied::Reduce(reduced) = Services.when_denied(&cache, &name, &service, &Value::Null) else {
        panic!("it keeps its address")
    };
    assert_eq!(reduced["metadata"], json!({"labels": {}, "annotations": {}}));
    assert_eq!(reduced["spec"]["clusterIP"], "10.96.7.7");
}

#[test]
fn a_way_in_that_is_taken_away_does_not_wait_for_its_turn() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let stored = |version: u64, kind: &str| {
        let host = json!({"metadata": {"name": "web", "resourceVersion": version.to_string()}, "spec": {"type": kind}});
        cache
            .stores
            .host(KindId::Service)
            .written(name.clone(), Stored::new(&host));
        Services.reduces_at_once(&cache, &name, &json!({"spec": {"type": "ClusterIP"}}))
    };
    assert!(stored(1, "LoadBalancer"));
    assert!(stored(2, "NodePort"));
    assert!(
        !stored(3, "ClusterIP"),
        "it is gone, and returns only by a write that waits"
    );
}

#[test]
fn every_field_of_every_version_has_a_rule() {
    schemas::check(&[
        ("ClientIPConfig", CLIENT_IP),
        ("ServicePort", PORT),
        ("ServiceSpec", SPEC),
        ("SessionAffinityConfig", AFFINITY),
    ]);
}
