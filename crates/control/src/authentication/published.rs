//! What people need to sign in with a kubeconfig that holds no secret.

use berth_api::{KubeconfigStatus, TenantAuthentication};
use berth_pki::keep_certificates;

/// What is published of a tenant with these rules, whose API server has a certificate of `authority` (PEM). None if its kubeconfigs name no
/// issuer.
///
/// Nothing but certificates is published of what a team or a class wrote as certificates.
pub fn publish_kubeconfig(rules: &TenantAuthentication, authority: &str) -> Option<KubeconfigStatus> {
    let sign_in = rules.kubeconfig.as_ref()?;
    // Recorded by a version that checked less.
    if sign_in.find_error().is_some() {
        return None;
    }
    let issuer = &rules.jwt.iter().find(|jwt| jwt.issuer.url == sign_in.issuer)?.issuer;
    // People read the discovery document at the issuer. Elsewhere the API server reads it, with certificates for that place.
    let issuer_authority = issuer
        .certificate_authority
        .as_deref()
        .filter(|_| issuer.discovery_url.is_none());
    Some(KubeconfigStatus {
        certificate_authority: keep_certificates(authority).ok()?,
        sign_in: sign_in.clone(),
        issuer_certificate_authority: issuer_authority.map(keep_certificates).transpose().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_pki::CertificateAuthority;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn authority(name: &str) -> CertificateAuthority {
        CertificateAuthority::create(name, Duration::from_secs(3600)).unwrap()
    }

    fn rules(issuer: &Value, kubeconfig: &Value) -> TenantAuthentication {
        let other =
            json!({"url": "https://other.example.com", "audiences": ["berth"], "certificateAuthority": "other"});
        let jwt = [&other, issuer].map(
            |issuer| json!({"issuer": issuer, "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}}}),
        );
        serde_json::from_value(json!({"jwt": jwt, "kubeconfig": kubeconfig})).unwrap()
    }

    #[test]
    fn a_tenant_publishes_where_people_sign_in_and_no_key() {
        let (server, own) = (authority("server"), authority("issuer"));
        let with_key = format!("{}{}", own.key_pem(), own.cert_pem());
        let issuer = json!({"url": "https://id.example.com", "audiences": ["berth"], "certificateAuthority": with_key});
        let kubeconfig = json!({"issuer": "https://id.example.com", "clientID": "berth", "scopes": ["groups"]});
        let published = publish_kubeconfig(&rules(&issuer, &kubeconfig), server.cert_pem()).unwrap();
        let expected = json!({
            "certificateAuthority": server.cert_pem(), "issuerCertificateAuthority": own.cert_pem(),
            "issuer": "https://id.example.com", "clientID": "berth", "scopes": ["groups"],
        });
        assert_eq!(serde_json::to_value(published).unwrap(), expected);
    }

    #[test]
    fn certificates_for_the_api_server_alone_are_not_those_of_people() {
        let (server, own) = (authority("server"), authority("issuer"));
        let issuer = json!({
            "url": "https://id.example.com", "audiences": ["berth"], "certificateAuthority": own.cert_pem(),
            "discoveryURL": "https://dex.auth.svc/.well-known/openid-configuration",
        });
        let kubeconfig = json!({"issuer": "https://id.example.com", "clientID": "berth"});
        let published = publish_kubeconfig(&rules(&issuer, &kubeconfig), server.cert_pem()).unwrap();
        assert_eq!(published.issuer_certificate_authority, None);
    }

    #[test]
    fn a_tenant_whose_kubeconfigs_name_no_issuer_publishes_nothing() {
        let server = authority("server");
        let issuer = json!({"url": "https://id.example.com", "audiences": ["berth"]});
        for kubeconfig in [
            Value::Null,
            json!({"issuer": "https://unknown.example.com", "clientID": "berth"}),
            json!({"issuer": "https://id.example.com", "clientID": "a\nb"}),
        ] {
            let published = publish_kubeconfig(&rules(&issuer, &kubeconfig), server.cert_pem());
            assert_eq!(published, None, "{kubeconfig}");
        }
    }
}
