use super::*;
use crate::{
    kinds::schemas,
    model::{Direction, Mirror, references::References, resource::Side, store::Stored, tenant::test_tenant},
    registry::{self, kind},
};
use std::sync::Arc;

fn cache(hostnames: &[&str]) -> Cache {
    let mut tenant = test_tenant();
    let policy = Arc::make_mut(&mut tenant.policy);
    policy.ingress.classes = vec!["nginx".into()];
    policy.ingress.hostnames = hostnames.iter().map(ToString::to_string).collect();
    let cache = registry::new_cache(tenant);
    for (name, default) in [("nginx", "true"), ("internal", "false")] {
        let class = json!({"metadata": {"name": name, "resourceVersion": "1", "annotations": {
                "ingressclass.kubernetes.io/is-default-class": default, "platform": "x"}},
            "spec": {"controller": "k8s.io/ingress-nginx", "parameters": {"kind": "Secret", "namespace": "platform", "name": "p"}}});
        let store = cache.stores.host(KindId::IngressClass);
        store.written(Name::new("", name), Stored::new(&class));
    }
    let external = json!({"metadata": {"name": "outside", "resourceVersion": "1"}, "spec": {"type": "ExternalName", "externalName": "kubernetes.default.svc"}});
    let services = cache.stores.tenant(KindId::Service);
    services.written(Name::new("shop", "outside"), Stored::new(&external));
    cache
}

fn name() -> Name {
    Name::new("shop", "web")
}

fn ingress() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "berth.dev/tenant": "other"},
            "annotations": {"nginx.ingress.kubernetes.io/rewrite-target": "/$2", "meta.helm.sh/release-name": "web"}},
        "spec": {"ingressClassName": "nginx",
            "rules": [{"host": "app.team.example.com", "http": {"paths": [
                {"path": "/api(/|$)(.*)", "pathType": "ImplementationSpecific", "backend": {"service": {"name": "api", "port": {"name": "http"}}}},
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}],
            "tls": [{"hosts": ["app.team.example.com"], "secretName": "web-tls"}]}})
}

fn translate(hostnames: &[&str], ingress: &Value) -> Result<Translated, Vec<String>> {
    Ingresses
        .translate(&cache(hostnames), &name(), ingress)
        .map_err(|denied| denied.iter().map(ToString::to_string).collect())
}

#[test]
fn names_become_the_hosts() {
    let translated = translate(&["*.team.example.com"], &ingress()).unwrap();
    assert!(translated.ignored.is_empty());
    insta::assert_yaml_snapshot!(translated.object);
}

#[test]
fn a_service_to_which_it_does_not_lead_any_more_is_lost_at_once() {
    let cache = cache(&["*"]);
    let translate = |ingress: &Value| Ingresses.translate(&cache, &name(), ingress).unwrap().object;
    let mut before = ingress();
    before["spec"]["defaultBackend"] = json!({"service": {"name": "api", "port": {"number": 80}}});
    let live = translate(&before);
    let mut after = before.clone();
    let more = json!({"path": "/more", "pathType": "Prefix", "backend": {"service": {"name": "more", "port": {"number": 80}}}});
    let paths = after["spec"]["rules"][0]["http"]["paths"].as_array_mut().unwrap();
    paths.push(more);
    assert_eq!(Ingresses.narrowed(&translate(&after), &live), None, "nothing is lost");
    let paths = after["spec"]["rules"][0]["http"]["paths"].as_array_mut().unwrap();
    paths.remove(0);
    after["spec"].as_object_mut().unwrap().remove("defaultBackend");
    let narrowed = Ingresses.narrowed(&translate(&after), &live).unwrap();
    let mut expected = live.clone();
    for service in ["/defaultBackend/service", "/rules/0/http/paths/0/backend/service"] {
        expected["spec"].pointer_mut(service).unwrap()["name"] = backend::nowhere_at_all().into();
    }
    assert_eq!(narrowed["spec"], expected["spec"], "nothing of the change is written");
    assert_eq!(narrowed["metadata"]["annotations"], live["metadata"]["annotations"]);
    assert_eq!(Ingresses.narrowed(&translate(&after), &narrowed), None);
}

#[test]
fn secrets_services_and_the_class_are_referenced() {
    let targets = Ingresses.references(&cache(&[]), &name(), &ingress());
    let mut targets: Vec<_> = targets
        .iter()
        .map(|target| target.kind.key(target.name.clone()).to_string())
        .collect();
    targets.sort_unstable();
    assert_eq!(
        targets,
        [
            "IngressClass nginx",
            "Secret shop/web-tls",
            "Service shop/api",
            "Service shop/web"
        ]
    );
}

#[test]
fn a_class_and_a_service_concern_the_ingresses_that_name_them() {
    let cache = cache(&["*"]);
    let put = |name: &str, class: &Value| {
        let mut object = ingress();
        object["metadata"]["name"] = name.into();
        object["metadata"]["resourceVersion"] = "1".into();
        object["spec"]["ingressClassName"] = class["spec"].clone();
        object["metadata"]["annotations"][annotations::CLASS] = class["annotation"].clone();
        let name = Name::new("shop", name);
        cache
            .stores
            .tenant(KindId::Ingress)
            .written(name.clone(), Stored::new(&object));
        cache.update_dependents(Side::Tenant, KindId::Ingress, &name);
    };
    let concerned = |side: Side, kind: KindId, name: &Name| {
        let mut keys = cache.update_dependents(side, kind, name);
        keys.retain(|key| key.kind == KindId::Ingress);
        let names: BTreeSet<String> = keys.iter().map(|key| key.name.name.to_string()).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    put("field", &json!({"spec": "nginx"}));
    put("annotation", &json!({"annotation": "nginx"}));
    put("other", &json!({"spec": "mine"}));
    put("without", &json!({}));
    for side in [Side::Tenant, Side::Host] {
        let of_class = |class| concerned(side, KindId::IngressClass, &Name::new("", class));
        assert_eq!(of_class("nginx"), ["annotation", "field"]);
        assert_eq!(of_class("mine"), ["other"]);
        assert_eq!(of_class("internal"), Vec::<String>::new());
    }
    // It is not known what one names for which there is no room, but the host has it.
    *cache.references() = References::new(0);
    let old = Name::new("shop", "old");
    let host = json!({"metadata": {"name": "hosts", "resourceVersion": "1"}});
    cache
        .stores
        .host(KindId::Ingress)
        .written(old.clone(), Stored::new(&host));
    put("old", &json!({"spec": "nginx"}));
    put("new", &json!({"spec": "nginx"}));
    let class = Name::new("", "internal");
    assert_eq!(concerned(Side::Tenant, KindId::IngressClass, &class), ["old"]);
    let service = Name::new("shop", "any");
    assert_eq!(concerned(Side::Tenant, KindId::Service, &service), ["old"]);
}

#[test]
fn all_fields_that_reach_too_far_are_denied_at_once() {
    let mut ingress = ingress();
    let spec = &mut ingress["spec"];
    spec["ingressClassName"] = "internal".into();
    spec["defaultBackend"] = json!({"service": {"name": "web", "port": {"number": 80}}});
    spec["rules"][0]["host"] = "other.example.com".into();
    spec["rules"][0]["http"]["paths"][0]["path"] = "/ {} } location /x { proxy_pass http://169.254.169.254; } #".into();
    spec["rules"][0]["http"]["paths"][1]["backend"] = json!({"resource": {"kind": "Bucket", "name": "b"}});
    spec["rules"]
        .as_array_mut()
        .unwrap()
        .push(json!({"http": {"paths": []}}));
    spec["tls"] = json!([{"secretName": "a"}, {"hosts": ["example.com"]}]);
    spec["somethingNew"] = true.into();
    insta::assert_yaml_snapshot!(translate(&["*.team.example.com"], &ingress).unwrap_err());
}

/// What is denied about an Ingress with this path, after `change` of the Ingress.
fn denied_path(path: &str, path_type: &str, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut ingress = ingress();
    let changed = &mut ingress["spec"]["rules"][0]["http"]["paths"][0];
    changed["path"] = path.into();
    changed["pathType"] = path_type.into();
    change(&mut ingress);
    translate(&["*"], &ingress).err().unwrap_or_default()
}

#[test]
fn paths_that_could_break_the_controller_are_denied() {
    let field = "spec.rules[0].http.paths[0].path: ";
    for (path, path_type) in [
        ("/api(", "ImplementationSpecific"),
        ("/(a+)+$", "ImplementationSpecific"),
        ("/a[z-a]", "ImplementationSpecific"),
        ("/api(/|$)(.*)", "Prefix"),
        ("/a;b", "Exact"),
        ("/a\nb", "Prefix"),
        ("/${host}", "Exact"),
    ] {
        let denied = denied_path(path, path_type, |_| {});
        assert_eq!(denied.len(), 1, "{path}: {denied:?}");
        assert!(
            denied[0].starts_with(field) && denied[0].contains("allowed: "),
            "{denied:?}"
        );
    }
    for (path, path_type) in [("/a/b.c", "Exact"), ("/%7Ea", "Prefix"), ("", "ImplementationSpecific")] {
        assert_eq!(denied_path(path, path_type, |_| {}), Vec::<String>::new(), "{path}");
    }
}

#[test]
fn paths_are_regular_expressions_only_if_the_ingress_says_so() {
    let annotated = |annotations: Value| {
        denied_path("/api/(.*)", "ImplementationSpecific", |ingress| {
            ingress["metadata"]["annotations"] = annotations;
        })
    };
    assert_eq!(annotated(json!({})).len(), 1);
    assert_eq!(
        annotated(json!({"nginx.ingress.kubernetes.io/use-regex": "false"})).len(),
        1
    );
    for (key, value) in [("use-regex", "true"), ("rewrite-target", "/$1")] {
        let key = format!("nginx.ingress.kubernetes.io/{key}");
        assert_eq!(annotated(json!({ key: value })), Vec::<String>::new());
    }
}

#[test]
fn the_size_of_an_ingress_is_limited() {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    let rules = |rules: usize, paths: usize| {
        let rule = json!({"host": "a.example.com", "http": {"paths": vec![path.clone(); paths]}});
        denied_path("/", "Prefix", |ingress| {
            ingress["spec"]["rules"] = vec![rule; rules].into();
        })
    };
    assert_eq!(rules(10, 10), Vec::<String>::new());
    assert_eq!(rules(1, 101).len(), 1);
    assert_eq!(rules(26, 4).len(), 1);
    assert_eq!(rules(101, 1).len(), 2, "rules and paths");
    let denied = denied_path("/", "Prefix", |ingress| {
        ingress["spec"]["rules"][0]["http"]["paths"][1]["backend"]["service"]["port"]["number"] = 65_536.into();
    });
    assert_eq!(
        denied,
        [
            "spec.rules[0].http.paths[1].backend.service.port.number: 65536 is not possible here; allowed: a number from 1 to 65535"
        ]
    );
}

#[test]
fn every_name_may_be_served_only_if_the_class_says_so() {
    let mut ingress = ingress();
    ingress["spec"]["defaultBackend"] = json!({"service": {"name": "web", "port": {"number": 80}}});
    ingress["spec"]["rules"][0]["host"] = Value::Null;
    ingress["spec"]["tls"][0]["hosts"] = json!([]);
    assert!(translate(&["*"], &ingress).is_ok());
    assert_eq!(translate(&[], &ingress).unwrap_err().len(), 3);
}

#[test]
fn the_class_may_be_an_annotation_but_not_missing() {
    let mut ingress = ingress();
    ingress["spec"].as_object_mut().unwrap().remove("ingressClassName");
    let denied = translate(&["*"], &ingress).unwrap_err();
    assert_eq!(
        denied,
        ["spec.ingressClassName: required, because there is no default IngressClass; offered here: nginx"]
    );
    ingress["metadata"]["annotations"]["kubernetes.io/ingress.class"] = "nginx".into();
    assert_eq!(
        translate(&["*"], &ingress).unwrap().object["spec"]["ingressClassName"],
        "nginx"
    );
}

#[test]
fn traffic_is_never_led_to_an_external_name() {
    let mut ingress = ingress();
    ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = "outside".into();
    let translated = translate(&["*"], &ingress).unwrap();
    let backend = &translated.object["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"];
    assert_ne!(*backend, host_name(KindId::Service, &Name::new("shop", "outside")));
    assert_eq!(translated.ignored.len(), 1);
}

#[test]
fn ingresses_of_the_tenants_classes_stay_in_the_tenant() {
    let cache = cache(&[]);
    let own = json!({"metadata": {"name": "mine", "resourceVersion": "1"}, "spec": {"controller": "example.com/mine"}});
    let store = cache.stores.tenant(KindId::IngressClass);
    store.written(Name::new("", "mine"), Stored::new(&own));
    let mut ingress = ingress();
    assert_eq!(Ingresses.desired_state(&cache, &name(), &ingress), DesiredState::Sync);
    ingress["spec"]["ingressClassName"] = "mine".into();
    assert_eq!(Ingresses.desired_state(&cache, &name(), &ingress), DesiredState::Absent);
}

#[test]
fn listed_classes_are_mirrored_without_the_fields_of_the_host() {
    let Direction::Mirror(mirror) = kind(KindId::IngressClass).direction else {
        panic!()
    };
    let mirror: &dyn Mirror = mirror;
    assert_eq!(mirror.mirrored_object(&cache(&[]), &Name::new("", "internal")), None);
    insta::assert_yaml_snapshot!(mirror.mirrored_object(&cache(&[]), &Name::new("", "nginx")));
}

#[test]
fn the_status_is_synced_back() {
    let (cache, ingress) = (cache(&[]), ingress());
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    let host = json!({"metadata": {}, "status": status});
    let observation = Observation {
        tenant: &ingress,
        host: &host,
        in_sync: true,
        denied: &[],
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    assert_eq!(
        Ingresses.sync_status(&cache, &name(), &observation),
        [TenantWrite::Status(status)]
    );
}

#[test]
fn every_field_of_every_version_has_a_rule() {
    schemas::check(&[
        ("HTTPIngressPath", PATH),
        ("HTTPIngressRuleValue", HTTP),
        ("IngressBackend", BACKEND),
        ("IngressRule", RULE),
        ("IngressServiceBackend", SERVICE),
        ("IngressSpec", SPEC),
        ("IngressTLS", TLS),
        ("ServiceBackendPort", PORT),
    ]);
}

#[test]
fn what_somebody_else_has_set_beside_the_syncer_is_removed() {
    let desired = json!({"spec": {"ingressClassName": "nginx", "rules": [{"host": "app.team.example.com"}]}});
    let removed = |written: Value| Ingresses.without_foreign_fields(&desired, &written);
    assert_eq!(removed(desired.clone()), None);
    let mut written = desired.clone();
    written["spec"]["rules"] = json!([]);
    written["spec"]["tls"] = Value::Null;
    written["spec"]["somethingNew"] = json!(1);
    assert_eq!(
        removed(written.clone()),
        None,
        "the syncer sets rules, and never the last one"
    );
    written["spec"]["tls"] = json!([{"hosts": ["a"]}]);
    written["spec"]["defaultBackend"] = json!({"service": {"name": "elsewhere"}});
    let all = Some(json!({"spec": {"defaultBackend": null, "tls": null}}));
    assert_eq!(removed(written.clone()), all);
    // A syncer that starts has what its watch keeps.
    let (_, watched) = KIND.host.unwrap();
    (watched.trim)(&mut written);
    assert_eq!(
        written["spec"],
        json!({"defaultBackend": true, "rules": true, "tls": true})
    );
    assert_eq!(removed(written), all);
}
