//! The tenant's kube-apiserver: upstream, with its own certificate authorities, keys of service accounts and key range.

use super::{
    admission, audit, authentication, authorization,
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::{API_SERVER, Component, Health, file_flag, flag, kubernetes_program, version_flags},
    egress, encryption,
    endpoints::Endpoints,
    garbage_collection,
    input::ControlPlaneInput,
};
use berth_api::{ServiceAccountIssuer, TenantAuthentication};
use berth_pki::Usage;
use std::collections::BTreeMap;

/// Names by which pods reach their API server.
const IN_CLUSTER_NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];

/// Where an API server answers with success once it has done all that it does when it starts.
pub const COMPLETE: &str = "/readyz";
/// Where it answers with success once it serves: it has read its datastore, and authorizes by it. A second after it has begun to serve, it
/// also looks whether the default roles and priority classes are there (two of its hooks poll once a second, the first time after a
/// second). They are since its first start.
pub const SERVES: &str = "/readyz?exclude=poststarthook/rbac/bootstrap-roles&exclude=poststarthook/scheduling/bootstrap-system-priority-classes";

/// Where it answers with success as long as its process works, whether or not its datastore does: a new process would not find another one, and
/// all tenants' servers would start at the same time and read everything again, when etcd has just recovered.
const WORKS: &str = "/livez?exclude=etcd";

/// Issuer of service account tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The issuers whose tokens of ServiceAccounts are accepted; the first one is in new tokens. With a gateway both are accepted always, so that
/// tokens that exist stay valid when the tenant's setting changes.
fn issuers<'a>(rules: &TenantAuthentication, endpoints: &'a Endpoints) -> Vec<&'a str> {
    let mut issuers = vec![ISSUER];
    // An API server does not start if an issuer of people has the same URL; control does not accept such a spec.
    let is_free = |url: &&str| rules.jwt.iter().all(|jwt| jwt.issuer.url != **url);
    if let Some(gateway) = endpoints.gateway.as_deref().filter(is_free) {
        let at = match rules.service_account_issuer {
            ServiceAccountIssuer::Cluster => 1,
            ServiceAccountIssuer::Gateway => 0,
        };
        issuers.insert(at, gateway);
    }
    issuers
}

/// Whether everybody may read the discovery document and the public keys of the tenant's ServiceAccounts: its tokens name its URL at the gateway.
pub fn has_public_discovery(rules: &TenantAuthentication, endpoints: &Endpoints) -> bool {
    issuers(rules, endpoints).first() != Some(&ISSUER)
}

/// Adds the server's certificate, and those that it shows itself.
fn issue_certificates(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
    files: &mut BTreeMap<String, String>,
) -> Result<(), CertificateError> {
    let mut names: Vec<String> = IN_CLUSTER_NAMES.iter().map(ToString::to_string).collect();
    names.push(format!("{API_SERVER}.{}.svc", input.tenant.control_plane_namespace()));
    let serving = Leaf::new(API_SERVER, Usage::Server)
        .dns_names(names)
        .hosts([input.endpoints.api_server.host.as_str()])
        .ip_address(input.service_range.first)
        .hosts(input.endpoints.public.hosts.iter().map(String::as_str));
    leaves
        .issue(&authorities.server, "serving", &serving)?
        .put(files, "tls");
    let datastore = Leaf::new(&input.tenant.etcd_user(), Usage::Client);
    leaves
        .issue(&authorities.datastore, "datastore", &datastore)?
        .put(files, "datastore-client");
    let proxy = Leaf::new("front-proxy-client", Usage::Client);
    leaves
        .issue(&authorities.front_proxy, "front-proxy", &proxy)?
        .put(files, "front-proxy-client");
    Ok(())
}

/// Adds what the server trusts, and the keys of its ServiceAccounts.
fn put_authorities(input: &ControlPlaneInput<'_>, authorities: &Authorities, files: &mut BTreeMap<String, String>) {
    files.insert("client-ca.crt".into(), authorities.trusted_clients.clone());
    files.insert("front-proxy-ca.crt".into(), authorities.front_proxy.cert_pem().into());
    files.insert("datastore-ca.crt".into(), input.datastore.ca_pem.clone());
    files.insert(
        "service-account.key".into(),
        authorities.service_account.private_pem.clone(),
    );
    files.insert(
        "service-account.pub".into(),
        authorities.service_account.public_pem.clone(),
    );
}

/// The flags about tokens of ServiceAccounts, whose first issuer is in new ones.
fn token_flags(input: &ControlPlaneInput<'_>, issuers: &[&str]) -> [String; 7] {
    // The API server serves OIDC discovery at its root only, so an issuer has no path: it is that of every cluster, or the tenant's host name at
    // the gateway. The key and the audience of a tenant's tokens are its own.
    let audience = format!("{ISSUER}/{}", input.tenant.hash());
    [
        flag("service-account-issuer", issuers[0]),
        // Without it, the discovery document names an address that its readers do not reach.
        flag("service-account-jwks-uri", format!("{}/openid/v1/jwks", issuers[0])),
        flag("api-audiences", &audience),
        // A pod's token expires when it says, not after a year. Nor does anybody get a token that outlives everything by which access is taken away:
        // no object shows that it exists.
        flag("service-account-extend-token-expiration", "false"),
        flag(
            "service-account-max-token-expiration",
            format!("{}s", input.max_token_seconds),
        ),
        file_flag("service-account-key-file", "service-account.pub"),
        file_flag("service-account-signing-key-file", "service-account.key"),
    ]
}

pub(super) fn render(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Component, CertificateError> {
    let issuers = issuers(input.authentication, input.endpoints);
    let mut files = BTreeMap::new();
    issue_certificates(input, authorities, leaves, &mut files)?;
    admission::for_api_server(input, authorities, leaves, &mut files)?;
    files.insert(
        authentication::FILE.into(),
        authentication::configuration(
            input.authentication,
            has_public_discovery(input.authentication, input.endpoints),
        ),
    );
    let authorization = authorization::for_api_server(authorities, &mut files);
    let egress = egress::for_api_server(input, authorities, leaves, &mut files)?;
    let audit = audit::for_api_server(input.audit, &authorities.encryption, &mut files);
    let encryption = encryption::for_api_server(&authorities.encryption, &mut files);
    put_authorities(input, authorities, &mut files);
    let mut args = vec![
        flag("etcd-servers", input.datastore.endpoints.join(",")),
        flag("etcd-prefix", input.tenant.etcd_prefix()),
        file_flag("etcd-cafile", "datastore-ca.crt"),
        file_flag("etcd-certfile", "datastore-client.crt"),
        file_flag("etcd-keyfile", "datastore-client.key"),
        // A tenant's user may not compact; the datastore compacts by itself.
        flag("etcd-compaction-interval", "0"),
        flag("bind-address", input.endpoints.api_server.listen.ip()),
        flag("secure-port", input.endpoints.api_server.listen.port()),
        flag("advertise-address", input.service_range.first),
        // This server does not know the address at which pods reach it: control writes the endpoints of default/kubernetes.
        flag("endpoint-reconciler-type", "none"),
        flag("service-cluster-ip-range", input.service_range.flag()),
        file_flag("tls-cert-file", "tls.crt"),
        file_flag("tls-private-key-file", "tls.key"),
        file_flag("client-ca-file", "client-ca.crt"),
        file_flag("authentication-config", authentication::FILE),
        authorization,
    ];
    args.extend(token_flags(input, &issuers));
    args.extend([
        file_flag("requestheader-client-ca-file", "front-proxy-ca.crt"),
        flag("requestheader-allowed-names", "front-proxy-client"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-username-headers", "X-Remote-User"),
        file_flag("proxy-client-cert-file", "front-proxy-client.crt"),
        file_flag("proxy-client-key-file", "front-proxy-client.key"),
        file_flag("admission-control-config-file", admission::CONFIGURATION),
        flag("enable-admission-plugins", admission::EVENT_RATE_LIMIT),
        flag("max-requests-inflight", input.limits.max_requests_in_flight),
        flag(
            "max-mutating-requests-inflight",
            input.limits.max_mutating_requests_in_flight,
        ),
        // How often sizes are measured: before the tenant's share of the datastore is exceeded by much.
        flag("etcd-count-metric-poll-period", "20s"),
        // Workloads with privileged templates are stored, so that charts install; the syncer rejects their pods and says so.
        flag("allow-privileged", "true"),
        flag("profiling", "false"),
    ]);
    args.extend(
        issuers
            .iter()
            .skip(1)
            .map(|issuer| flag("service-account-issuer", issuer)),
    );
    args.extend(egress);
    args.extend(audit);
    args.extend(encryption);
    args.extend(version_flags(input.version));
    args.extend(
        berth_kubernetes_versions::features::group_scheduling(input.version)
            .map(|on| flag("runtime-config", on.runtime_config)),
    );
    Ok(Component {
        name: API_SERVER,
        program: kubernetes_program(input.version),
        args,
        env: garbage_collection::environment(garbage_collection::API_SERVER_GROWTH),
        files,
        host_service_account: None,
        memory_limit: None,
        replicas: input.form.replicas(),
        // One that does not become ready must not keep the one before it, for which there was no limit yet, or which trusts a leaked certificate.
        overlaps: !input.datastore_usage.growth_denied
            && !authorities
                .rotation
                .is_some_and(|rotation| rotation.is_overdue(leaves.now())),
        health: Some(Health {
            port: input.endpoints.api_server.listen.port(),
            tls: true,
            live: WORKS,
            ready: SERVES,
        }),
    })
}
