use super::*;
use crate::{
    kinds::{View, kind},
    store::Stored,
    tenant::test_tenant,
};
use std::sync::Arc;

fn world(hostnames: &[&str]) -> World {
    let mut tenant = test_tenant();
    let policy = Arc::make_mut(&mut tenant.policy);
    policy.ingress.classes = vec!["nginx".into()];
    policy.ingress.hostnames = hostnames.iter().map(ToString::to_string).collect();
    let world = World::new(tenant);
    for (name, default) in [("nginx", "true"), ("internal", "false")] {
        let class = json!({"metadata": {"name": name, "resourceVersion": "1", "annotations": {
                "ingressclass.kubernetes.io/is-default-class": default, "platform": "x"}},
            "spec": {"controller": "k8s.io/ingress-nginx", "parameters": {"kind": "Secret", "namespace": "platform", "name": "p"}}});
        let store = world.stores.host(KindId::IngressClass);
        store.written(Name::new("", name), Stored::new(&class));
    }
    let external = json!({"metadata": {"name": "outside", "resourceVersion": "1"}, "spec": {"type": "ExternalName", "externalName": "kubernetes.default.svc"}});
    let services = world.stores.tenant(KindId::Service);
    services.written(Name::new("shop", "outside"), Stored::new(&external));
    world
}

fn name() -> Name {
    Name::new("shop", "web")
}

fn ingress() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "berth.dev/tenant": "other"},
            "annotations": {"nginx.ingress.kubernetes.io/ssl-redirect": "true", "meta.helm.sh/release-name": "web"}},
        "spec": {"ingressClassName": "nginx",
            "rules": [{"host": "app.team.example.com", "http": {"paths": [
                {"path": "/api(/|$)(.*)", "pathType": "ImplementationSpecific", "backend": {"service": {"name": "api", "port": {"name": "http"}}}},
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}],
            "tls": [{"hosts": ["app.team.example.com"], "secretName": "web-tls"}]}})
}

fn translate(hostnames: &[&str], ingress: &Value) -> Result<Translated, Vec<String>> {
    Ingresses
        .translate(&world(hostnames), &name(), ingress)
        .map_err(|refused| refused.iter().map(ToString::to_string).collect())
}

#[test]
fn names_become_the_hosts() {
    let translated = translate(&["*.team.example.com"], &ingress()).unwrap();
    assert!(translated.notes.is_empty());
    insta::assert_yaml_snapshot!(translated.object);
}

#[test]
fn secrets_come_along_and_services_are_known() {
    let targets = Ingresses.references(&world(&[]), &name(), &ingress());
    let targets: Vec<_> = targets
        .iter()
        .map(|target| target.kind.key(target.name.clone()).to_string())
        .collect();
    assert_eq!(targets, ["Secret shop/web-tls", "Service shop/api", "Service shop/web"]);
}

#[test]
fn everything_that_reaches_too_far_is_refused_at_once() {
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
fn a_class_by_annotation_and_none_at_all() {
    let mut ingress = ingress();
    ingress["spec"].as_object_mut().unwrap().remove("ingressClassName");
    let refused = translate(&["*"], &ingress).unwrap_err();
    assert_eq!(
        refused,
        ["spec.ingressClassName: name an IngressClass, for there is no default one; offered here: nginx"]
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
    assert_eq!(translated.notes.len(), 1);
}

#[test]
fn classes_of_the_tenant_are_its_own_affair() {
    let world = world(&[]);
    let own = json!({"metadata": {"name": "mine", "resourceVersion": "1"}, "spec": {"controller": "example.com/mine"}});
    let store = world.stores.tenant(KindId::IngressClass);
    store.written(Name::new("", "mine"), Stored::new(&own));
    let mut ingress = ingress();
    assert_eq!(Ingresses.want(&world, &name(), &ingress), Want::Sync);
    ingress["spec"]["ingressClassName"] = "mine".into();
    assert_eq!(Ingresses.want(&world, &name(), &ingress), Want::Absent);
}

#[test]
fn listed_classes_are_shown_without_what_is_the_hosts() {
    let Flow::View(view) = kind(KindId::IngressClass).flow else {
        panic!()
    };
    let view: &dyn View = view;
    assert_eq!(view.desired(&world(&[]), &Name::new("", "internal")), None);
    insta::assert_yaml_snapshot!(view.desired(&world(&[]), &Name::new("", "nginx")));
}

#[test]
fn status_comes_back() {
    let (world, ingress) = (world(&[]), ingress());
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    let host = json!({"metadata": {}, "status": status});
    let report = Report {
        tenant: &ingress,
        host: &host,
        in_sync: true,
        refused: &[],
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    assert_eq!(Ingresses.back(&world, &name(), &report), [TenantWrite::Status(status)]);
}
