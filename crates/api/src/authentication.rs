//! How people and machines sign in to a tenant with tokens of OIDC issuers: `spec.authentication` of a TenantCluster and of a
//! TenantClass.
//!
//! Names and meanings of the fields below `jwt` are those of `JWTAuthenticator` in the AuthenticationConfiguration of API servers
//! (`apiserver.config.k8s.io/v1`). Its `egressSelectorType` is missing: Berth sets it.

use crate::{KubeDuration, KubeconfigSignIn};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Beginnings of names that no token may authenticate: users and groups of Kubernetes, and those of Berth.
pub const RESERVED_PREFIXES: [&str; 2] = ["system:", "berth:"];

/// Whether a user or a group of this name is the platform's or Kubernetes' own.
pub fn is_reserved_identity(name: &str) -> bool {
    RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// How users of a tenant authenticate, besides the client certificate in the kubeconfig Secret and tokens of ServiceAccounts.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.jwt) || self.jwt.all(a, self.jwt.exists_one(b, b.issuer.url == a.issuer.url))")
    .message("each issuer may be listed once")
    .field_path(".jwt"))]
#[x_kube(validation = Rule::new("!has(self.kubeconfig) || (has(self.jwt) && self.jwt.exists(a, a.issuer.url == self.kubeconfig.issuer && self.kubeconfig.clientID in a.issuer.audiences))")
    .message("kubeconfig must name an issuer of jwt, and a client ID that is one of the audiences of this issuer")
    .field_path(".kubeconfig"))]
pub struct TenantAuthentication {
    /// OIDC issuers whose tokens the tenant's API server accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub jwt: Vec<JwtAuthenticator>,
    /// Where people sign in with kubeconfigs that hold no secret: `berth kubeconfig` and `berth connect` make them. Has no effect on the
    /// API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<KubeconfigSignIn>,
    /// Which issuer the tokens of the tenant's ServiceAccounts name. A change replaces the API server; tokens that exist stay valid.
    #[serde(default, skip_serializing_if = "ServiceAccountIssuer::is_default")]
    pub service_account_issuer: ServiceAccountIssuer,
}

/// The issuer of the tokens of a tenant's ServiceAccounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceAccountIssuer {
    /// That of every cluster, which only the tenant itself reaches: `https://kubernetes.default.svc.cluster.local`.
    #[default]
    Cluster,
    /// The tenant's host name at the gateway. Everybody who reaches the gateway can read the discovery document and the public keys
    /// there, without credentials.
    Gateway,
}

impl ServiceAccountIssuer {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// An issuer of tokens, and which user a token of it authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtAuthenticator {
    /// The issuer.
    pub issuer: Issuer,
    /// Which claims a token must have. All rules must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    /// Which user a token authenticates.
    pub claim_mappings: ClaimMappings,
    /// Which users may sign in. All rules must hold. Berth adds rules that deny names of Kubernetes and of Berth (`system:`, `berth:`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub user_validation_rules: Vec<UserValidationRule>,
}

/// An OIDC issuer.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.audiences.size() == 1 || has(self.audienceMatchPolicy)")
    .message("several audiences need audienceMatchPolicy: MatchAny")
    .field_path(".audienceMatchPolicy"))]
#[x_kube(validation = Rule::new("!has(self.discoveryURL) || self.discoveryURL != self.url")
    .message("discoveryURL must differ from url; leave it out if the issuer serves its discovery document itself")
    .field_path(".discoveryURL"))]
pub struct Issuer {
    /// URL of the issuer, as in the claim `iss` of its tokens. The host must be one that the class allows.
    #[schemars(length(min = 9, max = 1024), regex(pattern = r"^https://[^/?#@\s]+(/[^?#@\s]*)?$"))]
    pub url: String,
    /// URL of the discovery document, with `/.well-known/openid-configuration` at its end, if it is at another place than the issuer.
    #[serde(default, rename = "discoveryURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 1024), regex(pattern = r"^https://[^/?#@\s]+(/[^?#@\s]*)?$"))]
    pub discovery_url: Option<String>,
    /// Certificates (PEM) of the authorities that sign the server certificate of the issuer. Defaults to those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32768))]
    pub certificate_authority: Option<String>,
    /// Values of the claim `aud` that are accepted: mostly client IDs.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub audiences: Vec<String>,
    /// How the audiences of a token are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience_match_policy: Option<AudienceMatchPolicy>,
}

/// How the audiences of a token are compared with those of the issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AudienceMatchPolicy {
    /// The token has at least one of them.
    MatchAny,
}

/// A rule for the claims of a token: the value of one claim, or a CEL expression.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.claim) != has(self.expression)")
    .message("exactly one of claim and expression must be given"))]
#[x_kube(validation = Rule::new("!has(self.requiredValue) || has(self.claim)")
    .message("requiredValue is for claim")
    .field_path(".requiredValue"))]
#[x_kube(validation = Rule::new("!has(self.message) || has(self.expression)")
    .message("message is for expression")
    .field_path(".message"))]
pub struct ClaimValidationRule {
    /// Name of a claim with a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub claim: Option<String>,
    /// Value that the claim must have. Absent: the empty text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub required_value: Option<String>,
    /// CEL expression over `claims` that must be true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub expression: Option<String>,
    /// What the log of the API server says if the expression is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub message: Option<String>,
}

/// Which user a token authenticates.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimMappings {
    /// Name of the user.
    pub username: PrefixedClaimOrExpression,
    /// Groups of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<PrefixedClaimOrExpression>,
    /// Unique ID of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<ClaimOrExpression>,
    /// Further attributes of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub extra: Vec<ExtraMapping>,
}

/// A claim with a prefix, or a CEL expression.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.claim) != has(self.expression)")
    .message("exactly one of claim and expression must be given"))]
#[x_kube(validation = Rule::new("has(self.claim) == has(self.prefix)")
    .message("claim needs a prefix, which may be empty, and expression has none")
    .field_path(".prefix"))]
#[x_kube(validation = Rule::new("!has(self.prefix) || !(self.prefix.startsWith('system:') || self.prefix.startsWith('berth:'))")
    .message("names that begin with system: or berth: are reserved")
    .field_path(".prefix"))]
pub struct PrefixedClaimOrExpression {
    /// Name of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub claim: Option<String>,
    /// What is put before its value, for example `oidc:`. May be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub prefix: Option<String>,
    /// CEL expression over `claims`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub expression: Option<String>,
}

/// A claim or a CEL expression.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.claim) != has(self.expression)")
    .message("exactly one of claim and expression must be given"))]
pub struct ClaimOrExpression {
    /// Name of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub claim: Option<String>,
    /// CEL expression over `claims`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub expression: Option<String>,
}

/// A further attribute of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtraMapping {
    /// Key, with a domain before it: `example.com/team`. Lower-case.
    #[schemars(
        length(min = 3, max = 316),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[-a-z0-9._~!$&'()*+,;=:@/]+$"
        )
    )]
    pub key: String,
    /// CEL expression over `claims` with the value: a text or a list of texts.
    #[schemars(length(min = 1, max = 2048))]
    pub value_expression: String,
}

/// A rule for the user that a token authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserValidationRule {
    /// CEL expression over `user` that must be true.
    #[schemars(length(min = 1, max = 2048))]
    pub expression: String,
    /// What the log of the API server says if it is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub message: Option<String>,
}

/// Seconds for which a token of a ServiceAccount is valid at most, unless the class says otherwise.
const DEFAULT_MAX_TOKEN_SECONDS: i64 = 24 * 3600;
/// An API server does not start with less.
const LEAST_MAX_TOKEN_SECONDS: i64 = 3600;

/// How users of a class's tenants authenticate: `spec.authentication` of a TenantClass.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.serviceAccountMaxTokenExpiration) || duration(self.serviceAccountMaxTokenExpiration) >= duration('1h')")
    .message("must be at least 1h")
    .field_path(".serviceAccountMaxTokenExpiration"))]
pub struct ClassAuthentication {
    /// What tenants have that do not set `spec.authentication`.
    #[serde(default)]
    pub default: TenantAuthentication,
    /// Whether tenants may not set `spec.authentication`.
    #[serde(default)]
    pub locked: bool,
    /// How long a token of a ServiceAccount in the tenants is valid at most. API servers shorten a request for more. A change replaces the API servers;
    /// tokens that exist stay as they are. At least 1h. Defaults to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_max_token_expiration: Option<KubeDuration>,
    /// URLs of the issuers that tenants may list. Their API servers may connect to the hosts of these. Empty: every issuer whose host is
    /// in `network.apiServerEgress.hosts`, and those that the tenant runs itself.
    #[serde(default)]
    #[schemars(
        length(max = 32),
        inner(length(min = 9, max = 1024), regex(pattern = r"^https://[^/?#@\s]+(/[^?#@\s]*)?$"))
    )]
    pub allowed_issuers: Vec<String>,
}

impl ClassAuthentication {
    /// [`ClassAuthentication::service_account_max_token_expiration`] in seconds, as an API server takes it.
    pub fn max_token_seconds(&self) -> i64 {
        let longest = self.service_account_max_token_expiration.as_ref();
        let seconds = longest.map_or(DEFAULT_MAX_TOKEN_SECONDS, KubeDuration::seconds);
        seconds.max(LEAST_MAX_TOKEN_SECONDS)
    }
}

/// Users and groups that have a role in the whole tenant: `spec.access` of a TenantCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantAccess {
    /// Have the ClusterRole `cluster-admin`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub admins: Vec<AccessSubject>,
    /// Have the ClusterRole `berth:editor`. In the whole tenant this makes them able to become admins: it acts as ServiceAccounts of
    /// `kube-system`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub editors: Vec<AccessSubject>,
    /// Have the ClusterRole `berth:viewer`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub viewers: Vec<AccessSubject>,
}

/// A user or a group, by the name that the tenant's API server gives it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!(self.name.startsWith('system:') || self.name.startsWith('berth:'))")
    .message("names that begin with system: or berth: are reserved")
    .field_path(".name"))]
pub struct AccessSubject {
    /// User or Group.
    pub kind: SubjectKind,
    /// Name, with the prefix of its issuer, for example `oidc:vision-admins`.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
}

/// Kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SubjectKind {
    /// One user.
    User,
    /// Every user of a group.
    Group,
}

impl SubjectKind {
    /// Its name in RBAC.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::Group => "Group",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_authenticator_as_upstream_writes_it_is_read_and_written() {
        let value = json!({
            "issuer": {
                "url": "https://id.example.com", "discoveryURL": "https://id.example.com/d/.well-known/openid-configuration",
                "certificateAuthority": "pem", "audiences": ["a", "b"], "audienceMatchPolicy": "MatchAny",
            },
            "claimValidationRules": [{"claim": "hd", "requiredValue": "example.com"}, {"expression": "claims.ok", "message": "no"}],
            "claimMappings": {
                "username": {"claim": "email", "prefix": ""},
                "groups": {"expression": "claims.groups"},
                "uid": {"claim": "sub"},
                "extra": [{"key": "example.com/team", "valueExpression": "claims.team"}],
            },
            "userValidationRules": [{"expression": "user.username != 'x'"}],
        });
        let read: JwtAuthenticator = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), value);
    }

    #[test]
    fn a_tenant_can_say_that_it_accepts_no_issuer() {
        let none: Option<TenantAuthentication> = serde_json::from_value(json!({})).unwrap();
        assert_eq!(none, Some(TenantAuthentication::default()));
    }

    #[test]
    fn the_issuer_of_service_accounts_is_that_of_every_cluster_by_default() {
        let read = |value| serde_json::from_value::<TenantAuthentication>(value).unwrap();
        assert_eq!(read(json!({})).service_account_issuer, ServiceAccountIssuer::Cluster);
        assert_eq!(serde_json::to_value(read(json!({}))).unwrap(), json!({}));
        let gateway = json!({"serviceAccountIssuer": "Gateway"});
        assert_eq!(
            read(gateway.clone()).service_account_issuer,
            ServiceAccountIssuer::Gateway
        );
        assert_eq!(serde_json::to_value(read(gateway.clone())).unwrap(), gateway);
    }

    #[test]
    fn tokens_of_service_accounts_end_after_a_day_unless_the_class_says_otherwise() {
        let seconds = |value| {
            serde_json::from_value::<ClassAuthentication>(value)
                .unwrap()
                .max_token_seconds()
        };
        assert_eq!(seconds(json!({})), 86_400);
        assert_eq!(
            seconds(json!({"serviceAccountMaxTokenExpiration": "8760h"})),
            31_536_000
        );
        // No schema lets these through, and an API server would not start.
        for short in ["0s", "10m", "x"] {
            assert_eq!(
                seconds(json!({ "serviceAccountMaxTokenExpiration": short })),
                3600,
                "{short}"
            );
        }
    }

    #[test]
    fn names_of_kubernetes_and_berth_are_reserved() {
        for name in ["system:masters", "system:", "berth:control", "berth:tenant-admins"] {
            assert!(is_reserved_identity(name), "{name}");
        }
        for name in ["", "oidc:system:masters", "System:masters", "berth", "berthold"] {
            assert!(!is_reserved_identity(name), "{name}");
        }
    }
}
