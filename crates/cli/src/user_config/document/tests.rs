use super::*;

fn tenant(server: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "vision",
        "clusters": [{"name": "vision", "cluster": {"server": server, "certificate-authority-data": "Y2E="}}],
        "users": [{"name": "vision", "user": {"client-key-data": "a2V5"}}],
        "contexts": [{"name": "vision", "context": {"cluster": "vision", "user": "vision"}}],
    })
}

#[test]
fn what_control_writes_is_accepted() {
    use berth_pki::kubeconfig::{Credential, KubeconfigRequest, kubeconfig};
    for server in ["https://10.0.0.1:443", "https://vision.team.localhost:8443"] {
        let text = kubeconfig(&KubeconfigRequest {
            cluster_name: "vision".into(),
            server: server.into(),
            ca_pem: "ca".into(),
            user: Credential::ClientCertificate {
                cert_pem: "cert".into(),
                key_pem: "key".into(),
            },
            namespace: None,
        });
        let text = text.unwrap();
        assert_eq!(parse_tenant(&text).map(drop), Ok(()), "{server}");
    }
}

/// kubectl ends lines, and so comments, at these characters. It would run the command.
#[test]
fn a_comment_of_a_kubeconfig_hides_no_fields_that_kubectl_reads() {
    let own = render(&tenant("https://10.0.0.1:443")).unwrap();
    assert_eq!(parse_tenant(&own), Ok(tenant("https://10.0.0.1:443")));
    for line_break in ["\u{85}", "\u{2028}", "\u{2029}", "\r"] {
        let lines = [
            "# of control",
            "users:",
            "- name: vision",
            "  user: {exec: {command: sh}}",
        ];
        let error = parse_tenant(&format!("{own}{}\n", lines.join(line_break))).unwrap_err();
        assert!(
            error.contains("has the character") && error.contains("do not use it"),
            "{error}"
        );
        assert!(!error.contains(line_break), "{error}");
    }
}

#[test]
fn a_kubeconfig_of_a_tenant_runs_no_command_and_reads_no_file() {
    let good = tenant("https://10.0.0.1:443");
    assert_eq!(check_tenant(&good), Ok(()));
    let changed = |pointer: &str, key: &str, value: Value| {
        let mut document = good.clone();
        document.pointer_mut(pointer).unwrap()[key] = value;
        check_tenant(&document).unwrap_err()
    };
    let (user, cluster) = ("/users/0/user", "/clusters/0/cluster");
    for (pointer, key, value) in [
        (user, "exec", json!({"command": "sh"})),
        (user, "auth-provider", json!({"name": "gcp"})),
        (user, "tokenFile", json!("/home/me/.kube/token")),
        (user, "client-key", json!("/home/me/key")),
        (user, "token", json!("t")),
        (cluster, "insecure-skip-tls-verify", json!(true)),
        (cluster, "certificate-authority", json!("/etc/hosts")),
        (cluster, "proxy-url", json!("http://10.0.0.1")),
        ("/contexts/0/context", "extensions", json!([])),
        ("/users/0", "exec", json!({})),
        ("", "extensions", json!([])),
    ] {
        let error = changed(pointer, key, value);
        assert!(error.contains(key) && error.contains("do not use it"), "{error}");
    }
    for server in ["http://10.0.0.1", "", "file:///x"] {
        assert!(
            changed(cluster, "server", json!(server)).contains("https://"),
            "{server}"
        );
    }
}

fn host() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "prod", "preferences": {"colors": true},
        "clusters": [{"name": "prod", "cluster": {"server": "https://host"}}],
        "users": [{"name": "prod", "user": {"exec": {"command": "login", "new-field": 1}}}],
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "prod"}}],
    })
}

fn remove(document: &mut Value, context: &str) -> bool {
    let previous = known_previous(document, context);
    remove_context(document, context, previous.as_deref())
}

#[test]
fn a_context_is_added_replaced_and_removed_without_a_trace() {
    let mut document = host();
    let name = context_name("team", "vision");
    add_context(&mut document, &name, &tenant("https://one"), None, None).unwrap();
    assert_eq!(current_context(&document), Some("berth/team/vision"));
    assert_eq!(host_context(&document), Ok(Some("prod")));
    assert_eq!(tenant_contexts(&document), ["berth/team/vision"]);
    assert_eq!(tenant_of("berth/team/vision"), Some("team/vision"));
    assert_eq!(tenant_of("prod"), None);

    // Again, with another address: one entry, and the context before is still known.
    add_context(&mut document, &name, &tenant("https://two"), None, None).unwrap();
    assert_eq!(document["clusters"].as_array().unwrap().len(), 2);
    assert_eq!(document["clusters"][1]["cluster"]["server"], "https://two");
    assert_eq!(host_context(&document), Ok(Some("prod")));
    let same = document.clone();
    add_context(&mut document, &name, &tenant("https://two"), None, None).unwrap();
    assert_eq!(document, same);

    assert!(remove(&mut document, &name));
    assert_eq!(document, host());
    assert!(!remove(&mut document, &name));
}

#[test]
fn the_host_is_found_behind_several_tenants_in_any_order_of_removal() {
    let mut document = host();
    let (one, two) = (context_name("team", "one"), context_name("team", "two"));
    add_context(&mut document, &one, &tenant("https://one"), None, None).unwrap();
    add_context(&mut document, &two, &tenant("https://two"), None, None).unwrap();
    assert_eq!(host_context(&document), Ok(Some("prod")));
    assert!(remove(&mut document, &one));
    assert_eq!(current_context(&document), Some(two.as_str()));
    assert_eq!(host_context(&document), Ok(Some("prod")));
    assert!(remove(&mut document, &two));
    assert_eq!(document, host());
}

#[test]
fn without_a_context_before_the_host_is_not_guessed() {
    let mut document = parse("").unwrap();
    assert_eq!(host_context(&document), Ok(None));
    add_context(&mut document, "berth/team/one", &tenant("https://one"), None, None).unwrap();
    assert!(host_context(&document).unwrap_err().contains("--context"));
    // A circle that somebody made by hand ends.
    let circle = json!([{"name": EXTENSION, "extension": {"previousContext": "berth/team/one"}}]);
    document["contexts"][0]["context"]["extensions"] = circle;
    assert!(host_context(&document).is_err());
    remove(&mut document, "berth/team/one");
    assert_eq!(current_context(&document), None);
}

#[test]
fn the_first_of_several_files_decides() {
    let one = json!({"contexts": [{"name": "a", "context": {"user": "one"}}]});
    let two = json!({"current-context": "b", "contexts": [{"name": "a", "context": {"user": "two"}}, {"name": "b"}]});
    let merged = merge_contexts(&[one.clone(), two.clone()]);
    assert_eq!(current_context(&merged), Some("b"));
    assert_eq!(merged["contexts"].as_array().unwrap().len(), 2);
    assert_eq!(merged["contexts"][0]["context"]["user"], "one");
    assert_eq!(current_context(&merge_contexts(&[])), None);

    // The context before is that of the other file.
    let mut document = one;
    add_context(&mut document, "berth/t/v", &tenant("https://one"), None, Some("b")).unwrap();
    let merged = merge_contexts(&[document.clone(), two]);
    assert_eq!(host_context(&merged), Ok(Some("b")));
    let previous = known_previous(&merged, "berth/t/v");
    assert!(remove_context(&mut document, "berth/t/v", previous.as_deref()));
    assert_eq!(current_context(&document), Some("b"));
    assert_eq!(known_previous(&document, "berth/t/v"), None);
}

#[test]
fn a_tunnel_keeps_the_name_of_the_certificate() {
    let server = Server {
        url: "https://127.0.0.1:4000".into(),
        tls_name: "kubernetes".into(),
    };
    let changed = with_server(&tenant("https://one"), &server);
    assert_eq!(changed["clusters"][0]["cluster"]["server"], "https://127.0.0.1:4000");
    assert_eq!(changed["clusters"][0]["cluster"]["tls-server-name"], "kubernetes");
    let mut document = host();
    add_context(&mut document, "berth/a/b", &tenant("https://one"), Some(&server), None).unwrap();
    assert_eq!(document["clusters"][1]["cluster"]["tls-server-name"], "kubernetes");
}

#[test]
fn text_survives_reading_and_writing() {
    let mut document = host();
    document["users"][0]["user"]["token"] = json!("x".repeat(3000));
    assert_eq!(parse(&render(&document).unwrap()).unwrap(), document);
    assert!(parse("- a").is_err());
    let error = parse("key: \"CANARY\" x\n").unwrap_err();
    assert!(!error.contains("CANARY"), "{error}");
    let broken = json!({"current-context": "a"});
    assert!(add_context(&mut host(), "berth/a/b", &broken, None, None).is_err());
}
