//! The kubeconfig of a tenant that its user gets: one with which people sign in as themselves, or that of the administrators.
//!
//! The first holds no secret. It is made of what control publishes in the status of the TenantCluster. Its user is a command that kubectl
//! runs, and the values come from a spec that a team wrote. So this is the only place that makes such a command, it is always
//! `berth token oidc`, and each value is checked here again and is one argument.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::{KubeconfigStatus, TenantCluster, is_plain_https_url};
use berth_pki::keep_certificates;
use berth_pki::kubeconfig::resolve_local_name;
use serde_json::Value;

use crate::error::Error;
use crate::host::Host;
use crate::tenant::{self, TenantName};
use crate::token::{SignIn, exec_user};
use crate::user_config::cluster::Cluster;
use crate::user_config::document;

/// A kubeconfig of a tenant.
#[derive(Debug)]
pub(crate) struct TenantKubeconfig {
    /// The kubeconfig.
    pub(crate) text: String,
    /// The issuer at which people sign in with it. None: it holds the certificate of the administrators, and is secret.
    pub(crate) issuer: Option<String>,
}

/// The kubeconfig for a tenant: that of the administrators if it is asked for, or if the tenant names no issuer for kubeconfigs.
///
/// # Errors
/// There is none yet, the user may not read it, or it has what control does not write.
pub(crate) async fn load(
    host: &Host,
    name: &TenantName,
    tenant: &TenantCluster,
    is_admin: bool,
) -> Result<TenantKubeconfig, Error> {
    if let Some(published) = find_published(name, tenant, is_admin)? {
        let endpoint = tenant.status.as_ref().and_then(|status| status.endpoint.as_deref());
        let kubeconfig = build(&name.name, endpoint.unwrap_or_default(), published);
        let kubeconfig = kubeconfig.map_err(|error| {
            Error::Failed(format!(
                "what the status of the TenantCluster {name} says about kubeconfigs cannot be used: {error}. Ask the platform team, which \
                 alone may write it"
            ))
        })?;
        return Ok(TenantKubeconfig {
            text: document::render(&kubeconfig).map_err(Error::Output)?,
            issuer: Some(published.sign_in.issuer.clone()),
        });
    }
    Ok(TenantKubeconfig {
        text: tenant::read_kubeconfig(host, name, tenant).await?,
        issuer: None,
    })
}

/// What is published for people, unless the kubeconfig of the administrators is asked for or the only one.
///
/// # Errors
/// The tenant names an issuer for kubeconfigs and nothing is published yet: the certificate of the administrators is not what its owner means.
fn find_published<'a>(
    name: &TenantName,
    tenant: &'a TenantCluster,
    is_admin: bool,
) -> Result<Option<&'a KubeconfigStatus>, Error> {
    if is_admin {
        return Ok(None);
    }
    let published = tenant.status.as_ref().and_then(|status| status.kubeconfig.as_ref());
    let asked = tenant
        .spec
        .authentication
        .as_ref()
        .and_then(|own| own.kubeconfig.as_ref());
    match (published, asked) {
        (None, Some(sign_in)) => Err(Error::Failed(format!(
            "{name} names {} in spec.authentication.kubeconfig, which is not in its status yet: `berth get {name}` says what it waits for. \
             With --admin you get the kubeconfig of the administrators, if you may read its Secret",
            sign_in.issuer
        ))),
        (published, _) => Ok(published),
    }
}

/// A kubeconfig with which a person signs in. It holds no secret.
///
/// # Errors
/// The field with a value that control does not publish.
fn build(name: &str, endpoint: &str, published: &KubeconfigStatus) -> Result<Value, String> {
    let KubeconfigStatus {
        certificate_authority,
        sign_in,
        issuer_certificate_authority,
    } = published;
    if !is_plain_https_url(endpoint) {
        return Err(format!("endpoint: {endpoint:?} is not a URL that begins with https://"));
    }
    if let Some(error) = sign_in.find_error() {
        return Err(format!("kubeconfig.{error}"));
    }
    let encode = |field: &str, pem: &str| {
        let kept = keep_certificates(pem).map_err(|error| format!("kubeconfig.{field}: {error}"))?;
        Ok::<_, String>(STANDARD.encode(kept))
    };
    let issuer_authority = issuer_certificate_authority.as_deref();
    let user = exec_user(&SignIn {
        issuer: &sign_in.issuer,
        client_id: &sign_in.client_id,
        scopes: &sign_in.scopes,
        redirect_url: sign_in.redirect_url.clone(),
        ca_data: issuer_authority
            .map(|pem| encode("issuerCertificateAuthority", pem))
            .transpose()?,
        ..SignIn::default()
    });
    let (server, tls_name) = resolve_local_name(endpoint);
    let cluster = Cluster {
        name: name.into(),
        server: server.into_owned(),
        ca_data: Some(encode("certificateAuthority", certificate_authority)?),
        tls_name: tls_name.map(ToOwned::to_owned),
        ..Cluster::default()
    };
    Ok(cluster.kubeconfig(name, &user, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::host_of;
    use crate::testing::client;
    use crate::token::exec::tests::arguments_with;
    use berth_pki::CertificateAuthority;
    use serde_json::json;
    use std::time::Duration;

    const ENDPOINT: &str = "https://vision.team.clusters.example.com";

    fn authority() -> CertificateAuthority {
        CertificateAuthority::create("test", Duration::from_secs(3600)).unwrap()
    }

    fn published(pem: &str) -> KubeconfigStatus {
        serde_json::from_value(json!({
            "certificateAuthority": pem, "issuer": "https://id.example.com", "clientID": "berth", "scopes": ["groups"],
        }))
        .unwrap()
    }

    fn tenant(spec: &Value, status: &Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn people_sign_in_and_nothing_of_it_is_secret() {
        let (server, issuer) = (authority(), authority());
        let mut published = KubeconfigStatus {
            // A key that somebody put beside the certificate is left out.
            issuer_certificate_authority: Some(format!("{}{}", issuer.key_pem(), issuer.cert_pem())),
            ..published(server.cert_pem())
        };
        published.sign_in.redirect_url = Some("http://localhost".into());
        let kubeconfig = build("vision", ENDPOINT, &published).unwrap();
        let cluster = json!({
            "server": ENDPOINT, "certificate-authority-data": STANDARD.encode(server.cert_pem()),
        });
        assert_eq!(kubeconfig["clusters"], json!([{"name": "vision", "cluster": cluster}]));
        let user = kubeconfig["users"][0]["user"].as_object().unwrap();
        assert_eq!(
            user.keys().collect::<Vec<_>>(),
            ["exec"],
            "no certificate, key, token or file"
        );
        assert_eq!(user["exec"]["command"], "berth");
        assert_eq!(user["exec"].get("env"), None);
        let expected = arguments_with(&[
            "--redirect-url=http://localhost",
            &format!("--ca-data={}", STANDARD.encode(issuer.cert_pem())),
        ]);
        assert_eq!(user["exec"]["args"], expected);
    }

    #[test]
    fn a_name_of_this_machine_is_reached_without_dns() {
        let server = authority();
        let kubeconfig = build(
            "vision",
            "https://vision.team.localhost:8443",
            &published(server.cert_pem()),
        )
        .unwrap();
        let cluster = &kubeconfig["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://127.0.0.1:8443");
        assert_eq!(cluster["tls-server-name"], "vision.team.localhost");
    }

    #[test]
    fn values_are_single_arguments_whatever_they_are_like() {
        let server = authority();
        let mut hostile = published(server.cert_pem());
        hostile.sign_in.client_id = "berth --client-secret-file=/home/me/.ssh/id_rsa; sh -c id".into();
        hostile.sign_in.scopes = vec!["--ca-file=/etc/hosts".into(), "$(id)".into()];
        let kubeconfig = build("vision", ENDPOINT, &hostile).unwrap();
        let expected = [
            "token",
            "oidc",
            "--issuer=https://id.example.com",
            "--client-id=berth --client-secret-file=/home/me/.ssh/id_rsa; sh -c id",
            "--scope=--ca-file=/etc/hosts",
            "--scope=$(id)",
        ];
        assert_eq!(kubeconfig["users"][0]["user"]["exec"]["args"], json!(expected));
    }

    #[test]
    fn what_control_does_not_publish_is_not_used() {
        let server = authority();
        let good = published(server.cert_pem());
        for endpoint in [
            "",
            "http://10.0.0.1",
            "https://",
            "https://a@b",
            "file:///x",
            "https://a\nb",
        ] {
            let error = build("vision", endpoint, &good).unwrap_err();
            assert!(error.starts_with("endpoint: "), "{error}");
        }
        let error = |change: &dyn Fn(&mut KubeconfigStatus)| {
            let mut changed = good.clone();
            change(&mut changed);
            build("vision", ENDPOINT, &changed).unwrap_err()
        };
        for pem in ["", "nonsense", server.key_pem()] {
            let own = error(&|one| one.certificate_authority = pem.into());
            assert!(own.starts_with("kubeconfig.certificateAuthority: "), "{own}");
            let issuers = error(&|one| one.issuer_certificate_authority = Some(pem.into()));
            assert!(
                issuers.starts_with("kubeconfig.issuerCertificateAuthority: "),
                "{issuers}"
            );
        }
        let issuer = error(&|one| one.sign_in.issuer = "http://id.example.com".into());
        assert!(issuer.starts_with("kubeconfig.issuer: "), "{issuer}");
        let client = error(&|one| one.sign_in.client_id = "a\0b".into());
        assert!(client.starts_with("kubeconfig.clientID: "), "{client}");
        let scope = error(&|one| one.sign_in.scopes = vec!["a b".into()]);
        assert!(scope.starts_with("kubeconfig.scopes: "), "{scope}");
        let elsewhere = error(&|one| one.sign_in.redirect_url = Some("http://example.com".into()));
        assert!(elsewhere.starts_with("kubeconfig.redirectURL: "), "{elsewhere}");
    }

    /// Other programs read the text, and their parsers differ.
    #[tokio::test]
    async fn of_the_kubeconfig_of_the_administrators_only_what_was_checked_is_given_on() {
        let written = document::render(&json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "vision",
            "clusters": [{"name": "vision", "cluster": {"server": ENDPOINT}}],
            "users": [{"name": "vision", "user": {"client-key-data": "a2V5"}}],
            "contexts": [{"name": "vision", "context": {"cluster": "vision", "user": "vision"}}],
        }))
        .unwrap();
        let changed = format!("---\n# users: evil\n{written}# the end\n");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vision-kubeconfig", "namespace": "team"},
            "data": {"kubeconfig": STANDARD.encode(changed)},
        });
        let host = host_of(client(move |_| (200, secret.clone())), "team");
        let name = TenantName::parse("team/vision", "").unwrap();
        let tenant = tenant(
            &json!({}),
            &json!({"kubeconfigSecretRef": {"name": "vision-kubeconfig"}}),
        );
        let loaded = load(&host, &name, &tenant, true).await.unwrap();
        assert_eq!((loaded.text, loaded.issuer), (written, None));
    }

    #[test]
    fn the_certificate_of_the_administrators_is_for_those_who_ask_or_have_nothing_else() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let server = authority();
        let published = published(server.cert_pem());
        let status = json!({"kubeconfig": published});
        let spec = json!({"authentication": {"kubeconfig": {"issuer": "https://id.example.com", "clientID": "berth"}}});
        let found = |spec: &Value, status: &Value, is_admin: bool| {
            let tenant = tenant(spec, status);
            let found = find_published(&name, &tenant, is_admin);
            found
                .map(Option::<&KubeconfigStatus>::cloned)
                .map_err(|error| error.to_string())
        };
        // The class may name the issuer.
        assert_eq!(found(&json!({}), &status, false), Ok(Some(published.clone())));
        assert_eq!(found(&spec, &status, false), Ok(Some(published)));
        assert_eq!(found(&spec, &status, true), Ok(None));
        assert_eq!(found(&json!({}), &json!({}), false), Ok(None));
        // Control has not accepted it: nobody gets the certificate by accident.
        let error = found(&spec, &json!({}), false).unwrap_err();
        assert!(
            error.contains("berth get team/vision") && error.contains("--admin"),
            "{error}"
        );
        assert_eq!(found(&spec, &json!({}), true), Ok(None));
    }
}
