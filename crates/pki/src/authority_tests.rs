use jiff::Timestamp;
use x509_parser::prelude::{GeneralName, X509Certificate};

use super::*;
use crate::{not_after, not_before, renew_at};

const HOUR: Duration = Duration::from_hours(1);

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("test-ca", 24 * HOUR).unwrap()
}

fn request(organizations: &[&str]) -> LeafRequest {
    LeafRequest {
        common_name: "user".into(),
        organizations: organizations.iter().map(ToString::to_string).collect(),
        ..LeafRequest::new(Usage::Client, HOUR)
    }
}

/// Parses a PEM certificate and passes it to `check`.
fn with_certificate<T>(pem: &str, check: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    check(&pem.parse_x509().unwrap())
}

#[test]
fn leaf_is_signed_by_its_authority_and_by_no_other() {
    let (ours, theirs) = (authority(), authority());
    let leaf = ours.issue(&request(&[])).unwrap();
    with_certificate(&leaf.cert_pem, |leaf| {
        with_certificate(ours.cert_pem(), |ca| {
            leaf.verify_signature(Some(ca.public_key())).unwrap();
        });
        with_certificate(theirs.cert_pem(), |ca| {
            leaf.verify_signature(Some(ca.public_key())).unwrap_err()
        });
    });
}

#[test]
fn a_stored_authority_signs_as_before() {
    let created = authority();
    let loaded = CertificateAuthority::from_pem(created.cert_pem(), created.key_pem()).unwrap();
    let leaf = loaded.issue(&request(&[])).unwrap();
    with_certificate(&leaf.cert_pem, |leaf| {
        with_certificate(created.cert_pem(), |ca| {
            leaf.verify_signature(Some(ca.public_key())).unwrap();
            assert_eq!(leaf.issuer(), ca.subject());
        });
    });
}

#[test]
fn invalid_authorities_are_rejected() {
    let (ours, theirs) = (authority(), authority());
    let mismatch = CertificateAuthority::from_pem(ours.cert_pem(), theirs.key_pem()).unwrap_err();
    assert!(matches!(mismatch, Error::KeyMismatch { .. }), "{mismatch}");
    let leaf = ours.issue(&request(&[])).unwrap();
    let no_authority = CertificateAuthority::from_pem(&leaf.cert_pem, &leaf.key_pem).unwrap_err();
    assert!(matches!(no_authority, Error::NotAnAuthority { .. }), "{no_authority}");
    assert!(matches!(
        CertificateAuthority::from_pem("", ""),
        Err(Error::NotACertificate(_))
    ));
}

#[test]
fn subject_carries_user_and_groups() {
    let leaf = authority().issue(&request(&["one", "two"])).unwrap();
    with_certificate(&leaf.cert_pem, |leaf| {
        let groups: Vec<_> = leaf
            .subject()
            .iter_organization()
            .map(|group| group.as_str().unwrap())
            .collect();
        assert_eq!(groups, ["one", "two"]);
        let users: Vec<_> = leaf
            .subject()
            .iter_common_name()
            .map(|user| user.as_str().unwrap())
            .collect();
        assert_eq!(users, ["user"]);
    });
    let refused = authority().issue(&request(&["one", "two", "three"])).unwrap_err();
    assert!(matches!(refused, Error::TooManyOrganizations(3)), "{refused}");
}

#[test]
fn requested_names_and_usages_are_in_the_certificate() {
    let server = LeafRequest {
        common_name: "kube-apiserver".into(),
        dns_names: vec!["kubernetes.default.svc".into()],
        ip_addresses: vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        ..LeafRequest::new(Usage::Server, HOUR)
    };
    let leaf = authority().issue(&server).unwrap();
    with_certificate(&leaf.cert_pem, |leaf| {
        let names = &leaf.subject_alternative_name().unwrap().unwrap().value.general_names;
        let addresses: Vec<_> = names
            .iter()
            .filter(|name| matches!(name, GeneralName::IPAddress(_)))
            .collect();
        assert_eq!(addresses.len(), 2);
        assert!(names.contains(&GeneralName::DNSName("kubernetes.default.svc")));
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth);
        assert!(!leaf.is_ca());
    });
}

#[test]
fn impossible_requests_are_rejected() {
    let long = LeafRequest {
        common_name: "x".repeat(65),
        ..LeafRequest::new(Usage::Client, HOUR)
    };
    assert!(matches!(authority().issue(&long), Err(Error::CommonName(_))));
    assert!(matches!(
        CertificateAuthority::create("", HOUR),
        Err(Error::CommonName(_))
    ));
    let foreign = LeafRequest {
        dns_names: vec!["schön".into()],
        ..request(&[])
    };
    assert!(matches!(authority().issue(&foreign), Err(Error::DnsName(_))));
    assert!(matches!(
        CertificateAuthority::create("x", Duration::MAX),
        Err(Error::Validity(_))
    ));
}

#[test]
fn validity_is_backdated_and_ends_with_the_authority() {
    let ca = authority();
    let leaf = ca
        .issue(&LeafRequest {
            validity: 1000 * HOUR,
            ..request(&[])
        })
        .unwrap();
    assert_eq!(not_after(&leaf.cert_pem).unwrap(), not_after(ca.cert_pem()).unwrap());
    let age = Timestamp::now().as_second() - not_before(&leaf.cert_pem).unwrap().as_second();
    assert!((299..=310).contains(&age), "{age}");
}

/// Who renews certificates that are due would renew one that is never valid again and again, and restart its servers each time.
#[test]
fn an_authority_that_has_expired_signs_nothing() {
    let ca = CertificateAuthority::create("test-ca", Duration::ZERO).unwrap();
    let refused = ca.issue(&request(&[])).unwrap_err();
    assert!(matches!(refused, Error::Expired(_)), "{refused}");
    let stored = CertificateAuthority::from_pem(ca.cert_pem(), ca.key_pem()).unwrap();
    assert!(matches!(stored.issue(&request(&[])), Err(Error::Expired(_))));
}

#[test]
fn renewal_is_due_after_two_thirds() {
    let leaf = authority().issue(&request(&[])).unwrap();
    let in_seconds = renew_at(&leaf.cert_pem).unwrap().as_second() - Timestamp::now().as_second();
    // Two thirds of (one hour + five minutes), counted from five minutes ago.
    assert!((2290..=2301).contains(&in_seconds), "{in_seconds}");
}

#[test]
fn debug_output_hides_keys() {
    let ca = authority();
    let leaf = ca.issue(&request(&[])).unwrap();
    assert!(!format!("{ca:?}{leaf:?}").contains("PRIVATE"));
}

#[test]
fn certificates_of_a_bundle_are_counted_and_read() {
    let ca = CertificateAuthority::create("a", Duration::from_secs(3600)).unwrap();
    let bundle = format!("# a comment\n{}{}{}", ca.cert_pem(), ca.key_pem(), ca.cert_pem());
    assert_eq!(count_certificates(&bundle).unwrap(), 2);
    // The key is not kept.
    assert_eq!(keep_certificates(&bundle).unwrap(), ca.cert_pem().repeat(2));
    for bad in [
        "",
        "nonsense",
        ca.key_pem(),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        assert!(
            matches!(count_certificates(bad), Err(Error::NotACertificate(_))),
            "{bad}"
        );
    }
}
