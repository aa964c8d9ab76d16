use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod() -> Value {
    json!({"spec": {"volumes": [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "tls", "projected": {"sources": [
            {"configMap": {"name": "kube-root-ca.crt"}},
            {"podCertificate": {
                "signerName": "example.com/ca", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem",
                "maxExpirationSeconds": 3600, "userAnnotations": {"example.com/path": "/x"}}},
            {"podCertificate": {
                "signerName": "example.com/ca", "keyType": "RSA3072", "keyPath": "key.pem", "certificateChainPath": "chain.pem"}}]}}]}})
}

fn answered(kind: &str) -> Value {
    json!({"status": {
        "certificateChain": "a comment\n-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n",
        "beginRefreshAt": "1970-01-01T01:00:00Z",
        "conditions": [{"type": kind, "status": "True", "reason": "Why", "message": "because"}]}})
}

#[test]
fn certificates_are_asked_for_as_the_pod_says() {
    let asked = asked(&pod());
    let sources: Vec<_> = asked.iter().map(|asked| (&*asked.source, asked.key_type())).collect();
    assert_eq!(sources, [("1-1", "ECDSAP256"), ("1-2", "RSA3072")]);
    let of = |name| Identity { name, uid: name };
    let request = request(&asked[0], of("pod"), of("account"), of("node"), "REVS");
    let expected = json!({
        "signerName": "example.com/ca", "podName": "pod", "podUID": "pod", "serviceAccountName": "account",
        "serviceAccountUID": "account", "nodeName": "node", "nodeUID": "node", "stubPKCS10Request": "REVS",
        "maxExpirationSeconds": 3600, "unverifiedUserAnnotations": {"example.com/path": "/x"}});
    assert_eq!(request["spec"], expected);
    assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], "pod");
}

#[test]
fn files_are_those_that_the_projection_names() {
    let asked = asked(&pod());
    let keys = |asked: &Asked| asked.files("KEY", "CHAIN");
    assert_eq!(json!(keys(&asked[0])), json!({"certificate-1-1-bundle": "KEYCHAIN"}));
    let both = json!({"certificate-1-2-key": "KEY", "certificate-1-2-chain": "CHAIN"});
    assert_eq!(json!(keys(&asked[1])), both);
    let paths = items(1, 2, &asked[1].projection);
    let expected = [
        ("certificate-1-2-key", "key.pem"),
        ("certificate-1-2-chain", "chain.pem"),
    ];
    assert_eq!(paths, expected.map(|(key, path)| (key.to_owned(), path.to_owned())));
}

#[test]
fn the_answer_of_a_signer_is_read() {
    let Answer::Issued { chain_pem, refresh_at } = answer(&answered("Issued"), "uid") else {
        panic!("it was issued");
    };
    assert_eq!(
        chain_pem,
        "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
    );
    assert!((at(3600)..at(3900)).contains(&refresh_at), "{refresh_at}");
    for kind in ["Denied", "Failed"] {
        let Answer::Ended(ending) = answer(&answered(kind), "uid") else {
            panic!("it ended");
        };
        let expected = (kind, "Why", "because");
        assert_eq!((ending.condition, &*ending.reason, &*ending.message), expected);
    }
    assert_eq!(answer(&json!({}), "uid"), Answer::None);
    assert_eq!(answer(&answered("Other"), "uid"), Answer::None);
}

#[test]
fn pods_refresh_at_different_times() {
    let times: std::collections::BTreeSet<_> = (0..50).map(|number| spread(&format!("uid-{number}"))).collect();
    assert!(times.len() > 30, "{times:?}");
    assert_eq!(spread("uid"), spread("uid"));
}

#[test]
fn a_certificate_is_requested_stored_and_refreshed() {
    let waiting = Requested::Waiting {
        name: "req-1".into(),
        key_pem: "KEY".into(),
        at: at(0),
    };
    let issued_until = |refresh_at| Answer::Issued {
        chain_pem: "CHAIN".into(),
        refresh_at,
    };
    let ending = Ending {
        condition: "Denied",
        reason: String::new(),
        message: String::new(),
    };
    let store_until = |refresh_at| Step::Store {
        key_pem: "KEY".into(),
        chain_pem: "CHAIN".into(),
        refresh_at,
    };
    let cases = [
        ("nothing is there", (1, None, None, None), Step::Request),
        (
            "not seen yet",
            (1, None, Some(&waiting), None),
            Step::Wait(Some(at(600))),
        ),
        ("never seen", (600, None, Some(&waiting), None), Step::Request),
        (
            "not answered",
            (900, None, Some(&waiting), Some(Answer::None)),
            Step::Wait(None),
        ),
        (
            "issued",
            (1, None, Some(&waiting), Some(issued_until(at(3600)))),
            store_until(at(3600)),
        ),
        (
            "issued, to be refreshed at once",
            (1000, None, Some(&waiting), Some(issued_until(at(100)))),
            store_until(at(1600)),
        ),
        ("fresh", (99, Some(at(100)), None, None), Step::Wait(Some(at(100)))),
        ("stale", (100, Some(at(100)), None, None), Step::Request),
        (
            "refresh is denied",
            (101, Some(at(100)), Some(&waiting), Some(Answer::Ended(ending.clone()))),
            Step::Report(ending),
        ),
        (
            "not asked twice",
            (102, Some(at(100)), Some(&Requested::Ended), None),
            Step::Wait(None),
        ),
    ];
    for (what, (now, refresh_at, requested, answer), expected) in cases {
        assert_eq!(decide(at(now), refresh_at, requested, answer), expected, "{what}");
    }
}

#[test]
fn refresh_times_are_read_from_the_secret() {
    let text = json!({"1-1": at(5)}).to_string();
    let secret = json!({"metadata": {"annotations": {labels::CERTIFICATES: text}}});
    assert_eq!(refresh_times(&secret), BTreeMap::from([("1-1".to_owned(), at(5))]));
    let broken = json!({"metadata": {"annotations": {labels::CERTIFICATES: "no JSON"}}});
    assert!(refresh_times(&broken).is_empty());
}

#[test]
fn sizes_are_those_of_the_files_in_a_secret() {
    let files = json!({"certificate-0-0-key": "k".repeat(30), "certificate-0-0-chain": "c".repeat(31)});
    assert_eq!(bytes_of(files.as_object().unwrap()), 19 + 40 + 6 + 21 + 44 + 6);
    let secret = json!({"metadata": {"annotations": {labels::CERTIFICATE_BYTES: "{\"0-0\":136}"}}});
    assert_eq!(sizes(&secret), Sizes::from([("0-0".to_owned(), 136)]));
    assert!(sizes(&json!({})).is_empty());
}
