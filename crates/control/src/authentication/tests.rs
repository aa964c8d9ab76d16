use super::{validate::MAX_BYTES, *};
use serde_json::{Value, json};

fn rules(issuer: &Value) -> TenantAuthentication {
    let mut issuer = issuer.clone();
    if issuer["audiences"].is_null() {
        issuer["audiences"] = json!(["berth"]);
    }
    serde_json::from_value(json!({"jwt": [{
        "issuer": issuer, "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
    }]}))
    .unwrap()
}

fn at(url: &str) -> TenantAuthentication {
    rules(&json!({ "url": url }))
}

fn class(authentication: &Value, hosts: &[&str]) -> TenantClassSpec {
    serde_json::from_value(json!({
        "authentication": authentication, "network": {"apiServerEgress": {"hosts": hosts}},
    }))
    .unwrap()
}

#[test]
fn tenants_without_issuers_of_their_own_have_those_of_the_class() {
    let class = class(&json!({"locked": true, "default": at("https://id.example.com")}), &[]);
    let resolved = resolve(None, &class).unwrap();
    assert!(resolved.from_class);
    assert_eq!(resolved.rules, at("https://id.example.com"));
    let error = resolve(Some(&TenantAuthentication::default()), &class).unwrap_err();
    assert!(error.contains("remove it"), "{error}");
}

#[test]
fn a_tenant_may_accept_no_issuer() {
    let class = class(&json!({"default": at("https://id.example.com")}), &[]);
    let none = resolve(Some(&TenantAuthentication::default()), &class).unwrap();
    assert!(none.rules.jwt.is_empty() && !none.from_class);
}

#[test]
fn api_servers_connect_only_to_issuers_that_the_class_lists_and_to_the_tenants_own() {
    let nothing = class(&json!({}), &[]);
    let error = check(&at("https://id.example.com"), &nothing).unwrap_err();
    assert!(error.contains("may not connect to id.example.com:443"), "{error}");
    assert_eq!(check(&at("https://dex.auth.svc/dex"), &nothing), Ok(()));
    assert_eq!(check(&at("https://dex.auth.svc.cluster.local:5556"), &nothing), Ok(()));
    assert!(check(&at("https://dex.auth.svc.example.com"), &nothing).is_err());

    let hosts = class(&json!({}), &["id.example.com", "other.example.com:8443"]);
    assert_eq!(check(&at("https://ID.example.com/realms/a"), &hosts), Ok(()));
    assert_eq!(check(&at("https://other.example.com:8443"), &hosts), Ok(()));
    assert!(check(&at("https://other.example.com"), &hosts).is_err(), "another port");

    let issuers = class(
        &json!({"allowedIssuers": ["https://id.example.com/a"]}),
        &["hooks.example.com"],
    );
    assert_eq!(check(&at("https://id.example.com/a"), &issuers), Ok(()));
    for other in [
        "https://id.example.com/b",
        "https://id.example.com/a/",
        "https://dex.auth.svc",
        "https://hooks.example.com",
    ] {
        let error = check(&at(other), &issuers).unwrap_err();
        assert!(error.contains("does not allow the issuer"), "{other}: {error}");
    }
    // Who serves the keys can sign in anybody: another host is not the issuer that the class lists, also if webhooks may be there.
    let elsewhere = |host: &str| {
        let url = format!("https://{host}/.well-known/openid-configuration");
        rules(&json!({"url": "https://id.example.com/a", "discoveryURL": url}))
    };
    assert_eq!(check(&elsewhere("id.example.com"), &issuers), Ok(()));
    for host in [
        "hooks.example.com",
        "evil.example.com",
        "dex.auth.svc",
        "id.example.com:8443",
    ] {
        let error = check(&elsewhere(host), &issuers).unwrap_err();
        assert!(error.contains("issuer.discoveryURL"), "{host}: {error}");
    }
    // The platform may say that it is there.
    let mut vouched = issuers.clone();
    vouched.authentication.default = elsewhere("hooks.example.com");
    assert_eq!(check(&elsewhere("hooks.example.com"), &vouched), Ok(()));
    let mut other_keys = elsewhere("hooks.example.com");
    let authority = berth_pki::CertificateAuthority::create("other", std::time::Duration::from_secs(3600)).unwrap();
    other_keys.jwt[0].issuer.certificate_authority = Some(authority.cert_pem().into());
    let error = check(&other_keys, &vouched).unwrap_err();
    assert!(error.contains("issuer.discoveryURL"), "{error}");
}

#[test]
fn service_accounts_have_the_issuer_at_the_gateway_only_if_there_is_one_and_it_is_nobody_elses() {
    const OWN: &str = "https://vision.team.clusters.example.com";
    let gateway: TenantAuthentication = serde_json::from_value(json!({"serviceAccountIssuer": "Gateway"})).unwrap();
    assert_eq!(check_service_account_issuer(&gateway, Some(OWN)), Ok(()));
    let error = check_service_account_issuer(&gateway, None).unwrap_err();
    assert!(error.contains("gateway.domain"), "{error}");
    for rules in [at(OWN), at(&format!("{OWN}/"))] {
        let error = check_service_account_issuer(&rules, Some(OWN)).unwrap_err();
        assert!(error.contains("jwt[0].issuer.url"), "{error}");
        assert_eq!(check_service_account_issuer(&rules, None), Ok(()));
    }
    assert_eq!(
        check_service_account_issuer(&at("https://id.example.com"), Some(OWN)),
        Ok(())
    );
}

#[test]
fn hosts_of_issuers_are_opened_once_and_those_of_the_tenant_are_not() {
    let class = class(&json!({}), &["id.example.com"]);
    let mut all = at("https://id.example.com/a");
    all.jwt.extend(at("https://b.example.com:8443").jwt);
    all.jwt.extend(at("https://b.example.com:8443/c").jwt);
    all.jwt.extend(at("https://dex.auth.svc").jwt);
    let resolved = ResolvedAuthentication {
        rules: all,
        from_class: true,
    };
    let hosts = resolved.open_hosts(&class.network).api_server_egress.hosts;
    assert_eq!(hosts, ["id.example.com", "b.example.com:8443"]);
}

#[test]
fn urls_that_lead_elsewhere_are_rejected() {
    for url in [
        "http://id.example.com",
        "https://",
        "https://user@id.example.com",
        "https://id.example.com?x",
        "https://id.example.com/#x",
        "https://id.example.com\\@evil.example.com",
        "https://127.0.0.1:6443",
        "https://127.1",
        "https://2130706433",
        "https://0x7f000001",
        "https://localhost",
        "https://169.254.169.254",
        "https://[::1]",
        "https://[::ffff:10.0.0.1]",
        "https://id.example.com:0",
        "https://id.example.com/%zz",
        "https://id.example.com/%4",
        "https://id.example.com/a%",
        "https://id.example.com/%4é",
        "https://kubernetes.default.svc.cluster.local",
        "https://kubernetes.default.svc.cluster.local/",
    ] {
        assert!(find_error(&at(url)).is_some(), "{url}");
        let elsewhere = rules(&json!({"url": "https://id.example.com", "discoveryURL": url}));
        if !url.contains("kubernetes.default") {
            assert!(find_error(&elsewhere).is_some(), "{url}");
        }
    }
    for url in [
        "https://10.0.0.1:8443/a",
        "https://[fd00::1]/",
        "https://id.example.com/a/b",
        "https://id.example.com/%41%2fb",
    ] {
        assert_eq!(find_error(&at(url)), None, "{url}");
    }
}

/// The error of an authenticator after a change.
fn error_of(change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::to_value(at("https://id.example.com")).unwrap();
    change(&mut value);
    find_error(&serde_json::from_value(value).unwrap()).unwrap_or_default()
}

#[test]
fn what_an_api_server_does_not_start_with_is_rejected() {
    let mapping =
        |path: &'static str, mapping: Value| error_of(move |value| value["jwt"][0]["claimMappings"][path] = mapping);
    for bad in [
        json!({"claim": "sub"}),
        json!({"prefix": ""}),
        json!({"claim": "sub", "prefix": "", "expression": "claims.sub"}),
        json!({"expression": "claims.sub", "prefix": ""}),
        json!({"claim": "sub", "prefix": "system:"}),
        json!({"claim": "sub", "prefix": "berth:x"}),
    ] {
        assert!(
            mapping("username", bad.clone()).starts_with("jwt[0].claimMappings.username: "),
            "{bad}"
        );
        assert!(
            mapping("groups", bad.clone()).starts_with("jwt[0].claimMappings.groups: "),
            "{bad}"
        );
    }
    assert!(mapping("uid", json!({})).contains("uid: "));
    for key in [
        "team",
        "k8s.io/x",
        "authentication.kubernetes.io/x",
        "a.berth.dev/x",
        "Example.com/x",
    ] {
        let error = mapping("extra", json!([{"key": key, "valueExpression": "''"}]));
        assert!(error.contains("extra[0].key"), "{key}: {error}");
    }
    let twice = json!([{"key": "a.b/x", "valueExpression": "''"}, {"key": "a.b/x", "valueExpression": "''"}]);
    assert!(mapping("extra", twice).contains("extra[1].key"));
    for rule in [
        json!({}),
        json!({"claim": "a", "expression": "b"}),
        json!({"expression": "b", "requiredValue": "c"}),
    ] {
        let error = error_of(|value| value["jwt"][0]["claimValidationRules"] = json!([rule]));
        assert!(error.contains("claimValidationRules[0]"), "{rule}: {error}");
    }
    for field in ["claimValidationRules", "userValidationRules"] {
        let error = error_of(|value| value["jwt"][0][field] = json!([{"expression": "a"}, {"expression": "a"}]));
        assert!(
            error.starts_with(&format!("jwt[0].{field}[1]: another rule")),
            "{error}"
        );
    }
    let error = error_of(|value| value["jwt"][0]["issuer"]["discoveryURL"] = "https://id.example.com/".into());
    assert!(error.contains("the same as url"), "{error}");
    let error = error_of(|value| value["jwt"][0]["issuer"]["certificateAuthority"] = "nonsense".into());
    assert!(error.contains("certificateAuthority"), "{error}");
    let twice = error_of(|value| value["jwt"] = json!([value["jwt"][0], value["jwt"][0]]));
    assert!(twice.contains("listed twice"), "{twice}");
}

#[test]
fn all_issuers_together_have_a_limit_in_bytes() {
    let of_bytes = |bytes: usize| {
        let mut all = at("https://id.example.com");
        let count = |all: &TenantAuthentication| serde_json::to_vec(&all.jwt).unwrap().len();
        let missing = bytes - count(&all);
        all.jwt[0].issuer.audiences[0].push_str(&"x".repeat(missing));
        assert_eq!(count(&all), bytes);
        find_error(&all)
    };
    assert_eq!(of_bytes(MAX_BYTES - 1), None);
    assert_eq!(of_bytes(MAX_BYTES), None);
    let error = of_bytes(MAX_BYTES + 1).unwrap();
    assert!(
        error.starts_with("jwt: ") && error.ends_with("list fewer issuers"),
        "{error}"
    );
}

#[test]
fn an_email_as_user_name_must_be_verified() {
    let with = |expression: &str| {
        error_of(|value| value["jwt"][0]["claimMappings"]["username"] = json!({ "expression": expression }))
    };
    assert!(with("claims.email").contains("email_verified"));
    assert!(with("claims.email + ':x'").contains("email_verified"));
    assert_eq!(with("claims.emails[0]"), "");
    assert_eq!(with("claims.email_verified ? claims.email : ''"), "");
    let checked = error_of(|value| {
        value["jwt"][0]["claimMappings"]["username"] = json!({"expression": "claims.email"});
        value["jwt"][0]["claimValidationRules"] = json!([{"expression": "claims.email_verified == true"}]);
    });
    assert_eq!(checked, "");
}

#[test]
fn kubeconfigs_name_a_client_whose_tokens_are_accepted() {
    let with = |issuer: &str, client: &str| {
        error_of(|value| value["kubeconfig"] = json!({"issuer": issuer, "clientID": client}))
    };
    assert_eq!(with("https://id.example.com", "berth"), "");
    assert!(with("https://id.example.com", "other").starts_with("kubeconfig: "));
    assert!(with("https://other.example.com", "berth").starts_with("kubeconfig: "));
    // What a command line is made of.
    assert!(with("https://id.example.com#x", "berth").starts_with("kubeconfig.issuer: "));
    assert!(with("https://id.example.com", "a\nb").starts_with("kubeconfig.clientID: "));
}

#[test]
fn settings_of_earlier_versions_have_nothing_of_their_own() {
    let read: ResolvedAuthentication = serde_json::from_value(json!({})).unwrap();
    assert!(read.from_class && read.rules.jwt.is_empty());
}
